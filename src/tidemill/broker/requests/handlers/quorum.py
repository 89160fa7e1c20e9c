"""The quorum's APIs: Vote (52), BeginQuorumEpoch (53), EndQuorumEpoch (54), DescribeQuorum (55), FetchSnapshot (59),
AddRaftVoter (80), RemoveRaftVoter (81), UpdateRaftVoter (82).

What replicas of the quorum say to each other is served to controllers' listeners, or where there are none to nodes
(nodes.py), and answered by this node's own replica. A snapshot may be read by whoever may fetch the metadata. What
clients ask is also served to them at a broker, which passes it on to the quorum's leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.requests.dispatch import Call, Scope, serves
from tidemill.broker.requests.handlers.nodes import for_nodes
from tidemill.protocol.api.quorum import (
    AddRaftVoterRequest,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
    VoteRequest,
)
from tidemill.protocol.schema import Request, Response

if TYPE_CHECKING:
    from tidemill.broker.requests.context import Broker


@serves(VoteRequest, scope=Scope.CONTROLLER)
@for_nodes
async def vote(broker: Broker, call: Call, request: VoteRequest) -> Response:
    return await broker.quorum.answer(request)


@serves(BeginQuorumEpochRequest, scope=Scope.CONTROLLER)
@for_nodes
async def begin_quorum_epoch(broker: Broker, call: Call, request: BeginQuorumEpochRequest) -> Response:
    return await broker.quorum.answer(request)


@serves(EndQuorumEpochRequest, scope=Scope.CONTROLLER)
@for_nodes
async def end_quorum_epoch(broker: Broker, call: Call, request: EndQuorumEpochRequest) -> Response:
    return await broker.quorum.answer(request)


@serves(FetchSnapshotRequest, scope=Scope.CONTROLLER)
async def fetch_snapshot(broker: Broker, call: Call, request: FetchSnapshotRequest) -> Response:
    return await broker.quorum.answer(request)


@serves(UpdateRaftVoterRequest, scope=Scope.CONTROLLER)
@for_nodes
async def update_raft_voter(broker: Broker, call: Call, request: UpdateRaftVoterRequest) -> Response:
    return await broker.quorum.answer(request)


@serves(DescribeQuorumRequest, scope=Scope.BOTH)
async def describe_quorum(broker: Broker, call: Call, request: DescribeQuorumRequest) -> Response:
    return await _of_leader(broker, call, request)


@serves(AddRaftVoterRequest, scope=Scope.BOTH)
async def add_raft_voter(broker: Broker, call: Call, request: AddRaftVoterRequest) -> Response:
    return await _of_leader(broker, call, request)


@serves(RemoveRaftVoterRequest, scope=Scope.BOTH)
async def remove_raft_voter(broker: Broker, call: Call, request: RemoveRaftVoterRequest) -> Response:
    return await _of_leader(broker, call, request)


async def _of_leader(broker: Broker, call: Call, request: Request) -> Response:
    """At a controller's own listener the answer is its own: whoever asks there wants to know what this node knows."""
    if broker.is_controller_listener(call.connection.listener_name):
        return await broker.quorum.answer(request)
    return await broker.controller.ask(request)
