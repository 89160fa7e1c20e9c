"""Record batches: building, reading, stamping, refusing, and what mutated bytes may do."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from tests.unit.log.batches import T0, batch, castagnoli, parse_segment
from tidemill.errors import ErrorCode, ProtocolError
from tidemill.protocol import records as r
from tidemill.protocol.records import (
    Header,
    InvalidBatch,
    Record,
    assemble,
    build_batch,
    check_produced,
    header_at,
    iterate_records,
    sole_batch,
    split_batches,
    stamp,
    stamp_append_time,
)

CODECS = [0, 1, 2, 3, 4]
_bytes = st.none() | st.binary(max_size=40)
_headers = st.lists(st.builds(Header, st.text(max_size=8), _bytes), max_size=3)
_contents = st.lists(
    st.tuples(st.integers(-1, 1 << 44), _bytes, _bytes, _headers, st.integers(1, 5)), min_size=1, max_size=8
)


def _records(
    contents: list[tuple[int, bytes | None, bytes | None, list[Header], int]], base: int
) -> list[Record]:
    """Offsets rise with gaps, as compaction leaves them."""
    found = []
    for timestamp, key, value, headers, gap in contents:
        found.append(Record(base, timestamp, key, value, headers))
        base += gap
    return found


@given(contents=_contents, base=st.integers(0, 1 << 60), codec=st.sampled_from(CODECS))
@settings(max_examples=examples(150), deadline=None)
def test_built_batch_round_trips(
    contents: list[tuple[int, bytes | None, bytes | None, list[Header], int]], base: int, codec: int
) -> None:
    records = _records(contents, base)
    data = build_batch(records, base_offset=base, codec=codec, leader_epoch=3)
    (header,) = split_batches(memoryview(data))
    assert header.size == len(data)
    assert (header.base_offset, header.last_offset) == (base, records[-1].offset)
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert header.record_count == len(records)
    found = [record._replace(headers=list(record.headers)) for record in iterate_records(memoryview(data))]
    assert found == [record._replace(headers=list(record.headers)) for record in records]
    (parsed,) = parse_segment(bytes(data))
    assert (parsed.base_offset, parsed.last_offset, parsed.leader_epoch) == (base, records[-1].offset, 3)


def test_batch_matches_hand_written_bytes() -> None:
    """One record, field by field as the format has it."""
    data = build_batch(
        [Record(5, 1000, b"k", None, [Header("h", b"v")])],
        base_offset=5,
        leader_epoch=2,
        producer_id=9,
        producer_epoch=1,
        base_sequence=4,
    )
    record = b"\x00" + b"\x00" + b"\x00" + b"\x02k" + b"\x01" + b"\x02" + b"\x02h" + b"\x02v"
    payload = bytes([len(record) * 2]) + record
    after_crc = struct.pack(">hiqqqhii", 0, 0, 1000, 1000, 9, 1, 4, 1) + payload
    expected = (
        struct.pack(">qiib", 5, 9 + len(after_crc), 2, 2)
        + struct.pack(">I", castagnoli(after_crc))
        + after_crc
    )
    assert bytes(data) == expected


@pytest.mark.parametrize("codec", CODECS)
def test_stamping_keeps_the_checksum_right(codec: int) -> None:
    data = batch(3, codec=codec)
    before = bytes(data)
    stamp(memoryview(data), 0, 1 << 40, 77)
    (header,) = split_batches(memoryview(data))
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 77)
    assert bytes(data[16:]) == before[16:]
    assert [record.offset - (1 << 40) for record in iterate_records(memoryview(data))] == [0, 1, 2]


def test_stamping_touches_only_its_own_batch() -> None:
    first, second = batch(2), batch(2)
    data = first + second
    stamp(memoryview(data), len(first), 10, 1)
    assert data[: len(first)] == first
    assert [header.base_offset for header in split_batches(memoryview(data))] == [0, 10]


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_gives_every_record_the_brokers_clock(codec: int) -> None:
    data = batch(3, codec=codec)
    header = stamp_append_time(memoryview(data), header_at(data), T0 + 99)
    (again,) = split_batches(memoryview(data))
    assert again == header
    assert header.is_log_append_time
    assert [record.timestamp for record in iterate_records(memoryview(data))] == [T0 + 99] * 3


# -- refusing ------------------------------------------------------------------------------------------------


def _patched(layout: str, position: int, value: int, *, fix_crc: bool = True) -> bytearray:
    data = batch(2, producer=(4, 2, 10))
    struct.pack_into(layout, data, position, value)
    if fix_crc:
        struct.pack_into(">I", data, 17, castagnoli(bytes(data[21:])))
    return data


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (batch(2) + b"\0", ErrorCode.CORRUPT_MESSAGE),
        (batch(2) + batch(2)[:-1], ErrorCode.CORRUPT_MESSAGE),
        (_patched(">i", 8, 48), ErrorCode.CORRUPT_MESSAGE),
        (_patched(">i", 8, -1), ErrorCode.CORRUPT_MESSAGE),
        (_patched(">b", 16, 1), ErrorCode.INVALID_RECORD),
        (_patched(">b", 16, 0), ErrorCode.INVALID_RECORD),
        (_patched(">I", 17, 1, fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
        (_patched(">b", 70, 1, fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
    ],
    ids=["longer", "second cut", "short length", "negative", "magic 1", "magic 0", "crc", "content"],
)
def test_bytes_that_are_no_batches_are_refused(data: bytearray, code: ErrorCode) -> None:
    with pytest.raises(InvalidBatch) as raised:
        split_batches(memoryview(data))
    assert raised.value.code == code
    assert raised.value.reason


@pytest.mark.parametrize("data", [b"", batch(2)[:60], batch(2)[:-1], _patched(">i", 8, 0x7FFFFFFF)])
def test_a_single_batch_that_is_cut_off_is_no_batch(data: bytearray) -> None:
    """As in Kafka; the partition decides which error a producer gets."""
    assert split_batches(memoryview(data)) == []


@pytest.mark.parametrize(
    "data",
    [
        _patched(">i", 23, -1),
        _patched(">i", 23, 2),
        _patched(">i", 57, 0),
        _patched(">i", 57, -1),
        _patched(">i", 57, 3),
        _patched(">h", 21, r.CONTROL),
        _patched(">h", 21, 5),
        _patched(">h", 21, 7),
        _patched(">i", 53, -1),
        _patched(">q", 0, 77),
    ],
    ids=[
        "delta",
        "delta 2",
        "no records",
        "negative count",
        "count",
        "control",
        "codec 5",
        "codec 7",
        "sequence",
        "base offset",
    ],
)
def test_whole_batches_that_a_producer_may_not_send(data: bytearray) -> None:
    (header,) = split_batches(memoryview(data))
    with pytest.raises(InvalidBatch) as raised:
        check_produced(header)
    assert raised.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (batch(2)[:-1], ErrorCode.INVALID_RECORD),
        (batch(2) + batch(2), ErrorCode.INVALID_RECORD),
        (batch(2) + _patched(">I", 17, 1, fix_crc=False), ErrorCode.INVALID_RECORD),
        (batch(2) + b"\0", ErrorCode.CORRUPT_MESSAGE),
        (_patched(">I", 17, 1, fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
        (_patched(">b", 16, 3), ErrorCode.CORRUPT_MESSAGE),
        (_patched(">b", 16, 1), ErrorCode.INVALID_RECORD),
    ],
    ids=["nothing", "cut off", "two", "second with a wrong crc", "stray byte", "crc", "magic 3", "magic 1"],
)
def test_anything_but_one_batch_is_refused(data: bytearray, code: ErrorCode) -> None:
    with pytest.raises(InvalidBatch) as raised:
        sole_batch(memoryview(data))
    assert raised.value.code == code


def test_sole_batch_returns_header_of_single_batch() -> None:
    data = batch(3)
    assert sole_batch(memoryview(data)) == header_at(data)


@pytest.mark.parametrize("codec", CODECS)
def test_valid_produced_batches_are_accepted(codec: int) -> None:
    check_produced(header_at(batch(3, codec=codec)))
    check_produced(header_at(batch(3, codec=codec, producer=(1, 0, 0))))


# -- mutations -----------------------------------------------------------------------------------------------


@given(
    codec=st.sampled_from(CODECS),
    changes=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.integers(0, 200),
)
@settings(max_examples=examples(400), deadline=None)
def test_mutated_batches_raise_nothing_but_protocol_errors(
    codec: int, changes: list[tuple[int, int]], cut: int
) -> None:
    data = build_batch(
        [Record(n, T0 + n, b"k", b"v" * 9, [Header("h", None)]) for n in range(4)], codec=codec, base_offset=0
    )
    for position, value in changes:
        data[position % len(data)] = value
    mutated = memoryview(data)[: max(0, len(data) - cut)]
    try:
        for record in iterate_records(mutated):
            assert isinstance(record.offset, int)
    except ProtocolError:
        pass


@given(payload=st.binary(max_size=60), count=st.integers(-2, 5), codec=st.sampled_from(CODECS))
@settings(max_examples=examples(300), deadline=None)
def test_random_payloads_raise_nothing_but_protocol_errors(payload: bytes, count: int, codec: int) -> None:
    header = header_at(batch(1))._replace(record_count=count, attributes=codec)
    try:
        found = list(iterate_records(memoryview(assemble(header, payload))))
    except ProtocolError:
        return
    assert len(found) == max(0, count)


@pytest.mark.parametrize(
    "record",
    [
        b"\x0e\x00\x00\x00\x01\x01\x00",  # claims a byte more than it has
        b"\x0a\x00\x00\x00\x01\x01\x00",  # and one less
        b"\x10\x00\x00\x00\x7e\x01\x00\x00\x00",  # a key longer than the record
        b"\x0c\x00\x00\x00\x01\x01\x7e",  # more headers than fit
        b"\x10\x00\x00\x00\x01\x01\x02\x01\x01",  # a header without a key
        b"\x16\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a varint without end
        b"\x01",  # a negative length
        b"",
    ],
)
def test_a_malformed_record_is_a_protocol_error(record: bytes) -> None:
    data = assemble(header_at(batch(1)), record)
    with pytest.raises(ProtocolError):
        list(iterate_records(memoryview(data)))


def test_header_whose_key_is_not_text_is_read_as_in_java() -> None:
    record = b"\x14\x00\x00\x00\x01\x01\x02\x04\xff\xfe\x01"
    (found,) = iterate_records(memoryview(assemble(header_at(batch(1)), record)))
    assert [header.key for header in found.headers] == ["\ufffd\ufffd"]


def test_bytes_behind_the_last_record_are_a_protocol_error() -> None:
    data = batch(1)
    longer = assemble(header_at(data), bytes(data[61:]) + b"\0")
    with pytest.raises(ProtocolError, match="follow the last record"):
        list(iterate_records(memoryview(longer)))
