"""Failures of transactions that broke other systems, played on a whole cluster. Each is known by its number.

The clients of `crowds/transactional.py` are at work meanwhile; the checker judges what the scripted producer does with them.
"""

from __future__ import annotations

import pytest

from tests.sim.scripted import Stage, play
from tidemill.broker.partitions.partition import Partition
from tidemill.coordinator.transactions.machine import Transactions
from tidemill.errors import ErrorCode
from tidemill.internal_topics import TRANSACTIONS_TOPIC
from tidemill.protocol.api.data import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.protocol.api.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidemill.protocol.records import TRANSACTIONAL, Record, build_batch
from tidemill.sim.checks.transactions import Ended
from tidemill.sim.clients.base import TRANSACTION
from tidemill.sim.clients.transactor import Transactor
from tidemill.sim.cluster import Machine
from tidemill.sim.crowds.transactional import PAYMENTS
from tidemill.types import TopicPartition

ID = "scripted"
P0, P1 = TopicPartition(PAYMENTS, 0), TopicPartition(PAYMENTS, 1)
_TIMEOUT_MS = 60_000
_HOUR_MS = 3_600_000
_PATIENCE_S = 60.0


class Producer:
    """A transactional producer whose steps the course decides."""

    def __init__(self, stage: Stage, *, is_new: bool, timeout_ms: int = _TIMEOUT_MS) -> None:
        self.stage = stage
        self.client = stage.client(ID)
        self.transactor = Transactor(self.client, ID, timeout_ms, is_new=is_new)
        self._is_new = is_new
        stage.finished(stage.perform(self.client, self._start()), "the producer is known")

    async def _start(self) -> None:
        await self.client.find_topics([PAYMENTS])
        await self.transactor.initialise()

    async def open(self) -> None:
        """A transaction with records in both partitions."""
        await self.transactor.begin(_PATIENCE_S)
        await self.transactor.write(P0, 2)
        await self.transactor.write(P1, 2)

    def opened(self) -> None:
        self.stage.finished(self.stage.perform(self.client, self.open()), "the transaction is open")

    def ended(self, *, is_commit: bool) -> None:
        ending = self.stage.perform(self.client, self.transactor.end(is_commit=is_commit))
        self.stage.finished(ending, "the transaction has ended")

    async def end_late(self, producer: tuple[int, int], *, is_commit: bool, codes: list[ErrorCode]) -> None:
        """The copy of an end that was on its way all the time."""
        address = await self.client.coordinator_of(ID, TRANSACTION)
        request = EndTxnRequest(
            transactional_id=ID, producer_id=producer[0], producer_epoch=producer[1], committed=is_commit
        )
        answer = await self.client.ask(address, request, EndTxnResponse, purpose="late")
        codes.append(ErrorCode(answer.error_code) if answer is not None else ErrorCode.NETWORK_EXCEPTION)

    async def write_late(self, producer: tuple[int, int], sequence: int, codes: list[ErrorCode]) -> None:
        """The copy of a batch that was on its way all the time."""
        client = self.client
        data = build_batch(
            [Record(0, client.record.wall_ms(), None, b"late/0")],
            attributes=TRANSACTIONAL,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
        )
        topic = TopicProduceData(
            name=PAYMENTS,
            topic_id=client.topic_ids[PAYMENTS],
            partition_data=[PartitionProduceData(index=P0.partition, records=memoryview(data))],
        )
        request = ProduceRequest(transactional_id=ID, acks=-1, timeout_ms=5_000, topic_data=[topic])
        address, _ = await client.find_leader(P0)
        answer = await client.ask(
            address, request, ProduceResponse, purpose="late", version_max=None if self._is_new else 11
        )
        assert answer is not None
        codes.append(ErrorCode(answer.responses[0].partition_responses[0].error_code))

    async def mark_late(
        self,
        producer: tuple[int, int],
        coordinator_epoch: int,
        *,
        is_commit: bool,
        codes: list[ErrorCode],
        ordinal: int = -1,
    ) -> None:
        """The copy of a marker that was on its way all the time."""
        marker = WritableTxnMarker(
            producer_id=producer[0],
            producer_epoch=producer[1],
            transaction_result=is_commit,
            topics=[WritableTxnMarkerTopic(name=PAYMENTS, partition_indexes=[P0.partition])],
            coordinator_epoch=coordinator_epoch,
            transaction_version=2 if self._is_new else 0,
            ordinal=ordinal,
        )
        await self.client.refresh([PAYMENTS])
        address, _ = await self.client.find_leader(P0)
        request = WriteTxnMarkersRequest(markers=[marker])
        answer = await self.client.ask(address, request, WriteTxnMarkersResponse, purpose="late")
        assert answer is not None
        codes.append(ErrorCode(answer.markers[0].topics[0].partitions[0].error_code))

    def end_known(self) -> bool | None:
        """Of the last transaction."""
        events = [
            event
            for event in self.client.record.transactions
            if isinstance(event, Ended) and event.transaction == self.transactor.transaction
        ]
        return events[-1].is_commit if events else None


