"""Share groups at a leader that was replaced and does not know it: what it hands out cannot be accepted there."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.scripted import TOPIC, Stage, play
from tidemill.broker.net.network import Address
from tidemill.errors import ErrorCode
from tidemill.protocol.api.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tidemill.protocol.api.share import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    FetchPartition,
    FetchTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from tidemill.sim.clients.admin import Admin
from tidemill.sim.cluster import Machine
from tidemill.types import TopicPartition, uuid_text

GROUP = "workers"
SETTINGS = {
    "auto.leader.rebalance.enable": "false",
    "share.coordinator.state.topic.num.partitions": "2",
    "group.share.min.heartbeat.interval.ms": "1000",
    "group.share.heartbeat.interval.ms": "1000",
}
_ACCEPT = 1
_PREFERRED = 0
_TRIES = 20
# After so long without its followers a leader hands out nothing.
_SILENCE_S = 3.0


class Worker:
    """A member whose steps the course decides."""

    def __init__(self, stage: Stage, number: int) -> None:
        self._stage = stage
        self._client = stage.client(f"worker-{number}")
        self._member_id = uuid_text(number.to_bytes(16, "big"))
        self._member_epoch = 0
        self._epochs: dict[Address, int] = {}
        self._assigned: set[int] = set()
        stage.finished(stage.perform(self._client, self._join()), "the worker has its partitions")

    async def _join(self) -> None:
        await self._client.find_topics([TOPIC])
        while not self._assigned:
            request = ShareGroupHeartbeatRequest(
                group_id=GROUP,
                member_id=self._member_id,
                member_epoch=self._member_epoch,
                subscribed_topic_names=[TOPIC],
            )
            address = await self._client.coordinator_of(GROUP)
            answer = await self._client.ask(address, request, ShareGroupHeartbeatResponse)
            if answer is not None and not answer.error_code:
                self._member_epoch = answer.member_epoch
                assignment = answer.assignment.topic_partitions if answer.assignment else []
                self._assigned.update(index for topic in assignment for index in topic.partitions)
            else:
                self._client.forget_coordinator(GROUP)
            await asyncio.sleep(0.5)

    def _address(self, broker: Machine) -> Address:
        return self._client.brokers[broker.id]

    def take(self, broker: Machine, tp: TopicPartition, count: int) -> list[int]:
        """The offsets that a broker hands out now."""
        found: list[int] = []
        fetching = self._stage.perform(self._client, self._take(self._address(broker), tp, count, found))
        self._stage.finished(fetching, "the fetch is answered")
        return found

    def taken(self, broker: Machine, tp: TopicPartition, count: int) -> list[int]:
        """Returns the records that a broker hands out in the end."""
        for _ in range(_TRIES):
            found = self.take(broker, tp, count)
            if found:
                return found
            self._stage.let(0.2)
        self._stage.require(False, f"{broker.host} hands out nothing of {tp}")
        return []

    async def _take(self, address: Address, tp: TopicPartition, count: int, found: list[int]) -> None:
        epoch = self._epochs.get(address, 0)
        topic = FetchTopic(
            topic_id=self._client.topic_ids[TOPIC],
            partitions=[FetchPartition(partition_index=tp.partition)],
        )
        request = ShareFetchRequest(
            group_id=GROUP,
            member_id=self._member_id,
            share_session_epoch=epoch,
            max_wait_ms=1_000,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=count,
            batch_size=count,
            topics=[] if epoch else [topic],
        )
        answer = await self._client.ask(address, request, ShareFetchResponse, purpose="share")
        if answer is None or answer.error_code:
            self._epochs.pop(address, None)
            return
        self._epochs[address] = epoch + 1
        for topic_answer in answer.responses:
            for each in topic_answer.partitions:
                for acquired in each.acquired_records:
                    found += range(acquired.first_offset, acquired.last_offset + 1)

    def accept(self, broker: Machine, tp: TopicPartition, offset: int) -> ErrorCode:
        codes: list[ErrorCode] = []
        accepting = self._stage.perform(self._client, self._accept(self._address(broker), tp, offset, codes))
        self._stage.finished(accepting, "the acknowledgement is answered")
        return codes[0]

    async def _accept(
        self, address: Address, tp: TopicPartition, offset: int, codes: list[ErrorCode]
    ) -> None:
        batch = AcknowledgementBatch(first_offset=offset, last_offset=offset, acknowledge_types=[_ACCEPT])
        partition = AcknowledgePartition(partition_index=tp.partition, acknowledgement_batches=[batch])
        request = ShareAcknowledgeRequest(
            group_id=GROUP,
            member_id=self._member_id,
            share_session_epoch=self._epochs.get(address, 0),
            topics=[AcknowledgeTopic(topic_id=self._client.topic_ids[TOPIC], partitions=[partition])],
        )
        answer = await self._client.ask(
            address, request, ShareAcknowledgeResponse, purpose="share", timeout_s=40.0
        )
        if answer is None:
            codes.append(ErrorCode.NETWORK_EXCEPTION)
            return
        if not answer.error_code:
            self._epochs[address] += 1
        answered = [each.error_code for topic in answer.responses for each in topic.partitions]
        codes.append(ErrorCode(next(filter(None, [answer.error_code, *answered]), 0)))


def _prepare(stage: Stage) -> tuple[TopicPartition, Machine, Machine, Machine]:
    """A partition whose leader is not the controller; returns it, its leader, the controller and the third node."""
    client = stage.client("share-admin")
    admin = Admin(client, lambda _: None, [], 1.0)
    configured = stage.perform(client, admin.configure_group(GROUP, {"share.auto.offset.reset": "earliest"}))
    stage.finished(configured, "the group is configured")
    controller = stage.controller()
    tp = next(each for each in stage.partitions if stage.leader_of(each) is not controller)
    leader = stage.leader_of(tp)
    other = next(each for each in stage.machines() if each not in (leader, controller))
    # The third node is the preferred leader, and leads after an election on request.
    wanted = ReassignableTopic(
        name=TOPIC,
        partitions=[
            ReassignablePartition(partition_index=tp.partition, replicas=[other.id, controller.id, leader.id])
        ],
    )
    request = AlterPartitionReassignmentsRequest(timeout_ms=5_000, topics=[wanted])
    stage.ask(request, AlterPartitionReassignmentsResponse)
    stage.wait(
        lambda: tuple(stage.partition(tp).replicas) == (other.id, controller.id, leader.id),
        "the replicas are in another order",
    )
    stage.wait_healthy()
    return tp, leader, controller, other


def _replace_leader(stage: Stage, tp: TopicPartition, controller: Machine, other: Machine) -> None:
    """Elect the preferred leader, through the controller's own node."""
    client = stage.client("elector")

    async def elect() -> None:
        await client.find_topics([TOPIC])
        request = ElectLeadersRequest(election_type=_PREFERRED, topic_partitions=None, timeout_ms=5_000)
        await client.ask(client.brokers[controller.id], request, ElectLeadersResponse)

    stage.finished(stage.perform(client, elect()), "the election is answered")
    stage.wait(lambda: stage.partition(tp).leader == other.id, "the third node leads")


