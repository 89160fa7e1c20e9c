"""Sends server-sent events: the overview of the cluster, and any other stream of events.

`EventStream` sends what an async generator of events yields. It holds one event at a time and waits until the
connection takes it. So a browser that does not read costs one event and no more, and after `STALLED_S` it is
disconnected. It ends when the client does, when the generator does, or when the gateway stops (`Streams.close`), and
the generator is closed in every case before the request is over. Comments are sent while there are no events, so that
proxies keep the connection and a client that is gone is noticed.

`Streams` counts them: beyond `STREAMS_MAX` a caller is refused.

A stream of the overview gets the newest picture when it is ready for it, never a queue of old ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidemill.gateway.answers import json_bytes
from tidemill.gateway.console_api.cluster_view import ClusterView
from tidemill.gateway.problems import Problem

STREAMS_MAX = 100
HEARTBEAT_S = 10.0
STALLED_S = 30.0
_END_S = 0.5
_PIECE_BYTES = 64 * 1024
# How soon a browser connects again.
_RETRY_MS = 2000
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    # For nginx, which would otherwise buffer events.
    "x-accel-buffering": "no",
}


class Event(NamedTuple):
    """A comment when it has no name."""

    name: str = ""
    content: Any = None

    def encoded(self) -> bytes:
        if not self.name:
            return b":\n\n"
        return b"event: %s\ndata: %s\n\n" % (self.name.encode(), json_bytes(self.content))


HEARTBEAT = Event()
Events = AsyncGenerator[Event, None]


class Streams:
    """The streams that are open."""

    def __init__(self) -> None:
        # By the session that opened them; empty for callers without one.
        self._open: dict[asyncio.Task[Any], str] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._open)

    def admit(self) -> None:
        if self._is_closed:
            raise Problem(503, 50301, "the gateway is stopping")
        if len(self._open) >= STREAMS_MAX:
            raise Problem(
                503, 50301, f"{STREAMS_MAX} event streams are open; close one, or ask without a stream"
            )

    def add(self, task: asyncio.Task[Any], session_id: str) -> None:
        self._open[task] = session_id
        task.add_done_callback(lambda done: self._open.pop(done, None))

    def end_session(self, session_id: str) -> None:
        """Its streams end with it."""
        for task in [task for task, opened_by in self._open.items() if opened_by == session_id]:
            task.cancel()

    async def close(self) -> None:
        self._is_closed = True
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


class EventStream(Response):
    def __init__(self, streams: Streams, events: Events, session_id: str = "") -> None:
        super().__init__(headers=_HEADERS)
        # Its length is not known.
        del self.headers["content-length"]
        self._streams = streams
        self._events = events
        self._session_id = session_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await self._events.aclose()
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": b""})
            return
        sending = asyncio.create_task(self._send(send), name="console-stream")
        self._streams.add(sending, self._session_id)
        hearing = asyncio.create_task(_disconnected(receive), name="console-stream-end")
        try:
            await asyncio.wait([sending, hearing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_heard = not hearing.done()
            for task in (sending, hearing):
                task.cancel()
            outcome, _ = await asyncio.gather(sending, hearing, return_exceptions=True)
        if is_heard and not isinstance(outcome, TimeoutError | OSError):
            await _end(send)
        if isinstance(outcome, Exception) and not isinstance(outcome, TimeoutError | OSError):
            raise outcome

    async def _send(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await _send_body(send, b"retry: %d\n\n" % _RETRY_MS)
            async for event in events:
                await _send_body(send, event.encoded())


async def _send_body(send: Send, data: bytes) -> None:
    """Sends in pieces: what a client does not read stays in memory until the connection breaks."""
    for start in range(0, len(data), _PIECE_BYTES):
        async with asyncio.timeout(STALLED_S):
            piece = data[start : start + _PIECE_BYTES]
            await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _end(send: Send) -> None:
    """Politely, but not for long: the gateway may be about to stop."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_S):
            await send({"type": "http.response.body", "body": b""})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def cluster_events(view: ClusterView) -> Events:
    """`overview` when it changed, `topics` and `groups` when asking again is worth it."""
    shown: dict[str, Any] = {}
    versions = {"topics": -1, "groups": -1}
    silent_since_s = time.monotonic()
    async with view.watch() as watch:
        picture = view.last
        while True:
            events = []
            if picture is not None:
                overview = {**picture.overview, "as_of_ms": None}
                if overview != shown:
                    shown = overview
                    events.append(Event("overview", picture.overview))
                for name, version in (
                    ("topics", picture.topics_version),
                    ("groups", picture.groups_version),
                ):
                    if versions[name] != version:
                        versions[name] = version
                        events.append(Event(name, {"version": version}))
            if not events and time.monotonic() - silent_since_s >= HEARTBEAT_S:
                events.append(HEARTBEAT)
            for event in events:
                silent_since_s = time.monotonic()
                yield event
            picture = await watch.next(HEARTBEAT_S)
