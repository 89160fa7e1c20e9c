"""Filters against a dumb twin: what they mean, their canonical text, and which records of a batch they select."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.property.filter_model import FILTERS, DrawnFilter, record_lists
from tidemill.filters.language import FilterError, parse
from tidemill.filters.matching import compile_filter
from tidemill.filters.needles import needles_of
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.record_walk import records_of, select, walk
from tidemill.protocol.records import Record, build_batch, header_at
from tidemill.protocol.steps import run_steps


@given(drawn=FILTERS, records=record_lists())
def test_compiled_filter_keeps_what_the_twin_keeps(drawn: DrawnFilter, records: list[Record]) -> None:
    keeps = compile_filter(parse(drawn.text)).keeps
    for record in records:
        headers = [(each.key.encode(), each.value) for each in record.headers]
        assert keeps(record.key, headers) is drawn.keeps(record)


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


@given(drawn=FILTERS, records=record_lists(max_size=1))
def test_record_that_matches_contains_a_needle_of_each_group(
    drawn: DrawnFilter, records: list[Record]
) -> None:
    batch = bytes(build_batch(records))
    for record in records:
        if drawn.keeps(record):
            for group in needles_of(parse(drawn.text)):
                assert any(needle in batch for needle in group)


@given(drawn=FILTERS)
def test_canonical_text_parses_to_the_same_filter(drawn: DrawnFilter) -> None:
    parsed = parse(drawn.text)
    assert parse(str(parsed)) == parsed
    assert str(parse(str(parsed))) == str(parsed)


@given(drawn=FILTERS, other=FILTERS)
def test_order_repetition_and_double_negation_make_no_difference(
    drawn: DrawnFilter, other: DrawnFilter
) -> None:
    for word in ("and", "or"):
        a, b = f"({drawn.text})", f"({other.text})"
        assert parse(f"{a} {word} {b}") == parse(f"{b} {word} not not {a} {word} {b}")


_PIECES = [*"ab'\"(),=! \n~\0é", " in ", " not ", " exists", " starts with ", "'a'", " and ", " or ", "tags"]


@given(text=st.lists(st.sampled_from(_PIECES), max_size=30).map("".join))
def test_any_text_is_a_filter_or_is_refused(text: str) -> None:
    try:
        parsed = parse(text)
    except FilterError as error:
        assert str(error).endswith(".")  # noqa: PT017
    else:
        assert parse(str(parsed)) == parsed
