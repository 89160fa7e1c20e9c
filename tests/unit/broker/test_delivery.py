"""The shell of delayed delivery: when a partition is examined."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tidemill.broker.metrics.registry import TopicCounts
from tidemill.broker.partitions.delivery import DelayedDelivery
from tidemill.config import TopicConfig
from tidemill.types import TopicPartition


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
