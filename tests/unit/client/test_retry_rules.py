"""Retries: which errors, at which broker, and for how long."""

from __future__ import annotations

import pytest

from tests.unit.client.scripted import Answer, ScriptedNetwork
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster, check, parse_bootstrap
from tidemill.client.connections.connection import Address, BrokerUnreachable, Connection, ConnectionLost
from tidemill.client.producing.producer import Producer
from tidemill.client.retry import UnknownTopic, may_retry
from tidemill.errors import ApiError, ConfigError, ErrorCode, TidemillError
from tidemill.protocol.api.admin import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from tidemill.protocol.api.cluster import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
)
from tidemill.protocol.api.data import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidemill.protocol.api.offsets import OffsetCommitRequest, OffsetCommitResponse
from tidemill.protocol.api.transactions import InitProducerIdRequest, InitProducerIdResponse
from tidemill.protocol.records import header_at
from tidemill.protocol.schema import Request
from tidemill.types import TopicPartition

DEAD = 9
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.mark.parametrize(
    ("failure", "if_repeatable", "if_not"),
    [
        (BrokerUnreachable("refused"), True, True),
        (ConnectionLost("reset"), True, False),
        (ApiError(ErrorCode.NOT_CONTROLLER), True, True),
        (ApiError(ErrorCode.REQUEST_TIMED_OUT), True, False),
        (ApiError(ErrorCode.INVALID_CONFIG), False, False),
        (UnknownTopic("gone"), False, False),
        (ConfigError("wrong"), False, False),
    ],
)
def test_rules(failure: TidemillError, if_repeatable: bool, if_not: bool) -> None:
    assert may_retry(failure, is_repeatable=True) is if_repeatable
    assert may_retry(failure, is_repeatable=False) is if_not


def offsets(**by_partition: tuple[int, int]) -> ListOffsetsResponse:
    """`p0=(error code, offset)`"""
    partitions = [
        ListOffsetsPartitionResponse(partition_index=int(name[1:]), error_code=code, offset=offset)
        for name, (code, offset) in by_partition.items()
    ]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=partitions)])


def script(leaders: list[int], request: type[Request], *answers: Answer) -> ScriptedNetwork:
    network = ScriptedNetwork({"orders": leaders})
    network.answers[request] = list(answers)
    return network


def test_only_the_failed_partition_is_retried_at_its_new_leader() -> None:
    moved = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    network = script([1, 1], ListOffsetsRequest)

    def first(request: Request) -> ListOffsetsResponse:
        network.leaders["orders"] = [1, 2]
        return offsets(p0=(0, 10), p1=(moved, -1))

    network.answers[ListOffsetsRequest] = [first, offsets(p1=(0, 20))]
    with network.cluster() as cluster:
        assert Admin(cluster).end_offsets([P0, P1]) == {P0: 10, P1: 20}
    assert network.asked_of(ListOffsetsRequest) == [1, 2]


def test_unknown_partition_is_retried_only_after_metadata_confirmed_it() -> None:
    unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    network = script([1], ListOffsetsRequest)

    def deleted_meanwhile(request: Request) -> ListOffsetsResponse:
        del network.leaders["orders"]
        return offsets(p0=(unknown, -1))

    network.answers[ListOffsetsRequest] = [deleted_meanwhile]
    with network.cluster() as cluster, pytest.raises(UnknownTopic, match="no topic orders"):
        Admin(cluster).end_offsets([P0])


def test_retries_end_with_the_last_failure_when_the_time_is_over() -> None:
    busy = int(ErrorCode.LEADER_NOT_AVAILABLE)
    network = script([1], ListOffsetsRequest, *[offsets(p0=(busy, -1))] * 100)
    with network.cluster(timeout_s=5.0) as cluster, pytest.raises(ApiError) as caught:
        Admin(cluster).end_offsets([P0])
    assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert "orders-0" in caught.value.message
    assert 3.0 < network.now_s <= 5.0
    # The waits grow: 0.05 + 0.1 + 0.2 + 0.4 + 0.8 s, then a second each time.
    assert 5 < len(network.asked_of(ListOffsetsRequest)) < 12


def test_an_error_that_is_final_is_not_retried() -> None:
    refused = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    network = script([1], ListOffsetsRequest, offsets(p0=(refused, -1)))
    with network.cluster() as cluster, pytest.raises(ApiError, match="TOPIC_AUTHORIZATION_FAILED"):
        Admin(cluster).end_offsets([P0])
    assert network.now_s == 0.0


def test_a_missing_topic_fails_at_once() -> None:
    network = ScriptedNetwork({})
    with network.cluster() as cluster, pytest.raises(UnknownTopic, match="no topic orders"):
        cluster.partitions_of("orders")
    assert network.now_s == 0.0


def test_a_partition_that_does_not_exist_is_named() -> None:
    network = ScriptedNetwork({"orders": [1, 2]})
    with network.cluster() as cluster, pytest.raises(UnknownTopic, match="no partition 7, only 0 to 1"):
        Admin(cluster).end_offsets([TopicPartition("orders", 7)])


def created(error_code: int = 0) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[CreatableTopicResult(name="orders", error_code=error_code)])


def test_creating_is_not_repeated_after_a_lost_connection() -> None:
    network = script([1], CreateTopicsRequest, ConnectionLost("reset"), created())
    with network.cluster() as cluster, pytest.raises(ConnectionLost):
        Admin(cluster).create_topic("orders")
    assert len(network.asked_of(CreateTopicsRequest)) == 1


