"""A simulated network in which any frame may be slow and any connection may break, on virtual time.

Implements `Network` of `broker/net/network.py` for simulated processes. The guarantees of TCP hold: the frames of one
direction of a connection arrive in order, each once, or the connection breaks. The rest is random: the latency of a
frame, the order between connections, and which frames in flight still arrive when a connection breaks. A lost packet
appears as delay. A lost connection appears as a request that its sender repeats on another one.

Directions between two hosts can be cut, one or both. Frames in flight then stall and continue after the cut is healed,
like retransmissions. A killed process resets its connections. A host without power sends nothing: its peers learn it
from a reset after it is up again, or from their own timeouts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from zlib import crc32

from tidemill.broker.net.connection import Reply
from tidemill.broker.net.network import OPEN, Address, Entrance, Link, Listening, Part, Peer, ServerLimits
from tidemill.broker.net.request_order import InFlight, Order, order_of
from tidemill.errors import ProtocolError
from tidemill.log.files import FileSlice
from tidemill.security.principals import ANONYMOUS
from tidemill.sim.platform.loops import Scheduler, SimulatedLoop
from tidemill.tls.contexts import TlsContexts

_EPHEMERAL_PORT_MIN = 40_000
_CONNECT_TIMEOUT_S = 20.0
_CONNECT_RETRY_S = 1.0
_LENGTH_BYTES = 4
# How long after a cut is healed, or a host is up again, the first retransmission arrives.
_RETRANSMIT_S_MAX = 2.0
_END = b""  # The end of one direction: in order after the last frame, or at once.


@dataclass(slots=True)
class Weather:
    """The properties of the network; they may change at any time."""

    latency_s_min: float = 0.0002
    latency_s_max: float = 0.001
    slow_share: float = 0.01
    slow_s_max: float = 0.1


class Wires:
    """The network as the world sees it: hosts, cuts, and every connection."""

    def __init__(self, scheduler: Scheduler, rng: Random, note: Callable[[str], None]) -> None:
        """`note` is called with every frame that arrives."""
        self.scheduler = scheduler
        self.weather = Weather()
        self.note = note
        self._rng = rng
        self._cuts: dict[tuple[str, str], None] = {}
        self._dark: dict[str, None] = {}
        self._connections: dict[Connection, None] = {}
        self._next_port = _EPHEMERAL_PORT_MIN
        self.listeners: dict[Address, _Listener] = {}
        # Directions with frames that wait for a cut to be healed.
        self.stalled: dict[Pipe, None] = {}

    def of(self, loop: SimulatedLoop, host: str) -> ProcessNetwork:
        return ProcessNetwork(self, loop, host)

    # -- faults ----------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Cut the direction from `source` to `target`; the other direction is not affected."""
        self._cuts[source, target] = None

    def heal(self, source: str, target: str) -> None:
        if self._cuts.pop((source, target), self) is self:
            return
        for pipe in list(self.stalled):
            if (pipe.source, pipe.target) == (source, target):
                del self.stalled[pipe]
                pipe.go_on(self._rng.uniform(0, _RETRANSMIT_S_MAX))

    def heal_all(self) -> None:
        for source, target in list(self._cuts):
            self.heal(source, target)

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def lose_power(self, host: str) -> None:
        self._dark[host] = None

    def regain_power(self, host: str) -> None:
        """A host is up again: peers that have sent frames meanwhile retransmit them and get a reset."""
        self._dark.pop(host, None)
        for connection in list(self._connections):
            connection.host_is_back(host, self._rng.uniform(0.05, _RETRANSMIT_S_MAX))

    def is_dark(self, host: str) -> bool:
        return host in self._dark

    def reset_some(self) -> str | None:
        """Reset one random connection. Returns its description."""
        if not self._connections:
            return None
        connection = self._rng.choice(list(self._connections))
        connection.break_off(self._rng.random() < 0.5)
        return str(connection)

    def process_died(self, loop: SimulatedLoop, *, is_silent: bool) -> None:
        for address, listener in list(self.listeners.items()):
            if listener.loop is loop:
                del self.listeners[address]
        for connection in list(self._connections):
            connection.process_died(loop, is_silent=is_silent, keeps_sent=self._rng.random() < 0.5)

    # -- for connections -------------------------------------------------------------------------------------

    def latency_s(self) -> float:
        weather, random = self.weather, self._rng.random
        if random() < weather.slow_share:
            return weather.latency_s_max + random() * weather.slow_s_max
        return weather.latency_s_min + random() * (weather.latency_s_max - weather.latency_s_min)

    def new_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def add(self, connection: Connection) -> None:
        self._connections[connection] = None

    def forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)


