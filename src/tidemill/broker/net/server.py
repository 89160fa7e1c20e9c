"""Listening sockets and the connections accepted on them, within limits.

Owns every `Connection`: accepts it, counts it (`connection_quotas.py`), reaps it when it has been idle for
`connections.max.idle.ms`, closes it at shutdown. When `max.connections` is lowered, the connections that were silent the
longest are closed. Too many new connections a second, or no more file descriptors, pause accepting for a moment; the
clients wait in the kernel's backlog.

On a listener with TLS a connection begins when the handshake is done (`tls.py`). On one with SASL it is held to small
frames until the peer has logged in. Until then it is one of the `Setups`, which are bounded. The files of certificates
are looked at by housekeeping, in a thread.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from time import perf_counter
from typing import NamedTuple

from tidemill.broker.net.connection import Connection
from tidemill.broker.net.connection_quotas import ConnectionQuotas, addresses_of, literal_addresses
from tidemill.broker.net.network import OPEN, Dispatch, Entrance, ServerLimits
from tidemill.broker.net.setups import Setups
from tidemill.broker.net.tls import HandshakeFailed, TlsConnection, accept_tls
from tidemill.broker.net.tls_socket import ByteSocket, SecuredSocket
from tidemill.broker.net.turns import Turns
from tidemill.errors import ConfigError
from tidemill.security.addresses import normal_address
from tidemill.security.distinguished_names import MalformedCertificate
from tidemill.security.principals import ANONYMOUS, NoMatchingRule, Principal
from tidemill.tls.contexts import TlsContexts
from tidemill.tls.refusals import RefusalLog

logger = logging.getLogger(__name__)

_ACCEPTS_PER_WAKEUP = 64
_BACKLOG_MIN = 1024
_ACCEPT_PAUSE_S = 1.0
_HOUSEKEEPING_S = 1.0
_BUFFER_IDLE_S = 5.0


class _Listener(NamedTuple):
    name: str
    entrance: Entrance


class Server:
    """One or more listeners that feed the same handler."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dispatch: Dispatch,
        limits: ServerLimits,
        executor: Executor | None = None,
    ) -> None:
        """`executor` has the threads in which handshakes are made; without one they are the loop's."""
        self._loop = loop
        self._dispatch = dispatch
        self._limits = limits
        self._executor = executor
        self._turns = Turns(loop)
        self._listeners: dict[socket.socket, _Listener] = {}
        self._connections: dict[int, Connection] = {}
        self._setups = Setups(limits.setups_max, limits.setup_ms_max / 1000)
        # Connections of addresses over their quota. They are not read, and closed when the timer ends.
        self._throttled: dict[socket.socket, asyncio.TimerHandle] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._refusals = RefusalLog(logger)
        self._is_reloading = False
        self._quotas = ConnectionQuotas(limits)
        self._housekeeping = loop.call_later(_HOUSEKEEPING_S, self._keep_house)
        self._is_refusing = False

    def bind(self, name: str, host: str, port: int, entrance: Entrance = OPEN) -> int:
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
        self._listeners[listener] = _Listener(name, entrance)
        bound_port: int = listener.getsockname()[1]
        return bound_port

    def start_accepting(self, name: str) -> None:
        """On the listener of that name; the others keep their clients waiting."""
        for listener, of in self._listeners.items():
            if of.name == name:
                self._accept_from(listener)

    def configure(self, limits: ServerLimits) -> None:
        """Limits connections in this way from now on. Names of hosts are looked up in a thread."""
        overrides = limits.connections_per_ip_overrides
        literal = literal_addresses(overrides)
        self._limits = limits
        self._quotas.configure(limits, literal)
        self._is_refusing = False
        self._close_excess()
        if len(literal) < len(overrides):
            looked_up = self._loop.run_in_executor(
                self._executor, partial(addresses_of, overrides, is_strict=False)
            )
            looked_up.add_done_callback(partial(self._looked_up, limits))

    def _looked_up(self, limits: ServerLimits, found: asyncio.Future[dict[str, int]]) -> None:
        if self._limits is not limits or found.cancelled():
            return
        self._quotas.configure(limits, found.result())

    def _close_excess(self) -> None:
        """Closes connections of clients beyond `max.connections`, those that were silent the longest first."""
        excess = self._quotas.excess
        if not excess:
            return
        clients = [
            each
            for each in self._connections.values()
            if not each.is_node and not self._quotas.is_protected(each.listener_name)
        ]
        clients.sort(key=lambda each: each.last_active_s)
        logger.warning(
            "closing %d connections: %d are open (max.connections=%d)",
            min(excess, len(clients)),
            self._quotas.total,
            self._limits.connections_max,
        )
        for connection in clients[:excess]:
            connection.close(None)

    def _accept_from(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        of = self._listeners[listener]
        for _ in range(_ACCEPTS_PER_WAKEUP):
            if wait_ms := self._quotas.wait_ms(of.name, _steady_ms()):
                self._pause(listener, wait_ms / 1000)
                return
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                logger.warning("cannot accept connections for now: %s; raise `ulimit -n`", error.strerror)
                self._pause(listener, _ACCEPT_PAUSE_S)
                return
            self._quotas.accepted(of.name, _steady_ms())
            self._admit(sock, address, of)

    def _pause(self, listener: socket.socket, seconds: float) -> None:
        """Leaves the clients in the kernel's backlog."""
        self._loop.remove_reader(listener.fileno())
        self._loop.call_later(seconds, self._accept_from, listener)

    def _admit(self, sock: socket.socket, address: tuple[str, int], listener: _Listener) -> None:
        # On a listener for both, an IPv4 peer has an address of IPv6.
        ip = normal_address(address[0])
        address = (ip, address[1])
        limits = self._limits
        refusal = self._quotas.refusal(ip, listener.name)
        if refusal is not None:
            if not self._is_refusing:
                self._is_refusing = True
                logger.warning(
                    "refusing connections, now from %s: %d are open (%s)", ip, self._quotas.total, refusal
                )
            sock.close()
            return
        self._is_refusing = False
        if limits.throttle_ms is not None and (throttle_ms := limits.throttle_ms(ip)):
            self._throttled[sock] = self._loop.call_later(throttle_ms / 1000, self._end_throttled, sock)
            self._quotas.total += 1
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if limits.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
        if limits.receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer_bytes)
        self._quotas.opened(ip, listener.name)
        if listener.entrance.tls is None:
            self._open(Connection, sock, address, listener)
        else:
            self._begin_handshake(sock, address, listener, listener.entrance.tls)

    def _end_throttled(self, sock: socket.socket) -> None:
        """Close a connection over its address's quota, as Kafka does: the client tries again (KIP-612)."""
        del self._throttled[sock]
        self._quotas.total -= 1
        sock.close()

    def _open(
        self,
        kind: Callable[..., Connection],
        sock: ByteSocket,
        address: tuple[str, int],
        listener: _Listener,
    ) -> Connection:
        name, entrance = listener
        local = sock.getsockname()
        connection = kind(
            self._loop,
            sock,
            f"{address[0]}:{address[1]}",
            (local[0], local[1]),
            name,
            turns=self._turns,
            dispatch=entrance.dispatch or self._dispatch,
            on_close=self._closed,
            frame_bytes_max=entrance.login_bytes_max or self._limits.frame_bytes_max,
        )
        self._connections[connection.fd] = connection
        if entrance.login_bytes_max is not None:
            self._await_login(connection, address[0])
        return connection

    def _await_login(self, connection: Connection, ip: str) -> None:
        number = self._setups.begin(ip, perf_counter(), lambda _reason: connection.close(None))
        connection.close_callbacks.append(lambda: self._setups.end(number))

        def logged_in() -> None:
            self._setups.end(number)
            connection.allow_frames_of(self._limits.frame_bytes_max)

        connection.on_authenticated = logged_in

    # -- TLS -------------------------------------------------------------------------------------------------

    def _begin_handshake(
        self, sock: socket.socket, address: tuple[str, int], listener: _Listener, tls: TlsContexts
    ) -> None:
        task = self._loop.create_task(self._shake_hands(sock, address, listener, tls))
        number = self._setups.begin(address[0], perf_counter(), lambda _reason: _cancel(task))
        self._handshakes.add(task)

        def ended(_task: asyncio.Task[None]) -> None:
            self._setups.end(number)
            self._handshakes.discard(task)
            if task.cancelled():
                # A task that never began has closed nothing. In any other case TLS has taken the socket over.
                sock.close()
                self._quotas.closed(address[0], listener.name)

        task.add_done_callback(ended)

    async def _shake_hands(
        self, sock: socket.socket, address: tuple[str, int], listener: _Listener, tls: TlsContexts
    ) -> None:
        assert tls.server is not None
        ip = address[0]
        try:
            secured = await accept_tls(self._loop, self._executor, tls.server, sock)
            principal = _principal(secured, listener.entrance)
        except (HandshakeFailed, MalformedCertificate, NoMatchingRule) as failure:
            self._quotas.closed(ip, listener.name)
            if str(failure):
                self._refusals.tell(f"refused {ip} at listener {listener.name}: {failure}", perf_counter())
        else:
            self._open(TlsConnection, secured, address, listener).principal = principal

    def _reload_certificates(self) -> None:
        contexts = {each.entrance.tls: each.name for each in self._listeners.values() if each.entrance.tls}
        if contexts and not self._is_reloading:
            self._is_reloading = True
            self._loop.run_in_executor(self._executor, _reload, contexts).add_done_callback(self._reloaded)

    def _reloaded(self, _done: object) -> None:
        self._is_reloading = False

    # -- the life of connections -----------------------------------------------------------------------------

    def _closed(self, connection: Connection, reason: str | None) -> None:
        if reason is not None:
            logger.warning("closed the connection of %s: %s", connection.peer, reason)
        if self._connections.get(connection.fd) is connection:
            del self._connections[connection.fd]
        self._quotas.closed(connection.peer.rpartition(":")[0], connection.listener_name)

    def _keep_house(self) -> None:
        now = perf_counter()
        idle_s_max = self._limits.idle_ms_max / 1000
        for connection in list(self._connections.values()):
            idle_s = now - connection.last_active_s
            if idle_s > idle_s_max:
                connection.close(None)
            elif idle_s > _BUFFER_IDLE_S:
                connection.release_memory()
        self._close_excess()
        self._setups.expire(now)
        if given_up := self._setups.take_given_up_count():
            logger.warning(
                "gave up %d connections that were not authenticated within %g s, or were too many at once",
                given_up,
                self._limits.setup_ms_max / 1000,
            )
        self._reload_certificates()
        self._housekeeping = self._loop.call_later(_HOUSEKEEPING_S, self._keep_house)

    def stop_listening(self) -> None:
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()

    def close(self) -> None:
        self.stop_listening()
        self._housekeeping.cancel()
        for task in list(self._handshakes):
            task.cancel()
        for sock, timer in list(self._throttled.items()):
            timer.cancel()
            self._end_throttled(sock)
        for connection in list(self._connections.values()):
            connection.close(None)


def _steady_ms() -> int:
    return int(perf_counter() * 1000)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _principal(sock: SecuredSocket, entrance: Entrance) -> Principal:
    """Raises MalformedCertificate or NoMatchingRule, with the socket closed."""
    certificate = sock.getpeercert(binary_form=True) if entrance.principal_of is not None else None
    if not certificate or entrance.principal_of is None:
        return ANONYMOUS
    try:
        return entrance.principal_of(certificate)
    except (MalformedCertificate, NoMatchingRule):
        sock.close()
        raise


def _reload(contexts: dict[TlsContexts, str]) -> None:
    for tls, name in contexts.items():
        try:
            if tls.reload_if_changed():
                logger.info("listener %s has new certificates: connections from now on get them", name)
        except ConfigError as error:
            logger.error("listener %s keeps its old certificates: %s", name, error)
