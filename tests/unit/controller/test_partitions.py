"""ISR, ELR and leader of partitions while brokers start, stop, crash and lose their disks (KIP-966).

The rules were compared with the controller of Apache Kafka 4.3 in random histories. The outcome was the same, except for
the differences that are named at the rules.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.unit.controller.cluster import Cluster, creatable, directory
from tidemill.controller.image import PartitionImage
from tidemill.controller.partitions.elections import ElectionType
from tidemill.controller.partitions.partition_changes import RECOVERED, RECOVERING, Election, PartitionChange
from tidemill.errors import ErrorCode
from tidemill.protocol.api.admin import (
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from tidemill.protocol.api.brokers import BrokerState
from tidemill.protocol.api.replicas import ElectLeadersRequest, TopicPartitions, UnregisterBrokerRequest
from tidemill.types import NO_BROKER, BrokerId, TopicId

NOBODY = NO_BROKER


def three(min_isr: int = 2, **configs: str) -> Cluster:
    cluster = Cluster(brokers=3)
    settings: dict[str, str | None] = {"min.insync.replicas": str(min_isr)}
    settings.update({name.replace("_", "."): value for name, value in configs.items()})
    cluster.create(creatable("t", assignments=[(0, [1, 2, 3])], configs=settings))
    return cluster


def crash(cluster: Cluster, *broker_ids: int) -> None:
    """Silent until the session is over; the others live."""
    alive = [
        broker.id
        for broker in cluster.image.brokers.values()
        if not broker.is_fenced and broker.id not in broker_ids
    ]
    cluster.pass_time(9_000, beating=alive)


def set_config(cluster: Cluster, name: str, value: str, topic: str = "t") -> None:
    change = IncrementalAlterConfigsAlterableConfig(name=name, config_operation=0, value=value)
    kind = 2 if topic else 4
    resource = IncrementalAlterConfigsResource(resource_type=kind, resource_name=topic, configs=[change])
    (response,) = cluster.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert response.error_code == ErrorCode.NONE


class TestFencing:
    def test_leaders_move_to_in_sync_replicas_in_order(self) -> None:
        cluster = Cluster(brokers=3)
        cluster.create(creatable("t", assignments=[(0, [1, 2, 3]), (1, [2, 1, 3]), (2, [1, 3, 2])]))
        cluster.fence(1)
        partitions = cluster.image.topics_by_name["t"].partitions
        assert [each.leader for each in partitions] == [2, 2, 3]
        assert [each.isr for each in partitions] == [(2, 3), (2, 3), (3, 2)]
        # Only a change of leader begins a leader epoch.
        assert [each.leader_epoch for each in partitions] == [1, 0, 1]
        assert [each.partition_epoch for each in partitions] == [1, 1, 1]

    def test_replica_that_leaves_below_the_minimum_stays_eligible(self) -> None:
        cluster = three(min_isr=2)
        cluster.fence(3)
        assert cluster.state() == (1, (1, 2), ())
        cluster.fence(2)
        assert cluster.state() == (1, (1,), (2,))
        cluster.fence(1)
        assert cluster.state() == (NOBODY, (), (2, 1))
        assert cluster.partition().last_known_elr == (1,)

    def test_eligible_replicas_lead_when_they_return(self) -> None:
        cluster = three(min_isr=2)
        for broker_id in (3, 2, 1):
            cluster.fence(broker_id)
        cluster.beat(3)
        assert cluster.state() == (NOBODY, (), (2, 1))
        cluster.beat(2)
        assert cluster.state() == (2, (2,), (1,))
        assert cluster.partition().leader_recovery_state == RECOVERED
        assert cluster.partition().last_known_elr == ()

    def test_enough_in_sync_again_clears_the_eligible(self) -> None:
        cluster = three(min_isr=2)
        cluster.fence(3)
        cluster.fence(2)
        cluster.beat(3)
        assert cluster.state() == (1, (1,), (2,))
        cluster.propose([1, 3])
        assert cluster.state() == (1, (1, 3), ())

    def test_a_shrink_by_the_leader_makes_replicas_eligible_too(self) -> None:
        cluster = three(min_isr=3)
        cluster.propose([1])
        assert cluster.state() == (1, (1,), (2, 3))

    def test_replica_in_sync_is_elected_before_an_eligible_one(self) -> None:
        cluster = three(min_isr=3)
        cluster.propose([1, 3])
        cluster.fence(1)
        assert cluster.state() == (3, (3,), (2, 1))

    def test_the_minimum_is_no_more_than_there_are_replicas(self) -> None:
        cluster = Cluster(brokers=1, min_insync_replicas="2")
        cluster.create(creatable("t"))
        cluster.fence(1)
        assert cluster.state() == (NOBODY, (), (1,))
        cluster.beat(1)
        assert cluster.state() == (1, (1,), ())


class TestUncleanStop:
    def test_the_broker_leaves_isr_and_elr_before_it_registers(self) -> None:
        cluster = three(min_isr=3)
        cluster.fence(2)
        assert cluster.state() == (1, (1, 3), (2,))
        cluster.register(2)
        assert cluster.state() == (1, (1, 3), ())

    def test_a_clean_stop_keeps_it_eligible(self) -> None:
        cluster = three(min_isr=3)
        epoch = cluster.stop(2)
        cluster.register(2, previous_broker_epoch=epoch)
        assert cluster.state() == (1, (1, 3), (2,))

    def test_an_older_epoch_proves_nothing(self) -> None:
        cluster = three(min_isr=3)
        old_epoch = cluster.stop(2)
        cluster.join(2, previous_broker_epoch=old_epoch)
        cluster.fence(2)
        cluster.register(2, previous_broker_epoch=old_epoch)
        assert cluster.state() == (1, (1, 3), ())

    def test_a_single_node_comes_back_by_itself(self) -> None:
        cluster = Cluster(brokers=1, node_id=1)
        cluster.create(creatable("t", 2))
        epoch = cluster.partition().leader_epoch
        cluster.activate()
        cluster.register(1)
        assert cluster.state() == (NOBODY, (), ())
        assert cluster.partition().last_known_elr == (1,)
        cluster.beat(1)
        assert cluster.state() == (1, (1,), ())
        assert cluster.partition().leader_epoch == epoch + 2
        assert cluster.partition().leader_recovery_state == RECOVERING
        assert cluster.partition().last_known_elr == ()
        cluster.propose([1])
        assert cluster.partition().leader_recovery_state == RECOVERED

    def test_a_single_node_comes_back_after_a_clean_stop(self) -> None:
        cluster = Cluster(brokers=1, node_id=1)
        cluster.create(creatable("t"))
        epoch = cluster.image.brokers[BrokerId(1)].epoch
        cluster.activate()
        cluster.join(1, previous_broker_epoch=epoch)
        assert cluster.state() == (1, (1,), ())
        assert cluster.partition().leader_recovery_state == RECOVERED

    def test_last_known_leader_is_elected_only_on_request(self) -> None:
        """Others may have more than what an unclean stop has left it, though they were not in sync."""
        cluster = three(min_isr=1)
        cluster.propose([1])
        crash(cluster, 1)
        assert cluster.state() == (NOBODY, (), (1,))
        cluster.join(1)
        assert cluster.state() == (NOBODY, (), ())
        assert cluster.partition().last_known_elr == (1,)
        cluster.ask(_unclean_election())
        assert cluster.state() == (1, (1,), ())
        assert cluster.partition().leader_recovery_state == RECOVERING

    def test_the_last_known_leader_leads_where_unclean_elections_are_allowed(self) -> None:
        cluster = three(min_isr=1, unclean_leader_election_enable="true")
        cluster.propose([1])
        crash(cluster, 1, 2, 3)
        cluster.join(1)
        assert cluster.state() == (1, (1,), ())


def _unclean_election() -> ElectLeadersRequest:
    wanted = [TopicPartitions(topic="t", partitions=[0])]
    return ElectLeadersRequest(election_type=ElectionType.UNCLEAN, topic_partitions=wanted)


def test_failure_03_after_unclean_stops_of_all_no_replica_is_elected_without_a_request() -> None:
    """The last known leader may have lost more than the others: one of them was in sync with it until the end."""
    cluster = three(min_isr=2)
    crash(cluster, 1, 2, 3)
    for broker_id in (1, 2, 3):
        cluster.join(broker_id)
        assert cluster.state() == (NOBODY, (), (1, 2, 3)[broker_id:])
    assert cluster.partition().last_known_elr == (3,)


def test_failure_03_the_last_in_sync_replica_loses_its_page_cache() -> None:
    """A follower that was in sync at `min.insync.replicas` is elected, or none: never a replica that may have lost
    records.
    """
    cluster = three(min_isr=2)
    cluster.propose([1, 2])
    cluster.propose([1])
    assert cluster.state() == (1, (1,), (2,))
    crash(cluster, 1, 2)
    assert cluster.state() == (NOBODY, (), (1, 2))
    cluster.join(1)
    assert cluster.state() == (NOBODY, (), (2,))
    epoch = cluster.image.brokers[BrokerId(2)].epoch
    cluster.join(2, previous_broker_epoch=epoch)
    assert cluster.state() == (2, (2,), ())
    assert cluster.partition().leader_recovery_state == RECOVERED


def propose_with_epochs(cluster: Cluster, states: Sequence[tuple[int, int | None]]) -> int:
    brokers = cluster.image.brokers
    wanted = [
        BrokerState(broker_id=each, broker_epoch=brokers[BrokerId(each)].epoch if epoch is None else epoch)
        for each, epoch in states
    ]
    return cluster.propose([], new_isr_with_epochs=wanted).error_code


class TestLostDisk:
    def test_failure_04_a_broker_with_an_empty_disk_is_eligible_for_nothing(self) -> None:
        cluster = three(min_isr=2)
        epoch = cluster.stop(2)
        cluster.fence(3)
        assert cluster.state() == (1, (1,), (3,))
        cluster.fence(1)
        # It stopped cleanly, and was replaced.
        cluster.join(2, previous_broker_epoch=epoch, log_dirs=[directory(2, disk=1)])
        assert cluster.state() == (NOBODY, (), (3, 1))
        assert cluster.partition().directories == (directory(1), directory(2, disk=1), directory(3))

    def test_failure_04_a_stale_alter_partition_does_not_put_it_into_the_isr(self) -> None:
        cluster = three(min_isr=2)
        old_epoch = cluster.image.brokers[BrokerId(2)].epoch
        crash(cluster, 2)
        cluster.join(2, log_dirs=[directory(2, disk=1)])
        result = cluster.propose([1, 2, 3])
        assert result.error_code == ErrorCode.NONE
        # A proposal from before the new registration has the old broker epoch.
        cluster.propose([1, 3])
        states = [(1, None), (2, old_epoch), (3, None)]
        refused = propose_with_epochs(cluster, states)
        assert refused == ErrorCode.INELIGIBLE_REPLICA
        assert cluster.partition().isr == (1, 3)

    def test_failure_04_an_empty_last_known_leader_does_not_lead(self) -> None:
        """Its followers would truncate their records. Only a requested unclean election may do that."""
        cluster = three(min_isr=1)
        cluster.propose([1])
        crash(cluster, 1)
        cluster.join(1, log_dirs=[directory(1, disk=1)])
        assert cluster.state() == (NOBODY, (), ())
        assert cluster.partition().last_known_elr == ()

    def test_the_disk_is_compared_with_the_one_the_replica_was_made_on(self) -> None:
        """Also when the broker was unregistered in between."""
        cluster = three(min_isr=1)
        cluster.propose([1])
        cluster.fence(1)
        cluster.ask(UnregisterBrokerRequest(broker_id=1))
        assert cluster.partition().last_known_elr == (1,)
        cluster.join(1, log_dirs=[directory(1, disk=1)])
        assert cluster.state() == (NOBODY, (), ())
        assert cluster.partition().last_known_elr == ()

    def test_an_unregistered_broker_may_bring_its_disk_back(self) -> None:
        cluster = three(min_isr=1)
        cluster.propose([1])
        cluster.fence(1)
        cluster.ask(UnregisterBrokerRequest(broker_id=1))
        cluster.join(1)
        cluster.ask(_unclean_election())
        assert cluster.state() == (1, (1,), ())

    def test_partitions_without_a_known_directory_go_by_the_registration(self) -> None:
        cluster = Cluster(brokers=0)
        cluster.join(1, log_dirs=[])
        cluster.create(creatable("t"))
        assert cluster.partition().directories == ()
        cluster.fence(1)
        epoch = cluster.image.brokers[BrokerId(1)].epoch
        cluster.register(1, previous_broker_epoch=epoch, log_dirs=[directory(1, disk=1)])
        # Nothing was known of its directories before, so nothing is known to be lost.
        assert cluster.state() == (NOBODY, (), (1,))
        epoch = cluster.image.brokers[BrokerId(1)].epoch
        cluster.register(1, previous_broker_epoch=epoch, log_dirs=[directory(1, disk=2)])
        assert cluster.state() == (NOBODY, (), ())
        assert cluster.partition().directories == (directory(1, disk=2),)

    def test_a_replica_in_a_failed_directory_is_not_in_sync(self) -> None:
        cluster = Cluster(brokers=1)
        cluster.join(2, log_dirs=[b"a" * 16, b"b" * 16])
        cluster.create(creatable("t", assignments=[(0, [2, 1])]))
        cluster.beat(2, offline_log_dirs=[b"a" * 16])
        # It has two directories, and which one holds the replica is not known.
        assert cluster.state() == (2, (2, 1), ())


class TestMinIsrChanges:
    @pytest.mark.parametrize("topic", ["t", ""])
    def test_minimum_lowered_to_the_isr_clears_eligible_replicas(self, topic: str) -> None:
        """The high watermark moves on from here, without them. Kafka clears the ELR in any case."""
        cluster = Cluster(brokers=3, min_insync_replicas="2")
        cluster.create(creatable("t", assignments=[(0, [1, 2, 3])]))
        cluster.propose([1])
        assert cluster.state() == (1, (1,), (2, 3))
        set_config(cluster, "min.insync.replicas", "1", topic)
        assert cluster.state() == (1, (1,), ())

    def test_without_a_leader_the_eligible_stay(self) -> None:
        cluster = three(min_isr=2)
        for broker_id in (3, 2, 1):
            cluster.fence(broker_id)
        set_config(cluster, "min.insync.replicas", "1")
        assert cluster.state() == (NOBODY, (), (2, 1))
        cluster.beat(1)
        # One in-sync replica is enough now, so it stays leader.
        assert cluster.state() == (1, (1,), ())


class TestUncleanElections:
    def test_a_topic_that_allows_them_is_led_by_anyone_alive(self) -> None:
        cluster = three(min_isr=1, unclean_leader_election_enable="true")
        cluster.propose([1])
        cluster.fence(1)
        assert cluster.state() == (2, (2,), ())
        assert cluster.partition().leader_recovery_state == RECOVERING

    def test_an_eligible_replica_comes_first(self) -> None:
        cluster = three(min_isr=2, unclean_leader_election_enable="true")
        cluster.propose([1, 3])
        cluster.propose([1])
        cluster.fence(1)
        assert cluster.state() == (3, (3,), (1,))
        assert cluster.partition().leader_recovery_state == RECOVERED

    @pytest.mark.parametrize("topic", ["t", ""])
    def test_allowed_later_they_happen_at_once(self, topic: str) -> None:
        cluster = three(min_isr=1)
        cluster.propose([1])
        cluster.fence(1)
        assert cluster.tick() == []
        set_config(cluster, "unclean.leader.election.enable", "true", topic)
        cluster.tick()
        assert cluster.state() == (2, (2,), ())

    def test_offline_partitions_are_looked_at_now_and_then(self) -> None:
        cluster = three(min_isr=1, unclean_leader_election_enable="true")
        cluster.propose([1])
        cluster.fence(2)
        cluster.fence(3)
        cluster.fence(1)
        assert cluster.state() == (NOBODY, (), (1,))
        cluster.register(2)
        cluster.beat(2)
        assert cluster.state() == (2, (2,), ())


class TestOneChange:
    """The rules that no decision of today reaches."""

    def change(self, before: PartitionImage, alive: set[int], min_isr: int = 1) -> PartitionChange:
        return PartitionChange(
            TopicId(b"t" * 16), 0, before, min_isr=min_isr, may_lead=lambda replica: replica in alive
        )

    def partition(self, replicas: tuple[int, ...], **fields: object) -> PartitionImage:
        ids = tuple(BrokerId(each) for each in replicas)
        return PartitionImage(ids, ids, ids[0], **fields)  # type: ignore[arg-type]

    def test_nothing_changes_nothing(self) -> None:
        assert self.change(self.partition((1, 2)), {1, 2}).record() is None

    def test_several_last_known_replicas_elect_none(self) -> None:
        before = PartitionImage(
            (BrokerId(1), BrokerId(2)), (), NO_BROKER, last_known_elr=(BrokerId(1), BrokerId(2))
        )
        assert self.change(before, {1, 2}).record() is None

    def test_unclean_takes_what_is_being_added_last(self) -> None:
        before = PartitionImage((BrokerId(3), BrokerId(1)), (), NO_BROKER, adding_replicas=(BrokerId(3),))
        change = self.change(before, {1, 3})
        change.election = Election.UNCLEAN
        record = change.record()
        assert record is not None
        assert record.leader == 1


def test_preferred_leaders_are_restored_now_and_then() -> None:
    cluster = three()
    cluster.fence(1)
    cluster.beat(1)
    cluster.propose([2, 1, 3])
    cluster.pass_time(8_000, beating=(1, 2, 3))
    assert cluster.state() == (2, (2, 1, 3), ())
    for _ in range(40):
        cluster.pass_time(8_000, beating=(1, 2, 3))
    assert cluster.state() == (1, (2, 1, 3), ())
    assert cluster.partition().leader_epoch == 2


def test_preferred_leaders_are_left_alone_by_configuration() -> None:
    cluster = Cluster(brokers=2, auto_leader_rebalance_enable="false")
    cluster.create(creatable("t", assignments=[(0, [1, 2])]))
    cluster.fence(1)
    cluster.beat(1)
    cluster.propose([2, 1])
    for _ in range(80):
        cluster.pass_time(8_000, beating=(1, 2))
    assert cluster.partition().leader == 2
