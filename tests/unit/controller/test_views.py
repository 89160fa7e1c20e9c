"""Views: topics that show some records of another topic. Every rule and its error."""

from __future__ import annotations

import pytest

from tests.unit.controller.cluster import Cluster, creatable
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import MetadataImage
from tidemill.controller.records import image_records
from tidemill.errors import ErrorCode
from tidemill.protocol.api.admin import (
    AlterConfigsResourceResponse,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

SOURCE, FILTER = "tidemill.view.source", "tidemill.view.filter"
EU = "region = 'eu'"


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(brokers=3)
    (result,) = made.create(creatable("orders", 3, 2))
    assert not result.error_code
    return made


def view(
    cluster: Cluster, name: str = "eu-orders", source: str = "orders", where: str = EU
) -> CreatableTopicResult:
    (result,) = cluster.create(creatable(name, -1, -1, configs={SOURCE: source, FILTER: where}))
    return result


def delete(cluster: Cluster, *names: str) -> list[tuple[str | None, int]]:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names])
    return [(each.name, each.error_code) for each in cluster.ask(request).responses]


def alter(cluster: Cluster, topic: str, changes: dict[str, str | None]) -> AlterConfigsResourceResponse:
    configs = [
        IncrementalAlterConfigsAlterableConfig(
            name=key, config_operation=1 if value is None else 0, value=value
        )
        for key, value in changes.items()
    ]
    resource = IncrementalAlterConfigsResource(resource_type=2, resource_name=topic, configs=configs)
    (response,) = cluster.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert isinstance(response, AlterConfigsResourceResponse)
    return response


def test_a_view_has_the_partitions_of_its_source_and_an_id_of_its_own(cluster: Cluster) -> None:
    result = view(cluster)
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.NONE, 3, 2)
    assert {config.name: config.value for config in result.configs or ()}[SOURCE] == "orders"
    image = cluster.image
    topic = image.topics_by_name["eu-orders"]
    assert topic.id != image.topics_by_name["orders"].id
    assert topic.partitions == ()
    assert image.partitions_of(topic) == image.topics_by_name["orders"].partitions
    image.check_invariants()


def test_a_view_grows_with_its_source(cluster: Cluster) -> None:
    view(cluster)
    grown = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="orders", count=5, assignments=None)])
    assert not cluster.ask(grown).results[0].error_code
    assert len(cluster.image.partitions_of(cluster.image.topics_by_name["eu-orders"])) == 5


def test_a_view_survives_a_snapshot(cluster: Cluster) -> None:
    view(cluster)
    delta = MetadataDelta(MetadataImage())
    for record in image_records(cluster.image):
        delta.replay(record)
    copy = delta.apply()
    copy.check_invariants()
    assert copy.source_of("eu-orders") == cluster.image.topics_by_name["orders"]


@pytest.mark.parametrize(
    ("configs", "hint"),
    [
        ({SOURCE: "orders"}, f"{FILTER} is missing"),
        ({FILTER: EU}, f"{SOURCE} is missing"),
        ({SOURCE: "nowhere", FILTER: EU}, "there is no such topic"),
        ({SOURCE: "v", FILTER: EU}, "cannot show itself"),
        ({SOURCE: "__consumer_offsets", FILTER: EU}, "no such topic|internal"),
        ({SOURCE: "other-view", FILTER: EU}, "which is a view"),
        ({SOURCE: "orders", FILTER: "region ="}, "cannot have this filter"),
        ({SOURCE: "orders", FILTER: "(" * 1000 + EU + ")" * 1000}, "cannot have this filter"),
        ({SOURCE: "orders", FILTER: "x" * 1_000_000}, "cannot have this filter"),
        ({SOURCE: "orders", FILTER: EU, "retention.ms": "1000"}, "retention.ms would have no effect"),
    ],
)
def test_a_view_that_cannot_be_is_refused(cluster: Cluster, configs: dict[str, str], hint: str) -> None:
    view(cluster, "other-view")
    before = cluster.image
    (result,) = cluster.create(creatable("v", -1, -1, configs=configs))
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert any(each in (result.error_message or "") for each in hint.split("|")), result.error_message
    assert cluster.image == before


def test_a_view_of_a_deleted_topic_is_refused(cluster: Cluster) -> None:
    assert delete(cluster, "orders") == [("orders", ErrorCode.NONE)]
    result = view(cluster)
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert "there is no such topic" in (result.error_message or "")


def test_partitions_and_replicas_are_left_to_the_source(cluster: Cluster) -> None:
    configs = {SOURCE: "orders", FILTER: EU}
    (same,) = cluster.create(creatable("same", 3, 2, configs=configs))
    assert same.error_code == ErrorCode.NONE
    (more,) = cluster.create(creatable("more", 4, -1, configs=configs))
    assert more.error_code == ErrorCode.INVALID_PARTITIONS
    (factor,) = cluster.create(creatable("factor", -1, 3, configs=configs))
    assert factor.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    grown = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="same", count=5, assignments=None)])
    (result,) = cluster.ask(grown).results
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert "'orders'" in result.error_message


def test_a_source_is_deleted_only_with_its_views(cluster: Cluster) -> None:
    view(cluster, "a")
    view(cluster, "b")
    assert delete(cluster, "orders") == [("orders", ErrorCode.POLICY_VIOLATION)]
    assert delete(cluster, "orders", "a") == [("orders", ErrorCode.POLICY_VIOLATION), ("a", ErrorCode.NONE)]
    assert delete(cluster, "orders", "b") == [("orders", ErrorCode.NONE), ("b", ErrorCode.NONE)]
    cluster.image.check_invariants()


def test_a_deleted_view_leaves_its_source(cluster: Cluster) -> None:
    view(cluster)
    assert delete(cluster, "eu-orders") == [("eu-orders", ErrorCode.NONE)]
    assert set(cluster.image.topics_by_name) == {"orders"}
    assert cluster.image.views_of("orders") == []


def test_the_filter_may_change(cluster: Cluster) -> None:
    view(cluster)
    assert alter(cluster, "eu-orders", {FILTER: "region = 'us'"}).error_code == ErrorCode.NONE
    assert cluster.image.topic_config("eu-orders")[FILTER] == "region = 'us'"


@pytest.mark.parametrize(
    ("topic", "changes"),
    [
        ("eu-orders", {SOURCE: "other"}),
        ("eu-orders", {SOURCE: None}),
        ("eu-orders", {FILTER: None}),
        ("eu-orders", {FILTER: "region ="}),
        ("eu-orders", {"retention.ms": "1"}),
        ("orders", {SOURCE: "other"}),
        ("orders", {FILTER: EU}),
    ],
)
def test_other_changes_are_refused(cluster: Cluster, topic: str, changes: dict[str, str | None]) -> None:
    cluster.create(creatable("other", 1, 1))
    view(cluster)
    before = cluster.image
    response = alter(cluster, topic, changes)
    assert response.error_code == ErrorCode.INVALID_CONFIG, response.error_message
    assert cluster.image == before


@pytest.mark.parametrize("test", ["~ '(a+)+$'", "matches '(a+)+$'", "like '%a%'", "=~ '(a+)+$'"])
def test_failure_35_a_filter_has_no_patterns(cluster: Cluster, test: str) -> None:
    result = view(cluster, where=f"region {test}")
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert "cannot have this filter" in (result.error_message or "")
