"""The consumer protocol of KIP-848. One API, ConsumerGroupHeartbeat, serves to join, to get and acknowledge assignments,
and to leave.

The member epoch of the request decides: 0 joins, -1 leaves, -2 is a static member that will return, any other value is
the epoch that the member has reached. Null fields have not changed. The response has an assignment only if it has
changed, or if the member sent all fields, as it does after an error.

This module handles the requests and replays the records. membership.py decides what a heartbeat does to a member.
migration.py handles classic members in consumer groups and the conversion of groups.
"""

from __future__ import annotations

from dataclasses import replace

from tidemill.coordinator.consumer_groups.change import GroupChange
from tidemill.coordinator.consumer_groups.checks import check_member_epoch, check_request, reported_partitions
from tidemill.coordinator.consumer_groups.describe import describe_group
from tidemill.coordinator.consumer_groups.machine import ConsumerGroup
from tidemill.coordinator.consumer_groups.member import (
    JOIN_EPOCH,
    NOTHING_OWNED,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    OwnedPartitions,
)
from tidemill.coordinator.consumer_groups.migration import Migration
from tidemill.coordinator.consumer_groups.reconciliation import Reported
from tidemill.coordinator.consumer_groups.records import current_assignment_record
from tidemill.coordinator.groups.group import Decision, TopicsChanged
from tidemill.coordinator.records import Record
from tidemill.coordinator.shard import Caller
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)
from tidemill.protocol.api.groups import (
    ConsumerGroupDescribeDescribedGroup,
    ConsumerGroupHeartbeatAssignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatTopicPartitions,
)


class ConsumerGroupProtocol(Migration):
    """The implementation of `ConsumerProtocol` for the groups machine."""

    record_keys: frozenset[type] = frozenset(
        {
            ConsumerGroupMetadataKey,
            ConsumerGroupPartitionMetadataKey,
            ConsumerGroupMemberMetadataKey,
            ConsumerGroupTargetAssignmentMetadataKey,
            ConsumerGroupTargetAssignmentMemberKey,
            ConsumerGroupCurrentMemberAssignmentKey,
            ConsumerGroupRegularExpressionKey,
        }
    )

    # Records.

    def replay(self, record: Record) -> None:
        key, value = record
        group_id: str = key.group_id  # type: ignore[attr-defined]
        group = self.registry.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            # A classic group of that name was created for committed offsets, or compaction has removed its tombstone.
            group = ConsumerGroup(group_id, self.environment, self.start_timers)
            self.registry.add(group)
        if value is None and isinstance(key, ConsumerGroupMetadataKey):
            self.registry.forget(group)
        else:
            group.replay(record)

    # ConsumerGroupHeartbeat

    def heartbeat(self, request: ConsumerGroupHeartbeatRequest, caller: Caller, steady_ms: int) -> Decision:
        check_request(request, caller.api_version, self.assignors)
        if request.member_epoch < JOIN_EPOCH:
            return self._leave(request, steady_ms)
        known = self.registry.groups.get(request.group_id)
        records: list[Record] = []
        group = known if isinstance(known, ConsumerGroup) else self.open_group(known, request, records)
        self.check_room(group, request.member_id)
        reported = reported_partitions(request)
        change = GroupChange(group, steady_ms, records, sees_topic=caller.sees_topic)
        replaced: ConsumerMember | None = None
        if request.instance_id is None:
            member = self._dynamic_member(group, request, reported)
        else:
            member, replaced = self._static_member(change, request, reported)
        updated = _updated(member, request, caller)
        moved = self.advance(change, member, updated, replaced, reported)
        self.renew_session(group, moved, steady_ms)
        response = ConsumerGroupHeartbeatResponse(
            member_id=moved.member_id,
            member_epoch=moved.member_epoch,
            heartbeat_interval_ms=self.heartbeat_interval_ms(group),
        )
        if (
            request.member_epoch == JOIN_EPOCH
            or _is_full(request)
            or not _has_same_partitions(moved.assigned, member.assigned)
        ):
            response.assignment = _assignment(moved.assigned)
        answers = () if known is group else self.finish_upgrade(known, steady_ms)
        return change.decision(response, answers)

    def _dynamic_member(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, reported: Reported
    ) -> ConsumerMember:
        # Before version 1 the coordinator gives a new member its id.
        member_id = request.member_id or self.environment.new_member_id(None)
        member = group.members.get(member_id)
        if member is not None:
            check_member_epoch(member, request.member_epoch, reported)
            return member
        if request.member_epoch != JOIN_EPOCH:
            raise _unknown_member(member_id, group)
        return ConsumerMember(member_id)

    def _static_member(
        self, change: GroupChange, request: ConsumerGroupHeartbeatRequest, reported: Reported
    ) -> tuple[ConsumerMember, ConsumerMember | None]:
        """Returns the member, and the static member that it replaces."""
        group, instance_id = change.group, request.instance_id
        assert instance_id is not None
        known = group.members.get(group.static_member_ids.get(instance_id, ""))
        if request.member_epoch != JOIN_EPOCH:
            known = _check_static(known, instance_id, request.member_id)
            check_member_epoch(known, request.member_epoch, reported)
            return known, None
        member_id = request.member_id or self.environment.new_member_id(None)
        if known is None:
            return group.members.get(member_id) or ConsumerMember(member_id), None
        if not known.is_classic and known.member_epoch != STATIC_LEAVE_EPOCH:
            raise ApiError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"member {known.member_id} has instance id {instance_id} and has not given it up",
            )
        return self.replace_static_member(change, known, member_id), known

    def _leave(self, request: ConsumerGroupHeartbeatRequest, steady_ms: int) -> Decision:
        group = self.registry.groups.get(request.group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {request.group_id}")
        if not isinstance(group, ConsumerGroup):
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"group {request.group_id} does not use the consumer protocol"
            )
        response = ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch
        )
        member: ConsumerMember | None
        if request.instance_id is None:
            member = group.members.get(request.member_id)
            if member is None:
                raise _unknown_member(request.member_id, group)
        else:
            member = group.members.get(group.static_member_ids.get(request.instance_id, ""))
            member = _check_static(member, request.instance_id, request.member_id)
            if request.member_epoch == STATIC_LEAVE_EPOCH:
                away = replace(member, member_epoch=STATIC_LEAVE_EPOCH, pending_revocation=NOTHING_OWNED)
                record = current_assignment_record(group.group_id, away)
                return Decision([record], response)
        return self.remove(group, [member], f"member {member.member_id} left", steady_ms, response)

    # Other events and queries.

    def describe(self, group_id: str) -> ConsumerGroupDescribeDescribedGroup:
        group = self.registry.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
        if not isinstance(group, ConsumerGroup):
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} does not use the consumer protocol"
            )
        return describe_group(group, self.topics, self.assignors[0])

    def topics_changed(self, change: TopicsChanged) -> None:
        """Note changed topics. The next heartbeat in each group decides whether its assignment must change."""
        names = sorted(change.names.union(change.deleted))
        for group in self.registry.groups.values():
            if not isinstance(group, ConsumerGroup):
                continue
            if group.has_regexes:
                group.are_regexes_stale = True
            if group.changed_topics is not None:
                group.changed_topics.update(
                    dict.fromkeys(name for name in names if group.subscribes_to(name))
                )


