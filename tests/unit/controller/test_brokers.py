"""Brokers come, go, and come back; leaders and ISRs follow."""

from __future__ import annotations

from tests.unit.controller.cluster import CLUSTER_ID, Cluster, creatable
from tidemill.controller.image import PartitionImage
from tidemill.errors import ErrorCode
from tidemill.protocol.api.brokers import (
    AllocateProducerIdsRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Listener,
)
from tidemill.types import NO_BROKER, BrokerId


def partition(cluster: Cluster, topic: str = "t", index: int = 0) -> PartitionImage:
    found = cluster.image.partition(topic, index)
    assert found is not None
    return found


def registration(
    broker_id: int = 1, cluster_id: str = CLUSTER_ID, **fields: object
) -> BrokerRegistrationRequest:
    request = BrokerRegistrationRequest(
        broker_id=broker_id,
        cluster_id=cluster_id,
        incarnation_id=b"i" * 16,
        listeners=[Listener(name="PLAINTEXT", host="h", port=9092)],
    )
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def register(cluster: Cluster, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
    return cluster.commit(cluster.controller.register_broker(request, cluster.now_ms))


def test_epoch_is_the_offset_of_the_registration_record() -> None:
    cluster = Cluster(brokers=0)
    assert cluster.register(1) == 0
    cluster.beat(1)
    cluster.create(creatable("t"))
    end_offset = cluster.image.end_offset
    assert cluster.register(2) == end_offset
    assert int(cluster.image.brokers[BrokerId(2)].epoch) == end_offset


def test_a_new_broker_is_fenced_until_it_has_caught_up() -> None:
    cluster = Cluster(brokers=0)
    cluster.create(creatable("ignored"))
    cluster.register(1)
    cluster.register(2)
    broker = cluster.image.brokers[BrokerId(2)]
    assert broker.is_fenced
    assert broker.endpoints["PLAINTEXT"].host == "host2"
    behind = BrokerHeartbeatRequest(broker_id=2, broker_epoch=broker.epoch, current_metadata_offset=0)
    reply = cluster.commit(cluster.controller.heartbeat(behind, 0))
    assert (reply.is_caught_up, reply.is_fenced) == (False, True)
    assert not cluster.beat(2).is_fenced
    assert not cluster.image.brokers[BrokerId(2)].is_fenced


def test_refused_registrations() -> None:
    cluster = Cluster()
    for request, code in (
        (registration(cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (registration(listeners=[]), ErrorCode.INVALID_REGISTRATION),
        (registration(broker_id=1), ErrorCode.DUPLICATE_BROKER_REGISTRATION),
    ):
        assert register(cluster, request).error_code == code
    assert cluster.image.brokers[BrokerId(1)].incarnation_id != b"i" * 16


def test_the_same_incarnation_may_register_again() -> None:
    cluster = Cluster(brokers=0)
    first = cluster.register(1, incarnation=b"i" * 16)
    end_offset = cluster.image.end_offset
    assert cluster.register(1, incarnation=b"i" * 16) == first
    assert cluster.image.end_offset == end_offset


def test_a_restarted_broker_takes_its_place_when_its_session_is_over() -> None:
    cluster = Cluster()
    cluster.create(creatable("t", 2))
    cluster.now_ms = 9_000
    epoch = cluster.register(1)
    assert cluster.image.brokers[BrokerId(1)].epoch == epoch
    assert partition(cluster).leader == NO_BROKER
    assert partition(cluster).isr == (1,)
    cluster.beat(1)
    assert partition(cluster).leader == 1
    assert partition(cluster).leader_epoch == 2


def test_stale_and_unknown_heartbeats() -> None:
    cluster = Cluster()
    for request, code in (
        (BrokerHeartbeatRequest(broker_id=1, broker_epoch=99), ErrorCode.STALE_BROKER_EPOCH),
        (BrokerHeartbeatRequest(broker_id=9, broker_epoch=0), ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        assert cluster.commit(cluster.controller.heartbeat(request, 0)).error_code == code


def test_fencing_moves_leaders_to_in_sync_replicas() -> None:
    cluster = Cluster(brokers=3)
    cluster.create(creatable("t", assignments=[(0, [1, 2, 3]), (1, [2, 1, 3]), (2, [1, 3, 2])]))
    assert cluster.beat(1, want_fence=True).is_fenced
    assert [each.leader for each in cluster.image.topics_by_name["t"].partitions] == [2, 2, 3]
    assert [each.isr for each in cluster.image.topics_by_name["t"].partitions] == [(2, 3), (2, 3), (3, 2)]
    assert [each.leader_epoch for each in cluster.image.topics_by_name["t"].partitions] == [1, 0, 1]
    assert [each.partition_epoch for each in cluster.image.topics_by_name["t"].partitions] == [1, 1, 1]


def test_the_last_in_sync_replica_stays_in_the_isr_without_leading() -> None:
    cluster = Cluster(brokers=2)
    cluster.create(creatable("t", assignments=[(0, [1, 2])]))
    cluster.beat(2, want_fence=True)
    cluster.beat(1, want_fence=True)
    assert (partition(cluster).isr, partition(cluster).leader) == ((1,), NO_BROKER)
    cluster.beat(2)
    assert partition(cluster).leader == NO_BROKER
    cluster.beat(1)
    assert partition(cluster).leader == 1


def test_controlled_shutdown() -> None:
    cluster = Cluster(brokers=2)
    cluster.create(creatable("t", assignments=[(0, [1, 2])]))
    first = cluster.beat(1, want_shut_down=True)
    assert (first.should_shut_down, first.is_fenced) == (False, False)
    assert (partition(cluster).leader, partition(cluster).isr) == (2, (2,))
    assert cluster.image.brokers[BrokerId(1)].is_in_controlled_shutdown
    second = cluster.beat(1, want_shut_down=True)
    assert (second.should_shut_down, second.is_fenced) == (True, True)
    assert cluster.image.brokers[BrokerId(1)].is_fenced
    assert cluster.beat(1, want_shut_down=True).should_shut_down


def test_controlled_shutdown_of_the_only_broker() -> None:
    cluster = Cluster()
    cluster.create(creatable("t"))
    assert not cluster.beat(1, want_shut_down=True).should_shut_down
    assert cluster.beat(1, want_shut_down=True).should_shut_down
    assert (partition(cluster).leader, partition(cluster).isr) == (NO_BROKER, (1,))


def test_silent_brokers_are_fenced_one_by_one() -> None:
    cluster = Cluster(brokers=3)
    cluster.create(creatable("t", assignments=[(0, [1, 2, 3])]))
    cluster.now_ms = 8_999
    cluster.beat(3)
    assert cluster.commit(cluster.controller.fence_stale_brokers(cluster.now_ms)) == []
    cluster.now_ms = 9_000
    assert cluster.commit(cluster.controller.fence_stale_brokers(cluster.now_ms)) == [1]
    assert cluster.commit(cluster.controller.fence_stale_brokers(cluster.now_ms)) == [2]
    assert cluster.commit(cluster.controller.fence_stale_brokers(cluster.now_ms)) == []
    assert (partition(cluster).leader, partition(cluster).isr) == (3, (3,))


def test_a_new_controller_gives_everyone_a_fresh_session() -> None:
    old = Cluster(brokers=2)
    new = Cluster(brokers=0)
    for record in old.log:
        new.controller.replay(record)
    assert new.commit(new.controller.fence_stale_brokers(1_000_000)) == []
    assert new.commit(new.controller.fence_stale_brokers(1_008_999)) == []
    assert new.commit(new.controller.fence_stale_brokers(1_009_000)) == [1]


def test_producer_ids_come_in_blocks_that_never_overlap() -> None:
    cluster = Cluster(brokers=2)
    starts = []
    for broker_id in (1, 2, 1):
        epoch = cluster.image.brokers[BrokerId(broker_id)].epoch
        request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
        reply = cluster.commit(cluster.controller.allocate_producer_ids(request))
        assert (reply.error_code, reply.producer_id_len) == (ErrorCode.NONE, 1000)
        starts.append(reply.producer_id_start)
    assert starts == [0, 1000, 2000]
    assert cluster.image.next_producer_id == 3000


def test_producer_ids_only_for_registered_brokers() -> None:
    cluster = Cluster()
    for broker_id, epoch, code in (
        (1, 77, ErrorCode.STALE_BROKER_EPOCH),
        (5, 0, ErrorCode.BROKER_ID_NOT_REGISTERED),
    ):
        request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
        assert cluster.commit(cluster.controller.allocate_producer_ids(request)).error_code == code
    assert cluster.image.next_producer_id == 0
