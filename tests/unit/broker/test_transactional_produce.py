"""Transactional batches wait for their verification by the coordinator (KIP-890)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.broker.replica_world import TOPIC, TOPIC_ID, Answer, World, produced
from tests.unit.broker.transaction_world import (
    NEW,
    OLD,
    OTHER,
    PRODUCER,
    ScriptedVerification,
    mark,
    outcome,
    send,
    verification_of,
)
from tests.wire.batches import TRANSACTIONAL, Header, encode
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import PartitionProduceData, ProduceRequest, TopicProduceData
from tidemill.protocol.api.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tidemill.protocol.record_walk import RECORDS_A_STEP
from tidemill.types import TopicPartition

MakeWorld = Callable[..., World]
REMEMBERED_S = 10


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    world = make_world()
    world.start()
    world.create_topic(min_insync_replicas="2")
    world.settle()
    return world


@pytest.fixture
def coordinator(world: World) -> ScriptedVerification:
    return verification_of(world)


def log_end(world: World, broker_id: int = 1) -> int:
    return int(world[broker_id].log.log_end_offset)


def confirm(world: World, coordinator: ScriptedVerification, code: ErrorCode = ErrorCode.NONE) -> None:
    """Answer the oldest question, inside the broker's loop."""
    question = coordinator.questions.pop(0)
    world._run_in(world[1], lambda: question.answer(code))


def begin(world: World, coordinator: ScriptedVerification, version: int = OLD) -> None:
    """Open a transaction with one batch."""
    first = send(world, 0, version=version)
    confirm(world, coordinator)
    assert outcome(world, first) is ErrorCode.NONE


def test_marker_without_a_producer_is_not_written(world: World) -> None:
    refused = mark(world, is_commit=True, producer_id=-1, epoch=-1)
    assert refused is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert log_end(world) == 0


def test_marker_that_names_a_partition_often_is_written_once(world: World) -> None:
    named = WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[0] * 1_000)
    marker = WritableTxnMarker(
        producer_id=PRODUCER,
        producer_epoch=0,
        transaction_result=False,
        coordinator_epoch=0,
        topics=[named, named],
    )
    answer = world.ask(1, WriteTxnMarkersRequest(markers=[marker]))
    world.until(lambda: answer.is_there, "an answer to a marker")
    (result,) = answer.response.markers
    assert [each.error_code for topic in result.topics for each in topic.partitions] == [ErrorCode.NONE]
    assert log_end(world) == 1


class TestRepeatedMarkers:
    """A coordinator repeats a request that was not answered in time, and both may arrive."""

    def test_repeated_marker_is_written_once(self, world: World, coordinator: ScriptedVerification) -> None:
        begin(world, coordinator)
        for _ in range(2):
            assert mark(world, is_commit=True, ordinal=5) is ErrorCode.NONE
        assert log_end(world) == 2

    @pytest.mark.parametrize("is_commit", [True, False])
    def test_failure_07_repetition_that_is_late_leaves_the_next_transaction_open(
        self, world: World, coordinator: ScriptedVerification, is_commit: bool
    ) -> None:
        begin(world, coordinator)
        assert mark(world, is_commit=is_commit, ordinal=5) is ErrorCode.NONE
        following = send(world, 1)
        confirm(world, coordinator)
        assert outcome(world, following) is ErrorCode.NONE
        assert mark(world, is_commit=is_commit, ordinal=5) is ErrorCode.NONE
        producers = world[1].log.producers
        assert producers.is_open(PRODUCER, 0)
        assert mark(world, is_commit=True, ordinal=6) is ErrorCode.NONE
        assert not producers.is_open(PRODUCER, 0)

    def test_repetition_does_not_void_the_verification_of_the_next_transaction(
        self, world: World, coordinator: ScriptedVerification
    ) -> None:
        begin(world, coordinator)
        assert mark(world, is_commit=True, ordinal=5) is ErrorCode.NONE
        following = send(world, 1)
        assert mark(world, is_commit=True, ordinal=5) is ErrorCode.NONE
        confirm(world, coordinator)
        assert outcome(world, following) is ErrorCode.NONE

    @pytest.mark.parametrize("difference", [-1, 1])
    def test_marker_for_another_leader_epoch_is_not_written(
        self, world: World, coordinator: ScriptedVerification, difference: int
    ) -> None:
        begin(world, coordinator)
        epoch = world[1].partition().leadership.leader_epoch
        refused = mark(world, is_commit=True, ordinal=5, leader_epochs=[epoch + difference])
        assert refused is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert log_end(world) == 1
        assert mark(world, is_commit=True, ordinal=5, leader_epochs=[epoch]) is ErrorCode.NONE

    @pytest.mark.parametrize("leader_epochs", [[9, 9], [9, 9, 9]])
    def test_leader_epochs_that_do_not_match_the_partitions_are_ignored(
        self, world: World, coordinator: ScriptedVerification, leader_epochs: list[int]
    ) -> None:
        begin(world, coordinator)
        assert mark(world, is_commit=True, leader_epochs=leader_epochs) is ErrorCode.NONE