def _updated(
    member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, caller: Caller
) -> ConsumerMember:
    """Returns the member with the fields of the request; the same object when nothing changes."""
    says_nothing = (
        request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.rebalance_timeout_ms == -1
        and request.server_assignor is None
        and request.rack_id is None
    )
    is_same_client = member.client_id == caller.client_id and member.client_host == caller.client_host
    if says_nothing and is_same_client and member.classic is None:
        return member
    names = request.subscribed_topic_names
    regex = request.subscribed_topic_regex
    updated = replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        subscribed_topic_names=member.subscribed_topic_names if names is None else tuple(sorted(set(names))),
        subscribed_topic_regex=member.subscribed_topic_regex if regex is None else regex,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms
            if request.rebalance_timeout_ms == -1
            else request.rebalance_timeout_ms
        ),
        server_assignor=member.server_assignor
        if request.server_assignor is None
        else request.server_assignor,
        classic=None,
    )
    return member if updated == member else updated


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    return (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


def _has_same_partitions(one: OwnedPartitions, other: OwnedPartitions) -> bool:
    if one is other:
        return True
    return one.keys() == other.keys() and all(one[topic].keys() == other[topic].keys() for topic in one)


def _assignment(assigned: OwnedPartitions) -> ConsumerGroupHeartbeatAssignment:
    return ConsumerGroupHeartbeatAssignment(
        topic_partitions=[
            ConsumerGroupHeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in assigned.items()
        ]
    )


def _check_static(member: ConsumerMember | None, instance_id: str, member_id: str) -> ConsumerMember:
    if member is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member of the group has instance id {instance_id}")
    if member.member_id != member_id:
        raise ApiError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"instance id {instance_id} belongs to member {member.member_id} now, not to {member_id}",
        )
    return member


def _unknown_member(member_id: str, group: ConsumerGroup) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id} has no member {member_id}")