class Pipe:
    """One direction of a connection."""

    __slots__ = ("_arrives_s", "_on_item", "_stalled", "_wires", "loop", "source", "target")

    def __init__(
        self, wires: Wires, source: str, target: str, loop: SimulatedLoop, on_item: Callable[[bytes], None]
    ) -> None:
        """`on_item` runs in `loop` with each frame, and with `_END`."""
        self.source = source
        self.target = target
        self.loop = loop
        self._wires = wires
        self._on_item = on_item
        self._arrives_s = 0.0
        self._stalled: deque[bytes] = deque()

    def push(self, item: bytes) -> None:
        wires = self._wires
        scheduler = wires.scheduler
        self._arrives_s = max(self._arrives_s, scheduler.now_s + wires.latency_s())
        scheduler.at(self._arrives_s, lambda: self._arrive(item))

    def _arrive(self, item: bytes) -> None:
        wires = self._wires
        if self._stalled or wires.is_cut(self.source, self.target):
            self._stalled.append(item)
            wires.stalled[self] = None
        elif not wires.is_dark(self.target) and not self.loop.is_dead:
            wires.note(f"{self.source}>{self.target} {len(item)} {crc32(item):08x}")
            self.loop.call_soon(self._on_item, item)

    def go_on(self, delay_s: float) -> None:
        self._wires.scheduler.after(delay_s, self._go_on)

    def _go_on(self) -> None:
        stalled, self._stalled = self._stalled, deque()
        for item in stalled:
            self._arrive(item)

    def drop(self) -> None:
        """Drop all frames in flight."""
        self._on_item = _ignore
        self._stalled.clear()


def _ignore(_item: bytes) -> None:
    """Discard a frame: the receiver is gone."""


class Connection:
    """A connection with both ends and both directions."""

    def __init__(self, wires: Wires, link: SimulatedLink, peer: SimulatedPeer) -> None:
        self._wires = wires
        self._link = link
        self._peer = peer
        self._is_orphaned = False
        self._pushed_to: dict[str, None] = {}
        self.to_server = Pipe(wires, link.host, peer.host, peer.loop, peer.receive)
        self.to_client = Pipe(wires, peer.host, link.host, link.loop, link.receive)
        wires.add(self)

    def __str__(self) -> str:
        return f"{self._link.host}>{self._peer.host}"

    def send(self, pipe: Pipe, item: bytes) -> None:
        if self._is_orphaned:
            self._pushed_to[pipe.target] = None
            if not self._wires.is_dark(pipe.target):
                # A host that does not know the connection resets it.
                self._wires.scheduler.after(2 * self._wires.latency_s(), lambda: self._end_at(pipe.source))
            return
        pipe.push(item)

    def break_off(self, keeps_sent: bool) -> None:
        """Break the connection at both ends. Frames in flight arrive first or never."""
        self._wires.forget(self)
        if keeps_sent:
            self.to_server.push(_END)
            self.to_client.push(_END)
            return
        for pipe, end in ((self.to_server, self._peer), (self.to_client, self._link)):
            pipe.drop()
            _end(end)

    def process_died(self, loop: SimulatedLoop, *, is_silent: bool, keeps_sent: bool) -> None:
        ends = ((self._link, self.to_server, self._peer), (self._peer, self.to_client, self._link))
        for dead, pipe, other in ends:
            if dead.loop is not loop:
                continue
            if is_silent:
                self._is_orphaned = True
            elif keeps_sent:
                self._wires.forget(self)
                pipe.push(_END)
            else:
                self._wires.forget(self)
                pipe.drop()
                self._wires.scheduler.after(self._wires.latency_s(), partial(_end, other))

    def host_is_back(self, host: str, delay_s: float) -> None:
        if self._is_orphaned and host in self._pushed_to:
            other = self._link.host if self._peer.host == host else self._peer.host
            self._wires.scheduler.after(delay_s, lambda: self._end_at(other))

    def _end_at(self, host: str) -> None:
        self._wires.forget(self)
        _end(self._link if self._link.host == host else self._peer)

    def is_over(self) -> None:
        self._wires.forget(self)


