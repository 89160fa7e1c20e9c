"""Routes group requests to the group coordinator.

The coordinator decides; a handler only finds its shard. A request about several groups is split by group, and the responses
are merged in order. Offsets of a transaction wait until the transaction coordinator has verified that the group's partition
of `__consumer_offsets` belongs to the transaction. No `await` stands between that response and the group coordinator's
decision.

Versions, and what each one changed:

    OffsetCommit (8), from 2
       3  throttle time (KIP-124)
       4  a throttled client waits by itself (KIP-219)
       5  no retention time any more (KIP-211)
       6  leader epochs (KIP-320)
       7  group_instance_id of static members (KIP-345)
       8  flexible (KIP-482)
       9  member epochs; the error STALE_MEMBER_EPOCH (KIP-848)
      10  topics by id (KIP-848)
    OffsetFetch (9), from 1
       2  error code of the whole response; null asks for all topics (KIP-88)
       3  throttle time (KIP-124)
       4  a throttled client waits by itself (KIP-219)
       5  leader epochs (KIP-320)
       6  flexible (KIP-482)
       7  require_stable (KIP-447)
       8  several groups (KIP-709)
       9  member id and epoch (KIP-848)
      10  topics by id (KIP-848)
    FindCoordinator (10), from 0
       1  coordinators of transactions (KIP-98)
       2  a throttled client waits by itself (KIP-219)
       3  flexible (KIP-482)
       4  several keys (KIP-699)
       5  the error TRANSACTION_ABORTABLE (KIP-890)
       6  coordinators of share groups (KIP-932)
    JoinGroup (11), from 0
       1  rebalance timeout (KIP-62)
       2  throttle time (KIP-124)
       3  a throttled client waits by itself (KIP-219)
       4  the error MEMBER_ID_REQUIRED (KIP-394)
       5  group_instance_id of static members (KIP-345)
       6  flexible (KIP-482)
       7  protocol type in the response (KIP-559)
       8  reason (KIP-800)
       9  skip_assignment (KIP-814)
    Heartbeat (12), from 0
       1  throttle time (KIP-124)
       2  a throttled client waits by itself (KIP-219)
       3  group_instance_id of static members (KIP-345)
       4  flexible (KIP-482)
    LeaveGroup (13), from 0
       1  throttle time (KIP-124)
       2  a throttled client waits by itself (KIP-219)
       3  several members (KIP-345)
       4  flexible (KIP-482)
       5  reason (KIP-800)
    SyncGroup (14), from 0
       1  throttle time (KIP-124)
       2  a throttled client waits by itself (KIP-219)
       3  group_instance_id of static members (KIP-345)
       4  flexible (KIP-482)
       5  protocol type and name (KIP-559)
    DescribeGroups (15), from 0
       1  throttle time (KIP-124)
       2  a throttled client waits by itself (KIP-219)
       3  authorized operations (KIP-430)
       4  group_instance_id of static members (KIP-345)
       5  flexible (KIP-482)
       6  error messages; the error GROUP_ID_NOT_FOUND (KIP-1043)
    ListGroups (16), from 0
       1  throttle time (KIP-124)
       2  a throttled client waits by itself (KIP-219)
       3  flexible (KIP-482)
       4  filter by state (KIP-518)
       5  filter by type (KIP-848)
    TxnOffsetCommit (28), from 0 (KIP-98)
       1  a throttled client waits by itself (KIP-219)
       2  leader epochs (KIP-320)
       3  flexible; member and generation (KIP-447)
       4  the error TRANSACTION_ABORTABLE (KIP-890)
       5  adds the group's partition to the transaction (KIP-890)
    DeleteGroups (42), from 0 (KIP-229)
       1  a throttled client waits by itself (KIP-219)
       2  flexible (KIP-482)
    OffsetDelete (47), from 0 (KIP-496)
    ConsumerGroupHeartbeat (68), from 0 (KIP-848)
       1  subscribed_topic_regex (KIP-848); the client makes the member id (KIP-1082)
    ConsumerGroupDescribe (69), from 0 (KIP-848)
       1  member types (KIP-1099)
    ShareGroupHeartbeat (76), from 1 (KIP-932)
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from functools import partial
from typing import Any, cast

from tidemill.broker.coordinators.runtime import CoordinatorRuntime
from tidemill.broker.requests.api_table import serves
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.pieces import Entries, Inner
from tidemill.broker.requests.security.access import Access, access_of
from tidemill.coordinator.shard import Caller, Writer, coordinator_error
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.cluster import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tidemill.protocol.api.groups import (
    ConsumerGroupDescribeDescribedGroup,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsDescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
)
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from tidemill.protocol.api.share import DescribedGroup, ShareGroupHeartbeatRequest
from tidemill.protocol.api.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tidemill.protocol.coordinator_responses import error_response, in_version
from tidemill.protocol.schema import Request, Response, replace
from tidemill.protocol.share_state import SharePartitionKey
from tidemill.security.acls import Operation, Resource, ResourceType
from tidemill.types import BrokerId, TopicPartition

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_BATCHED_FIND_SINCE = 4
_SHARE_FIND_SINCE = 6
_BATCHED_FETCH_SINCE = 8
_TXN_COMMIT_ABORTABLE_SINCE = 4
_TXN_COMMIT_ADDS_SINCE = 5
# READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS, as bits.
_ALL_GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))


@serves(FindCoordinatorRequest, entries=Entries("coordinator_keys", "coordinators"))
async def find_coordinator(
    broker: Broker, call: Call, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if call.version >= _BATCHED_FIND_SINCE else [request.key]
    found = [await _coordinator(broker, call, request.key_type, key) for key in keys]
    if call.version >= _BATCHED_FIND_SINCE:
        return FindCoordinatorResponse(coordinators=found)
    only = found[0]
    return FindCoordinatorResponse(
        error_code=only.error_code,
        # Kafka says that nothing is wrong, too.
        error_message=only.error_message or ErrorCode.NONE.name,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


async def _coordinator(broker: Broker, call: Call, key_type: int, key: str) -> Coordinator:
    error = ErrorCode.NONE
    try:
        _check_describable(broker, call, key_type, key)
        coordinators = _coordinators(broker, call, key_type, key)
        member = broker.image.brokers[BrokerId(await coordinators.leader_of(key))]
        host, port = broker.address_of(member, call.connection)
        return Coordinator(key=key, node_id=member.id, host=host, port=port, error_message="")
    except ApiError as refused:
        error = refused.code
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=error.message)


def _coordinators(broker: Broker, call: Call, key_type: int, key: str) -> CoordinatorRuntime[Any]:
    if key_type == _GROUP:
        return broker.groups.runtime
    if key_type == _TRANSACTION:
        return broker.transactions.runtime
    if key_type != _SHARE or call.version < _SHARE_FIND_SINCE:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    try:
        SharePartitionKey.parse(key)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST) from None
    return broker.share_coordinators.runtime


def _check_describable(broker: Broker, call: Call, key_type: int, key: str) -> None:
    access = access_of(broker, call.connection)
    if access is None:
        return
    if key_type == _GROUP and not access.group(Operation.DESCRIBE, key):
        raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if key_type == _TRANSACTION and not access.transactional_id(Operation.DESCRIBE, key):
        raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if key_type == _SHARE and not access.cluster(Operation.CLUSTER_ACTION):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def caller_of(broker: Broker, call: Call) -> Caller:
    # Kafka shows a client's address with a slash before it, and no port.
    host = call.connection.peer.rpartition(":")[0]
    access = access_of(broker, call.connection)
    sees_topic = None if access is None else partial(access.topic, Operation.DESCRIBE, quiet=True)
    return Caller(call.client_id or "", f"/{host}", call.version, sees_topic)


def ask_coordinator(
    broker: Broker, call: Call, group_id: str, request: Request
) -> Response | Awaitable[Response]:
    """The coordinator's answer, errors included; a coroutine only when it has to be waited for."""
    try:
        answer = broker.groups.ask(group_id, request, caller_of(broker, call))
    except ApiError as error:
        return error_response(request, call.version, error.code, error.message)
    if isinstance(answer, Response):
        return in_version(answer, call.version)
    return _answer_later(call, request, answer)


