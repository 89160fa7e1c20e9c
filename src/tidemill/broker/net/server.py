"""Listening sockets and the connections accepted on them, within limits.

Owns every `Connection`: accepts it, counts it (`max.connections`, `max.connections.per.ip`), reaps it when it has been
idle for `connections.max.idle.ms`, closes it at shutdown. Running out of file descriptors pauses accepting for a
moment instead of spinning; the clients wait in the kernel's backlog.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Callable
from time import perf_counter

from tidemill.broker.net.connection import Connection
from tidemill.broker.net.network import Peer, ServerLimits
from tidemill.broker.net.turns import Turns
from tidemill.errors import ConfigError

logger = logging.getLogger(__name__)

_ACCEPTS_PER_WAKEUP = 64
_BACKLOG_MIN = 1024
_ACCEPT_PAUSE_S = 1.0
_HOUSEKEEPING_S = 1.0
_BUFFER_IDLE_S = 5.0


class Server:
    """One or more listeners that feed the same handler."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dispatch: Callable[[Peer, memoryview], None],
        limits: ServerLimits,
    ) -> None:
        self._loop = loop
        self._dispatch = dispatch
        self._limits = limits
        self._turns = Turns(loop)
        self._listeners: dict[socket.socket, str] = {}
        self._connections: dict[int, Connection] = {}
        self._per_ip: Counter[str] = Counter()
        self._housekeeping = loop.call_later(_HOUSEKEEPING_S, self._keep_house)
        self._is_refusing = False

    def bind(self, name: str, host: str, port: int) -> int:
        """Take the port; clients that dial it wait. Returns the real one, which the kernel chooses for port 0."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            # Kafka's default of 50 makes a thousand clients that come at once wait for their SYN to be sent again.
            listener.listen(max(self._limits.backlog, _BACKLOG_MIN))
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self._listeners[listener] = name
        bound_port: int = listener.getsockname()[1]
        return bound_port

    def start_accepting(self, name: str) -> None:
        """On the listener of that name; the others keep their clients waiting."""
        for listener, its_name in self._listeners.items():
            if its_name == name:
                self._accept_from(listener)

    def _accept_from(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_WAKEUP):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                logger.warning("cannot accept connections for now: %s; raise `ulimit -n`", error.strerror)
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(_ACCEPT_PAUSE_S, self._accept_from, listener)
                return
            self._admit(sock, address, self._listeners[listener])

    def _admit(self, sock: socket.socket, address: tuple[str, int], name: str) -> None:
        ip = address[0]
        limits = self._limits
        if (
            len(self._connections) >= limits.connections_max
            or self._per_ip[ip] >= limits.connections_per_ip_max
        ):
            if not self._is_refusing:
                self._is_refusing = True
                logger.warning(
                    "refusing connections, now from %s: %d are open (max.connections=%d, max.connections.per.ip=%d)",
                    ip,
                    len(self._connections),
                    limits.connections_max,
                    limits.connections_per_ip_max,
                )
            sock.close()
            return
        self._is_refusing = False
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if limits.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
        if limits.receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer_bytes)
        local = sock.getsockname()
        connection = Connection(
            self._loop,
            sock,
            f"{ip}:{address[1]}",
            (local[0], local[1]),
            name,
            turns=self._turns,
            dispatch=self._dispatch,
            on_close=self._closed,
            frame_bytes_max=limits.frame_bytes_max,
        )
        self._connections[connection.fd] = connection
        self._per_ip[ip] += 1

    def _closed(self, connection: Connection, reason: str | None) -> None:
        if reason is not None:
            logger.warning("closed the connection of %s: %s", connection.peer, reason)
        if self._connections.get(connection.fd) is connection:
            del self._connections[connection.fd]
        ip = connection.peer.rpartition(":")[0]
        self._per_ip[ip] -= 1
        if self._per_ip[ip] <= 0:
            del self._per_ip[ip]

    def _keep_house(self) -> None:
        now = perf_counter()
        idle_s_max = self._limits.idle_ms_max / 1000
        for connection in list(self._connections.values()):
            idle_s = now - connection.last_active_s
            if idle_s > idle_s_max:
                connection.close(None)
            elif idle_s > _BUFFER_IDLE_S:
                connection.release_memory()
        self._housekeeping = self._loop.call_later(_HOUSEKEEPING_S, self._keep_house)

    def stop_listening(self) -> None:
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()

    def close(self) -> None:
        self.stop_listening()
        self._housekeeping.cancel()
        for connection in list(self._connections.values()):
            connection.close(None)
