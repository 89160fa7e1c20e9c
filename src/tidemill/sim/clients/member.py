"""A simulated member of a consumer group, in the classic protocol with eager rebalances.

One task polls, processes, commits and sends heartbeats in turn. So its reports of ownership are true: it commits and
reports `Revoked` before it rejoins. It ignores an assignment that arrived too late, because another member may own it
by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.errors import ErrorCode
from tidemill.protocol.api.groups import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidemill.protocol.api.groups import TopicPartition as AssignedTopic
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tidemill.protocol.schema import decode, encode
from tidemill.sim.checks.checker import (
    Assigned,
    CommitSent,
    Committed,
    Delivered,
    Event,
    Lost,
    MemberName,
    Revoked,
)
from tidemill.sim.clients.base import Client
from tidemill.sim.clients.fetching import Position
from tidemill.types import TopicPartition

_SESSION_TIMEOUT_MS = 10_000
_REBALANCE_TIMEOUT_MS = 12_000
# Well within the session timeout: a later response is ignored.
_ANSWER_TIMEOUT_S = 4.0
HEARTBEAT_S = 1.5
POLL_WAIT_MS = 1_200
_PROTOCOL_VERSION = b"\0\0"
_FENCED = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
)
_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class Rejoin(Exception):
    """The member must leave this generation."""

    def __init__(self, *, is_lost: bool) -> None:
        super().__init__()
        self.is_lost = is_lost


@dataclass(slots=True)
class Generation:
    """The member's current generation."""

    number: int
    positions: dict[TopicPartition, Position]
    # When the member sent its last request that confirmed the generation without a rebalance.
    confirmed_s: float
    heartbeat_at_s: float = 0.0


class Member:
    """One member process."""

    # Whether it reads committed messages and offsets only.
    _is_read_committed = False

    def __init__(self, client: Client, group: str, topics: Sequence[str]) -> None:
        self._client = client
        self._group = group
        self._topics = list(topics)
        self._name = MemberName(group, client.name)
        self._history: list[Event] = client.record.history
        self._member_id = ""
        self._owned: tuple[TopicPartition, ...] = ()
        # The committed offsets of the partitions that it owns.
        self.committed: dict[TopicPartition, int] = {}
        self.is_stopping = False
        self.is_done = False

    async def run(self) -> None:
        await self._client.find_topics(self._topics)
        while not self.is_stopping:
            generation = await self._join()
            if generation is None:
                await self._client.back_off()
                continue
            try:
                while not self.is_stopping:
                    await self._poll(generation)
            except Rejoin as reason:
                self._let_go(is_lost=reason.is_lost or self._is_late(generation))
        self.is_done = True

    # -- joining ---------------------------------------------------------------------------------------------

    async def _join(self) -> Generation | None:
        client = self._client
        coordinator = await client.coordinator_of(self._group)
        joined = await client.ask(
            coordinator,
            JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=_SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=_REBALANCE_TIMEOUT_MS,
                member_id=self._member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=self._subscription())],
            ),
            JoinGroupResponse,
            timeout_s=_REBALANCE_TIMEOUT_MS / 1000 + 5,
        )
        if joined is None:
            client.forget_coordinator(self._group)
            return None
        if joined.error_code:
            self._refused(ErrorCode(joined.error_code), joined.member_id)
            return None
        self._member_id = joined.member_id
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=self._member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=await self._assign(joined) if joined.leader == joined.member_id else [],
        )
        asked_s = client.loop.time()
        synced = await client.ask(coordinator, request, SyncGroupResponse, timeout_s=_ANSWER_TIMEOUT_S)
        # A paused process finds the response before it finds the timeout.
        if synced is None or client.loop.time() - asked_s > _ANSWER_TIMEOUT_S:
            client.forget_coordinator(self._group)
            return None
        if synced.error_code:
            self._refused(ErrorCode(synced.error_code), self._member_id)
            return None
        return await self._take(Generation(joined.generation_id, {}, asked_s), synced.assignment)

    def _subscription(self) -> bytes:
        return _PROTOCOL_VERSION + bytes(encode(ConsumerProtocolSubscription(topics=self._topics), 0))

    def _refused(self, code: ErrorCode, member_id: str) -> None:
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = member_id
        elif code in _FENCED:
            self._member_id = ""
        elif code in _MOVED:
            self._client.forget_coordinator(self._group)

    async def _assign(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """Assign all partitions of the topics."""
        await self._client.refresh(self._topics)
        return assignments(joined, [tp for topic in self._topics for tp in self._client.partitions_of(topic)])

    async def _take(self, generation: Generation, assignment: bytes) -> Generation | None:
        owned = _decode_assignment(assignment)
        record = self._client.record
        self._owned = owned
        self.committed = {}
        self._history.append(Assigned(record.now_s(), self._name, owned, generation.number))
        try:
            offsets = await self._committed_offsets(generation, owned)
        except Rejoin as reason:
            self._let_go(is_lost=reason.is_lost or self._is_late(generation))
            return None
        for tp in owned:
            offset, epoch = offsets[tp]
            self.committed[tp] = max(0, offset)
            generation.positions[tp] = self._position(tp, self.committed[tp], epoch)
        return generation

    def _position(self, tp: TopicPartition, offset: int, epoch: int = -1) -> Position:
        return Position(self._client, tp, offset, epoch=epoch, is_read_committed=self._is_read_committed)

    def _is_late(self, generation: Generation) -> bool:
        """Whether the member is late: the group waits from the start of its rebalance, not from when a member learns
        of it.
        """
        return self._client.loop.time() > generation.confirmed_s + _REBALANCE_TIMEOUT_MS / 1000

    def _let_go(self, *, is_lost: bool) -> None:
        record = self._client.record
        event = Lost if is_lost else Revoked
        self._history.append(event(record.now_s(), self._name, self._owned))
        self._owned = ()
        self.committed = {}

    # -- working ---------------------------------------------------------------------------------------------

    async def _poll(self, generation: Generation) -> None:
        client = self._client
        await self._beat(generation)
        if not generation.positions:
            await asyncio.sleep(HEARTBEAT_S)
            return
        positions = list(generation.positions.values())
        fetched = await asyncio.gather(*(position.fetch(POLL_WAIT_MS) for position in positions))
        await self._beat(generation)
        record = client.record
        for position, messages in zip(positions, fetched, strict=True):
            for offset, message in messages:
                self._history.append(
                    Delivered(record.now_s(), self._name, position.tp, offset, message, generation.number)
                )
        changed = {p.tp: p.offset for p in positions if p.offset != self.committed.get(p.tp)}
        if changed:
            await self._commit(generation, changed)

    async def _beat(self, generation: Generation) -> None:
        now_s = self._client.loop.time()
        if now_s < generation.heartbeat_at_s:
            return
        generation.heartbeat_at_s = now_s + HEARTBEAT_S
        request = HeartbeatRequest(
            group_id=self._group, generation_id=generation.number, member_id=self._member_id
        )
        address = await self._client.coordinator_of(self._group)
        answer = await self._client.ask(address, request, HeartbeatResponse, timeout_s=_ANSWER_TIMEOUT_S)
        self._judge(ErrorCode.NOT_COORDINATOR if answer is None else ErrorCode(answer.error_code))
        if answer is not None and not answer.error_code:
            generation.confirmed_s = now_s

    def _judge(self, code: ErrorCode) -> None:
        """Handle an error of the coordinator for this generation."""
        if code in _FENCED:
            if code != ErrorCode.ILLEGAL_GENERATION:
                self._member_id = ""
            raise Rejoin(is_lost=True)
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            # An old coordinator returns it too, long after a new one has assigned the partitions to another member.
            raise Rejoin(is_lost=not self._client.knows_coordinator(self._group))
        if code in _MOVED:
            self._client.forget_coordinator(self._group)

    async def _commit(self, generation: Generation, offsets: dict[TopicPartition, int]) -> None:
        record, client = self._client.record, self._client
        for tp, offset in offsets.items():
            self._history.append(CommitSent(record.now_s(), self._name, tp, offset))
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for tp, offset in offsets.items():
            topics.setdefault(tp.topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=tp.partition,
                    committed_offset=offset,
                    committed_leader_epoch=generation.positions[tp].epoch,
                )
            )
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=generation.number,
            member_id=self._member_id,
            topics=[
                OffsetCommitRequestTopic(name=name, topic_id=client.topic_ids[name], partitions=partitions)
                for name, partitions in topics.items()
            ],
        )
        address = await client.coordinator_of(self._group)
        answer = await client.ask(address, request, OffsetCommitResponse, timeout_s=_ANSWER_TIMEOUT_S)
        if answer is None:
            client.forget_coordinator(self._group)
            return
        names = {topic_id: name for name, topic_id in client.topic_ids.items()}
        codes = {
            TopicPartition(topic.name or names[bytes(topic.topic_id)], partition.partition_index): ErrorCode(
                partition.error_code
            )
            for topic in answer.topics
            for partition in topic.partitions
        }
        for tp, code in codes.items():
            if code == ErrorCode.NONE:
                self.committed[tp] = offsets[tp]
                self._history.append(Committed(record.now_s(), self._name, tp, offsets[tp]))
        for code in codes.values():
            self._judge(code)

    async def _committed_offsets(
        self, generation: Generation, owned: tuple[TopicPartition, ...]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """The committed offset and leader epoch of each partition; -1 and -1 without a commit."""
        client = self._client
        topics: dict[str, list[int]] = {}
        for tp in owned:
            topics.setdefault(tp.topic, []).append(tp.partition)
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=self._group,
                    topics=[
                        OffsetFetchRequestTopics(
                            name=name, topic_id=client.topic_ids[name], partition_indexes=indexes
                        )
                        for name, indexes in topics.items()
                    ],
                )
            ],
            require_stable=self._is_read_committed,
        )
        while True:
            await self._beat(generation)
            address = await client.coordinator_of(self._group)
            answer = await client.ask(address, request, OffsetFetchResponse, timeout_s=_ANSWER_TIMEOUT_S)
            if answer is not None:
                group = answer.groups[0]
                errors = [p.error_code for topic in group.topics for p in topic.partitions]
                code = ErrorCode(next(filter(None, [group.error_code, *errors]), 0))
                if code == ErrorCode.NONE:
                    names = {topic_id: name for name, topic_id in client.topic_ids.items()}
                    return {
                        TopicPartition(topic.name or names[bytes(topic.topic_id)], p.partition_index): (
                            p.committed_offset,
                            p.committed_leader_epoch,
                        )
                        for topic in group.topics
                        for p in topic.partitions
                    }
                self._judge(code)
            else:
                client.forget_coordinator(self._group)
            await client.back_off()


def assignments(
    joined: JoinGroupResponse, partitions: Sequence[TopicPartition]
) -> list[SyncGroupRequestAssignment]:
    """The assignments of partitions to the members of a generation, round robin."""
    members = sorted(member.member_id for member in joined.members)
    shares: dict[str, dict[str, list[int]]] = {member: {} for member in members}
    for number, tp in enumerate(partitions):
        shares[members[number % len(members)]].setdefault(tp.topic, []).append(tp.partition)
    return [
        SyncGroupRequestAssignment(member_id=member, assignment=_encode_assignment(share))
        for member, share in shares.items()
    ]


def _encode_assignment(share: dict[str, list[int]]) -> bytes:
    topics = [AssignedTopic(topic=topic, partitions=partitions) for topic, partitions in share.items()]
    return _PROTOCOL_VERSION + bytes(encode(ConsumerProtocolAssignment(assigned_partitions=topics), 0))


def _decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    if not data:
        return ()
    assignment = decode(ConsumerProtocolAssignment, 0, data[len(_PROTOCOL_VERSION) :])
    return tuple(
        TopicPartition(topic.topic, index)
        for topic in assignment.assigned_partitions
        for index in topic.partitions
    )