def test_creating_is_repeated_when_the_controller_moved() -> None:
    network = script([1], CreateTopicsRequest, created(int(ErrorCode.NOT_CONTROLLER)), created())
    with network.cluster() as cluster:
        assert Admin(cluster).create_topic("orders").name == "orders"
    assert len(network.asked_of(CreateTopicsRequest)) == 2


def test_dead_coordinator_is_looked_up_again() -> None:
    network = ScriptedNetwork({})
    found = [FindCoordinatorResponse(coordinators=[Coordinator(host="b", port=port)]) for port in (DEAD, 2)]
    network.answers[FindCoordinatorRequest] = [*found]
    network.answers[OffsetCommitRequest] = [OffsetCommitResponse()]
    network.refused.add(DEAD)
    # Nothing else was asked before: it does not even know the cluster's brokers.
    GroupAdmin(network.cluster()).commit("g", {})
    assert network.asked_of(OffsetCommitRequest) == [2]


def test_a_cluster_that_was_never_reached_is_not_waited_for() -> None:
    def refuse(address: Address) -> Connection:
        raise BrokerUnreachable(f"{address}: connection refused")

    def sleep(_: float) -> None:
        raise AssertionError("waited")

    cluster = Cluster("a:1,b:2", connect=refuse, sleep=sleep)
    with pytest.raises(BrokerUnreachable, match=r"a:1: connection refused; b:2: connection refused"):
        cluster.retrying(lambda: cluster.load_metadata([]))


def produced(error_code: int = 0, base_offset: int = 0) -> ProduceResponse:
    answer = PartitionProduceResponse(index=0, error_code=error_code, base_offset=base_offset)
    return ProduceResponse(responses=[TopicProduceResponse(name="orders", partition_responses=[answer])])


def sequences(network: ScriptedNetwork) -> list[tuple[int, int]]:
    """(base sequence, records) of every batch that was sent."""
    headers = [
        header_at(partition.records or b"")
        for _, request in network.asked
        if isinstance(request, ProduceRequest)
        for topic in request.topic_data
        for partition in topic.partition_data
    ]
    return [(header.base_sequence, header.record_count) for header in headers]


def test_an_idempotent_producer_sends_the_same_sequence_again() -> None:
    network = script([1], ProduceRequest, produced(), ConnectionLost("reset"), produced(base_offset=2))
    network.answers[InitProducerIdRequest] = [InitProducerIdResponse(producer_id=5, producer_epoch=0)]
    with network.cluster() as cluster:
        producer = Producer(cluster, wall_ms=lambda: 1)
        for count in (2, 3):
            for _ in range(count):
                producer.add("orders", b"v")
            producer.flush()
    assert sequences(network) == [(0, 2), (2, 3), (2, 3)]
    assert [(each.base_offset, each.record_count) for each in producer.appended] == [(0, 2), (2, 3)]


def test_without_acks_all_a_lost_connection_raises() -> None:
    network = script([1], ProduceRequest, ConnectionLost("reset"), produced())
    with network.cluster() as cluster:
        producer = Producer(cluster, acks=1, wall_ms=lambda: 1)
        producer.add("orders", b"v")
        with pytest.raises(ConnectionLost):
            producer.flush()
    assert producer.appended == []
    assert sequences(network) == [(-1, 1)]


def test_a_batch_that_is_too_large_is_cut_in_halves() -> None:
    too_large = int(ErrorCode.MESSAGE_TOO_LARGE)
    network = script([1], ProduceRequest, produced(too_large), produced(), produced(base_offset=1))
    with network.cluster() as cluster:
        producer = Producer(cluster, acks=1, wall_ms=lambda: 1)
        for _ in range(3):
            producer.add("orders", b"v")
        producer.flush()
    assert [records for _, records in sequences(network)] == [3, 1, 2]
    assert sum(each.record_count for each in producer.appended) == 3


def test_a_single_record_that_is_too_large_is_an_error() -> None:
    network = script([1], ProduceRequest, produced(int(ErrorCode.MESSAGE_TOO_LARGE)))
    with network.cluster() as cluster:
        producer = Producer(cluster, acks=1, wall_ms=lambda: 1)
        producer.add("orders", b"v")
        with pytest.raises(ApiError, match="MESSAGE_TOO_LARGE"):
            producer.flush()


def test_metadata_request_creates_no_topic() -> None:
    network = ScriptedNetwork({})
    with network.cluster() as cluster, pytest.raises(UnknownTopic):
        cluster.topic("orders")
    (request,) = [request for _, request in network.asked if isinstance(request, MetadataRequest)]
    assert request.allow_auto_topic_creation is False


def test_an_error_code_from_the_future_is_still_an_error() -> None:
    with pytest.raises(ApiError) as caught:
        check(9999, "something new")
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9092", [("127.0.0.1", 9092)]),
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        ("broker", [("broker", 9092)]),
        ("[::1]:19092", [("::1", 19092)]),
        ("[::1]", [("::1", 9092)]),
    ],
)
def test_bootstrap_addresses(text: str, expected: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == expected


@pytest.mark.parametrize("text", ["", " , ", "host:", "host:port", ":9092", "host:0", "host:70000"])
def test_bad_bootstrap_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_bootstrap(text)
