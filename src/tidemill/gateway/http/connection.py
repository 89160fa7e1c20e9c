"""The HTTP connection: uvicorn's, with limits where it has none.

- Request line and headers have to be complete after `header_s`, and take `header_bytes_max` at most: 431. (Headers that
  arrive complete and are larger are refused by `guards.py`, in the same words.)
- A client that speaks TLS where there is none is closed, with a line in the log.
- What is not HTTP gets a 400 with a JSON body, as everything else does. So does a request that a proxy might read in
  another way than the gateway: two Host headers or none, a Transfer-Encoding that is not `chunked` or comes with HTTP/1.0.
  The parser refuses the rest: folded headers, Content-Length twice or beside Transfer-Encoding, white space and line
  ends in wrong places. A trailer is not a header: it is dropped, and its size is bounded.
- An absolute request target replaces the Host header (RFC 9112, 3.2.2).
- A refusal never comes before, or into, the answer to an earlier request of the connection.
- Beyond `connections_max` connections, the one whose client has been silent longest is closed for a new one.
- A response may be sent while the request's body still comes in (413, 415, 408 and so on). The rest is then read and
  thrown away for `_LINGER_S` at most, and the connection is closed. Closing at once could take the response with it,
  reading on for ever would cost.
"""

from __future__ import annotations

import asyncio
import logging
import re
import resource
import sys
import time
from collections import OrderedDict
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tidemill.gateway.problems import Problem
from tidemill.gateway.settings import Limits
from tidemill.tls.acceptor import speaks_tls
from tidemill.tls.refusals import RefusalLog

_LINGER_S = 5.0
# A name or an address, perhaps with a port (RFC 3986). A comma would be two hosts that a proxy has joined.
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]*)(?::[0-9]*)?")


def headers_too_large(limits: Limits) -> Problem:
    return Problem(
        431, 431, f"the request's line and headers are larger than {limits.header_bytes_max} bytes"
    )


def bounded_connection(limits: Limits) -> type[HttpToolsProtocol]:
    """The protocol class for uvicorn, which makes the instances itself."""

    class Bounded(BoundedConnection):
        limits_in_force = limits
        connections_max = min(limits.connections_max, _files_max())
        opened: ClassVar[OrderedDict[BoundedConnection, None]] = OrderedDict()

    return Bounded


