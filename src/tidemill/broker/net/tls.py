"""TLS on raw sockets: the handshake, and the connection of a client behind it.

The handshake's arithmetic takes a millisecond or more, so it runs in a few threads; OpenSSL lets go of the interpreter
meanwhile. What follows is on the loop, as without TLS. Records are decrypted into the frame's own place. File slices
are read and encrypted in chunks, for a millisecond at most before others have their turn. `tls_socket.py` has the
socket. Where the kernel encrypts (kernel TLS), OpenSSL works on the descriptor instead, and slices go out by
`sendfile`.

OpenSSL may hold bytes that it has decrypted already. No event of the socket announces those, so `pending` is read before
waiting. A write that did not fit must be repeated with the same bytes: `_chunk` keeps them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from asyncio import AbstractEventLoop
from concurrent.futures import Executor
from time import perf_counter
from typing import Any

from tidemill.broker.net.connection import Connection
from tidemill.broker.net.tls_socket import KernelTlsSocket, SecuredSocket, TlsSocket
from tidemill.broker.net.turns import TURN_S
from tidemill.errors import ConfigError, TidemillError
from tidemill.log.files import FileSlice
from tidemill.tls.contexts import TlsContexts, enables_kernel_tls, tls_reason

logger = logging.getLogger(__name__)

# Encrypted at once: a fraction of a millisecond, and few calls for each megabyte.
_CHUNK_BYTES = 64 * 1024
_READS_PER_RECEIVE = 8
# The first byte of a handshake, where a Kafka request has the highest byte of its length.
_HANDSHAKE_RECORD = 0x16
# Linux: which protocol is stacked on TCP, and whether it encrypts what is sent.
_TCP_ULP = 31
_SOL_TLS, _TLS_TX = 282, 1

_REFUSALS = {
    "UNSUPPORTED_PROTOCOL": "it offers only versions of TLS that are not enabled here (ssl.enabled.protocols)",
    "NO_SHARED_CIPHER": "it offers no cipher suite that is enabled here",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, and ssl.client.auth=required",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of this broker's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not trust this broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not trust this broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it finds this broker's certificate expired",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it speaks no version of TLS that is enabled here",
}


class HandshakeFailed(TidemillError):
    """A TLS handshake failed; the message is the reason, empty when the peer simply went away."""


async def accept_tls(
    loop: AbstractEventLoop, executor: Executor | None, context: ssl.SSLContext, sock: socket.socket
) -> SecuredSocket:
    """The encrypted socket. However it ends otherwise, the socket is closed."""
    try:
        # Nothing is allocated for a peer that is silent.
        await _until_readable(loop, sock.fileno())
        first = sock.recv(1, socket.MSG_PEEK)
        if first and first[0] != _HANDSHAKE_RECORD:
            raise HandshakeFailed(
                "it speaks plaintext on a listener with TLS; set its security.protocol to SSL or SASL_SSL"
            )
        wrapped = _wrapped(context, sock)
    except OSError as error:
        sock.close()
        raise HandshakeFailed("" if isinstance(error, ConnectionError) else str(error)) from None
    except BaseException:
        sock.close()
        raise
    await _shake_hands(loop, executor, wrapped)
    return wrapped


async def open_tls(
    loop: AbstractEventLoop, executor: Executor | None, contexts: TlsContexts, sock: socket.socket, host: str
) -> TlsSocket:
    """Performs the handshake of a client that dialled `host`, with the current certificates."""
    try:
        await loop.run_in_executor(executor, _renew, contexts, host)
    except asyncio.CancelledError:
        sock.close()
        raise
    assert contexts.client is not None
    try:
        wrapped = TlsSocket(contexts.client, sock, server_hostname=host)
    except (OSError, ValueError) as error:
        sock.close()
        raise HandshakeFailed(str(error)) from None
    await _shake_hands(loop, executor, wrapped)
    return wrapped


def _wrapped(context: ssl.SSLContext, sock: socket.socket) -> SecuredSocket:
    if not enables_kernel_tls(context):
        return TlsSocket(context, sock, server_side=True)
    context.sslsocket_class = KernelTlsSocket
    wrapped = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
    assert isinstance(wrapped, KernelTlsSocket)
    return wrapped


def _renew(contexts: TlsContexts, host: str) -> None:
    try:
        contexts.reload_if_changed()
    except ConfigError as error:
        logger.error("connections to %s keep the old certificates: %s", host, error)


async def _shake_hands(loop: AbstractEventLoop, executor: Executor | None, sock: SecuredSocket) -> None:
    try:
        while True:
            step = loop.run_in_executor(executor, _step, sock)
            try:
                wanted = await asyncio.shield(step)
            except asyncio.CancelledError:
                # The thread may be using the descriptor: its number must not be another's yet.
                step.add_done_callback(lambda done: _close_after(done, sock))
                raise
            if isinstance(sock, TlsSocket):
                await _exchange(loop, sock, receives=wanted is not None)
            elif wanted is not None:
                await (_until_readable if wanted == "read" else _until_writable)(loop, sock.fileno())
            if wanted is None:
                return
    except ssl.SSLError as error:
        if isinstance(sock, TlsSocket):
            # The alert that tells the peer why.
            with contextlib.suppress(OSError):
                sock.exchange(receives=False)
        sock.close()
        raise HandshakeFailed(_refusal(error)) from None
    except OSError as error:
        sock.close()
        raise HandshakeFailed("" if isinstance(error, ConnectionError) else str(error)) from None
    except asyncio.CancelledError:
        if step.done():
            sock.close()
        raise


async def _exchange(loop: AbstractEventLoop, sock: TlsSocket, *, receives: bool) -> None:
    while True:
        try:
            sock.exchange(receives=receives)
        except ssl.SSLWantReadError:
            await _until_readable(loop, sock.fileno())
        except ssl.SSLWantWriteError:
            await _until_writable(loop, sock.fileno())
        else:
            return


def _step(sock: SecuredSocket) -> str | None:
    """One step of the handshake; what it waits for, or None when it is done."""
    try:
        sock.do_handshake()
    except ssl.SSLWantReadError:
        return "read"
    except ssl.SSLWantWriteError:
        return "write"
    return None


def _close_after(step: asyncio.Future[str | None], sock: SecuredSocket) -> None:
    if not step.cancelled():
        step.exception()
    sock.close()


def _refusal(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLEOFError):
        return ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {tls_reason(error)}"
    return _REFUSALS.get(error.reason or "", f"TLS failed: {tls_reason(error)}")


async def _until_readable(loop: AbstractEventLoop, descriptor: int) -> None:
    ready = loop.create_future()
    loop.add_reader(descriptor, _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def _until_writable(loop: AbstractEventLoop, descriptor: int) -> None:
    ready = loop.create_future()
    loop.add_writer(descriptor, _set, ready)
    try:
        await ready
    finally:
        loop.remove_writer(descriptor)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _kernel_encrypts(sock: SecuredSocket) -> bool:
    """Whether the kernel encrypts what is sent, so that `sendfile` may be used."""
    if isinstance(sock, TlsSocket):
        return False
    try:
        if sock.getsockopt(socket.IPPROTO_TCP, _TCP_ULP, 16).rstrip(b"\0") != b"tls":
            return False
        sock.getsockopt(_SOL_TLS, _TLS_TX, 4)
    except OSError:
        return False
    return True


def say_goodbye(sock: SecuredSocket) -> None:
    """Sends close_notify, as far as the socket takes it. So the peer can distinguish the end from a broken connection."""
    with contextlib.suppress(OSError, ValueError):
        sock.unwrap()


class TlsConnection(Connection):
    """The connection of a client behind a handshake that is done."""

    __slots__ = ("_chunk", "_kernel_encrypts", "_read_wants_write", "_tls", "_write_wants_read")

    def __init__(self, loop: AbstractEventLoop, sock: SecuredSocket, *rest: Any, **named: Any) -> None:
        self._tls = sock
        self._kernel_encrypts = _kernel_encrypts(sock)
        # Taken from the queue, and not out yet.
        self._chunk: memoryview | None = None
        # A peer that changes its keys makes a read wait for room to answer, and a write wait for the peer.
        self._read_wants_write = False
        self._write_wants_read = False
        super().__init__(loop, sock, *rest, **named)

    # -- receiving -------------------------------------------------------------------------------------------

    def _resume_reading(self) -> None:
        super()._resume_reading()
        if not self.is_closed and self._tls.pending():
            self._request_turn()

    def _receive(self, now_s: float) -> None:
        if self._write_wants_read:
            self._write_wants_read = False
            self._loop.add_writer(self.fd, self._on_writable)
        received, is_ended = 0, False
        try:
            # A large frame takes many records, and many reads.
            for _ in range(_READS_PER_RECEIVE):
                count = self._received.receive_from(self._tls)
                received += count
                is_ended = count == 0
                if is_ended or not self._received.has_room or not self._tls.has_more:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            self._wait_to_read()
        except OSError as error:
            self.close(_reason(error))
            return
        if received:
            self.received_s = self.last_active_s = now_s
            self._consume(now_s)
        if is_ended and not self.is_closed:
            self.close(None)

    def _wait_to_read(self) -> None:
        self._read_wants_write = True
        self._pause_reading()
        if not self._is_writing:
            self._loop.add_writer(self.fd, self._on_writable)

    # -- sending ---------------------------------------------------------------------------------------------

    def _on_writable(self) -> None:
        if self._read_wants_write:
            self._read_wants_write = False
            if not self._is_writing:
                self._loop.remove_writer(self.fd)
            self._go_on_reading()
        if self._write_wants_read:
            self._loop.remove_writer(self.fd)
        elif self._is_writing:
            super()._on_writable()

    def _send(self) -> bool:
        """Whether everything is out (or the connection is closed). False also when the turn is over."""
        ends_s = perf_counter() + TURN_S
        outgoing = self._outgoing
        try:
            while self._chunk is not None or outgoing:
                if self._chunk is not None:
                    self._send_chunk(self._chunk)
                elif self._kernel_encrypts and isinstance(outgoing[0], FileSlice):
                    self._send_slice(outgoing[0])
                else:
                    self._send_chunk(self._next_chunk())
                if perf_counter() >= ends_s and (self._chunk is not None or outgoing):
                    return False
        except (ssl.SSLWantWriteError, BlockingIOError, InterruptedError):
            return False
        except ssl.SSLWantReadError:
            self._write_wants_read = True
            return False
        except OSError as error:
            self.close(_reason(error))
        return True

    def _send_chunk(self, chunk: memoryview) -> None:
        self._chunk = chunk
        sent = self._tls.send(chunk)
        self._chunk = chunk[sent:] if sent < len(chunk) else None
        self.last_active_s = perf_counter()

    def _next_chunk(self) -> memoryview:
        """Returns the next bytes of the queue, joined: a response's header and its first records make one TLS record."""
        outgoing = self._outgoing
        pieces: list[bytes | bytearray | memoryview] = []
        room = _CHUNK_BYTES
        while outgoing and room > 0:
            part = outgoing.popleft()
            if not isinstance(part, FileSlice):
                piece = part if len(part) <= room else memoryview(part)[:room]
                if len(part) > room:
                    outgoing.appendleft(memoryview(part)[room:])
                self._queued_bytes -= len(piece)
            elif self._kernel_encrypts:
                outgoing.appendleft(part)
                break
            else:
                file, position, length = part
                piece = os.pread(file.fd, min(length, room), position)
                if not piece:
                    raise OSError(f"a segment ends {length} bytes before what was promised from it")
                if len(piece) < length:
                    outgoing.appendleft(FileSlice(file, position + len(piece), length - len(piece)))
            pieces.append(piece)
            room -= len(piece)
        return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    # -- closing ---------------------------------------------------------------------------------------------

    def close(self, reason: str | None) -> None:
        if self.is_closed:
            return
        # Also waited for without anything to write.
        self._loop.remove_writer(self.fd)
        self._is_writing = False
        self._chunk = None
        if self._tls.fileno() >= 0:
            say_goodbye(self._tls)
        super().close(reason)


def _reason(error: OSError) -> str | None:
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        return None
    return f"TLS failed: {tls_reason(error)}" if isinstance(error, ssl.SSLError) else str(error)
