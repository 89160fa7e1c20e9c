"""`select`: the records of a batch that a filter keeps, in steps, without trust in the bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tidemill.errors import ProtocolError
from tidemill.filters.language import TERMS_MAX, parse
from tidemill.filters.matching import compile_filter
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.record_walk import RawRecord, headers_at, records_in_steps, select, walk
from tidemill.protocol.records import BatchHeader, Header, Record, build_batch, header_at
from tidemill.protocol.steps import NotAtOnce, run_first_step, run_steps


def _record(
    offset: int, region: str | None, *, key: bytes | None = None, value: bytes | None = b"v"
) -> Record:
    headers = [Header("type", b"order"), Header("trace", b"%d" % offset)]
    if region is not None:
        headers.append(Header("region", region.encode()))
    return Record(offset, 1_000 + offset, key, value, headers)


def _records_of(batch: bytes | bytearray) -> tuple[bytes, BatchHeader]:
    header = header_at(batch)
    return run_steps(records_in_steps(memoryview(batch), header)), header


def _select_in(batch: bytes | bytearray, text: str) -> list[RawRecord]:
    body, header = _records_of(batch)
    return run_steps(select(body, header, compile_filter(parse(text))))


def _select(text: str, records: Sequence[Record]) -> list[RawRecord]:
    return _select_in(build_batch(records), text)


def _offsets(kept: Sequence[RawRecord]) -> list[int]:
    return [offset_delta for _, _, _, offset_delta, _, _ in kept]


@pytest.mark.parametrize("codec", CompressionType)
def test_selected_records_are_those_of_walk_that_match(codec: CompressionType) -> None:
    records = [
        _record(n, "eu" if n % 3 == 0 else "us", key=b"k%d" % n if n % 2 else None) for n in range(100)
    ]
    records[33] = records[33]._replace(value=None)
    body, header = _records_of(build_batch(records, codec=codec))
    kept = run_steps(select(body, header, compile_filter(parse("region = 'eu'"))))
    assert kept == [each for each in walk(body, header) if each[3] % 3 == 0]
    assert _offsets(kept) == list(range(0, 100, 3))


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("region = 'eu'", [1]),
        ("region != 'eu'", [0, 2, 3, 4]),
        ("region exists", [1, 2]),
        ("region not exists", [0, 3, 4]),
        ("key = 'a'", [0, 3]),
        ("key starts with 'b'", [1]),
        ("key not exists", [2, 4]),
        ("key = 'a' or region = 'us'", [0, 2, 3]),
        ("trace = '4'", [4]),
        ("type in ('order', 'offer') and key exists", [0, 1, 3]),
        ("none = 'x'", []),
    ],
)
def test_filter_decides_by_key_and_headers(text: str, offsets: list[int]) -> None:
    regions = (None, "eu", "us", None, None)
    keys = (b"a", b"bc", None, b"a", None)
    records = [_record(n, region, key=key) for n, (region, key) in enumerate(zip(regions, keys, strict=True))]
    assert _offsets(_select(text, records)) == offsets


def test_bytes_that_look_like_a_match_in_key_or_value_are_none() -> None:
    looks = b"\x0cregion\x04eu"
    records = [_record(0, "us", key=looks), _record(1, "us", value=looks), _record(2, "eu")]
    assert _offsets(_select("region = 'eu'", records)) == [2]


def test_match_that_crosses_the_end_of_a_search_is_found() -> None:
    """The search covers 32 KiB at a time. The header of the second record lies before, across and after that."""
    for padding in range(32_600, 32_800):
        records = [
            _record(0, "us", value=b"x" * padding),
            _record(1, "eu"),
            _record(2, "us", value=b"x" * 70_000),
        ]
        assert _offsets(_select("region = 'eu'", records)) == [1], padding


def test_matches_far_apart_are_found() -> None:
    records = [_record(n, "eu" if n % 100 == 0 else "us", value=b"x" * 900) for n in range(1_000)]
    assert _offsets(_select("region = 'eu'", records)) == list(range(0, 1_000, 100))


@pytest.mark.parametrize("needless", [b"\0", b"\x80\0", b"\x80\x80\x80\0"])
@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("region = 'eu'", b"\0\0\0\x01\x01\x02\x0cregion\x84", b"eu"),
        ("key = 'eu'", b"\0\0\0\x84", b"eu\x01\0"),
        ("region exists", b"\0\0\0\x01\x01\x02\x8c", b"region\x01"),
    ],
)
def test_length_with_needless_bytes_is_decoded_and_matches(
    text: str, before: bytes, after: bytes, needless: bytes
) -> None:
    """2 may be written as 0x84 0x00. No client does that, but every consumer accepts it."""
    record = before + needless + after
    header = header_at(build_batch([_record(0, None)]))
    body = bytes([2 * len(record)]) + record
    assert _offsets(run_steps(select(body, header, compile_filter(parse(text))))) == [0]


def test_batch_without_needles_is_not_walked() -> None:
    header = header_at(build_batch([_record(n, "us") for n in range(1_000)]))
    matcher = compile_filter(parse("region = 'eu'"))
    no_records = b"\xff" * 7_000
    assert run_first_step(select(no_records, header, matcher)) == []
    with pytest.raises(ProtocolError):
        run_steps(select(no_records + b"region\x04eu", header, matcher))


def test_record_without_needles_is_skipped_by_its_length() -> None:
    """The second of three records has eight bytes that are no record."""
    records = [_record(0, "eu"), _record(1, "eu"), _record(2, "eu")]
    body, header = _records_of(build_batch(records))
    (start, end, *_) = list(walk(body, header))[1]
    body = body[:start] + bytes([16]) + b"\xff" * 8 + body[end:]
    matcher = compile_filter(parse("region = 'eu'"))
    assert _offsets(run_steps(select(body, header, matcher))) == [0, 2]
    with pytest.raises(ProtocolError):
        run_steps(select(body, header, compile_filter(parse("region != 'us'"))))


def test_batch_that_lacks_one_of_two_required_texts_is_not_walked() -> None:
    header = header_at(build_batch([_record(0, "us")]))
    matcher = compile_filter(parse("region = 'eu' and 'test' in tags"))
    assert not run_first_step(select(b"\xff" * 100 + b"region\x04eu", header, matcher))


@pytest.mark.parametrize(("text", "matches"), [("region != 'eu'", 4_990), ("region = 'eu'", 10)])
def test_large_batch_takes_steps(text: str, matches: int) -> None:
    records = [_record(n, "eu" if n % 500 == 0 else "us", value=b"v" * 50) for n in range(5_000)]
    body, header = _records_of(build_batch(records))
    matcher = compile_filter(parse(text))
    with pytest.raises(NotAtOnce):
        run_first_step(select(body, header, matcher))
    assert len(run_steps(select(body, header, matcher))) == matches


def test_filter_of_many_terms_takes_more_steps() -> None:
    body, header = _records_of(build_batch([_record(n, "us") for n in range(100)]))
    many = " and ".join(f"name{number} != 'value'" for number in range(TERMS_MAX))
    assert len(run_first_step(select(body, header, compile_filter(parse("region != 'eu'"))))) == 100
    with pytest.raises(NotAtOnce):
        run_first_step(select(body, header, compile_filter(parse(many))))
    assert len(run_steps(select(body, header, compile_filter(parse(many))))) == 100


def test_small_batch_takes_one_step() -> None:
    body, header = _records_of(build_batch([_record(n, "eu") for n in range(100)]))
    assert len(run_first_step(select(body, header, compile_filter(parse("region exists"))))) == 100


def test_empty_batch_has_no_records() -> None:
    assert _select("key not exists", []) == []


# -- records that do not parse ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tail",
    {
        "fewer headers than claimed": b"\x04\x02a\x02b",
        "more headers than claimed": b"\0\x02a\x02b",
        "a negative count": b"\x01",
        "a count that does not fit": b"\xfe\xff\x03",
        "a header without name": b"\x02\x01\x02b",
        "a header without name, whose length is read twice": b"\x02\x01",
        "a name that is too long": b"\x02\x7ea\x02b",
        "a value that is too long": b"\x02\x02a\x7eb",
        "an endless varint": b"\x02" + b"\xff" * 11,
    }.values(),
)
def test_headers_that_do_not_parse_are_refused(tail: bytes) -> None:
    record = b"\0\0\0\x01\x01" + tail
    body = bytes([2 * len(record)]) + record
    header = header_at(build_batch([_record(0, None)]))
    with pytest.raises(ProtocolError):
        run_steps(select(body, header, compile_filter(parse("a != 'x'"))))


def test_every_cut_of_a_record_is_refused() -> None:
    body, header = _records_of(build_batch([_record(0, "eu", key=b"key")]))
    for size in range(1, len(body)):
        cut = bytes([2 * (size - 1)]) + body[1:size]
        with pytest.raises(ProtocolError):
            run_steps(select(cut, header, compile_filter(parse("region != 'x'"))))


def test_headers_at_returns_all_headers_or_the_named_ones() -> None:
    section = b"\x06\x02a\x02x\x02b\x01\x02a\0"
    assert headers_at(section, 0, len(section)) == [(b"a", b"x"), (b"b", None), (b"a", b"")]
    assert headers_at(section, 0, len(section), {b"b"}) == [(b"b", None)]
