"""The HTTP connection: uvicorn's, with limits where it has none.

- Request line and headers have to be complete after `header_s`, and take `header_bytes_max` at most: 431. (Headers that
  arrive complete and are larger are refused by `guards.py`, in the same words.)
- What is not HTTP gets a 400 with a JSON body, as everything else does.
- A response that is sent while the request's body still comes in (413, 415, 408 and so on) is followed by a time in which
  the rest is read and thrown away, `_LINGER_S` at most; then the connection is closed. Closing at once could take the
  response with it, reading on for ever would cost.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tidemill.gateway.problems import Problem
from tidemill.gateway.settings import Limits

_LINGER_S = 5.0


def headers_too_large(limits: Limits) -> Problem:
    return Problem(
        431, 431, f"the request's line and headers are larger than {limits.header_bytes_max} bytes"
    )


def bounded_connection(limits: Limits) -> type[HttpToolsProtocol]:
    """The protocol class for uvicorn, which makes the instances itself."""

    class Bounded(BoundedConnection):
        limits_in_force = limits

    return Bounded


class BoundedConnection(HttpToolsProtocol):
    limits_in_force = Limits()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._header_bytes = 0
        self._is_in_headers = True
        # Whether a request ended in the bytes that were read last: then they are not all headers.
        self._has_ended = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_in_headers and self._deadline is None:
            self._await_headers()
        self._has_ended = False
        super().data_received(data)
        if self._is_in_headers and not self._has_ended:
            self._header_bytes += len(data)
            if self._header_bytes > self.limits_in_force.header_bytes_max and not self.transport.is_closing():
                self._refuse(headers_too_large(self.limits_in_force))

    def on_message_begin(self) -> None:
        self._is_in_headers = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_headers = False
        self._header_bytes = 0
        self._cancel_deadline()
        super().on_headers_complete()

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
        self._refuse(Problem(400, 400, f"this is not HTTP that can be read: {msg.lower().rstrip('.')}"))

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
        if self.transport.is_closing():
            return
        response = problem.response()
        lines = [b"HTTP/1.1 %d Refused\r\n" % problem.status, b"connection: close\r\n"]
        lines += [b"%s: %s\r\n" % header for header in response.raw_headers]
        self.transport.write(b"".join([*lines, b"\r\n", bytes(response.body)]))
        self.transport.close()