def _end(side: SimulatedLink | SimulatedPeer) -> None:
    side.loop.call_soon(side.receive, _END)


class SimulatedLink:
    """The client's end: a `Link`."""

    def __init__(
        self,
        wires: Wires,
        loop: SimulatedLoop,
        host: str,
        address: Address,
        on_frame: Callable[[memoryview], None],
        on_close: Callable[[str], None],
    ) -> None:
        self.loop = loop
        self.host = host
        self.is_closed = False
        self._wires = wires
        self._address = address
        self._on_frame = on_frame
        self._on_close = on_close
        self._connection: Connection | None = None
        self._unsent: list[bytes] = []
        self._gives_up_s = wires.scheduler.now_s + _CONNECT_TIMEOUT_S
        wires.scheduler.after(wires.latency_s(), self._knock)

    def _knock(self) -> None:
        wires, address = self._wires, self._address
        if self.is_closed or self.loop.is_dead:
            return
        unreachable = (
            wires.is_cut(self.host, address.host)
            or wires.is_cut(address.host, self.host)
            or wires.is_dark(address.host)
        )
        if unreachable:
            if wires.scheduler.now_s >= self._gives_up_s:
                self.loop.call_soon(self._fail, "connecting timed out")
            else:
                wires.scheduler.after(_CONNECT_RETRY_S, self._knock)
            return
        listener = wires.listeners.get(address)
        if listener is None:
            wires.scheduler.after(
                wires.latency_s(), lambda: self.loop.call_soon(self._fail, "connection refused")
            )
            return
        peer = SimulatedPeer(listener, self.host, wires.new_port())
        connection = peer.connection = Connection(wires, self, peer)
        listener.knocked(peer)
        wires.scheduler.after(wires.latency_s(), lambda: self.loop.call_soon(self._connected, connection))

    def _connected(self, connection: Connection) -> None:
        self._connection = connection
        for frame in self._unsent:
            connection.send(connection.to_server, frame)
        self._unsent.clear()
        if self.is_closed:
            connection.send(connection.to_server, _END)
            connection.is_over()

    def _fail(self, reason: str) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._on_close(reason)

    def send(self, frame: bytes | bytearray) -> None:
        if self.is_closed:
            return
        data = bytes(frame)
        if self._connection is None:
            self._unsent.append(data)
        else:
            self._connection.send(self._connection.to_server, data)

    def receive(self, item: bytes) -> None:
        if self.is_closed:
            return
        if item == _END:
            if self._connection is not None:
                self._connection.is_over()
            self._fail("the connection was lost")
            return
        _hand_over(item, self._on_frame)

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._connection is not None:
            self._connection.send(self._connection.to_server, _END)
            self._connection.is_over()


