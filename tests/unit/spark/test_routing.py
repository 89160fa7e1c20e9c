"""Where rows go: the column first, then the key, then turns; and they stay in their order."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.unit.client.scripted_producing import ProducingNetwork
from tidemill.client.producing.partitioner import partition_of_key
from tidemill.spark.sink.routing import Routed, Router, UnroutableRow

COUNT = 3


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def routed(rows: pa.RecordBatch, *, topic: str | None = "orders", first: int = 0) -> dict[int, list[bytes]]:
    router = Router(ProducingNetwork(COUNT).cluster(), topic, first)
    return {
        partition: records.column("value").to_pylist()
        for each in router.route(rows)
        for partition, records in by_partition(each)
    }


def by_partition(routed: Routed) -> Iterator[tuple[int, pa.RecordBatch]]:
    ends = [*routed.starts[1:], len(routed.records)]
    for partition, start, end in zip(routed.partitions, routed.starts, ends, strict=True):
        yield partition, routed.records.slice(start, end - start)


def test_keys_decide_and_order_stays() -> None:
    keys = [f"k{number % 10}" for number in range(200)]
    texts = [f"{number:03}" for number in range(200)]
    expected: dict[int, list[bytes]] = {}
    for key, text in zip(keys, texts, strict=True):
        expected.setdefault(partition_of_key(key.encode(), COUNT), []).append(text.encode())
    for kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        assert routed(batch(value=pa.array(texts), key=pa.array(keys).cast(kind))) == expected


def test_the_column_stands_above_the_key() -> None:
    home = partition_of_key(b"k", COUNT)
    elsewhere = (home + 1) % COUNT
    rows = batch(
        value=pa.array(["told", "by key"]),
        key=pa.array(["k", "k"]),
        partition=pa.array([elsewhere, None], pa.int32()),
    )
    assert routed(rows) == {elsewhere: [b"told"], home: [b"by key"]}


def test_rows_without_either_share_a_partition_and_the_next_batch_takes_the_next() -> None:
    router = Router(ProducingNetwork(COUNT).cluster(), "orders", 1)
    rows = batch(value=pa.array(["a", "b"]), key=pa.nulls(2, pa.string()))
    places = [
        (partition, len(records))
        for _ in range(4)
        for each in router.route(rows)
        for partition, records in by_partition(each)
    ]
    assert places == [(2, 2), (0, 2), (1, 2), (2, 2)]


def test_a_null_among_keys_goes_with_the_turn() -> None:
    home = partition_of_key(b"k", COUNT)
    rows = batch(value=pa.array(["keyed", "free"]), key=pa.array(["k", None]))
    assert routed(rows, first=home) == {home: [b"keyed"], (home + 1) % COUNT: [b"free"]}


@pytest.mark.parametrize("partition", [-1, COUNT])
def test_a_partition_that_is_not_there(partition: int) -> None:
    rows = batch(value=pa.array(["a"]), partition=pa.array([partition], pa.int32()))
    with pytest.raises(UnroutableRow, match=f"partition {partition} of topic orders, which has 0 to 2"):
        routed(rows)


def test_a_row_without_a_topic() -> None:
    rows = batch(value=pa.array(["a", "b"]), topic=pa.array(["orders", None]))
    with pytest.raises(UnroutableRow, match="null as its topic; set the option topic"):
        routed(rows, topic=None)
    assert sum(map(len, routed(rows).values())) == 2


def test_headers_that_are_all_null_are_left_out() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = batch(value=pa.array(["a"]), headers=pa.nulls(1, kind), timestamp=pa.nulls(1, pa.timestamp("us")))
    router = Router(ProducingNetwork(COUNT).cluster(), "orders", 0)
    (only,) = router.route(rows)
    assert only.records.schema.names == ["key", "value"]
