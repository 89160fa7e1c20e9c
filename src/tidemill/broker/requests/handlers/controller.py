"""Forwards to the active controller: topics, configurations, brokers, ISRs, elections, reassignments.

A broker's listener takes these requests from clients and forwards them to the active controller on any node. A controller's
listener answers only on the active controller. Brokers connect to the controllers' listeners and forward their clients'
requests in an Envelope. Without such a listener, a node's requests must come from the address of a node (`nodes.py`).

Versions, and what each one changed:

    CreateTopics (19), from 2 (KIP-4)
       3  a throttled client waits by itself (KIP-219)
       4  -1 stands for the default number of partitions and replicas (KIP-464)
       5  flexible; the response has the topic's settings (KIP-525)
       6  the error THROTTLING_QUOTA_EXCEEDED (KIP-599)
       7  topic ids in the response (KIP-516)
    DeleteTopics (20), from 1 (KIP-4)
       2  a throttled client waits by itself (KIP-219)
       3  the error TOPIC_DELETION_DISABLED (KIP-322)
       4  flexible (KIP-482)
       5  error messages; the error THROTTLING_QUOTA_EXCEEDED (KIP-599)
       6  topics by id (KIP-516)
    AlterConfigs (33), from 0 (KIP-133)
       1  a throttled client waits by itself (KIP-219)
       2  flexible (KIP-482)
    CreatePartitions (37), from 0 (KIP-195)
       1  a throttled client waits by itself (KIP-219)
       2  flexible (KIP-482)
       3  the error THROTTLING_QUOTA_EXCEEDED (KIP-599)
    ElectLeaders (43), from 0 (KIP-183)
       1  unclean elections; error code of the whole response (KIP-460)
       2  flexible (KIP-482)
    IncrementalAlterConfigs (44), from 0 (KIP-339)
       1  flexible (KIP-482)
    AlterPartitionReassignments (45), from 0 (KIP-455)
       1  allow_replication_factor_change (KIP-860)
    ListPartitionReassignments (46), from 0 (KIP-455)
    AlterPartition (56), from 2 (KIP-841)
       3  the ISR has broker epochs (KIP-903)
    UpdateFeatures (57), from 0 (KIP-584)
       1  upgrade types, validate_only (KIP-778)
       2  one error for all features instead of one for each (KIP-1022)
    Envelope (58), from 0 (KIP-590)
    BrokerRegistration (62), from 0 (KIP-631)
       1  migration from ZooKeeper (KIP-866)
       2  log directories (KIP-858)
       3  epoch of the previous registration (KIP-966)
       4  features whose lowest level is 0 (KAFKA-17011)
    BrokerHeartbeat (63), from 0 (KIP-631)
       1  offline log directories (KIP-858)
       2  cordoned log directories (KIP-1066)
    UnregisterBroker (64), from 0 (KIP-631)
    AllocateProducerIds (67), from 0 (KIP-730)
    ControllerRegistration (70), from 0 (KIP-919)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tidemill.broker.requests import loggers
from tidemill.broker.requests.api_table import Scope, serves
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.handlers.nodes import for_nodes
from tidemill.broker.requests.mutations import refused_topics, trial_of, within_quota
from tidemill.broker.requests.pieces import Entries, Inner
from tidemill.broker.requests.security.access import Access, access_of
from tidemill.broker.requests.security.authorization import merged
from tidemill.controller.controller import DECIDES
from tidemill.controller.image import ResourceType
from tidemill.errors import ApiError, ErrorCode, ProtocolError
from tidemill.protocol import api as apis
from tidemill.protocol.api import admin
from tidemill.protocol.api.brokers import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
    EnvelopeRequest,
    EnvelopeResponse,
)
from tidemill.protocol.api.replicas import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    UnregisterBrokerRequest,
)
from tidemill.protocol.error_responses import error_response
from tidemill.protocol.frames import LENGTH_BYTES, parse_request_header, response_frame
from tidemill.protocol.schema import Request, Response, decode
from tidemill.security.acls import Operation


@serves(admin.CreateTopicsRequest, versions=(2, 7), scope=Scope.BOTH)
@serves(admin.DeleteTopicsRequest, scope=Scope.BOTH)
@serves(admin.CreatePartitionsRequest, scope=Scope.BOTH)
async def mutate(broker: Broker, call: Call, request: Request) -> Response:
    """The controller decides on what is within the client's quota."""
    admitted: Request | None = request
    refusal: Response | None = None
    if call.usage is not None and call.usage.limits_mutations:
        trial = trial_of(request)
        refused_anyway = (
            frozenset() if trial is None else refused_topics(await ask_controller(broker, call, trial))
        )
        admitted, refusal = within_quota(
            broker.image,
            broker.config.topics.num_partitions,
            call.usage,
            call.version,
            request,
            refused_anyway,
        )
    if admitted is None:
        assert refusal is not None
        return refusal
    response = await ask_controller(broker, call, admitted)
    if isinstance(response, admin.CreateTopicsResponse):
        _hide_configs(access_of(broker, call.connection), response)
    return response if refusal is None else merged(response, [refusal])


