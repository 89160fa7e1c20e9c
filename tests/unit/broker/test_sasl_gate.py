"""The gate of a listener with SASL: what a peer sends behind a failed login changes nothing."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest

from tests.unit.broker.scripted_peer import LOOPS, run_in
from tests.wire import messages
from tidemill.broker.clock import Clock
from tidemill.broker.net.network import Dispatch, Entrance, Peer, ServerLimits
from tidemill.broker.net.server import Server
from tidemill.broker.requests.security.sasl import SaslGate
from tidemill.security.plain import PlainServer, PlainUsers
from tidemill.security.sasl import SaslServerSettings

LIMITS = ServerLimits(
    frame_bytes_max=1 << 20, connections_max=10, connections_per_ip_max=10, idle_ms_max=600_000
)
AN_HOUR_MS = 3_600_000
WRONG = b"\0alice\0wrong"


class _Wall:
    def wall_ms(self) -> int:
        return 1_700_000_000_000


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def handshake(version: int) -> bytes:
    return messages.request("sasl_handshake", version, 1, mechanism="PLAIN")


def wrong_login(version: int) -> bytes:
    if version == 0:
        return handshake(0) + framed(WRONG)
    return handshake(1) + messages.request("sasl_authenticate", 2, 2, auth_bytes=WRONG)


BEHIND = {
    "the same token again": framed(WRONG),
    "many tokens": framed(WRONG) * 2_000,
    "another login": messages.request("sasl_authenticate", 2, 3, auth_bytes=WRONG),
    "another handshake": handshake(1),
    "an unknown API": framed(struct.pack(">hhih", 999, 0, 3, -1)),
    "a request that needs a login": messages.request("metadata", 12, 3, topics=[]),
    "a frame without a header": framed(b"\0"),
    "a frame that is too large": struct.pack(">i", 1 << 30),
}


class Door:
    """A listener with SASL; `peers` has the connections whose frames came to the gate."""

    def __init__(self, server: Server, port: int, peers: list[Peer]) -> None:
        self.server = server
        self.port = port
        self.peers = peers

    async def connect(self) -> socket.socket:
        client = socket.socket()
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.port))
        return client


@asynccontextmanager
async def door(failed_delay_ms: int) -> AsyncIterator[Door]:
    loop = asyncio.get_running_loop()
    users = PlainUsers({"alice": "secret"})
    settings = SaslServerSettings({"PLAIN": lambda _: PlainServer(users)})
    peers: list[Peer] = []

    def answer(peer: Peer, frame: memoryview) -> None:
        peer.expect_reply().send((framed(b"served"),))

    gate = SaslGate(settings, answer, loop, Clock(_Wall(), loop.time), lambda: "nonce", failed_delay_ms)

    def dispatch(peer: Peer, frame: memoryview) -> None:
        if peer not in peers:
            peers.append(peer)
        gate.dispatch(peer, frame)

    async with serving(dispatch) as (server, port):
        yield Door(server, port, peers)


@asynccontextmanager
async def serving(dispatch: Dispatch) -> AsyncIterator[tuple[Server, int]]:
    server = Server(asyncio.get_running_loop(), dispatch, LIMITS)
    port = server.bind("SASL", "127.0.0.1", 0, Entrance(login_bytes_max=1 << 16))
    server.start_accepting("SASL")
    try:
        yield server, port
    finally:
        server.close()


async def receive(client: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = await asyncio.get_running_loop().sock_recv(client, size - len(received))
        assert chunk, "the connection ended"
        received += chunk
    return received


async def receive_frame(client: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", await receive(client, 4))
    return await receive(client, size)


async def is_served(door: Door) -> bool:
    with await door.connect() as client:
        await asyncio.get_running_loop().sock_sendall(client, messages.request("api_versions", 2, 1))
        return await receive_frame(client) == b"served"


async def _sends_behind_a_failed_login(version: int, behind: bytes, *, at_once: bool) -> None:
    loop = asyncio.get_running_loop()
    async with door(AN_HOUR_MS) as listener:
        with await listener.connect() as guess:
            await loop.sock_sendall(guess, wrong_login(version) + (behind if at_once else b""))
            await receive_frame(guess)
            if not at_once:
                await loop.sock_sendall(guess, behind)
            # Each answer comes behind what was sent before.
            for _ in range(3):
                assert await is_served(listener)
            assert not listener.peers[0].is_closed


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "later"])
@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
@pytest.mark.parametrize("version", [0, 1])
def test_delay_of_a_failed_login_is_not_cut_short_by_what_comes_behind_it(
    version: int, behind: bytes, at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run_in("asyncio", _sends_behind_a_failed_login(version, behind, at_once=at_once))
    assert caplog.messages == []


async def _is_closed_after(scenario: Callable[[], bytes], failed_delay_ms: int) -> None:
    loop = asyncio.get_running_loop()
    async with door(failed_delay_ms) as listener:
        with await listener.connect() as guess:
            await loop.sock_sendall(guess, scenario())
            await receive_frame(guess)
            while await loop.sock_recv(guess, 4096):
                pass


@pytest.mark.parametrize("version", [0, 1])
def test_failed_login_closes_the_connection_after_the_delay(
    version: int, caplog: pytest.LogCaptureFixture
) -> None:
    run_in("asyncio", _is_closed_after(partial(wrong_login, version), 1))
    (line,) = caplog.messages
    assert "its login failed: Authentication failed: Invalid username or password" in line


async def _gate_raises(count: int) -> None:
    loop = asyncio.get_running_loop()

    def dispatch(peer: Peer, frame: memoryview) -> None:
        raise RuntimeError("a bug\nof the gate")

    async with serving(dispatch) as (_, port):
        with socket.socket() as client:
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, framed(b"request") * count)
            with suppress(ConnectionError):
                assert await loop.sock_recv(client, 1) == b""


@pytest.mark.parametrize("loop_name", LOOPS)
def test_exception_of_a_gate_closes_the_connection_with_one_log_line(
    loop_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run_in(loop_name, _gate_raises(100))
    (record,) = (each for each in caplog.records if "could not be handled" in each.message)
    assert "closed the connection of 127.0.0.1:" in record.message
    assert record.exc_info is not None
    assert "a bug" in str(record.exc_info[1])
