"""Topics that get fewer partitions: what the controller refuses and writes, and what a snapshot tells of removals."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.controller.cluster import Cluster, creatable
from tidemill.broker.partitions.shrinking.places import storing_partition
from tidemill.config import (
    PARTITIONS_ACTIVE,
    PARTITIONS_DIVISORS,
    PARTITIONS_EMPTY,
    PARTITIONS_ENDS,
    PARTITIONS_EPOCHS,
    PARTITIONS_FORMER,
    PARTITIONS_TOTAL,
    PARTITIONS_UNKEYED,
    BrokerLayers,
    resolve_topic_config,
)
from tidemill.controller.delta import MetadataDelta, TopicDelta
from tidemill.controller.difference import difference
from tidemill.controller.image import MetadataImage
from tidemill.controller.records import image_records
from tidemill.controller.topics.fewer_partitions import has_had, removal_records, removed_ends, removed_epochs
from tidemill.errors import ErrorCode
from tidemill.protocol.api.admin import (
    AlterConfigsAlterableConfig,
    AlterConfigsAlterConfigsResource,
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from tidemill.protocol.api.brokers import AlterPartitionResponsePartitionData, BrokerState
from tidemill.protocol.api.metadata import ConfigRecord, RemoveTopicRecord
from tidemill.protocol.api.replicas import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidemill.types import NO_BROKER

TOPIC_RESOURCE = 2
SET, DELETE = 0, 1


@pytest.fixture
def cluster() -> Cluster:
    return four_partitions()


def four_partitions() -> Cluster:
    """A topic with four partitions on three of four brokers."""
    cluster = Cluster(brokers=4)
    cluster.create(creatable("t", assignments=[(index, [1, 2, 3]) for index in range(4)]))
    return cluster


def alter(cluster: Cluster, **changes: str | None) -> tuple[ErrorCode, str]:
    names = {"active": PARTITIONS_ACTIVE, "unkeyed": PARTITIONS_UNKEYED}
    settings = [
        IncrementalAlterConfigsAlterableConfig(
            name=names[name], config_operation=DELETE if value is None else SET, value=value
        )
        for name, value in changes.items()
    ]
    resource = IncrementalAlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name="t", configs=settings
    )
    (answer,) = cluster.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses
    return ErrorCode(answer.error_code), answer.error_message or ""


def shrink(cluster: Cluster, active: int) -> None:
    assert alter(cluster, active=str(active)) == (ErrorCode.NONE, "")


def grow(cluster: Cluster, count: int) -> ErrorCode:
    topic = CreatePartitionsTopic(name="t", count=count, assignments=None)
    return ErrorCode(cluster.ask(CreatePartitionsRequest(topics=[topic])).results[0].error_code)


def remove(cluster: Cluster, index: int, end_offset: int = 7) -> ErrorCode:
    """As the leader of an empty partition proposes it."""
    return ErrorCode(propose_removal(cluster, index, end_offset).error_code)


def propose_removal(
    cluster: Cluster, index: int, end_offset: int = 7, **fields: Any
) -> AlterPartitionResponsePartitionData:
    of_no_broker = [BrokerState(broker_id=NO_BROKER, broker_epoch=end_offset)]
    return cluster.propose([], index=index, new_isr_with_epochs=of_no_broker, **fields)


def reassign(cluster: Cluster, index: int, replicas: list[int] | None) -> ErrorCode:
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[partition])])
    return ErrorCode(cluster.ask(request).responses[0].partitions[0].error_code)


def epochs(cluster: Cluster) -> list[int]:
    return [each.leader_epoch for each in cluster.image.topics_by_name["t"].partitions]


def settings(cluster: Cluster) -> dict[str, str]:
    return dict(cluster.image.topic_config("t"))


def test_a_shrink_and_its_end_bump_the_epochs_of_decommissioned_partitions_alone(cluster: Cluster) -> None:
    shrink(cluster, 2)
    assert epochs(cluster) == [0, 0, 1, 1]
    assert alter(cluster, active=None)[0] is ErrorCode.NONE
    assert epochs(cluster) == [0, 0, 2, 2]
    assert settings(cluster) == {PARTITIONS_DIVISORS: "2"}


def test_numbers_of_earlier_shrinks_are_kept_with_the_last_one_at_the_end(cluster: Cluster) -> None:
    for active in (2, 1, 2):
        shrink(cluster, active)
        alter(cluster, active=None)
    assert settings(cluster)[PARTITIONS_DIVISORS] == "1,2"


def test_a_topic_with_more_than_512_partitions_keeps_them() -> None:
    cluster = Cluster(brokers=1)
    cluster.create(creatable("t", partitions=514, factor=1))
    code, reason = alter(cluster, active="257")
    assert (code, "at most 512" in reason) == (ErrorCode.INVALID_CONFIG, True)
    smaller = Cluster(brokers=1)
    smaller.create(creatable("t", partitions=512, factor=1))
    assert alter(smaller, active="256")[0] is ErrorCode.NONE


def test_a_second_shrink_is_refused_until_the_first_one_is_done_or_taken_back(cluster: Cluster) -> None:
    shrink(cluster, 2)
    code, reason = alter(cluster, active="1")
    assert (code, "take it back first" in reason) == (ErrorCode.INVALID_CONFIG, True)
    alter(cluster, active=None)
    shrink(cluster, 1)
    for index in (3, 2, 1):
        assert remove(cluster, index) is ErrorCode.NONE
    assert epochs(cluster) == [0]
    assert PARTITIONS_ACTIVE not in settings(cluster)


def test_a_shrink_with_one_broker_down_keeps_its_partitions_until_it_is_back(cluster: Cluster) -> None:
    cluster.fence(3)
    shrink(cluster, 2)
    assert remove(cluster, 3) is not ErrorCode.NONE
    cluster.beat(3)
    assert cluster.propose([1, 2, 3], index=3).error_code == ErrorCode.NONE
    assert remove(cluster, 3) is ErrorCode.NONE


def test_a_shrink_during_a_reassignment_is_refused(cluster: Cluster) -> None:
    assert reassign(cluster, 0, [1, 2, 4]) is ErrorCode.NONE
    code, reason = alter(cluster, active="2")
    assert (code, "reassigned" in reason) == (ErrorCode.INVALID_CONFIG, True)
    assert reassign(cluster, 0, None) is ErrorCode.NONE
    shrink(cluster, 2)


def test_a_decommissioned_partition_is_not_removed_while_it_is_reassigned(cluster: Cluster) -> None:
    shrink(cluster, 2)
    assert reassign(cluster, 3, [1, 2, 4]) is ErrorCode.NONE
    assert remove(cluster, 3) is not ErrorCode.NONE
    assert cluster.propose([1, 2, 3, 4], index=3).error_code == ErrorCode.NONE
    assert not cluster.partition(index=3).is_reassigned
    assert remove(cluster, 3) is ErrorCode.NONE


def test_partitions_go_from_the_highest_and_only_while_decommissioned(cluster: Cluster) -> None:
    assert remove(cluster, 3) is not ErrorCode.NONE
    shrink(cluster, 1)
    assert remove(cluster, 2) is not ErrorCode.NONE
    for index in (3, 2, 1):
        assert remove(cluster, index) is ErrorCode.NONE
        assert len(epochs(cluster)) == index
    assert remove(cluster, 0) is not ErrorCode.NONE


def test_as_many_partitions_go_at_a_time_as_stay(cluster: Cluster) -> None:
    """With three partitions on the way from four to two, clients would choose others for the same keys."""
    shrink(cluster, 2)
    assert remove(cluster, 1) is not ErrorCode.NONE
    for _ in range(2):
        assert remove(cluster, 2, end_offset=20) is ErrorCode.NONE
        assert len(epochs(cluster)) == 4
    assert remove(cluster, 3, end_offset=1 << 40) is ErrorCode.NONE
    assert len(epochs(cluster)) == 2
    assert settings(cluster) == {
        PARTITIONS_DIVISORS: "2",
        PARTITIONS_ENDS: f"2:20,3:{1 << 40}",
        PARTITIONS_EPOCHS: "2:1,3:1",
        PARTITIONS_FORMER: "4",
    }


def test_partitions_that_one_request_says_are_empty_go_together(cluster: Cluster) -> None:
    shrink(cluster, 2)
    topic = cluster.image.topics_by_name["t"]
    decided = removal_records(cluster.image, topic, 2, 20, [])
    decided += removal_records(cluster.image, topic, 3, 30, decided)
    assert removal_records(cluster.image, topic, 3, 30, decided) == []
    written = [(each.name, each.value) for each in decided if isinstance(each, ConfigRecord)]
    assert [value for name, value in written if name == PARTITIONS_TOTAL] == ["2", None]
    assert (PARTITIONS_ENDS, "2:20,3:30") in written


def test_a_removal_that_does_not_say_where_the_log_ends_is_refused(cluster: Cluster) -> None:
    shrink(cluster, 1)
    for isr in ([], [NO_BROKER], [NO_BROKER, 1]):
        assert cluster.propose(isr, index=3, version=2).error_code == ErrorCode.INVALID_REQUEST
    assert remove(cluster, 3, end_offset=-1) is ErrorCode.INVALID_REQUEST


def test_a_partition_that_is_removed_again_ends_where_the_last_one_did(cluster: Cluster) -> None:
    for end_offset in (20, 50):
        shrink(cluster, 1)
        for index in (3, 2, 1):
            remove(cluster, index, end_offset + index)
        assert removed_ends(settings(cluster)) == {index: end_offset + index for index in (1, 2, 3)}
        grow(cluster, 4)


def test_noted_empty_partitions_are_forgotten_when_a_shrink_is_cancelled(cluster: Cluster) -> None:
    shrink(cluster, 2)
    remove(cluster, 3)
    assert settings(cluster)[PARTITIONS_EMPTY] == "3:7"
    alter(cluster, active=None)
    assert PARTITIONS_EMPTY not in settings(cluster)


def test_a_shrink_taken_back_halfway_keeps_what_is_left_and_may_grow(cluster: Cluster) -> None:
    shrink(cluster, 1)
    remove(cluster, 3)
    assert settings(cluster)[PARTITIONS_TOTAL] == "3"
    alter(cluster, active=None)
    assert settings(cluster) == {
        PARTITIONS_DIVISORS: "1,3",
        PARTITIONS_ENDS: "3:7",
        PARTITIONS_EPOCHS: "3:1",
        PARTITIONS_FORMER: "4",
    }
    assert grow(cluster, 6) is ErrorCode.NONE
    assert len(epochs(cluster)) == 6
    # A snapshot does not cut off what was added.
    assert len(restored(cluster.image).topics_by_name["t"].partitions) == 6


def test_a_removal_proposed_before_the_shrink_was_taken_back_is_fenced(cluster: Cluster) -> None:
    shrink(cluster, 2)
    alter(cluster, active=None)
    answer = propose_removal(cluster, 3, leader_epoch=1)
    assert answer.error_code != ErrorCode.NONE
    assert len(epochs(cluster)) == 4


def test_a_partition_that_is_added_again_has_a_later_epoch_than_the_one_before(cluster: Cluster) -> None:
    shrink(cluster, 2)
    remove(cluster, 3)
    remove(cluster, 2)
    assert grow(cluster, 4) is ErrorCode.NONE
    assert epochs(cluster) == [0, 0, 2, 2]
    assert removed_epochs(settings(cluster)) == {2: 1, 3: 1}


def test_epochs_of_removed_partitions_are_parsed_once_for_all_lookups() -> None:
    """A group coordinator looks them up for each partition of a commit or a fetch; the list may be long."""
    text = ",".join(f"{index}:7" for index in range(1_000))
    found = removed_epochs({PARTITIONS_EPOCHS: text})
    assert found[999] == 7
    assert removed_epochs({PARTITIONS_EPOCHS: text}) is found


def test_a_partition_that_is_gone_still_takes_part_in_transactions(cluster: Cluster) -> None:
    shrink(cluster, 2)
    remove(cluster, 3)
    assert [has_had(cluster.image, "t", index) for index in (2, 3, 4, -1)] == [True, True, False, False]


def test_a_snapshot_shows_the_removal_of_a_partition_that_was_added_again(cluster: Cluster) -> None:
    shrink(cluster, 2)
    before = cluster.image
    for index in (3, 2):
        remove(cluster, index)
    assert list(changes(before, cluster.image).removed) == [2, 3]
    grow(cluster, 4)
    change = changes(before, cluster.image)
    assert (list(change.removed), list(change.changed)) == ([2, 3], [2, 3])
    # One that knows of the removal has nothing to remove.
    assert not changes(cluster.image, restored(cluster.image)).removed


def changes(old: MetadataImage, new: MetadataImage) -> TopicDelta:
    topic = new.topics_by_name["t"]
    return difference(old, new).changed_topics.get(topic.id) or TopicDelta(topic, is_new=False)


def restored(image: MetadataImage) -> MetadataImage:
    """The image as a snapshot gives it."""
    delta = MetadataDelta(MetadataImage(""))
    for record in image_records(image):
        delta.replay(record, 0)
    return delta.apply()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (PARTITIONS_DIVISORS, "2"),
        (PARTITIONS_DIVISORS, "0"),
        (PARTITIONS_EMPTY, "3:7"),
        (PARTITIONS_ENDS, "3:7"),
        (PARTITIONS_EPOCHS, "abc"),
        (PARTITIONS_EPOCHS, "2:1,3:1"),
        (PARTITIONS_FORMER, "9"),
        (PARTITIONS_TOTAL, "1"),
        (PARTITIONS_ACTIVE, "2"),
    ],
)
def test_a_topic_cannot_be_created_with_the_settings_of_a_shrink(name: str, value: str) -> None:
    cluster = Cluster(brokers=1)
    (result,) = cluster.create(creatable("t", partitions=4, factor=1, configs={name: value}))
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert name in (result.error_message or "")
    assert "t" not in cluster.image.topics_by_name


MALFORMED = [
    (PARTITIONS_ACTIVE, "two"),
    (PARTITIONS_DIVISORS, "0"),
    (PARTITIONS_DIVISORS, "x"),
    (PARTITIONS_EMPTY, "3:7,x"),
    (PARTITIONS_ENDS, f"3:{'9' * 5000}"),
    (PARTITIONS_EPOCHS, "abc"),
    (PARTITIONS_EPOCHS, "1:2:3"),
    (PARTITIONS_EPOCHS, f"1:{'9' * 5000}"),
    (PARTITIONS_FORMER, "all"),
    (PARTITIONS_TOTAL, "x"),
    (PARTITIONS_TOTAL, "0"),
]


@pytest.mark.parametrize(("name", "value"), MALFORMED)
def test_a_setting_in_the_log_that_cannot_be_parsed_is_as_if_it_were_not_there(
    cluster: Cluster, name: str, value: str
) -> None:
    cluster.write([ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="t", name=name, value=value)])
    assert removed_epochs(settings(cluster)) == {}
    assert not has_had(cluster.image, "t", 4)
    assert restored(cluster.image).topics_by_name == cluster.image.topics_by_name
    assert grow(cluster, 6) is ErrorCode.NONE
    assert epochs(cluster) == [0] * 6


@pytest.mark.parametrize("removed", ["not there", "deleted"])
def test_a_number_of_partitions_in_the_log_for_a_topic_that_is_not_there_cuts_nothing(
    cluster: Cluster, removed: str
) -> None:
    delta = MetadataDelta(cluster.image)
    if removed == "deleted":
        delta.replay(RemoveTopicRecord(topic_id=cluster.image.topics_by_name["t"].id))
    name = "t" if removed == "deleted" else "u"
    delta.replay(ConfigRecord(resource_type=2, resource_name=name, name=PARTITIONS_TOTAL, value="1"))
    assert ("t" in delta.apply().topics_by_name) == (removed == "not there")


def test_more_active_partitions_than_there_are_remove_none(cluster: Cluster) -> None:
    cluster.write([ConfigRecord(resource_type=2, resource_name="t", name=PARTITIONS_ACTIVE, value="9")])
    assert remove(cluster, 3) is not ErrorCode.NONE
    assert len(epochs(cluster)) == 4


def replace_configs(cluster: Cluster, **configs: str) -> ErrorCode:
    """AlterConfigs, the older API: what it does not name returns to its default."""
    resource = AlterConfigsAlterConfigsResource(
        resource_type=TOPIC_RESOURCE,
        resource_name="t",
        configs=[
            AlterConfigsAlterableConfig(name=name.replace("_", "."), value=value)
            for name, value in configs.items()
        ],
    )
    (answer,) = cluster.ask(AlterConfigsRequest(resources=[resource])).responses
    return ErrorCode(answer.error_code)


def test_the_older_way_to_alter_configs_keeps_what_the_controller_wrote(cluster: Cluster) -> None:
    shrink(cluster, 2)
    alter(cluster, active=None)
    assert replace_configs(cluster, retention_ms="1000") is ErrorCode.NONE
    assert settings(cluster) == {PARTITIONS_DIVISORS: "2", "retention.ms": "1000"}
    shrink(cluster, 2)
    for index in (3, 2):
        remove(cluster, index)
    before = settings(cluster)
    assert replace_configs(cluster, retention_ms="2000") is ErrorCode.NONE
    assert settings(cluster) == {**before, "retention.ms": "2000"}
    assert replace_configs(cluster, tidemill_partitions_former="9") is ErrorCode.INVALID_CONFIG


def test_the_older_way_to_alter_configs_takes_a_shrink_back_as_any_key_that_it_does_not_name(
    cluster: Cluster,
) -> None:
    shrink(cluster, 2)
    remove(cluster, 3)
    assert replace_configs(cluster, retention_ms="1000") is ErrorCode.NONE
    assert settings(cluster) == {PARTITIONS_DIVISORS: "2", "retention.ms": "1000"}


@pytest.mark.parametrize("end", ["0", None])
def test_a_shrink_that_is_taken_back_takes_its_permission_for_any_number_along(
    cluster: Cluster, end: str | None
) -> None:
    assert alter(cluster, active="3", unkeyed="true")[0] is ErrorCode.NONE
    assert alter(cluster, active=end)[0] is ErrorCode.NONE
    assert PARTITIONS_UNKEYED not in settings(cluster)
    assert alter(cluster, active="3")[0] is ErrorCode.INVALID_CONFIG


def test_a_second_shrink_that_is_taken_back_leaves_keys_where_clients_of_both_numbers_send_them() -> None:
    cluster = Cluster(brokers=4)
    cluster.create(creatable("t", assignments=[(index, [1, 2, 3]) for index in range(12)]))
    shrink(cluster, 6)
    for index in range(11, 5, -1):
        remove(cluster, index)
    shrink(cluster, 2)
    assert stores(cluster, 9) == stores(cluster, 9 % 6) == 1
    alter(cluster, active=None)
    assert settings(cluster)[PARTITIONS_DIVISORS] == "2,6"
    for key in range(24):
        assert stores(cluster, key % 12) == stores(cluster, key % 6) == key % 6


def stores(cluster: Cluster, index: int) -> int:
    """The partition that stores what producers send to an index."""
    config = resolve_topic_config(settings(cluster), BrokerLayers())
    return storing_partition(index, len(epochs(cluster)), config)
