"""A group of the classic protocol: its members, its state, and what that state allows.

    Empty ──join──▶ PreparingRebalance ──all joined, or time is up──▶ CompletingRebalance ──leader's sync──▶ Stable
      ▲                    ▲      │                                        │                         │
      └──── all left ──────│──────┘                                        │                         │
                           └────────── a member joins, leaves, changes, falls silent ────────────────┘

One record is replicated, `stored`: the last complete generation (or the empty one) with its assignments. The state
between two generations is soft: members that have joined, requests that wait for a response, timers. A new coordinator
knows only the stored generation. Its members continue in it or join again.

This module holds the state and decides nothing that needs a clock; rebalance.py runs the protocol. Counters
(`waiting_joins`, `votes`) make every step independent of the number of members.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from tidemill.coordinator.groups.classic_member import ClassicMember, Waiting, member_from_record
from tidemill.coordinator.groups.group import CONSUMER_PROTOCOL_TYPE, Committer, Environment, Group, GroupType
from tidemill.coordinator.records import Record, group_metadata_tombstone
from tidemill.errors import ApiError, ErrorCode, ProtocolError
from tidemill.protocol.api.coordinator_records import GroupMetadataKey, GroupMetadataValue
from tidemill.protocol.api.groups import (
    ConsumerProtocolSubscription,
    DescribeGroupsDescribedGroup,
    JoinGroupRequestProtocol,
    JoinGroupResponseMember,
)
from tidemill.protocol.schema import decode
from tidemill.protocol.wire import read_int16

MAX_CAUSES_NAMED = 3


class ClassicState(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicGroup(Group):
    type = GroupType.CLASSIC

    def __init__(self, group_id: str, environment: Environment) -> None:
        super().__init__(group_id, environment)
        self.stored: GroupMetadataValue | None = None
        self.current_state = ClassicState.EMPTY
        self.previous_state = ClassicState.DEAD
        self.state_timestamp_ms: int | None = None
        self.generation = 0
        self.group_protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_member_ids: dict[str, str] = {}
        # Member ids that were sent in MEMBER_ID_REQUIRED and have not joined yet.
        self.pending_joins: set[str] = set()
        # Members that got a response for the present generation and have not synced in it.
        self.pending_syncs: set[str] = set()
        self.waiting_joins = 0
        # The initial rebalance goes on for another delay when this is set at its end.
        self.is_new_member_added = False
        self._supporters: dict[str, int] = {}
        # None: not known, because the members' subscriptions do not parse or are not of consumers.
        self._subscribed_topics: frozenset[str] | None = None
        self._causes: list[str] = []
        self._members_before = 0

    # The replicated state.

    def rebuild(self, value: GroupMetadataValue) -> None:
        """Restore the group from its record, when a coordinator loads it."""
        assert not self.members, self.group_id
        self.stored = value
        self.generation = value.generation
        self.group_protocol_type = value.protocol_type or None
        self.protocol_name = value.protocol
        self.leader_id = value.leader
        self.state_timestamp_ms = (
            None if value.current_state_timestamp == -1 else value.current_state_timestamp
        )
        for stored_member in value.members:
            self.add(member_from_record(stored_member, value.protocol_type, value.protocol))
        self.current_state = ClassicState.STABLE if self.members else ClassicState.EMPTY
        self._subscribed_topics = self._parse_subscriptions()
        self._members_before = len(self.members)

    def adopt(self, value: GroupMetadataValue) -> None:
        """Replay the record that this group has just written."""
        self.stored = value
        completes = self.current_state is ClassicState.COMPLETING_REBALANCE and value.members
        if completes and value.generation == self.generation:
            for stored_member in value.members:
                self.members[stored_member.member_id].assignment = stored_member.assignment
            self.current_state, self.previous_state = ClassicState.STABLE, self.current_state

    def to_record(self, assignments: dict[str, bytes]) -> Record:
        protocol_name = self.protocol_name
        value = GroupMetadataValue(
            protocol_type=self.group_protocol_type or "",
            generation=self.generation,
            protocol=protocol_name,
            leader=self.leader_id,
            current_state_timestamp=-1 if self.state_timestamp_ms is None else self.state_timestamp_ms,
        )
        for member in self.members.values():
            assert protocol_name is not None, self.group_id
            value.members.append(member.to_record(protocol_name, assignments.get(member.member_id, b"")))
        return Record(GroupMetadataKey(group=self.group_id), value)

    def empty_record(self) -> Record:
        """Returns the record of a group without a generation."""
        timestamp_ms = -1 if self.state_timestamp_ms is None else self.state_timestamp_ms
        value = GroupMetadataValue(current_state_timestamp=timestamp_ms)
        return Record(GroupMetadataKey(group=self.group_id), value)

    def deletion_records(self) -> list[Record]:
        return [group_metadata_tombstone(self.group_id)]

    def replicated_state(self) -> object:
        return self.stored

    # State.

    @property
    def state(self) -> str:
        return self.current_state.value

    @property
    def protocol_type(self) -> str:
        return self.group_protocol_type or ""

    @property
    def is_empty(self) -> bool:
        return self.current_state is ClassicState.EMPTY

    @property
    def is_preparing(self) -> bool:
        return self.current_state is ClassicState.PREPARING_REBALANCE

    @property
    def is_completing(self) -> bool:
        return self.current_state is ClassicState.COMPLETING_REBALANCE

    @property
    def is_stable(self) -> bool:
        return self.current_state is ClassicState.STABLE

    @property
    def is_initial_rebalance(self) -> bool:
        return self.is_preparing and self.previous_state is ClassicState.EMPTY

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.group_protocol_type == CONSUMER_PROTOCOL_TYPE

    def transition(self, state: ClassicState, steady_ms: int) -> None:
        self.previous_state, self.current_state = self.current_state, state
        self.state_timestamp_ms = steady_ms

    def begin_next_generation(self, steady_ms: int) -> None:
        self.generation += 1
        self.pending_syncs.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition(ClassicState.COMPLETING_REBALANCE, steady_ms)
        else:
            self.protocol_name = None
            self.transition(ClassicState.EMPTY, steady_ms)
        self._subscribed_topics = self._parse_subscriptions()

    def note_cause(self, cause: str) -> None:
        """Add a cause of the rebalance in progress."""
        self._causes.append(cause)

    def take_causes(self) -> tuple[str, int]:
        """Returns all causes in one line and the number of members in the last generation, and resets both."""
        named = "; ".join(self._causes[:MAX_CAUSES_NAMED])
        more = len(self._causes) - MAX_CAUSES_NAMED
        members_before = self._members_before
        self._causes.clear()
        self._members_before = len(self.members)
        return (f"{named}; and {more} more" if more > 0 else named), members_before

    # Members.

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def have_all_joined(self) -> bool:
        return self.waiting_joins == len(self.members) and not self.pending_joins

    def add(self, member: ClassicMember) -> None:
        if not self.members:
            self.group_protocol_type = member.protocol_type
        if member.instance_id is not None:
            self.static_member_ids[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        if member.waiting_join is not None:
            self.waiting_joins += 1
        self.pending_joins.discard(member.member_id)

    def update(
        self,
        member: ClassicMember,
        protocols: Sequence[JoinGroupRequestProtocol],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def set_waiting_join(self, member: ClassicMember, waiting: Waiting | None) -> None:
        self.waiting_joins += (waiting is not None) - (member.waiting_join is not None)
        member.waiting_join = waiting

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None:
            assert not member.is_waiting, f"{member_id} is removed while a request of it waits"
            self._count_protocols(member, -1)
            if member.instance_id is not None:
                del self.static_member_ids[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)

    def rename_static_member(self, member: ClassicMember, member_id: str) -> None:
        """A static member returned with a new member id. It keeps its place and its assignment."""
        assert member.instance_id is not None, member.member_id
        old_id = member.member_id
        del self.members[old_id]
        self.pending_syncs.discard(old_id)
        member.member_id = member_id
        self.members[member_id] = member
        self.static_member_ids[member.instance_id] = member_id
        if self.leader_id == old_id:
            self.leader_id = member_id

    def elect_leader(self) -> bool:
        """Keep the leader if it has joined, or elect the first member that has. Returns False when none has."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].waiting_join is not None:
            return True
        for member in self.members.values():
            if member.waiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def check_member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        if instance_id is not None:
            current_id = self.static_member_ids.get(instance_id)
            if current_id is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            if current_id != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def join_response_members(self) -> list[JoinGroupResponseMember]:
        """Returns the members with their metadata, from which the leader computes the assignment."""
        name = self.protocol_name
        assert name is not None, self.group_id
        return [
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(name),
            )
            for member in self.members.values()
        ]

    def waiting_tokens(self) -> list[int]:
        waiting = []
        for member in self.members.values():
            waiting += [each.token for each in (member.waiting_join, member.waiting_sync) if each is not None]
        return waiting

    # Protocols.

    def supports_protocols(self, protocol_type: str, protocols: list[JoinGroupRequestProtocol]) -> bool:
        """Whether a member with these protocols can join: every member supports one and the same of them."""
        if self.is_empty:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.group_protocol_type:
            return False
        return any(self._supporters.get(each.name, 0) == len(self.members) for each in protocols)

    def select_protocol(self) -> str:
        """Returns the protocol with the most votes among those that every member supports."""
        everyone = len(self.members)
        candidates = {name for name, count in self._supporters.items() if count == everyone}
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = member.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def _count_protocols(self, member: ClassicMember, change: int) -> None:
        for name in set(member.protocol_names()):
            count = self._supporters.get(name, 0) + change
            if count:
                self._supporters[name] = count
            else:
                del self._supporters[name]

    def _parse_subscriptions(self) -> frozenset[str] | None:
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            metadata = member.metadata(self.protocol_name)
            try:
                _version, position = read_int16(metadata, 0)
                # Every version begins like version 0, so later versions can be read too.
                topics.update(decode(ConsumerProtocolSubscription, 0, metadata, position).topics)
            except (ProtocolError, IndexError, ValueError):
                return None
        return frozenset(topics)

    # Offsets.

    def check_offset_commit(self, committer: Committer) -> None:
        if committer.is_simple and self.is_empty:
            return
        if committer.generation_or_epoch >= 0 or committer.member_id or committer.instance_id is not None:
            self.check_member(committer.member_id, committer.instance_id)
            if committer.generation_or_epoch != self.generation:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        elif not committer.is_transactional and not self.is_empty:
            # Only members may commit to a group that has members.
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not committer.is_transactional and self.is_completing:
            # The member knows the new generation, but it consumed by the assignment of the old one.
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Anyone may read the offsets of a classic group."""

    def check_offset_delete(self) -> None:
        if not self.is_empty and not self.uses_consumer_protocol:
            # The topics of members are known only for consumers.
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)

    def subscribes_to(self, topic: str) -> bool:
        if self._subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self._subscribed_topics

    def consumed_topics(self) -> Iterable[str]:
        return self._subscribed_topics or ()

    def offset_expires_from_ms(self, commit_timestamp_ms: int) -> int | None:
        if self.group_protocol_type is None:
            return commit_timestamp_ms
        if self.is_empty:
            return commit_timestamp_ms if self.state_timestamp_ms is None else self.state_timestamp_ms
        if self.is_stable and self.uses_consumer_protocol and self._subscribed_topics is not None:
            return commit_timestamp_ms
        return None

    # Timers.

    def session_key(self, member_id: str) -> tuple[str, str, str]:
        return ("session", self.group_id, member_id)

    @property
    def join_key(self) -> tuple[str, str]:
        return ("join", self.group_id)

    @property
    def sync_key(self) -> tuple[str, str]:
        return ("sync", self.group_id)

    def cancel_timers(self) -> None:
        timers = self.environment.timers
        timers.cancel(self.join_key)
        timers.cancel(self.sync_key)
        for member_id in (*self.members, *self.pending_joins):
            timers.cancel(self.session_key(member_id))

    def start_timers(self, steady_ms: int) -> None:
        """Does nothing: machine.py calls `start_sessions` of rebalance.py instead."""

    # Descriptions.

    def describe(self) -> DescribeGroupsDescribedGroup:
        protocol_name = self.protocol_name if self.is_stable else None
        return DescribeGroupsDescribedGroup(
            group_id=self.group_id,
            group_state=self.state,
            protocol_type=self.protocol_type,
            protocol_data=protocol_name or "",
            members=[member.describe(protocol_name) for member in self.members.values()],
        )

    def check_invariants(self) -> None:
        members = self.members
        waiting_joins = sum(member.waiting_join is not None for member in members.values())
        assert waiting_joins == self.waiting_joins, self.group_id
        statics = {
            each.instance_id: each.member_id for each in members.values() if each.instance_id is not None
        }
        assert statics == self.static_member_ids, self.group_id
        assert self.pending_syncs <= members.keys(), self.group_id
        assert not self.pending_joins & members.keys(), self.group_id
        assert (self.leader_id in members) if members else self.leader_id is None, self.group_id
        for member_id, member in members.items():
            assert member.member_id == member_id
            assert member.waiting_join is None or self.is_preparing, f"{member_id} waits for no rebalance"
            assert member.waiting_sync is None or self.is_completing, f"{member_id} waits for no assignment"
        if self.is_stable:
            self._check_stable_is_stored()

    def _check_stable_is_stored(self) -> None:
        assert self.members, self.group_id
        assert self.stored is not None, self.group_id
        assert self.stored.generation == self.generation, self.group_id
        stored = {each.member_id: each.assignment for each in self.stored.members}
        live = {each.member_id: each.assignment for each in self.members.values()}
        assert stored == live, f"{self.group_id}: the stored assignment is not the one given out"
