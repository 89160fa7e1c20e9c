"""The topics of the coordinators: created when they are needed, never by a read, and such that they can be written to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.health import examine
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.admin.transactions import TransactionAdmin
from tidemill.client.cluster import Cluster
from tidemill.errors import ApiError, ErrorCode
from tidemill.testing import InProcessBroker


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with InProcessBroker() as broker, Cluster(broker.bootstrap) as connected:
        yield connected


def _topics(cluster: Cluster) -> list[str]:
    return [topic.name or "" for topic in cluster.load_metadata(None).topics]


def test_looking_creates_no_topic(cluster: Cluster) -> None:
    with pytest.raises(ApiError) as unknown_id:
        TransactionAdmin(cluster).describe("nobody")
    assert unknown_id.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    with pytest.raises(ApiError) as unknown_group:
        GroupAdmin(cluster).describe("nobody")
    assert unknown_group.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert GroupAdmin(cluster).committed("nobody") == {}
    with pytest.raises(ApiError) as not_deleted:
        GroupAdmin(cluster).delete("nobody")
    assert not_deleted.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert Admin(cluster).describe_configs(ResourceType.GROUP, "nobody")
    assert _topics(cluster) == []


def test_one_replica_is_enough_where_there_is_one_broker(cluster: Cluster) -> None:
    """The topic of transactions asks for two in sync, and may get them when the cluster grows."""
    cluster.retrying(lambda: cluster.transaction_coordinator("somebody"))
    admin = Admin(cluster)
    assert admin.topic_values(["__transaction_state"], "min.insync.replicas") == {"__transaction_state": "2"}
    assert examine(cluster).symptoms == []
    with pytest.raises(ApiError) as unknown_id:
        TransactionAdmin(cluster).describe("nobody")
    assert unknown_id.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
