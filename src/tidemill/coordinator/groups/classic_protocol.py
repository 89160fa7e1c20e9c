"""The requests of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Each method decides about one request. A join waits until its rebalance completes, a sync until the leader has sent the
assignment. The decision that completes a phase answers all requests that waited for it. The two decisions that write
(the leader's sync, a static member's return) take effect when their record is replayed; `on_failed` undoes them when
it could not be written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidemill.coordinator.groups.classic import ClassicGroup
from tidemill.coordinator.groups.classic_member import ClassicMember, Waiting
from tidemill.coordinator.groups.group import NO_MEMBER_ID, Answer, Decision
from tidemill.coordinator.groups.rebalance import Outcome, Rebalances, join_error, names_of
from tidemill.coordinator.shard import Caller
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.groups import (
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
from tidemill.protocol.coordinator_responses import leave_response, leaving_members

# The first version of JoinGroup in which a new member gets an id and joins again with it (KIP-394).
MEMBER_ID_REQUIRED_SINCE = 4
_SKIP_ASSIGNMENT_SINCE = 9


# Protocols, rebalance timeout and session timeout.
_JoinedWith = tuple[Sequence[JoinGroupRequestProtocol], int, int]


class ClassicProtocol(Rebalances):
    # JoinGroup

    def join(
        self,
        group: ClassicGroup | None,
        request: JoinGroupRequest,
        caller: Caller,
        token: int,
        steady_ms: int,
    ) -> Decision:
        """Decide a JoinGroup request. `group` is None when it does not exist; a first join creates it."""
        if not (
            self.config.group_min_session_timeout_ms
            <= request.session_timeout_ms
            <= self.config.group_max_session_timeout_ms
        ):
            return Decision(reply=join_error(request.member_id, ErrorCode.INVALID_SESSION_TIMEOUT))
        is_unknown = request.member_id == NO_MEMBER_ID
        is_new_group = group is None
        if group is None:
            if not is_unknown:
                return Decision(reply=join_error(request.member_id, ErrorCode.UNKNOWN_MEMBER_ID))
            group = ClassicGroup(request.group_id, self.environment)
            group.state_timestamp_ms = steady_ms
            self._groups[group.group_id] = group
        out = Outcome()
        waiting = Waiting(token, caller.api_version)
        if not self._has_room(group, request.member_id):
            out.answer(token, join_error(NO_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED))
            if request.member_id in group.members:
                group.note_cause(f"member {request.member_id} found no room")
                self.drop(out, group, request.member_id, ErrorCode.GROUP_MAX_SIZE_REACHED)
                self.complete_join_if_all_joined(out, group, steady_ms)
        elif not group.supports_protocols(request.protocol_type, request.protocols):
            out.answer(token, join_error(request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif is_unknown:
            self._join_unknown(out, group, request, caller, waiting, steady_ms)
        else:
            self._join_known(out, group, request, caller, waiting, steady_ms)
        if is_new_group:
            self._make_known(out, group)
        return out.decision()

    def _make_known(self, out: Outcome, group: ClassicGroup) -> None:
        """Write the record of a new group, although it has no generation: its members and offsets need a group."""
        assert not out.records, group.group_id
        out.records.append(group.empty_record())

        def forget(error: ErrorCode) -> Decision:
            group.cancel_timers()
            self._groups.pop(group.group_id, None)
            return Decision(answers=[Answer(token, ApiError(error)) for token in group.waiting_tokens()])

        out.on_failed = forget

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        if group.is_empty:
            return True
        member = group.members.get(member_id)
        if group.is_preparing:
            # Only members that have joined count, so a lowered limit removes those that return last.
            has_joined = member is not None and member.waiting_join is not None
            return has_joined or group.waiting_joins < self.config.group_max_size
        return member is not None or len(group.members) < self.config.group_max_size

    def _join_unknown(
        self,
        out: Outcome,
        group: ClassicGroup,
        request: JoinGroupRequest,
        caller: Caller,
        waiting: Waiting,
        steady_ms: int,
    ) -> None:
        instance_id = request.group_instance_id
        member_id = self.environment.new_member_id(caller.client_id if instance_id is None else instance_id)
        if instance_id is not None:
            current_id = group.static_member_ids.get(instance_id)
            if current_id is None:
                self._add(out, group, member_id, request, caller, waiting, steady_ms)
            else:
                member = group.members[current_id]
                self._static_member_returns(out, group, member, member_id, request, waiting, steady_ms)
        elif caller.api_version >= MEMBER_ID_REQUIRED_SINCE:
            # Otherwise each retry of a client whose first join times out would leave a member behind.
            group.pending_joins.add(member_id)
            self.set_session(group, member_id, steady_ms, request.session_timeout_ms)
            out.answer(waiting.token, join_error(member_id, ErrorCode.MEMBER_ID_REQUIRED))
        else:
            self._add(out, group, member_id, request, caller, waiting, steady_ms)

    def _join_known(
        self,
        out: Outcome,
        group: ClassicGroup,
        request: JoinGroupRequest,
        caller: Caller,
        waiting: Waiting,
        steady_ms: int,
    ) -> None:
        member_id = request.member_id
        if member_id in group.pending_joins and request.group_instance_id is None:
            self._add(out, group, member_id, request, caller, waiting, steady_ms)
            return
        try:
            member = group.check_member(member_id, request.group_instance_id)
        except ApiError as error:
            out.answer(waiting.token, join_error(member_id, error.code))
            return
        has_changed = not member.has_same_protocols(request.protocols)
        is_leader = group.leader_id == member_id
        reason = _reason(request.reason)
        if group.is_preparing:
            self._rejoin(out, group, member, request, waiting)
            self.complete_join_if_all_joined(out, group, steady_ms)
        elif has_changed:
            self._rejoin(out, group, member, request, waiting)
            self.prepare(out, group, f"member {member_id} joined with other metadata{reason}", steady_ms)
        elif group.is_stable and is_leader:
            # By joining again the leader reports a change that the members' metadata does not show, such as new partitions.
            self._rejoin(out, group, member, request, waiting)
            self.prepare(out, group, f"leader {member_id} joined again{reason}", steady_ms)
        else:
            # It missed the response to its join, so the present generation is sent again.
            shows_members = is_leader and group.is_completing
            out.answer(waiting.token, self.join_response(group, member_id, shows_members=shows_members))

    def _add(
        self,
        out: Outcome,
        group: ClassicGroup,
        member_id: str,
        request: JoinGroupRequest,
        caller: Caller,
        waiting: Waiting,
        steady_ms: int,
    ) -> None:
        member = ClassicMember(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client_id=caller.client_id,
            client_host=caller.client_host,
            rebalance_timeout_ms=_rebalance_timeout_ms(request),
            session_timeout_ms=request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=request.protocols,
            waiting_join=waiting,
            is_new=True,
        )
        if group.is_initial_rebalance:
            group.is_new_member_added = True
        group.add(member)
        self.set_session(group, member_id, steady_ms, self.config.new_member_join_timeout_ms)
        cause = f"member {member_id} joined{_reason(request.reason)}"
        self.prepare_or_complete(out, group, cause, steady_ms)

    def _rejoin(
        self,
        out: Outcome,
        group: ClassicGroup,
        member: ClassicMember,
        request: JoinGroupRequest,
        waiting: Waiting,
    ) -> None:
        if member.waiting_join is not None:
            # The client has given up on its first join, or has two in flight. Only one of them can be in the group.
            self.answer_join(
                out, group, member, join_error(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)
            )
        group.update(member, request.protocols, _rebalance_timeout_ms(request), request.session_timeout_ms)
        group.set_waiting_join(member, waiting)

    def _static_member_returns(
        self,
        out: Outcome,
        group: ClassicGroup,
        member: ClassicMember,
        member_id: str,
        request: JoinGroupRequest,
        waiting: Waiting,
        steady_ms: int,
    ) -> None:
        """Fence the old incarnation. A stable group needs no rebalance for this, unless the selected protocol changes."""
        old_leader, old_id = group.leader_id or "", member.member_id
        old = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        self.answer_join(out, group, member, join_error(old_id, ErrorCode.FENCED_INSTANCE_ID))
        self.answer_sync(out, member, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
        self.timers.cancel(group.session_key(old_id))
        group.rename_static_member(member, member_id)
        group.update(member, request.protocols, _rebalance_timeout_ms(request), request.session_timeout_ms)
        self.renew_session(group, member, steady_ms)
        name = f"static member {request.group_instance_id} came back as {member_id}"
        reason = _reason(request.reason)
        if group.is_stable and group.select_protocol() == group.protocol_name:
            group.pending_syncs.discard(old_id)
            out.answer(waiting.token, self._static_response(group, member, waiting, old_leader))
            out.records.append(
                group.to_record({each.member_id: each.assignment for each in group.members.values()})
            )
            out.on_failed = self._undo_return(group, member, old_id, old, steady_ms)
            return
        group.set_waiting_join(member, waiting)
        if group.is_preparing:
            self.complete_join_if_all_joined(out, group, steady_ms)
        else:
            # In CompletingRebalance the leader may know the old id already and would send the assignment for it.
            change = (
                " with another protocol" if group.is_stable else " while the group was completing a rebalance"
            )
            self.prepare(out, group, name + change + reason, steady_ms)

    def _static_response(
        self, group: ClassicGroup, member: ClassicMember, waiting: Waiting, old_leader: str
    ) -> JoinGroupResponse:
        is_leader = group.leader_id == member.member_id
        if waiting.api_version >= _SKIP_ASSIGNMENT_SINCE:
            response = self.join_response(group, member.member_id, shows_members=is_leader)
            response.skip_assignment = is_leader
            return response
        # Before version 9 a returned leader gets the old leader's id. With its own it would compute an assignment.
        response = self.join_response(group, member.member_id, shows_members=False)
        response.leader = old_leader
        return response

    def _undo_return(
        self, group: ClassicGroup, member: ClassicMember, old_id: str, old: _JoinedWith, steady_ms: int
    ) -> Callable[[ErrorCode], None]:
        def undo(_error: ErrorCode) -> None:
            protocols, rebalance_timeout_ms, session_timeout_ms = old
            self.timers.cancel(group.session_key(member.member_id))
            group.rename_static_member(member, old_id)
            group.update(member, protocols, rebalance_timeout_ms, session_timeout_ms)
            self.renew_session(group, member, steady_ms)

        return undo

    # SyncGroup

    def sync(
        self, group: ClassicGroup, request: SyncGroupRequest, caller: Caller, token: int, steady_ms: int
    ) -> Decision:
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        if _differ(request.protocol_type, group.group_protocol_type) or _differ(
            request.protocol_name, group.protocol_name
        ):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.is_preparing:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
        out = Outcome()
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            self.timers.cancel(group.sync_key)
        if group.is_stable:
            out.answer(token, self.sync_response(group, member.assignment))
            return out.decision()
        if member.waiting_sync is not None:
            self.answer_sync(out, member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        member.waiting_sync = Waiting(token, caller.api_version)
        if group.leader_id == member.member_id:
            self._assign(out, group, request, steady_ms)
        return out.decision()

    def _assign(self, out: Outcome, group: ClassicGroup, request: SyncGroupRequest, steady_ms: int) -> None:
        """Store the leader's assignment; the group is stable once it is written. Members that it omits get no partitions."""
        sent = {each.member_id: each.assignment for each in request.assignments}
        assignments = {member_id: sent.get(member_id, b"") for member_id in group.members}
        out.records.append(group.to_record(assignments))
        for member in group.members.values():
            if member.waiting_sync is not None:
                response = self.sync_response(group, assignments[member.member_id])
                self.answer_sync(out, member, response)
                self.renew_session(group, member, steady_ms)
        generation = group.generation

        def rebalance_again(error: ErrorCode) -> Decision | None:
            if not group.is_completing or group.generation != generation:
                return None
            again = Outcome()
            self.prepare(again, group, f"the assignment could not be stored: {error.name}", steady_ms)
            return again.decision()

        out.on_failed = rebalance_again

    # Heartbeat and LeaveGroup

    def heartbeat(self, group: ClassicGroup, request: HeartbeatRequest, steady_ms: int) -> Decision:
        member = group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        self.renew_session(group, member, steady_ms)
        error = ErrorCode.REBALANCE_IN_PROGRESS if group.is_preparing else ErrorCode.NONE
        return Decision(reply=HeartbeatResponse(error_code=error))

    def offset_committed(self, group: ClassicGroup, member_id: str, steady_ms: int) -> None:
        """Renew the session on a commit, in the states in which Kafka does so."""
        member = group.members.get(member_id)
        if member is not None and (group.is_stable or group.is_preparing):
            self.renew_session(group, member, steady_ms)

    def leave(
        self, group: ClassicGroup, request: LeaveGroupRequest, caller: Caller, token: int, steady_ms: int
    ) -> Decision:
        out = Outcome()
        identities = leaving_members(request, caller.api_version)
        left: list[str] = []
        answers: list[MemberResponse] = []
        for identity in identities:
            answer = MemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id
            )
            try:
                left.append(self._leave_one(out, group, identity))
            except ApiError as error:
                answer.error_code = error.code
            answers.append(answer)
        if left:
            reasons = {each.reason for each in identities if each.reason}
            reason = _reason("; ".join(sorted(reasons)))
            cause = f"member {names_of(left)} left{reason}"
            if not group.is_empty:
                self.prepare_or_complete(out, group, cause, steady_ms)
        out.answer(token, leave_response(answers, caller.api_version))
        return out.decision()

    def _leave_one(self, out: Outcome, group: ClassicGroup, identity: MemberIdentity) -> str:
        member_id = identity.member_id
        if member_id == NO_MEMBER_ID:
            # An admin client removes a static member without knowing its present member id.
            current_id = group.static_member_ids.get(identity.group_instance_id or "")
            if identity.group_instance_id is None or current_id is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            member_id = current_id
        elif member_id not in group.pending_joins:
            group.check_member(member_id, identity.group_instance_id)
        self.drop(out, group, member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return member_id


def _differ(told: str | None, known: str | None) -> bool:
    return told is not None and known is not None and told != known


def _reason(text: str | None) -> str:
    """Returns the client's reason for joining or leaving in brackets; an empty text without one."""
    return f" ({text})" if text else ""


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Returns the rebalance timeout. Version 0 has none and uses the session timeout."""
    if request.rebalance_timeout_ms < 0:
        return request.session_timeout_ms
    return request.rebalance_timeout_ms
