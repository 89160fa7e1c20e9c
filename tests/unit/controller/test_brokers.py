"""Brokers come, go, and come back: registrations, sessions, heartbeats, controlled shutdown.

The changes of their partitions are tested in test_partitions.py.
"""

from __future__ import annotations

import pytest

from tests.unit.controller.cluster import CLUSTER_ID, Cluster, creatable, directory
from tidemill.controller.image import ConfigResource, MetadataImage
from tidemill.errors import ErrorCode
from tidemill.protocol.api.brokers import (
    AllocateProducerIdsRequest,
    BrokerHeartbeatRequest,
    ControllerRegistrationRequest,
    Feature,
    Listener,
)
from tidemill.protocol.api.metadata import ConfigRecord, FeatureLevelRecord, NoOpRecord
from tidemill.protocol.api.replicas import UnregisterBrokerRequest
from tidemill.types import NO_BROKER, BrokerId


def broker_epoch(cluster: Cluster, broker_id: int) -> int:
    return cluster.image.brokers[BrokerId(broker_id)].epoch


class TestFirstRecords:
    def test_the_cluster_id_comes_first(self) -> None:
        cluster = Cluster(brokers=0)
        assert cluster.log[0] == NoOpRecord(cluster_id=CLUSTER_ID)
        assert cluster.image.cluster_id == CLUSTER_ID
        assert cluster.image.features == {
            "metadata.version": 30,
            "eligible.leader.replicas.version": 1,
            "group.version": 1,
            "share.version": 1,
            "transaction.version": 2,
        }

    def test_they_are_written_once(self) -> None:
        assert Cluster().begin("another id") == []

    def test_missing_features_and_configs_are_added(self) -> None:
        cluster = Cluster(brokers=0)
        older = MetadataImage(
            features={"metadata.version": 7}, configs={ConfigResource(4, "1"): {"min.insync.replicas": "3"}}
        )
        cluster.activate(older)
        records = cluster.begin("x")
        assert records[0] == NoOpRecord(cluster_id="x")
        assert [record.name for record in records if isinstance(record, FeatureLevelRecord)] == [
            "eligible.leader.replicas.version",
            "group.version",
            "share.version",
            "transaction.version",
        ]
        assert [
            (record.resource_name, record.value) for record in records if isinstance(record, ConfigRecord)
        ] == [("1", None), ("", "1")]


OTHER_DISK = [b"some other disk "]


