"""Links over real sockets, on both loops, and listeners that open one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from tests.unit.broker.scripted_peer import LOOPS, run_in
from tidemill.broker.net import sockets
from tidemill.broker.net.network import Address, Link, Peer, ServerLimits
from tidemill.broker.net.sockets import SocketNetwork
from tidemill.errors import ConfigError

FRAME_BYTES_MAX = 64 << 20

pytestmark = pytest.mark.parametrize("loop_name", LOOPS)


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def numbered(size: int) -> bytes:
    """Bytes of which each stretch differs from its neighbours."""
    return b"".join(struct.pack(">i", n) for n in range(size // 4 + 1))[:size]


class Listener:
    """A bare TCP server: the test holds the accepted stream."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._done = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted.put_nowait((reader, writer))
        await self._done.wait()
        writer.close()

    def done(self) -> None:
        self._done.set()


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Listener, Address]]:
    listener = Listener()
    server = await asyncio.start_server(listener.serve, "127.0.0.1", 0)
    try:
        yield listener, Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        listener.done()
        server.close()
        await server.wait_closed()


class Dialled:
    """A link with what it reported."""

    def __init__(self, address: Address, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.reasons: list[str] = []
        self.closed = asyncio.Event()
        network = SocketNetwork(asyncio.get_running_loop())
        self.link: Link = network.connect(
            address, self._on_frame, self._on_close, frame_bytes_max=frame_bytes_max
        )

    def _on_frame(self, frame: memoryview) -> None:
        self.frames.put_nowait(bytes(frame))

    def _on_close(self, reason: str) -> None:
        self.reasons.append(reason)
        self.closed.set()


async def settle() -> None:
    """Let the loop run what is due."""
    for _ in range(5):
        await asyncio.sleep(0)


def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_frames_sent_before_the_link_is_up_arrive_in_order(loop_name: str) -> None:
    async def scenario() -> None:
        async with listening() as (listener, address):
            dialled = Dialled(address)
            frames = [framed(f"frame {n}".encode()) for n in range(100)]
            for frame in frames:
                dialled.link.send(frame)
            reader, _writer = await listener.accepted.get()
            sent = b"".join(frames)
            assert await reader.readexactly(len(sent)) == sent
            dialled.link.close()

    run_in(loop_name, scenario())


def test_a_frame_in_pieces_of_one_byte_is_one_frame(loop_name: str) -> None:
    async def scenario() -> None:
        async with listening() as (listener, address):
            dialled = Dialled(address)
            _reader, writer = await listener.accepted.get()
            for byte in framed(b"in pieces") + framed(b"again"):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            assert await dialled.frames.get() == b"in pieces"
            assert await dialled.frames.get() == b"again"
            dialled.link.close()

    run_in(loop_name, scenario())


def test_huge_frames_between_small_ones_arrive_whole(loop_name: str) -> None:
    async def scenario() -> None:
        async with listening() as (listener, address):
            dialled = Dialled(address)
            _reader, writer = await listener.accepted.get()
            payloads = [b"small", numbered(20 << 20), b"x" * 70_000, b"small again", numbered(3 << 20)]
            writer.write(b"".join(framed(payload) for payload in payloads))
            for payload in payloads:
                assert await dialled.frames.get() == payload
            dialled.link.close()

    run_in(loop_name, scenario())


def test_bytes_that_the_socket_does_not_take_at_once_are_sent_later(loop_name: str) -> None:
    async def scenario() -> None:
        async with listening() as (listener, address):
            dialled = Dialled(address)
            frames = [framed(numbered(5 << 20)), framed(b"small"), framed(numbered(1 << 20)), framed(b"last")]
            reader, _writer = await listener.accepted.get()
            await settle()
            for frame in frames:
                dialled.link.send(frame)
            sent = b"".join(frames)
            assert await reader.readexactly(len(sent)) == sent
            dialled.link.send(framed(b"direct"))
            assert await reader.readexactly(10) == framed(b"direct")
            dialled.link.close()

    run_in(loop_name, scenario())


def test_peer_that_reads_nothing_loses_the_link(loop_name: str) -> None:
    async def scenario() -> None:
        async with listening() as (listener, address):
            dialled = Dialled(address)
            await listener.accepted.get()
            frame = framed(bytes(8 << 20))
            for _ in range(10):
                dialled.link.send(frame)
            await dialled.closed.wait()
            assert dialled.link.is_closed
            assert len(dialled.reasons) == 1
            assert "takes nothing" in dialled.reasons[0]

    run_in(loop_name, scenario())


def test_a_peer_that_closes_in_the_middle_of_a_frame_is_reported_once(loop_name: str) -> None:
    async def scenario() -> None:
        async with listening() as (listener, address):
            dialled = Dialled(address)
            _reader, writer = await listener.accepted.get()
            writer.write(framed(b"whole") + framed(b"cut off here")[:-3])
            writer.close()
            await dialled.closed.wait()
            await settle()
            assert dialled.frames.get_nowait() == b"whole"
            assert dialled.frames.empty()
            assert dialled.reasons == ["the other side closed the connection"]
            dialled.link.send(framed(b"to nobody"))

    run_in(loop_name, scenario())


@pytest.mark.parametrize("size", [0, -1, 1001, 0x7FFFFFFF])
def test_impossible_frame_length_closes_the_link(loop_name: str, size: int) -> None:
    async def scenario() -> None:
        async with listening() as (listener, address):
            dialled = Dialled(address, frame_bytes_max=1000)
            _reader, writer = await listener.accepted.get()
            writer.write(framed(b"fine") + struct.pack(">i", size) + b"rest")
            await dialled.closed.wait()
            assert dialled.frames.get_nowait() == b"fine"
            assert str(size) in dialled.reasons[0]

    run_in(loop_name, scenario())


def test_a_refused_connection_is_reported_after_connect_has_returned(loop_name: str) -> None:
    async def scenario() -> None:
        dialled = Dialled(Address("127.0.0.1", unused_port()))
        assert dialled.reasons == []
        dialled.link.send(framed(b"lost"))
        await dialled.closed.wait()
        assert dialled.reasons == ["Connection refused"]

    run_in(loop_name, scenario())


def test_a_name_that_does_not_exist_is_named(loop_name: str) -> None:
    async def scenario() -> None:
        dialled = Dialled(Address("no-such-host.invalid", 9092))
        await dialled.closed.wait()
        assert len(dialled.reasons) == 1
        assert "no-such-host.invalid" in dialled.reasons[0]

    run_in(loop_name, scenario())


def test_a_name_is_tried_at_each_of_its_addresses(loop_name: str) -> None:
    async def scenario() -> None:
        async with listening() as (listener, (_host, port)):
            # Where localhost is ::1 first, nothing listens there.
            dialled = Dialled(Address("localhost", port))
            _reader, writer = await listener.accepted.get()
            writer.write(framed(b"found"))
            assert await dialled.frames.get() == b"found"
            dialled.link.close()

    run_in(loop_name, scenario())


def test_a_peer_that_does_not_accept_is_given_up(loop_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_CONNECT_S_MAX", 0.05)

    async def scenario() -> None:
        # A listener whose backlog is full: the kernel drops further SYNs.
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            address = Address("127.0.0.1", full.getsockname()[1])
            waiting = [Dialled(address) for _ in range(4)]
            await asyncio.wait(
                [asyncio.create_task(each.closed.wait()) for each in waiting], return_when="FIRST_COMPLETED"
            )
            failed = [each for each in waiting if each.reasons]
            assert all("no connection within" in each.reasons[0] for each in failed)
            for each in waiting:
                each.link.close()

    run_in(loop_name, scenario())


def test_no_callback_comes_after_close(loop_name: str) -> None:
    async def scenario() -> None:
        async with listening() as (listener, address):
            open_link, failing = Dialled(address), Dialled(address)
            _reader, writer = await listener.accepted.get()
            await listener.accepted.get()
            await settle()
            open_link.link.close()
            writer.write(framed(b"too late"))
            # It has failed already, and its report is under way.
            failing.link.send(framed(bytes(33 << 20)))
            failing.link.send(framed(bytes(33 << 20)))
            assert failing.link.is_closed
            failing.link.close()
            looking_up = Dialled(Address("localhost", address.port))
            await asyncio.sleep(0)
            looking_up.link.close()
            looking_up.link.close()
            await settle()
            for each in (open_link, failing, looking_up):
                assert each.link.is_closed
                assert each.reasons == []
                assert each.frames.empty()

    run_in(loop_name, scenario())


def test_a_callback_may_close_its_link_between_two_frames(loop_name: str) -> None:
    async def scenario() -> None:
        async with listening() as (listener, address):
            taken: list[bytes] = []
            links: list[Link] = []

            def take(frame: memoryview) -> None:
                taken.append(bytes(frame))
                links[0].close()

            network = SocketNetwork(asyncio.get_running_loop())
            links.append(network.connect(address, take, pytest.fail, frame_bytes_max=100))
            reader, writer = await listener.accepted.get()
            writer.write(framed(b"first") + framed(b"second"))
            assert await reader.read() == b""
            assert taken == [b"first"]

    run_in(loop_name, scenario())


# -- listening ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(
    dispatch: Callable[[Peer, memoryview], None],
    *names: str,
    per_ip_max: int = 10,
    per_ip_overrides: Mapping[str, int] | None = None,
) -> AsyncIterator[tuple[Callable[[str], None], list[Address]]]:
    limits = ServerLimits(
        frame_bytes_max=1000,
        connections_max=10,
        connections_per_ip_max=per_ip_max,
        idle_ms_max=60_000,
        connections_per_ip_overrides=per_ip_overrides or {},
    )
    server = SocketNetwork(asyncio.get_running_loop()).listen(dispatch, limits)
    try:
        yield (
            server.start_accepting,
            [Address("127.0.0.1", server.bind(name, "127.0.0.1", 0)) for name in names],
        )
    finally:
        server.close()


def test_listener_accepts_after_start_accepting(loop_name: str) -> None:
    """Connections that were opened before are answered then."""

    async def scenario() -> None:
        asked: list[tuple[str, bytes]] = []

        def dispatch(peer: Peer, frame: memoryview) -> None:
            asked.append((peer.listener_name, bytes(frame)))
            peer.expect_reply().send((framed(b"reply to " + bytes(frame)),))

        async with serving(dispatch, "CONTROLLER", "PLAINTEXT") as (start_accepting, addresses):
            to_controller, to_broker = (Dialled(address) for address in addresses)
            to_broker.link.send(framed(b"broker"))
            to_controller.link.send(framed(b"controller"))
            start_accepting("CONTROLLER")
            assert await to_controller.frames.get() == b"reply to controller"
            assert asked == [("CONTROLLER", b"controller")]
            start_accepting("PLAINTEXT")
            assert await to_broker.frames.get() == b"reply to broker"
            assert asked[1:] == [("PLAINTEXT", b"broker")]
            to_broker.link.close()
            to_controller.link.close()

    run_in(loop_name, scenario())


@pytest.mark.parametrize(
    ("per_ip_max", "overrides", "served"),
    [
        (10, {"127.0.0.1": 1}, 1),
        (1, {"localhost": 2}, 2),
        (1, {"::ffff:127.0.0.1": 3}, 3),
        (2, {"192.0.2.7": 0}, 2),
    ],
)
def test_overrides_of_connections_per_ip_apply_to_their_hosts(
    loop_name: str, per_ip_max: int, overrides: dict[str, int], served: int
) -> None:
    async def scenario() -> None:
        def dispatch(peer: Peer, _frame: memoryview) -> None:
            peer.expect_reply().send((framed(b"yes"),))

        limits = {"per_ip_max": per_ip_max, "per_ip_overrides": overrides}
        async with serving(dispatch, "A", **limits) as (start_accepting, (address,)):  # type: ignore[arg-type]
            start_accepting("A")
            answered = 0
            writers = []
            for _ in range(4):
                reader, writer = await asyncio.open_connection(*address)
                writers.append(writer)
                writer.write(framed(b"there?"))
                with contextlib.suppress(ConnectionError):
                    answered += await reader.read(4) != b""
            assert answered == served
            for writer in writers:
                writer.close()

    run_in(loop_name, scenario())


def test_override_for_a_host_without_an_address_stops_the_start(loop_name: str) -> None:
    limits = ServerLimits(1000, 10, 10, 60_000, connections_per_ip_overrides={"x" * 64: 5})

    async def scenario() -> None:
        with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip\.overrides names xxx"):
            SocketNetwork(asyncio.get_running_loop()).listen(lambda _peer, _frame: None, limits)

    run_in(loop_name, scenario())


def test_a_server_that_closes_ends_its_links(loop_name: str) -> None:
    async def scenario() -> None:
        async with serving(lambda peer, _frame: peer.expect_reply().send((framed(b"yes"),)), "A") as (
            start_accepting,
            (address,),
        ):
            start_accepting("A")
            dialled = Dialled(address)
            dialled.link.send(framed(b"there?"))
            assert await dialled.frames.get() == b"yes"
        await dialled.closed.wait()
        assert dialled.link.is_closed

    run_in(loop_name, scenario())
