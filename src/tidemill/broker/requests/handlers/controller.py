"""What the controller decides: topics, configurations, brokers, ISRs, elections, reassignments.

Asked by a client at a broker's listener, the broker asks the controller, wherever that is. At a controller's listener only
the active controller answers. Brokers themselves use the controller's listeners, and send what their clients asked in an
Envelope (58); where there is no such listener, they have to come from where a node is (nodes.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemill.broker.requests import loggers
from tidemill.broker.requests.dispatch import Call, Scope, serves
from tidemill.broker.requests.handlers.nodes import for_nodes
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

if TYPE_CHECKING:
    from tidemill.broker.requests.context import Broker


@serves(admin.CreateTopicsRequest, versions=(2, 7), scope=Scope.BOTH)
@serves(admin.DeleteTopicsRequest, scope=Scope.BOTH)
@serves(admin.CreatePartitionsRequest, scope=Scope.BOTH)
@serves(admin.AlterConfigsRequest, scope=Scope.BOTH)
@serves(
    admin.UpdateFeaturesRequest,
    scope=Scope.BOTH,
    gaps=["A release runs at one level of each feature: no other is accepted."],
)
@serves(ElectLeadersRequest, scope=Scope.BOTH)
@serves(AlterPartitionReassignmentsRequest, scope=Scope.BOTH)
@serves(ListPartitionReassignmentsRequest, scope=Scope.BOTH)
@serves(UnregisterBrokerRequest, scope=Scope.BOTH, gaps=["A broker that is alive is refused: stop it first."])
async def ask(broker: Broker, call: Call, request: Request) -> Response:
    return await _asked(broker, call, request)


async def _asked(broker: Broker, call: Call, request: Request) -> Response:
    if broker.is_controller_listener(call.connection.listener_name):
        return await broker.controller.decide(request, call.version)
    return await broker.controller.ask(request, call.version)


@serves(admin.IncrementalAlterConfigsRequest, scope=Scope.BOTH)
async def incremental_alter_configs(
    broker: Broker, call: Call, request: admin.IncrementalAlterConfigsRequest
) -> Response:
    """Loggers are this process's own (KIP-412); the rest is the controller's to decide."""
    is_logger = [each.resource_type == ResourceType.BROKER_LOGGER for each in request.resources]
    if not any(is_logger):
        return await _asked(broker, call, request)
    stored = [each for each in request.resources if each.resource_type != ResourceType.BROKER_LOGGER]
    answers: Iterator[admin.AlterConfigsResourceResponse] = iter(())
    if stored:
        rest = admin.IncrementalAlterConfigsRequest(resources=stored, validate_only=request.validate_only)
        answer = await _asked(broker, call, rest)
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
    """What cannot be read, or answered in the layout that was asked for, is the fault of what is enclosed."""
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
