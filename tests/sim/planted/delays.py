"""Bugs of delayed records, planted as in `bugs.py`: too early, twice, never, or shown while they wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as replace_

from tests.sim import test_delay_failures as courses
from tests.sim.planted.bugs import ROUGH, Bug, Replace
from tidemill.broker.partitions.delivery import DelayedDelivery
from tidemill.broker.requests.handlers import fetch
from tidemill.delays import copies, snapshot
from tidemill.delays.pending import Delivery
from tidemill.delays.requests import Cancel, Carried, Delayed
from tidemill.delays.state import PartitionDelays
from tidemill.log import delay_snapshots
from tidemill.log.log import Log
from tidemill.protocol.record_walk import RawRecord
from tidemill.protocol.records import BatchHeader, Record
from tidemill.protocol.steps import Steps

DELAYS = replace_(ROUGH, duration_s=90.0, has_delays=True)
CARRIED = replace_(
    DELAYS,
    has_schedules=True,
    has_transactional_delays=True,
    has_expiring_delays=True,
    transaction_pause_s_max=2.0,
)


def delivered_before_their_time(replace: Replace) -> None:
    original = PartitionDelays.due

    def due(self: PartitionDelays, wall_ms: int, limit: int) -> Steps[list[Delivery]]:
        return original(self, wall_ms + 15_000, limit)

    replace(PartitionDelays, "due", due)


def a_new_leader_does_not_know_what_was_delivered(replace: Replace) -> None:
    """Copies settle only what this leader has taken itself."""
    original = PartitionDelays._settle

    def _settle(self: PartitionDelays, at: int, offset: int, next_due_ms: int | None) -> None:
        if offset in self.pending.taken:
            original(self, at, offset, next_due_ms)

    replace(PartitionDelays, "_settle", _settle)


def cancels_are_ignored(replace: Replace) -> None:
    original = PartitionDelays._apply

    def _apply(self: PartitionDelays, at: int, offset: int, request: Delayed | Cancel) -> None:
        if isinstance(request, Delayed):
            original(self, at, offset, request)

    replace(PartitionDelays, "_apply", _apply)


def readers_see_what_waits(replace: Replace) -> None:
    def select_shown(_body: bytes, _header: BatchHeader) -> Steps[list[RawRecord] | None]:
        yield None
        return None

    replace(fetch, "select_shown", select_shown)


def nothing_is_delivered_after_an_election(replace: Replace) -> None:
    original = DelayedDelivery.update

    def update(self: DelayedDelivery) -> None:
        if self._leadership.leader_epoch <= 0 or self._leadership.writable_log is None:
            original(self)

    replace(DelayedDelivery, "update", update)


def a_snapshot_of_another_history_is_trusted(replace: Replace) -> None:
    """Whatever leader epoch the log has at the end of a snapshot."""
    original = snapshot.restore

    def restore(
        read: snapshot.Read,
        log_start_offset: int,
        log_end_offset: int,
        high_watermark: int,
        _epoch_before: Callable[[int], int],
    ) -> Steps[PartitionDelays | None]:
        _, _, last_epoch, *_ = snapshot._HEAD.unpack(read(snapshot._HEAD.size, snapshot.CRC_BYTES))
        return original(read, log_start_offset, log_end_offset, high_watermark, lambda _: last_epoch)

    replace(delay_snapshots, "restore", restore)


def open_transactions_deliver(replace: Replace) -> None:
    """A request in a transaction takes effect at its own offset."""
    original = PartitionDelays._replay_record

    def _replay_record(self: PartitionDelays, record: Record, _producer_id: int | None) -> None:
        original(self, record, None)

    replace(PartitionDelays, "_replay_record", _replay_record)


def aborted_transactions_deliver(replace: Replace) -> None:
    original = PartitionDelays.end_transaction_in_steps

    def end_transaction_in_steps(
        self: PartitionDelays, producer_id: int, _is_commit: bool, marker_offset: int
    ) -> Steps[None]:
        return original(self, producer_id, True, marker_offset)

    replace(PartitionDelays, "end_transaction_in_steps", end_transaction_in_steps)


def committed_transactions_deliver_nothing(replace: Replace) -> None:
    """The commit marker takes the staged records away, as that of an abort does."""
    original = PartitionDelays.end_transaction_in_steps

    def end_transaction_in_steps(
        self: PartitionDelays, producer_id: int, _is_commit: bool, marker_offset: int
    ) -> Steps[None]:
        return original(self, producer_id, False, marker_offset)

    replace(PartitionDelays, "end_transaction_in_steps", end_transaction_in_steps)


def retention_takes_what_waits(replace: Replace) -> None:
    def retained_offset(self: DelayedDelivery, log: Log) -> int:
        return log.log_end_offset

    replace(DelayedDelivery, "retained_offset", retained_offset)
    replace(DelayedDelivery, "carry", lambda _self, _before_offset: None)


def a_carried_record_forgets_where_it_was(replace: Replace) -> None:
    """Its copy names the offset to which it was carried last."""
    replace(copies, "_ORIGINAL_OFFSET", b"")


def a_new_leader_does_not_know_what_was_carried(replace: Replace) -> None:
    """A carried record takes the place of one that the log still has, and none after that is gone."""

    def _carry(self: PartitionDelays, at: int, carried: Carried) -> None:
        if self._remove(at, carried.pending_offset):
            self._add(at, at, carried.delayed)

    replace(PartitionDelays, "_carry", _carry)


DELAY_BUGS: tuple[Bug, ...] = (
    Bug("delivered before their time", delivered_before_their_time, plan=DELAYS),
    Bug(
        "a new leader does not know what was delivered",
        a_new_leader_does_not_know_what_was_delivered,
        plan=DELAYS,
    ),
    Bug("cancels are ignored", cancels_are_ignored, plan=DELAYS),
    Bug("readers see what waits", readers_see_what_waits, plan=DELAYS),
    Bug("nothing is delivered after an election", nothing_is_delivered_after_an_election, plan=DELAYS),
    Bug("open transactions deliver", open_transactions_deliver, plan=CARRIED),
    Bug("aborted transactions deliver", aborted_transactions_deliver, plan=CARRIED),
    Bug("committed transactions deliver nothing", committed_transactions_deliver_nothing, plan=CARRIED),
    Bug("retention takes what waits", retention_takes_what_waits, plan=CARRIED),
    Bug("a carried record forgets where it was", a_carried_record_forgets_where_it_was, plan=CARRIED),
    Bug(
        "a new leader does not know what was carried",
        a_new_leader_does_not_know_what_was_carried,
        found_in=2,
        plan=CARRIED,
    ),
)

DELAY_COURSES: tuple[tuple[Bug, Callable[[], None]], ...] = (
    (
        Bug("a snapshot of another history is trusted", a_snapshot_of_another_history_is_trusted),
        courses.test_failure_29_snapshot_of_a_log_end_that_was_lost_is_not_trusted,
    ),
)
