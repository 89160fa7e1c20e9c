"""The encoder against `build_batch`, which writes one record after the other: the same bytes."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from tidemill.errors import TidemillError
from tidemill.protocol.records import HEADER_SIZE, BatchHeader, Header, Record, build_batch, header_at
from tidemill.spark.arrow import encode as encode_module
from tidemill.spark.arrow.decode import SCHEMA, Decoder
from tidemill.spark.arrow.encode import EncodedBatch, encode
from tidemill.types import TopicPartition

NOW_MS = 1_700_000_000_000
HEADERS = SCHEMA.field("headers").type
SPARK_TIMESTAMP = pa.timestamp("us", tz="UTC")

seeds = st.integers(0, 2**32).map(random.Random)


def rows_of(columns: dict[str, list[Any]], types: dict[str, pa.DataType] | None = None) -> pa.RecordBatch:
    known = {"key": pa.binary(), "value": pa.binary(), "headers": HEADERS, "timestamp": SPARK_TIMESTAMP}
    known |= types or {}
    return pa.RecordBatch.from_arrays(
        [pa.array(values, known[name]) for name, values in columns.items()], names=list(columns)
    )


def random_columns(source: random.Random, count: int) -> dict[str, list[Any]]:
    def text() -> bytes | None:
        size = source.choice([None, 0, 1, 12, 63, 64, 200, 9000])
        return None if size is None else source.randbytes(size)

    def header() -> dict[str, Any]:
        return {"key": "ké"[: source.randint(0, 2)] * source.randint(1, 40), "value": text()}

    def some_headers() -> list[dict[str, Any]] | None:
        return source.choice([None, [header() for _ in range(source.randint(0, 3))]])

    widest = source.choice([1, 9_000_000, 1 << 50])
    columns: dict[str, list[Any]] = {
        "key": [text() for _ in range(count)],
        "value": [text() for _ in range(count)],
    }
    if source.random() < 0.7:
        columns["headers"] = [some_headers() for _ in range(count)]
    if source.random() < 0.7:
        columns["timestamp"] = [source.choice([None, source.randint(-widest, widest)]) for _ in range(count)]
    return columns


def records_of(columns: dict[str, list[Any]]) -> list[Record]:
    count = len(columns["value"])
    nothing = [None] * count
    names = ("key", "value", "headers", "timestamp")
    lists = [columns.get(name, nothing) for name in names]
    return [
        Record(
            0,
            NOW_MS if time is None else time // 1000,
            key,
            value,
            [Header(header["key"], header["value"]) for header in headers or ()],
        )
        for key, value, headers, time in zip(*lists, strict=True)
    ]


def check(batches: list[EncodedBatch], records: list[Record], batch_bytes_max: int) -> None:
    """Each batch has the bytes that `build_batch` gives, and together they have all records."""
    first = 0
    for batch in batches:
        part = [
            record._replace(offset=delta)
            for delta, record in enumerate(records[first : first + batch.record_count])
        ]
        first += batch.record_count
        built = build_batch(part)
        header = header_at(built)
        assert bytes(batch.records) == bytes(built[HEADER_SIZE:])
        assert batch.base_timestamp == header.base_timestamp
        assert batch.max_timestamp == header.max_timestamp
        assert len(batch.records) <= batch_bytes_max or batch.record_count == 1
    assert first == len(records)


@settings(max_examples=examples(200), deadline=None, database=None)
@given(seeds)
def test_any_rows(source: random.Random) -> None:
    columns = random_columns(source, source.choice([1, 2, 7, 40]))
    batch_bytes_max = source.choice([1, 100, 10_000, 1 << 20])
    batches = list(encode(rows_of(columns), wall_ms=NOW_MS, batch_bytes_max=batch_bytes_max))
    check(batches, records_of(columns), batch_bytes_max)


@settings(max_examples=examples(100), deadline=None, database=None)
@given(seeds)
def test_a_batch_has_rows_of_one_part(source: random.Random) -> None:
    count = source.choice([1, 2, 7, 40])
    columns = random_columns(source, count)
    starts = sorted({0, *(source.randrange(count) for _ in range(source.randint(0, 5)))})
    joined_bytes_max = source.choice([500, 1 << 30])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode_module, "_JOINED_BYTES_MAX", joined_bytes_max)
        batches = list(encode(rows_of(columns), wall_ms=NOW_MS, batch_bytes_max=10_000, starts=starts))
    check(batches, records_of(columns), 10_000)
    part_of_row = [sum(start <= row for start in starts) - 1 for row in range(count)]
    parts = [batch.part for batch in batches for _ in range(batch.record_count)]
    assert parts == part_of_row


@pytest.mark.parametrize("of", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()], ids=str)
def test_types_of_keys_and_values(of: pa.DataType) -> None:
    texts = ["", "käse", None, "x" * 100]
    columns: dict[str, list[Any]] = {"key": texts, "value": texts[::-1]}
    if of in (pa.binary(), pa.large_binary()):
        columns = {
            name: [None if text is None else text.encode() for text in column]
            for name, column in columns.items()
        }
    batches = list(encode(rows_of(columns, {"key": of, "value": of}), wall_ms=NOW_MS, batch_bytes_max=1000))
    raw = {
        name: [text.encode() if isinstance(text, str) else text for text in column]
        for name, column in columns.items()
    }
    check(batches, records_of(raw), 1000)


def test_a_key_column_of_type_null() -> None:
    rows = rows_of({"key": [None, None], "value": [b"a", None]}, {"key": pa.null()})
    check(list(encode(rows, wall_ms=NOW_MS, batch_bytes_max=1000)), records_of({"value": [b"a", None]}), 1000)


@pytest.mark.parametrize(
    ("unit", "time"), [("s", 3), ("ms", 3_001), ("us", 3_001_999), ("ns", 3_001_999_999)]
)
def test_units_of_timestamps(unit: str, time: int) -> None:
    rows = rows_of({"key": [b"k"], "value": [b"v"], "timestamp": [time]}, {"timestamp": pa.timestamp(unit)})
    (batch,) = encode(rows, wall_ms=NOW_MS, batch_bytes_max=100)
    assert batch.base_timestamp == batch.max_timestamp == (3000 if unit == "s" else 3001)


def test_batches_are_nearly_full() -> None:
    columns = {"key": [b"key-%d" % n for n in range(5000)], "value": [b"v" * 90] * 5000}
    batches = list(encode(rows_of(columns), wall_ms=NOW_MS, batch_bytes_max=16_000))
    check(batches, records_of(columns), 16_000)
    assert all(len(batch.records) > 15_000 for batch in batches[:-1])


def test_slices_of_rows() -> None:
    columns = random_columns(random.Random(4), 60)
    part = {name: column[13:47] for name, column in columns.items()}
    rows = rows_of(columns).slice(13, 34)
    check(list(encode(rows, wall_ms=NOW_MS, batch_bytes_max=5000)), records_of(part), 5000)


def test_rows_too_large_to_join_at_once_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_module, "_JOINED_BYTES_MAX", 1000)
    columns: dict[str, list[Any]] = {"key": [None] * 21, "value": [b"v" * 400] * 20 + [b"w" * 2000]}
    batches = list(encode(rows_of(columns), wall_ms=NOW_MS, batch_bytes_max=1 << 20))
    assert len(batches) > 5
    check(batches, records_of(columns), 1 << 20)


def test_no_rows() -> None:
    assert list(encode(rows_of({"key": [], "value": []}), wall_ms=NOW_MS, batch_bytes_max=100)) == []


def test_row_that_cannot_be_a_record_is_refused() -> None:
    bad = [
        (rows_of({"key": [1], "value": [b""]}, {"key": pa.int32()}), "not int32"),
        (
            rows_of({"key": [b""], "value": [b""], "timestamp": [1]}, {"timestamp": pa.int64()}),
            "cast it to timestamp",
        ),
        (rows_of({"key": [b""], "value": [b""], "headers": [[{"key": None, "value": b""}]]}), "no key"),
        (rows_of({"key": [b""], "value": [b""], "headers": [[None]]}), "no key"),
    ]
    for rows, reason in bad:
        with pytest.raises(TidemillError, match=reason):
            list(encode(rows, wall_ms=NOW_MS, batch_bytes_max=100))


def test_encoded_rows_are_decoded() -> None:
    columns = random_columns(random.Random(9), 300)
    rows = rows_of(columns)
    offset = 0
    batches: list[tuple[BatchHeader, memoryview]] = []
    for batch in encode(rows, wall_ms=NOW_MS, batch_bytes_max=20_000):
        header = BatchHeader(
            offset,
            HEADER_SIZE - 12 + len(batch.records),
            0,
            2,
            0,
            0,
            batch.record_count - 1,
            batch.base_timestamp,
            batch.max_timestamp,
            -1,
            -1,
            -1,
            batch.record_count,
        )
        batches.append((header, memoryview(bytes(HEADER_SIZE) + bytes(batch.records))))
        offset += batch.record_count
    decoded = Decoder(TopicPartition("t", 0), 0, offset, ["key", "value"]).decode(batches)
    assert decoded.equals(rows.select(["key", "value"]))
