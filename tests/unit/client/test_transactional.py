"""Producers of whole batches: no loss, duplicate or reordering, and the requests of a transaction."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from tests.unit.client.scripted_producing import LOST_AFTER, LOST_BEFORE, Fault, ProducingNetwork
from tidemill.client.connections.connection import ConnectionLost
from tidemill.client.producing.transactional import (
    BatchProducer,
    CommittedOffset,
    DeliveryFailed,
    Fenced,
    RecordTooLarge,
    TransactionalProducer,
    TransactionFailed,
    stable_offsets,
)
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.data import ProduceRequest
from tidemill.protocol.api.offsets import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tidemill.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.records import HEADER_SIZE, Record, build_batch, header_at
from tidemill.types import TopicPartition

P0, P1, P2 = (TopicPartition("orders", index) for index in range(3))


class Batch(NamedTuple):
    records: memoryview
    record_count: int
    base_timestamp: int
    max_timestamp: int


def batch(*values: bytes) -> Batch:
    data = build_batch([Record(index, 1000, None, value) for index, value in enumerate(values)])
    return Batch(memoryview(data)[HEADER_SIZE:], len(values), 1000, 1000)


class TestBatchProducer:
    def test_batches_are_sent_ahead_and_never_more_than_brokers_remember(self) -> None:
        network = ProducingNetwork()
        producer = BatchProducer(network.cluster())
        for number in range(20):
            producer.produce([(P0, batch(b"%d" % number))])
        assert network.in_flight_max == 5
        producer.flush()
        assert network.logs[P0].values == [b"%d" % number for number in range(20)]

    def test_one_request_takes_a_batch_of_each_partition_of_a_leader(self) -> None:
        network = ProducingNetwork()
        producer = BatchProducer(network.cluster())
        producer.produce([(P0, batch(b"a")), (P1, batch(b"b")), (P2, batch(b"c")), (P0, batch(b"d"))])
        producer.flush()
        asked = [
            [data.index for data in request.topic_data[0].partition_data]
            for request in network.asked_of(ProduceRequest)
        ]
        assert asked == [[0, 2], [1], [0]]
        assert network.logs[P0].values == [b"a", b"d"]

    @pytest.mark.parametrize("codec", list(CompressionType))
    def test_batches_are_compressed_and_carry_their_sequence(self, codec: CompressionType) -> None:
        network = ProducingNetwork()
        producer = BatchProducer(network.cluster(), codec=codec)
        producer.produce([(P0, batch(b"a" * 500, b"b" * 500)), (P0, batch(b"c"))])
        producer.flush()
        first, second = (
            header_at(bytes(request.topic_data[0].partition_data[0].records))
            for request in network.asked_of(ProduceRequest)
        )
        assert (first.codec, first.base_sequence, first.record_count) == (codec, 0, 2)
        assert (second.base_sequence, second.producer_id, second.is_transactional) == (2, 7, False)
        assert network.logs[P0].values == [b"a" * 500, b"b" * 500, b"c"]

    @pytest.mark.parametrize("seed", range(40))
    def test_whatever_passes_again_leaves_everything_once_and_in_order(self, seed: int) -> None:
        source = random.Random(seed)
        network = ProducingNetwork()
        kinds: list[Fault] = [
            LOST_BEFORE,
            LOST_AFTER,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.REQUEST_TIMED_OUT,
        ]

        def fault(_: TopicPartition) -> Fault:
            if source.random() < 0.05:
                network.move_leaders(source)
            return source.choice(kinds) if source.random() < 0.15 else None

        network.faults = fault
        producer = BatchProducer(network.cluster())
        written: dict[TopicPartition, list[bytes]] = {P0: [], P1: [], P2: []}
        for number in range(100):
            partition = source.choice((P0, P1, P2))
            values = [b"%d-%d" % (number, index) for index in range(source.randrange(1, 4))]
            written[partition] += values
            producer.produce([(partition, batch(*values))])
            if source.random() < 0.05:
                producer.flush()
        producer.flush()
        assert {partition: log.values for partition, log in network.logs.items()} == written

    def test_a_partition_that_stays_without_a_leader_is_given_up_and_named(self) -> None:
        network = ProducingNetwork()
        network.leaders[P0] = -1
        producer = BatchProducer(network.cluster(), delivery_timeout_s=20.0)
        with pytest.raises(DeliveryFailed, match=r"orders-0: not written within 20 s; .*no leader"):
            producer.produce([(P0, batch(b"a"))])
        assert 15 < network.now_s <= 20

    def test_out_of_order_sequence_without_an_earlier_failure_raises(self) -> None:
        network = ProducingNetwork()
        network.faults = lambda _: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        producer = BatchProducer(network.cluster())
        producer.produce([(P0, batch(b"a"))])
        with pytest.raises(ApiError, match=r"OUT_OF_ORDER_SEQUENCE_NUMBER: orders-0"):
            producer.flush()

    def test_a_batch_that_is_too_large_is_named_with_its_size(self) -> None:
        network = ProducingNetwork()
        network.faults = lambda _: ErrorCode.MESSAGE_TOO_LARGE
        producer = BatchProducer(network.cluster())
        producer.produce([(P1, batch(b"a" * 2000))])
        with pytest.raises(RecordTooLarge, match=r"orders-1 .* 2,\d{3} bytes .*max\.message\.bytes"):
            producer.flush()


def added(*partitions: TopicPartition) -> AddPartitionsToTxnResponse:
    results = [AddPartitionsToTxnPartitionResult(partition_index=each.partition) for each in partitions]
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(name="orders", results_by_partition=results)
        ]
    )


def offsets_taken(code: int = 0) -> TxnOffsetCommitResponse:
    partition = TxnOffsetCommitResponsePartition(partition_index=0, error_code=code)
    return TxnOffsetCommitResponse(
        topics=[TxnOffsetCommitResponseTopic(name="orders", partitions=[partition])]
    )


class TestTransactions:
    def test_transaction_version_2_writes_at_once_and_takes_the_new_epoch(self) -> None:
        network = ProducingNetwork()
        network.answers[EndTxnRequest] = [EndTxnResponse(producer_id=7, producer_epoch=1), EndTxnResponse()]
        network.answers[TxnOffsetCommitRequest] = [offsets_taken()]
        producer = TransactionalProducer(network.cluster(), "tx")
        producer.init()
        for value in (b"a", b"b"):
            producer.begin()
            producer.produce([(P0, batch(value))])
            if value == b"a":
                producer.send_offsets("group", {P0: CommittedOffset(5, "rows")})
            producer.commit()
        first, second = (
            header_at(bytes(request.topic_data[0].partition_data[0].records))
            for request in network.asked_of(ProduceRequest)
        )
        assert (first.producer_epoch, first.base_sequence, first.is_transactional) == (0, 0, True)
        assert (second.producer_epoch, second.base_sequence) == (1, 0)
        (commit,) = network.asked_of(TxnOffsetCommitRequest)
        assert (commit.group_id, commit.topics[0].partitions[0].committed_metadata) == ("group", "rows")
        assert [end.producer_epoch for end in network.asked_of(EndTxnRequest)] == [0, 1]
        assert network.asked_of(AddPartitionsToTxnRequest) == []

    def test_transaction_version_1_adds_first_and_bumps_its_epoch_after_an_abort(self) -> None:
        network = ProducingNetwork(transaction_version=1)
        network.answers[AddPartitionsToTxnRequest] = [added(P0), added(P1)]
        network.answers[AddOffsetsToTxnRequest] = [AddOffsetsToTxnResponse()]
        network.answers[TxnOffsetCommitRequest] = [offsets_taken()]
        network.answers[EndTxnRequest] = [EndTxnResponse()]
        producer = TransactionalProducer(network.cluster(), "tx")
        producer.init()
        producer.begin()
        producer.produce([(P0, batch(b"a"))])
        producer.produce([(P0, batch(b"b")), (P1, batch(b"c"))])
        producer.send_offsets("group", {P0: CommittedOffset(5, "")})
        producer.abort()
        kinds = [type(request).__name__ for request in network.asked if "Txn" in type(request).__name__]
        assert kinds == [
            "AddPartitionsToTxnRequest",
            "AddPartitionsToTxnRequest",
            "AddOffsetsToTxnRequest",
            "TxnOffsetCommitRequest",
            "EndTxnRequest",
        ]
        assert [init.producer_epoch for init in network.asked_of(InitProducerIdRequest)] == [-1, 0]

    def test_init_waits_while_another_transaction_ends(self) -> None:
        network = ProducingNetwork()
        busy = InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
        network.answers[InitProducerIdRequest] = [busy, busy]
        producer = TransactionalProducer(network.cluster(), "tx")
        producer.init()
        assert len(network.asked_of(InitProducerIdRequest)) == 3

    @pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
    def test_fenced_producer_stays_fenced(self, code: ErrorCode) -> None:
        network = ProducingNetwork()
        producer = TransactionalProducer(network.cluster(), "tx")
        producer.init()
        producer.begin()
        network.faults = lambda _: code
        producer.produce([(P0, batch(b"a"))])
        with pytest.raises(Fenced, match="the producer tx was fenced"):
            producer.commit()
        assert len(network.asked_of(InitProducerIdRequest)) == 1
        assert network.asked_of(EndTxnRequest) == []

    def test_a_fenced_commit(self) -> None:
        network = ProducingNetwork()
        network.answers[EndTxnRequest] = [EndTxnResponse(error_code=ErrorCode.PRODUCER_FENCED)]
        producer = TransactionalProducer(network.cluster(), "tx")
        producer.init()
        producer.begin()
        producer.produce([(P0, batch(b"a"))])
        with pytest.raises(Fenced):
            producer.commit()

    def test_commit_with_a_lost_answer_is_repeated(self) -> None:
        network = ProducingNetwork()
        network.answers[EndTxnRequest] = [
            ConnectionLost("reset"),
            EndTxnResponse(producer_id=7, producer_epoch=1),
        ]
        producer = TransactionalProducer(network.cluster(), "tx")
        producer.init()
        producer.begin()
        producer.produce([(P0, batch(b"a"))])
        producer.commit()
        assert [end.committed for end in network.asked_of(EndTxnRequest)] == [True, True]

    def test_transaction_that_the_coordinator_aborted_fails(self) -> None:
        network = ProducingNetwork()
        network.answers[TxnOffsetCommitRequest] = [offsets_taken(ErrorCode.TRANSACTION_ABORTABLE)]
        producer = TransactionalProducer(network.cluster(), "tx")
        producer.init()
        producer.begin()
        with pytest.raises(TransactionFailed, match="the transaction of tx failed"):
            producer.send_offsets("group", {P0: CommittedOffset(1, "")})

    def test_empty_transaction_sends_no_request(self) -> None:
        network = ProducingNetwork()
        producer = TransactionalProducer(network.cluster(), "tx")
        producer.init()
        producer.begin()
        producer.commit()
        assert network.asked_of(EndTxnRequest) == []


def test_offsets_are_read_when_no_transaction_is_about_to_change_them() -> None:
    def answer(code: int, offset: int) -> OffsetFetchResponse:
        partition = OffsetFetchResponsePartitions(
            partition_index=0, committed_offset=offset, metadata="m", error_code=code
        )
        topics = [OffsetFetchResponseTopics(name="orders", partitions=[partition])]
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="g", topics=topics)])

    network = ProducingNetwork()
    network.answers[OffsetFetchRequest] = [
        answer(ErrorCode.UNSTABLE_OFFSET_COMMIT, -1),
        answer(0, 4),
        answer(0, -1),
    ]
    assert stable_offsets(network.cluster(), "g") == {P0: CommittedOffset(4, "m")}
    assert stable_offsets(network.cluster(), "g", [P0, P2]) == {}
    asked = network.asked_of(OffsetFetchRequest)
    assert all(request.require_stable for request in asked)
    (wanted,) = asked[2].groups[0].topics
    assert (asked[0].groups[0].topics, wanted.name, wanted.partition_indexes) == (None, "orders", [0, 2])
