"""The lives of `test_delays.py` bite: each bug that is put into the snapshots of delays, and into settling, is found.

A bug counts as found when the state differs from the dumb reading of the log, or when it stops on an assertion of its
own. `SEEDS` is how many, from 0 on, may be needed; most need one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.property.test_delays import STEPS, Partition
from tidemill.delays.due_queue import DueQueue
from tidemill.delays.offsets import FrozenArrays, HiddenOffsets, PendingOffsets
from tidemill.delays.pending import Delivery, Gone, PendingRecords
from tidemill.delays.state import PartitionDelays, Staged

SEEDS = range(8)

Patch = pytest.MonkeyPatch


def snapshot_lacks_the_newest_entries_of_the_queue(patch: Patch) -> None:
    def freeze(self: DueQueue) -> FrozenArrays:
        return FrozenArrays([run[3] for run in self._runs], [run[4] for run in self._runs])

    patch.setattr(DueQueue, "freeze", freeze)


def snapshot_shows_pending_records_that_changed_since(patch: Patch) -> None:
    patch.setattr(PendingOffsets, "_copy_frozen", lambda *_: None)


def snapshot_shows_hidden_records_that_came_since(patch: Patch) -> None:
    patch.setattr(HiddenOffsets, "_copy_frozen", lambda *_: None)


def snapshot_lacks_names_and_markers_that_went_since(patch: Patch) -> None:
    patch.setattr(PendingRecords, "keep_gone", lambda _: Gone({}, {}))


def _restored_without(
    patch: Patch, *, staged: bool = False, hidden: bool = False, markers: bool = False
) -> None:
    original = PartitionDelays.restored

    def restored(
        end_offset: int,
        high_watermark: int,
        pending: PendingRecords,
        hidden_offsets: HiddenOffsets,
        staged_records: dict[int, dict[bytes | int, Staged]],
    ) -> PartitionDelays:
        if markers:
            pending.markers.clear()
        hidden_offsets = HiddenOffsets() if hidden else hidden_offsets
        staged_records = {} if staged else staged_records
        return original(end_offset, high_watermark, pending, hidden_offsets, staged_records)

    patch.setattr(PartitionDelays, "restored", restored)


def snapshot_takes_its_end_for_committed(patch: Patch) -> None:
    """Effects above the high watermark look final, so that retention may take what they need."""
    original = PartitionDelays.restored

    def restored(
        end_offset: int,
        _high_watermark: int,
        pending: PendingRecords,
        hidden: HiddenOffsets,
        staged: dict[int, dict[bytes | int, Staged]],
    ) -> PartitionDelays:
        return original(end_offset, end_offset, pending, hidden, staged)

    patch.setattr(PartitionDelays, "restored", restored)


def snapshot_forgets_who_bears_a_name(patch: Patch) -> None:
    original = PartitionDelays.restored

    def restored(
        end_offset: int,
        high_watermark: int,
        pending: PendingRecords,
        hidden: HiddenOffsets,
        staged: dict[int, dict[bytes | int, Staged]],
    ) -> PartitionDelays:
        pending.by_identity.clear()
        return original(end_offset, high_watermark, pending, hidden, staged)

    patch.setattr(PartitionDelays, "restored", restored)


def own_copies_settle_the_record_before(patch: Patch) -> None:
    original = PartitionDelays.replay_copies

    def replay_copies(self: PartitionDelays, first_offset: int, deliveries: list[Delivery]) -> None:
        original(self, first_offset, [deliveries[0], *deliveries[:-1]])

    patch.setattr(PartitionDelays, "replay_copies", replay_copies)


def own_copies_end_every_schedule(patch: Patch) -> None:
    original = PartitionDelays.replay_copies

    def replay_copies(self: PartitionDelays, first_offset: int, deliveries: list[Delivery]) -> None:
        original(self, first_offset, [each._replace(next_due_ms=None) for each in deliveries])

    patch.setattr(PartitionDelays, "replay_copies", replay_copies)


def hidden_runs_of_the_first_block_survive_the_log_start(patch: Patch) -> None:
    original = HiddenOffsets.trim

    def trim(self: HiddenOffsets, start_offset: int) -> None:
        if len(self._firsts) > 1:
            original(self, start_offset)

    patch.setattr(HiddenOffsets, "trim", trim)


BUGS: dict[str, Callable[[Patch], None]] = {
    "a snapshot lacks the newest entries of the queue": snapshot_lacks_the_newest_entries_of_the_queue,
    "a snapshot shows pending records that changed since": snapshot_shows_pending_records_that_changed_since,
    "a snapshot shows hidden records that came since": snapshot_shows_hidden_records_that_came_since,
    "a snapshot lacks names and markers that went since": snapshot_lacks_names_and_markers_that_went_since,
    "a snapshot forgets open transactions": partial(_restored_without, staged=True),
    "a snapshot forgets what is hidden": partial(_restored_without, hidden=True),
    "a snapshot forgets which markers are not committed": partial(_restored_without, markers=True),
    "a snapshot takes its end for committed": snapshot_takes_its_end_for_committed,
    "a snapshot forgets who bears a name": snapshot_forgets_who_bears_a_name,
    "own copies settle the record before": own_copies_settle_the_record_before,
    "own copies end every schedule": own_copies_end_every_schedule,
    "hidden runs survive the log start": hidden_runs_of_the_first_block_survive_the_log_start,
}


def _is_found(seed: int) -> bool:
    partition = Partition(seed)
    try:
        for _ in range(STEPS):
            partition.live()
        partition.drain()
    except (AssertionError, KeyError, IndexError):
        return True
    return False


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)
    assert any(map(_is_found, SEEDS))
