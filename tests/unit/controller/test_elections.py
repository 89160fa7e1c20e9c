"""ElectLeaders: preferred and unclean elections on request."""

from __future__ import annotations

import pytest

from tests.unit.controller.cluster import Cluster, creatable
from tidemill.controller.partitions.elections import ElectionType
from tidemill.controller.partitions.partition_changes import RECOVERING
from tidemill.errors import ErrorCode
from tidemill.protocol.api.replicas import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from tidemill.types import NO_BROKER


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(brokers=3)
    cluster.create(creatable("t", assignments=[(0, [1, 2, 3]), (1, [2, 3, 1])]))
    return cluster


def elect(
    cluster: Cluster, kind: int, *partitions: tuple[str, int], wants_all: bool = False
) -> dict[tuple[str, int], int]:
    wanted = [TopicPartitions(topic=topic, partitions=[index]) for topic, index in partitions]
    request = ElectLeadersRequest(election_type=kind, topic_partitions=None if wants_all else wanted)
    reply = cluster.ask(request)
    assert isinstance(reply, ElectLeadersResponse)
    assert reply.error_code == ErrorCode.NONE
    return {
        (topic.topic, result.partition_id): result.error_code
        for topic in reply.replica_election_results
        for result in topic.partition_result
    }


def test_a_preferred_leader_takes_its_place(cluster: Cluster) -> None:
    cluster.fence(1)
    assert elect(cluster, ElectionType.PREFERRED, ("t", 0)) == {
        ("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    }
    cluster.beat(1)
    # Alive, but not in sync yet.
    assert elect(cluster, ElectionType.PREFERRED, ("t", 0)) == {
        ("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    }
    cluster.propose([2, 3, 1])
    assert elect(cluster, ElectionType.PREFERRED, ("t", 0), ("t", 1)) == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
    }
    assert cluster.state() == (1, (2, 3, 1), ())
    assert cluster.partition().leader_epoch == 2


def test_unclean_election_takes_any_live_replica(cluster: Cluster) -> None:
    cluster.propose([1])
    cluster.fence(1)
    assert cluster.partition().leader == NO_BROKER
    assert elect(cluster, ElectionType.UNCLEAN, ("t", 0), ("t", 1)) == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
    }
    assert cluster.state() == (2, (2,), ())
    assert cluster.partition().leader_recovery_state == RECOVERING


def test_election_without_a_live_replica_fails(cluster: Cluster) -> None:
    for broker_id in (1, 2, 3):
        cluster.fence(broker_id)
    assert elect(cluster, ElectionType.UNCLEAN, ("t", 0)) == {
        ("t", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    }


def test_all_partitions_without_those_that_need_nothing(cluster: Cluster) -> None:
    cluster.fence(1)
    cluster.beat(1)
    cluster.propose([2, 3, 1])
    assert elect(cluster, ElectionType.PREFERRED, wants_all=True) == {("t", 0): ErrorCode.NONE}


def test_unknown_partitions(cluster: Cluster) -> None:
    assert elect(cluster, ElectionType.PREFERRED, ("x", 0), ("t", 9), ("t", -1)) == dict.fromkeys(
        [("x", 0), ("t", 9), ("t", -1)], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_partition_named_twice_in_one_request_is_elected_once(cluster: Cluster) -> None:
    cluster.fence(1)
    cluster.beat(1)
    cluster.propose([2, 3, 1])
    epoch = cluster.partition().leader_epoch
    results = elect(cluster, ElectionType.PREFERRED, ("t", 0), ("t", 0))
    assert results == {("t", 0): ErrorCode.ELECTION_NOT_NEEDED}
    assert cluster.partition().leader_epoch == epoch + 1


def test_unknown_kinds_of_election(cluster: Cluster) -> None:
    reply = cluster.ask(ElectLeadersRequest(election_type=5))
    assert reply.error_code == ErrorCode.INVALID_REQUEST
