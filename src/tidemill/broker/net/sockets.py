"""The real network: TCP, on raw non-blocking sockets.

Listening is `server.py`; this module opens links. A link looks its name up off the loop, tries the addresses that come
back one after the other, and gives up after `_CONNECT_S_MAX`. Frames sent before it is up wait in its queue. A failure
is reported once, through the loop and never from inside `connect` or `send`, so that a caller is not called back within
its own call.

The queue is bounded: a peer that takes nothing loses the link instead of costing memory.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from tidemill.broker.net.network import Address, Dispatch, ServerLimits
from tidemill.broker.net.receive_buffer import ReceiveBuffer
from tidemill.broker.net.server import Server
from tidemill.broker.net.tls import HandshakeFailed, open_tls, say_goodbye
from tidemill.broker.net.tls_socket import ByteSocket, TlsSocket
from tidemill.errors import ProtocolError
from tidemill.tls.contexts import TlsContexts, tls_reason

_CONNECT_S_MAX = 10.0
_QUEUED_BYTES_MAX = 32 << 20
_SEND_JOIN_BYTES_MAX = 64 * 1024

# Of `getaddrinfo`: family, type, protocol, canonical name, address.
_Found = tuple[int, int, int, str, Any]


# Handshakes are arithmetic: more threads than this would take the loop's own core.
_HANDSHAKE_THREADS = 2


class SocketNetwork:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # A thread starts with the first handshake.
        self._executor = ThreadPoolExecutor(_HANDSHAKE_THREADS, thread_name_prefix="tidemill-tls")

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def listen(self, dispatch: Dispatch, limits: ServerLimits) -> Server:
        return Server(self._loop, dispatch, limits, self._executor)

    def connect(
        self,
        address: Address,
        on_frame: Callable[[memoryview], None],
        on_close: Callable[[str], None],
        *,
        frame_bytes_max: int,
        tls: TlsContexts | None = None,
    ) -> SocketLink:
        if tls is not None:
            return TlsLink(self._loop, address, on_frame, on_close, frame_bytes_max, tls, self._executor)
        return SocketLink(self._loop, address, on_frame, on_close, frame_bytes_max)


class SocketLink:
    __slots__ = (
        "_address",
        "_connect_timer",
        "_found",
        "_is_up",
        "_is_writing",
        "_lookup",
        "_loop",
        "_on_close",
        "_on_frame",
        "_outgoing",
        "_queued_bytes",
        "_received",
        "_sock",
        "is_closed",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        on_frame: Callable[[memoryview], None],
        on_close: Callable[[str], None],
        frame_bytes_max: int,
    ) -> None:
        self._loop = loop
        self._address = address
        self._on_frame = on_frame
        self._on_close: Callable[[str], None] | None = on_close
        self._received = ReceiveBuffer(frame_bytes_max)
        self._outgoing: deque[bytes | bytearray | memoryview] = deque()
        self._queued_bytes = 0
        self._sock: ByteSocket | None = None
        self._found: deque[_Found] = deque()
        self._is_up = False
        self._is_writing = False
        self.is_closed = False
        self._connect_timer: asyncio.TimerHandle | None = loop.call_later(
            _CONNECT_S_MAX, self._fail, f"no connection within {_CONNECT_S_MAX:.0f} s"
        )
        self._lookup: asyncio.Task[None] | None = loop.create_task(self._open())

    # -- connecting ------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        host, port = self._address
        reason = f"{host} has no address"
        try:
            self._found.extend(await self._look_up(host, port))
        except OSError as error:
            reason = f"cannot find {host}: {error.strerror or error}"
        self._lookup = None
        self._connect_to_next(reason)

    async def _look_up(self, host: str, port: int) -> Sequence[_Found]:
        try:
            # An address in figures needs no asking and so no thread.
            flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        except socket.gaierror:
            return await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    def _connect_to_next(self, reason: str) -> None:
        """Try what the lookup found, until one begins to connect; fail with the last reason when none is left."""
        while self._found:
            family, kind, protocol, _name, address = self._found.popleft()
            try:
                sock = socket.socket(family, kind, protocol)
                self._sock = sock
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                status = sock.connect_ex(address)
            except OSError as error:
                reason = error.strerror or str(error)
            else:
                if status == errno.EINPROGRESS:
                    self._loop.add_writer(sock.fileno(), self._on_connected)
                    return
                if status == 0:
                    self._up(sock)
                    return
                reason = os.strerror(status)
            self._drop_socket()
        self._fail(reason)

    def _on_connected(self) -> None:
        sock = self._sock
        assert isinstance(sock, socket.socket)
        self._loop.remove_writer(sock.fileno())
        status = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if status == 0:
            self._up(sock)
        else:
            self._drop_socket()
            self._connect_to_next(os.strerror(status))

    def _up(self, sock: ByteSocket) -> None:
        self._is_up = True
        self._stop_connecting()
        self._loop.add_reader(sock.fileno(), self._on_readable)
        if self._outgoing:
            self._flush()

    def _stop_connecting(self) -> None:
        if self._connect_timer is not None:
            self._connect_timer.cancel()
            self._connect_timer = None
        if self._lookup is not None:
            self._lookup.cancel()
            self._lookup = None
        self._found.clear()

    # -- receiving -------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        sock = self._sock
        assert sock is not None
        try:
            received = self._received.receive_from(sock)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(error.strerror or str(error))
            return
        if received == 0:
            self._fail("the other side closed the connection")
            return
        self._hand_over_frames()

    def _hand_over_frames(self) -> None:
        while not self.is_closed and (frame := self._next_frame()) is not None:
            self._on_frame(frame)
            frame.release()
        if not self.is_closed:
            self._received.make_room()

    def _next_frame(self) -> memoryview | None:
        try:
            return self._received.next_frame()
        except ProtocolError as error:
            self._fail(str(error))
            return None

    # -- sending ---------------------------------------------------------------------------------------------

    def send(self, frame: bytes | bytearray) -> None:
        """Goes out at once when nothing is before it; otherwise joined with its neighbours when the socket takes more."""
        if self.is_closed:
            return
        if self._outgoing and self._queued_bytes + len(frame) > _QUEUED_BYTES_MAX:
            self._fail(f"the other side takes nothing: {self._queued_bytes} bytes wait for it")
            return
        self._outgoing.append(frame)
        self._queued_bytes += len(frame)
        if self._is_up and not self._is_writing:
            self._flush()

    def _flush(self) -> None:
        sock = self._sock
        assert sock is not None
        try:
            while self._outgoing:
                self._send_some(sock)
        except (BlockingIOError, InterruptedError):
            if not self._is_writing:
                self._is_writing = True
                self._loop.add_writer(sock.fileno(), self._flush)
            return
        except OSError as error:
            self._fail(error.strerror or str(error))
            return
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(sock.fileno())

    def _send_some(self, sock: ByteSocket) -> None:
        outgoing = self._outgoing
        data = outgoing.popleft()
        if outgoing and len(data) < _SEND_JOIN_BYTES_MAX:
            run = [data]
            length = len(data)
            while outgoing and length < _SEND_JOIN_BYTES_MAX:
                run.append(outgoing.popleft())
                length += len(run[-1])
            data = b"".join(run)
        try:
            sent = self._write(sock, data)
        except (BlockingIOError, InterruptedError):
            outgoing.appendleft(data)
            raise
        self._queued_bytes -= sent
        if sent < len(data):
            outgoing.appendleft(memoryview(data)[sent:])

    def _write(self, sock: ByteSocket, data: bytes | bytearray | memoryview) -> int:
        return sock.send(data)

    # -- closing ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._on_close = None
        self._tear_down()

    def _fail(self, reason: str) -> None:
        if not self.is_closed:
            self._tear_down()
            self._loop.call_soon(self._report, reason)

    def _report(self, reason: str) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close(reason)

    def _tear_down(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._stop_connecting()
        self._drop_socket()
        self._outgoing.clear()
        self._queued_bytes = 0

    def _drop_socket(self) -> None:
        sock, self._sock = self._sock, None
        if sock is None:
            return
        self._loop.remove_reader(sock.fileno())
        self._loop.remove_writer(sock.fileno())
        sock.close()


class TlsLink(SocketLink):
    """A link over TLS. It is up when the handshake is done."""

    __slots__ = ("_contexts", "_executor", "_handshake", "_tls")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        on_frame: Callable[[memoryview], None],
        on_close: Callable[[str], None],
        frame_bytes_max: int,
        contexts: TlsContexts,
        executor: Executor,
    ) -> None:
        self._contexts = contexts
        self._executor = executor
        self._handshake: asyncio.Task[None] | None = None
        self._tls: TlsSocket | None = None
        super().__init__(loop, address, on_frame, on_close, frame_bytes_max)

    def _up(self, sock: ByteSocket) -> None:
        assert isinstance(sock, socket.socket)
        # From here on the handshake owns the socket, and closes it when it fails. The time to connect goes on.
        self._sock = None
        self._handshake = self._loop.create_task(self._shake_hands(sock))

    async def _shake_hands(self, sock: socket.socket) -> None:
        try:
            secured = await open_tls(self._loop, self._executor, self._contexts, sock, self._address.host)
        except HandshakeFailed as failure:
            self._handshake = None
            self._fail(f"no TLS connection: {failure}" if str(failure) else "the other side refused TLS")
            return
        self._handshake = None
        self._sock = self._tls = secured
        super()._up(secured)

    def _on_readable(self) -> None:
        sock = self._tls
        assert sock is not None
        while not self.is_closed:
            try:
                received = self._received.receive_from(sock)
            except ssl.SSLWantReadError:
                return
            except ssl.SSLWantWriteError:
                # The peer changes its keys; what was to be sent goes out with the next write.
                return
            except OSError as error:
                self._fail(tls_reason(error))
                return
            if received == 0:
                self._fail("the other side closed the connection")
                return
            self._hand_over_frames()
            if self.is_closed or not sock.pending():
                return

    def _write(self, sock: ByteSocket, data: bytes | bytearray | memoryview) -> int:
        """Sends bytes. Those that did not fit are sent again first and unchanged, as OpenSSL requires."""
        try:
            return sock.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def _tear_down(self) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
        if self._tls is not None and not self.is_closed:
            say_goodbye(self._tls)
        super()._tear_down()
