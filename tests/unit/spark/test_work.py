"""A task's read of the live log: batches are gathered, cut and decoded; lost offsets are reported."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import BrokerUnreachable
from tidemill.client.fetch import Batch, OffsetsLost, RangeAnswer
from tidemill.protocol.records import Record, build_batch, header_at
from tidemill.spark.access import BrokerAccess
from tidemill.spark.source import work
from tidemill.spark.source.work import BrokerWork, DataLost, arrow_batches
from tidemill.types import TopicPartition

ORDERS_0 = TopicPartition("orders", 0)
ACCESS = BrokerAccess("127.0.0.1:1", timeout_s=5.0)


def batch_of(first: int, end: int, value: bytes = b"v") -> Batch:
    records = [Record(offset, 1_700_000_000_000, None, value, ()) for offset in range(first, end)]
    data = memoryview(build_batch(records, base_offset=first))
    return header_at(data, 0), data


@pytest.fixture(autouse=True)
def _a_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "any_broker", lambda _: None)


def script(monkeypatch: pytest.MonkeyPatch, *steps: RangeAnswer | OffsetsLost) -> list[int]:
    """What the broker answers, and a list that will hold the offsets it was asked from."""
    remaining = iter(steps)
    asked: list[int] = []

    def fetch_range(*arguments: object, **_: object) -> Iterator[RangeAnswer]:
        start = arguments[2]
        assert isinstance(start, int)
        asked.append(start)
        for step in remaining:
            if isinstance(step, OffsetsLost):
                raise step
            yield step

    monkeypatch.setattr(work, "fetch_range", fetch_range)
    return asked


def offsets(task: BrokerWork) -> list[int]:
    return [offset for rows in task.read(["offset"]) for offset in rows["offset"].to_pylist()]


def test_rows_gathered_before_a_loss_are_returned_and_lost_ones_are_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch after the loss still holds records that count as deleted."""
    lost = OffsetsLost(ORDERS_0, 4, 7, 7)
    steps: list[RangeAnswer | OffsetsLost] = [
        RangeAnswer([batch_of(0, 4)], 4),
        lost,
        RangeAnswer([batch_of(5, 12)], 12),
    ]
    asked = script(monkeypatch, *steps)
    tolerant = BrokerWork(ORDERS_0, 1, 10, ACCESS, fail_on_data_loss=False)
    assert offsets(tolerant) == [1, 2, 3, 7, 8, 9]
    assert asked == [1, 7]
    assert "orders-0: offsets 4 to 6 were deleted" in caplog.text

    script(monkeypatch, *steps)
    with pytest.raises(
        DataLost, match=r"orders-0: offsets 4 to 6 were deleted .* failOnDataLoss=false goes on"
    ):
        offsets(BrokerWork(ORDERS_0, 1, 10, ACCESS))


def test_small_answers_are_decoded_together_and_large_ones_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "GATHER_BYTES", 2_000)
    monkeypatch.setattr(work, "ARROW_BYTES", 10_000)
    small = [RangeAnswer([batch_of(each, each + 1)], each + 1) for each in range(4)]
    empty = RangeAnswer([], 5)
    large = RangeAnswer([batch_of(5, 45, bytes(1_000))], 45)
    script(monkeypatch, *small, empty, large)
    given = list(BrokerWork(ORDERS_0, 0, 45, ACCESS).read(["value", "offset"]))
    assert [rows.num_rows for rows in given] == [11, 11, 11, 11]
    assert pa.Table.from_batches(given)["offset"].to_pylist() == [*range(4), *range(5, 45)]


def test_no_rows_make_no_batch() -> None:
    assert list(arrow_batches(pa.RecordBatch.from_pydict({"offset": pa.array([], pa.int64())}))) == []


def test_work_travels_to_its_task() -> None:
    task = BrokerWork(ORDERS_0, 3, 9, ACCESS, fail_on_data_loss=False)
    arrived: BrokerWork = pickle.loads(pickle.dumps(task))
    assert repr(arrived) == "BrokerWork(orders-0, 3, 9)" == repr(task)
    assert (arrived.access, arrived.fail_on_data_loss) == (ACCESS, False)


def test_a_task_waits_for_a_broker_that_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([BrokerUnreachable("refused"), BrokerUnreachable("refused")])

    def any_broker(_: Cluster) -> None:
        for failure in failures:
            raise failure

    monkeypatch.setattr(Cluster, "any_broker", any_broker)
    with ACCESS.reached():
        assert next(failures, None) is None
    monkeypatch.undo()
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        BrokerAccess("127.0.0.1:1", timeout_s=0.1).reached()
