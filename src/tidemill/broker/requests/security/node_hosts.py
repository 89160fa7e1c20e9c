"""Finds the hosts of the node for which a request speaks, in the metadata and among the voters (`node_proof.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemill.broker.requests.context import Broker
from tidemill.protocol.api import brokers, quorum
from tidemill.protocol.schema import Request
from tidemill.types import BrokerId


def known_hosts(broker: Broker, request: Request) -> Sequence[str]:
    """Returns the known hosts of the node that a request names as its sender; none while it registers."""
    if isinstance(request, brokers.BrokerRegistrationRequest | brokers.ControllerRegistrationRequest):
        return ()
    return claimed_hosts(broker, request) or ()


def hosts_of_replica(broker: Broker, node_id: int) -> list[str]:
    """Returns the hosts of a fetching node, which is a broker or a voter."""
    return _hosts_of_brokers(broker, [node_id]) + _hosts_of_voters(broker, [node_id])


def claimed_hosts(broker: Broker, request: Request) -> Sequence[str] | None:
    """The hosts of the node for which the request speaks; empty where no node could send it.

    None, where it speaks for a broker that is not registered: that the controller refuses by itself.
    """
    match request:
        case quorum.VoteRequest():
            return _hosts_of_voters(broker, _ids(request.topics, "replica_id"))
        case quorum.BeginQuorumEpochRequest() | quorum.EndQuorumEpochRequest():
            return _hosts_of_voters(broker, _ids(request.topics, "leader_id"))
        case quorum.UpdateRaftVoterRequest():
            return _hosts_of_voters(broker, [request.voter_id])
        case brokers.BrokerRegistrationRequest() | brokers.ControllerRegistrationRequest():
            return [each.host for each in request.listeners]
        case (
            brokers.BrokerHeartbeatRequest()
            | brokers.AlterPartitionRequest()
            | brokers.AllocateProducerIdsRequest()
        ):
            is_known = BrokerId(request.broker_id) in broker.image.brokers
            return _hosts_of_brokers(broker, [request.broker_id]) if is_known else None
    return _hosts_of_brokers(broker, broker.image.brokers)


def _ids(topics: Iterable[object], field: str) -> list[int]:
    return [getattr(part, field) for topic in topics for part in topic.partitions]  # type: ignore[attr-defined]


def _hosts_of_voters(broker: Broker, ids: Iterable[int]) -> list[str]:
    """Returns the hosts of the other voters: a node has no connection to itself."""
    voters = [broker.quorum.voters.get(each) for each in ids if each != broker.config.node_id]
    return [endpoint.host for voter in voters if voter is not None for endpoint in voter.endpoints]


def _hosts_of_brokers(broker: Broker, ids: Iterable[int]) -> list[str]:
    known = broker.image.brokers
    others = [known[BrokerId(each)] for each in ids if each != broker.config.node_id and each in known]
    return [endpoint.host for other in others for endpoint in other.endpoints.values()]
