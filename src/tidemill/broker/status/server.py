"""A small HTTP listener of the node for monitoring: metrics, health, and the causes of rebalances.

    GET /metrics       Prometheus' text format
    GET /healthz       200 while the event loop runs
    GET /readyz        200 while clients are served, 503 before and after
    GET /rebalances    the last rebalances of the groups that are coordinated here, as JSON; ?group=NAME for one

It answers one request a connection and holds no state. A request of another kind, or a too large one, is answered with the
matching error. A slow connection is closed, and so is one beyond `_CONNECTIONS_MAX`. Off unless an address
is given.

With a certificate it speaks HTTPS. A client that speaks TLS to a plain listener, or the reverse, is a line in the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from http import HTTPStatus
from time import perf_counter, thread_time
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from tidemill.broker.metrics.registry import Recent
from tidemill.broker.requests.context import Broker
from tidemill.errors import ConfigError
from tidemill.tls.acceptor import TlsAcceptor, speaks_tls
from tidemill.tls.refusals import RefusalLog
from tidemill.tls.settings import TlsSettings

logger = logging.getLogger(__name__)

_CONNECTIONS_MAX = 32
_REQUEST_BYTES_MAX = 16 * 1024
_REQUEST_S_MAX = 5.0
_LAG_PROBE_S = 0.1

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Page(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: Sequence[bytes]


Answer = Callable[["StatusServer", dict[str, str]], Awaitable[Page]]


class StatusServer:
    def __init__(self, broker: Broker, is_ready: Callable[[], bool]) -> None:
        try:
            # Not at the top: a broker without a status listener does not need the package.
            from tidemill.broker.status import exposition
        except ImportError as error:
            raise ConfigError(
                "metrics need the package prometheus_client: pip install 'tidemill[metrics]'"
            ) from error
        self._exposition = exposition
        self._broker = broker
        self._is_ready = is_ready
        self._recent = Recent(broker.metrics, perf_counter(), thread_time())
        self._server: asyncio.Server | TlsAcceptor | None = None
        self._refusals = RefusalLog(logger)
        self._probe: asyncio.TimerHandle | None = None
        self._connections = 0

    async def start(self, host: str, port: int, tls: TlsSettings | None = None) -> int:
        """Returns the real port, which the kernel chooses for 0."""
        try:
            if tls is None:
                self._server = await asyncio.start_server(self._serve, host, port, limit=_REQUEST_BYTES_MAX)
                bound: int = self._server.sockets[0].getsockname()[1]
            else:
                bound = self._start_tls(host, port, tls)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port} for status requests: {error.strerror}"
            ) from error
        self._broker.metrics.is_watched = True
        self._probe_later()
        return bound

    def _start_tls(self, host: str, port: int, tls: TlsSettings) -> int:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
        try:
            self._server = TlsAcceptor(listening, tls, self._new_connection, "the status listener")
        except ConfigError:
            listening.close()
            raise
        self._server.start()
        bound: int = listening.getsockname()[1]
        return bound

    def _new_connection(self) -> asyncio.Protocol:
        reader = asyncio.StreamReader(_REQUEST_BYTES_MAX)
        return asyncio.StreamReaderProtocol(reader, self._serve)

    async def stop(self) -> None:
        self._broker.metrics.is_watched = False
        if self._probe is not None:
            self._probe.cancel()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def _probe_later(self) -> None:
        """Schedules a probe that measures the loop's lag: how much later than due it runs."""
        loop, metrics = self._broker.loop, self._broker.metrics
        due = perf_counter() + _LAG_PROBE_S

        def probe() -> None:
            now_s = perf_counter()
            metrics.settle()
            metrics.loop_lag.observe(max(0.0, now_s - due))
            if self._recent.is_due(now_s):
                self._recent.turn(now_s, thread_time())
            self._probe_later()

        self._probe = loop.call_later(_LAG_PROBE_S, probe)

    # -- HTTP ------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            async with asyncio.timeout(_REQUEST_S_MAX):
                first = await reader.readexactly(1)
                if speaks_tls(first):
                    self._refuse_tls(writer)
                    return
                method, page = await self._answer(first, reader)
                for part in (_head(page), *(page.body if method != "HEAD" else ())):
                    writer.write(part)
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            logger.debug("a status request was not finished")
        finally:
            self._connections -= 1
            writer.close()

    def _refuse_tls(self, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        host = peer[0] if peer else "a client"
        line = f"the status connection of {host} is refused: it speaks TLS on a port without; use http://"
        self._refusals.tell(line, perf_counter())

    async def _answer(self, first: bytes, reader: asyncio.StreamReader) -> tuple[str, Page]:
        try:
            head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.LimitOverrunError:
            return "GET", _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        words = head.split("\r\n", 1)[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "GET", _plain(HTTPStatus.BAD_REQUEST)
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return method, _plain(HTTPStatus.METHOD_NOT_ALLOWED)
        if self._connections > _CONNECTIONS_MAX:
            return method, _plain(HTTPStatus.SERVICE_UNAVAILABLE)
        parts = urlsplit(target)
        answer = _PAGES.get(parts.path)
        if answer is None:
            return method, _plain(HTTPStatus.NOT_FOUND)
        arguments = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        return method, await answer(self, arguments)

    # -- the pages -------------------------------------------------------------------------------------------

    async def _metrics(self, _: dict[str, str]) -> Page:
        body = await self._exposition.page(self._broker, self._recent, is_ready=self._is_ready())
        return Page(HTTPStatus.OK, _PROMETHEUS, body)

    async def _health(self, _: dict[str, str]) -> Page:
        return _plain(HTTPStatus.OK)

    async def _readiness(self, _: dict[str, str]) -> Page:
        return _plain(HTTPStatus.OK if self._is_ready() else HTTPStatus.SERVICE_UNAVAILABLE)

    async def _rebalances(self, arguments: dict[str, str]) -> Page:
        groups = self._broker.groups
        wanted = arguments.get("group")
        names = (
            [wanted] if wanted else [name for machine in groups.runtime.machines() for name in machine.groups]
        )
        events = [asdict(event) for name in names for event in groups.events_of(name)]
        events.sort(key=lambda event: event["at_ms"])
        return Page(HTTPStatus.OK, _JSON, [json.dumps(events).encode()])


_PAGES: dict[str, Answer] = {
    "/metrics": StatusServer._metrics,
    "/healthz": StatusServer._health,
    "/readyz": StatusServer._readiness,
    "/rebalances": StatusServer._rebalances,
}


def _plain(status: HTTPStatus) -> Page:
    return Page(status, _TEXT, [f"{status.phrase.lower()}\n".encode()])


def _head(page: Page) -> bytes:
    head = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\nContent-Length: {sum(map(len, page.body))}\r\nConnection: close\r\n\r\n"
    )
    return head.encode()
