"""The table of the operations that each API needs; `api_table.py` registers no API without an entry.

An entry has checks, which refuse the whole request, and may have a split. A split answers entries of the request that
are refused with their error, and the handler sees only the others. What a handler must do by itself (leave names out of
a list, look at batches in place) the entry says in words; those handlers use `access.py`.

A node of the cluster that speaks to a controller's listener passes on what its clients asked, and has checked it already.
So a principal with ClusterAction on the cluster is not checked further there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.security.access import Access
from tidemill.config import VIEW_SOURCE
from tidemill.controller.image import ResourceType as ConfigType
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol import api as apis
from tidemill.protocol.declarations import field_specs
from tidemill.protocol.error_responses import error_response
from tidemill.protocol.schema import NO_UUID, Request, Response, replace
from tidemill.security.acls import Operation
from tidemill.types import TopicId

TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED
TRANSACTIONAL_ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
CLUSTER_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_ADD_PARTITIONS_BATCHED_SINCE = 4
_DELETE_BY_ID_SINCE = 6
# What requests call the name of a topic.
_TOPIC_NAMES = ("name", "topic", "topic_name")


class _Asked:
    """One request and the peer that sent it."""

    __slots__ = ("access", "broker", "request", "version")

    def __init__(self, access: Access, broker: Broker, request: Any, version: int) -> None:
        self.access = access
        self.broker = broker
        self.request = request
        self.version = version

    def topic_names(self, entry: Any) -> list[str]:
        """The topic of an entry: by name, by id, or both. An id that is unknown has no name."""
        if isinstance(entry, str):
            return [entry]
        name = next((found for field in _TOPIC_NAMES if (found := getattr(entry, field, None))), None)
        names = [] if name is None else [name]
        known = self.broker.image.topics_by_id.get(TopicId(getattr(entry, "topic_id", NO_UUID)))
        if known is not None:
            names.append(known.name)
        return names


# Raises ApiError when the request is refused as a whole.
Check = Callable[[_Asked], None]
# The error of one entry; NONE when it is allowed.
EntryError = Callable[[_Asked, Any], ErrorCode]


@dataclass(frozen=True, slots=True)
class Split:
    """The list of the request whose entries are decided one by one."""

    fields: Callable[[int], str]
    error_of: EntryError
    # A refused entry as the refusal shows it.
    shown: Callable[[_Asked, Any], Any] = lambda _, entry: entry
    # Whether the handler is called although no entry is allowed: its error about the whole request comes first.
    asks_anyway: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    checks: Sequence[Check] = ()
    split: Split | None = None
    # What the handler checks by itself.
    in_handler: str = ""


# --- the words of the table ---


def _cluster(*operations: Operation) -> Check:
    """One of the operations on the cluster."""

    def check(asked: _Asked) -> None:
        *others, last = operations
        if any(asked.access.cluster(each, quiet=True) for each in others):
            return
        if not asked.access.cluster(last):
            raise ApiError(CLUSTER_DENIED)

    return check


def _group(operation: Operation) -> Check:
    def check(asked: _Asked) -> None:
        if not asked.access.group(operation, asked.request.group_id):
            raise ApiError(GROUP_DENIED)

    return check


def _transactional_id(operation: Operation) -> Check:
    def check(asked: _Asked) -> None:
        if not asked.access.transactional_id(operation, asked.request.transactional_id):
            raise ApiError(TRANSACTIONAL_ID_DENIED)

    return check


def _each_topic(operation: Operation, field: str = "topics") -> Split:
    def error_of(asked: _Asked, entry: Any) -> ErrorCode:
        allowed = all(asked.access.topic(operation, name) for name in asked.topic_names(entry))
        return ErrorCode.NONE if allowed else TOPIC_DENIED

    return Split(lambda _: field, error_of)


def _each_group(operation: Operation, field: str) -> Split:
    def error_of(asked: _Asked, entry: str) -> ErrorCode:
        return ErrorCode.NONE if asked.access.group(operation, entry) else GROUP_DENIED

    return Split(lambda _: field, error_of)


def _each_transactional_id(operation: Operation, field: str) -> Split:
    def error_of(asked: _Asked, entry: str) -> ErrorCode:
        allowed = asked.access.transactional_id(operation, entry)
        return ErrorCode.NONE if allowed else TRANSACTIONAL_ID_DENIED

    return Split(lambda _: field, error_of)


def _each_config(operation: Operation, *, refuses_loggers: bool = False) -> Split:
    """An API that refuses all loggers does so whatever the principal may do."""

    def error_of(asked: _Asked, entry: Any) -> ErrorCode:
        access, name = asked.access, entry.resource_name
        if refuses_loggers and entry.resource_type == ConfigType.BROKER_LOGGER:
            return ErrorCode.NONE
        if entry.resource_type == ConfigType.TOPIC:
            allowed = access.topic(operation, name)
            source = asked.broker.image.source_of(name)
            if allowed and source is not None and operation is Operation.ALTER_CONFIGS:
                # Another filter may show more of the source.
                allowed = access.topic(Operation.READ, source.name)
            return ErrorCode.NONE if allowed else TOPIC_DENIED
        if entry.resource_type == ConfigType.GROUP:
            return ErrorCode.NONE if access.group(operation, name) else GROUP_DENIED
        return ErrorCode.NONE if access.cluster(operation) else CLUSTER_DENIED

    return Split(lambda _: "resources", error_of)


def _created(asked: _Asked, entry: Any) -> ErrorCode:
    access = asked.access
    allowed = access.cluster(Operation.CREATE, quiet=True) or access.topic(Operation.CREATE, entry.name)
    # A view shows its source to every principal that may read the view.
    sources = [config.value for config in entry.configs if config.name == VIEW_SOURCE and config.value]
    allowed = allowed and all(access.topic(Operation.READ, source) for source in sources)
    return ErrorCode.NONE if allowed else TOPIC_DENIED


def _deleted(asked: _Asked, entry: Any) -> ErrorCode:
    """As Kafka: a topic that may be described may also be found missing."""
    access, names = asked.access, asked.topic_names(entry)
    if access.cluster(Operation.DELETE, quiet=True):
        return ErrorCode.NONE
    if not all(access.topic(Operation.DESCRIBE, name) for name in names):
        return TOPIC_DENIED
    known = asked.broker.image.topics_by_name
    allowed = all(access.topic(Operation.DELETE, name) for name in names if name in known)
    return ErrorCode.NONE if allowed else TOPIC_DENIED


def _with_visible_name(asked: _Asked, entry: Any) -> Any:
    """A topic that was named by its id has its name in the answer when it may be described."""
    if isinstance(entry, str) or entry.name is not None:
        return entry
    names = asked.topic_names(entry)
    is_visible = all(asked.access.topic(Operation.DESCRIBE, name, quiet=True) for name in names)
    return replace(entry, name=names[0]) if names and is_visible else entry


def _epoch_end(asked: _Asked, entry: Any) -> ErrorCode:
    access = asked.access
    if access.cluster(Operation.CLUSTER_ACTION, quiet=True) or access.topic(Operation.DESCRIBE, entry.topic):
        return ErrorCode.NONE
    return TOPIC_DENIED


def _init_producer_id(asked: _Asked) -> None:
    access, request = asked.access, asked.request
    if request.transactional_id is None:
        if not access.cluster(Operation.IDEMPOTENT_WRITE, quiet=True) and not access.any_topic(
            Operation.WRITE
        ):
            access.cluster(Operation.IDEMPOTENT_WRITE)  # for the audit log
            raise ApiError(CLUSTER_DENIED)
        return
    needed = [Operation.WRITE, *([Operation.TWO_PHASE_COMMIT] if request.enable2_pc else [])]
    if not all(access.transactional_id(each, request.transactional_id) for each in needed):
        raise ApiError(TRANSACTIONAL_ID_DENIED)


def _add_partitions_to_txn(asked: _Asked) -> None:
    """Clients name one transaction; brokers ask for many."""
    if asked.version >= _ADD_PARTITIONS_BATCHED_SINCE:
        _cluster(Operation.CLUSTER_ACTION)(asked)
    elif not asked.access.transactional_id(Operation.WRITE, asked.request.v3_and_below_transactional_id):
        raise ApiError(TRANSACTIONAL_ID_DENIED)


def _subscription(asked: _Asked) -> None:
    for name in asked.request.subscribed_topic_names or ():
        if not asked.access.topic(Operation.DESCRIBE, name):
            raise ApiError(TOPIC_DENIED)


_KEYS = {name: key for key, name in apis.API_NAMES.items()}
_OPEN = Need()
_CLUSTER_ACTION = Need((_cluster(Operation.CLUSTER_ACTION),))
_ALTER = Need((_cluster(Operation.ALTER),))
_DESCRIBE = Need((_cluster(Operation.DESCRIBE),))
_READ_GROUP = Need((_group(Operation.READ),))

NEEDS: dict[int, Need] = {
    _KEYS[name]: need
    for name, need in {
        "Produce": Need(in_handler="Write on the transactional id; Write on each topic"),
        "Fetch": Need(in_handler="ClusterAction for replicas; Read on each topic for others"),
        "ListOffsets": Need(split=_each_topic(Operation.DESCRIBE)),
        "Metadata": Need(in_handler="Describe on each topic; Create for those that it creates"),
        "OffsetCommit": Need((_group(Operation.READ),), _each_topic(Operation.READ)),
        "OffsetFetch": Need(in_handler="Describe on each group and topic"),
        "FindCoordinator": Need(in_handler="Describe on each group or transactional id"),
        "JoinGroup": _READ_GROUP,
        "Heartbeat": _READ_GROUP,
        "LeaveGroup": _READ_GROUP,
        "SyncGroup": _READ_GROUP,
        "DescribeGroups": Need(split=_each_group(Operation.DESCRIBE, "groups")),
        "ListGroups": Need(in_handler="Describe on the cluster, or on each group"),
        "SaslHandshake": _OPEN,
        "ApiVersions": _OPEN,
        "CreateTopics": Need(split=Split(lambda _: "topics", _created)),
        "DeleteTopics": Need(
            split=Split(
                lambda version: "topics" if version >= _DELETE_BY_ID_SINCE else "topic_names",
                _deleted,
                _with_visible_name,
            )
        ),
        "DeleteRecords": Need(split=_each_topic(Operation.DELETE)),
        "InitProducerId": Need((_init_producer_id,)),
        "OffsetForLeaderEpoch": Need(split=Split(lambda _: "topics", _epoch_end)),
        "AddPartitionsToTxn": Need((_add_partitions_to_txn,), in_handler="Write on each topic of a client"),
        "AddOffsetsToTxn": Need((_transactional_id(Operation.WRITE), _group(Operation.READ))),
        "EndTxn": Need((_transactional_id(Operation.WRITE),)),
        "WriteTxnMarkers": Need((_cluster(Operation.ALTER, Operation.CLUSTER_ACTION),)),
        "TxnOffsetCommit": Need(
            (_transactional_id(Operation.WRITE), _group(Operation.READ)), _each_topic(Operation.READ)
        ),
        "DescribeAcls": _DESCRIBE,
        "CreateAcls": _ALTER,
        "DeleteAcls": _ALTER,
        "DescribeConfigs": Need(split=_each_config(Operation.DESCRIBE_CONFIGS)),
        "AlterConfigs": Need(split=_each_config(Operation.ALTER_CONFIGS, refuses_loggers=True)),
        "AlterReplicaLogDirs": _ALTER,
        "DescribeLogDirs": Need(in_handler="Describe on the cluster, or an empty answer"),
        "SaslAuthenticate": _OPEN,
        "CreatePartitions": Need(split=_each_topic(Operation.ALTER)),
        "DeleteGroups": Need(split=_each_group(Operation.DELETE, "groups_names")),
        "ElectLeaders": _ALTER,
        "IncrementalAlterConfigs": Need(split=_each_config(Operation.ALTER_CONFIGS)),
        "AlterPartitionReassignments": _ALTER,
        "ListPartitionReassignments": _DESCRIBE,
        "OffsetDelete": Need(
            (_group(Operation.DELETE),), dataclasses.replace(_each_topic(Operation.READ), asks_anyway=True)
        ),
        "DescribeClientQuotas": Need((_cluster(Operation.DESCRIBE_CONFIGS),)),
        "AlterClientQuotas": Need((_cluster(Operation.ALTER_CONFIGS),)),
        "DescribeUserScramCredentials": _DESCRIBE,
        "AlterUserScramCredentials": _ALTER,
        "Vote": _CLUSTER_ACTION,
        "BeginQuorumEpoch": _CLUSTER_ACTION,
        "EndQuorumEpoch": _CLUSTER_ACTION,
        "DescribeQuorum": _DESCRIBE,
        "AlterPartition": _CLUSTER_ACTION,
        "UpdateFeatures": _ALTER,
        "Envelope": _CLUSTER_ACTION,
        "FetchSnapshot": _CLUSTER_ACTION,
        # As Kafka: only the authorised operations in the answer depend on the principal.
        "DescribeCluster": _OPEN,
        "DescribeProducers": Need(split=_each_topic(Operation.READ)),
        "BrokerRegistration": _CLUSTER_ACTION,
        "BrokerHeartbeat": _CLUSTER_ACTION,
        "UnregisterBroker": _ALTER,
        "DescribeTransactions": Need(
            split=_each_transactional_id(Operation.DESCRIBE, "transactional_ids"),
            in_handler="Describe on each topic that is shown",
        ),
        "ListTransactions": Need(in_handler="Describe on each transactional id that is shown"),
        "AllocateProducerIds": _CLUSTER_ACTION,
        "ConsumerGroupHeartbeat": Need((_group(Operation.READ), _subscription)),
        "ConsumerGroupDescribe": Need(split=_each_group(Operation.DESCRIBE, "group_ids")),
        "ControllerRegistration": _CLUSTER_ACTION,
        "ShareFetch": Need(in_handler="Read on the group; Read on each topic"),
        "ShareAcknowledge": Need(in_handler="Read on the group; Read on each topic"),
        "GetTelemetrySubscriptions": _OPEN,
        "PushTelemetry": _OPEN,
        "ListConfigResources": Need((_cluster(Operation.DESCRIBE_CONFIGS),)),
        "DescribeTopicPartitions": Need(in_handler="Describe on each topic"),
        "ShareGroupHeartbeat": Need((_group(Operation.READ), _subscription)),
        "ShareGroupDescribe": Need(split=_each_group(Operation.DESCRIBE, "group_ids")),
        "DescribeShareGroupOffsets": Need(in_handler="Describe on each group and topic"),
        "AlterShareGroupOffsets": Need(
            (_group(Operation.READ),), dataclasses.replace(_each_topic(Operation.READ), asks_anyway=True)
        ),
        "DeleteShareGroupOffsets": Need(
            (_group(Operation.DELETE),), dataclasses.replace(_each_topic(Operation.READ), asks_anyway=True)
        ),
        "AddRaftVoter": _ALTER,
        "RemoveRaftVoter": _ALTER,
        "UpdateRaftVoter": _CLUSTER_ACTION,
        "InitializeShareGroupState": _CLUSTER_ACTION,
        "ReadShareGroupState": _CLUSTER_ACTION,
        "WriteShareGroupState": _CLUSTER_ACTION,
        "DeleteShareGroupState": _CLUSTER_ACTION,
        "ReadShareGroupStateSummary": _CLUSTER_ACTION,
    }.items()
}


# --- applying it ---

Handler = Callable[[Broker, Call, Any], Response | Awaitable[Response]]


def serve(broker: Broker, call: Call, request: Request, handler: Handler) -> Response | Awaitable[Response]:
    """The handler's answer to what the peer may ask, with the refusals of the rest. `ApiError` refuses all of it."""
    access = Access(broker, call.connection)
    if broker.is_controller_listener(call.connection.listener_name) and access.cluster(
        Operation.CLUSTER_ACTION, quiet=True
    ):
        return handler(broker, call, request)
    need = NEEDS[request.api_key]
    asked = _Asked(access, broker, request, call.version)
    for check in need.checks:
        check(asked)
    if need.split is None:
        return handler(broker, call, request)
    field = need.split.fields(call.version)
    entries: list[Any] = getattr(request, field) or []
    refused: dict[ErrorCode, list[Any]] = {}
    allowed: list[Any] = []
    for entry in entries:
        code = need.split.error_of(asked, entry)
        if code:
            refused.setdefault(code, []).append(need.split.shown(asked, entry))
        else:
            allowed.append(entry)
    if not refused:
        return handler(broker, call, request)
    refusals = [
        error_response(replace(request, **{field: denied}), call.version, code, code.message, in_entries=True)
        for code, denied in refused.items()
    ]
    if not allowed and not need.split.asks_anyway:
        return merged(apis.RESPONSES[request.api_key](), refusals)
    answer = handler(broker, call, replace(request, **{field: allowed}))
    return merged(answer, refusals) if isinstance(answer, Response) else _merged_later(answer, refusals)


async def _merged_later(answer: Awaitable[Response], refusals: Sequence[Response | None]) -> Response:
    return merged(await answer, refusals)


def merged(answer: Response, refusals: Sequence[Response | None]) -> Response:
    """The answer with the entries of the refusals behind its own; an error about the whole request stands alone."""
    if getattr(answer, "error_code", ErrorCode.NONE):
        return answer
    for refusal in refusals:
        assert refusal is not None, "a refused entry has a place in the response"
        for spec in field_specs(type(refusal)):
            entries = getattr(refusal, spec.name)
            if isinstance(entries, list) and entries:
                setattr(answer, spec.name, [*(getattr(answer, spec.name) or ()), *entries])
    return answer
