"""A group of the consumer protocol (KIP-848): its members, the target assignment, and the owner of each partition.

Three epochs drive it. The *group epoch* grows whenever the assignment must be computed again: a member joined, left
or changed its subscription, or a subscribed topic changed. The *assignment epoch* is the group epoch for which the target
assignment was computed. A *member epoch* is the assignment epoch that a member has reached; it lags while the member
still owns partitions that it must give up.

    Empty        no members
    Assigning    the group epoch is ahead of the assignment epoch
    Reconciling  a member has not reached the target assignment yet
    Stable       every member has its target assignment

All state is replicated, one record per part, except state that is marked as soft. This module replays the records and
provides the queries; protocol.py and membership.py decide what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tidemill.coordinator.consumer_groups.member import ConsumerMember, MemberState, OwnedPartitions
from tidemill.coordinator.consumer_groups.records import RECORDS, group_tombstones
from tidemill.coordinator.groups.assignors import NO_PARTITIONS, Partitions
from tidemill.coordinator.groups.group import (
    CONSUMER_PROTOCOL_TYPE,
    Committer,
    Environment,
    GroupType,
)
from tidemill.coordinator.groups.modern import ModernGroup, count_in
from tidemill.coordinator.records import Record
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from tidemill.protocol.api.groups import DescribeGroupsDescribedGroup
from tidemill.types import TopicId

_COMMIT_WITH_EPOCH_SINCE = 9


class ResolvedRegex(NamedTuple):
    topics: frozenset[str]
    resolved_at_ms: int


class ConsumerGroup(ModernGroup[ConsumerMember]):
    type = GroupType.CONSUMER
    records = RECORDS

    def __init__(
        self,
        group_id: str,
        environment: Environment,
        start_timers: Callable[[ConsumerGroup, int], None] = lambda _group, _steady_ms: None,
    ) -> None:
        """`start_timers` is passed in: the caller knows what happens when a timer ends."""
        super().__init__(group_id, environment, assignment_epoch=0)
        self._start_timers = start_timers
        self.regexes: dict[str, ResolvedRegex] = {}
        # Kafka before 4.1 wrote one; it is removed with the group.
        self.has_partition_metadata = False
        # Derived from the members.
        self.static_member_ids: dict[str, str] = {}
        self.owners: dict[tuple[TopicId, int], str] = {}
        self._name_subscribers: dict[str, int] = {}
        self._regex_subscribers: dict[str, int] = {}
        self.are_regexes_stale = True

    # The replicated state.

    def replay(self, record: Record) -> None:
        key, value = record
        if isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
            assert value is None or isinstance(value, ConsumerGroupCurrentMemberAssignmentValue)
            self._replay_current_assignment(key.member_id, value)
        elif isinstance(key, ConsumerGroupMemberMetadataKey):
            assert value is None or isinstance(value, ConsumerGroupMemberMetadataValue)
            self._replay_member(key.member_id, value)
        elif isinstance(key, ConsumerGroupRegularExpressionKey):
            assert value is None or isinstance(value, ConsumerGroupRegularExpressionValue)
            if value is None:
                self.regexes.pop(key.regular_expression, None)
            else:
                self.regexes[key.regular_expression] = ResolvedRegex(frozenset(value.topics), value.timestamp)
        elif isinstance(key, ConsumerGroupPartitionMetadataKey):
            self.has_partition_metadata = value is not None
        else:
            super().replay(record)

    def _replay_member(self, member_id: str, value: ConsumerGroupMemberMetadataValue | None) -> None:
        old = self.members.get(member_id)
        if value is None:
            self._set_member(member_id, old, None)
        else:
            self._set_member(member_id, old, (old or ConsumerMember(member_id)).with_metadata(value))

    def _replay_current_assignment(
        self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> None:
        old = self.members.get(member_id)
        if value is not None:
            self._set_member(
                member_id, old, (old or ConsumerMember(member_id)).with_current_assignment(value)
            )
        elif old is not None:
            self._set_member(member_id, old, old.without_assignment())

    def _set_member(self, member_id: str, old: ConsumerMember | None, new: ConsumerMember | None) -> None:
        if old is not None:
            self._count(old, -1)
            if old.instance_id is not None and self.static_member_ids.get(old.instance_id) == member_id:
                del self.static_member_ids[old.instance_id]
            if new is None or new.assigned is not old.assigned:
                self._disown(member_id, old.assigned)
            if new is None or new.pending_revocation is not old.pending_revocation:
                self._disown(member_id, old.pending_revocation)
        if new is None:
            self.members.pop(member_id, None)
            self.cancel_member_timers(member_id)
            return
        self.members[member_id] = new
        self._count(new, 1)
        if new.instance_id is not None:
            self.static_member_ids[new.instance_id] = member_id
        if old is None or new.assigned is not old.assigned:
            self._own(member_id, new.assigned)
        if old is None or new.pending_revocation is not old.pending_revocation:
            self._own(member_id, new.pending_revocation)

    def _own(self, member_id: str, owned: OwnedPartitions) -> None:
        for topic_id, epochs in owned.items():
            for partition in epochs:
                self.owners[topic_id, partition] = member_id

    def _disown(self, member_id: str, owned: OwnedPartitions) -> None:
        for topic_id, epochs in owned.items():
            for partition in epochs:
                if self.owners.get((topic_id, partition)) == member_id:
                    del self.owners[topic_id, partition]

    def _count(self, member: ConsumerMember, change: int) -> None:
        count_in(self._name_subscribers, member.subscribed_topic_names, change)
        if member.subscribed_topic_regex:
            count_in(self._regex_subscribers, (member.subscribed_topic_regex,), change)

    def replicated_state(self) -> object:
        return (
            self.epochs,
            self.members,
            self.target,
            self.regexes,
            self.owners,
            self.has_partition_metadata,
        )

    def deletion_records(self) -> list[Record]:
        return group_tombstones(
            self.group_id,
            self.members,
            self.regexes,
            has_partition_metadata=self.has_partition_metadata,
        )

    # State.

    @property
    def state(self) -> str:
        if not self.members:
            return "Empty"
        if self.group_epoch > self.assignment_epoch:
            return "Assigning"
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    @property
    def protocol_type(self) -> str:
        return CONSUMER_PROTOCOL_TYPE

    def is_owned(self, topic_id: TopicId, partition: int) -> bool:
        return (topic_id, partition) in self.owners

    def target_of(self, member: ConsumerMember) -> Partitions:
        """Returns the member's target. A static member that replaces another has its predecessor's."""
        target = self.target.get(member.member_id)
        if target is None and member.instance_id is not None:
            target = self.target.get(self.static_member_ids.get(member.instance_id, ""))
        return NO_PARTITIONS if target is None else target

    def is_waiting_for_others(self, member: ConsumerMember) -> bool:
        """Whether another member still owns partitions of this member's target."""
        if member.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        return any(
            partition not in member.assigned.get(topic_id, {}) and self.is_owned(topic_id, partition)
            for topic_id, partitions in self.target_of(member).items()
            for partition in partitions
        )

    def regex_subscribers(self, regex: str) -> int:
        return self._regex_subscribers.get(regex, 0)

    @property
    def has_regexes(self) -> bool:
        return bool(self._regex_subscribers)

    @property
    def subscribed_regexes(self) -> list[str]:
        return list(self._regex_subscribers)

    @property
    def regexes_resolved_at_ms(self) -> int | None:
        return max((each.resolved_at_ms for each in self.regexes.values()), default=None)

    def topics_of(self, member: ConsumerMember) -> list[str]:
        """Returns the topics that the member subscribes to by name or regex, sorted. An unresolved regex adds none."""
        resolved = self.regexes.get(member.subscribed_topic_regex)
        if resolved is None:
            return list(member.subscribed_topic_names)
        return sorted(resolved.topics.union(member.subscribed_topic_names))

    def subscribed_topics(
        self,
        old: Iterable[ConsumerMember] = (),
        new: ConsumerMember | None = None,
        forgotten_regexes: Iterable[str] = (),
    ) -> list[str]:
        """Returns all topics of the group, sorted, with `new` in the place of `old`."""
        names = dict(self._name_subscribers)
        for member in old:
            if self.members.get(member.member_id) is member:
                count_in(names, member.subscribed_topic_names, -1)
        topics = set(names)
        if new is not None:
            topics.update(new.subscribed_topic_names)
        forgotten = set(forgotten_regexes)
        for regex, resolved in self.regexes.items():
            if regex not in forgotten:
                topics.update(resolved.topics)
        return sorted(topics)

    def subscribes_to(self, topic: str) -> bool:
        if topic in self._name_subscribers:
            return True
        return any(topic in resolved.topics for resolved in self.regexes.values())

    def consumed_topics(self) -> Iterable[str]:
        return self.subscribed_topics()

    # Offsets.

    def check_offset_commit(self, committer: Committer) -> None:
        epoch = committer.generation_or_epoch
        if epoch < 0 and not self.members:
            return
        names_nobody = not committer.member_id and committer.instance_id is None
        if committer.is_transactional and epoch == -1 and names_nobody:
            return
        member = self.members.get(committer.member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if (
            not committer.is_transactional
            and not member.is_classic
            and committer.api_version < _COMMIT_WITH_EPOCH_SINCE
        ):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        if epoch > member.member_epoch:
            raise ApiError(_stale(member))

    def check_offset_commit_partition(
        self, member_id: str, epoch: int, topic_id: TopicId | None, partition: int
    ) -> ErrorCode:
        """A member with an older epoch may still commit partitions that it has owned since that epoch (KIP-1251)."""
        member = self.members.get(member_id)
        if member is None or epoch == member.member_epoch or topic_id is None:
            return ErrorCode.NONE
        assigned_in = member.assignment_epoch_of(topic_id, partition)
        if assigned_in is None or epoch < assigned_in:
            return _stale(member)
        return ErrorCode.NONE

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        member = self.members.get(member_id or "")
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if member_epoch != member.member_epoch:
            raise ApiError(_stale(member))

    def check_offset_delete(self) -> None:
        """Offsets of topics without a subscriber may expire at any time."""

    def offset_expires_from_ms(self, commit_timestamp_ms: int) -> int | None:
        return commit_timestamp_ms

    # Timers.

    def session_key(self, member_id: str) -> tuple[str, str, str]:
        return ("consumer session", self.group_id, member_id)

    def rebalance_key(self, member_id: str) -> tuple[str, str, str]:
        return ("consumer rebalance", self.group_id, member_id)

    def join_key(self, member_id: str) -> tuple[str, str, str]:
        return ("consumer join", self.group_id, member_id)

    def sync_key(self, member_id: str) -> tuple[str, str, str]:
        return ("consumer sync", self.group_id, member_id)

    @property
    def regex_key(self) -> tuple[str, str]:
        return ("consumer regex", self.group_id)

    @property
    def downgrade_key(self) -> tuple[str, str]:
        return ("consumer downgrade", self.group_id)

    def cancel_timers(self) -> None:
        for member_id in self.members:
            self.cancel_member_timers(member_id)
        self.environment.timers.cancel(self.regex_key)
        self.environment.timers.cancel(self.downgrade_key)

    def cancel_member_timers(self, member_id: str) -> None:
        cancel = self.environment.timers.cancel
        cancel(self.session_key(member_id))
        cancel(self.rebalance_key(member_id))
        cancel(self.join_key(member_id))
        cancel(self.sync_key(member_id))

    def start_timers(self, steady_ms: int) -> None:
        # It is not known which topics have changed in the meantime.
        self.changed_topics = None
        self.are_regexes_stale = True
        self._start_timers(self, steady_ms)

    def describe(self) -> DescribeGroupsDescribedGroup | None:
        return None

    def check_invariants(self) -> None:
        super().check_invariants()
        owned: dict[tuple[TopicId, int], str] = {}
        for member_id, member in self.members.items():
            for part in (member.assigned, member.pending_revocation):
                for topic_id, epochs in part.items():
                    for partition in epochs:
                        assert (topic_id, partition) not in owned, f"{partition} is held twice"
                        owned[topic_id, partition] = member_id
            is_revoking = member.state is MemberState.UNREVOKED_PARTITIONS
            assert bool(member.pending_revocation) <= is_revoking, member_id
        assert owned == self.owners, self.group_id
        statics = {
            each.instance_id: name for name, each in self.members.items() if each.instance_id is not None
        }
        assert statics == self.static_member_ids, self.group_id
        given = [(t, p) for target in self.target.values() for t, ps in target.items() for p in ps]
        assert len(given) == len(set(given)), f"{self.group_id}: the target gives a partition to two members"


def _stale(member: ConsumerMember) -> ErrorCode:
    return ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH
