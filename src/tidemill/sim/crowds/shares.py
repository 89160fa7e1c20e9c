"""The members of a share group in a world, their faults, and how the group is drained at the end."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from tidemill.coordinator.share_state.machine import PartitionState
from tidemill.errors import ErrorCode
from tidemill.internal_topics import SHARE_STATE_TOPIC
from tidemill.protocol.api.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
)
from tidemill.protocol.records import Record
from tidemill.protocol.share_state import SharePartitionKey
from tidemill.sim.checks.checker import MessageId
from tidemill.sim.checks.shares import DeadLetter, OffsetsAltered, Produced, Settled, ShareEvent
from tidemill.sim.clients.base import Client
from tidemill.sim.clients.fetching import Position, message_of
from tidemill.sim.clients.producer import Batch, IdempotentProducer
from tidemill.sim.clients.share_member import ShareMember
from tidemill.sim.crowds.crowd import END_LIMIT_S, Crowd, partitions_of
from tidemill.sim.stage import Stage
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.protocol.api.data import PartitionProduceResponse

_TOPIC = "jobs"
_DEAD_TOPIC = "jobs-dead"
SHARE_TOPICS = {_TOPIC: 2, _DEAD_TOPIC: 2}
SHARE_CONFIGS = {_DEAD_TOPIC: {"errors.deadletterqueue.group.enable": "true"}}
SHARE_GROUP = "workers"
SHARE_GROUP_CONFIGS = {
    "share.auto.offset.reset": "earliest",
    "errors.deadletterqueue.topic.name": _DEAD_TOPIC,
    "tidemill.share.release.backoff.ms": "700",
}
_BACKOFF_MS = int(SHARE_GROUP_CONFIGS["tidemill.share.release.backoff.ms"])
_DELIVERY_COUNT_MAX = 3
_MEMBERS = 3
_WAIT_MS = 1_000
# Short locks and sessions, and few updates between snapshots, so that much happens in ten minutes.
SHARE_SETTINGS = {
    "group.share.delivery.count.limit": str(_DELIVERY_COUNT_MAX),
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "8000",
    "group.share.min.heartbeat.interval.ms": "1000",
    "group.share.heartbeat.interval.ms": "2000",
    "group.share.min.session.timeout.ms": "6000",
    "group.share.session.timeout.ms": "10000",
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.state.topic.prune.interval.ms": "15000",
    "share.coordinator.cold.partition.snapshot.interval.ms": "20000",
    "share.coordinator.snapshot.update.records.per.snapshot": "5",
}


class _JobProducer(IdempotentProducer):
    """Writes the records that the group works on."""

    def __init__(
        self, client: Client, tp: TopicPartition, pause_s_max: float, events: list[ShareEvent]
    ) -> None:
        super().__init__(client, tp, pause_s_max)
        self._events = events

    def _acknowledged(self, batch: Batch, result: PartitionProduceResponse) -> None:
        self.acked += len(batch.numbers)
        now_s = self._client.record.now_s()
        for index, number in enumerate(batch.numbers):
            offset = result.base_offset + index
            self._events.append(Produced(now_s, self._tp, offset, MessageId(self._name, number)))


class _LetterReader:
    """Reads the dead letters of the drained group."""

    def __init__(self, client: Client, tps: list[TopicPartition], events: list[ShareEvent]) -> None:
        self._client = client
        self._tps = tps
        self._events = events
        self.is_done = False

    async def run(self) -> None:
        for tp in self._tps:
            position = Position(self._client, tp)
            end_offset = await position.end_offset()
            while position.offset < end_offset:
                for record in await position.fetch_records(_WAIT_MS):
                    self._events.append(self._letter(record))
        self.is_done = True

    def _letter(self, record: Record) -> DeadLetter:
        headers = {header.key: (header.value or b"").decode() for header in record.headers}
        tp = TopicPartition(headers["__dlq.errors.topic"], int(headers["__dlq.errors.partition"]))
        offset, message = int(headers["__dlq.errors.offset"]), message_of(record.value or b"")
        return DeadLetter(self._client.record.now_s(), tp, offset, message)


class _OffsetsAdmin:
    """Moves a group without members to other offsets."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def alter(self, starts: dict[TopicPartition, int]) -> None:
        topic = AlterShareGroupOffsetsRequestTopic(
            topic_name=_TOPIC,
            partitions=[
                AlterShareGroupOffsetsRequestPartition(partition_index=tp.partition, start_offset=offset)
                for tp, offset in starts.items()
            ],
        )
        request = AlterShareGroupOffsetsRequest(group_id=SHARE_GROUP, topics=[topic])
        while True:
            address = await self._client.coordinator_of(SHARE_GROUP)
            answer = await self._client.ask(address, request, AlterShareGroupOffsetsResponse)
            if answer is not None:
                codes = [each.error_code for topic in answer.responses for each in topic.partitions]
                if not answer.error_code and not any(codes):
                    return
            await self._wait()

    async def delete(self) -> None:
        topic = DeleteShareGroupOffsetsRequestTopic(topic_name=_TOPIC)
        request = DeleteShareGroupOffsetsRequest(group_id=SHARE_GROUP, topics=[topic])
        while True:
            address = await self._client.coordinator_of(SHARE_GROUP)
            answer = await self._client.ask(address, request, DeleteShareGroupOffsetsResponse)
            if answer is not None and not answer.error_code:
                codes = [ErrorCode(each.error_code) for each in answer.responses]
                # An attempt whose answer was lost may have deleted them.
                if all(code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for code in codes):
                    return
            await self._wait()

    async def _wait(self) -> None:
        """Members that were killed belong to the group until their sessions end."""
        self._client.forget_coordinator(SHARE_GROUP)
        await asyncio.sleep(1.0)


class ShareCrowd(Crowd):
    """The producers of jobs and the members of the group."""

    def __init__(self, stage: Stage, rng: Random) -> None:
        self._partitions = partitions_of(SHARE_TOPICS, _TOPIC)
        super().__init__(stage, rng, [], "job-reader")
        self.events: list[ShareEvent] = []
        self._producers: list[_JobProducer] = []
        self._members: dict[str, ShareMember] = {}
        # Those that leave: what they get is of the time before the offsets are altered.
        self._leaving: list[ShareMember] = []
        # Whether the group gets other offsets; it has no members meanwhile.
        self._is_altering = False

    def start(self, *, has_upsets: bool) -> None:
        stage = self._stage
        for tp in self._partitions:
            client = stage.client(f"job-producer-{tp.partition}")
            producer = _JobProducer(client, tp, 2 * stage.plan.pause_s_max, self.events)
            self._producers.append(producer)
            stage.spawn(client, producer.run())
        for _ in range(_MEMBERS):
            self._add_member()
        if has_upsets:
            self._upset_later(self._upset)

    def _add_member(self) -> None:
        client = self._client("share-member")
        member = self._members[client.name] = ShareMember(client, SHARE_GROUP, _TOPIC, self.events)
        self._stage.spawn(client, member.beat())
        self._stage.spawn(client, member.run())

    def _upset(self) -> None:
        if self._stage.record.is_ending:
            return
        self._upset_later(self._upset)
        if self._is_altering:
            return
        name = self._rng.choice(list(self._members))
        chance = self._rng.random()
        if chance < 0.3:
            self._kill(name)
            del self._members[name]
            self._add_member()
        elif chance < 0.45:
            self._stage.trace.add(name, "leaves")
            self._leave(name)
            self._add_member()
        elif chance < 0.7:
            self._lose_touch(name)
        elif chance < 0.95:
            self._fall_asleep(name)
        else:
            client = self._client("share-admin")
            self._is_altering = True
            self._stage.spawn(client, self._alter_offsets(client))

    def _leave(self, name: str) -> None:
        member = self._members.pop(name)
        member.leave()
        self._leaving.append(member)

    async def _alter_offsets(self, client: Client) -> None:
        """Everybody leaves, the group gets other offsets, and new members come."""
        for name in list(self._members):
            self._leave(name)
        while not all(member.is_done for member in self._leaving):  # noqa: ASYNC110 - each has its own loop
            await asyncio.sleep(0.5)
        admin = _OffsetsAdmin(client)
        ends = self._ends(self._partitions)
        if self._rng.random() < 0.5:
            starts = {tp: self._rng.randint(0, ends.get(tp, 0)) for tp in self._partitions}
            await admin.alter(starts)
        else:
            starts = dict.fromkeys(self._partitions, 0)
            await admin.delete()
        self._stage.trace.add(client.name, f"offsets are altered: {starts}")
        self.events.append(OffsetsAltered(self._stage.scheduler.now_s, starts))
        for _ in range(_MEMBERS):
            self._add_member()
        self._is_altering = False

    # -- the end ---------------------------------------------------------------------------------------------

    def finish(self) -> bool:
        """Drain the group: members accept everything until all that was written is done."""
        stage = self._stage
        if not stage.wait_for(
            lambda: all(each.is_done for each in self._producers) and not self._is_altering,
            END_LIMIT_S,
            "jobs end, and the group has members",
        ):
            return False
        if not stage.wait_for(lambda: not self._open(), END_LIMIT_S, "the share group is drained"):
            stage.accuse(f"not done: {'; '.join(self._open())}")
            return False
        ends = self._ends(self._partitions)
        for tp in self._partitions:
            event = Settled(stage.scheduler.now_s, tp, ends[tp], _DELIVERY_COUNT_MAX, _BACKOFF_MS)
            self.events.append(event)
        for member in self._members.values():
            member.is_stopping = True
        client = stage.client("dead-letter-reader")
        reader = _LetterReader(client, partitions_of(SHARE_TOPICS, _DEAD_TOPIC), self.events)
        stage.spawn(client, reader.run())
        return stage.wait_for(
            lambda: reader.is_done and all(each.is_done for each in self._members.values()),
            END_LIMIT_S,
            "share members stop, and dead letters are read",
        )

    def _open(self) -> list[str]:
        ends = self._ends(self._partitions)
        found = []
        for tp in self._partitions:
            state = self._state_of(tp)
            if state is None:
                found.append(f"{tp} has no state")
            elif tp not in ends or state.start_offset < ends[tp]:
                found.append(
                    f"{tp} begins at {state.start_offset} and ends at {ends.get(tp)}: {state.batches[:5]}"
                )
        return found

    def _state_of(self, tp: TopicPartition) -> PartitionState | None:
        """The state as the share coordinator of the newest epoch has it."""
        states = []
        for machine in self._stage.cluster.brokers():
            if machine.node is None:
                continue
            broker = machine.node.broker
            topic = broker.image.topics_by_name.get(tp.topic)
            if topic is None or SHARE_STATE_TOPIC not in broker.image.topics_by_name:
                continue
            key = SharePartitionKey(SHARE_GROUP, topic.id, tp.partition)
            hosts = broker.share_coordinators
            hosted = hosts.runtime.hosted(hosts.runtime.partition_of(str(key)))
            state = hosted.machine.states.get(key) if hosted is not None and hosted.is_active else None
            if hosted is not None and state is not None:
                states.append((hosted.leader_epoch, state))
        return max(states, key=lambda each: each[0])[1] if states else None