def _files_max() -> int:
    """So many files may be connections; the rest is for the cluster and the console."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft * 3 // 4 if soft > 0 else sys.maxsize


class BoundedConnection(HttpToolsProtocol):
    limits_in_force = Limits()
    connections_max = limits_in_force.connections_max
    # All connections. The client of the first has been silent for the longest time.
    opened: ClassVar[OrderedDict[BoundedConnection, None]] = OrderedDict()
    refusals: ClassVar[RefusalLog] = RefusalLog(logging.getLogger("tidemill.gateway"))

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._header_bytes = 0
        self._is_in_headers = True
        # Whether a request ended in the bytes that were read last: then they are not all headers.
        self._has_ended = False
        # Whether they held a part of the body, and how many came since one did: trailers, or chunk extensions.
        self._has_body = False
        self._empty_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        # What is wrong with the request whose headers are read. After it no more is read.
        self._fault: Problem | None = None
        self._is_refused = False
        # Nothing was read yet.
        self._is_untouched = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.opened) >= self.connections_max:
            self._close_a_silent_one()
        self.opened[self] = None
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self.opened.pop(self, None)
        super().connection_lost(exc)

    @property
    def _waits_for_its_client(self) -> bool:
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _close_a_silent_one(self) -> None:
        for connection in self.opened:
            if connection._waits_for_its_client:
                connection.transport.abort()
                # It is reported as closed later; until then it must not be chosen again.
                del self.opened[connection]
                return

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_untouched:
            self._is_untouched = False
            if self.scheme == "http" and speaks_tls(data):
                host = self.client[0] if self.client else "a client"
                line = f"the connection of {host} is refused: it speaks TLS on a port without; use http://"
                self.refusals.tell(line, time.monotonic())
                self._is_refused = True
                self.transport.close()
                return
        if self in self.opened:
            self.opened.move_to_end(self)
        if self._is_in_headers and self._deadline is None:
            self._await_headers()
        self._has_ended = self._has_body = False
        super().data_received(data)
        limit = self.limits_in_force.header_bytes_max
        if self._is_in_headers and not self._has_ended:
            self._header_bytes += len(data)
            if self._header_bytes > limit:
                self._refuse(headers_too_large(self.limits_in_force))
        self._empty_bytes = 0 if self._is_in_headers or self._has_body else self._empty_bytes + len(data)
        if self._empty_bytes > limit:
            self._refuse(Problem(431, 431, f"what comes beside the body is larger than {limit} bytes"))

    def on_message_begin(self) -> None:
        self._is_in_headers = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer comes after the headers were acted upon: it may not add to them.
        if self._is_in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_headers = False
        self._header_bytes = 0
        self._cancel_deadline()
        self._fault = self._fault_of_headers()
        if self._fault is not None:
            # The parser stops, and `send_400_response` says why.
            raise ValueError(self._fault.message)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_body = True
        super().on_body(body)

    def _fault_of_headers(self) -> Problem | None:
        """Returns the Problem of headers that a proxy could parse differently; None when there is none."""
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            return Problem(505, 505, f"HTTP/{version} is not spoken here, only HTTP/1.1 and HTTP/1.0")
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1:
            return Problem(400, 400, "there are several Host headers")
        if not hosts and version == "1.1":
            return Problem(400, 400, "there is no Host header")
        if hosts and not _HOST.fullmatch(hosts[0]):
            return Problem(400, 400, "the Host header is not a host")
        for coding in (value for name, value in self.headers if name == b"transfer-encoding"):
            if version == "1.0":
                return Problem(400, 400, "HTTP/1.0 has no Transfer-Encoding")
            if coding.strip().lower() != b"chunked":
                return Problem(501, 501, "of transfer encodings only chunked is supported")
        if not self.url.startswith((b"/", b"*")):
            self._take_host_from_target()
        return None

    def _take_host_from_target(self) -> None:
        target = httptools.parse_url(self.url)
        if target.host is None:
            raise ValueError("a request target is a path, or has a host")
        host = target.host if target.port is None else b"%s:%d" % (target.host, target.port)
        self.headers[:] = [(b"host", host), *(each for each in self.headers if each[0] != b"host")]

    def on_response_complete(self) -> None:
        cycle = self.cycle
        super().on_response_complete()
        if cycle.more_body and not self.transport.is_closing():
            self._deadline = self.loop.call_later(_LINGER_S, self.transport.close)

    def on_message_complete(self) -> None:
        # What follows is another request; one whose response was sent before its body had come need not be waited for.
        self._is_in_headers = self._has_ended = True
        self._cancel_deadline()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(
            self._fault or Problem(400, 400, f"this is not HTTP that can be read: {msg.lower().rstrip('.')}")
        )

    def _await_headers(self) -> None:
        self._deadline = self.loop.call_later(self.limits_in_force.header_s, self._headers_missing)

    def _headers_missing(self) -> None:
        if self._header_bytes:
            self._refuse(Problem(408, 408, "the request's line and headers arrive too slowly"))
        else:
            self.transport.close()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, problem: Problem) -> None:
        """Nothing that comes later is read."""
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:
                # An earlier request, which is whole: it is still answered, and its answer is the last.
                cycle.keep_alive = False
                return
            if cycle.response_started or self.pipeline:
                # A second answer within or before the first would be taken for a part of it.
                self.transport.close()
                return
        response = problem.response()
        lines = [b"HTTP/1.1 %d Refused\r\n" % problem.status, b"connection: close\r\n"]
        lines += [b"%s: %s\r\n" % header for header in response.raw_headers]
        self.transport.write(b"".join([*lines, b"\r\n", bytes(response.body)]))
        self.transport.close()
