"""The shell of delayed delivery: when a partition is examined, and its snapshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.log.batches import T0, append
from tidemill.broker.metrics.registry import TopicCounts
from tidemill.broker.partitions.appending.held_batches import HeldBatches
from tidemill.broker.partitions.delivery import _BEHIND_MAX, _COLLECT_S, _REPLAYED_A_ROUND, DelayedDelivery
from tidemill.config import TopicConfig
from tidemill.delays.pending import Delivery
from tidemill.delays.state import PartitionDelays
from tidemill.log.log import Log
from tidemill.protocol.records import Header, Record, build_batch, iterate_records
from tidemill.protocol.steps import Steps, run_steps
from tidemill.sim.platform.disk import SimulatedDisk
from tidemill.types import TopicPartition


class HoldingAppender:
    """Appends copies at once, and produced batches when delivery lets them in."""

    def __init__(self, append_copies: Callable[[bytearray, int], None]) -> None:
        self.append_copies = append_copies
        self.held = HeldBatches()
        self.let_in = self.held.let_in
        self.release = self.held.release

    @property
    def holds_batches(self) -> bool:
        return len(self.held) > 0

    def hold(self) -> None:
        self.held.is_open = False


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
        self.appender = HoldingAppender(self._append_copies)
        self.delivery = DelayedDelivery(
            TopicPartition("later", 0),
            TopicConfig(tidemill_delays_enable=True),
            cast(Any, host),
            cast(Any, self.reader),
            cast(Any, self.leadership),
            cast(Any, self.appender),
            TopicCounts(),
        )
        self.delivery.update()

    def _append_copies(self, batch: bytearray, _wall_ms: int) -> None:
        append(self.log, batch)
        self.reader.high_watermark = self.log.log_end_offset
        self.listeners[0](len(batch))

    def produce(self, due_times_ms: Sequence[int]) -> None:
        """A producer sends a batch of delayed records."""
        records = [
            Record(number, T0, b"k", b"v", [Header("tidemill-deliver-at", b"%d" % due_ms)])
            for number, due_ms in enumerate(due_times_ms)
        ]

        def append_batch() -> None:
            batch = build_batch(records)
            append(self.log, batch)
            self.reader.high_watermark = self.log.log_end_offset
            self.listeners[0](len(batch))

        self.appender.held.admit(len(records), append_batch)

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
    assert run_steps(restored.due(T0 + 10_000, 10_000)) == [
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


@pytest.mark.parametrize("is_at_work", [False, True])
def test_failure_29_snapshot_of_records_that_were_replaced_before_it_is_written_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch, *, is_at_work: bool
) -> None:
    monkeypatch.setattr("tidemill.broker.partitions.delivery._LAST_SNAPSHOT_BYTES", 1)
    led = Led(monkeypatch, 300)
    led.run_round()
    if is_at_work:
        led.delivery._wake()
    led.leadership.writable_log = None
    led.delivery.update()
    led.log.truncate_to(200)
    for _ in range(300):
        append(led.log, build_batch([Record(0, T0, b"k", b"of the next leader")]), leader_epoch=1)
    if is_at_work:
        led.run_round()
    ((begin, done),) = led.snapshots
    led.finish(begin(), done)
    assert led.restored() is None


def test_records_that_become_visible_during_a_round_start_another_one() -> None:
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
        cast(Any, HoldingAppender(lambda *_: None)),
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


def test_producer_that_never_pauses_does_not_keep_due_records_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch comes between any two steps. One record of each is due at once, the others in a day."""
    led = Led(monkeypatch, 0)
    batch_records, day_ms = 400, 86_400_000
    due_times_ms = [T0, *[T0 + day_ms] * (batch_records - 1)]
    delivered: list[int] = []
    produced = behind_max = journal_max = 0
    state = led.delivery._state
    assert state is not None
    for _ in range(30):
        steps = led.rounds.pop()()
        for _ in range(1_000):
            led.produce(due_times_ms)
            produced += 1
            behind_max = max(behind_max, led.log.log_end_offset - state.end_offset)
            journal_max = max(journal_max, len(state._journal))
            work = next(steps, StopIteration)
            if work is StopIteration:
                break
            assert work is None, "there are no snapshots to read"
        else:
            pytest.fail("a round has no end while batches come")
        led.delivery._worked(False, None)
        delivered.append(led.delivery._counts.delays_delivered)
    assert delivered[-1] > delivered[9] > 0, "delivered while batches came, not only after the last one"
    assert behind_max <= _BEHIND_MAX + batch_records
    assert journal_max <= behind_max, "what is committed need not be undone"
    assert led.appender.holds_batches, "the producer waits"
    assert produced * batch_records > led.log.log_end_offset
    led.delivery.stop()
    assert not led.appender.holds_batches