def coordinator_or_none(stage: Stage) -> tuple[Machine, Transactions] | None:
    """Returns the node that coordinates the id now, and its machine."""
    for machine in stage.machines():
        hosts = machine.node.broker.transactions if machine.node is not None else None
        for hosted in hosts.runtime._shards.values() if hosts is not None else ():
            if ID in hosted.machine.transactions and hosted.is_active:
                return machine, hosted.machine
    return None


def coordinator(stage: Stage) -> tuple[Machine, Transactions]:
    stage.wait(lambda: coordinator_or_none(stage) is not None, f"{ID} has a coordinator")
    found = coordinator_or_none(stage)
    assert found is not None
    return found


@pytest.mark.parametrize("is_new", [True, False], ids=["new manner", "old manner"])
def test_failure_06_a_late_write_arrives_after_the_abort(is_new: bool) -> None:
    """It is refused; the last stable offset goes on, as the end of every world demands."""

    def course(stage: Stage) -> None:
        producer = Producer(stage, is_new=is_new)
        producer.opened()
        before = producer.transactor.producer
        producer.ended(is_commit=False)
        _, machine = coordinator(stage)
        stage.wait(lambda: not machine.transactions[ID].is_prepared, "all markers are written")
        codes: list[ErrorCode] = []
        stage.finished(
            stage.perform(producer.client, producer.write_late(before, 2, codes)),
            "the late write is answered",
        )
        stage.require(codes[0] != ErrorCode.NONE, "a write after the abort was taken")

    play(course, has_transactions=True)


@pytest.mark.parametrize("is_late_commit", [True, False], ids=["late commit", "late abort"])
def test_failure_07_a_delayed_end_does_not_decide_a_later_transaction(is_late_commit: bool) -> None:
    """Since each transaction has an epoch of its own."""

    def course(stage: Stage) -> None:
        producer = Producer(stage, is_new=True)
        producer.opened()
        before = producer.transactor.producer
        producer.ended(is_commit=is_late_commit)
        producer.opened()
        codes: list[ErrorCode] = []
        late = producer.end_late(before, is_commit=is_late_commit, codes=codes)
        stage.finished(stage.perform(producer.client, late), "the late end is answered")
        stage.require(codes[0] == ErrorCode.PRODUCER_FENCED, f"the late end got {codes[0].name}")
        stage.let(2)
        producer.ended(is_commit=not is_late_commit)
        stage.require(
            producer.end_known() is not is_late_commit, "the later transaction ended as it was told"
        )

    play(course, has_transactions=True)


