"""What a read_committed reader leaves out, by hand-made batches."""

from __future__ import annotations

from typing import NamedTuple

from tidemill.log.transactions import TransactionEnd, build_marker
from tidemill.protocol.isolation import AbortedBatches
from tidemill.protocol.records import TRANSACTIONAL, Record, build_batch, header_at, stamp


class Batch(NamedTuple):
    name: str
    data: bytes


def placed(name: str, offset: int, data: bytes) -> Batch:
    stamped = bytearray(data)
    stamp(memoryview(stamped), 0, offset, 0)
    return Batch(name, bytes(stamped))


def written(
    name: str, offset: int, producer_id: int, *, count: int = 1, attributes: int = TRANSACTIONAL
) -> Batch:
    records = [Record(number, 0, None, name.encode()) for number in range(count)]
    batch = build_batch(
        records, attributes=attributes, producer_id=producer_id, producer_epoch=0, base_sequence=0
    )
    return placed(name, offset, bytes(batch))


def ended(name: str, offset: int, producer_id: int, *, is_commit: bool) -> Batch:
    return placed(name, offset, build_marker(TransactionEnd(producer_id, 0, 1, is_commit), 0))


def left_out(aborted: list[tuple[int, int]], *batches: Batch) -> list[str]:
    batches_of_aborted = AbortedBatches(aborted)
    return [
        batch.name
        for batch in batches
        if batches_of_aborted.includes(memoryview(batch.data), header_at(batch.data))
    ]


def test_an_aborted_transaction_ends_with_its_marker_and_not_with_anothers() -> None:
    batches = [
        written("a0", 0, 1),
        written("b1", 1, 2),
        ended("b commits", 2, 2, is_commit=True),
        written("a3", 3, 1, count=2),
        ended("a aborts", 5, 1, is_commit=False),
        written("a6", 6, 1),
        ended("a commits", 7, 1, is_commit=True),
    ]
    assert left_out([(1, 0)], *batches) == ["a0", "a3"]


def test_the_same_producer_may_abort_twice() -> None:
    batches = [
        written("0", 0, 1),
        ended("1", 1, 1, is_commit=False),
        written("2", 2, 1),
        ended("3", 3, 1, is_commit=True),
        written("4", 4, 1),
        ended("5", 5, 1, is_commit=False),
    ]
    assert left_out([(1, 0), (1, 4)], *batches) == ["0", "4"]
    assert left_out([(1, 4), (1, 0)], *batches) == ["0", "4"], "in whatever order they are listed"


def test_batch_outside_of_a_transaction_is_shown() -> None:
    batches = [written("in", 0, 1), written("out", 1, 1, attributes=0), ended("end", 2, 1, is_commit=False)]
    assert left_out([(1, 0)], *batches) == ["in"]


def test_an_answer_may_begin_and_end_within_a_transaction() -> None:
    assert left_out([(1, 3)], written("7", 7, 1), written("8", 8, 2)) == ["7"]
    assert left_out([(1, 9)], written("7", 7, 1, count=2)) == [], "it begins behind this batch"
