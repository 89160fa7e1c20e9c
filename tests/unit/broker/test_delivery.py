"""The shell of delayed delivery: when a partition is examined."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.log.batches import T0, append
from tidemill.broker.metrics.registry import TopicCounts
from tidemill.broker.partitions.delivery import _COLLECT_S, DelayedDelivery
from tidemill.config import TopicConfig
from tidemill.log.log import Log
from tidemill.protocol.records import Header, Record, build_batch, iterate_records
from tidemill.protocol.steps import run_steps
from tidemill.sim.platform.disk import SimulatedDisk
from tidemill.types import TopicPartition


def test_own_copies_wake_no_round_and_the_next_delivery_collects_what_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits_s: list[float] = []
    monkeypatch.setattr(DelayedDelivery, "_look_after", lambda _self, delay_s: waits_s.append(delay_s))
    disk = SimulatedDisk()
    disk.make_folder("/d")
    log = Log(disk, "/d", TopicConfig(), wall_ms=T0)
    for number in range(3):
        asked = [Header("tidemill-deliver-at", b"%d" % (T0 + number))]
        append(log, build_batch([Record(0, T0, b"k", b"v", asked)]))
    rounds: list[Any] = []
    listeners: list[Any] = []
    reader = SimpleNamespace(
        high_watermark=log.log_end_offset, wait=listeners.append, stop_waiting=lambda _: None
    )
    wall_ms = T0

    def append_copies(batch: bytearray, _wall_ms: int) -> None:
        append(log, batch)
        reader.high_watermark = log.log_end_offset
        listeners[0](len(batch))

    host = SimpleNamespace(
        delivery_work=SimpleNamespace(submit=lambda begin, _: rounds.append(begin)),
        wall_ms=lambda: wall_ms,
        note_lateness=lambda _: None,
    )
    delivery = DelayedDelivery(
        TopicPartition("later", 0),
        TopicConfig(tidemill_delays_enable=True),
        cast(Any, host),
        cast(Any, reader),
        cast(Any, SimpleNamespace(writable_log=log)),
        cast(Any, SimpleNamespace(append_copies=append_copies)),
        TopicCounts(),
    )
    delivery.update()
    delivery._worked(run_steps(rounds.pop()()), None)
    assert log.log_end_offset == 4, "one is due"
    assert rounds == [], "its copy is in the state already"
    assert delivery.pending_count == 2
    assert waits_s == [_COLLECT_S], "the second is due in a millisecond, and waits for others"
    wall_ms += 5
    delivery._wake()
    delivery._worked(run_steps(rounds.pop()()), None)
    assert (log.log_end_offset, delivery.pending_count) == (6, 0)
    (_, *copies) = [batch for _, header, batch in log.segments[0].batches() if header.base_offset >= 3]
    assert [len(list(iterate_records(batch))) for batch in copies] == [2], "both in one batch"
    delivery.stop()


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