@pytest.mark.parametrize("is_late_commit", [True, False], ids=["late commit", "late abort"])
def test_failure_07_a_late_marker_does_not_end_a_later_transaction(is_late_commit: bool) -> None:
    """It has the epoch that the later transaction goes by; such a marker ends only what is older than itself."""

    def course(stage: Stage) -> None:
        producer = Producer(stage, is_new=True)
        producer.opened()
        producer.ended(is_commit=is_late_commit)
        _, machine = coordinator(stage)
        producer.opened()
        codes: list[ErrorCode] = []
        late = producer.mark_late(
            producer.transactor.producer, machine._coordinator_epoch, is_commit=is_late_commit, codes=codes
        )
        stage.finished(stage.perform(producer.client, late), "the late marker is answered")
        stage.require(codes[0] == ErrorCode.INVALID_PRODUCER_EPOCH, f"the late marker got {codes[0].name}")
        producer.ended(is_commit=not is_late_commit)

    play(course, has_transactions=True)


@pytest.mark.parametrize("is_late_commit", [True, False], ids=["late commit", "late abort"])
def test_failure_07_a_repeated_marker_does_not_end_a_later_transaction(is_late_commit: bool) -> None:
    """In the old manner a later transaction has the same epochs; the marker's number distinguishes them."""

    def course(stage: Stage) -> None:
        producer = Producer(stage, is_new=False)
        producer.opened()
        producer.ended(is_commit=is_late_commit)
        _, machine = coordinator(stage)
        stage.wait(lambda: not machine.transactions[ID].is_prepared, "all markers are written")
        before, coordinator_epoch = producer.transactor.producer, machine._coordinator_epoch
        leader = stage.leader_of(P0).node
        assert leader is not None
        partition, _ = leader.broker.replicas.find(P0)
        assert partition is not None
        assert partition.log is not None
        state = partition.log.producers.get(before[0])
        assert state is not None
        ordinal = state.end_ordinal
        producer.opened()
        stage.require(producer.transactor.producer == before, "the epoch is the same all the time")
        codes: list[ErrorCode] = []
        late = producer.mark_late(
            before, coordinator_epoch, is_commit=is_late_commit, codes=codes, ordinal=ordinal
        )
        stage.finished(stage.perform(producer.client, late), "the late marker is answered")
        producer.ended(is_commit=not is_late_commit)

    play(course, has_transactions=True)


def test_failure_07_a_marker_of_an_earlier_coordinator_ends_nothing() -> None:
    """In the old manner the epoch of the coordinator is all that tells it from the right one."""

    def course(stage: Stage) -> None:
        producer = Producer(stage, is_new=False)
        producer.opened()
        producer.ended(is_commit=True)
        before, earlier = producer.transactor.producer, coordinator(stage)[1]._coordinator_epoch
        kill_coordinator(stage)
        producer.opened()
        producer.ended(is_commit=False)
        stage.let(1)
        producer.opened()
        stage.require(producer.transactor.producer == before, "the epoch is the same all the time")
        codes: list[ErrorCode] = []
        late = producer.mark_late(before, earlier, is_commit=True, codes=codes)
        stage.finished(stage.perform(producer.client, late), "the late marker is answered")
        fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        stage.require(codes[0] == fenced, f"the late marker got {codes[0].name}")
        producer.ended(is_commit=False)

    play(course, has_transactions=True)


def kill_coordinator(stage: Stage) -> None:
    machine, _ = coordinator(stage)
    stage.cluster.kill(machine)
    stage.let(10)
    stage.cluster.start_if_down(machine)
    stage.wait_healthy()


@pytest.mark.parametrize("is_new", [True, False], ids=["new manner", "old manner"])
def test_failure_12_the_coordinator_moves_while_a_transaction_is_open(is_new: bool) -> None:
    """What its successor finds in the log is enough to commit everything that was acknowledged."""

    def course(stage: Stage) -> None:
        producer = Producer(stage, is_new=is_new)
        producer.opened()
        kill_coordinator(stage)
        producer.ended(is_commit=True)
        stage.require(producer.end_known() is True, "the transaction is committed")

    play(course, has_transactions=True)


def _is_replicated(host: Machine) -> bool:
    """Whether another node has everything that the transaction coordinators of this one have written."""
    assert host.node is not None
    hosted = host.node.broker.replicas.by_name[TRANSACTIONS_TOPIC].values()
    return all(
        each.log is not None and each.high_watermark == each.log.log_end_offset
        for each in hosted
        if each.is_leader
    )


