"""AlterPartition: which proposals of a leader are accepted, and the responses.

All error codes were compared with those of Apache Kafka 4.3's controller.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.controller.cluster import Cluster, creatable
from tidemill.controller.partitions.elections import ElectionType
from tidemill.controller.partitions.partition_changes import RECOVERING
from tidemill.errors import ErrorCode
from tidemill.protocol.api.brokers import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from tidemill.protocol.api.replicas import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from tidemill.types import BrokerId


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(brokers=4)
    cluster.create(creatable("t", assignments=[(0, [1, 2, 3])]))
    return cluster


def test_the_new_state_is_the_answer(cluster: Cluster) -> None:
    result = cluster.propose([1, 3])
    assert (result.error_code, result.leader_id, result.leader_epoch) == (ErrorCode.NONE, 1, 0)
    assert (result.isr, result.partition_epoch, result.leader_recovery_state) == ([1, 3], 1, 0)
    assert cluster.partition().isr == (1, 3)


def test_the_isr_as_it_is_needs_no_record(cluster: Cluster) -> None:
    end_offset = len(cluster.log)
    result = cluster.propose([1, 2, 3])
    assert (result.error_code, result.partition_epoch) == (ErrorCode.NONE, 0)
    assert len(cluster.log) == end_offset


@pytest.mark.parametrize(
    ("isr", "fields", "code"),
    [
        ([1, 2], {"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ([1, 2], {"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ([1, 2], {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ([1, 2], {"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ([1, 2], {"broker_id": 2}, ErrorCode.INVALID_REQUEST),
        ([1, 2], {"broker_id": 2, "partition_epoch": 0}, ErrorCode.INVALID_REQUEST),
        ([2, 3], {}, ErrorCode.INVALID_REQUEST),
        ([], {}, ErrorCode.INVALID_REQUEST),
        ([1, 4], {}, ErrorCode.INVALID_REQUEST),
        ([1, 1], {}, ErrorCode.INVALID_REQUEST),
        ([1, 2], {"leader_recovery_state": RECOVERING}, ErrorCode.INVALID_REQUEST),
        ([1], {"leader_recovery_state": RECOVERING}, ErrorCode.INVALID_REQUEST),
        ([1], {"leader_recovery_state": 7}, ErrorCode.INVALID_REQUEST),
        ([1, 2], {"index": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_refused(cluster: Cluster, isr: list[int], fields: dict[str, Any], code: ErrorCode) -> None:
    cluster.propose([1, 2])
    if "index" in fields:
        fields = {"partition_index": fields["index"]}
    result = cluster.propose(isr, **fields)
    assert result.error_code == code
    assert (result.leader_id, result.isr) == (0, [])
    assert cluster.partition().partition_epoch == 1


@pytest.mark.parametrize("version", [2, 3])
def test_fenced_or_leaving_broker_is_refused_in_the_isr(cluster: Cluster, version: int) -> None:
    cluster.create(creatable("led-by-3", assignments=[(0, [3, 1])]))
    cluster.fence(2)
    assert not cluster.beat(3, want_shut_down=True).should_shut_down
    for isr in ([1, 2], [1, 3]):
        assert cluster.propose(isr, version=version).error_code == ErrorCode.INELIGIBLE_REPLICA


def test_the_epoch_of_a_follower_must_be_its_present_one(cluster: Cluster) -> None:
    epochs = {broker.id: broker.epoch for broker in cluster.image.brokers.values()}
    for epoch_of_2, code in (
        (epochs[BrokerId(2)] - 1, ErrorCode.INELIGIBLE_REPLICA),
        (epochs[BrokerId(2)] + 1, ErrorCode.INELIGIBLE_REPLICA),
        (-1, ErrorCode.NONE),
        (epochs[BrokerId(2)], ErrorCode.NONE),
    ):
        states = [
            BrokerState(broker_id=1, broker_epoch=epochs[BrokerId(1)]),
            BrokerState(broker_id=2, broker_epoch=epoch_of_2),
        ]
        assert cluster.propose([], new_isr_with_epochs=states).error_code == code


def test_version_2_names_no_epochs(cluster: Cluster) -> None:
    result = cluster.propose([1, 2], version=2)
    assert (result.error_code, result.isr) == (ErrorCode.NONE, [1, 2])


def test_unknown_topics_and_stale_brokers(cluster: Cluster) -> None:
    data = AlterPartitionRequestPartitionData(partition_index=3)
    topic = AlterPartitionRequestTopicData(topic_id=b"?" * 16, partitions=[data])
    request = AlterPartitionRequest(
        broker_id=1, broker_epoch=cluster.image.brokers[BrokerId(1)].epoch, topics=[topic]
    )
    (result,) = cluster.ask(request).topics[0].partitions
    assert (result.partition_index, result.error_code) == (3, ErrorCode.UNKNOWN_TOPIC_ID)
    request.broker_epoch += 1
    reply = cluster.ask(request)
    assert (reply.error_code, reply.topics) == (ErrorCode.STALE_BROKER_EPOCH, [])


def test_a_partition_may_be_named_once(cluster: Cluster) -> None:
    data = AlterPartitionRequestPartitionData(
        partition_index=0, new_isr_with_epochs=[BrokerState(broker_id=1, broker_epoch=-1)]
    )
    topic_id = cluster.image.topics_by_name["t"].id
    topic = AlterPartitionRequestTopicData(topic_id=topic_id, partitions=[data, data])
    epoch = cluster.image.brokers[BrokerId(1)].epoch
    reply = cluster.ask(AlterPartitionRequest(broker_id=1, broker_epoch=epoch, topics=[topic]))
    assert [each.error_code for each in reply.topics[0].partitions] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert cluster.partition().partition_epoch == 1


def test_a_leader_that_recovers_stays_alone_until_it_has(cluster: Cluster) -> None:
    cluster.propose([1])
    cluster.fence(1)
    cluster.join(1)
    wanted = [TopicPartitions(topic="t", partitions=[0])]
    cluster.ask(ElectLeadersRequest(election_type=ElectionType.UNCLEAN, topic_partitions=wanted))
    assert cluster.partition().leader_recovery_state == RECOVERING
    still = cluster.propose([1], leader_recovery_state=RECOVERING)
    assert (still.error_code, still.leader_recovery_state) == (ErrorCode.NONE, RECOVERING)
    assert cluster.propose([1, 2], leader_recovery_state=RECOVERING).error_code == ErrorCode.INVALID_REQUEST
    recovered = cluster.propose([1, 2])
    assert (recovered.error_code, recovered.leader_recovery_state) == (ErrorCode.NONE, 0)


def test_it_may_complete_a_reassignment_that_takes_the_leader_away(cluster: Cluster) -> None:
    moved = ReassignablePartition(partition_index=0, replicas=[4, 2])
    topic = ReassignableTopic(name="t", partitions=[moved])
    cluster.ask(AlterPartitionReassignmentsRequest(topics=[topic]))
    result = cluster.propose([1, 2, 3, 4])
    assert result.error_code == ErrorCode.NEW_LEADER_ELECTED
    assert cluster.state() == (4, (2, 4), ())
    assert cluster.partition().replicas == (4, 2)
