"""The decoder against `iterate_records`, which reads one record after the other: the same records, or the same refusal."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from tidemill.claims.claim import Claim
from tidemill.claims.errors import ClaimUnresolved
from tidemill.errors import ProtocolError
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.records import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    Header,
    Record,
    assemble,
    build_batch,
    header_at,
    iterate_records,
)
from tidemill.spark.arrow import boundaries
from tidemill.spark.arrow.decode import SCHEMA, Decoder
from tidemill.spark.arrow.layout import Layout
from tidemill.types import TopicPartition

PARTITION = TopicPartition("orders", 3)
EVERYTHING = (0, 1 << 62)
NO_HEADERS = [name for name in SCHEMA.names if name != "headers"]

Batch = tuple[BatchHeader, memoryview]
Row = dict[str, object]


def batch(data: bytes | bytearray) -> Batch:
    return header_at(data), memoryview(data)


def decode(
    batches: Iterable[Batch],
    columns: Sequence[str] = SCHEMA.names,
    offsets: tuple[int, int] = EVERYTHING,
) -> pa.RecordBatch:
    result = Decoder(PARTITION, *offsets, columns).decode(list(batches))
    result.validate(full=True)
    assert result.schema.names == list(columns)
    assert all(result.schema.field(name).type == SCHEMA.field(name).type for name in columns)
    return result


def expected(batches: Iterable[Batch], offsets: tuple[int, int] = EVERYTHING) -> list[Row]:
    rows: list[Row] = []
    for header, data in batches:
        for record in iterate_records(data, header):
            if offsets[0] <= record.offset < offsets[1]:
                rows.append(
                    {
                        "key": record.key,
                        "value": record.value,
                        "topic": "orders",
                        "partition": 3,
                        "offset": record.offset,
                        "timestamp": record.timestamp * 1000,
                        "timestampType": int(header.is_log_append_time),
                        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
                    }
                )
    return rows


def rows_of(result: pa.RecordBatch) -> list[Row]:
    """With timestamps as numbers: not all of them are dates."""
    columns = {name: result.column(name) for name in result.schema.names}
    if "timestamp" in columns:
        columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    lists = [column.to_pylist() for column in columns.values()]
    return [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]


def random_log(source: random.Random) -> list[Batch]:
    """A few batches with everything that records may have."""

    def text() -> bytes | None:
        size = source.choice([None, 0, 1, 3, 12, 63, 64, 200, 9000])
        return None if size is None else source.choice([source.randbytes(size), bytes(size)])

    def header() -> Header:
        return Header("ké"[: source.randint(0, 2)] * source.randint(1, 40), text())

    result = []
    offset = source.choice([0, 5, 1 << 40])
    for _ in range(source.randint(0, 5)):
        base_offset = offset
        made = []
        widest = source.choice([9, 9000, 1 << 40])
        for _ in range(source.choice([0, 1, 2, 5, 12])):
            of_record = [header() for _ in range(source.choice([0, 0, 1, 4]))]
            timestamp = 1_700_000_000_000 + source.randint(-widest, widest)
            made.append(Record(offset, timestamp, text(), text(), of_record))
            offset += source.choice([1, 1, 1, 2, 300])
        offset = max(offset + source.randint(0, 3), base_offset + 1)
        data = build_batch(
            made,
            base_offset=base_offset,
            codec=source.choice(list(CompressionType)),
            attributes=source.choice([0, LOG_APPEND_TIME]),
            last_offset_delta=offset - 1 - base_offset,
        )
        result.append(batch(data))
    return result


seeds = st.integers(0, 2**32).map(random.Random)


@settings(max_examples=examples(200), deadline=None, database=None)
@given(seeds)
def test_any_batches(source: random.Random) -> None:
    log = random_log(source)
    columns = source.choice([SCHEMA.names, NO_HEADERS, ["value"], ["offset", "headers"]])
    rows = [{name: row[name] for name in columns} for row in expected(log)]
    assert rows_of(decode(log, columns)) == rows


@settings(max_examples=examples(200), deadline=None, database=None)
@given(seeds)
def test_only_the_range_is_decoded(source: random.Random) -> None:
    log = random_log(source) or [batch(build_batch([Record(0, 0, None, None)]))]
    some = [header.base_offset for header, _ in log] + [header.next_offset for header, _ in log]
    start = source.choice(some) + source.randint(-2, 2)
    offsets = (start, max(start, source.choice(some) + source.randint(-2, 2)))
    assert rows_of(decode(log, offsets=offsets)) == expected(log, offsets)


@settings(max_examples=examples(600), deadline=None, database=None)
@given(seeds)
def test_damage_is_refused_or_read_as_the_loop_reads_it(source: random.Random) -> None:
    damaged = []
    for header, content in random_log(source):
        body = bytearray(content[HEADER_SIZE:])
        for _ in range(source.randint(0, 2) if body else 0):
            body[source.randrange(len(body))] = source.choice([0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)])
        if source.random() < 0.1:
            del body[source.randint(0, len(body)) :]
        count = header.record_count + source.choice([0, 0, 0, 0, 0, -1, 1, 1 << 30])
        damaged.append(batch(assemble(header._replace(record_count=count), body)))
    columns = source.choice([SCHEMA.names, NO_HEADERS])
    try:
        rows = rows_of(decode(damaged, columns))
    except ProtocolError:
        return
    if columns is SCHEMA.names:
        assert rows == expected(damaged)
    else:
        # Headers were not requested, so they were not decoded.
        assert len(rows) == sum(header.record_count for header, _ in damaged)


def many(
    count: int, sizes: Sequence[int], batch_bytes: int, *, seed: int = 1, noise: bytes = b""
) -> list[Batch]:
    """Batches of so many records in all, with values of these sizes by turns."""
    source = random.Random(seed)
    result = []
    offset = 0
    while offset < count:
        made: list[Record] = []
        taken = 0
        base_offset = offset
        while taken < batch_bytes and offset < count:
            size = source.choice(sizes)
            value = (noise * (size // len(noise) + 1))[:size] if noise else source.randbytes(size)
            key = b"key-%d" % source.randrange(1000) if source.random() < 0.7 else None
            made.append(Record(offset, 1_700_000_000_000 + offset // 7, key, value))
            taken += size
            offset += 1
        result.append(batch(build_batch(made, base_offset=base_offset)))
    return result


SHAPES = {
    "small batches": ([100], 2000),
    "one batch": ([100], 1 << 30),
    "irregular": (range(50, 150), 1 << 17),
    "tiny": (range(4), 1 << 30),
    "some large": ([10] * 50 + [20_000], 1 << 17),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("noise", [b"", b"\0", b"\x0c\0", b"text and no zero"], ids=repr)
def test_many_records(shape: str, noise: bytes) -> None:
    sizes, batch_bytes = SHAPES[shape]
    log = many(5000, sizes, batch_bytes, noise=noise)
    assert rows_of(decode(log)) == expected(log)


def test_the_guess_finds_all_records_of_ordinary_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(*_: object) -> None:
        raise AssertionError("the loop was needed")

    monkeypatch.setattr("tidemill.spark.arrow.decode.walk_positions", walk)
    for shape in ("small batches", "one batch", "irregular"):
        log = many(8_000, *SHAPES[shape], noise=b"text and no zero")
        assert decode(log, ["offset"]).column(0).to_pylist() == list(range(8_000))


def test_a_wrong_lane_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    log = many(3000, [100], 1 << 16, noise=b"text and no zero")
    buffer, starts = Layout(PARTITION).fill(log, 1 << 30)
    counts = np.array([header.record_count for header, _ in log])
    records = boundaries.walk_positions(buffer, starts, counts)
    for wrong in ([records[1000] + 1], records[500:2000:100] + 7, [records[-1] + 3]):
        lanes = np.unique(np.concatenate((starts, wrong, records[5::50])))
        monkeypatch.setattr(boundaries, "_lanes", lambda *_, lanes=lanes: lanes)
        positions = boundaries.guess_positions(buffer, starts, counts)
        assert positions is not None
        assert np.array_equal(positions, records)


def test_a_wrong_guess_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    log = many(50, [100], 1 << 16)
    monkeypatch.setattr("tidemill.spark.arrow.decode.guess_positions", lambda *_: np.arange(50))
    assert rows_of(decode(log)) == expected(log)


def test_offsets_that_do_not_ascend() -> None:
    made = [Record(offset, 0, b"%d" % offset, None) for offset in (0, 5, 1, 6)]
    log = [batch(build_batch(made, last_offset_delta=6))]
    assert decode(log, ["offset", "key"], (0, 5)).to_pydict() == {"offset": [0, 1], "key": [b"0", b"1"]}


@pytest.mark.parametrize("delta", [-1, 2, 1 << 31, 1 << 61])
def test_an_offset_outside_of_its_batch(delta: int) -> None:
    made = [Record(7, 0, None, None), Record(7 + delta, 0, None, None)]
    with pytest.raises(ProtocolError, match="offset 7 is damaged: a record's offset lies outside"):
        decode([batch(build_batch(made, base_offset=7, last_offset_delta=1))])


def test_values_that_hold_records_do_not_mislead_the_guess() -> None:
    inner = bytes(build_batch([Record(i, i, b"k", b"v" * 70) for i in range(40)]))
    log = many(3000, [len(inner)], 1 << 20, noise=inner)
    assert rows_of(decode(log)) == expected(log)


@pytest.mark.parametrize("count", [100, 5000])
@pytest.mark.parametrize("missing", [-1, 1])
def test_a_wrong_number_of_records_names_its_batch(count: int, missing: int) -> None:
    log = many(count, [30], 1000)
    header, data = log[2]
    log[2] = batch(assemble(header._replace(record_count=header.record_count + missing), data[HEADER_SIZE:]))
    with pytest.raises(
        ProtocolError, match=f"^orders-3: the batch at offset {header.base_offset} is damaged: "
    ):
        decode(log)


@pytest.mark.parametrize("count", [100, 3000])
def test_every_byte_of_a_record_counts(count: int) -> None:
    """Damage amid many records is found, or lies in what is no length."""
    log = many(count, [3], 100)
    header, data = log[1]
    source = random.Random(5)
    refused = 0
    for _ in range(50):
        body = bytearray(data[HEADER_SIZE:])
        body[source.randrange(len(body))] ^= 1 << source.randrange(8)
        damaged = batch(assemble(header, body))
        whole = [log[0], damaged, *log[2:]]
        try:
            rows = expected([damaged])
            is_refused = any(
                row["offset"] not in range(header.base_offset, header.next_offset) for row in rows
            )
        except ProtocolError:
            is_refused = True
        if is_refused:
            refused += 1
            with pytest.raises(ProtocolError, match=f"offset {header.base_offset} is damaged"):
                decode(whole)
        else:
            assert rows_of(decode(whole)[header.base_offset : header.next_offset]) == rows
    assert 10 < refused < 50


def test_compressed_damage_names_its_batch() -> None:
    header, _ = batch(
        build_batch([Record(7, 0, None, b"x" * 100)], base_offset=7, codec=CompressionType.ZSTD)
    )
    damaged = batch(assemble(header, b"\xff" * 20))
    with pytest.raises(ProtocolError, match=r"^orders-3: the batch at offset 7 is damaged: .*decompressed"):
        decode([damaged])


def bytes_of(*numbers: int) -> bytes:
    return bytes(numbers)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (bytes_of(12, 0, 0, 0, 1, 1, 0, 0), "length is wrong"),  # a byte more than the record
        (bytes_of(10, 0, 0, 0, 1, 1, 0), "length is wrong"),  # no room for all fields
        (bytes_of(14, 0, 0, 0, 1, 2, 9, 2), "headers do not fit"),
        (bytes_of(14, 0, 0, 0, 6, 1, 0, 0), "value does not fit|key does not fit"),
        (bytes_of(14, 0, 0, 0, 1, 4, 9, 0), "value does not fit|does not end"),
        (bytes_of(14, 0, 0, 0, 1, 1, 1, 0), "headers do not fit"),  # -1 headers
        (bytes_of(16, 0, 0, 0, 1, 1, 2, 1, 1), "header has no key"),
        (bytes_of(18, 0, 0, 0, 1, 1, 2, 2, 0xFF, 1), "not UTF-8"),
        (bytes_of(18, 0, 0, 0, 1, 1, 2, 0, 1, 0), "last header"),
        (bytes_of(14, 0, *[0xFF] * 6), "cut off"),
        (
            bytes_of(14, 0, 0, 0, 1, 1, 0, 0, 16, 0, 0, 0, 1, 1, 2, 0, 1),
            "headers do not fit",
        ),  # a byte after none
        (bytes_of(34, 0, *[0x80] * 9, 0x7F, 0, 1, 1, 0, 0, 0), "cut off"),  # a varint of more than 64 bits
    ],
)
def test_damage_is_described(body: bytes, reason: str) -> None:
    count = 1 if len(body) < 17 or body[0] > 30 else 2
    header = header_at(build_batch([Record(4, 0, None, None)] * count, base_offset=4))
    damaged = batch(assemble(header, body))
    with pytest.raises(ProtocolError, match=f"offset 4 is damaged: .*({reason})"):
        decode([damaged])


def test_timestamps_are_what_spark_shows() -> None:
    log = [
        batch(build_batch([Record(0, 1_700_000_000_123, None, b""), Record(1, -1, None, b"")])),
        batch(
            build_batch(
                [Record(2, 5, None, b""), Record(3, 9, None, b"")], base_offset=2, attributes=LOG_APPEND_TIME
            )
        ),
    ]
    result = decode(log)
    assert result.column("timestamp").to_pylist() == [
        datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
        datetime(1970, 1, 1, 0, 0, 0, 9000, tzinfo=UTC),
        datetime(1970, 1, 1, 0, 0, 0, 9000, tzinfo=UTC),
    ]
    assert result.column("timestampType").to_pylist() == [0, 0, 1, 1]


@pytest.mark.parametrize("timestamp", [1 << 62, -(1 << 62), 1 << 60])
def test_a_timestamp_beyond_spark_is_refused(timestamp: int) -> None:
    log = [batch(build_batch([Record(0, 0, None, b""), Record(1, timestamp, None, b"")]))]
    with pytest.raises(ProtocolError, match="offset 0 is damaged: a timestamp"):
        decode(log)
    assert decode(log, ["offset"]).column(0).to_pylist() == [0, 1]


def test_results_outlive_the_next_call() -> None:
    """The buffer of the records is used again; what was decoded is not touched by that."""
    first, second = many(3000, [50], 1 << 16, seed=1), many(3000, [50], 1 << 16, seed=2)
    decoder = Decoder(PARTITION, *EVERYTHING, SCHEMA.names)
    result = decoder.decode(first)
    decoder.decode(second)
    assert rows_of(result) == expected(first)


def test_parts_are_bounded_by_what_is_decompressed() -> None:
    made = [
        build_batch([Record(offset, 0, None, bytes(3 << 20))], base_offset=offset, codec=CompressionType.ZSTD)
        for offset in range(20)
    ]
    assert sum(map(len, made)) < 1 << 20
    parts = list(Decoder(PARTITION, *EVERYTHING, ["offset", "value"]).parts(list(map(batch, made))))
    assert [offset for part in parts for offset in part.column("offset").to_pylist()] == list(range(20))
    assert all(part.nbytes < 20 << 20 for part in parts)


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.spark.arrow.layout.DECOMPRESSED_BYTES_MAX", 1 << 20)
    bomb = build_batch([Record(4, 0, None, bytes(2 << 20))], base_offset=4, codec=CompressionType.ZSTD)
    with pytest.raises(
        ProtocolError, match="offset 4 is damaged: it decompresses to more than 1048576 bytes"
    ):
        decode([batch(bomb)])


def test_nothing_to_decode() -> None:
    empty = build_batch([], base_offset=3, last_offset_delta=4)
    assert rows_of(decode([])) == rows_of(decode([batch(empty)])) == []
    with pytest.raises(ProtocolError, match="1 bytes follow"):
        decode([batch(assemble(header_at(empty), b"\0"))])


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(KeyError):
        Decoder(PARTITION, 0, 1, ["values"])


def test_lanes_begin_at_records() -> None:
    """What the guess rests on: its lanes are many, or a walk in them is no better than the loop."""
    log = many(9000, range(50, 150), 1 << 30, noise=b"text and no zero")
    buffer, starts = Layout(PARTITION).fill(log, 1 << 30)
    lanes = boundaries._lanes(buffer, starts, 9000)
    assert len(lanes) > 300
    assert set(lanes.tolist()) <= set(boundaries.walk_positions(buffer, starts, np.array([9000])).tolist())


def test_a_claim_is_refused_where_only_its_empty_value_would_be_seen() -> None:
    claim = Claim(f"s3://bucket/orders/2026-11-17/{'ab' * 32}", 5, "ab" * 32)
    pairs = [Header(name, content) for name, content in claim.headers()]
    about = [Header("note", b"tidemill-claim-uri")]
    records = [
        Record(0, 0, None, b"small", pairs),
        Record(1, 0, None, None, pairs),
        Record(2, 0, None, b"", about),
        Record(3, 0, None, b"", []),
    ]
    plain = [batch(build_batch(records))]
    assert decode(plain, NO_HEADERS).num_rows == 4
    claims = [batch(build_batch([*records, Record(4, 0, None, b"", pairs)]))]
    with pytest.raises(ClaimUnresolved, match=r"orders-3 at offset 4: .*largePayloads.*headers"):
        decode(claims, NO_HEADERS)
    assert decode(claims).num_rows == 5
    assert decode(claims, ["key", "offset"]).num_rows == 5
    assert decode(claims, NO_HEADERS, (0, 4)).num_rows == 4