@pytest.mark.parametrize("is_new", [True, False], ids=["new manner", "old manner"])
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_failure_12_the_coordinator_moves_after_the_decision(is_commit: bool, is_new: bool) -> None:
    """The decision is in its log and no marker is written; its successor writes them."""

    def course(stage: Stage) -> None:
        producer = Producer(stage, is_new=is_new)
        producer.opened()
        host, machine = coordinator(stage)
        ending = stage.perform(producer.client, producer.transactor.end(is_commit=is_commit))
        stage.wait(
            lambda: machine.transactions[ID].is_prepared and _is_replicated(host),
            "the transaction is decided",
        )
        kill_coordinator(stage)
        stage.finished(ending, "the end is answered")
        stage.require(producer.end_known() is is_commit, "the transaction ended as it was told")

    play(course, has_transactions=True)


def test_a_replica_that_starts_with_an_older_high_watermark_knows_what_was_decided() -> None:
    """A transaction ended, and its marker was committed, before the segment was sealed. The checkpoint is from before."""

    def course(stage: Stage) -> None:
        producer = Producer(stage, is_new=True)
        producer.opened()
        stage.wait(lambda: _replica(stage) is not None, "a follower has a part of the transaction")
        follower, replica = _replica(stage) or (None, None)
        assert follower is not None
        assert replica is not None
        node = follower.node
        assert node is not None
        node.broker.data_dir.write_high_watermarks({P0: replica.high_watermark})
        producer.ended(is_commit=True)
        stage.wait(
            lambda: replica.last_stable_offset == replica.high_watermark, "the follower knows of its end"
        )
        assert replica.log is not None
        log, end_offset = replica.log, replica.log.log_end_offset
        log.roll(0)
        stage.wait(lambda: log.recovery_point >= end_offset, "the sealed segment is synced")
        # Its checkpoint follows.
        stage.let(2)
        stage.cluster.kill(follower)
        stage.cluster.start(follower)
        stage.wait_healthy()

    settings = {
        "replica.high.watermark.checkpoint.interval.ms": str(_HOUR_MS),
        "log.flush.interval.ms": "1000",
        "log.flush.scheduler.interval.ms": "1000",
        "log.flush.offset.checkpoint.interval.ms": "1000",
    }
    play(course, has_transactions=True, settings=settings)


def _replica(stage: Stage) -> tuple[Machine, Partition] | None:
    """A follower that shows the beginning of an open transaction."""
    for machine in stage.followers_of(P0):
        found = machine.node.broker.replicas.find((P0.topic, P0.partition))[0] if machine.node else None
        if found is not None and found.last_stable_offset < found.high_watermark:
            return machine, found
    return None


@pytest.mark.parametrize(
    "skew_s",
    [
        pytest.param(3_590, id="clock ahead"),
        pytest.param(-3_590, id="clock behind", marks=pytest.mark.long),
    ],
)
def test_failure_28_an_hour_between_the_clocks_of_two_coordinators_keeps_no_transaction_open(
    skew_s: int,
) -> None:
    """A transaction that no client ends is aborted when its time is over, by the clock of its coordinator then."""

    def course(stage: Stage) -> None:
        producer = Producer(stage, is_new=True, timeout_ms=10_000)
        producer.opened()
        producer.ended(is_commit=True)
        machine, _ = coordinator(stage)
        # A little less than message.timestamp.after.max.ms: producers have the right time.
        machine.clock.skew_ms = skew_s * 1000
        stage.cluster.kill(machine)
        stage.cluster.start(machine)
        stage.wait_healthy()
        stage.wait(
            lambda: (coordinator_or_none(stage) or (None,))[0] is machine,
            "the first one coordinates again",
            600,
        )
        producer.opened()
        stage.kill_client(ID, is_silent=True)
        kill_coordinator(stage)

    play(course, has_transactions=True)
