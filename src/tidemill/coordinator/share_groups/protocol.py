"""The share group protocol of KIP-932. One API, ShareGroupHeartbeat, serves to join, to get assignments and to leave.

The member epoch of the request decides: 0 joins, -1 leaves, any other value is the epoch that the member has reached.
Null fields have not changed. The response has an assignment only if it has changed, or if the member named its topics.

A heartbeat has up to four effects. It stores the member. It bumps the group epoch if the subscriptions, the topics or
the initialised partitions have changed. It computes the target assignment, at most once in
`share.assignment.interval.ms`. And it has the state of new partitions initialised: only initialised ones are assigned,
so a new group gets its partitions with the second heartbeat.

offsets.py handles what administrators do to the state of a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidemill.config import ShareGroupConfig, ShareGroupsConfig, share_group_config
from tidemill.coordinator.groups.assignors import Partitions
from tidemill.coordinator.groups.group import Decision, Registry, TopicsChanged
from tidemill.coordinator.groups.modern import ModernGroupChange, metadata_hash
from tidemill.coordinator.records import Record
from tidemill.coordinator.shard import Caller
from tidemill.coordinator.share_groups.assignor import ShareAssignmentSpec, assign_simple
from tidemill.coordinator.share_groups.group import ShareGroup
from tidemill.coordinator.share_groups.member import JOIN_EPOCH, LEAVE_EPOCH, ShareMember
from tidemill.coordinator.share_groups.offsets import ShareGroupOffsets
from tidemill.coordinator.share_groups.partition_states import TopicPartitions
from tidemill.coordinator.share_groups.records import (
    current_assignment_record,
    member_record,
    member_tombstones,
    states_record,
    target_epoch_record,
    target_record,
)
from tidemill.coordinator.share_groups.state_requests import InitializeState
from tidemill.errors import ApiError, ErrorCode
from tidemill.machine import NO_REPLY
from tidemill.protocol.api.coordinator_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMetadataKey,
)
from tidemill.protocol.api.share import (
    DescribedGroup,
    ShareGroupHeartbeatAssignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatTopicPartitions,
)
from tidemill.protocol.share_state import NO_START_OFFSET
from tidemill.types import TopicId

# An initialisation without an outcome is repeated after this time (Kafka: group.share.initialize.retry.interval.ms).
INITIALIZE_RETRY_MS = 30_000
REMOVAL_RETRY_MS = 500


class _Change(ModernGroupChange[ShareGroup]):
    """A decision about one share group that is being built."""


class ShareGroupProtocol(ShareGroupOffsets):
    """The share groups of a shard, for the groups machine."""

    record_keys: frozenset[type] = frozenset(
        {
            ShareGroupMetadataKey,
            ShareGroupMemberMetadataKey,
            ShareGroupTargetAssignmentMetadataKey,
            ShareGroupTargetAssignmentMemberKey,
            ShareGroupCurrentMemberAssignmentKey,
            ShareGroupStatePartitionMetadataKey,
        }
    )

    def __init__(self, registry: Registry, brokers: ShareGroupsConfig) -> None:
        super().__init__(registry)
        self._brokers = brokers
        # The settings in force, by the group's own values: heartbeats are frequent and settings change rarely.
        self._resolved: dict[str, tuple[Mapping[str, str], ShareGroupConfig]] = {}

    def reconfigure(self, brokers: ShareGroupsConfig) -> None:
        self._brokers = brokers
        self._resolved.clear()

    # Records.

    def replay(self, record: Record) -> None:
        key, value = record
        group_id: str = key.group_id  # type: ignore[attr-defined]
        group = self.registry.groups.get(group_id)
        if not isinstance(group, ShareGroup):
            if value is None:
                return
            group = ShareGroup(group_id, self.environment, self._start_timers)
            self.registry.add(group)
        if value is None and isinstance(key, ShareGroupMetadataKey):
            self.registry.forget(group)
            self.forget_group(group_id)
            self._resolved.pop(group_id, None)
        else:
            group.replay(record)

    # ShareGroupHeartbeat

    def heartbeat(self, request: ShareGroupHeartbeatRequest, caller: Caller, steady_ms: int) -> Decision:
        _check_request(request)
        if request.member_epoch == LEAVE_EPOCH:
            return self._leave(request, steady_ms)
        group = self.find(request.group_id, creates=request.member_epoch == JOIN_EPOCH)
        self._check_room(group, request.member_id)
        member = group.members.get(request.member_id)
        if member is None:
            if request.member_epoch != JOIN_EPOCH:
                raise _unknown_member(request.member_id, group)
            member = ShareMember(request.member_id)
        _check_member_epoch(member, request.member_epoch)
        updated = _updated(member, request, caller)
        change = _Change(group, steady_ms)
        moved, initialize = self._advance(change, member, updated)
        config = self._config(group)
        self._renew_session(group, moved.member_id, config.session_timeout_ms, steady_ms)
        response = ShareGroupHeartbeatResponse(
            member_id=moved.member_id,
            member_epoch=moved.member_epoch,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
        )
        is_full = request.subscribed_topic_names is not None
        if is_full or request.member_epoch == JOIN_EPOCH or moved.assigned != member.assigned:
            response.assignment = _assignment(moved.assigned)
        if initialize is None:
            return Decision(change.records, response, effects=change.events)
        return Decision(
            change.records,
            response,
            effects=change.events,
            committed_effects=[initialize],
            on_failed=lambda _error: self.forget_initialization(group, initialize),
        )

    def _advance(
        self, change: _Change, member: ShareMember, updated: ShareMember
    ) -> tuple[ShareMember, InitializeState | None]:
        """Returns the member after the heartbeat, and what is to be initialised."""
        group = change.group
        if updated is member and group.is_settled and member.member_epoch == group.assignment_epoch:
            # Nearly every heartbeat: neither the member nor the cluster has changed.
            return member, None
        has_changed = self._take_in(change, member, updated)
        names = group.subscribed_topics(member, updated)
        uninitialized, is_repeated = self._uninitialized(group, names, change.steady_ms)
        if is_repeated and not has_changed:
            # A later epoch fences the request whose outcome is not known: it must not reset what comes now.
            has_changed = True
            cause = "the state of partitions is initialised again"
            new_hash = metadata_hash(self.environment.topics, names)
            change.bump(new_hash, cause, len(group.members))
        if change.group_epoch > group.assignment_epoch and self._may_assign(group, change.steady_ms):
            target = self._assign(change, updated)
            assignment_epoch = change.group_epoch
        else:
            target, assignment_epoch = group.target_of(updated.member_id), group.assignment_epoch
        moved = self._reconciled(updated, assignment_epoch, target, has_changed=has_changed)
        if moved is not updated:
            change.records.append(current_assignment_record(group.group_id, moved))
        initialize = self._initialize(change, uninitialized)
        group.is_settled = (
            not change.records and not group.states.initializing and change.group_epoch == assignment_epoch
        )
        return moved, initialize

    def _take_in(self, change: _Change, member: ShareMember, updated: ShareMember) -> bool:
        """Store the member and bump the group epoch if needed. Returns whether the epoch was bumped."""
        group = change.group
        if updated is not member:
            change.records.append(member_record(group.group_id, updated))
        is_new = member.member_id not in group.members
        has_new_names = updated.subscribed_topic_names != member.subscribed_topic_names
        has_new_states = group.group_epoch <= group.assignment_epoch and group.has_unassigned_states
        must_bump = has_new_names or has_new_states
        if not must_bump and group.changed_topics == {}:
            return False
        new_hash = metadata_hash(self.environment.topics, group.subscribed_topics(member, updated))
        if not must_bump and new_hash == group.metadata_hash:
            group.changed_topics = {}
            return False
        if is_new:
            cause = f"member {updated.member_id} joined"
        elif has_new_names:
            cause = f"member {updated.member_id} subscribes to other topics"
        else:
            cause = "partitions are initialised" if has_new_states else "subscribed topics changed"
        change.bump(new_hash, cause, len(group.members) + is_new)
        return True

    def _may_assign(self, group: ShareGroup, steady_ms: int) -> bool:
        if group.assignment_timestamp_ms == 0:
            return True
        # The last assignment may be another coordinator's, whose clock was ahead (failure 28).
        elapsed_ms = steady_ms - group.assignment_timestamp_ms
        return elapsed_ms < 0 or elapsed_ms >= self._config(group).assignment_interval_ms

    def _assign(self, change: _Change, updated: ShareMember) -> Partitions:
        """Compute the target assignment for the group epoch. Returns the updated member's part of it."""
        group, topics = change.group, self.environment.topics
        members = {**group.members, updated.member_id: updated}
        ids: dict[tuple[str, ...], tuple[TopicId, ...]] = {}
        for member in members.values():
            if member.subscribed_topic_names not in ids:
                found = (topics.id_of(name) for name in member.subscribed_topic_names)
                ids[member.subscribed_topic_names] = tuple(sorted(each for each in found if each is not None))
        subscriptions = {
            member_id: ids[members[member_id].subscribed_topic_names] for member_id in sorted(members)
        }
        spec = ShareAssignmentSpec(subscriptions, group.states.assignable, group.target)
        assigned = assign_simple(spec)
        for member_id, partitions in assigned.items():
            if group.target.get(member_id) != partitions:
                change.records.append(target_record(group.group_id, member_id, partitions))
        change.records.append(target_epoch_record(group.group_id, change.group_epoch, change.steady_ms))
        return assigned[updated.member_id]

    def _reconciled(
        self, member: ShareMember, assignment_epoch: int, target: Partitions, *, has_changed: bool
    ) -> ShareMember:
        """Returns the member with its part of the target; the same object when nothing changes."""
        if member.member_epoch == assignment_epoch and not has_changed:
            return member
        subscribed = {self.environment.topics.id_of(name) for name in member.subscribed_topic_names}
        assigned = {topic_id: partitions for topic_id, partitions in target.items() if topic_id in subscribed}
        if member.member_epoch != assignment_epoch:
            return member.moved_to(assignment_epoch, assigned)
        return member if assigned == member.assigned else replace(member, assigned=assigned)

    # Initialisation of state.

    def _uninitialized(
        self, group: ShareGroup, names: Sequence[str], steady_ms: int
    ) -> tuple[dict[TopicId, TopicPartitions], bool]:
        """Returns the partitions to initialise, and whether some were begun before and have no outcome yet."""
        found: dict[TopicId, TopicPartitions] = {}
        is_repeated = False
        states, under_way = group.states, self.initializations_of(group)
        for name in names:
            topic_id, count = self.environment.topics.id_of(name), self.environment.topics.partitions_of(name)
            if topic_id is None or count is None:
                continue
            initialized = states.initialized.get(topic_id)
            missing = set(range(count)) if initialized is None else set(range(count)) - initialized.partitions
            for partition in list(missing):
                begun = under_way.get((topic_id, partition))
                if begun is not None and steady_ms < begun.sent_at_ms + INITIALIZE_RETRY_MS:
                    missing.discard(partition)
            if missing:
                found[topic_id] = TopicPartitions(name, frozenset(missing))
                begun_before = states.initializing.get(topic_id)
                is_repeated |= begun_before is not None and not missing.isdisjoint(begun_before.partitions)
        return found, is_repeated

    def _initialize(
        self, change: _Change, uninitialized: Mapping[TopicId, TopicPartitions]
    ) -> InitializeState | None:
        if not uninitialized:
            return None
        group = change.group
        states = group.states.with_initializing(uninitialized)
        if states != group.states:
            change.records.append(states_record(group.group_id, states))
        initialize = InitializeState(
            group.group_id,
            change.group_epoch,
            {
                topic_id: dict.fromkeys(sorted(topic.partitions), NO_START_OFFSET)
                for topic_id, topic in uninitialized.items()
            },
        )
        self.begin_initialization(group, initialize, change.steady_ms)
        return initialize

    # Leaving, and the end of a session.

    def _leave(self, request: ShareGroupHeartbeatRequest, steady_ms: int) -> Decision:
        group = self.find(request.group_id)
        member = group.members.get(request.member_id)
        if member is None:
            raise _unknown_member(request.member_id, group)
        response = ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        return self._remove(group, member, f"member {member.member_id} left", steady_ms, response)

    def _remove(
        self, group: ShareGroup, member: ShareMember, cause: str, steady_ms: int, reply: Any = NO_REPLY
    ) -> Decision:
        change = _Change(group, steady_ms)
        change.records += member_tombstones(group.group_id, member.member_id)
        names = group.subscribed_topics(without=member)
        change.bump(metadata_hash(self.environment.topics, names), cause, len(group.members) - 1)
        return Decision(change.records, reply, effects=change.events)

    def _start_timers(self, group: ShareGroup, steady_ms: int) -> None:
        timeout_ms = self._config(group).session_timeout_ms
        for member_id in group.members:
            self._renew_session(group, member_id, timeout_ms, steady_ms)

    def _renew_session(self, group: ShareGroup, member_id: str, timeout_ms: int, steady_ms: int) -> None:
        group_id = group.group_id
        self.environment.timers.set(
            group.session_key(member_id),
            steady_ms + timeout_ms,
            lambda steady_ms: self._session_expired(group_id, member_id, timeout_ms, steady_ms),
        )

    def _session_expired(
        self, group_id: str, member_id: str, timeout_ms: int, steady_ms: int
    ) -> Decision | None:
        group = self.registry.groups.get(group_id)
        if not isinstance(group, ShareGroup) or member_id not in group.members:
            return None
        key = group.session_key(member_id)

        def on_failed(_error: ErrorCode) -> None:
            self.environment.timers.set(
                key,
                steady_ms + REMOVAL_RETRY_MS,
                lambda steady_ms: self._session_expired(group_id, member_id, timeout_ms, steady_ms),
            )

        cause = f"member {member_id} sent no heartbeat for {timeout_ms} ms"
        return replace(self._remove(group, group.members[member_id], cause, steady_ms), on_failed=on_failed)

    # Settings, other events and queries.

    def _config(self, group: ShareGroup) -> ShareGroupConfig:
        overrides = self.environment.group_configs(group.group_id)
        known = self._resolved.get(group.group_id)
        if known is None or known[0] is not overrides:
            known = self._resolved[group.group_id] = (
                overrides,
                share_group_config(overrides, self._brokers),
            )
        return known[1]

    def _check_room(self, group: ShareGroup, member_id: str) -> None:
        size_max = self._brokers.max_size
        if len(group.members) >= size_max and member_id not in group.members:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"the share group has {size_max} members, and may have no more",
            )

    def describe(self, group_id: str) -> DescribedGroup:
        return self.find(group_id).describe_share_group()

    def topics_changed(self, change: TopicsChanged) -> list[Record]:
        """Note changed topics; forget the state of deleted ones and of lost partitions, as the share coordinator does."""
        records = []
        names = sorted(change.names.union(change.deleted))
        deleted = frozenset(change.deleted.values())
        for group in self.registry.groups.values():
            if not isinstance(group, ShareGroup):
                continue
            changed = dict.fromkeys(name for name in names if group.subscribes_to(name))
            if changed:
                group.is_settled = False
                if group.changed_topics is not None:
                    group.changed_topics.update(changed)
            states = group.states.without_topics(deleted)
            for name, partitions in change.removed.items():
                states = states.without_partitions(name, partitions)
            if states is not group.states:
                records.append(states_record(group.group_id, states))
        return records


