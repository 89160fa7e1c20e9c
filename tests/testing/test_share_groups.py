"""Share groups in a cluster of three brokers: state and leaders are elsewhere than the group's coordinator."""

from __future__ import annotations

import pytest

from tests.brokers import eventually
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.share_groups import ShareGroupAdmin, SharePosition
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.cluster import Cluster
from tidemill.client.share.consumer import ShareConsumer
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.share import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from tidemill.testing import InProcessCluster
from tidemill.types import TopicPartition

TOPIC, GROUP = "jobs", "workers"
PARTITIONS = [TopicPartition(TOPIC, index) for index in range(6)]


class Member:
    """Sends the heartbeats of a share consumer."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._epoch = 0

    def heartbeat(self, epoch: int | None = None) -> set[int] | None:
        """Returns the partitions, when they have changed."""
        sent = self._epoch if epoch is None else epoch
        request = ShareGroupHeartbeatRequest(
            group_id=GROUP,
            member_id="m",
            member_epoch=sent,
            subscribed_topic_names=[TOPIC] if sent == 0 else None,
        )

        def attempt() -> ShareGroupHeartbeatResponse:
            response = self._cluster.coordinator(GROUP).request(request, ShareGroupHeartbeatResponse)
            if response.error_code:
                raise ApiError(ErrorCode(response.error_code), response.error_message or "")
            return response

        response = self._cluster.retrying(attempt)
        self._epoch = response.member_epoch
        if response.assignment is None:
            return None
        return {index for topic in response.assignment.topic_partitions for index in topic.partitions}


def test_state_is_made_and_read_at_other_brokers_and_outlives_the_coordinator() -> None:
    with InProcessCluster(3, settings={"group.share.assignment.interval.ms": 0}) as testing:
        testing.create_topic(TOPIC, len(PARTITIONS))
        for partition in PARTITIONS:
            testing.produce(TOPIC, "a", partition=partition.partition)
            testing.produce(TOPIC, "b", partition=partition.partition)
        with Cluster(testing.bootstrap) as cluster:
            member, admin = Member(cluster), ShareGroupAdmin(cluster)
            assert member.heartbeat() == set()
            eventually(lambda: member.heartbeat() == set(range(6)), "all partitions are assigned")
            assert admin.positions(GROUP) == [SharePosition(each, None, None) for each in PARTITIONS]
            member.heartbeat(epoch=-1)
            admin.alter_offsets(GROUP, dict.fromkeys(PARTITIONS, 1))
            expected = [SharePosition(each, 1, 1) for each in PARTITIONS]
            assert admin.positions(GROUP) == expected
            coordinator = cluster.coordinator(GROUP).address
            down = next(each for each in testing.brokers if each.bootstrap.endswith(f":{coordinator[1]}"))
            down.crash()
            eventually(lambda: admin.positions(GROUP) == expected, "the next coordinator has the offsets")
            GroupAdmin(cluster).delete(GROUP)
            with pytest.raises(ApiError) as refused:
                admin.describe(GROUP)
            assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_consumer_with_full_hands_notices_that_its_broker_is_gone() -> None:
    """Another leader hands out what this one held; nothing of it may be begun here afterwards."""
    with InProcessCluster(3, settings={"group.share.assignment.interval.ms": 0}) as testing:
        testing.create_topic(TOPIC, 1)
        for value in ("a", "b"):
            testing.produce(TOPIC, value)
        with Cluster(testing.bootstrap) as cluster:
            changes = {"share.auto.offset.reset": "earliest"}
            Admin(cluster).alter_configs(ResourceType.GROUP, GROUP, changes=changes)
        consumer = ShareConsumer(Cluster(testing.bootstrap), GROUP, [TOPIC], capacity=2)
        try:
            first = eventually(lambda: consumer.take(0.1), "a record")
            leader = testing.broker(first.node_id)
            leader.crash()
            eventually(lambda: not consumer.holds(first), "the lock is known to be lost", 20.0)
        finally:
            consumer.close()
