"""One connection against a peer that misbehaves in every way a connection can notice."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from tidemill.client.connections.connection import Address, BrokerUnreachable, Connection, ConnectionLost
from tidemill.errors import ApiError, ErrorCode, ProtocolError
from tidemill.protocol import frames
from tidemill.protocol.api.cluster import (
    ApiVersion,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from tidemill.protocol.api.groups import ListGroupsRequest

# What to do with a request: the bytes to send back, or None to close.
Behaviour = Callable[[frames.RequestHeader], bytes | None]


class Peer:
    """Accepts one connection and treats each request with the next behaviour."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self.headers: list[frames.RequestHeader] = []
        self.frames: list[bytes] = []
        self._thread: threading.Thread | None = None

    def play(self, *behaviours: Behaviour) -> None:
        self._thread = threading.Thread(target=self._serve, args=(behaviours,))
        self._thread.start()

    def _serve(self, behaviours: tuple[Behaviour, ...]) -> None:
        connection, _ = self._listener.accept()
        with connection, connection.makefile("rb") as stream:
            for behave in behaviours:
                (size,) = struct.unpack(">i", stream.read(4))
                self.frames.append(stream.read(size))
                header = frames.parse_request_header(self.frames[-1])
                self.headers.append(header)
                answer = behave(header)
                if answer is None:
                    return
                connection.sendall(answer)
            # Silence, until the client gives up; it may leave without having read everything.
            with contextlib.suppress(ConnectionResetError):
                stream.read(1)

    def stop(self) -> None:
        self._listener.close()
        if self._thread is not None:
            self._thread.join(30)


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.stop()


def versions(*ranges: tuple[int, int, int]) -> Behaviour:
    offered = [ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in ranges]

    def behave(header: frames.RequestHeader) -> bytes:
        response = ApiVersionsResponse(api_keys=offered)
        return frames.response_frame(response, header.api_version, header.correlation_id)

    return behave


def too_new(header: frames.RequestHeader) -> bytes:
    response = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, max_version=0)])
    return frames.response_frame(response, 0, header.correlation_id)


def metadata(header: frames.RequestHeader) -> bytes:
    response = MetadataResponse(cluster_id="c")
    return frames.response_frame(response, header.api_version, header.correlation_id)


def test_the_highest_common_version_is_used(peer: Peer) -> None:
    peer.play(versions((3, 0, 5), (18, 0, 4)), metadata)
    with Connection(peer.address) as connection:
        assert connection.request(MetadataRequest(), MetadataResponse).cluster_id == "c"
    assert [(header.api_key, header.api_version) for header in peer.headers] == [(18, 3), (3, 5)]
    assert peer.headers[0].correlation_id != peer.headers[1].correlation_id


def test_a_body_in_many_large_parts_arrives_whole(peer: Peer) -> None:
    """More parts than the kernel takes at once, and more bytes than its buffer holds; some parts are empty."""
    body = [bytes([number % 256]) * (number % 5 * 3_000) for number in range(1_500)]
    received: list[bytes] = []

    def keep(header: frames.RequestHeader) -> bytes:
        received.append(peer.frames[-1][header.body_position :])
        return metadata(header)

    peer.play(versions((3, 0, 5)), keep)
    with Connection(peer.address) as connection:
        correlation_id = connection.post_body(MetadataRequest, 5, body)
        connection.take(correlation_id)
    assert received == [b"".join(body)]


def test_a_bound_lowers_the_version(peer: Peer) -> None:
    peer.play(versions((3, 0, 13)), metadata)
    with Connection(peer.address) as connection:
        connection.request(MetadataRequest(), MetadataResponse, max_version=4)
    assert peer.headers[1].api_version == 4


def test_older_broker_gets_an_older_api_versions_request(peer: Peer) -> None:
    peer.play(too_new, versions((3, 0, 2)), metadata)
    with Connection(peer.address) as connection:
        assert connection.version_of(MetadataRequest) == 2
        connection.request(MetadataRequest(), MetadataResponse)
    assert [header.api_version for header in peer.headers] == [3, 0, 2]


@pytest.mark.parametrize("offered", [(), ((16, 90, 91),)])
def test_an_api_without_a_common_version_is_refused_before_it_is_sent(
    peer: Peer, offered: tuple[tuple[int, int, int], ...]
) -> None:
    peer.play(versions(*offered))
    with Connection(peer.address) as connection, pytest.raises(ApiError, match="ListGroups") as caught:
        connection.version_of(ListGroupsRequest)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_connection_to_a_closed_port_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
    with pytest.raises(BrokerUnreachable, match=f"127.0.0.1:{address.port}: connection refused"):
        Connection(address)


def test_a_peer_that_does_not_speak_kafka(peer: Peer) -> None:
    peer.play(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(BrokerUnreachable, match="does not speak the Kafka protocol"):
        Connection(peer.address)


def test_a_connection_that_closes_before_the_answer(peer: Peer) -> None:
    peer.play(versions((3, 0, 5)), lambda _: None)
    with Connection(peer.address) as connection:
        with pytest.raises(ConnectionLost, match=r"closed the connection .*set security.protocol and sasl"):
            connection.request(MetadataRequest(), MetadataResponse)
        assert connection.is_closed


def test_a_connection_that_closes_later(peer: Peer) -> None:
    peer.play(versions((3, 0, 5)), metadata, lambda _: None)
    with Connection(peer.address) as connection:
        connection.request(MetadataRequest(), MetadataResponse)
        with pytest.raises(ConnectionLost, match=r"closed the connection$"):
            connection.request(MetadataRequest(), MetadataResponse)


def test_connection_closed_while_idle_is_not_usable(peer: Peer) -> None:
    """As a broker closes it after connections.max.idle.ms: the next request goes over a new connection."""

    def answer_late(header: frames.RequestHeader) -> bytes:
        answered.wait(30)
        return metadata(header)

    answered = threading.Event()
    peer.play(versions((3, 0, 5)), answer_late, lambda _: None)
    with Connection(peer.address) as connection:
        assert connection.is_usable()
        correlation_id = connection.post(MetadataRequest(), 5)
        answered.set()
        # The answer may be there already: it is what is waited for.
        assert connection.is_usable()
        connection.take(correlation_id)
        connection.send(MetadataRequest())
        peer.stop()
        assert not connection.is_usable()
        assert not connection.is_closed, "a question closes nothing"


def test_an_answer_that_does_not_come(peer: Peer) -> None:
    peer.play(versions((3, 0, 5)), lambda _: b"")
    with Connection(peer.address, timeout_s=0.1) as connection:
        with pytest.raises(ConnectionLost, match=r"no answer within 0\.1 s"):
            connection.request(MetadataRequest(), MetadataResponse)
        assert connection.is_closed


def test_an_answer_to_another_request(peer: Peer) -> None:
    peer.play(versions((3, 0, 5)), lambda header: metadata(header._replace(correlation_id=77)))
    with Connection(peer.address) as connection:
        with pytest.raises(ProtocolError, match="answered request 77"):
            connection.request(MetadataRequest(), MetadataResponse)
        assert connection.is_closed
