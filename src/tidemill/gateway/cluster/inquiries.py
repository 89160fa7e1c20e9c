"""Requests the facts of a picture of the cluster, each in one or a few large requests to one broker.

They run in the backend's threads. None waits for a broker to come back: a picture without a part is better than a late
one. There are no retries beyond a second connection when the first had died unnoticed. What a broker does not know (a newer
API, a partition that it no longer leads) is left out of the result.

A request describes at most `_GROUPS_A_REQUEST` groups: a coordinator handles one request without a pause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from tidemill.client.admin.cluster import ClusterAdmin, Quorum
from tidemill.client.admin.groups import (
    LAST_VERSION_WITH_NAMES,
    GroupAdmin,
    GroupDescription,
    classic_description,
    consumer_description,
)
from tidemill.client.admin.health import BrokerFact
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster, check
from tidemill.client.connections.connection import BrokerUnreachable, Connection, ConnectionLost
from tidemill.errors import ApiError, ErrorCode
from tidemill.gateway.cluster.facts import ByPartition, GroupFact, Topology
from tidemill.gateway.cluster.share_inquiries import is_share_group, share_facts
from tidemill.protocol.api.cluster import DescribeClusterRequest, DescribeClusterResponse, MetadataResponse
from tidemill.protocol.api.data import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidemill.protocol.api.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from tidemill.protocol.api.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from tidemill.types import TopicPartition

T = TypeVar("T")

# By topic and partition.
Offsets = dict[str, dict[int, int]]
Sizes = dict[str, dict[int, int]]

_CONNECTION_ATTEMPTS = 3
_GROUPS_A_REQUEST = 100
# The first version of OffsetFetch for several groups at once.
_FIRST_BATCHED_OFFSET_FETCH = 8
_CONSUMER_GROUP = "consumer"
_CLASSIC_GROUPS = ("", "classic")


def topology(cluster: Cluster) -> Topology:
    def attempt() -> Topology:
        cluster.forget()
        metadata = cluster.load_metadata(None)
        brokers, cluster_id = _brokers(cluster, metadata)
        named = ((topic.name, topic) for topic in metadata.topics if topic.name and not topic.error_code)
        for _, topic in (topics := sorted(named)):
            topic.partitions.sort(key=lambda each: each.partition_index)
        found = Topology(cluster_id, metadata.controller_id, brokers, dict(topics))
        # Made here, in a thread: it takes its time with thousands of partitions.
        _ = found.led
        return found

    return _reconnecting(attempt)


def _brokers(cluster: Cluster, metadata: MetadataResponse) -> tuple[tuple[BrokerFact, ...], str]:
    """The brokers, including fenced ones where the cluster lists them, and the cluster id."""
    cluster_id = metadata.cluster_id or ""
    facts = {
        each.node_id: BrokerFact(each.node_id, each.host, each.port, each.rack, False)
        for each in metadata.brokers
    }
    try:
        message = DescribeClusterRequest(include_fenced_brokers=True)
        described = cluster.any_broker().request(message, DescribeClusterResponse)
        check(described.error_code, described.error_message)
    except ApiError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
    else:
        cluster_id = described.cluster_id or cluster_id
        for each in described.brokers:
            facts.setdefault(
                each.broker_id, BrokerFact(each.broker_id, each.host, each.port, each.rack, each.is_fenced)
            )
    return tuple(facts[broker_id] for broker_id in sorted(facts)), cluster_id


def quorum(cluster: Cluster) -> Quorum | None:
    """The metadata quorum; None on a cluster with ZooKeeper, or without permission to describe it."""
    try:
        return _reconnecting(ClusterAdmin(cluster).quorum_now)
    except ApiError as error:
        if error.code in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
            return None
        raise


def controller_id(cluster: Cluster) -> int:
    """The quorum's leader, or what Metadata says where there is no quorum; -1 for none."""
    found = quorum(cluster)
    return (
        _reconnecting(lambda: cluster.load_metadata([])).controller_id if found is None else found.leader_id
    )


def offsets(cluster: Cluster, broker_id: int, led: dict[str, list[int]], timestamp_ms: int) -> Offsets:
    """Offsets of the partitions that this broker leads; unknown or moved partitions are left out."""
    topics = [
        ListOffsetsTopic(
            name=topic,
            partitions=[
                ListOffsetsPartition(partition_index=index, timestamp=timestamp_ms) for index in partitions
            ],
        )
        for topic, partitions in led.items()
    ]
    message = ListOffsetsRequest(replica_id=-1, topics=topics)
    response = _reconnecting(lambda: cluster.broker(broker_id).request(message, ListOffsetsResponse))
    return {
        topic.name: {each.partition_index: each.offset for each in topic.partitions if not each.error_code}
        for topic in response.topics
    }


def merged(topology: Topology, before: ByPartition, answers: Iterable[Offsets]) -> Offsets:
    """The leaders' answers; partitions whose leader did not answer keep their previous offset."""
    found: Offsets = {}
    for name, topic in topology.topics.items():
        known = before.get(name)
        if known:
            found[name] = {
                each.partition_index: known[each.partition_index]
                for each in topic.partitions
                if each.partition_index in known
            }
    for answer in answers:
        for name, partitions in answer.items():
            found.setdefault(name, {}).update(partitions)
    return found


def sizes(cluster: Cluster, broker_id: int) -> Sizes:
    """The size of every replica on this broker's disks; none without permission to describe the cluster."""
    found: Sizes = {}
    try:
        directories = _reconnecting(lambda: Admin(cluster).log_dirs_now(broker_id))
    except ApiError as error:
        if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return found
    for directory in directories:
        for topic in directory.topics:
            known = found.setdefault(topic.name, {})
            for each in topic.partitions:
                # A copy that is on its way to another directory is not counted twice.
                if not each.is_future_key:
                    known[each.partition_index] = each.partition_size
    return found


