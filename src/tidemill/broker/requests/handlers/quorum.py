"""Serves the Raft APIs of the metadata quorum.

This node's replica answers the requests of other replicas. They are served at controllers' listeners, or without those to
nodes (`nodes.py`). A client that may fetch the metadata may also read a snapshot; it counts as no replica. Client
requests are served at brokers too, which forward them to the leader of the quorum.

Versions, and what each one changed:

    Vote (52), from 0 (KIP-595)
       1  directory ids, endpoints (KIP-853)
       2  pre-vote (KIP-996)
    BeginQuorumEpoch (53), from 0 (KIP-595)
       1  directory ids, endpoints (KIP-853)
    EndQuorumEpoch (54), from 0 (KIP-595)
       1  directory ids of the preferred candidates, endpoints (KIP-853)
    DescribeQuorum (55), from 0 (KIP-595)
       1  times of the last fetch and of being caught up (KIP-836)
       2  directory ids, error messages, nodes (KIP-853)
    FetchSnapshot (59), from 0 (KIP-630)
       1  directory ids, endpoints (KIP-853)
    AddRaftVoter (80), from 0 (KIP-853)
       1  ack_when_committed (KIP-1186)
    RemoveRaftVoter (81), from 0 (KIP-853)
    UpdateRaftVoter (82), from 0 (KIP-853)
"""

from __future__ import annotations

from tidemill.broker.requests.api_table import Scope, serves
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.handlers.nodes import fetches_as_replica, for_nodes
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
    proof = fetches_as_replica(broker, call.connection, request.replica_id)
    is_proven = proof if isinstance(proof, bool) else await proof
    return await broker.quorum.answer(request, is_proven=is_proven)


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
    """At a controller's own listener the answer is this node's own view, as in Kafka; elsewhere the leader's."""
    if broker.is_controller_listener(call.connection.listener_name):
        return await broker.quorum.answer(request)
    return await broker.controller.ask(request)
