"""`TlsAcceptor`: accepts TLS connections on a socket and hands them to asyncio protocols, for listeners that speak HTTP.

`loop.create_server(ssl=...)` says nothing about handshakes that fail, does not bound their number, and keeps its first
certificate for ever. Here each failure is a log line, with no flood of them. Of more than `_HANDSHAKES_MAX` handshakes at
once the oldest is closed. A certificate file that changes is read again within seconds.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable

from tidemill.errors import ConfigError
from tidemill.tls.contexts import TlsContexts, tls_reason
from tidemill.tls.refusals import RefusalLog
from tidemill.tls.settings import TlsSettings

_HANDSHAKES_MAX = 256
_HANDSHAKE_S_MAX = 10.0
_RELOAD_S = 1.0
# Without a free descriptor, accepting fails at once and again.
_PAUSE_S = 0.1
# The first byte of a TLS connection, which no HTTP request begins with.
HANDSHAKE_RECORD = 0x16

_REFUSALS = {
    "HTTP_REQUEST": "it speaks plain HTTP on a port with TLS; use https://",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "it offers only versions of TLS that are not enabled here (ssl.enabled.protocols)",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, and ssl.client.auth=required",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of the certificate here",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not trust the certificate here",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not trust the certificate here",
}

_log = logging.getLogger("tidemill.tls")


class TlsAcceptor:
    """Duck-typed as an asyncio server, as far as its users need one."""

    def __init__(
        self,
        listening: socket.socket,
        settings: TlsSettings,
        make_protocol: Callable[[], asyncio.Protocol],
        name: str,
    ) -> None:
        """Raises ConfigError when the certificate cannot be used. `name` is the listener's, for the log."""
        self._contexts = TlsContexts(settings, serves=True, dials=False)
        self._listening = listening
        self._make_protocol = make_protocol
        self._name = name
        self._refusals = RefusalLog(_log)
        # In the order of their beginning.
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._listening.setblocking(False)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._accept()), loop.create_task(self._renew())]

    def close(self) -> None:
        """Accepts no more. Connections that are open stay."""
        for task in (*self._tasks, *self._handshakes):
            task.cancel()
        self._listening.close()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks, *self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self._listening)
            except OSError as error:
                self._refuse(f"{self._name}: a connection cannot be accepted: {error.strerror}")
                await asyncio.sleep(_PAUSE_S)
                continue
            if len(self._handshakes) >= _HANDSHAKES_MAX:
                next(iter(self._handshakes)).cancel()
            task = loop.create_task(self._shake_hands(sock, address[0]))
            self._handshakes[task] = None
            task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    async def _shake_hands(self, sock: socket.socket, host: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(_HANDSHAKE_S_MAX):
                await loop.connect_accepted_socket(
                    self._make_protocol,
                    sock,
                    ssl=self._contexts.server,
                    ssl_handshake_timeout=_HANDSHAKE_S_MAX,
                )
        except ssl.SSLError as error:
            if not isinstance(error, ssl.SSLEOFError):
                reason = _REFUSALS.get(error.reason or "", f"TLS failed: {tls_reason(error)}")
                self._refuse(f"{self._name}: the connection of {host} is refused: {reason}")
        except (OSError, TimeoutError):
            # The peer went away, or has said nothing.
            _log.debug("%s: a handshake with %s was not finished", self._name, host)
        except asyncio.CancelledError:
            sock.close()
            raise

    def _refuse(self, line: str) -> None:
        self._refusals.tell(line, time.monotonic())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RELOAD_S)
            try:
                if await asyncio.to_thread(self._contexts.reload_if_changed):
                    _log.info("%s has a new certificate: connections from now on get it", self._name)
            except ConfigError as error:
                _log.error("%s keeps its old certificate: %s", self._name, error)


def speaks_tls(first: bytes) -> bool:
    """Whether the first bytes of a connection to a plain listener are those of a TLS client."""
    return first[:1] == bytes((HANDSHAKE_RECORD,))