def _check_request(request: ShareGroupHeartbeatRequest) -> None:
    if not request.member_id.strip():
        raise _invalid("a member id is needed")
    if not request.group_id.strip():
        raise _invalid("a group id is needed")
    if request.rack_id is not None and not request.rack_id.strip():
        raise _invalid("a rack id must be null or have characters")
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        raise _invalid("a join needs topic names")
    if request.member_epoch < LEAVE_EPOCH:
        raise _invalid("no member epoch is below -1")


def _check_member_epoch(member: ShareMember, received: int) -> None:
    """Accepts the member's epoch, and the one before it: the response with the new epoch may have been lost."""
    if received in (JOIN_EPOCH, member.member_epoch, member.previous_member_epoch):
        return
    how = "greater" if received > member.member_epoch else "smaller"
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"epoch {received} is {how} than the member's epoch here, {member.member_epoch}: "
        "drop all partitions and join again",
    )


def _invalid(why: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, why)


def _updated(member: ShareMember, request: ShareGroupHeartbeatRequest, caller: Caller) -> ShareMember:
    """Returns the member with the fields of the request; the same object when nothing changes."""
    names = request.subscribed_topic_names
    updated = replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        subscribed_topic_names=member.subscribed_topic_names if names is None else tuple(sorted(set(names))),
    )
    return member if updated == member else updated


def _assignment(assigned: Partitions) -> ShareGroupHeartbeatAssignment:
    return ShareGroupHeartbeatAssignment(
        topic_partitions=[
            ShareGroupHeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in assigned.items()
        ]
    )


def _unknown_member(member_id: str, group: ShareGroup) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id} has no member {member_id}")
