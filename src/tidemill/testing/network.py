"""The network seam of a test broker: applies faults between a client's connection and the dispatcher.

A request without a matching fault passes unchanged. Otherwise it is dispatched with a wrapped connection that loses,
delays or changes the response, or it is rejected here and never reaches the broker. Only the clients' listener is
wrapped; requests between brokers have their own listeners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.broker.net.network import (
    OPEN,
    Address,
    Entrance,
    Link,
    Listening,
    Network,
    Part,
    Peer,
    ServerLimits,
)
from tidemill.broker.requests.calls import Call
from tidemill.errors import ProtocolError
from tidemill.log.files import FileSlice
from tidemill.protocol import api as apis
from tidemill.protocol.api.cluster import MetadataRequest
from tidemill.protocol.api.data import FetchRequest, ProduceRequest
from tidemill.protocol.frames import has_flexible_response_header, parse_request_header
from tidemill.protocol.schema import Request, decode, encode
from tidemill.security.principals import Principal
from tidemill.testing.faults import Fault, Faults, Strike
from tidemill.testing.refusals import NameOf, refusal, refused_metadata, topics_of
from tidemill.tls.contexts import TlsContexts

if TYPE_CHECKING:
    from tidemill.broker.net.network import Reply

CLIENT_LISTENER = "CLIENTS"
# The client id of the fixture's own operations, which faults do not strike.
HELPER_CLIENT_ID = "tidemill.testing"

Dispatch = Callable[[Peer, memoryview], None]


class FaultyNetwork:
    """A `Network` that wraps the real one."""

    def __init__(
        self, network: Network, faults: Faults, name_of: NameOf, session_topics: Callable[[int], set[str]]
    ) -> None:
        """`session_topics` returns the topics of an incremental fetch, which names none."""
        self._network = network
        self._faults = faults
        self._name_of = name_of
        self._session_topics = session_topics
        self._clients: dict[Peer, None] = {}

    def listen(self, dispatch: Dispatch, limits: ServerLimits) -> Listening:
        return _FaultyListening(self._network.listen(self._faulty(dispatch), limits), self._faulty)

    def _faulty(self, dispatch: Dispatch) -> Dispatch:
        return lambda peer, frame: self._handle(dispatch, peer, frame)

    def connect(
        self,
        address: Address,
        on_frame: Callable[[memoryview], None],
        on_close: Callable[[str], None],
        *,
        frame_bytes_max: int,
        tls: TlsContexts | None = None,
    ) -> Link:
        return self._network.connect(address, on_frame, on_close, frame_bytes_max=frame_bytes_max, tls=tls)

    def disconnect_all(self) -> int:
        clients = list(self._clients)
        for client in clients:
            client.close(None)
        return len(clients)

    def _handle(self, dispatch: Dispatch, peer: Peer, frame: memoryview) -> None:
        if peer.listener_name != CLIENT_LISTENER:
            dispatch(peer, frame)
            return
        try:
            header = parse_request_header(frame)
        except ProtocolError:
            # Garbage, or a bare token of an old SASL handshake: both are the broker's to judge.
            dispatch(peer, frame)
            return
        if header.client_id == HELPER_CLIENT_ID:
            dispatch(peer, frame)
            return
        self._note(peer)
        request = None
        if self._faults.concerns(header.api_key):
            request = _decoded(header.api_key, header.api_version, frame, header.body_position)
        if request is None or (isinstance(request, ProduceRequest) and request.acks == 0):
            dispatch(peer, frame)
            return
        fault = self._faults.take(header.api_key, lambda: self._topics(request))
        if fault is None:
            dispatch(peer, frame)
        elif fault.strike is Strike.REFUSE and not isinstance(request, MetadataRequest):
            is_flexible = has_flexible_response_header(header.api_key, header.api_version)
            call = Call(peer, header, frame, is_flexible)
            call.expect_reply()
            call.respond((encode(refusal(request, header.api_version, fault.error), header.api_version),))
        else:
            dispatch(_StruckPeer(peer, fault, header.api_version), frame)

    def _note(self, peer: Peer) -> None:
        if peer not in self._clients:
            self._clients[peer] = None
            peer.close_callbacks.append(lambda: self._clients.pop(peer, None))

    def _topics(self, request: Request) -> set[str]:
        topics = topics_of(request, self._name_of)
        if isinstance(request, FetchRequest) and request.session_id:
            topics |= self._session_topics(request.session_id)
        return topics


def _decoded(api_key: int, version: int, frame: memoryview, position: int) -> Request | None:
    """The decoded request; None when the dispatcher will reject it."""
    request = apis.REQUESTS.get(api_key)
    if request is None or version not in request.versions:
        return None
    try:
        return decode(request, version, frame, position)
    except ProtocolError:
        return None


class _FaultyListening:
    """A `Listening` whose listeners with a login have faults, too."""

    def __init__(self, listening: Listening, faulty: Callable[[Dispatch], Dispatch]) -> None:
        self._listening = listening
        self._faulty = faulty

    def bind(self, name: str, host: str, port: int, entrance: Entrance = OPEN) -> int:
        if entrance.dispatch is not None:
            entrance = replace(entrance, dispatch=self._faulty(entrance.dispatch))
        return self._listening.bind(name, host, port, entrance)

    def start_accepting(self, name: str) -> None:
        self._listening.start_accepting(name)

    def configure(self, limits: ServerLimits) -> None:
        self._listening.configure(limits)

    def stop_listening(self) -> None:
        self._listening.stop_listening()

    def close(self) -> None:
        self._listening.close()


class _StruckPeer:
    """A connection whose next response is lost, delayed or changed. It equals that connection: a session is found by it."""

    def __init__(self, peer: Peer, fault: Fault, version: int) -> None:
        self._peer = peer
        self._fault = fault
        self._version = version

    def __hash__(self) -> int:
        return hash(self._peer)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._peer

    @property
    def peer(self) -> str:
        return self._peer.peer

    @property
    def principal(self) -> Principal:
        return self._peer.principal

    @principal.setter
    def principal(self, principal: Principal) -> None:
        self._peer.principal = principal

    def mark_as_authenticated(self) -> None:
        self._peer.mark_as_authenticated()

    @property
    def listener_name(self) -> str:
        return self._peer.listener_name

    @property
    def local_address(self) -> tuple[str, int]:
        return self._peer.local_address

    @property
    def is_closed(self) -> bool:
        return self._peer.is_closed

    @property
    def received_s(self) -> float:
        return self._peer.received_s

    @property
    def close_callbacks(self) -> list[Callable[[], None]]:
        return self._peer.close_callbacks

    def mark_as_node(self) -> None:
        self._peer.mark_as_node()

    def mute_for(self, throttle_ms: int) -> None:
        self._peer.mute_for(throttle_ms)

    def add_kept_bytes(self, count: int) -> None:
        self._peer.add_kept_bytes(count)

    def expect_reply(self) -> Reply:
        reply = self._peer.expect_reply()
        if self._fault.strike is Strike.LOSE_ANSWER:
            return _LostReply(self._peer)
        if self._fault.strike is Strike.REFUSE:
            return _RefusedMetadata(reply, self._fault, self._version)
        return _LateReply(reply, self._fault.delay_s)

    def close(self, reason: str | None) -> None:
        self._peer.close(reason)


class _LostReply:
    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def send(self, parts: Sequence[Part]) -> None:  # noqa: ARG002
        self._peer.close(None)


class _RefusedMetadata:
    def __init__(self, reply: Reply, fault: Fault, version: int) -> None:
        self._reply = reply
        self._fault = fault
        self._version = version

    def send(self, parts: Sequence[Part]) -> None:
        answer = b"".join(part.read() if isinstance(part, FileSlice) else part for part in parts)
        fault = self._fault
        self._reply.send([refused_metadata(answer, self._version, fault.topic, fault.error)])


class _LateReply:
    def __init__(self, reply: Reply, delay_s: float) -> None:
        self._reply = reply
        self._delay_s = delay_s

    def send(self, parts: Sequence[Part]) -> None:
        # A slice of a file stays readable; everything else may be a view of a buffer that changes meanwhile.
        kept = [bytes(part) if isinstance(part, memoryview) else part for part in parts]
        asyncio.get_running_loop().call_later(self._delay_s, self._reply.send, kept)
