"""Online migration between the classic and the consumer protocol (KIP-848), one member at a time and without downtime.

The first member that uses the consumer protocol turns a classic group of consumers into a consumer group. The classic
members continue inside it: REBALANCE_IN_PROGRESS in a heartbeat response makes them join again, a join counts as their
consumer heartbeat, and the following sync returns their assignment. When the last member that uses the consumer protocol
has left, the group becomes classic again. `group.consumer.migration.policy` allows either direction, both or none. A
group without members can always change its kind.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from tidemill.coordinator.consumer_groups.change import GroupChange
from tidemill.coordinator.consumer_groups.conversion import (
    classic_metadata,
    common_protocol,
    downgrade_records,
    upgrade_records,
)
from tidemill.coordinator.consumer_groups.embedded import (
    by_topic_id,
    decode_subscription,
    encode_assignment,
    version_of,
)
from tidemill.coordinator.consumer_groups.machine import ConsumerGroup
from tidemill.coordinator.consumer_groups.member import ConsumerMember, MemberState
from tidemill.coordinator.consumer_groups.membership import REMOVAL_RETRY_MS, ConsumerMembership
from tidemill.coordinator.consumer_groups.records import (
    current_assignment_record,
    member_record,
    member_tombstones,
    target_record,
)
from tidemill.coordinator.groups.classic import ClassicGroup
from tidemill.coordinator.groups.classic_protocol import MEMBER_ID_REQUIRED_SINCE
from tidemill.coordinator.groups.group import (
    CONSUMER_PROTOCOL_TYPE,
    NO_MEMBER_ID,
    Answer,
    Decision,
    Group,
    RebalanceEvent,
)
from tidemill.coordinator.groups.rebalance import join_error, names_of
from tidemill.coordinator.records import Record, group_metadata_tombstone
from tidemill.coordinator.shard import Caller
from tidemill.errors import ApiError, ErrorCode, ProtocolError
from tidemill.machine import NO_REPLY
from tidemill.protocol.api.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidemill.protocol.coordinator_responses import LEAVE_BATCH_SINCE, leave_response


class Migration(ConsumerMembership):
    # From classic to consumer.

    def open_group(
        self, group: Group | None, request: ConsumerGroupHeartbeatRequest, records: list[Record]
    ) -> ConsumerGroup:
        """Returns a consumer group for a joining member: new, or converted from a classic one. It is not registered yet."""
        group_id, joins = request.group_id, request.member_epoch == 0
        if group is None:
            if not joins:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
            return ConsumerGroup(group_id, self.environment)
        if not joins or not isinstance(group, ClassicGroup):
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} does not use the consumer protocol"
            )
        if group.is_empty:
            records.append(group_metadata_tombstone(group_id))
            return ConsumerGroup(group_id, self.environment)
        self._check_upgrade(group)
        converted = ConsumerGroup(group_id, self.environment)
        records += upgrade_records(group, self.topics)
        for record in records[1:]:
            converted.replay(record)
        return converted

    def _allows(self, direction: str) -> bool:
        return self.config.group_consumer_migration_policy.lower() in (direction, "bidirectional")

    def _check_upgrade(self, group: ClassicGroup) -> None:
        why = None
        if not self._allows("upgrade"):
            why = "group.consumer.migration.policy forbids it"
        elif not group.uses_consumer_protocol:
            why = "its members are not consumers"
        elif len(group.members) > self.config.group_consumer_max_size:
            why = "it has more members than group.consumer.max.size"
        if why is not None:
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"classic group {group.group_id} cannot become a consumer group: {why}",
            )

    def finish_upgrade(self, group: Group | None, steady_ms: int) -> list[Answer]:
        """Answer the requests that wait in `group`, as the last step of the decision that converts it."""
        if not isinstance(group, ClassicGroup):
            return []
        self._keep_events(group.group_id, self.environment.events_of(group.group_id), steady_ms)
        return self.registry.classic.release(group, ErrorCode.REBALANCE_IN_PROGRESS)

    def _keep_events(self, group_id: str, events: Sequence[RebalanceEvent], steady_ms: int) -> None:
        """Keep the events of a group that changes its kind; its tombstone would remove them."""

        def keep(_steady_ms: int) -> None:
            if group_id not in self.registry.groups:
                return
            known = self.environment.events_of(group_id)
            self.environment.forget_events(group_id)
            for event in [*(event for event in events if event not in known), *known]:
                self.environment.record_event(event)

        self.timers.set(("converted", group_id), steady_ms, keep)

    # From consumer to classic.

    def downgrade_without(
        self,
        group: ConsumerGroup,
        members: Collection[ConsumerMember],
        cause: str,
        steady_ms: int,
        reply: Any,
    ) -> Decision | None:
        names = {member.member_id for member in members}
        remaining = [each for each in group.members.values() if each.member_id not in names]
        if all(member.is_classic for member in members) or not self._may_downgrade(remaining):
            return None
        return self._downgrade(group, remaining, cause, steady_ms, reply)

    def _schedule_downgrade(self, group: ConsumerGroup, at_ms: int) -> None:
        """A classic member replaces the last member that used the consumer protocol."""
        group_id = group.group_id

        def downgrade(steady_ms: int) -> Decision | None:
            group = self.registry.groups.get(group_id)
            if not isinstance(group, ConsumerGroup):
                return None
            members = list(group.members.values())
            if not self._may_downgrade(members):
                return None
            decision = self._downgrade(
                group, members, "a classic member replaced the last other one", steady_ms
            )
            retry_ms = steady_ms + REMOVAL_RETRY_MS
            return replace(decision, on_failed=lambda _error: self._schedule_downgrade(group, retry_ms))

        self.timers.set(group.downgrade_key, at_ms, downgrade)

    def _downgrade(
        self,
        group: ConsumerGroup,
        remaining: Sequence[ConsumerMember],
        cause: str,
        steady_ms: int,
        reply: Any = NO_REPLY,
    ) -> Decision:
        """Convert to a classic group. The group epoch stays; members that have reached it join again after a heartbeat."""
        group_id = group.group_id
        cause += ": the group is a classic one again"
        self._keep_events(group_id, self.environment.events_of(group_id), steady_ms)
        self.timers.set(
            ("downgraded", group_id),
            steady_ms,
            lambda steady_ms: self.registry.classic.rebalance(group_id, cause, steady_ms),
        )
        return Decision(downgrade_records(group, remaining, self.topics, steady_ms), reply)

    def _may_downgrade(self, members: Collection[ConsumerMember]) -> bool:
        return (
            self._allows("downgrade")
            and 0 < len(members) <= self.config.group_max_size
            and all(member.is_classic for member in members)
            and common_protocol(members) is not None
        )

    # Members of both protocols.

    def check_room(self, group: ConsumerGroup, member_id: str) -> None:
        size_max = self.config.group_consumer_max_size
        if len(group.members) >= size_max and member_id not in group.members:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"the group has {size_max} members, and may have no more",
            )

    def replace_static_member(
        self, change: GroupChange, known: ConsumerMember, member_id: str
    ) -> ConsumerMember:
        """Returns a static member with a new id. It keeps its partitions and starts at epoch 0."""
        group = change.group
        member = replace(known, member_id=member_id, member_epoch=0, previous_member_epoch=0)
        if member_id != known.member_id:
            change.records += member_tombstones(group.group_id, known.member_id)
        change.records += [
            member_record(group.group_id, member),
            target_record(group.group_id, member_id, group.target_of(known)),
            current_assignment_record(group.group_id, member),
        ]
        return member

    # Classic members of consumer groups.

    def classic_join(
        self, group: Group, request: JoinGroupRequest, caller: Caller, token: int, steady_ms: int
    ) -> Decision:
        assert isinstance(group, ConsumerGroup)
        if group.is_empty:
            return self._join_as_classic(group, request, caller, token, steady_ms)
        least_ms, most_ms = self.config.group_min_session_timeout_ms, self.config.group_max_session_timeout_ms
        if not least_ms <= request.session_timeout_ms <= most_ms:
            return Decision(reply=join_error(request.member_id, ErrorCode.INVALID_SESSION_TIMEOUT))
        is_unknown = request.member_id == NO_MEMBER_ID
        member_id = self.environment.new_member_id(None) if is_unknown else request.member_id
        self.check_room(group, member_id)
        if not _supports_protocols(group, request):
            return Decision(reply=join_error(request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        needs_id = caller.api_version >= MEMBER_ID_REQUIRED_SINCE and request.group_instance_id is None
        if is_unknown and needs_id:
            return Decision(reply=join_error(member_id, ErrorCode.MEMBER_ID_REQUIRED))
        try:
            subscription = decode_subscription(request.protocols[0].metadata)
        except ProtocolError:
            return Decision(reply=join_error(request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        change = GroupChange(group, steady_ms, sees_topic=caller.sees_topic)
        member, replaced = self._joining_member(change, request, member_id, is_unknown=is_unknown)
        updated = _joined(member, request, subscription, caller)
        reported = by_topic_id(subscription.owned_partitions, self.topics)
        moved = self.advance(change, member, updated, replaced, reported)
        self._set_classic_timers(group, moved, steady_ms)
        if replaced is not None and not replaced.is_classic:
            self._schedule_downgrade(group, steady_ms)
        response = JoinGroupResponse(
            member_id=moved.member_id,
            generation_id=moved.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0].name,
        )
        return change.decision(response)

    def _join_as_classic(
        self, group: ConsumerGroup, request: JoinGroupRequest, caller: Caller, token: int, steady_ms: int
    ) -> Decision:
        """Replace an empty consumer group by a classic one, once a member has joined that."""
        groups = self.registry.groups
        decision = self.registry.classic.join(None, request, caller, token, steady_ms)
        if groups.get(group.group_id) is group:
            return decision
        self._keep_events(group.group_id, self.environment.events_of(group.group_id), steady_ms)
        undo = decision.on_failed

        def restore(error: ErrorCode) -> Decision | None:
            undone = None if undo is None else undo(error)
            groups[group.group_id] = group
            return undone

        records = [*group.deletion_records(), *decision.records]
        return replace(decision, records=records, on_failed=restore)

    def _joining_member(
        self, change: GroupChange, request: JoinGroupRequest, member_id: str, *, is_unknown: bool
    ) -> tuple[ConsumerMember, ConsumerMember | None]:
        group, instance_id = change.group, request.group_instance_id
        if instance_id is None:
            return group.members.get(member_id) or ConsumerMember(member_id), None
        known = group.members.get(group.static_member_ids.get(instance_id, ""))
        if not is_unknown:
            return self._classic_member(group, member_id, instance_id, must_be_classic=False), None
        if known is None:
            return ConsumerMember(member_id), None
        return self.replace_static_member(change, known, member_id), known

    def _set_classic_timers(self, group: ConsumerGroup, member: ConsumerMember, steady_ms: int) -> None:
        self.timers.cancel(group.join_key(member.member_id))
        self.timers.cancel(group.rebalance_key(member.member_id))
        self.renew_session(group, member, steady_ms)
        self._set_limit(group, member, group.sync_key(member.member_id), "did not sync", steady_ms)

    def _set_limit(
        self,
        group: ConsumerGroup,
        member: ConsumerMember,
        key: tuple[str, str, str],
        what: str,
        steady_ms: int,
    ) -> None:
        group_id, member_id, timeout_ms = group.group_id, member.member_id, member.rebalance_timeout_ms

        def end(steady_ms: int) -> Decision | None:
            group, member = self.find(group_id, member_id)
            if group is None or member is None:
                return None
            return self.remove_late(
                group, member, f"member {member_id} {what} within {timeout_ms} ms", steady_ms
            )

        self.timers.set(key, steady_ms + timeout_ms, end)

    def _ask_to_rejoin(self, group: ConsumerGroup, member: ConsumerMember, steady_ms: int) -> None:
        key = group.join_key(member.member_id)
        if not self.timers.is_set(key):
            self._set_limit(group, member, key, "did not join", steady_ms)

    def classic_sync(self, group: Group, request: SyncGroupRequest, steady_ms: int) -> Decision:
        assert isinstance(group, ConsumerGroup)
        member = self._classic_member(group, request.member_id, request.group_instance_id)
        assert member.classic is not None
        protocol = member.classic.supported_protocols[0]
        if request.generation_id != member.member_epoch:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
            None,
            protocol.name,
        ):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.group_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._ask_to_rejoin(group, member, steady_ms)
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        self.timers.cancel(group.sync_key(member.member_id))
        self.renew_session(group, member, steady_ms)
        response = SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=encode_assignment(member.assigned, self.topics, version_of(protocol.metadata)),
        )
        return Decision(reply=response)

    def classic_heartbeat(self, group: Group, request: HeartbeatRequest, steady_ms: int) -> Decision:
        assert isinstance(group, ConsumerGroup)
        member = self._classic_member(group, request.member_id, request.group_instance_id)
        if request.generation_id != member.member_epoch:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        self.renew_session(group, member, steady_ms)
        must_rejoin = (
            member.member_epoch < group.group_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.is_waiting_for_others(member))
        )
        if must_rejoin:
            self._ask_to_rejoin(group, member, steady_ms)
        error = ErrorCode.REBALANCE_IN_PROGRESS if must_rejoin else ErrorCode.NONE
        return Decision(reply=HeartbeatResponse(error_code=error))

    def classic_leave(self, group: Group, request: LeaveGroupRequest, steady_ms: int) -> Decision:
        assert isinstance(group, ConsumerGroup)
        identities = request.members or [MemberIdentity(member_id=request.member_id)]
        left: dict[str, ConsumerMember] = {}
        responses = []
        for each in identities:
            member_response = MemberResponse(
                member_id=each.member_id, group_instance_id=each.group_instance_id
            )
            try:
                member = self._leaving_member(group, each)
                left[member.member_id] = member
            except ApiError as error:
                member_response.error_code = error.code
            responses.append(member_response)
        version = LEAVE_BATCH_SINCE if request.members else LEAVE_BATCH_SINCE - 1
        response = leave_response(responses, version)
        if not left:
            return Decision(reply=response)
        return self.remove(group, left.values(), f"member {names_of(list(left))} left", steady_ms, response)

    def _leaving_member(self, group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if instance_id is not None and member_id == NO_MEMBER_ID:
            # An admin client removes a static member without knowing its present member id.
            member_id = group.static_member_ids.get(instance_id, NO_MEMBER_ID)
        return self._classic_member(group, member_id, instance_id, must_be_classic=False)

    def _classic_member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, *, must_be_classic: bool = True
    ) -> ConsumerMember:
        if instance_id is not None:
            known_id = group.static_member_ids.get(instance_id)
            if known_id is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if known_id != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        member = group.members.get(member_id)
        if member is None or (must_be_classic and not member.is_classic):
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member


def _supports_protocols(group: ConsumerGroup, request: JoinGroupRequest) -> bool:
    """Whether all classic members of the group, if there are any, support one and the same of the protocols."""
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not request.protocols:
        return False
    classic = [member.classic for member in group.members.values() if member.classic is not None]
    return any(
        all(any(each.name == protocol.name for each in one.supported_protocols) for one in classic)
        for protocol in request.protocols
    )


def _joined(
    member: ConsumerMember,
    request: JoinGroupRequest,
    subscription: ConsumerProtocolSubscription,
    caller: Caller,
) -> ConsumerMember:
    rebalance_timeout_ms = request.rebalance_timeout_ms
    if rebalance_timeout_ms < 0:
        # Version 0 has none and uses the session timeout.
        rebalance_timeout_ms = request.session_timeout_ms
    protocols: list[JoinGroupRequestProtocol] = request.protocols
    updated = replace(
        member,
        instance_id=request.group_instance_id
        if request.group_instance_id is not None
        else member.instance_id,
        rack_id=subscription.rack_id if subscription.rack_id is not None else member.rack_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        subscribed_topic_regex="",
        rebalance_timeout_ms=rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic=classic_metadata(request.session_timeout_ms, protocols),
    )
    return member if updated == member else updated
