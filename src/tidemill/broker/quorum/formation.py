"""Finds the quorum of a node, or begins one, and makes a controller a voter of it.

    the voters are                     when
    what the log says                  it has a voters record: nothing else is asked, ever again
    what the configuration says        `controller.quorum.voters` is set; they are fixed then (kraft.version 0)
    this node alone                    it is a controller, and no other server is listed
    what another server says           one of `controller.quorum.bootstrap.servers` knows a quorum
    this node alone                    it is the first of that list, every server of it answers, and none knows one

In the last case every other server will find this node. Without the answer of all of them nothing begins: the one that is
silent may be what is left of a quorum. A replica that has lost its log begins nothing either.

A quorum that did not come from the configuration keeps its voters in its log (kraft.version 1). A controller outside of
it sends AddRaftVoter once it has caught up. One that was a voter and was removed stays outside until it is restarted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemill.broker.net.channel import Channels, PeerUnavailable
from tidemill.broker.net.network import Address
from tidemill.errors import ErrorCode, ProtocolError
from tidemill.internal_topics import METADATA_TOPIC
from tidemill.protocol.api.quorum import (
    AddRaftVoterRequest,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
    KRaftVersionFeature,
    Listener,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
)
from tidemill.protocol.schema import Request, Response
from tidemill.raft.voters import KRAFT_VERSION_MAX, ReplicaKey, Voter, VoterEndpoint, VoterSet

logger = logging.getLogger(__name__)

_ASK_TIMEOUT_S = 2.0
_ASK_AGAIN_S = 0.3
_TELL_EVERY_S = 10.0
_JOIN_AGAIN_S = 0.5
_JOIN_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class _Known:
    """The answer of one server: its key and its voters."""

    key: ReplicaKey | None
    voters: VoterSet | None


async def find_quorum(
    channels: Channels,
    servers: Sequence[Address],
    own: ReplicaKey,
    own_addresses: Sequence[Address],
    *,
    may_begin: bool,
) -> VoterSet | None:
    """The voters that some server knows; None when this node is to begin a quorum. Waits for one of the two."""
    loop = asyncio.get_running_loop()
    told_at = loop.time()
    while True:
        answers = await _ask_all(channels, servers, own, own_addresses)
        for server in servers:
            known = answers.get(server)
            if known is not None and known.voters is not None:
                logger.info("found the quorum of voters %s at %s", known.voters.ids, server)
                return known.voters
        first = answers.get(servers[0])
        is_first = first is not None and first.key == own
        if may_begin and is_first and len(answers) == len(servers):
            logger.info(
                "no server of controller.quorum.bootstrap.servers knows a quorum: this node begins one"
            )
            return None
        if loop.time() - told_at >= _TELL_EVERY_S:
            told_at = loop.time()
            silent = [str(server) for server in servers if server not in answers]
            awaited = f"{', '.join(silent)} to answer" if silent else f"{servers[0]} to begin a quorum"
            logger.info("this node knows no quorum yet; waiting for %s", awaited)
        await asyncio.sleep(_ASK_AGAIN_S)


async def _ask_all(
    channels: Channels, servers: Sequence[Address], own: ReplicaKey, own_addresses: Sequence[Address]
) -> dict[Address, _Known]:
    """Those that do not answer are left out."""
    others = [server for server in servers if server not in own_addresses]
    found = await asyncio.gather(*(_ask(channels, server) for server in others))
    answers = {server: _Known(own, None) for server in servers if server in own_addresses}
    answers.update({server: known for server, known in zip(others, found, strict=True) if known is not None})
    return answers


async def _ask(channels: Channels, server: Address) -> _Known | None:
    request = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequestTopicData(
                topic_name=METADATA_TOPIC, partitions=[DescribeQuorumRequestPartitionData()]
            )
        ]
    )
    try:
        response = await channels.to(server, "formation").request(
            request, DescribeQuorumResponse, timeout_s=_ASK_TIMEOUT_S
        )
    except (PeerUnavailable, ProtocolError, TimeoutError) as error:
        logger.debug("%s does not say what quorum it knows: %s", server, error)
        return None
    parts = [part for topic in response.topics for part in topic.partitions]
    if response.error_code or len(parts) != 1:
        return None
    part = parts[0]
    if part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        keys = [ReplicaKey(state.replica_id, state.replica_directory_id) for state in part.observers]
        return _Known(keys[0] if keys else None, None)
    if part.error_code not in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER) or not part.current_voters:
        return None
    listeners = {node.node_id: node.listeners for node in response.nodes}
    voters = VoterSet(
        Voter(
            ReplicaKey(state.replica_id, state.replica_directory_id),
            tuple(
                VoterEndpoint(each.name, each.host, each.port) for each in listeners.get(state.replica_id, ())
            ),
        )
        for state in part.current_voters
    )
    return _Known(None, voters)


class Asker(Protocol):
    """The quorum, as far as a controller needs it to become a voter."""

    @property
    def voters(self) -> VoterSet: ...
    @property
    def leader_id(self) -> int | None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def cluster_id(self) -> str | None: ...
    async def ask_leader(self, request: Request) -> Response:
        """`PeerUnavailable` when it does not answer."""


async def become_voter(quorum: Asker, own: ReplicaKey, endpoints: Sequence[VoterEndpoint]) -> None:
    """Returns when this controller is a voter under its present addresses."""
    loop = asyncio.get_running_loop()
    told_at = loop.time() - _TELL_EVERY_S
    while True:
        voter = quorum.voters.get(own.id)
        is_voter = voter is not None and voter.key == own
        if not quorum.voters.is_dynamic:
            return
        if voter is not None and is_voter and voter.endpoints == tuple(endpoints):
            return
        if quorum.leader_id is not None:
            outcome = await _apply(quorum, own, endpoints, voter)
            if outcome is ErrorCode.NONE and (voter is None or is_voter):
                logger.info("this controller votes in the quorum, at %s", _text(endpoints))
                return
            if outcome is not ErrorCode.NONE and loop.time() - told_at >= _TELL_EVERY_S:
                told_at = loop.time()
                logger.info("this controller is not a voter yet: %s", outcome.message)
        await asyncio.sleep(_JOIN_AGAIN_S)


def _text(endpoints: Sequence[VoterEndpoint]) -> str:
    return ", ".join(str(Address(each.host, each.port)) for each in endpoints)


async def _apply(
    quorum: Asker, own: ReplicaKey, endpoints: Sequence[VoterEndpoint], voter: Voter | None
) -> ErrorCode:
    listeners = [Listener(name=each.name, host=each.host, port=each.port) for each in endpoints]
    request: Request
    if voter is not None and voter.key == own:
        request = UpdateRaftVoterRequest(
            cluster_id=quorum.cluster_id,
            current_leader_epoch=quorum.epoch,
            voter_id=own.id,
            voter_directory_id=own.directory_id,
            listeners=listeners,
            k_raft_version_feature=KRaftVersionFeature(max_supported_version=KRAFT_VERSION_MAX),
        )
    elif voter is not None:
        # This node's disk was replaced: the replica that was on the old one is gone for good.
        request = RemoveRaftVoterRequest(
            cluster_id=quorum.cluster_id, voter_id=own.id, voter_directory_id=voter.key.directory_id
        )
    else:
        request = AddRaftVoterRequest(
            cluster_id=quorum.cluster_id,
            timeout_ms=_JOIN_TIMEOUT_MS,
            voter_id=own.id,
            voter_directory_id=own.directory_id,
            listeners=listeners,
        )
    try:
        response = await quorum.ask_leader(request)
    except (PeerUnavailable, ProtocolError, TimeoutError):
        return ErrorCode.BROKER_NOT_AVAILABLE
    return ErrorCode(getattr(response, "error_code", ErrorCode.UNKNOWN_SERVER_ERROR))