def _believes_to_lead(machine: Machine, tp: TopicPartition) -> bool:
    assert machine.node is not None
    partition, _ = machine.node.broker.replicas.find((tp.topic, tp.partition))
    return partition is not None and partition.leader is not None


@pytest.mark.parametrize("is_first", [True, False], ids=["old holder first", "new holder first"])
def test_failure_32_record_handed_out_by_two_leaders_is_accepted_by_one(is_first: bool) -> None:
    """The controller moves the leadership while the leader does not reach it."""

    def course(stage: Stage) -> None:
        tp, leader, controller, other = _prepare(stage)
        old, new = Worker(stage, 1), Worker(stage, 2)
        stage.require(old.taken(leader, tp, 1) == [0], "the first record is not the first")
        stage.part([leader], [controller])
        _replace_leader(stage, tp, controller, other)
        # Locks do not survive their leader: the new one hands out the same record.
        stage.require(0 in new.taken(other, tp, 2), "the new leader does not hand out the first record")
        stage.require(_believes_to_lead(leader, tp), "the old leader knows already that it was replaced")
        codes: dict[str, ErrorCode] = {}
        if is_first:
            codes["old"] = old.accept(leader, tp, 0)
            codes["new"] = new.accept(other, tp, 0)
        else:
            codes["new"] = new.accept(other, tp, 0)
            codes["old"] = old.accept(leader, tp, 0)
        stage.require(codes["new"] == ErrorCode.NONE, f"the new holder gets {codes['new'].name}")
        stage.require(codes["old"] != ErrorCode.NONE, "two holders have accepted the record")

    play(course, settings=SETTINGS)


def test_leader_that_its_followers_have_left_hands_out_nothing() -> None:
    """Within the silence it may: then two members have the record, and one of them can accept it."""

    def course(stage: Stage) -> None:
        tp, leader, controller, other = _prepare(stage)
        old, new = Worker(stage, 1), Worker(stage, 2)
        stage.require(old.taken(leader, tp, 1) == [0], "the first record is not the first")
        stage.part([leader], [controller])
        _replace_leader(stage, tp, controller, other)
        stage.require(0 in new.taken(other, tp, 1), "the new leader does not hand out the first record")
        stage.let(_SILENCE_S + 0.5)
        stage.require(_believes_to_lead(leader, tp), "the old leader knows already that it was replaced")
        taken = old.take(leader, tp, 1)
        stage.require(not taken, f"a deserted leader hands out {taken}")

    play(course, settings=SETTINGS)