def test_long_log_is_replayed_in_rounds_and_lets_some_batches_in_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    led = Led(monkeypatch, 0)
    due_times_ms = [T0 + 3_600_000] * 1000
    for _ in range(30):
        led.produce(due_times_ms)
    state = led.delivery._state
    assert state is not None
    led.run_round()
    assert state.end_offset == _REPLAYED_A_ROUND, "other partitions have their turn"
    for _ in range(30):
        led.produce(due_times_ms)
    assert led.log.log_end_offset == 30_000, "they wait"
    ends = []
    while led.rounds:
        led.run_round()
        ends.append((state.end_offset, led.log.log_end_offset))
    assert ends[0] == (2 * _REPLAYED_A_ROUND, 30_000 + _REPLAYED_A_ROUND // 2), "one is let in for two"
    assert ends[-1] == (60_000, 60_000)
    assert not led.appender.holds_batches
    led.delivery.stop()


def test_held_batches_keep_their_order_and_let_a_large_one_in_alone() -> None:
    held, appended = HeldBatches(), []
    held.admit(5, lambda: appended.append("open"))
    held.is_open = False
    for name, record_count in (("large", 500), ("small", 5), ("other", 5)):
        held.admit(record_count, lambda name=name: appended.append(name))  # type: ignore[misc]
    assert (held.let_in(100), appended) == (0, ["open"])
    assert (held.let_in(100, takes_any_first=True), appended) == (500, ["open", "large"])
    assert (held.let_in(7), appended[2:]) == (5, ["small"])
    held.release()
    assert (len(held), appended[3:]) == (0, ["other"])


def _produce_sizes(led: Led, sizes: Sequence[int]) -> None:
    """Delayed records of some sizes, each in a batch of its own, the last one due first."""
    for number, size in enumerate(sizes):
        asked = [Header("tidemill-deliver-at", b"%d" % (T0 + 1000 - number))]
        append(led.log, build_batch([Record(0, T0, b"%d" % number, b"v" * size, asked)]))
    led.reader.high_watermark = led.log.log_end_offset


def test_large_records_are_delivered_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    led = Led(monkeypatch, 0)
    sizes = [300_000] * 12 + [10] * 50 + [2_000_000, 10, 300_000]
    _produce_sizes(led, sizes)
    led.wall_ms += 10_000
    sizes_after = [led.log.segments[-1].size]
    for _ in led.rounds.pop()():
        sizes_after.append(led.log.segments[-1].size)
    sizes_after.append(led.log.segments[-1].size)
    written = [after - before for before, after in pairwise(sizes_after)]
    assert max(written) < 2_200_000, "the largest record alone"
    assert sorted(written)[-2] < 1_700_000
    (*_, last) = led.log.segments
    copies = [
        record.key
        for _, header, batch in last.batches()
        if header.base_offset >= len(sizes)
        for record in iterate_records(batch)
    ]
    assert copies == [b"%d" % number for number in reversed(range(len(sizes)))], "in the order of due times"
    led.delivery.stop()


def test_large_records_are_carried_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    led = Led(monkeypatch, 0)
    _produce_sizes(led, [300_000] * 12)
    led.wall_ms -= 10_000
    led.run_round()
    led.delivery.carry(12)
    rounds = 0
    while led.rounds:
        before = led.log.segments[-1].size
        led.run_round()
        assert led.log.segments[-1].size - before < 1_700_000
        rounds += 1
    assert rounds >= 3
    assert led.delivery.pending_count == 12
    state = led.delivery.state_of(led.log)
    assert state is not None
    assert state.pending.offsets.first == 12
    led.delivery.stop()


def test_failure_23_carried_record_lasts_as_long_as_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    retention_ms = 1000
    led = Led(monkeypatch, 0)
    led.log.config = TopicConfig(retention_ms=retention_ms)
    led.produce([T0 + 10 * retention_ms] * 3)
    led.wall_ms += retention_ms + 1
    carried_at_ms = []
    for _ in range(2 * retention_ms // 100):
        end_offset = led.log.log_end_offset
        led.delivery.carry(led.log.expired_end(led.wall_ms, led.reader.high_watermark))
        while led.rounds:
            led.run_round()
        if led.log.log_end_offset > end_offset:
            carried_at_ms.append(led.wall_ms)
        led.wall_ms += 100
    first_ms, *later_ms = carried_at_ms
    assert (first_ms, len(later_ms)) == (T0 + retention_ms + 1, 1), "not in every round of retention"
    assert later_ms[0] > first_ms + retention_ms
    assert led.delivery.pending_count == 3
    led.delivery.stop()


def test_damaged_record_is_not_read_in_every_round_once_retention_wants_to_carry_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    led = Led(monkeypatch, 0)
    _produce_sizes(led, [10])
    led.wall_ms -= 10_000
    led.run_round()
    led.log.segments[0].file.write(b"\xff", 80)
    led.delivery.carry(1)
    for _ in range(5):
        led.delivery._wake()
        led.run_round()
    assert len([each for each in caplog.messages if "is damaged" in each]) == 1
    assert led.delivery.pending_count == 1
    led.delivery.stop()
