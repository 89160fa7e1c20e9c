"""Filters against a dumb twin: what they mean, their canonical text, which records of a batch they select, and what the
tag index lets them skip."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.filter_model import FILTERS, DrawnFilter, record_lists
from tests.thoroughness import examples
from tidemill.filters.language import FilterError, parse
from tidemill.filters.matching import compile_filter
from tidemill.filters.needles import needles_of
from tidemill.log.segments.dictionaries import Probe
from tidemill.log.segments.tag_index import TagIndex, build
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.record_walk import records_of, select, walk
from tidemill.protocol.records import CONTROL, BatchHeader, Record, build_batch, header_at
from tidemill.protocol.steps import run_steps

# A busy machine is no failure.
_PATIENT = settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@_PATIENT
@given(drawn=FILTERS, records=record_lists())
def test_compiled_filter_keeps_what_the_twin_keeps(drawn: DrawnFilter, records: list[Record]) -> None:
    keeps = compile_filter(parse(drawn.text)).keeps
    for record in records:
        headers = [(each.key.encode(), each.value) for each in record.headers]
        assert keeps(record.key, headers) is drawn.keeps(record)


@_PATIENT
@given(drawn=FILTERS, records=record_lists(), codec=st.sampled_from(CompressionType))
def test_selected_records_are_those_that_the_twin_keeps(
    drawn: DrawnFilter, records: list[Record], codec: CompressionType
) -> None:
    batch = build_batch(records, codec=codec)
    header = header_at(batch)
    body = records_of(memoryview(batch), header)
    kept = run_steps(select(body, header, compile_filter(parse(drawn.text))))
    expected = {record.offset for record in records if drawn.keeps(record)}
    assert kept == [raw for raw in walk(body, header) if raw[3] in expected]


@_PATIENT
@given(drawn=FILTERS, records=record_lists(max_size=1))
def test_record_that_matches_contains_a_needle_of_each_group(
    drawn: DrawnFilter, records: list[Record]
) -> None:
    batch = bytes(build_batch(records))
    for record in records:
        if drawn.keeps(record):
            for group in needles_of(parse(drawn.text)):
                assert any(needle in batch for needle in group)


@_PATIENT
@given(drawn=FILTERS)
def test_canonical_text_parses_to_the_same_filter(drawn: DrawnFilter) -> None:
    parsed = parse(drawn.text)
    assert parse(str(parsed)) == parsed
    assert str(parse(str(parsed))) == str(parsed)


@_PATIENT
@given(drawn=FILTERS, other=FILTERS)
def test_order_repetition_and_double_negation_make_no_difference(
    drawn: DrawnFilter, other: DrawnFilter
) -> None:
    for word in ("and", "or"):
        a, b = f"({drawn.text})", f"({other.text})"
        assert parse(f"{a} {word} {b}") == parse(f"{b} {word} not not {a} {word} {b}")


_PIECES = [*"ab'\"(),=! \n~\0é", " in ", " not ", " exists", " starts with ", "'a'", " and ", " or ", "tags"]


@_PATIENT
@given(text=st.lists(st.sampled_from(_PIECES), max_size=30).map("".join))
def test_any_text_is_a_filter_or_is_refused(text: str) -> None:
    try:
        parsed = parse(text)
    except FilterError as error:
        assert str(error).endswith(".")  # noqa: PT017
    else:
        assert parse(str(parsed)) == parsed


@_PATIENT
@given(
    drawn=FILTERS,
    batches=st.lists(st.tuples(record_lists(), st.sampled_from(CompressionType), st.booleans()), max_size=6),
)
def test_the_tag_index_finds_what_the_twin_keeps_and_control_batches(
    drawn: DrawnFilter, batches: list[tuple[list[Record], CompressionType, bool]]
) -> None:
    placed: list[tuple[int, BatchHeader, memoryview]] = []
    wanted: dict[int, list[int] | None] = {}
    position = offset = 0
    for records, codec, is_control in batches:
        moved = [record._replace(offset=offset + record.offset) for record in records]
        batch = build_batch(
            moved,
            base_offset=offset,
            codec=0 if is_control else codec,
            attributes=CONTROL if is_control else 0,
        )
        header = header_at(batch)
        placed.append((position, header, memoryview(batch)))
        kept = [record.offset for record in moved if drawn.keeps(record)]
        if is_control or kept:
            wanted[position] = None if is_control else kept
        position, offset = position + header.size, header.next_offset
    index = TagIndex.open(build(placed, position), position)
    assert index is not None
    probe = Probe(parse(drawn.text))
    at = 0
    found: dict[int, list[int] | None] = {}
    while (piece := run_steps(index.next_piece(probe, at))) is not None:
        assert piece.found is not None, "few values are listed"
        for each in piece.found:
            assert at <= each.position < piece.end_position
            (data,) = (data for start, _, data in placed if start == each.position)
            found[each.position] = None if each.records is None else _offsets_at(data, each.records)
        at = piece.end_position
    assert found == wanted


def _offsets_at(batch: memoryview, places: Sequence[tuple[int, int]]) -> list[int]:
    header = header_at(batch)
    body = records_of(batch, header)
    deltas = {record[:2]: record[3] for record in walk(body, header)}
    return [header.base_offset + deltas[place] for place in places]
