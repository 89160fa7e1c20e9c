"""One request under way: its connection, its bytes, and the place of its reply in the connection's queue."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from time import perf_counter

from tidemill.broker.net.network import Part, Peer, Reply
from tidemill.broker.requests.quotas import RequestUsage
from tidemill.log.files import FileSlice
from tidemill.protocol.frames import RequestHeader

_PREFIX = struct.Struct(">ii")


class Call:
    __slots__ = (
        "_reply",
        "client_id",
        "connection",
        "frame",
        "header",
        "is_flexible",
        "is_large",
        "started_s",
        "took",
        "usage",
        "version",
    )

    def __init__(self, connection: Peer, header: RequestHeader, frame: memoryview, is_flexible: bool) -> None:
        self.connection = connection
        self.header = header
        self.frame = frame
        self.version = header.api_version
        self.client_id = header.client_id
        self.is_flexible = is_flexible
        self._reply: Reply | None = None
        # The response is encoded in steps.
        self.is_large = False
        # What counts towards the client's quotas; None without any.
        self.usage: RequestUsage | None = None
        # Receives the number of seconds that the answer takes, and since when.
        self.took: Callable[[float], None] | None = None
        self.started_s = 0.0

    def expect_reply(self) -> None:
        """Take the next place in the connection's queue; `respond` fills it."""
        self._reply = self.connection.expect_reply()

    @property
    def is_wanted(self) -> bool:
        return not self.connection.is_closed

    def respond(self, body: Sequence[Part]) -> None:
        """Send the response's body; length, correlation id and header tags are put before it."""
        assert self._reply is not None
        size = 5 if self.is_flexible else 4
        for part in body:
            size += part.length if isinstance(part, FileSlice) else len(part)
        prefix = _PREFIX.pack(size, self.header.correlation_id)
        if self.is_flexible:
            prefix += b"\0"
        self._reply.send((prefix, *body))
        self.finish()

    def finish_silently(self) -> None:
        """The request is done with and has no response. A place in the queue kept later requests from overtaking it."""
        if self._reply is not None:
            self._reply.send(())
        self.finish()

    def finish(self) -> None:
        """The request is done with, answered or not: its time is measured."""
        took = self.took
        if took is not None:
            took(perf_counter() - self.started_s)
