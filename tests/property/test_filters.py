"""Filters against a dumb twin: what they mean, their canonical text, which records of a batch they select, and what the
tag index lets them skip."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.filter_model import FILTERS, DrawnFilter, record_lists
from tidemill.filters.language import FilterError, parse
from tidemill.filters.matching import compile_filter
from tidemill.filters.needles import needles_of
from tidemill.log.segments.summaries import Probe, TermCollector
from tidemill.log.segments.tag_index import TagIndex, build
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.record_walk import records_of, select, walk
from tidemill.protocol.records import CONTROL, BatchHeader, Record, build_batch, header_at
from tidemill.protocol.steps import run_steps

# A busy machine is no failure.
_PATIENT = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


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
def test_what_the_tag_index_skips_has_no_match_and_no_control_batch(
    drawn: DrawnFilter, batches: list[tuple[list[Record], CompressionType, bool]]
) -> None:
    placed: list[tuple[int, BatchHeader, memoryview]] = []
    wanted: set[int] = set()
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
        if is_control or any(drawn.keeps(record) for record in moved):
            wanted.add(position)
        position, offset = position + header.size, header.next_offset
    index = TagIndex.open(build(placed, position), position)
    assert index is not None
    probe = Probe(parse(drawn.text))
    at = 0
    read: set[int] = set()
    while (piece := run_steps(index.next_piece(probe, at))) is not None:
        read.update(start for start, _, _ in placed if piece.position <= start < piece.end_position)
        assert piece.position >= at
        at = piece.end_position
    assert wanted <= read


@_PATIENT
@given(drawn=FILTERS, records=record_lists())
def test_what_a_summary_excludes_has_no_match(drawn: DrawnFilter, records: list[Record]) -> None:
    """Each record alone, so that no other one hides a wrong exclusion."""
    probe = Probe(parse(drawn.text))
    for record in records:
        batch = build_batch([record], base_offset=record.offset)
        collector = TermCollector()
        collector.add(header_at(batch), memoryview(batch))
        if drawn.keeps(record):
            assert probe.may_match(collector.summary())