def _hide_configs(access: Access | None, response: admin.CreateTopicsResponse) -> None:
    """Only a principal that may describe the configuration of its new topic sees it (KIP-525)."""
    if access is None:
        return
    for topic in response.topics:
        if not topic.error_code and not access.topic(Operation.DESCRIBE_CONFIGS, topic.name, quiet=True):
            topic.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            topic.num_partitions = topic.replication_factor = -1
            topic.configs = []


# Each piece is a decision and a commit of its own.
_RESOURCES = Entries(
    "resources", "responses", key=lambda each: (each.resource_type, each.resource_name), piece_size=128
)


@serves(admin.AlterConfigsRequest, scope=Scope.BOTH, entries=_RESOURCES)
@serves(
    admin.UpdateFeaturesRequest,
    scope=Scope.BOTH,
    gaps=["A release runs at one level of each feature: no other is accepted."],
)
@serves(
    ElectLeadersRequest,
    scope=Scope.BOTH,
    entries=Entries(
        "topic_partitions",
        "replica_election_results",
        key=lambda each: each.topic,
        piece_size=128,
        inner=Inner("partitions", "partition_result", key=lambda index: index),
    ),
)
@serves(
    AlterPartitionReassignmentsRequest,
    scope=Scope.BOTH,
    entries=Entries(
        "topics",
        "responses",
        key=lambda each: each.name,
        piece_size=128,
        inner=Inner("partitions", "partitions", key=lambda each: each.partition_index),
    ),
)
@serves(ListPartitionReassignmentsRequest, scope=Scope.BOTH)
@serves(UnregisterBrokerRequest, scope=Scope.BOTH, gaps=["A broker that is alive is refused: stop it first."])
async def ask(broker: Broker, call: Call, request: Request) -> Response:
    return await ask_controller(broker, call, request)


async def ask_controller(broker: Broker, call: Call, request: Request) -> Response:
    if broker.is_controller_listener(call.connection.listener_name):
        return await broker.controller.decide(request, call.version)
    return await broker.controller.ask(request, call.version)


@serves(admin.IncrementalAlterConfigsRequest, scope=Scope.BOTH, entries=_RESOURCES)
async def incremental_alter_configs(
    broker: Broker, call: Call, request: admin.IncrementalAlterConfigsRequest
) -> Response:
    """Loggers are this process's own (KIP-412); the rest is the controller's to decide."""
    is_logger = [each.resource_type == ResourceType.BROKER_LOGGER for each in request.resources]
    if not any(is_logger):
        return await ask_controller(broker, call, request)
    stored = [each for each in request.resources if each.resource_type != ResourceType.BROKER_LOGGER]
    answers: Iterator[admin.AlterConfigsResourceResponse] = iter(())
    if stored:
        rest = admin.IncrementalAlterConfigsRequest(resources=stored, validate_only=request.validate_only)
        answer = await ask_controller(broker, call, rest)
        assert isinstance(answer, admin.IncrementalAlterConfigsResponse)
        answers = iter(answer.responses)
    names = Counter(each.resource_name for each, own in zip(request.resources, is_logger, strict=True) if own)
    return admin.IncrementalAlterConfigsResponse(
        responses=[
            _alter_loggers(broker, each, names[each.resource_name], request.validate_only)
            if own
            else next(answers)
            for each, own in zip(request.resources, is_logger, strict=True)
        ]
    )


def _alter_loggers(
    broker: Broker, resource: admin.IncrementalAlterConfigsResource, count: int, validate_only: bool
) -> admin.AlterConfigsResourceResponse:
    response = admin.AlterConfigsResourceResponse(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        if count > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once")
        loggers.check_node(resource.resource_name, broker.config.node_id)
        loggers.alter(resource.configs, validate_only=validate_only)
    except ApiError as error:
        response.error_code, response.error_message = error.code, error.message
    return response


@serves(BrokerRegistrationRequest, scope=Scope.CONTROLLER)
@serves(BrokerHeartbeatRequest, scope=Scope.CONTROLLER)
@serves(AlterPartitionRequest, scope=Scope.CONTROLLER)
@serves(AllocateProducerIdsRequest, scope=Scope.CONTROLLER)
@serves(ControllerRegistrationRequest, scope=Scope.CONTROLLER)
@for_nodes
async def decide(broker: Broker, call: Call, request: Request) -> Response:
    return await broker.controller.decide(request, call.version)


@serves(EnvelopeRequest, scope=Scope.CONTROLLER)
@for_nodes
async def envelope(broker: Broker, call: Call, request: EnvelopeRequest) -> EnvelopeResponse:
    """Serves the enclosed request. INVALID_REQUEST when it cannot be read, or its response not encoded in its version."""
    try:
        header = parse_request_header(request.request_data)
        kind = apis.REQUESTS.get(header.api_key)
        if kind not in DECIDES or header.api_version not in kind.versions:
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        enclosed = decode(kind, header.api_version, request.request_data, header.body_position)
    except ProtocolError:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    try:
        response = await broker.controller.decide(enclosed, header.api_version)
    except ApiError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            return EnvelopeResponse(error_code=error.code)
        refused = error_response(enclosed, header.api_version, error.code, error.message)
        if refused is None:
            return EnvelopeResponse(error_code=error.code)
        response = refused
    try:
        frame = response_frame(response, header.api_version, header.correlation_id)
    except ValueError:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    return EnvelopeResponse(response_data=frame[LENGTH_BYTES:])
