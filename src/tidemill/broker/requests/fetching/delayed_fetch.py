"""A fetch that waits for bytes (Kafka: DelayedFetch).

A fetch that finds less than `min_bytes` waits until enough bytes came or its `max_wait_ms` is over. Then it reads again, so
that it sees whatever happened in between, such as a deletion or a new epoch. The fetch of a consumer or a follower decides
what is read, where bytes are reported and how the response looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidemill.broker.partitions.delayed_operations import Grew, WireKey
from tidemill.broker.requests.calls import Call
from tidemill.protocol.api.data import FetchRequest
from tidemill.protocol.fetch import Fetched, Payload

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle

RecordsT = TypeVar("RecordsT", bound=Payload)
Answer = tuple[WireKey, Fetched, RecordsT | None]


class Fetch(Protocol[RecordsT]):
    """A consumer's or a follower's fetch."""

    def read(self) -> tuple[list[Answer[RecordsT]], int, bool]:
        """Reads the partitions. Returns the answers, their bytes of records, and whether the response cannot wait."""

    def respond(self, answers: list[Answer[RecordsT]]) -> None: ...
    def listen(self, grew: Grew) -> None:
        """From now on call `grew` with the bytes that come."""

    def stop_listening(self, grew: Grew) -> None: ...
    def abandon(self) -> None:
        """The connection was closed while the fetch waited."""


def respond_or_delay(loop: AbstractEventLoop, call: Call, request: FetchRequest, fetch: Fetch[Any]) -> None:
    answers, found_bytes, is_urgent = fetch.read()
    if is_urgent or found_bytes >= request.min_bytes or request.max_wait_ms <= 0:
        fetch.respond(answers)
    else:
        DelayedFetch(loop, call, fetch, request.min_bytes - found_bytes, request.max_wait_ms)


class DelayedFetch:
    __slots__ = ("_call", "_fetch", "_is_woken", "_loop", "_missing_bytes", "_timer")

    def __init__(
        self, loop: AbstractEventLoop, call: Call, fetch: Fetch[Any], missing_bytes: int, max_wait_ms: int
    ) -> None:
        self._loop = loop
        self._call = call
        self._fetch = fetch
        self._missing_bytes = missing_bytes
        self._is_woken = False
        fetch.listen(self._grew)
        # None when the fetch waits no longer.
        self._timer: TimerHandle | None = loop.call_later(max_wait_ms / 1000, self._complete)
        call.connection.close_callbacks.append(self._abandon)

    def _grew(self, added_bytes: int) -> None:
        self._missing_bytes -= added_bytes
        if self._missing_bytes <= 0 and not self._is_woken:
            self._is_woken = True
            # Not at once: the producer's ack goes first, and what else arrives in this turn comes along.
            self._loop.call_soon(self._complete)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fetch.stop_listening(self._grew)

    def _abandon(self) -> None:
        self._stop_waiting()
        self._fetch.abandon()

    def _complete(self) -> None:
        if self._timer is None:
            return
        self._stop_waiting()
        if self._call.is_wanted:
            self._call.connection.close_callbacks.remove(self._abandon)
            self._fetch.respond(self._fetch.read()[0])
