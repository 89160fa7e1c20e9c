"""The shell of delayed delivery: when a partition is examined, and its snapshots."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.log.batches import T0, append
from tidemill.broker.metrics.registry import TopicCounts
from tidemill.broker.partitions.delivery import _COLLECT_S, DelayedDelivery
from tidemill.config import TopicConfig
from tidemill.delays.pending import Delivery
from tidemill.delays.state import PartitionDelays
from tidemill.log.log import Log
from tidemill.protocol.records import Header, Record, build_batch, iterate_records
from tidemill.protocol.steps import Steps, run_steps
from tidemill.sim.platform.disk import SimulatedDisk
from tidemill.types import TopicPartition


class Led:
    """A partition with delays that this broker leads. The test runs its rounds and its snapshots."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pending_count: int) -> None:
        self.waits_s: list[float] = []
        monkeypatch.setattr(
            DelayedDelivery, "_look_after", lambda _self, delay_s: self.waits_s.append(delay_s)
        )
        disk = SimulatedDisk()
        disk.make_folder("/d")
        self.log = Log(disk, "/d", TopicConfig(), wall_ms=T0)
        for number in range(pending_count):
            asked = [Header("tidemill-deliver-at", b"%d" % (T0 + number))]
            append(self.log, build_batch([Record(0, T0, b"k", b"v", asked)]))
        self.rounds: list[Any] = []
        self.snapshots: list[tuple[Any, Any]] = []
        self.listeners: list[Any] = []
        self.reader = SimpleNamespace(
            high_watermark=self.log.log_end_offset,
            wait=self.listeners.append,
            stop_waiting=lambda _: None,
        )
        self.wall_ms = T0
        host = SimpleNamespace(
            delivery_work=SimpleNamespace(submit=lambda begin, _: self.rounds.append(begin)),
            snapshot_work=SimpleNamespace(submit=lambda *work: self.snapshots.append(work)),
            wall_ms=lambda: self.wall_ms,
            note_lateness=lambda _: None,
        )
        self.leadership = SimpleNamespace(writable_log=self.log)
        self.delivery = DelayedDelivery(
            TopicPartition("later", 0),
            TopicConfig(tidemill_delays_enable=True),
            cast(Any, host),
            cast(Any, self.reader),
            cast(Any, self.leadership),
            cast(Any, SimpleNamespace(append_copies=self._append_copies)),
            TopicCounts(),
        )
        self.delivery.update()

    def _append_copies(self, batch: bytearray, _wall_ms: int) -> None:
        append(self.log, batch)
        self.reader.high_watermark = self.log.log_end_offset
        self.listeners[0](len(batch))

    def run_round(self) -> None:
        self.delivery._worked(run_steps(self.rounds.pop()()), None)

    def finish(self, steps: Steps[int], done: Any) -> None:
        done(run_steps(steps), None)

    def restored(self) -> PartitionDelays | None:
        log = self.log
        return run_steps(
            log.delay_snapshots.restore(
                0, log.log_end_offset, log.log_end_offset, lambda offset: log.epochs.epoch_of(offset - 1)
            )
        )


def test_own_copies_wake_no_round_and_the_next_delivery_collects_what_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    led = Led(monkeypatch, 3)
    log, delivery, rounds = led.log, led.delivery, led.rounds
    led.run_round()
    assert log.log_end_offset == 4, "one is due"
    assert rounds == [], "its copy is in the state already"
    assert delivery.pending_count == 2
    assert led.waits_s == [_COLLECT_S], "the second is due in a millisecond, and waits for others"
    led.wall_ms += 5
    delivery._wake()
    led.run_round()
    assert (log.log_end_offset, delivery.pending_count) == (6, 0)
    (_, *copies) = [batch for _, header, batch in log.segments[0].batches() if header.base_offset >= 3]
    assert [len(list(iterate_records(batch))) for batch in copies] == [2], "both in one batch"
    delivery.stop()


def test_due_records_become_visible_while_a_snapshot_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.broker.partitions.delivery._SNAPSHOT_EVERY_BYTES", 1)
    led = Led(monkeypatch, 3000)
    led.run_round()
    ((begin, done),) = led.snapshots
    frozen_end, pending_count = led.log.log_end_offset, led.delivery.pending_count
    assert (frozen_end, pending_count) == (3001, 2999)
    writing = begin()
    writing.send(writing.send(None)())  # it has opened its file
    led.wall_ms += 1000
    led.delivery._wake()
    led.run_round()
    assert led.log.log_end_offset == frozen_end + 1000, "delivered while the snapshot is under way"
    assert led.delivery.pending_count == pending_count - 1000
    assert len(led.snapshots) == 1, "one at a time"
    led.finish(writing, done)
    restored = led.restored()
    assert restored is not None
    assert restored.end_offset == frozen_end
    expected = [(offset, T0 + offset) for offset in range(1, 3000)]
    assert restored.pending.offsets.first_from(0, 10_000) == expected, "as it was when the snapshot began"
    assert restored.due(T0 + 10_000, 10_000) == [
        Delivery(offset, due_ms, None) for offset, due_ms in expected
    ]


def test_leadership_that_ends_during_a_snapshot_leaves_another_one_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemill.broker.partitions.delivery._SNAPSHOT_EVERY_BYTES", 1)
    monkeypatch.setattr("tidemill.broker.partitions.delivery._LAST_SNAPSHOT_BYTES", 1)
    led = Led(monkeypatch, 300)
    led.run_round()
    ((begin, done),) = led.snapshots
    led.wall_ms += 100
    led.delivery._wake()
    led.run_round()
    led.leadership.writable_log = None
    led.delivery.update()
    assert len(led.snapshots) == 1, "the first one reads the same state"
    led.finish(begin(), done)
    _, (begin, done) = led.snapshots
    led.finish(begin(), done)
    restored = led.restored()
    assert restored is not None
    assert restored.end_offset == led.log.log_end_offset == 401
    assert len(restored.pending.offsets) == 199


def test_what_becomes_visible_during_a_round_is_looked_at_after_it() -> None:
    rounds: list[object] = []
    work = SimpleNamespace(submit=lambda *_: rounds.append(None))
    listeners: list[Any] = []
    reader = SimpleNamespace(high_watermark=0, wait=listeners.append, stop_waiting=lambda _: None)
    snapshots = SimpleNamespace(drop_after=lambda _: None)
    log = SimpleNamespace(log_start_offset=0, log_end_offset=0, delay_snapshots=snapshots)
    delivery = DelayedDelivery(
        TopicPartition("later", 0),
        TopicConfig(tidemill_delays_enable=True),
        cast(Any, SimpleNamespace(delivery_work=work, wall_ms=lambda: 0)),
        cast(Any, reader),
        cast(Any, SimpleNamespace(writable_log=log)),
        cast(Any, None),
        TopicCounts(),
    )
    delivery.update()
    assert len(rounds) == 1
    (grew,) = listeners
    grew(100)
    assert len(rounds) == 1, "one round at a time"
    delivery._worked(True, None)
    assert len(rounds) == 2
    delivery._worked(True, None)
    assert len(rounds) == 2, "nothing is pending"
