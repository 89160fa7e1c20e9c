"""Requests to the quorum that are not answered yet: each is the machine's token for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from tidemill.broker.net.network import Part, Peer
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api import data, quorum
from tidemill.protocol.schema import Request, Response, encode
from tidemill.raft import events as on


class Call(Protocol):
    """A request of another node that waits for its answer."""

    @property
    def connection(self) -> Peer: ...
    @property
    def version(self) -> int: ...
    @property
    def is_wanted(self) -> bool: ...
    def respond(self, body: Sequence[Part]) -> None: ...


class Owner(Protocol):
    """The quorum."""

    def complete(self, waiting: Waiting, response: Response) -> None:
        """It is answered: fill in what the machine does not know."""

    def forget(self, waiting: Waiting) -> None:
        """Drop a waiting request whose answer is no longer needed."""


class Waiting(Protocol):
    """A request that is not answered yet: the machine's token."""

    def answered(self, response: Response) -> None: ...
    def dismiss(self) -> None:
        """No answer will come: this node stops."""


class WaitingTask:
    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def answered(self, response: Response) -> None:
        self._owner.complete(self, response)
        if not self.response.done():
            self.response.set_result(response)

    def dismiss(self) -> None:
        if not self.response.done():
            self.response.set_exception(ApiError(ErrorCode.NOT_CONTROLLER))


class WaitingCall:
    def __init__(self, owner: Owner, call: Call) -> None:
        self._owner = owner
        self._call = call

    def answered(self, response: Response) -> None:
        self._owner.complete(self, response)
        if self._call.is_wanted:
            self._call.connection.close_callbacks.remove(self.abandon)
            self._call.respond((encode(response, self._call.version),))

    def abandon(self) -> None:
        self._owner.forget(self)

    def dismiss(self) -> None:
        if self._call.is_wanted:
            self._call.connection.close("this node stops")


def leaders(request: quorum.BeginQuorumEpochRequest) -> list[int]:
    return [part.leader_id for topic in request.topics for part in topic.partitions]


def event_of(token: Waiting, request: Request, *, is_proven: bool) -> on.Event:
    match request:
        case quorum.VoteRequest():
            return on.VoteRequested(token, request)
        case quorum.BeginQuorumEpochRequest():
            return on.BeginQuorumEpochReceived(token, request)
        case quorum.EndQuorumEpochRequest():
            return on.EndQuorumEpochReceived(token, request)
        case quorum.FetchSnapshotRequest():
            return on.FetchSnapshotRequested(token, request, is_proven)
        case quorum.DescribeQuorumRequest():
            return on.DescribeQuorumRequested(token, request)
        case quorum.AddRaftVoterRequest():
            return on.AddVoterRequested(token, request)
        case quorum.RemoveRaftVoterRequest():
            return on.RemoveVoterRequested(token, request)
        case quorum.UpdateRaftVoterRequest():
            return on.UpdateVoterRequested(token, request)
        case data.FetchRequest():
            return on.FetchRequested(token, request, is_proven)
    raise ApiError(ErrorCode.INVALID_REQUEST, f"{type(request).__name__} is not the quorum's")
