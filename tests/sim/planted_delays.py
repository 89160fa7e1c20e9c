"""Bugs of delayed records, planted as in `planted.py`: too early, twice, never, or shown while they wait."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace as replace_
from unittest.mock import ANY

from tests.sim.planted import ROUGH, Bug, Replace
from tidemill.broker.partitions.delivery import DelayedDelivery
from tidemill.broker.requests.handlers import fetch
from tidemill.delays import snapshot
from tidemill.delays.due_queue import DueQueue
from tidemill.delays.offsets import HiddenOffsets
from tidemill.delays.pending import Delivery, PendingRecords
from tidemill.delays.requests import Cancel, Delayed
from tidemill.delays.snapshot import Read
from tidemill.delays.state import PartitionDelays, Staged
from tidemill.log import delay_snapshots
from tidemill.protocol.record_walk import RawRecord
from tidemill.protocol.records import BatchHeader
from tidemill.protocol.steps import Steps

DELAYS = replace_(ROUGH, duration_s=90.0, has_delays=True)


def delivered_before_their_time(replace: Replace) -> None:
    original = PartitionDelays.due

    def due(self: PartitionDelays, wall_ms: int, limit: int) -> list[Delivery]:
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


# -- snapshots of the state ----------------------------------------------------------------------------------


def a_snapshot_of_another_history_is_trusted(replace: Replace) -> None:
    """A truncation leaves the snapshots of what it has cut off, and nobody compares the leader epochs."""
    original = snapshot.restore

    def restore(
        read: Read,
        log_start_offset: int,
        log_end_offset: int,
        high_watermark: int,
        _epoch_before: Callable[[int], int],
    ) -> Steps[PartitionDelays | None]:
        return original(read, log_start_offset, log_end_offset, high_watermark, lambda _: ANY)

    replace(delay_snapshots, "restore", restore)
    replace(delay_snapshots.DelaySnapshots, "drop_after", lambda _self, _end_offset: None)


def a_snapshot_lacks_the_newest_entries_of_the_queue(replace: Replace) -> None:
    def run_arrays(self: DueQueue) -> list[tuple[array[int], array[int]]]:
        return [(run[3], run[4]) for run in self._runs]

    replace(DueQueue, "run_arrays", run_arrays)


def _restored_without(replace: Replace, *, staged: bool = False, hidden: bool = False) -> None:
    original = PartitionDelays.restored

    def restored(
        end_offset: int,
        high_watermark: int,
        pending: PendingRecords,
        hidden_offsets: HiddenOffsets,
        staged_records: dict[int, dict[bytes | int, Staged]],
    ) -> PartitionDelays:
        return original(
            end_offset,
            high_watermark,
            pending,
            HiddenOffsets() if hidden else hidden_offsets,
            {} if staged else staged_records,
        )

    replace(PartitionDelays, "restored", staticmethod(restored))


def a_snapshot_forgets_open_transactions(replace: Replace) -> None:
    _restored_without(replace, staged=True)


def a_snapshot_forgets_what_is_hidden(replace: Replace) -> None:
    _restored_without(replace, hidden=True)


def a_snapshot_counts_for_more_than_it_holds(replace: Replace) -> None:
    """The replay goes on behind the log's end instead of at the end of the snapshot."""
    original = snapshot.restore

    def restore(
        read: Read,
        log_start_offset: int,
        log_end_offset: int,
        high_watermark: int,
        epoch_before: Callable[[int], int],
    ) -> Steps[PartitionDelays | None]:
        state = yield from original(read, log_start_offset, log_end_offset, high_watermark, epoch_before)
        if state is not None:
            state.end_offset = log_end_offset
        return state

    replace(delay_snapshots, "restore", restore)


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
    Bug(
        "a snapshot of another history is trusted",
        a_snapshot_of_another_history_is_trusted,
        plan=DELAYS,
    ),
    Bug(
        "a snapshot lacks the newest entries of the queue",
        a_snapshot_lacks_the_newest_entries_of_the_queue,
        plan=DELAYS,
    ),
    Bug("a snapshot forgets open transactions", a_snapshot_forgets_open_transactions, plan=DELAYS),
    Bug("a snapshot forgets what is hidden", a_snapshot_forgets_what_is_hidden, plan=DELAYS),
    Bug("a snapshot counts for more than it holds", a_snapshot_counts_for_more_than_it_holds, plan=DELAYS),
)