class TestRegistration:
    def test_the_epoch_is_the_offset_of_the_record(self) -> None:
        cluster = Cluster(brokers=0)
        end_offset = len(cluster.log)
        assert cluster.register(1) == end_offset
        cluster.beat(1)
        cluster.create(creatable("t"))
        cluster.pass_time(9_000)
        end_offset = len(cluster.log)
        # The partition's change comes first: the broker stopped uncleanly.
        assert cluster.register(1) == end_offset + 1 == broker_epoch(cluster, 1)

    def test_registration_is_stored_in_the_image(self) -> None:
        cluster = Cluster(brokers=0)
        cluster.register(
            1, rack="r", features=[Feature(name="f", min_supported_version=1, max_supported_version=3)]
        )
        broker = cluster.image.brokers[BrokerId(1)]
        assert broker.is_fenced
        assert broker.endpoints["PLAINTEXT"].host == "host1"
        assert (broker.rack, broker.features, broker.log_dirs) == ("r", {"f": (1, 3)}, (directory(1),))

    def test_refused(self) -> None:
        cluster = Cluster()
        too_old = Feature(name="metadata.version", min_supported_version=7, max_supported_version=20)
        for request, code in (
            (cluster.registration(1, cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
            (cluster.registration(2, listeners=[]), ErrorCode.INVALID_REGISTRATION),
            (cluster.registration(2, features=[too_old]), ErrorCode.UNSUPPORTED_VERSION),
            (cluster.registration(1, log_dirs=OTHER_DISK), ErrorCode.DUPLICATE_BROKER_REGISTRATION),
        ):
            end_offset = len(cluster.log)
            assert cluster.ask(request).error_code == code
            assert len(cluster.log) == end_offset

    def test_the_same_incarnation_may_register_again(self) -> None:
        cluster = Cluster(brokers=0)
        first = cluster.register(1, incarnation_id=b"i" * 16)
        end_offset = len(cluster.log)
        assert cluster.register(1, incarnation_id=b"i" * 16) == first
        assert len(cluster.log) == end_offset

    def test_a_refused_registration_does_not_prolong_the_session(self) -> None:
        cluster = Cluster()
        cluster.steady_ms = 8_999
        reply = cluster.ask(cluster.registration(1, log_dirs=OTHER_DISK))
        assert reply.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        cluster.pass_time(1)
        assert cluster.image.brokers[BrokerId(1)].is_fenced
        cluster.register(1)

    def test_leaving_broker_may_be_replaced_at_once(self) -> None:
        cluster = Cluster(brokers=2)
        cluster.create(creatable("t", assignments=[(0, [1, 2])]))
        assert not cluster.beat(1, want_shut_down=True).should_shut_down
        assert cluster.register(1) == broker_epoch(cluster, 1)

    def test_a_new_controller_holds_the_place_of_a_broker_it_has_not_heard(self) -> None:
        cluster = Cluster()
        cluster.activate()
        reply = cluster.ask(cluster.registration(1, log_dirs=OTHER_DISK))
        assert reply.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION

    def test_the_controllers_own_node_need_not_wait_after_a_restart(self) -> None:
        cluster = Cluster(brokers=2, node_id=1)
        cluster.activate()
        cluster.register(1)
        cluster.beat(1)
        for broker_id in (1, 2):
            reply = cluster.ask(cluster.registration(broker_id, log_dirs=OTHER_DISK))
            assert reply.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION

    def test_restart_on_same_data_dir_skips_waiting_for_old_session(self) -> None:
        cluster = Cluster(brokers=2)
        first = broker_epoch(cluster, 1)
        assert cluster.register(1) > first


class TestHeartbeats:
    def test_a_new_broker_is_fenced_until_it_has_caught_up(self) -> None:
        cluster = Cluster(brokers=1)
        epoch = cluster.register(2)
        reply = cluster.beat(2, current_metadata_offset=epoch - 1)
        assert (reply.is_caught_up, reply.is_fenced) == (False, True)
        reply = cluster.beat(2, current_metadata_offset=epoch, want_fence=True)
        assert (reply.is_caught_up, reply.is_fenced) == (True, True)
        reply = cluster.beat(2, current_metadata_offset=epoch)
        assert (reply.is_caught_up, reply.is_fenced) == (True, False)
        assert not cluster.image.brokers[BrokerId(2)].is_fenced

    def test_stale_and_unknown(self) -> None:
        cluster = Cluster()
        for broker_id, epoch in ((1, 99), (9, 0)):
            request = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch)
            assert cluster.ask(request).error_code == ErrorCode.STALE_BROKER_EPOCH

    def test_a_fenced_broker_may_stop_at_once(self) -> None:
        cluster = Cluster()
        cluster.fence(1)
        reply = cluster.beat(1, want_shut_down=True)
        assert (reply.is_fenced, reply.should_shut_down) == (True, True)

    def test_a_failed_directory(self) -> None:
        dirs = [b"a" * 16, b"b" * 16]
        cluster = Cluster(brokers=0)
        cluster.join(1, log_dirs=dirs)
        cluster.beat(1, offline_log_dirs=[b"a" * 16])
        assert cluster.image.brokers[BrokerId(1)].log_dirs == (b"b" * 16,)
        end_offset = len(cluster.log)
        cluster.beat(1, offline_log_dirs=[b"a" * 16])
        assert len(cluster.log) == end_offset

    def test_a_broker_without_a_directory_is_fenced(self) -> None:
        cluster = Cluster(brokers=2)
        cluster.create(creatable("t", assignments=[(0, [1, 2])]))
        assert cluster.beat(1, offline_log_dirs=[directory(1)]).is_fenced
        assert cluster.state() == (2, (2,), ())
        assert cluster.beat(1, offline_log_dirs=[directory(1)]).is_fenced


class TestControlledShutdown:
    def test_leaders_move_before_the_broker_stops(self) -> None:
        cluster = Cluster(brokers=3)
        cluster.create(creatable("t", assignments=[(0, [1, 2, 3]), (1, [2, 1, 3])]))
        first = cluster.beat(1, want_shut_down=True)
        assert (first.should_shut_down, first.is_fenced) == (False, False)
        assert (cluster.state(), cluster.state(index=1)) == ((2, (2, 3), ()), (2, (2, 3), ()))
        assert cluster.image.brokers[BrokerId(1)].is_in_controlled_shutdown

    def test_the_broker_stops_when_all_others_know_their_leaders(self) -> None:
        cluster = Cluster(brokers=3)
        cluster.create(creatable("t", assignments=[(0, [1, 2, 3])]))
        cluster.beat(1, want_shut_down=True)
        last = len(cluster.log) - 1
        cluster.beat(2, current_metadata_offset=last)
        cluster.beat(3, current_metadata_offset=last - 1)
        assert not cluster.beat(1, want_shut_down=True).should_shut_down
        cluster.beat(3, current_metadata_offset=last)
        reply = cluster.beat(1, want_shut_down=True)
        assert (reply.should_shut_down, reply.is_fenced) == (True, True)
        assert cluster.image.brokers[BrokerId(1)].is_fenced

    def test_a_broker_that_leads_nothing_stops_at_once(self) -> None:
        cluster = Cluster(brokers=2)
        cluster.create(creatable("t", assignments=[(0, [1, 2])]))
        assert cluster.beat(2, want_shut_down=True).should_shut_down
        assert cluster.state() == (1, (1,), ())

    def test_a_late_heartbeat_does_not_bring_it_back(self) -> None:
        cluster = Cluster(brokers=2)
        cluster.create(creatable("t", assignments=[(0, [1, 2])]))
        assert cluster.beat(2, want_shut_down=True).should_shut_down
        assert cluster.beat(2).is_fenced
        # But the next incarnation need not wait for the session to end.
        cluster.join(2, previous_broker_epoch=broker_epoch(cluster, 2))

    def test_the_only_broker(self) -> None:
        cluster = Cluster()
        cluster.create(creatable("t"))
        assert not cluster.beat(1, want_shut_down=True).should_shut_down
        assert cluster.beat(1, want_shut_down=True).should_shut_down
        assert cluster.state() == (NO_BROKER, (), (1,))

    def test_it_goes_on_under_a_new_controller(self) -> None:
        cluster = Cluster(brokers=2)
        cluster.create(creatable("t", assignments=[(0, [1, 2])]))
        cluster.beat(1, want_shut_down=True)
        cluster.activate()
        assert not cluster.beat(1, want_shut_down=True).should_shut_down
        cluster.beat(2)
        assert cluster.beat(1, want_shut_down=True).should_shut_down


class TestSessions:
    def test_silent_brokers_are_fenced_one_by_one(self) -> None:
        cluster = Cluster(brokers=3)
        cluster.create(creatable("t", assignments=[(0, [1, 2, 3])]))
        cluster.steady_ms = 8_999
        cluster.beat(3)
        assert cluster.controller.expire(8_999) is None
        assert cluster.controller.deadline_ms == 9_000
        cluster.steady_ms = 9_000
        cluster.write(cluster.due_now().records)
        assert [broker.is_fenced for broker in cluster.image.brokers.values()] == [True, False, False]
        cluster.tick()
        assert [broker.is_fenced for broker in cluster.image.brokers.values()] == [True, True, False]
        assert cluster.state() == (3, (3,), ())
        assert cluster.controller.deadline_ms == 17_999

    def test_the_session_timeout_is_configured(self) -> None:
        cluster = Cluster(broker_session_timeout_ms="2000")
        cluster.pass_time(1_999)
        assert cluster.controller.deadline_ms == 2_000

    def test_a_new_controller_gives_everyone_a_fresh_session(self) -> None:
        cluster = Cluster(brokers=2)
        cluster.steady_ms = 1_000_000
        cluster.activate()
        cluster.pass_time(8_999)
        assert not any(broker.is_fenced for broker in cluster.image.brokers.values())
        cluster.pass_time(1)
        assert all(broker.is_fenced for broker in cluster.image.brokers.values())


class TestUnregistration:
    def test_the_broker_is_gone_and_leads_nothing(self) -> None:
        cluster = Cluster(brokers=2)
        cluster.create(creatable("t", assignments=[(0, [1, 2])], configs={"min.insync.replicas": "2"}))
        cluster.fence(1)
        reply = cluster.ask(UnregisterBrokerRequest(broker_id=1))
        assert reply.error_code == ErrorCode.NONE
        assert list(cluster.image.brokers) == [2]
        # It is not in the ELR either, because it will not return.
        assert cluster.state() == (2, (2,), ())

    def test_a_broker_that_is_alive_stays(self) -> None:
        cluster = Cluster(brokers=2)
        cluster.create(creatable("t", assignments=[(0, [1, 2])]))
        reply = cluster.ask(UnregisterBrokerRequest(broker_id=1))
        assert reply.error_code == ErrorCode.INVALID_REQUEST
        assert "alive" in reply.error_message
        assert list(cluster.image.brokers) == [1, 2]
        assert cluster.state() == (1, (1, 2), ())

    def test_unknown(self) -> None:
        reply = Cluster().ask(UnregisterBrokerRequest(broker_id=7))
        assert reply.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
        assert reply.error_message


class TestProducerIds:
    def test_they_come_in_blocks_that_never_overlap(self) -> None:
        cluster = Cluster(brokers=2)
        starts = []
        for broker_id in (1, 2, 1):
            request = AllocateProducerIdsRequest(
                broker_id=broker_id, broker_epoch=broker_epoch(cluster, broker_id)
            )
            reply = cluster.ask(request)
            assert (reply.error_code, reply.producer_id_len) == (ErrorCode.NONE, 1000)
            starts.append(reply.producer_id_start)
        assert starts == [0, 1000, 2000]
        assert cluster.image.next_producer_id == 3000

    @pytest.mark.parametrize(("broker_id", "epoch"), [(1, 77), (5, 0)])
    def test_only_for_registered_brokers(self, broker_id: int, epoch: int) -> None:
        cluster = Cluster()
        request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
        assert cluster.ask(request).error_code == ErrorCode.STALE_BROKER_EPOCH
        assert cluster.image.next_producer_id == 0


def test_controllers_are_recorded_when_they_change() -> None:
    cluster = Cluster(brokers=0)
    request = ControllerRegistrationRequest(
        controller_id=7, incarnation_id=b"i" * 16, listeners=[Listener(name="C", host="h", port=1)]
    )
    assert cluster.ask(request).error_code == ErrorCode.NONE
    assert cluster.image.controllers[7].endpoints["C"].port == 1
    end_offset = len(cluster.log)
    cluster.ask(request)
    assert len(cluster.log) == end_offset
    request.listeners[0].port = 2
    cluster.ask(request)
    assert cluster.image.controllers[7].endpoints["C"].port == 2
