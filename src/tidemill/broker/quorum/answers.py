"""Answers of the quorum as they leave this node: what the machine cannot know is filled in.

The machine speaks of node ids and of a time that only ever runs forward; peers want addresses, clients want wall time.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.broker.net.network import Address
from tidemill.errors import ErrorCode
from tidemill.internal_topics import METADATA_TOPIC
from tidemill.protocol.api import data, quorum
from tidemill.protocol.schema import Request, Response
from tidemill.raft import messages
from tidemill.raft.voters import ReplicaKey, Voter, VoterEndpoint


def name_leader(response: Response, leader_id: int | None, address: Address | None) -> None:
    """Puts the leader's address into a response, for a peer that does not know it yet."""
    if leader_id is None or address is None:
        return
    match response:
        case data.FetchResponse():
            response.node_endpoints = [
                data.NodeEndpoint(node_id=leader_id, host=address.host, port=address.port)
            ]
        case (
            quorum.VoteResponse()
            | quorum.BeginQuorumEpochResponse()
            | quorum.EndQuorumEpochResponse()
            | quorum.FetchSnapshotResponse()
        ):
            response.node_endpoints = [
                quorum.NodeEndpoint(node_id=leader_id, host=address.host, port=address.port)
            ]
        case quorum.UpdateRaftVoterResponse():
            response.current_leader.host, response.current_leader.port = address.host, address.port


def complete_description(
    response: quorum.DescribeQuorumResponse, voters: Iterable[Voter], wall_minus_machine_ms: int
) -> None:
    """Wall time for the replicas' states, the voters' addresses, and the voters themselves even when others lead."""
    voters = list(voters)
    for topic in response.topics:
        for part in topic.partitions:
            for state in (*part.current_voters, *part.observers):
                if state.last_fetch_timestamp >= 0:
                    state.last_fetch_timestamp += wall_minus_machine_ms
                if state.last_caught_up_timestamp >= 0:
                    state.last_caught_up_timestamp += wall_minus_machine_ms
            if part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                part.error_message = ErrorCode.NOT_LEADER_OR_FOLLOWER.message
                part.current_voters = [_state(voter.key) for voter in voters]
    response.nodes = [
        quorum.Node(node_id=voter.key.id, listeners=_listeners(voter.endpoints)) for voter in voters
    ]


def description_without_quorum(
    own: ReplicaKey, endpoints: Iterable[VoterEndpoint], reason: str
) -> quorum.DescribeQuorumResponse:
    """The answer of a node that takes no part in a quorum: its identity, and why it knows no quorum."""
    part = quorum.DescribeQuorumResponsePartitionData(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        error_message=f"this node {reason}",
        leader_id=messages.NOBODY,
        observers=[_state(own)],
    )
    topic = quorum.DescribeQuorumResponseTopicData(topic_name=METADATA_TOPIC, partitions=[part])
    node = quorum.Node(node_id=own.id, listeners=_listeners(endpoints))
    return quorum.DescribeQuorumResponse(topics=[topic], nodes=[node])


def refusal_without_quorum(request: Request) -> Response:
    """Everything else that a node without a quorum is asked."""
    match request:
        case quorum.VoteRequest():
            return quorum.VoteResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
        case quorum.BeginQuorumEpochRequest():
            return quorum.BeginQuorumEpochResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
        case quorum.EndQuorumEpochRequest():
            return quorum.EndQuorumEpochResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
        case quorum.FetchSnapshotRequest():
            return quorum.FetchSnapshotResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
        case quorum.AddRaftVoterRequest():
            return quorum.AddRaftVoterResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        case quorum.RemoveRaftVoterRequest():
            return quorum.RemoveRaftVoterResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        case quorum.UpdateRaftVoterRequest():
            return quorum.UpdateRaftVoterResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return data.FetchResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)


def _state(key: ReplicaKey) -> quorum.ReplicaState:
    return quorum.ReplicaState(replica_id=key.id, replica_directory_id=key.directory_id, log_end_offset=-1)


def _listeners(endpoints: Iterable[VoterEndpoint]) -> list[quorum.Listener]:
    return [quorum.Listener(name=each.name, host=each.host, port=each.port) for each in endpoints]
