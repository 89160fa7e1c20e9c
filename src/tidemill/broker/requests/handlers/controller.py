"""What the controller decides: topics, configurations, brokers, ISRs, elections, reassignments.

Asked by a client at a broker's listener, the broker asks the controller, wherever that is. At a controller's listener only
the active controller answers. Brokers themselves use the controller's listeners, and send what their clients asked in an
Envelope (58); where there is no such listener, they have to come from where a node is (nodes.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.requests.dispatch import Call, Scope, serves
from tidemill.broker.requests.node_proof import for_nodes
from tidemill.controller.controller import DECIDES
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
@serves(admin.IncrementalAlterConfigsRequest, scope=Scope.BOTH)
@serves(ElectLeadersRequest, scope=Scope.BOTH)
@serves(AlterPartitionReassignmentsRequest, scope=Scope.BOTH)
@serves(ListPartitionReassignmentsRequest, scope=Scope.BOTH)
@serves(UnregisterBrokerRequest, scope=Scope.BOTH, gaps=["A broker that is alive is refused: stop it first."])
async def ask(broker: Broker, call: Call, request: Request) -> Response:
    if broker.is_controller_listener(call.connection.listener_name):
        return await broker.controller.decide(request, call.version)
    return await broker.controller.ask(request, call.version)


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
