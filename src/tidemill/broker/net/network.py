"""The seam to the network: listeners that hand in request frames, and links on which frames go out and come back.

A frame is what stands behind a four-byte length. `sockets.py` is the real network; the simulator has its own, which delays,
drops and duplicates. Neither side may keep a frame that it is handed: its bytes are overwritten once the callback returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tidemill.log.files import FileSlice
from tidemill.security.principals import Principal
from tidemill.tls.contexts import TlsContexts

# A reply is sent in parts; a slice of a file goes out by `sendfile`.
Part = bytes | bytearray | memoryview | FileSlice
# Handles one request frame of a peer.
Dispatch = Callable[["Peer", memoryview], None]


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServerLimits:
    frame_bytes_max: int
    connections_max: int
    connections_per_ip_max: int
    idle_ms_max: int
    # Of some hosts, instead of `connections_per_ip_max`.
    connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    backlog: int = 1024
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    # Connections that are not authenticated: how many at once, and for how long.
    setups_max: int = 1024
    # Says how long a new connection of that address is kept waiting before it is closed; 0 lets it in.
    throttle_ms: Callable[[str], int] | None = None
    setup_ms_max: int = 10_000
    # New connections a second; None is no limit.
    connection_rate_max: int | None = None
    # By the name of a listener.
    listener_connections_max: Mapping[str, int] = field(default_factory=dict)
    listener_connection_rate_max: Mapping[str, int] = field(default_factory=dict)
    # The listeners where `connections_max` and `connection_rate_max` do not count.
    protected_listeners: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Entrance:
    """The checks that a peer passes before its requests are handled."""

    # The contexts of the listener, where it has TLS.
    tls: TlsContexts | None = None
    # The largest frame of a peer that has not logged in; None where a login is not asked for.
    login_bytes_max: int | None = None
    # What handles the frames of this listener, where it is not what handles all others.
    dispatch: Dispatch | None = None
    # The principal of a certificate in DER that was verified. What it raises refuses the connection.
    principal_of: Callable[[bytes], Principal] | None = None


OPEN = Entrance()


class Reply(Protocol):
    """A place in the queue of a connection's replies. `send` fills it, once."""

    def send(self, parts: Sequence[Part]) -> None: ...


class Peer(Protocol):
    """The connection of a client or node, as those see it that handle its requests."""

    @property
    def peer(self) -> str: ...
    @property
    def listener_name(self) -> str: ...
    @property
    def local_address(self) -> tuple[str, int]: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def received_s(self) -> float:
        """The time at which the last bytes of the request came, by `perf_counter`."""

    @property
    def close_callbacks(self) -> list[Callable[[], None]]: ...
    def expect_reply(self) -> Reply: ...

    # Proven by a certificate or a login; ANONYMOUS without either.
    principal: Principal

    def mark_as_node(self) -> None:
        """The other side is a node of the cluster: what it sends need not wait for clients."""

    def mark_as_authenticated(self) -> None:
        """The other side has logged in: it is no longer held to small frames and a short time."""

    def mute_for(self, throttle_ms: int) -> None:
        """Handle no further request for that long (KIP-219). Responses are sent all the same."""

    def add_kept_bytes(self, count: int) -> None:
        """So many bytes of its requests are kept until they can be appended, or fewer if negative.

        While there are too many, nothing more is read.
        """

    def close(self, reason: str | None) -> None: ...


class Listening(Protocol):
    """The server's side: every listener of a node, feeding one handler."""

    def bind(self, name: str, host: str, port: int, entrance: Entrance = OPEN) -> int:
        """Take the port; clients that dial it wait. Returns the real one, which is chosen for port 0."""

    def start_accepting(self, name: str) -> None:
        """On the listener of that name."""

    def configure(self, limits: ServerLimits) -> None:
        """Limits connections in this way from now on. Sizes of buffers and frames stay as they are."""

    def stop_listening(self) -> None: ...
    def close(self) -> None: ...


class Link(Protocol):
    """A connection that this node opened. Frames sent before it is up wait for it."""

    @property
    def is_closed(self) -> bool: ...
    def send(self, frame: bytes | bytearray) -> None:
        """The frame with its length prefix. Nothing happens when the link is closed."""

    def close(self) -> None:
        """No callback comes after this."""


class Network(Protocol):
    def listen(self, dispatch: Dispatch, limits: ServerLimits) -> Listening: ...

    def connect(
        self,
        address: Address,
        on_frame: Callable[[memoryview], None],
        on_close: Callable[[str], None],
        *,
        frame_bytes_max: int,
        tls: TlsContexts | None = None,
    ) -> Link:
        """Returns at once. `on_close` is called once, with the reason, when the link fails or the other side ends it."""
