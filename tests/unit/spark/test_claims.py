"""Claims in Arrow batches: resolved in the source, made in the sink."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidemill.claims.claim import Claim
from tidemill.claims.errors import ClaimForged, ClaimMissing, ClaimTooLarge
from tidemill.claims.large_payloads import LargePayloads
from tidemill.errors import TidemillError
from tidemill.spark.arrow.decode import SCHEMA
from tidemill.spark.claims import columns_to_read, resolved, stored
from tidemill.spark.source.work import ARROW_BYTES

Pairs = Sequence[tuple[str, bytes | None]]


@pytest.fixture
def large(tmp_path: Path) -> LargePayloads:
    return LargePayloads(str(tmp_path), threshold_bytes=100)


def read_batch(rows: Sequence[tuple[bytes | None, Pairs | None]]) -> pa.RecordBatch:
    columns = columns_to_read(["key", "value"])
    return pa.RecordBatch.from_pylist(
        [
            {
                "key": b"k",
                "value": value,
                "headers": None
                if pairs is None
                else [{"key": name, "value": content} for name, content in pairs],
                "topic": "orders",
                "partition": 3,
                "offset": 10 + index,
            }
            for index, (value, pairs) in enumerate(rows)
        ],
        schema=pa.schema([SCHEMA.field(name) for name in columns]),
    )


def values(batches: list[pa.RecordBatch]) -> list[Any]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_claims_become_values_and_other_rows_stay_as_they_are(large: LargePayloads) -> None:
    claim = large.put("orders", b"payload" * 50)
    batch = read_batch(
        [(b"own", None), (b"", claim.headers()), (None, claim.headers()), (b"", [("trace", b"1")])]
    )
    (rows,) = resolved([batch], ["key", "value"], large, ARROW_BYTES)
    assert rows.schema.names == ["key", "value"]
    assert values([rows]) == [b"own", b"payload" * 50, None, b""]


def test_headers_of_claims_are_left_out_where_the_column_is_read(large: LargePayloads) -> None:
    claim = large.put("orders", b"payload" * 50)
    batch = read_batch([(b"", [("trace", b"1"), *claim.headers()]), (b"own", None), (b"own", [("a", None)])])
    (rows,) = resolved([batch], ["value", "headers"], large, ARROW_BYTES)
    assert rows.column("headers").to_pylist() == [
        [{"key": "trace", "value": b"1"}],
        None,
        [{"key": "a", "value": None}],
    ]


def test_query_without_values_reads_no_payload(large: LargePayloads) -> None:
    assert columns_to_read(["key", "offset"]) == ["key", "offset"]
    batch = read_batch([(b"", Claim("https://evil.example/x", 5, "ab" * 32).headers())])
    (rows,) = resolved([batch], ["key"], large, ARROW_BYTES)
    assert rows.column("key").to_pylist() == [b"k"]


def test_batch_is_cut_so_that_payloads_of_one_part_stay_small(large: LargePayloads) -> None:
    size = ARROW_BYTES // 2
    claims = [large.put("orders", bytes([number]) * size) for number in range(5)]
    batch = read_batch([(b"first", None), *((b"", claim.headers()) for claim in claims), (b"last", None)])
    parts = list(resolved([batch], ["value"], large, ARROW_BYTES))
    assert [part.num_rows for part in parts] == [3, 2, 2]
    assert values(parts) == [b"first", *(bytes([number]) * size for number in range(5)), b"last"]


def test_missing_forged_and_large_payloads_fail_and_name_their_record(
    large: LargePayloads, tmp_path: Path
) -> None:
    claim = large.put("orders", b"payload" * 50)
    forged = Claim(f"s3://other/{claim.uri[-80:]}", claim.size, claim.sha256)
    huge = Claim(claim.uri, 5 * 1024**3, claim.sha256)
    Path(claim.uri.removeprefix("file://")).unlink()
    for bad, error in ((claim, ClaimMissing), (forged, ClaimForged), (huge, ClaimTooLarge)):
        batch = read_batch([(b"own", None), (b"", bad.headers())])
        with pytest.raises(error, match=r"^orders-3 at offset 11: "):
            list(resolved([batch], ["value"], large, ARROW_BYTES))


def test_large_values_of_the_sink_become_claims_that_the_source_resolves(large: LargePayloads) -> None:
    rows = pa.RecordBatch.from_pydict({"key": ["a", "b", "c"], "value": ["small", "large " * 50, None]})
    written = stored(rows, "orders", large)
    assert written.column("key").to_pylist() == ["a", "b", "c"]
    assert written.column("value").to_pylist() == [b"small", b"", None]
    headers = written.column("headers").to_pylist()
    assert (headers[0], headers[2]) == (None, None)
    pairs = [(each["key"], each["value"]) for each in headers[1]]
    (read,) = resolved([read_batch([(b"", pairs)])], ["value"], large, ARROW_BYTES)
    assert values([read]) == [b"large " * 50]


def test_rows_of_the_sink_without_large_values_are_not_touched(large: LargePayloads) -> None:
    for column in (pa.array(["x" * 100, None]), pa.array([None, None], pa.string())):
        rows = pa.RecordBatch.from_pydict({"value": column})
        assert stored(rows, "orders", large) is rows


def test_claim_headers_beside_a_large_value_are_refused(large: LargePayloads) -> None:
    pairs = [[{"key": "tidemill-claim-size", "value": b"5"}]]
    rows = pa.RecordBatch.from_arrays(
        [pa.array([b"x" * 200]), pa.array(pairs, SCHEMA.field("headers").type)], ["value", "headers"]
    )
    with pytest.raises(TidemillError, match="write to orders: headers of claims"):
        stored(rows, "orders", large)
