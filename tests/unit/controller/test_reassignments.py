"""Reassignments begin, complete and are cancelled; internal topics grow with the cluster."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.controller.cluster import Cluster, creatable, directory
from tidemill.errors import ErrorCode
from tidemill.protocol.api.replicas import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from tidemill.types import NO_BROKER


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(brokers=5)
    cluster.create(creatable("t", assignments=[(0, [1, 2, 3])]))
    return cluster


def reassign(
    cluster: Cluster, replicas: list[int] | None, *, index: int = 0, topic: str = "t", may_resize: bool = True
) -> int:
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=may_resize,
        topics=[ReassignableTopic(name=topic, partitions=[partition])],
    )
    reply = cluster.ask(request)
    assert reply.error_code == ErrorCode.NONE
    (result,) = reply.responses[0].partitions
    assert bool(result.error_message) == bool(result.error_code)
    code: int = result.error_code
    return code


def ongoing(cluster: Cluster, *topics: tuple[str, list[int]]) -> dict[str, list[tuple[list[int], ...]]]:
    wanted = [ListPartitionReassignmentsTopics(name=name, partition_indexes=ids) for name, ids in topics]
    reply = cluster.ask(ListPartitionReassignmentsRequest(topics=wanted or None))
    return {
        topic.name: [
            (each.replicas, each.adding_replicas, each.removing_replicas) for each in topic.partitions
        ]
        for topic in reply.topics
    }


def test_a_replica_moves(cluster: Cluster) -> None:
    assert reassign(cluster, [1, 2, 4]) == ErrorCode.NONE
    partition = cluster.partition()
    assert (partition.replicas, partition.adding_replicas, partition.removing_replicas) == (
        (1, 2, 4, 3),
        (4,),
        (3,),
    )
    assert (partition.leader_epoch, partition.isr) == (0, (1, 2, 3))
    assert partition.directories == tuple(directory(each) for each in (1, 2, 4, 3))
    assert ongoing(cluster) == {"t": [([1, 2, 4, 3], [4], [3])]}
    cluster.propose([1, 2, 3, 4])
    partition = cluster.partition()
    assert (partition.replicas, partition.isr, partition.is_reassigned) == ((1, 2, 4), (1, 2, 4), False)
    # Taking a replica away begins a leader epoch, so that it can no longer fetch.
    assert (partition.leader, partition.leader_epoch) == (1, 1)
    assert ongoing(cluster) == {}


def test_it_completes_without_old_replicas_that_lag(cluster: Cluster) -> None:
    cluster.fence(2)
    reassign(cluster, [1, 2, 4])
    cluster.propose([1, 4])
    assert (cluster.partition().replicas, cluster.partition().isr) == ((1, 2, 4), (1, 4))


def test_only_removing_completes_at_once(cluster: Cluster) -> None:
    reassign(cluster, [2, 3])
    assert cluster.state() == (2, (2, 3), ())
    assert cluster.partition().replicas == (2, 3)


def test_only_reordering_completes_at_once(cluster: Cluster) -> None:
    reassign(cluster, [3, 2, 1])
    partition = cluster.partition()
    assert (partition.replicas, partition.leader, partition.leader_epoch) == ((3, 2, 1), 1, 0)
    end_offset = len(cluster.log)
    assert reassign(cluster, [3, 2, 1]) == ErrorCode.NONE
    assert len(cluster.log) == end_offset


@pytest.mark.parametrize(
    ("target", "isr", "is_complete"),
    [
        # With as many replicas as before, the added ones must be in sync.
        ([1, 2, 4], [1, 4], True),
        ([1, 2, 4], [1, 2, 3], False),
        ([4, 5, 3], [1, 2, 3, 5], False),
        # Fewer than before: all that remain.
        ([1, 2], [1], False),
        ([2, 4], [1, 4], False),
        ([2, 4], [1, 2, 4], True),
        ([4], [1, 4], True),
        # The ISR would be empty.
        ([2, 3], [1], False),
    ],
)
def test_when_it_is_complete(cluster: Cluster, target: list[int], isr: list[int], is_complete: bool) -> None:
    """The expectations are what Apache Kafka does."""
    cluster.propose([1])
    reassign(cluster, target)
    cluster.propose(isr)
    assert cluster.partition().is_reassigned != is_complete


def test_cancelled(cluster: Cluster) -> None:
    reassign(cluster, [4, 5])
    cluster.propose([1, 2, 3, 4])
    assert cluster.partition().is_reassigned
    assert reassign(cluster, None) == ErrorCode.NONE
    partition = cluster.partition()
    assert (set(partition.replicas), partition.isr, partition.is_reassigned) == ({1, 2, 3}, (1, 2, 3), False)
    assert partition.leader == 1
    assert reassign(cluster, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_not_cancelled_when_only_new_replicas_are_in_sync(cluster: Cluster) -> None:
    reassign(cluster, [4, 5])
    cluster.propose([1, 4])
    cluster.fence(1)
    assert cluster.state() == (4, (4,), ())
    assert reassign(cluster, None) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert cluster.partition().is_reassigned


def test_another_target_while_one_is_under_way(cluster: Cluster) -> None:
    reassign(cluster, [4, 2, 3])
    reassign(cluster, [4, 5, 3])
    partition = cluster.partition()
    assert (partition.replicas, partition.adding_replicas, partition.removing_replicas) == (
        (4, 5, 3, 1, 2),
        (4, 5),
        (1, 2),
    )
    cluster.propose([1, 2, 3, 5])
    assert cluster.partition().is_reassigned
    assert cluster.propose([1, 2, 3, 4, 5]).error_code == ErrorCode.NEW_LEADER_ELECTED
    assert (cluster.partition().replicas, cluster.partition().leader) == ((4, 5, 3), 4)


@pytest.mark.parametrize(
    ("replicas", "fields", "code"),
    [
        ([], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 1], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 9], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 2], {"may_resize": False}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ([1, 2, 4], {"may_resize": False}, ErrorCode.NONE),
        ([1, 2], {"index": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([1, 2], {"topic": "x"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, {}, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_targets(
    cluster: Cluster, replicas: list[int] | None, fields: dict[str, bool], code: ErrorCode
) -> None:
    assert reassign(cluster, replicas, **fields) == code  # type: ignore[arg-type]
    assert cluster.partition().is_reassigned == (code == ErrorCode.NONE)


def test_a_new_replica_is_never_elected_uncleanly_by_being_added(cluster: Cluster) -> None:
    cluster.create(creatable("u", assignments=[(0, [1])], configs={"unclean.leader.election.enable": "true"}))
    cluster.fence(1)
    reassign(cluster, [4, 1], topic="u")
    assert cluster.partition("u").leader == NO_BROKER


def test_listing_names_only_what_is_under_way(cluster: Cluster) -> None:
    cluster.create(creatable("u", assignments=[(0, [1]), (1, [2])]))
    reassign(cluster, [4], topic="u", index=1)
    expected = {"u": [([4, 2], [4], [2])]}
    assert ongoing(cluster) == expected
    assert ongoing(cluster, ("u", [0, 1, 5]), ("t", [0]), ("x", [0])) == expected
    assert ongoing(cluster, ("u", [0])) == {}


def test_the_same_partition_twice_in_one_request(cluster: Cluster) -> None:
    partitions = [ReassignablePartition(partition_index=0, replicas=each) for each in ([4], [5])]
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=partitions)])
    codes = [each.error_code for each in cluster.ask(request).responses[0].partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert cluster.partition().adding_replicas == (4,)


class TestInternalTopics:
    def grow(self, cluster: Cluster, brokers: int) -> None:
        cluster.pass_time(1_000, beating=range(1, brokers + 1))

    def test_they_get_the_replicas_they_should_have(self) -> None:
        cluster = Cluster(brokers=1)
        cluster.create(creatable("__consumer_offsets", 50, 1), creatable("t", 1, 1))
        self.grow(cluster, 1)
        assert all(
            len(each.replicas) == 1 for each in cluster.image.topics_by_name["__consumer_offsets"].partitions
        )
        cluster.join(2)
        cluster.join(3)
        cluster.join(4)
        self.grow(cluster, 4)
        partitions = cluster.image.topics_by_name["__consumer_offsets"].partitions
        assert all(each.leader == 1 and len(each.replicas) == 3 for each in partitions)
        assert all(len(each.adding_replicas) == 2 for each in partitions)
        load = Counter(replica for each in partitions for replica in each.replicas)
        assert max(load[each] for each in (2, 3, 4)) - min(load[each] for each in (2, 3, 4)) <= 1  # type: ignore[index]
        assert cluster.partition("t").replicas == (1,)
        # Once: they are under way.
        cluster.join(5)
        end_offset = len(cluster.log)
        self.grow(cluster, 5)
        assert len(cluster.log) == end_offset

    def test_over_racks(self) -> None:
        cluster = Cluster(brokers=5, racks=["a", "a", "b", "b", "c"])
        cluster.create(creatable("__consumer_offsets", assignments=[(0, [1]), (1, [3]), (2, [2])]))
        self.grow(cluster, 5)
        racks = {broker.id: broker.rack for broker in cluster.image.brokers.values()}
        for partition in cluster.image.topics_by_name["__consumer_offsets"].partitions:
            assert sorted(racks[each] or "" for each in partition.replicas) == ["a", "b", "c"]

    def test_no_further_than_brokers_and_configuration_go(self) -> None:
        cluster = Cluster(brokers=2, offsets_topic_replication_factor="2")
        cluster.create(creatable("__consumer_offsets", 3, 1))
        cluster.fence(2)
        self.grow(cluster, 1)
        assert all(
            len(each.replicas) == 1
            for each in cluster.image.topics_by_name["__consumer_offsets"].partitions
            if 1 in each.replicas
        )
        cluster.beat(2)
        cluster.join(3)
        self.grow(cluster, 3)
        assert all(
            len(each.replicas) == 2 for each in cluster.image.topics_by_name["__consumer_offsets"].partitions
        )

    def test_each_by_its_own_factor(self) -> None:
        cluster = Cluster(brokers=3, transaction_state_log_replication_factor="2")
        cluster.create(creatable("__consumer_offsets", 2, 1), creatable("__transaction_state", 2, 1))
        cluster.activate()
        self.grow(cluster, 3)
        assert {
            name: [len(each.replicas) for each in cluster.image.topics_by_name[name].partitions]
            for name in ("__consumer_offsets", "__transaction_state")
        } == {"__consumer_offsets": [3, 3], "__transaction_state": [2, 2]}

    def test_a_new_controller_looks_as_well(self) -> None:
        cluster = Cluster(brokers=3)
        self.grow(cluster, 3)
        cluster.create(creatable("__consumer_offsets", 1, 1))
        self.grow(cluster, 3)
        assert len(cluster.partition("__consumer_offsets").replicas) == 1
        cluster.activate()
        self.grow(cluster, 3)
        assert len(cluster.partition("__consumer_offsets").replicas) == 3
