"""Computes the next state of one partition: its ISR, its eligible leader replicas and its leader (KIP-966).

A caller sets the target values on a `PartitionChange` and then takes its record. The rules that hold for every
change are here, in this order:

1. A reassignment that adds at least as many replicas as it removes is complete when all added replicas are in sync.
   One that removes more is complete when all remaining replicas are in sync. The replicas to remove are then dropped.
   The ISR must not become empty by this.
2. While fewer replicas than `min.insync.replicas` are in sync, the high watermark stands still. So a replica that
   leaves the ISR has every committed record and becomes an eligible leader replica (ELR). A broker that stopped
   uncleanly does not, because it may have lost the end of its logs. When enough replicas are in sync again, the ELR
   is cleared.
3. The current leader stays if it can. Otherwise the first replica in order that is in the ISR becomes leader; with
   an empty ISR, the first one in the ELR. When both are empty, every replica may lack committed records. The last
   known leader is no exception: it stopped uncleanly. An unclean election, if it is allowed or requested, then takes
   the last known leader when it is back, or else any live replica. (Kafka elects the last known leader without a
   request.) A partition's sole replica needs no unclean election, since no other replica can have more. A leader
   that is elected uncleanly is marked as recovering.
4. A new leader epoch begins when the leader changes or replicas are removed, not when the ISR changes (as in Kafka
   since 3.6).

The last known leader is kept from the moment when the ISR becomes empty until there is a leader again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from tidemill.controller.image import NO_DIRECTORY, PartitionImage
from tidemill.protocol.api.metadata import PartitionChangeRecord
from tidemill.types import NO_BROKER, BrokerId, TopicId

RECOVERED = 0
RECOVERING = 1

Ids = tuple[BrokerId, ...]


class Election(Enum):
    """`ONLINE` keeps a leader that can stay, `PREFERRED` prefers the first replica, `UNCLEAN` takes any replica as the
    last resort.
    """

    ONLINE = 0
    PREFERRED = 1
    UNCLEAN = 2


@dataclass(frozen=True, slots=True)
class Elected:
    """The result of an election."""

    leader: BrokerId
    is_clean: bool


class PartitionChange:
    """One change of a partition. The caller sets the target values and then calls `record` once."""

    def __init__(
        self,
        topic_id: TopicId,
        index: int,
        before: PartitionImage,
        *,
        min_isr: int,
        may_lead: Callable[[BrokerId], bool],
        election: Election = Election.ONLINE,
    ) -> None:
        self.topic_id = topic_id
        self.index = index
        self.before = before
        self.min_isr = min_isr
        self.may_lead = may_lead
        self.election = election
        self.isr: Ids = before.isr
        self.replicas: Ids = before.replicas
        self.adding_replicas: Ids = before.adding_replicas
        self.removing_replicas: Ids = before.removing_replicas
        self.leader_recovery_state = before.leader_recovery_state
        # The new log directories of replicas. Replicas without an entry keep theirs.
        self.directories: dict[BrokerId, bytes] = {}
        # The brokers that may have lost the end of their logs, and those that have lost all of it.
        self.unclean: Collection[BrokerId] = ()
        self.lost: Collection[BrokerId] = ()
        self._elr: Ids = before.elr
        self._last_known: Ids = before.last_known_elr

    def record(self) -> PartitionChangeRecord | None:
        """Returns the record of the change; None when nothing changes."""
        self._complete_reassignment()
        self._find_eligible()
        elected = self._elect()
        self._take(elected)
        self._remember_last_leader(elected.leader)
        return self._difference(elected.leader)

    def _complete_reassignment(self) -> None:
        if not self.adding_replicas and not self.removing_replicas:
            return
        isr = _without(self.isr, self.removing_replicas)
        replicas = _without(self.replicas, self.removing_replicas)
        is_shrinking = len(self.removing_replicas) > len(self.adding_replicas)
        needed = replicas if is_shrinking else self.adding_replicas
        if isr and set(needed) <= set(isr):
            self.isr, self.replicas = isr, replicas
            self.adding_replicas = self.removing_replicas = ()

    def _find_eligible(self) -> None:
        if self._is_enough():
            self._elr = ()
            return
        kept = dict.fromkeys((*self._elr, *self.before.isr))
        gone = {*self.isr, *self.unclean, *self.lost}
        self._elr = tuple(each for each in kept if each in self.replicas and each not in gone)

    def _is_enough(self) -> bool:
        """Whether the ISR is large enough for writes. `min.insync.replicas` is capped at the number of replicas."""
        return len(self.isr) >= min(self.min_isr, len(self.replicas))

    def _elect(self) -> Elected:
        order = [self.before.leader, *self.replicas]
        if self.election is Election.PREFERRED:
            order.insert(0, self.replicas[0])
        eligible = self.isr or self._elr
        for replica in order:
            if replica in eligible and self.may_lead(replica):
                return Elected(replica, is_clean=True)
        last_known = self._last_known_leader()
        if last_known is not None:
            return Elected(last_known, is_clean=False)
        if self.election is Election.UNCLEAN:
            # A replica that is being added may still be empty, so it comes last. (In Kafka it may come first.)
            for replica in sorted(self.replicas, key=self.adding_replicas.__contains__):
                if self.may_lead(replica):
                    return Elected(replica, is_clean=False)
        return Elected(NO_BROKER, is_clean=True)

    def _last_known_leader(self) -> BrokerId | None:
        if self.isr or self._elr or len(self._last_known) != 1:
            return None
        replica = self._last_known[0]
        if self.election is not Election.UNCLEAN and self.replicas != (replica,):
            return None
        return replica if replica in self.replicas and self.may_lead(replica) else None

    def _take(self, elected: Elected) -> None:
        if elected.leader == NO_BROKER:
            return
        if not elected.is_clean:
            self.isr, self._elr = (elected.leader,), ()
            self.leader_recovery_state = RECOVERING
        elif elected.leader in self._elr:
            self.isr = (elected.leader,)
            self._elr = _without(self._elr, self.isr)
        if self._is_enough():
            self._elr = ()

    def _remember_last_leader(self, leader: BrokerId) -> None:
        if leader != NO_BROKER:
            self._last_known = ()
        elif not self.isr and self.before.isr and self.before.has_leader:
            self._last_known = (self.before.leader,)
        self._last_known = _without(self._last_known, self.lost)

    def _difference(self, leader: BrokerId) -> PartitionChangeRecord | None:
        before = self.before
        record = PartitionChangeRecord(topic_id=self.topic_id, partition_id=self.index)
        if leader != before.leader or not set(before.replicas) <= set(self.replicas):
            record.leader = leader
        if self.leader_recovery_state != before.leader_recovery_state:
            record.leader_recovery_state = self.leader_recovery_state
        record.isr = _changed(before.isr, self.isr)
        record.replicas = _changed(before.replicas, self.replicas)
        record.adding_replicas = _changed(before.adding_replicas, self.adding_replicas)
        record.removing_replicas = _changed(before.removing_replicas, self.removing_replicas)
        record.eligible_leader_replicas = _changed(before.elr, self._elr)
        record.last_known_elr = _changed(before.last_known_elr, self._last_known)
        directories = self._new_directories()
        if directories != before.directories:
            record.directories = list(directories)
        is_changed = record != PartitionChangeRecord(topic_id=self.topic_id, partition_id=self.index)
        return record if is_changed else None

    def _new_directories(self) -> tuple[bytes, ...]:
        known = tuple(self.directories.get(each) or self.before.directory(each) for each in self.replicas)
        return known if any(each != NO_DIRECTORY for each in known) else ()


def _without(ids: Ids, gone: Collection[BrokerId]) -> Ids:
    return tuple(each for each in ids if each not in gone)


def _changed(before: Ids, after: Sequence[BrokerId]) -> list[int] | None:
    return None if before == tuple(after) else [*after]
