"""The rebalance of a classic group: which members it waits for, when a generation begins, which members are dropped.

A rebalance has two phases. In the join phase every member has to join again; it ends when all have, or when the
longest rebalance timeout of the members is over. Then the next generation begins and all waiting joins are answered.
In the sync phase the leader computes the assignment and sends it with its sync. classic_protocol.py handles the
requests; this module moves the group from phase to phase.

There are three kinds of timers. `join` ends the join phase, `sync` removes members that did not sync, and `session`
removes a member without heartbeats. A member that waits for a response counts as alive. A new one is the exception: it
cannot send heartbeats yet, so its first join may wait for a limited time only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tidemill.config import GroupsConfig
from tidemill.coordinator.groups.classic import ClassicGroup, ClassicState
from tidemill.coordinator.groups.classic_member import ClassicMember
from tidemill.coordinator.groups.group import (
    NO_MEMBER_ID,
    Answer,
    Decision,
    Environment,
    Group,
    RebalanceEvent,
)
from tidemill.coordinator.records import Record
from tidemill.errors import ErrorCode
from tidemill.protocol.api.groups import JoinGroupResponse, SyncGroupResponse

_NAMED_MAX = 3


class Outcome:
    """A decision that is being built."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.answers: list[Answer] = []
        self.effects: list[RebalanceEvent] = []
        self.on_failed: Callable[[ErrorCode], Decision | None] | None = None

    def answer(self, token: int, response: object) -> None:
        self.answers.append(Answer(token, response))

    def decision(self) -> Decision:
        return Decision(self.records, answers=self.answers, effects=self.effects, on_failed=self.on_failed)


