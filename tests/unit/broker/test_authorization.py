"""Every version of every API is authorised, by topic name and by topic id (failure 38)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.broker.authorized_node import (
    ADMIN,
    ALICE,
    CLUSTER_ACTION,
    CLUSTER_TYPE,
    CONTROLLER,
    CREATE,
    DESCRIBE,
    GROUP,
    LIMIT_S,
    LISTENER,
    MALLORY,
    PUBLIC,
    READ,
    SECRET,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Authorized,
)
from tidemill.broker.requests.api_table import TABLE, serves
from tidemill.broker.requests.security import authorization
from tidemill.controller.image import MetadataImage
from tidemill.errors import ErrorCode
from tidemill.protocol.api import (
    admin,
    brokers,
    cluster,
    data,
    groups,
    offsets,
    replicas,
    security,
    transactions,
)
from tidemill.protocol.declarations import ArrayOf, Primitive, Struct, StructType, field_specs
from tidemill.protocol.frames import LENGTH_BYTES, request_frame
from tidemill.protocol.schema import Request
from tidemill.security.principals import Principal

DENIED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


# --- the table ---


def test_api_without_an_entry_cannot_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(authorization.NEEDS, 18)
    monkeypatch.delitem(TABLE, 18)
    with pytest.raises(ValueError, match="does not say what it needs"):
        serves(cluster.ApiVersionsRequest)(lambda *_: cluster.ApiVersionsResponse())
    assert 18 not in TABLE


def filled(kind: type[Struct], version: int, topic_id: bytes) -> Any:
    """A message that names the secret topic, group and transaction in every place that it has."""
    message = kind()
    for spec in field_specs(kind):
        if not spec.is_in(version):
            continue
        if isinstance(spec.kind, ArrayOf):
            element = spec.kind.element
            if isinstance(element, StructType):
                setattr(message, spec.name, [filled(element, version, topic_id)])
            elif isinstance(element, Primitive) and element.name == "string":
                setattr(message, spec.name, [SECRET])
            elif "partition" in spec.name:
                setattr(message, spec.name, [0])
        elif isinstance(spec.kind, Primitive) and spec.kind.name == "string":
            setattr(message, spec.name, SECRET)
        elif spec.name == "topic_id":
            setattr(message, spec.name, topic_id)
    return message


def entry_codes(message: Struct) -> Iterator[int]:
    """The error codes below the top of a response."""
    for spec in field_specs(type(message)):
        value = getattr(message, spec.name)
        for each in value if isinstance(value, list) else ():
            if isinstance(each, Struct):
                codes = (getattr(each, name, None) for name in ("error_code", "partition_error_code"))
                yield from (code for code in codes if code is not None)
                yield from entry_codes(each)


OPEN = {
    "ApiVersions",
    "DescribeCluster",
    "GetTelemetrySubscriptions",
    "PushTelemetry",
    "SaslAuthenticate",
    "SaslHandshake",
}
# Their answers leave out what may not be seen.
FILTERED = {"ListGroups", "ListTransactions"}
CASES = [
    pytest.param(api.key, id=api.name)
    for api in sorted(TABLE.values(), key=lambda api: api.key)
    if api.name not in OPEN | FILTERED
]


@pytest.mark.parametrize("api_key", CASES)
async def test_failure_38_every_version_of_every_api_refuses_a_principal_without_rights(
    authorized: Authorized, api_key: int
) -> None:
    api = TABLE[api_key]
    topic_id = authorized.topic_id(SECRET)
    before = authorized.node.broker.image
    for version in range(api.versions.min, api.versions.max + 1):
        request = filled(api.request, version, topic_id)
        if isinstance(request, data.ProduceRequest):
            request.acks = 1
        if isinstance(request, cluster.MetadataRequest):
            # By id where brokers heed it, by name before.
            by_id = cluster.MetadataRequestTopic(name=None, topic_id=topic_id)
            request.topics = [by_id if version >= 12 else cluster.MetadataRequestTopic(name=SECRET)]
        response = await authorized.ask(MALLORY, request, version)
        if isinstance(request, replicas.DescribeLogDirsRequest):
            assert response.results == []
            continue
        assert response is not None, f"v{version} closed the connection"
        codes = {*entry_codes(response), getattr(response, "error_code", ErrorCode.NONE)}
        assert codes & DENIED, f"v{version}: {codes}"
        assert ErrorCode.NONE not in set(entry_codes(response)), f"v{version}: {response}"
    assert authorized.node.broker.image is before


async def test_failure_38_produce_and_fetch_are_refused_by_name_and_by_id(authorized: Authorized) -> None:
    topic_id = authorized.topic_id(SECRET)
    for version in range(3, 14):
        topic = data.TopicProduceData(
            name=SECRET, topic_id=topic_id, partition_data=[data.PartitionProduceData(index=0, records=b"")]
        )
        request = data.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])
        response = await authorized.ask(MALLORY, request, version)
        (answer,) = response.responses
        assert [each.error_code for each in answer.partition_responses] == [29], version
    for version in range(4, TABLE[1].versions.max + 1):
        wanted = data.FetchPartition(partition=0, partition_max_bytes=1000)
        fetch = data.FetchRequest(
            max_wait_ms=60_000,
            min_bytes=1,
            topics=[data.FetchTopic(topic=SECRET, topic_id=topic_id, partitions=[wanted])],
        )
        response = await authorized.ask(MALLORY, fetch, version)
        (topic_answer,) = response.responses
        assert [each.error_code for each in topic_answer.partitions] == [29], version


async def test_failure_38_topic_that_is_named_by_its_id_alone_is_checked(authorized: Authorized) -> None:
    topic_id = authorized.topic_id(SECRET)
    await authorized.allow(READ, GROUP, "g")
    deletion = admin.DeleteTopicsRequest(topics=[admin.DeleteTopicState(name=None, topic_id=topic_id)])
    (deleted,) = (await authorized.ask(ALICE, deletion)).responses
    assert (deleted.error_code, deleted.name, deleted.topic_id) == (29, None, topic_id)
    partition = offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topic = offsets.OffsetCommitRequestTopic(topic_id=topic_id, partitions=[partition])
    commit = offsets.OffsetCommitRequest(group_id="g", topics=[topic])
    (committed,) = (await authorized.ask(ALICE, commit, 10)).topics
    assert [each.error_code for each in committed.partitions] == [29]


async def test_failure_38_metadata_log_is_for_nodes(authorized: Authorized) -> None:
    wanted = data.FetchPartition(partition=0, partition_max_bytes=1000)
    by_name = data.FetchTopic(topic="__cluster_metadata", partitions=[wanted])
    by_id = data.FetchTopic(topic_id=bytes(15) + b"\1", partitions=[wanted])
    assert (await authorized.ask(MALLORY, data.FetchRequest(topics=[by_name]), 12)).error_code == 31
    assert (await authorized.ask(MALLORY, data.FetchRequest(topics=[by_id]))).error_code == 31


async def test_node_forwards_client_request_at_controller_listener(
    authorized: Authorized,
) -> None:
    node = Principal.user("node")
    await authorized.allow(CLUSTER_ACTION, CLUSTER_TYPE, "kafka-cluster", "User:node")
    creation = admin.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    request = admin.CreateTopicsRequest(topics=[creation], timeout_ms=10_000)
    for principal, listener in ((MALLORY, CONTROLLER), (node, LISTENER)):
        refused = await authorized.ask(principal, request, listener=listener)
        assert refused.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    passed_on = await authorized.ask(node, request, listener=CONTROLLER)
    assert passed_on.topics[0].error_code == 0


async def test_envelope_of_a_client_is_refused_for_every_api(authorized: Authorized) -> None:
    enclosed = request_frame(admin.CreateTopicsRequest(), 7, 1, "")[LENGTH_BYTES:]
    envelope = brokers.EnvelopeRequest(request_data=bytes(enclosed), request_principal=b"User:admin")
    response = await authorized.ask(MALLORY, envelope, listener=CONTROLLER)
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


# --- parts of a request ---


async def test_topic_that_may_not_be_described_is_hidden_in_metadata(authorized: Authorized) -> None:
    await authorized.allow(DESCRIBE, TOPIC, PUBLIC)
    everything = await authorized.ask(ALICE, cluster.MetadataRequest(topics=None))
    assert [topic.name for topic in everything.topics] == [PUBLIC]
    by_name = cluster.MetadataRequest(
        topics=[cluster.MetadataRequestTopic(name=name) for name in (SECRET, PUBLIC, "unknown")]
    )
    named = {topic.name: topic for topic in (await authorized.ask(ALICE, by_name)).topics}
    assert {name: topic.error_code for name, topic in named.items()} == {SECRET: 29, PUBLIC: 0, "unknown": 29}
    assert named[SECRET].topic_id == bytes(16)
    assert not named[SECRET].partitions
    topic_id = authorized.topic_id(SECRET)
    by_id = cluster.MetadataRequest(topics=[cluster.MetadataRequestTopic(name=None, topic_id=topic_id)])
    (hidden,) = (await authorized.ask(ALICE, by_id)).topics
    assert (hidden.error_code, hidden.name, hidden.topic_id) == (29, None, topic_id)


async def until(
    authorized: Authorized, condition: Callable[[MetadataImage], bool], principal: Principal, request: Request
) -> None:
    """Asks once, then waits for the metadata."""
    await authorized.ask(principal, request)
    async with asyncio.timeout(LIMIT_S):
        await authorized.node.broker.controller.wait_for(lambda: condition(authorized.node.broker.image))


async def test_topic_is_created_on_request_only_with_the_right_to_create(authorized: Authorized) -> None:
    await authorized.allow(DESCRIBE, TOPIC, "wanted")
    request = cluster.MetadataRequest(
        topics=[cluster.MetadataRequestTopic(name="wanted")], allow_auto_topic_creation=True
    )
    (refused,) = (await authorized.ask(ALICE, request)).topics
    assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    await authorized.allow(CREATE, TOPIC, "wanted")
    await until(authorized, lambda image: "wanted" in image.topics_by_name, ALICE, request)


async def test_denied_entries_do_not_stop_the_others(authorized: Authorized) -> None:
    await authorized.allow(DESCRIBE, TOPIC, PUBLIC)
    request = data.ListOffsetsRequest(
        topics=[
            data.ListOffsetsTopic(
                name=name, partitions=[data.ListOffsetsPartition(partition_index=0, timestamp=-1)]
            )
            for name in (SECRET, PUBLIC)
        ]
    )
    response = await authorized.ask(ALICE, request)
    assert {topic.name: topic.partitions[0].error_code for topic in response.topics} == {
        PUBLIC: 0,
        SECRET: 29,
    }


async def test_produce_to_an_allowed_and_a_denied_topic_answers_both(authorized: Authorized) -> None:
    await authorized.allow(WRITE, TOPIC, PUBLIC)
    request = data.ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=[
            data.TopicProduceData(
                name=name,
                topic_id=authorized.topic_id(name),
                partition_data=[data.PartitionProduceData(index=0, records=None)],
            )
            for name in (SECRET, PUBLIC)
        ],
    )
    response = await authorized.ask(ALICE, request, 12)
    codes = {topic.name: topic.partition_responses[0].error_code for topic in response.responses}
    assert codes == {SECRET: 29, PUBLIC: ErrorCode.INVALID_RECORD}


async def test_transaction_adds_nothing_when_one_topic_is_denied(authorized: Authorized) -> None:
    await authorized.allow(WRITE, TRANSACTIONAL_ID, "tx")
    await authorized.allow(WRITE, TOPIC, PUBLIC)
    request = transactions.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_topics=[
            transactions.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in (SECRET, PUBLIC)
        ],
    )
    response = await authorized.ask(ALICE, request, 3)
    codes = {
        topic.name: topic.results_by_partition[0].partition_error_code
        for topic in response.results_by_topic_v3_and_below
    }
    assert codes == {SECRET: 29, PUBLIC: ErrorCode.OPERATION_NOT_ATTEMPTED}


async def test_idempotent_producer_needs_a_topic_to_write_to(authorized: Authorized) -> None:
    request = transactions.InitProducerIdRequest(transactional_id=None)
    assert (await authorized.ask(ALICE, request)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    await authorized.allow(WRITE, TOPIC, "any-", resource_pattern_type=4)
    assert (await authorized.ask(ALICE, request)).error_code == 0


async def test_groups_that_may_not_be_described_are_not_listed(authorized: Authorized) -> None:
    commit = offsets.OffsetCommitRequest(
        group_id="g",
        topics=[
            offsets.OffsetCommitRequestTopic(
                name=PUBLIC,
                topic_id=authorized.topic_id(PUBLIC),
                partitions=[offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)],
            )
        ],
    )
    await authorized.ask(ADMIN, cluster.FindCoordinatorRequest(coordinator_keys=["g"]))
    async with asyncio.timeout(LIMIT_S):
        for _ in iter(int, 1):
            if not (await authorized.ask(ADMIN, commit)).topics[0].partitions[0].error_code:
                break
    listing = groups.ListGroupsRequest()
    assert [each.group_id for each in (await authorized.ask(ADMIN, listing)).groups] == ["g"]
    assert (await authorized.ask(ALICE, listing)).groups == []
    await authorized.allow(DESCRIBE, GROUP, "g")
    assert [each.group_id for each in (await authorized.ask(ALICE, listing)).groups] == ["g"]
    fetch = offsets.OffsetFetchRequest(groups=[offsets.OffsetFetchRequestGroup(group_id="g", topics=None)])
    assert (await authorized.ask(ALICE, fetch)).groups[0].topics == []
    named = offsets.OffsetFetchRequest(
        groups=[
            offsets.OffsetFetchRequestGroup(
                group_id="g",
                topics=[
                    offsets.OffsetFetchRequestTopics(
                        name=PUBLIC, topic_id=authorized.topic_id(PUBLIC), partition_indexes=[0]
                    )
                ],
            )
        ]
    )
    for version in (9, TABLE[9].versions.max):
        (topic,) = (await authorized.ask(ALICE, named, version)).groups[0].topics
        assert (topic.partitions[0].error_code, topic.partitions[0].committed_offset) == (29, -1)
    await authorized.allow(READ, TOPIC, PUBLIC)
    (topic,) = (await authorized.ask(ALICE, named)).groups[0].topics
    assert (topic.partitions[0].error_code, topic.partitions[0].committed_offset) == (0, 0)


async def test_removed_rule_stops_the_next_fetch(authorized: Authorized) -> None:
    await authorized.allow(READ, TOPIC, PUBLIC)
    wanted = data.FetchPartition(partition=0, partition_max_bytes=1000)
    topic = data.FetchTopic(topic_id=authorized.topic_id(PUBLIC), partitions=[wanted])
    fetch = data.FetchRequest(max_wait_ms=0, topics=[topic])
    (first,) = (await authorized.ask(ALICE, fetch)).responses
    assert first.partitions[0].error_code == 0
    everything = security.DeleteAclsFilter(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
    )
    removed = await authorized.ask(ADMIN, security.DeleteAclsRequest(filters=[everything]))
    assert len(removed.filter_results[0].matching_acls) == 1
    (then,) = (await authorized.ask(ALICE, fetch)).responses
    assert then.partitions[0].error_code == 29


async def test_authorized_operations_are_those_of_the_principal(authorized: Authorized) -> None:
    await authorized.allow(READ, TOPIC, PUBLIC)
    request = cluster.MetadataRequest(
        topics=[cluster.MetadataRequestTopic(name=PUBLIC)], include_topic_authorized_operations=True
    )
    (topic,) = (await authorized.ask(ALICE, request)).topics
    assert topic.topic_authorized_operations == 1 << READ | 1 << DESCRIBE
    describe = cluster.DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert (await authorized.ask(ALICE, describe)).cluster_authorized_operations == 0
    await authorized.allow(DESCRIBE, CLUSTER_TYPE, "kafka-cluster")
    assert (await authorized.ask(ALICE, describe)).cluster_authorized_operations == 1 << DESCRIBE


async def test_rules_credentials_and_quotas_are_described_as_they_were_set(authorized: Authorized) -> None:
    await authorized.allow(READ, TOPIC, PUBLIC)
    await authorized.allow(WRITE, TOPIC, PUBLIC)
    described = await authorized.ask(
        ADMIN,
        security.DescribeAclsRequest(
            resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
        ),
    )
    (resource,) = described.resources
    assert {(acl.principal, acl.operation) for acl in resource.acls} == {
        ("User:alice", READ),
        ("User:alice", WRITE),
    }
    upsertion = security.ScramCredentialUpsertion(
        name="alice", mechanism=2, iterations=8192, salt=b"salt", salted_password=b"salted"
    )
    await authorized.ask(ADMIN, security.AlterUserScramCredentialsRequest(upsertions=[upsertion]))
    users = await authorized.ask(ADMIN, security.DescribeUserScramCredentialsRequest(users=None))
    (user,) = users.results
    assert (user.user, user.credential_infos[0].mechanism, user.credential_infos[0].iterations) == (
        "alice",
        2,
        8192,
    )
    entry = admin.AlterClientQuotasRequestEntryData(
        entity=[admin.EntityData(entity_type="user", entity_name=None)],
        ops=[admin.OpData(key="producer_byte_rate", value=1000)],
    )
    await authorized.ask(ADMIN, admin.AlterClientQuotasRequest(entries=[entry]))
    component = admin.ComponentData(entity_type="user", match_type=1)
    quotas = await authorized.ask(
        ADMIN, admin.DescribeClientQuotasRequest(components=[component], strict=True)
    )
    (quota,) = quotas.entries
    assert [(each.key, each.value) for each in quota.values] == [("producer_byte_rate", 1000.0)]
    other = admin.ComponentData(entity_type="client-id", match_type=2)
    assert (await authorized.ask(ADMIN, admin.DescribeClientQuotasRequest(components=[other]))).entries == []


# --- the audit log ---


async def test_denial_is_logged_in_one_line_with_escaped_names(
    authorized: Authorized, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidemill.authorizer")
    forged = Principal.user('eve"\nPrincipal = User:admin is Allowed\x1b[2J\u2028')
    request = groups.HeartbeatRequest(group_id="g\r\nsecond line")
    assert (await authorized.ask(forged, request)).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    (record,) = [each for each in caplog.records if each.name == "tidemill.authorizer"]
    line = record.getMessage()
    assert line.isprintable()
    assert "Denied operation = READ from host = 10.0.0.9" in line
    assert r"GROUP:LITERAL:g\r\nsecond line" in line
    assert "by DefaultDeny" in line


async def test_allowed_requests_are_logged_at_debug(
    authorized: Authorized, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tidemill.authorizer")
    await authorized.ask(ADMIN, groups.HeartbeatRequest(group_id="g"))
    assert [record.levelname for record in caplog.records if record.name == "tidemill.authorizer"] == [
        "DEBUG"
    ]
