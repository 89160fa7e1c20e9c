"""The offsets in a log of group records, computed in another way than the machine does.

The machine replays records and markers as they come. The ledger knows the fate of each transaction beforehand, and
takes the last record that counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.scenarios.groups_world import World, Written
from tidemill.coordinator.records import decode
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.api.coordinator_records import OffsetCommitKey, OffsetCommitValue

Place = tuple[str, str, int]


class Ledger:
    """Reads the offsets from the records of a log, with the end of each transaction known in advance."""

    def __init__(self, log: Sequence[Written]) -> None:
        self.committed: dict[Place, int] = {}
        self.pending: dict[Place, list[int]] = {}
        for position, written in enumerate(log):
            if written.record is None:
                continue
            record = decode(*written.record)
            if record is None or not isinstance(record.key, OffsetCommitKey):
                continue
            place = (record.key.group, record.key.topic, record.key.partition)
            if record.value is None:
                self.committed.pop(place, None)
                self.pending.pop(place, None)
                continue
            assert isinstance(record.value, OffsetCommitValue)
            end = self._end_of(log, position)
            if written.writer is None or (end is not None and end.is_commit):
                self.committed[place] = record.value.offset
            elif end is None:
                self.pending.setdefault(place, []).append(written.writer.producer_id)

    @staticmethod
    def _end_of(log: Sequence[Written], position: int) -> TransactionEnd | None:
        """Returns how the transaction of the record at `position` ended; None while it is open."""
        writer = log[position].writer
        if writer is None:
            return None
        for written in log[position + 1 :]:
            if written.end is not None and written.end.producer_id == writer.producer_id:
                return written.end
        return None


def committed_offsets(world: World) -> dict[Place, int]:
    """Returns the offsets in the form of the machine."""
    return {
        (group, topic, partition): each.offset
        for group in world.groups.groups
        for topic, partitions in world.groups.offsets.of_group(group).items()
        for partition, each in partitions.items()
    }