def groups(cluster: Cluster, broker_id: int) -> list[GroupFact]:
    """The groups that this broker coordinates."""

    def attempt() -> list[GroupFact]:
        connection = cluster.broker(broker_id)
        found: list[GroupFact] = []
        for chunk in _chunks(_listed(connection)):
            found += _facts(connection, broker_id, [each for each in chunk if not is_share_group(each)])
            found += share_facts(
                cluster, connection, broker_id, [each for each in chunk if is_share_group(each)]
            )
        return found

    return _reconnecting(attempt)


def _facts(connection: Connection, broker_id: int, listed: Sequence[ListedGroup]) -> Iterator[GroupFact]:
    described = _describe(connection, listed)
    committed = _committed(connection, [group.group_id for group in listed]) if listed else {}
    for group in listed:
        known = described.get(group.group_id)
        yield GroupFact(
            group.group_id,
            known.state if known else group.group_state,
            (known.assignor if known else "") or group.group_type or group.protocol_type,
            broker_id,
            known.members if known else (),
            committed.get(group.group_id, {}),
        )


def group(group_admin: GroupAdmin, group_id: str) -> tuple[GroupFact, Offsets] | None:
    """A group that no picture has yet, with its partitions' end offsets; None when it does not exist."""
    try:
        known = group_admin.describe(group_id)
    except ApiError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        queue = _share_group(group_admin.cluster, group_id)
        return None if queue is None else (queue, {})
    lags = group_admin.lags(known)
    broker_id = _coordinator_id(group_admin.cluster, group_id)
    committed = {each.partition: each.committed_offset for each in lags if each.committed_offset is not None}
    ends: Offsets = {}
    for each in lags:
        if each.end_offset is not None:
            ends.setdefault(each.partition.topic, {})[each.partition.partition] = each.end_offset
    fact = GroupFact(group_id, known.state, known.assignor or known.type, broker_id, known.members, committed)
    return fact, ends


def _share_group(cluster: Cluster, group_id: str) -> GroupFact | None:
    """A share group, which the description of groups that commit offsets does not know."""
    broker_id = _coordinator_id(cluster, group_id)
    if broker_id < 0:
        return None

    def attempt() -> list[GroupFact]:
        connection = cluster.broker(broker_id)
        listed = [each for each in _listed(connection) if each.group_id == group_id and is_share_group(each)]
        return list(share_facts(cluster, connection, broker_id, listed))

    return next(iter(_reconnecting(attempt)), None)


def _coordinator_id(cluster: Cluster, group_id: str) -> int:
    coordinator = cluster.coordinator(group_id).address
    brokers = cluster.load_metadata([]).brokers
    return next((each.node_id for each in brokers if (each.host, each.port) == coordinator), -1)


def _listed(connection: Connection) -> Sequence[ListedGroup]:
    response = connection.request(ListGroupsRequest(), ListGroupsResponse)
    check(response.error_code)
    return response.groups


def _chunks(listed: Sequence[ListedGroup]) -> Iterator[Sequence[ListedGroup]]:
    for start in range(0, len(listed), _GROUPS_A_REQUEST):
        yield listed[start : start + _GROUPS_A_REQUEST]


def _describe(connection: Connection, listed: Iterable[ListedGroup]) -> dict[str, GroupDescription]:
    classic = [group.group_id for group in listed if group.group_type.lower() in _CLASSIC_GROUPS]
    consumer = [group.group_id for group in listed if group.group_type.lower() == _CONSUMER_GROUP]
    found: dict[str, GroupDescription] = {}
    if classic:
        answer = connection.request(DescribeGroupsRequest(groups=classic), DescribeGroupsResponse)
        for each in answer.groups:
            if not each.error_code:
                found[each.group_id] = classic_description(each)
    if consumer:
        message = ConsumerGroupDescribeRequest(group_ids=consumer)
        for one in connection.request(message, ConsumerGroupDescribeResponse).groups:
            if not one.error_code:
                found[one.group_id] = consumer_description(one)
    return found


def _committed(connection: Connection, group_ids: list[str]) -> dict[str, dict[TopicPartition, int]]:
    version = connection.version_of(OffsetFetchRequest, LAST_VERSION_WITH_NAMES)
    chunks = [group_ids] if version >= _FIRST_BATCHED_OFFSET_FETCH else [[each] for each in group_ids]
    found: dict[str, dict[TopicPartition, int]] = {}
    for chunk in chunks:
        message = OffsetFetchRequest(
            group_id=chunk[0],
            topics=None,
            groups=[OffsetFetchRequestGroup(group_id=each, topics=None) for each in chunk],
        )
        response = connection.request(message, OffsetFetchResponse, max_version=LAST_VERSION_WITH_NAMES)
        # Up to version 7 the answer has the fields of the one group itself.
        answers: list[OffsetFetchResponseGroup | OffsetFetchResponse] = [*response.groups] or [response]
        for answer in answers:
            if not answer.error_code:
                group_id = answer.group_id if isinstance(answer, OffsetFetchResponseGroup) else chunk[0]
                found[group_id] = {
                    TopicPartition(topic.name, each.partition_index): each.committed_offset
                    for topic in answer.topics
                    for each in topic.partitions
                    if not each.error_code and each.committed_offset >= 0
                }
    return found


def _reconnecting(attempt: Callable[[], T]) -> T:
    """Retries at once on a new connection: a cached one may have died. Waits for no broker."""
    for _ in range(_CONNECTION_ATTEMPTS - 1):
        try:
            return attempt()
        except (ConnectionLost, BrokerUnreachable):
            continue
    return attempt()