class Rebalances:
    def __init__(self, environment: Environment, groups: dict[str, Group]) -> None:
        self.environment = environment
        self.timers = environment.timers
        self._groups = groups

    @property
    def config(self) -> GroupsConfig:
        return self.environment.config

    def start_sessions(self, group: ClassicGroup, steady_ms: int) -> None:
        """Start a full session for each member of a group that was loaded."""
        for member in group.members.values():
            self.renew_session(group, member, steady_ms)

    def rebalance(self, group_id: str, cause: str, steady_ms: int) -> Decision | None:
        """Start a rebalance of a classic group for an external cause."""
        group = self._groups.get(group_id)
        if not isinstance(group, ClassicGroup) or group.is_empty or group.is_preparing:
            return None
        out = Outcome()
        self.prepare(out, group, cause, steady_ms)
        return out.decision()

    def rebalance_readers_of(self, removed: Iterable[str], steady_ms: int) -> Decision:
        """Start a rebalance of each group that reads one of these topics, which have lost partitions.

        Some clients do not watch the partitions of a topic. Without a new generation such a member keeps its position in a
        partition that is gone, and continues there in the next partition with that number: it would skip records.
        """
        out = Outcome()
        topics = sorted(removed)
        for group in self._groups.values() if topics else ():
            if not isinstance(group, ClassicGroup) or group.is_empty or group.is_preparing:
                continue
            topic = next((each for each in topics if group.subscribes_to(each)), None)
            if topic is not None:
                self.prepare(out, group, f"{topic} has fewer partitions", steady_ms)
        return out.decision()

    def release(self, group: ClassicGroup, error: ErrorCode) -> list[Answer]:
        """Answer all requests that wait in a group which is about to be converted to another kind."""
        out = Outcome()
        for member in group.members.values():
            self.answer_join(out, group, member, join_error(member.member_id, error))
            self.answer_sync(out, member, SyncGroupResponse(error_code=error))
        return out.answers

    # The phases of a rebalance.

    def prepare_or_complete(self, out: Outcome, group: ClassicGroup, cause: str, steady_ms: int) -> None:
        if group.is_preparing:
            group.note_cause(cause)
            self.complete_join_if_all_joined(out, group, steady_ms)
        else:
            self.prepare(out, group, cause, steady_ms)

    def prepare(self, out: Outcome, group: ClassicGroup, cause: str, steady_ms: int) -> None:
        """Start a rebalance: every member must join again."""
        group.note_cause(cause)
        if group.is_completing:
            for member in group.members.values():
                member.assignment = b""
                self.answer_waiting_sync(out, group, member, ErrorCode.REBALANCE_IN_PROGRESS, steady_ms)
        group.pending_syncs.clear()
        self.timers.cancel(group.sync_key)
        is_initial = group.is_empty
        group.transition(ClassicState.PREPARING_REBALANCE, steady_ms)
        if is_initial:
            delay_ms = self.config.group_initial_rebalance_delay_ms
            self._extend_initial_rebalance(
                group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0), steady_ms
            )
        elif group.have_all_joined:
            self.complete_join(out, group, steady_ms)
        else:
            self._set_join_timeout(group, steady_ms)

    def _extend_initial_rebalance(
        self, group: ClassicGroup, delay_ms: int, remaining_ms: int, steady_ms: int
    ) -> None:
        """Extend the initial rebalance. Members of a new group tend to start together, and one rebalance covers them all."""
        group.is_new_member_added = False

        def end(steady_ms: int) -> Decision:
            out = Outcome()
            if group.is_new_member_added and remaining_ms > 0:
                next_delay_ms = min(self.config.group_initial_rebalance_delay_ms, remaining_ms)
                self._extend_initial_rebalance(
                    group, next_delay_ms, max(remaining_ms - delay_ms, 0), steady_ms
                )
            else:
                self.complete_join(out, group, steady_ms)
            return out.decision()

        self.timers.set(group.join_key, steady_ms + delay_ms, end)

    def _set_join_timeout(self, group: ClassicGroup, steady_ms: int) -> None:
        def end(steady_ms: int) -> Decision:
            out = Outcome()
            self.complete_join(out, group, steady_ms)
            return out.decision()

        self.timers.set(group.join_key, steady_ms + group.rebalance_timeout_ms, end)

    def complete_join_if_all_joined(self, out: Outcome, group: ClassicGroup, steady_ms: int) -> None:
        if group.is_preparing and not group.is_initial_rebalance and group.have_all_joined:
            self.complete_join(out, group, steady_ms)

    def complete_join(self, out: Outcome, group: ClassicGroup, steady_ms: int) -> None:
        """Start the next generation with the members that have joined, and the static members, which may be restarting."""
        self.timers.cancel(group.join_key)
        for member in [each for each in group.members.values() if each.waiting_join is None]:
            if not member.is_static:
                group.note_cause(f"member {member.member_id} did not join in time")
                self.drop(out, group, member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if group.members and not group.elect_leader():
            # Only static members that have not joined are left. They stay until their sessions end.
            self._set_join_timeout(group, steady_ms)
            return
        group.begin_next_generation(steady_ms)
        out.effects.append(self._event(group, steady_ms))
        if group.is_empty:
            # If it cannot be written, the next coordinator loads the last generation, whose members time out.
            out.records.append(group.to_record({}))
            return
        for member in group.members.values():
            is_leader = group.leader_id == member.member_id
            response = self.join_response(group, member.member_id, shows_members=is_leader)
            self.answer_join(out, group, member, response)
            self.renew_session(group, member, steady_ms)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        generation, rebalance_timeout_ms = group.generation, group.rebalance_timeout_ms
        self.timers.set(
            group.sync_key,
            steady_ms + rebalance_timeout_ms,
            lambda steady_ms: self._sync_expired(group, generation, rebalance_timeout_ms, steady_ms),
        )

    def _event(self, group: ClassicGroup, steady_ms: int) -> RebalanceEvent:
        cause, members_before = group.take_causes()
        event = RebalanceEvent(
            group.group_id, group.generation, steady_ms, cause, members_before, len(group.members)
        )
        return self.environment.record_event(event)

    def _sync_expired(
        self, group: ClassicGroup, generation: int, waited_ms: int, steady_ms: int
    ) -> Decision | None:
        if group.generation != generation or not (group.is_completing or group.is_stable):
            return None
        out = Outcome()
        silent = sorted(group.pending_syncs)
        if not silent:
            return None
        for member_id in silent:
            self.drop(out, group, member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        cause = f"no sync within {waited_ms} ms from {names_of(silent)}"
        self.prepare(out, group, cause, steady_ms)
        return out.decision()

    # Sessions

    def renew_session(self, group: ClassicGroup, member: ClassicMember, steady_ms: int) -> None:
        self.set_session(group, member.member_id, steady_ms, member.session_timeout_ms)

    def set_session(self, group: ClassicGroup, member_id: str, steady_ms: int, timeout_ms: int) -> None:
        self.timers.set(
            group.session_key(member_id),
            steady_ms + timeout_ms,
            lambda steady_ms: self._session_expired(group, member_id, timeout_ms, steady_ms),
        )

    def _session_expired(
        self, group: ClassicGroup, member_id: str, timeout_ms: int, steady_ms: int
    ) -> Decision | None:
        out = Outcome()
        if member_id in group.pending_joins:
            group.remove(member_id)
            self.complete_join_if_all_joined(out, group, steady_ms)
            return out.decision()
        member = group.members.get(member_id)
        if member is None or (member.is_waiting and not member.is_new):
            return None
        cause = f"member {member_id} sent no heartbeat for {timeout_ms} ms"
        if member.is_new:
            cause = f"member {member_id} waited for {timeout_ms} ms to join for the first time"
        self.drop(out, group, member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        self.prepare_or_complete(out, group, cause, steady_ms)
        return out.decision()

    def drop(self, out: Outcome, group: ClassicGroup, member_id: str, error: ErrorCode) -> None:
        """Answer the waiting requests of a member and remove it from the group."""
        self.timers.cancel(group.session_key(member_id))
        member = group.members.get(member_id)
        if member is not None:
            self.answer_join(out, group, member, join_error(NO_MEMBER_ID, error))
            self.answer_sync(out, member, SyncGroupResponse(error_code=error))
        group.remove(member_id)

    # Answers

    def answer_join(
        self, out: Outcome, group: ClassicGroup, member: ClassicMember, response: JoinGroupResponse
    ) -> None:
        waiting = member.waiting_join
        if waiting is not None:
            group.set_waiting_join(member, None)
            out.answer(waiting.token, response)

    def answer_sync(self, out: Outcome, member: ClassicMember, response: SyncGroupResponse) -> None:
        waiting = member.waiting_sync
        if waiting is not None:
            member.waiting_sync = None
            out.answer(waiting.token, response)

    def answer_waiting_sync(
        self, out: Outcome, group: ClassicGroup, member: ClassicMember, error: ErrorCode, steady_ms: int
    ) -> None:
        if member.waiting_sync is not None:
            self.answer_sync(out, member, SyncGroupResponse(error_code=error))
            self.renew_session(group, member, steady_ms)

    def join_response(self, group: ClassicGroup, member_id: str, *, shows_members: bool) -> JoinGroupResponse:
        return JoinGroupResponse(
            generation_id=group.generation,
            protocol_type=group.group_protocol_type,
            protocol_name=group.protocol_name,
            leader=group.leader_id or "",
            member_id=member_id,
            members=group.join_response_members() if shows_members else [],
        )

    def sync_response(self, group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=group.group_protocol_type, protocol_name=group.protocol_name, assignment=assignment
        )


def join_error(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(member_id=member_id, error_code=error, protocol_name=None)


def names_of(member_ids: Sequence[str]) -> str:
    """Returns a text for the log: a few names, and the number of the others."""
    more = len(member_ids) - _NAMED_MAX
    named = ", ".join(member_ids[:_NAMED_MAX])
    return f"{named} and {more} more" if more > 0 else named