async def _answer_later(call: Call, request: Request, answer: Awaitable[Response]) -> Response:
    try:
        return in_version(await answer, call.version)
    except ApiError as error:
        return error_response(request, call.version, error.code, error.message)


async def asked(broker: Broker, call: Call, group_id: str, request: Request) -> Response:
    answer = ask_coordinator(broker, call, group_id, request)
    return answer if isinstance(answer, Response) else await answer


_PARTITIONS = Inner("partitions", "partitions")
# An ordinary commit is one decision of the coordinator and one batch, as in Kafka, although that takes a few milliseconds.
_COMMITTED_AT_ONCE = 256
# Each piece of a larger one is a decision and a batch of its own. Between two of them another member's commit may come,
# or the generation may end: then the rest is refused, partition by partition. Kafka refuses a commit that does not fit into
# one batch; here it is stored.
_OFFSETS = Entries(
    "topics",
    "topics",
    lambda topic: (topic.name, topic.topic_id),
    _COMMITTED_AT_ONCE,
    _PARTITIONS,
    decides_at_once=True,
)


@serves(JoinGroupRequest)
@serves(HeartbeatRequest)
@serves(LeaveGroupRequest)
@serves(SyncGroupRequest)
@serves(OffsetCommitRequest, entries=_OFFSETS)
@serves(
    OffsetDeleteRequest,
    entries=Entries(
        "topics", "topics", lambda topic: topic.name, _COMMITTED_AT_ONCE, _PARTITIONS, decides_at_once=True
    ),
)
@serves(ConsumerGroupHeartbeatRequest)
@serves(ShareGroupHeartbeatRequest)
def ask_of_group(
    broker: Broker,
    call: Call,
    request: JoinGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | SyncGroupRequest
    | OffsetCommitRequest
    | OffsetDeleteRequest
    | ConsumerGroupHeartbeatRequest
    | ShareGroupHeartbeatRequest,
) -> Response | Awaitable[Response]:
    return ask_coordinator(broker, call, request.group_id, request)


