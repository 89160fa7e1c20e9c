"""Images share their unchanged parts; deltas name the changes."""

from __future__ import annotations

import pytest

from tests.unit.controller.cluster import Cluster, creatable
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import ConfigResource, MetadataImage, ResourceType
from tidemill.controller.records import decode_record, encode_record, image_records
from tidemill.protocol.api.metadata import (
    BeginTransactionRecord,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from tidemill.types import BrokerId


def two_topics() -> Cluster:
    cluster = Cluster(brokers=3)
    cluster.create(creatable("a", 3, 3), creatable("b", 2, 1))
    return cluster


def test_frame_of_a_record() -> None:
    record = TopicRecord(name="foo", topic_id=bytes(range(16)))
    encoded = encode_record(record)
    # Frame version 1, API key 2, version 0; a compact string; the id; no tagged fields.
    assert encoded == b"\x01\x02\x00" + b"\x04foo" + bytes(range(16)) + b"\x00"
    assert decode_record(encoded) == record


def test_a_change_of_one_partition_shares_the_rest() -> None:
    image = two_topics().image
    a, b = image.topics_by_name["a"], image.topics_by_name["b"]
    delta = MetadataDelta(image)
    delta.replay(PartitionChangeRecord(topic_id=a.id, partition_id=1, leader=3, isr=[3]))
    changed = delta.apply()
    assert list(delta.changed_topics) == [a.id]
    assert list(delta.changed_topics[a.id].changed) == [1]
    assert not delta.changed_topics[a.id].is_new
    assert changed.topics_by_name["b"] is b
    assert changed.topics_by_name["a"].partitions[0] is a.partitions[0]
    partition = changed.topics_by_name["a"].partitions[1]
    assert (partition.leader, partition.isr) == (3, (3,))
    assert (partition.leader_epoch, partition.partition_epoch) == (1, 1)
    assert image.topics_by_name["a"] is a
    assert changed.brokers is image.brokers
    assert changed.configs is image.configs
    assert changed.end_offset == image.end_offset + 1


def test_only_a_named_leader_begins_a_new_leader_epoch() -> None:
    image = two_topics().image
    a = image.topics_by_name["a"]
    delta = MetadataDelta(image)
    delta.replay(PartitionChangeRecord(topic_id=a.id, partition_id=0, isr=[1, 2]))
    delta.replay(PartitionChangeRecord(topic_id=a.id, partition_id=0, leader=a.partitions[0].leader))
    partition = delta.apply().topics_by_name["a"].partitions[0]
    assert (partition.leader_epoch, partition.partition_epoch) == (1, 2)
    assert partition.isr == (1, 2)


def test_reassignment_fields_and_elr() -> None:
    image = two_topics().image
    a = image.topics_by_name["a"]
    delta = MetadataDelta(image)
    delta.replay(
        PartitionChangeRecord(
            topic_id=a.id,
            partition_id=0,
            replicas=[1, 2],
            removing_replicas=[3],
            adding_replicas=[2],
            eligible_leader_replicas=[2],
            last_known_elr=[3],
            directories=[b"d" * 16, b"e" * 16],
            leader_recovery_state=1,
        )
    )
    partition = delta.apply().topics_by_name["a"].partitions[0]
    assert (partition.replicas, partition.removing_replicas, partition.adding_replicas) == (
        (1, 2),
        (3,),
        (2,),
    )
    assert (partition.elr, partition.last_known_elr, partition.leader_recovery_state) == ((2,), (3,), 1)
    assert partition.directories == (b"d" * 16, b"e" * 16)
    delta.replay(ClearElrRecord(topic_name="a"))
    cleared = delta.apply().topics_by_name["a"].partitions[0]
    assert (cleared.elr, cleared.last_known_elr) == ((), ())


def test_deleted_and_recreated_within_one_delta() -> None:
    cluster = two_topics()
    cluster.create(creatable("c", configs={"retention.ms": "5"}))
    image = cluster.image
    old = image.topics_by_name["c"]
    delta = MetadataDelta(image)
    delta.replay(RemoveTopicRecord(topic_id=old.id))
    delta.replay(TopicRecord(name="c", topic_id=b"2" * 16))
    delta.replay(PartitionRecord(topic_id=b"2" * 16, partition_id=0, replicas=[1], isr=[1], leader=1))
    changed = delta.apply()
    assert delta.deleted_topics == {old.id: old}
    assert delta.changed_topics[changed.topics_by_name["c"].id].is_new
    assert changed.topics_by_name["c"].id == b"2" * 16
    assert old.id not in changed.topics_by_id
    assert changed.topic_config("c") == {}
    assert image.topic_config("c") == {"retention.ms": "5"}


def test_created_and_deleted_within_one_delta_leaves_nothing() -> None:
    image = two_topics().image
    delta = MetadataDelta(image)
    delta.replay(TopicRecord(name="c", topic_id=b"2" * 16))
    delta.replay(ConfigRecord(resource_type=2, resource_name="c", name="retention.ms", value="5"))
    delta.replay(RemoveTopicRecord(topic_id=b"2" * 16))
    changed = delta.apply()
    assert changed.topics_by_name == image.topics_by_name
    assert changed.configs == image.configs


def test_configs_features_and_no_ops() -> None:
    image = two_topics().image
    delta = MetadataDelta(image)
    resource = ConfigResource(ResourceType.TOPIC, "a")
    delta.replay(ConfigRecord(resource_type=2, resource_name="a", name="retention.ms", value="5"))
    delta.replay(FeatureLevelRecord(name="metadata.version", feature_level=7))
    delta.replay(NoOpRecord())
    changed = delta.apply()
    assert list(delta.changed_configs) == [resource]
    assert changed.config(resource) == {"retention.ms": "5"}
    assert changed.features == {**image.features, "metadata.version": 7}
    assert changed.topics_by_name is image.topics_by_name
    after = MetadataDelta(changed)
    after.replay(ConfigRecord(resource_type=2, resource_name="a", name="retention.ms", value=None))
    after.replay(FeatureLevelRecord(name="metadata.version", feature_level=0))
    assert after.apply().configs == image.configs
    assert "metadata.version" not in after.apply().features


def test_an_applied_image_does_not_change_when_the_delta_goes_on() -> None:
    delta = MetadataDelta(two_topics().image)
    delta.replay(ConfigRecord(resource_type=2, resource_name="a", name="retention.ms", value="5"))
    first = delta.apply()
    delta.replay(ConfigRecord(resource_type=2, resource_name="a", name="retention.ms", value="6"))
    assert first.topic_config("a") == {"retention.ms": "5"}


def test_offsets_may_have_gaps() -> None:
    delta = MetadataDelta(MetadataImage())
    delta.replay(NoOpRecord(), offset=41)
    assert delta.apply().end_offset == 42


def test_unregistered_broker_disappears() -> None:
    cluster = Cluster(brokers=2)
    broker = cluster.image.brokers[BrokerId(2)]
    delta = MetadataDelta(cluster.image)
    delta.replay(UnregisterBrokerRecord(broker_id=2, broker_epoch=broker.epoch))
    assert delta.changed_brokers == {2: None}
    assert list(delta.apply().brokers) == [1]


def test_records_that_contradict_the_image_are_bugs() -> None:
    image = two_topics().image
    with pytest.raises(ValueError, match="BeginTransactionRecord"):
        MetadataDelta(image).replay(BeginTransactionRecord())
    with pytest.raises(AssertionError, match="epoch"):
        MetadataDelta(image).replay(UnregisterBrokerRecord(broker_id=1, broker_epoch=99))
    gap = MetadataDelta(image)
    topic_id = image.topics_by_name["a"].id
    gap.replay(PartitionRecord(topic_id=topic_id, partition_id=9, replicas=[1], isr=[1], leader=1))
    with pytest.raises(AssertionError, match="a-9"):
        gap.apply()


def test_snapshot_gives_the_image_again() -> None:
    cluster = two_topics()
    cluster.create(creatable("c", configs={"retention.ms": "5"}))
    cluster.controller.replay(FeatureLevelRecord(name="metadata.version", feature_level=7))
    delta = MetadataDelta(MetadataImage())
    for record in image_records(cluster.image):
        delta.replay(decode_record(encode_record(record)))
    rebuilt = delta.apply()
    for name in ("topics_by_name", "topics_by_id", "brokers", "configs", "features", "next_producer_id"):
        assert getattr(rebuilt, name) == getattr(cluster.image, name)


def test_invariants_notice_a_leader_outside_the_isr() -> None:
    image = two_topics().image
    delta = MetadataDelta(image)
    topic_id = image.topics_by_name["a"].id
    delta.replay(PartitionChangeRecord(topic_id=topic_id, partition_id=0, leader=1, isr=[2]))
    with pytest.raises(AssertionError):
        delta.apply().check_invariants()
