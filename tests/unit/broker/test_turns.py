"""Connections share the loop in turns: no client waits for all the work of others. On both loops."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from time import perf_counter

import pytest

from tests.unit.broker.scripted_peer import LOOPS, run_in
from tidemill.broker.net.network import Peer, ServerLimits
from tidemill.broker.net.server import Server

# More than the broker needs for most requests: a turn has room for a few of them.
WORK_S = 0.0003
HOGS = 10
REQUESTS = 400
LIMITS = ServerLimits(
    frame_bytes_max=1 << 20, connections_max=1000, connections_per_ip_max=1000, idle_ms_max=600_000
)
HOG, INNOCENT, NODE = b"hog", b"innocent", b"node"

pytestmark = pytest.mark.parametrize("loop_name", LOOPS)


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def work() -> None:
    until_s = perf_counter() + WORK_S
    while perf_counter() < until_s:
        pass


class Broker:
    """Answers each frame, a hog's after some work, and notes whose it was."""

    def __init__(self) -> None:
        self.server = Server(asyncio.get_running_loop(), self._dispatch, LIMITS)
        self.port = self.server.bind("A", "127.0.0.1", 0)
        self.handled: list[bytes] = []
        self.changed = asyncio.Event()
        self.on_handled: Callable[[], None] = lambda: None
        self._sockets: list[socket.socket] = []

    def _dispatch(self, peer: Peer, frame: memoryview) -> None:
        payload = bytes(frame)
        if payload == NODE:
            peer.mark_as_node()
        if payload != INNOCENT:
            work()
        peer.expect_reply().send((framed(payload),))
        self.handled.append(payload)
        self.changed.set()
        self.on_handled()

    def connect(self, *payloads: bytes) -> socket.socket:
        """A client that sends all at once. Its requests are in the kernel when this returns."""
        client = socket.create_connection(("127.0.0.1", self.port))
        self._sockets.append(client)
        client.sendall(b"".join(framed(payload) for payload in payloads))
        return client

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    def close(self) -> None:
        self.server.close()
        for client in self._sockets:
            client.close()


def test_a_client_does_not_wait_for_all_that_others_have_sent(loop_name: str) -> None:
    async def scenario() -> None:
        broker = Broker()
        for _ in range(HOGS):
            broker.connect(*[HOG] * REQUESTS)
        broker.connect(INNOCENT)
        broker.server.start_accepting("A")
        await broker.until(lambda: INNOCENT in broker.handled)
        before = broker.handled.index(INNOCENT)
        await broker.until(lambda: len(broker.handled) == HOGS * REQUESTS + 1)
        broker.close()
        # One turn of each is some 30 requests.
        assert before < HOGS * REQUESTS / 10

    run_in(loop_name, scenario())


def test_busy_clients_take_turns(loop_name: str) -> None:
    """Each is done with half of its requests before any other is done with all."""

    async def scenario() -> None:
        broker = Broker()
        names = [b"a", b"b", b"c"]
        for name in names:
            broker.connect(*[name] * REQUESTS)
        broker.server.start_accepting("A")
        await broker.until(lambda: len(broker.handled) == len(names) * REQUESTS)
        broker.close()
        first_done = min(_nth(broker.handled, name, REQUESTS) for name in names)
        assert max(_nth(broker.handled, name, REQUESTS // 2) for name in names) < first_done

    run_in(loop_name, scenario())


def _nth(handled: list[bytes], name: bytes, count: int) -> int:
    """The place of that name's `count`th request."""
    return [place for place, each in enumerate(handled) if each == name][count - 1]


def test_a_node_does_not_wait_in_line_with_clients(loop_name: str) -> None:
    """Sixty clients wait. What a node sends meanwhile comes before most of them have had a turn."""
    clients = 60

    async def scenario() -> None:
        broker = Broker()
        broker.server.start_accepting("A")
        node = broker.connect(NODE)
        await broker.until(lambda: NODE in broker.handled)
        broker.handled.clear()
        for _ in range(clients):
            broker.connect(*[HOG] * 20)

        def send_once() -> None:
            if broker.handled.count(HOG) == clients:
                node.sendall(framed(NODE))

        broker.on_handled = send_once
        await broker.until(lambda: NODE in broker.handled)
        waited = broker.handled.index(NODE) - clients
        broker.close()
        # A round is some 13 requests; a turn of each of the others would be some 180.
        assert waited < clients

    run_in(loop_name, scenario())


def test_busy_nodes_leave_clients_their_turns(loop_name: str) -> None:
    async def scenario() -> None:
        broker = Broker()
        for _ in range(HOGS):
            broker.connect(*[NODE] * REQUESTS)
        broker.connect(INNOCENT)
        broker.server.start_accepting("A")
        await broker.until(lambda: INNOCENT in broker.handled)
        before = broker.handled.index(INNOCENT)
        broker.close()
        assert before < HOGS * REQUESTS / 10

    run_in(loop_name, scenario())