class SimulatedPeer:
    """The server's end: a `Peer` for dispatch."""

    def __init__(self, listener: _Listener, client_host: str, client_port: int) -> None:
        self.loop = listener.loop
        self.host = listener.address.host
        self.peer = f"{client_host}:{client_port}"
        self.listener_name = listener.name
        self.local_address = (listener.address.host, listener.address.port)
        self.is_closed = False
        # Real time is not measured in the simulation.
        self.received_s = 0.0
        self.close_callbacks: list[Callable[[], None]] = []
        # TLS is not simulated: what it does to bytes is OpenSSL's business.
        self.principal = ANONYMOUS
        self.connection: Connection | None = None
        self._listener = listener
        self._replies: deque[Reply] = deque()
        self._in_flight = InFlight()
        # Requests that wait for earlier responses.
        self._held: deque[bytes] = deque()
        self._is_dispatching = False
        self._muted_until_s = 0.0
        # Frames that arrived before the listener accepted the connection.
        self._waiting: list[bytes] | None = []

    def accept(self) -> None:
        waiting, self._waiting = self._waiting, None
        for item in waiting or ():
            self.receive(item)

    def receive(self, item: bytes) -> None:
        if self.is_closed:
            return
        if self._waiting is not None:
            self._waiting.append(item)
        elif item == _END:
            self.close(None)
        elif len(item) - _LENGTH_BYTES > self._listener.frame_bytes_max:
            self.close(f"a request of {len(item)} bytes")
        else:
            self._held.append(item)
            self._dispatch_held()

    def _dispatch_held(self) -> None:
        if self._is_dispatching:
            return
        held = self._held
        self._is_dispatching = True
        try:
            while (
                held
                and self.loop.time() >= self._muted_until_s
                and self._in_flight.admits(order := order_of(memoryview(held[0])[_LENGTH_BYTES:]))
            ):
                _hand_over(held.popleft(), lambda frame: self._listener.dispatch(self, frame))
                self._note_unanswered(order)
        except ProtocolError as error:
            self.close(str(error))
        finally:
            self._is_dispatching = False

    def mute_for(self, throttle_ms: int) -> None:
        self._muted_until_s = max(self._muted_until_s, self.loop.time() + throttle_ms / 1000)
        self.loop.call_at(self._muted_until_s, self._dispatch_held)

    def mark_as_node(self) -> None:
        """Mark the peer as a node. Requests take no simulated time, so there is no queue to bypass."""

    def add_kept_bytes(self, _count: int) -> None:
        """Memory is not simulated."""

    def mark_as_authenticated(self) -> None:
        """Frames of any size are let in from the beginning."""

    def _note_unanswered(self, order: Order) -> None:
        newest = self._replies[-1] if self._replies else None
        if newest is not None and newest.parts is None and newest.order is None:
            newest.order = order
            self._in_flight.began(order)

    def expect_reply(self) -> Reply:
        reply = Reply(self)  # type: ignore[arg-type]
        self._replies.append(reply)
        return reply

    def reply_ready(self, reply: Reply, _parts: Sequence[Part]) -> None:
        if self.is_closed or self.connection is None:
            return
        if reply.order is not None:
            self._in_flight.ended(reply.order)
        self._send_replies(self.connection)
        self._dispatch_held()

    def _send_replies(self, connection: Connection) -> None:
        replies = self._replies
        while replies and (parts := replies[0].parts) is not None:
            replies.popleft()
            try:
                data = b"".join(_bytes_of(part) for part in parts)
            except OSError as error:
                self.close(str(error))
                return
            if data:
                connection.send(connection.to_client, data)

    def close(self, _reason: str | None) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._replies.clear()
        self._held.clear()
        for callback in self.close_callbacks:
            callback()
        self.close_callbacks.clear()
        self._listener.peers.pop(self, None)
        if self.connection is not None:
            self.connection.send(self.connection.to_client, _END)
            self.connection.is_over()


def _bytes_of(part: Part) -> bytes:
    if isinstance(part, FileSlice):
        data = part.read()
        if len(data) < part.length:
            raise OSError(f"a segment ends {part.length - len(data)} bytes before what was promised from it")
        return data
    return bytes(part)