@serves(
    OffsetFetchRequest,
    entries=Entries(
        "groups",
        "groups",
        key=lambda group: group.group_id,
        inner=Inner("topics", "topics"),
    ),
)
async def offset_fetch(broker: Broker, call: Call, request: OffsetFetchRequest) -> Response:
    access = access_of(broker, call.connection)
    if call.version < _BATCHED_FETCH_SINCE:
        if access is not None and not access.group(Operation.DESCRIBE, request.group_id):
            return error_response(request, call.version, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        only = cast(OffsetFetchResponse, await asked(broker, call, request.group_id, request))
        if access is not None:
            only.topics = [topic for topic in only.topics if _is_shown(access, topic, request.topics is None)]
        return only
    merged = OffsetFetchResponse()
    # All offsets of a group are returned once, however often it is named.
    groups = {
        (each.group_id, None if each.topics is None else number): each
        for number, each in enumerate(request.groups)
    }
    for group in groups.values():
        one = replace(request, groups=[group])
        if access is not None and not access.group(Operation.DESCRIBE, group.group_id):
            answer = error_response(one, call.version, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        else:
            answer = await asked(broker, call, group.group_id, one)
        told = cast(OffsetFetchResponse, answer).groups
        if access is not None:
            for each in told:
                wants_all = group.topics is None
                each.topics = [topic for topic in each.topics if _is_shown(access, topic, wants_all)]
        merged.groups += told
    return merged


def _is_shown(
    access: Access, topic: OffsetFetchResponseTopic | OffsetFetchResponseTopics, wants_all: bool
) -> bool:
    """A topic that may not be described is left out of all topics; asked for, its offsets are taken out."""
    key = topic.topic_id if isinstance(topic, OffsetFetchResponseTopics) and not topic.name else topic.name
    if access.wire_topic(Operation.DESCRIBE, key):
        return True
    for partition in topic.partitions:
        partition.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        partition.committed_offset = partition.committed_leader_epoch = -1
        partition.metadata = ""
    return not wants_all


# Version 6 names topics by their ids; no release of Kafka has it yet.
@serves(
    TxnOffsetCommitRequest,
    versions=(0, 5),
    entries=Entries("topics", "topics", lambda topic: topic.name, _COMMITTED_AT_ONCE, _PARTITIONS),
)
async def txn_offset_commit(
    broker: Broker, call: Call, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Partitions that do not exist come first in the answer; the others are committed."""
    answered: dict[str, TxnOffsetCommitResponseTopic] = {}

    def add(topic: str, partitions: list[TxnOffsetCommitResponsePartition]) -> None:
        answer = answered.setdefault(topic, TxnOffsetCommitResponseTopic(name=topic))
        answer.partitions += partitions

    existing = []
    for topic in request.topics:
        image = broker.image.topics_by_name.get(topic.name)
        indexes = range(len(broker.image.partitions_of(image)) if image else 0)
        missing = [
            TxnOffsetCommitResponsePartition(
                partition_index=each.partition_index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            for each in topic.partitions
            if each.partition_index not in indexes
        ]
        if missing or image is None:
            add(topic.name, missing)
        found = [each for each in topic.partitions if each.partition_index in indexes]
        if found:
            existing.append(replace(topic, partitions=found))
    if existing:
        committed = await _commit_in_transaction(broker, call, replace(request, topics=existing))
        for each in committed.topics:
            add(each.name, each.partitions)
    return TxnOffsetCommitResponse(topics=list(answered.values()))


async def _commit_in_transaction(
    broker: Broker, call: Call, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    try:
        await _confirm(broker, call, request)
    except ApiError as error:
        refused = error_response(request, call.version, coordinator_error(error.code))
        return cast(TxnOffsetCommitResponse, refused)
    return cast(TxnOffsetCommitResponse, await asked(broker, call, request.group_id, request))


async def _confirm(broker: Broker, call: Call, request: TxnOffsetCommitRequest) -> None:
    """`ApiError` when the group's partition is not part of the producer's transaction, or cannot be made one."""
    if not request.group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID)
    runtime = broker.groups.runtime
    runtime.shard_of(request.group_id)
    place = TopicPartition(runtime.topic.name, runtime.partition_of(request.group_id))
    partition, error = broker.replicas.find(place)
    if partition is None:
        raise ApiError(error)
    writer = Writer(request.producer_id, request.producer_epoch)
    adds = call.version >= _TXN_COMMIT_ADDS_SINCE
    guard = partition.appender.guards.guard_for_writer(writer, adds=adds)
    if guard is None:
        return
    codes = await broker.verification.check(request.transactional_id, *writer, [place], adds=adds)
    code = codes[place]
    if code is ErrorCode.INVALID_PRODUCER_EPOCH:
        partition.appender.guards.drop(writer.producer_id, guard)
    if code is ErrorCode.TRANSACTION_ABORTABLE and call.version < _TXN_COMMIT_ABORTABLE_SINCE:
        code = ErrorCode.INVALID_TXN_STATE
    if code:
        raise ApiError(code)
    partition.appender.guards.check_writer(writer, guard)


@serves(DescribeGroupsRequest, entries=Entries("groups", "groups"))
async def describe_groups(
    broker: Broker, call: Call, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    merged = DescribeGroupsResponse()
    for group_id in dict.fromkeys(request.groups):
        answer = await asked(broker, call, group_id, replace(request, groups=[group_id]))
        merged.groups += cast(DescribeGroupsResponse, answer).groups
    if request.include_authorized_operations:
        show_operations(broker, call, merged.groups)
    return merged


@serves(ConsumerGroupDescribeRequest, entries=Entries("group_ids", "groups"))
async def consumer_group_describe(
    broker: Broker, call: Call, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    merged = ConsumerGroupDescribeResponse()
    for group_id in dict.fromkeys(request.group_ids):
        answer = await asked(broker, call, group_id, replace(request, group_ids=[group_id]))
        merged.groups += cast(ConsumerGroupDescribeResponse, answer).groups
    access = access_of(broker, call.connection)
    if access is not None:
        merged.groups = [_with_visible_topics(access, group) for group in merged.groups]
    if request.include_authorized_operations:
        show_operations(broker, call, merged.groups)
    return merged


def _with_visible_topics(
    access: Access, group: ConsumerGroupDescribeDescribedGroup
) -> ConsumerGroupDescribeDescribedGroup:
    """The group, or an error in its place when it has a topic that the client may not describe, as in Kafka."""
    topics = {
        each.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for each in assignment.topic_partitions
    }
    if all(access.topic(Operation.DESCRIBE, name) for name in sorted(topics)):
        return group
    return ConsumerGroupDescribeDescribedGroup(
        group_id=group.group_id,
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        error_message="The group has described topic(s) that the client is not authorized to describe.",
    )


def show_operations(
    broker: Broker,
    call: Call,
    groups: Iterable[DescribeGroupsDescribedGroup | ConsumerGroupDescribeDescribedGroup | DescribedGroup],
) -> None:
    access = access_of(broker, call.connection)
    for group in groups:
        if not group.error_code:
            group.authorized_operations = (
                _ALL_GROUP_OPERATIONS
                if access is None
                else access.operations(Resource(ResourceType.GROUP, group.group_id))
            )


@serves(DeleteGroupsRequest, versions=(0, 2), entries=Entries("groups_names", "results"))
async def delete_groups(broker: Broker, call: Call, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    merged = DeleteGroupsResponse()
    for group_id in dict.fromkeys(request.groups_names):
        one = replace(request, groups_names=[group_id])
        answer: Response
        try:
            # The group is removed only when its state in the share coordinators is.
            await broker.groups.delete_share_state(group_id)
        except ApiError as error:
            answer = error_response(one, call.version, error.code, error.message)
        else:
            answer = await asked(broker, call, group_id, one)
        merged.results += cast(DeleteGroupsResponse, answer).results
    return merged


@serves(ListGroupsRequest)
async def list_groups(broker: Broker, call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
    merged = ListGroupsResponse()
    try:
        answers = await broker.groups.ask_all(request, caller_of(broker, call), is_large=call.is_large)
    except ApiError as error:
        return ListGroupsResponse(error_code=error.code)
    for answer in answers:
        merged.groups += cast(ListGroupsResponse, answer).groups
    access = access_of(broker, call.connection)
    if access is not None and not access.cluster(Operation.DESCRIBE, quiet=True):
        merged.groups = [
            each for each in merged.groups if access.group(Operation.DESCRIBE, each.group_id, quiet=True)
        ]
    return merged