class TestVerification:
    @pytest.mark.parametrize(("version", "adds"), [(OLD, False), (NEW, True)])
    def test_the_first_batch_waits_for_the_coordinator(
        self, world: World, coordinator: ScriptedVerification, version: int, adds: bool
    ) -> None:
        first = send(world, 0, version=version)
        world.settle()
        assert not first.is_there
        assert log_end(world) == 0
        (question,) = coordinator.questions
        assert question.transactional_id == "tx"
        assert question.producer == (PRODUCER, 0)
        assert question.partitions == [TopicPartition(TOPIC, 0)]
        assert question.adds is adds
        confirm(world, coordinator)
        assert outcome(world, first) is ErrorCode.NONE
        assert produced(first).base_offset == 0

    def test_later_batches_wait_in_order_for_one_verification(
        self, world: World, coordinator: ScriptedVerification
    ) -> None:
        waiting = [send(world, sequence) for sequence in range(4)]
        assert len(coordinator.questions) == 1
        assert log_end(world) == 0
        confirm(world, coordinator)
        assert [outcome(world, answer) for answer in waiting] == [ErrorCode.NONE] * 4
        assert [produced(answer).base_offset for answer in waiting] == [0, 1, 2, 3]
        assert world[1].values() == [b"0", b"1", b"2", b"3"]

    def test_another_producer_does_not_wait(self, world: World, coordinator: ScriptedVerification) -> None:
        held = send(world, 0)
        plain = send(world, 0, producer_id=OTHER, transactional_id=None, attributes=0)
        assert outcome(world, plain) is ErrorCode.NONE
        assert not held.is_there

    def test_open_transaction_is_verified_once(self, world: World, coordinator: ScriptedVerification) -> None:
        begin(world, coordinator)
        assert outcome(world, send(world, 1)) is ErrorCode.NONE
        assert not coordinator.questions
        assert mark(world, is_commit=True) is ErrorCode.NONE
        following = send(world, 2)
        assert len(coordinator.questions) == 1
        confirm(world, coordinator)
        assert outcome(world, following) is ErrorCode.NONE

    def test_the_batch_is_kept_while_its_frame_is_reused(
        self, world: World, coordinator: ScriptedVerification
    ) -> None:
        waiting = send(world, 0, values=[b"kept"])
        confirm(world, coordinator)
        assert outcome(world, waiting) is ErrorCode.NONE
        assert world[1].values() == [b"kept"]

    def test_a_retry_is_recognised(self, world: World, coordinator: ScriptedVerification) -> None:
        begin(world, coordinator)
        assert outcome(world, send(world, 1)) is ErrorCode.NONE
        again = send(world, 1)
        assert outcome(world, again) is ErrorCode.NONE
        assert produced(again).base_offset == 1
        assert log_end(world) == 2

    def test_a_retry_that_waits_behind_the_first_try(
        self, world: World, coordinator: ScriptedVerification
    ) -> None:
        waiting = [send(world, 0), send(world, 0)]
        confirm(world, coordinator)
        assert [outcome(world, answer) for answer in waiting] == [ErrorCode.NONE] * 2
        assert [produced(answer).base_offset for answer in waiting] == [0, 0]
        assert log_end(world) == 1


