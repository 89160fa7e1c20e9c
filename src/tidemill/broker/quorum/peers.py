"""The other replicas of the quorum: where they are, and how a request gets to them and its answer back.

An address comes from the voter set; what a replica has said about itself or about the leader since then counts more,
until that address does not answer. Fetches, which may wait at the leader, have a connection of their own, so that no
vote waits behind one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from tidemill.broker.net.channel import Channels
from tidemill.broker.net.network import Address
from tidemill.errors import ProtocolError
from tidemill.protocol.api.data import FetchResponse
from tidemill.protocol.api.quorum import (
    BeginQuorumEpochResponse,
    EndQuorumEpochResponse,
    FetchSnapshotResponse,
    LeaderEndpoint,
    VoteResponse,
)
from tidemill.protocol.schema import decode
from tidemill.raft.effects import SendBeginQuorumEpoch, SendEndQuorumEpoch, SendFetch, SendFetchSnapshot
from tidemill.raft.requests import Sent
from tidemill.raft.voters import Voter, VoterEndpoint, VoterSet

logger = logging.getLogger(__name__)

PeerResponse = (
    VoteResponse | BeginQuorumEpochResponse | EndQuorumEpochResponse | FetchResponse | FetchSnapshotResponse
)
OnAnswer = Callable[[PeerResponse], None]
OnFailed = Callable[[], None]


class _NodeEndpoint(Protocol):
    node_id: int
    host: str
    port: int


def _response_type(sent: Sent) -> type[PeerResponse]:
    match sent:
        case SendFetch():
            return FetchResponse
        case SendFetchSnapshot():
            return FetchSnapshotResponse
        case SendBeginQuorumEpoch():
            return BeginQuorumEpochResponse
        case SendEndQuorumEpoch():
            return EndQuorumEpochResponse
    return VoteResponse


class Peers:
    def __init__(
        self,
        channels: Channels,
        voters: Callable[[], VoterSet],
        own_id: int,
        own_endpoints: Sequence[VoterEndpoint],
        request_timeout_ms: int,
    ) -> None:
        self._channels = channels
        self._voters = voters
        self._own_id = own_id
        self._own_endpoints = tuple(own_endpoints)
        self._timeout_s = request_timeout_ms / 1000
        self._learned: dict[int, Address] = {}
        self._unreachable: set[int] = set()
        self.is_closed = False

    # -- addresses -------------------------------------------------------------------------------------------

    def address_of(self, node_id: int) -> Address | None:
        if node_id == self._own_id:
            return self._choose(self._own_endpoints)
        learned = self._learned.get(node_id)
        if learned is not None:
            return learned
        voter = self._voters().get(node_id)
        return None if voter is None else self.address_of_voter(voter)

    def address_of_voter(self, voter: Voter) -> Address | None:
        return self._choose(voter.endpoints)

    def _choose(self, endpoints: Sequence[VoterEndpoint]) -> Address | None:
        """The listener of the same name as ours, or the first."""
        own_names = [endpoint.name for endpoint in self._own_endpoints]
        found = next((each for each in endpoints if each.name in own_names), None)
        chosen = found or (endpoints[0] if endpoints else None)
        return None if chosen is None else Address(chosen.host, chosen.port)

    def learn(self, node_id: int, endpoints: Sequence[LeaderEndpoint]) -> None:
        """Take an address from a request. Requests are not proof, so a node that answers at its address keeps it."""
        if node_id not in self._unreachable and self.address_of(node_id) is not None:
            return
        address = self._choose([VoterEndpoint(each.name, each.host, each.port) for each in endpoints])
        if address is not None:
            self._learn(node_id, address)

    def learn_all(self, endpoints: Sequence[_NodeEndpoint]) -> None:
        for each in endpoints:
            self._learn(each.node_id, Address(each.host, each.port))

    def _learn(self, node_id: int, address: Address) -> None:
        if node_id != self._own_id and address.host and address != self.address_of(node_id):
            self._learned[node_id] = address

    # -- sending ---------------------------------------------------------------------------------------------

    def send(self, sent: Sent, on_answer: OnAnswer, on_failed: OnFailed) -> None:
        address = self.address_of(sent.to)
        if address is None:
            self._note_failure(sent.to, "its address is not known")
            on_failed()
            return
        if isinstance(sent, SendBeginQuorumEpoch | SendEndQuorumEpoch):
            sent.request.leader_endpoints = [
                LeaderEndpoint(name=each.name, host=each.host, port=each.port) for each in self._own_endpoints
            ]
        expected = _response_type(sent)

        def take(version: int, body: memoryview) -> None:
            try:
                response = decode(expected, version, body)
            except ProtocolError as error:
                failed(str(error))
                return
            if sent.to in self._unreachable:
                self._unreachable.discard(sent.to)
                logger.info("node %d of the quorum answers again", sent.to)
            self.learn_all(response.node_endpoints)
            on_answer(response)

        def failed(reason: str) -> None:
            self._learned.pop(sent.to, None)
            self._note_failure(sent.to, f"{address}: {reason}")
            on_failed()

        is_fetch = isinstance(sent, SendFetch | SendFetchSnapshot)
        channel = self._channels.to(address, "quorum-fetch" if is_fetch else "quorum")
        channel.call(sent.request, take, failed, timeout_s=self._timeout_s)

    def _note_failure(self, node_id: int, reason: str) -> None:
        """One line when a replica is lost, not one for every attempt."""
        if node_id not in self._unreachable and not self.is_closed:
            self._unreachable.add(node_id)
            logger.warning("node %d of the quorum does not answer: %s", node_id, reason)