def _hand_over(item: bytes, receiver: Callable[[memoryview], None]) -> None:
    """Pass on the frame without its length. Its bytes are overwritten afterwards, which exposes code that keeps a
    view.
    """
    buffer = bytearray(item)
    with memoryview(buffer) as whole, whole[_LENGTH_BYTES:] as frame:
        receiver(frame)
    buffer[:] = b"\xdb" * len(buffer)


class _Listener:
    """A bound listener."""

    __slots__ = (
        "_backlog",
        "_is_accepting",
        "address",
        "dispatch",
        "frame_bytes_max",
        "loop",
        "name",
        "peers",
    )

    def __init__(
        self,
        loop: SimulatedLoop,
        name: str,
        address: Address,
        dispatch: Callable[[Peer, memoryview], None],
        frame_bytes_max: int,
    ) -> None:
        self.loop = loop
        self.name = name
        self.address = address
        self.dispatch = dispatch
        self.frame_bytes_max = frame_bytes_max
        self.peers: dict[SimulatedPeer, None] = {}
        self._backlog: list[SimulatedPeer] = []
        self._is_accepting = False

    def knocked(self, peer: SimulatedPeer) -> None:
        self.peers[peer] = None
        if self._is_accepting:
            self.loop.call_soon(peer.accept)
        else:
            self._backlog.append(peer)

    def start_accepting(self) -> None:
        self._is_accepting = True
        backlog, self._backlog = self._backlog, []
        for peer in backlog:
            self.loop.call_soon(peer.accept)


class SimulatedListening:
    """The listeners of one process: a `Listening`, without limits of connections."""

    def __init__(
        self,
        wires: Wires,
        loop: SimulatedLoop,
        host: str,
        dispatch: Callable[[Peer, memoryview], None],
        limits: ServerLimits,
    ) -> None:
        self._wires = wires
        self._loop = loop
        self._host = host
        self._dispatch = dispatch
        self._limits = limits
        self._listeners: dict[str, _Listener] = {}

    def bind(self, name: str, host: str, port: int, entrance: Entrance = OPEN) -> int:
        """Bind a listener: all listeners of a process use the one address of its host."""
        if host not in ("", self._host):
            raise OSError(f"{host} is not an address of {self._host}")
        address = Address(self._host, port or self._wires.new_port())
        if address in self._wires.listeners:
            raise OSError(f"{address} is in use")
        listener = _Listener(
            self._loop, name, address, entrance.dispatch or self._dispatch, self._limits.frame_bytes_max
        )
        self._wires.listeners[address] = self._listeners[name] = listener
        return address.port

    def start_accepting(self, name: str) -> None:
        self._listeners[name].start_accepting()

    def configure(self, limits: ServerLimits) -> None: ...

    def stop_listening(self) -> None:
        for listener in self._listeners.values():
            self._wires.listeners.pop(listener.address, None)

    def close(self) -> None:
        self.stop_listening()
        for listener in self._listeners.values():
            for peer in list(listener.peers):
                peer.close(None)


class ProcessNetwork:
    """The network as one process sees it: a `Network`."""

    def __init__(self, wires: Wires, loop: SimulatedLoop, host: str) -> None:
        self._wires = wires
        self._loop = loop
        self._host = host

    def listen(self, dispatch: Callable[[Peer, memoryview], None], limits: ServerLimits) -> Listening:
        return SimulatedListening(self._wires, self._loop, self._host, dispatch, limits)

    def connect(
        self,
        address: Address,
        on_frame: Callable[[memoryview], None],
        on_close: Callable[[str], None],
        *,
        frame_bytes_max: int,
        tls: TlsContexts | None = None,
    ) -> Link:
        del frame_bytes_max, tls
        return SimulatedLink(self._wires, self._loop, self._host, address, on_frame, on_close)