class TestLate:
    @pytest.mark.parametrize("is_commit", [False, True])
    def test_failure_06_verification_before_the_marker_is_void(
        self, world: World, coordinator: ScriptedVerification, is_commit: bool
    ) -> None:
        late = send(world, 0)
        assert mark(world, is_commit=is_commit) is ErrorCode.NONE
        confirm(world, coordinator)
        assert outcome(world, late) is ErrorCode.INVALID_TXN_STATE
        partition = world[1].partition()
        assert log_end(world) == 1  # the marker
        assert partition.last_stable_offset == partition.high_watermark == 1

    def test_failure_06_verification_is_void_for_the_next_transaction(
        self, world: World, coordinator: ScriptedVerification
    ) -> None:
        """The old answer is right about a transaction that is over; the new one is not confirmed yet."""
        late = send(world, 0)
        assert mark(world, is_commit=False) is ErrorCode.NONE
        following = send(world, 1)
        assert len(coordinator.questions) == 2
        confirm(world, coordinator)
        assert outcome(world, late) is ErrorCode.INVALID_TXN_STATE
        assert not following.is_there
        assert log_end(world) == 1
        confirm(world, coordinator, ErrorCode.INVALID_TXN_STATE)
        assert outcome(world, following) is ErrorCode.INVALID_TXN_STATE
        assert world[1].partition().last_stable_offset == 1

    def test_failure_06_a_write_after_the_abort_is_verified_again(
        self, world: World, coordinator: ScriptedVerification
    ) -> None:
        begin(world, coordinator)
        assert mark(world, is_commit=False) is ErrorCode.NONE
        late = send(world, 1)
        confirm(world, coordinator, ErrorCode.TRANSACTION_ABORTABLE)
        assert outcome(world, late) is ErrorCode.TRANSACTION_ABORTABLE
        partition = world[1].partition()
        assert partition.last_stable_offset == partition.high_watermark == 2

    def test_failure_06_write_after_the_abort_is_fenced_by_its_epoch(
        self, world: World, coordinator: ScriptedVerification
    ) -> None:
        begin(world, coordinator, version=NEW)
        late = send(world, 1, version=NEW)
        assert outcome(world, late) is ErrorCode.NONE
        assert mark(world, is_commit=False, epoch=1) is ErrorCode.NONE
        later = send(world, 2, version=NEW)
        confirm(world, coordinator)
        assert outcome(world, later) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert world[1].partition().last_stable_offset == 3

    def test_leadership_lost_during_verification(
        self, world: World, coordinator: ScriptedVerification
    ) -> None:
        late = send(world, 0)
        world.change(leader=2)
        world.settle()
        confirm(world, coordinator)
        assert outcome(world, late) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_leadership_lost_and_regained_during_verification(
        self, world: World, coordinator: ScriptedVerification
    ) -> None:
        late = send(world, 0)
        world.change(leader=2)
        world.settle()
        world.change(leader=1)
        world.settle()
        confirm(world, coordinator)
        assert outcome(world, late) is ErrorCode.INVALID_TXN_STATE
        assert log_end(world) == 0

    def test_new_producer_epoch_during_verification(
        self, world: World, coordinator: ScriptedVerification
    ) -> None:
        old = send(world, 0)
        new = send(world, 0, epoch=1, values=[b"new"])
        assert len(coordinator.questions) == 2
        confirm(world, coordinator)
        assert outcome(world, old) is ErrorCode.INVALID_TXN_STATE
        confirm(world, coordinator)
        assert outcome(world, new) is ErrorCode.NONE
        assert world[1].values() == [b"new"]

    def test_an_old_epoch_behind_a_new_one(self, world: World, coordinator: ScriptedVerification) -> None:
        new = send(world, 0, epoch=1, values=[b"new"])
        old = send(world, 0)
        confirm(world, coordinator)
        assert outcome(world, new) is ErrorCode.NONE
        confirm(world, coordinator)
        assert outcome(world, old) is ErrorCode.INVALID_TXN_STATE
        assert world[1].values() == [b"new"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("code", "version", "told"),
        [
            (ErrorCode.INVALID_TXN_STATE, OLD, ErrorCode.INVALID_TXN_STATE),
            (ErrorCode.INVALID_PRODUCER_EPOCH, NEW, ErrorCode.INVALID_PRODUCER_EPOCH),
            (ErrorCode.INVALID_PRODUCER_ID_MAPPING, NEW, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            (ErrorCode.TRANSACTION_ABORTABLE, NEW, ErrorCode.TRANSACTION_ABORTABLE),
            (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
            (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
            (ErrorCode.CONCURRENT_TRANSACTIONS, NEW, ErrorCode.CONCURRENT_TRANSACTIONS),
            (ErrorCode.CONCURRENT_TRANSACTIONS, OLD, ErrorCode.NOT_ENOUGH_REPLICAS),
            (ErrorCode.NETWORK_EXCEPTION, NEW, ErrorCode.NOT_ENOUGH_REPLICAS),
            (ErrorCode.NOT_COORDINATOR, OLD, ErrorCode.NOT_ENOUGH_REPLICAS),
            (ErrorCode.COORDINATOR_NOT_AVAILABLE, NEW, ErrorCode.NOT_ENOUGH_REPLICAS),
            (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, OLD, ErrorCode.NOT_ENOUGH_REPLICAS),
        ],
    )
    def test_verification_error_becomes_produce_error(
        self,
        world: World,
        coordinator: ScriptedVerification,
        code: ErrorCode,
        version: int,
        told: ErrorCode,
    ) -> None:
        waiting = [send(world, 0, version=version), send(world, 1, version=version)]
        confirm(world, coordinator, code)
        assert [outcome(world, answer) for answer in waiting] == [told] * 2
        assert log_end(world) == 0

    def test_failure_09_a_batch_behind_one_that_could_not_be_verified(
        self, world: World, coordinator: ScriptedVerification
    ) -> None:
        first = send(world, 0)
        confirm(world, coordinator, ErrorCode.NETWORK_EXCEPTION)
        assert outcome(world, first) is ErrorCode.NOT_ENOUGH_REPLICAS
        second = send(world, 1)
        confirm(world, coordinator)
        assert outcome(world, second) is ErrorCode.NOT_ENOUGH_REPLICAS
        again = [send(world, 0), send(world, 1)]
        confirm(world, coordinator)
        assert [outcome(world, answer) for answer in again] == [ErrorCode.NONE] * 2
        assert world[1].values() == [b"0", b"1"]

    def test_a_first_batch_that_never_comes_is_a_gap(
        self, world: World, coordinator: ScriptedVerification
    ) -> None:
        first = send(world, 0)
        confirm(world, coordinator, ErrorCode.NETWORK_EXCEPTION)
        assert outcome(world, first) is ErrorCode.NOT_ENOUGH_REPLICAS
        world.settle(REMEMBERED_S + 1)
        second = send(world, 1)
        confirm(world, coordinator)
        assert outcome(world, second) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    @pytest.mark.parametrize(
        ("version", "expected"), [(OLD, ErrorCode.NONE), (NEW, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)]
    )
    def test_an_unknown_producer_in_the_middle_of_its_sequence(
        self, world: World, coordinator: ScriptedVerification, version: int, expected: ErrorCode
    ) -> None:
        middle = send(world, 5, version=version)
        confirm(world, coordinator)
        assert outcome(world, middle) is expected

    def test_without_a_transactional_id(self, world: World, coordinator: ScriptedVerification) -> None:
        refused = send(world, 0, transactional_id=None)
        assert outcome(world, refused) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert not coordinator.questions

    def test_outside_of_the_open_transaction(self, world: World, coordinator: ScriptedVerification) -> None:
        begin(world, coordinator)
        outside = send(world, 1, transactional_id=None, attributes=0)
        assert outcome(world, outside) is ErrorCode.INVALID_TXN_STATE

    def test_two_producers_in_one_request(self, world: World, coordinator: ScriptedVerification) -> None:
        data = [
            PartitionProduceData(
                index=index,
                records=encode(
                    [b"v"],
                    Header(producer_id=index, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL),
                ),
            )
            for index in range(2)
        ]
        topic = TopicProduceData(name=TOPIC, topic_id=TOPIC_ID, partition_data=data)
        answer = world.ask(1, ProduceRequest(transactional_id="tx", acks=-1, topic_data=[topic]), NEW)
        told = [each.error_code for each in answer.response.responses[0].partition_responses]
        assert told == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
        assert not coordinator.questions

    def test_too_few_in_sync_are_found_after_the_confirmation(
        self, world: World, coordinator: ScriptedVerification
    ) -> None:
        world.alter_partition = lambda _request: ErrorCode.INELIGIBLE_REPLICA
        world.change(isr=[1])
        world.settle()
        refused: Answer = send(world, 0)
        confirm(world, coordinator)
        assert outcome(world, refused) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert mark(world, is_commit=False) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_batch_that_takes_long_to_look_into_keeps_its_place_in_the_transaction(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.start()
    world.create_topic(compression_type="gzip")
    world.settle()
    coordinator = verification_of(world)
    count = 3 * RECORDS_A_STEP
    header = Header(
        attributes=TRANSACTIONAL,
        base_timestamp_ms=0,
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=0,
    )
    data = PartitionProduceData(index=0, records=encode([b"x"] * count, header))
    topic = TopicProduceData(topic_id=TOPIC_ID, name=TOPIC, partition_data=[data])
    request = ProduceRequest(transactional_id="tx", acks=-1, timeout_ms=10_000, topic_data=[topic])
    first = world.ask(1, request)
    confirm(world, coordinator)
    second = send(world, count, version=NEW)
    while not second.is_there:
        if coordinator.questions:
            confirm(world, coordinator)
        world.settle(0.1)
    assert [produced(answer).error_code for answer in (first, second)] == [0, 0]
    assert [produced(answer).base_offset for answer in (first, second)] == [0, count]
    assert mark(world, is_commit=True) is ErrorCode.NONE
