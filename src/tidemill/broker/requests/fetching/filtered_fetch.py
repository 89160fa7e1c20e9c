"""A consumer's fetch of views: it looks through their sources until it has found enough, or its time is over.

Only records that are shown count for `min_bytes`, so a selective view of a busy source does not make its consumers spin.
What was looked through is not looked through again while the fetch waits. At the end the consumer's position moves past
all of it, shown or not.

Looking through records is long work (`disk/long_work.py`). Fetches take turns with pieces of it, and other requests go
on between two steps.
"""

from __future__ import annotations

import logging
from asyncio import TimerHandle
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from tidemill.broker.net.network import Part
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.fetching.delayed_fetch import Fetch
from tidemill.log.files import FileSlice
from tidemill.log.filtered_read import Filtered
from tidemill.protocol.api.data import FetchRequest
from tidemill.protocol.steps import Steps

logger = logging.getLogger(__name__)

# What one fetch looks through before the next one's turn.
_PIECE_BYTES = 1 << 20
# What is looked through for one response, once it has enough.
_RESPONSE_SCAN_BYTES = 16 << 20


class ViewFetch(Fetch[FileSlice | Filtered], Protocol):
    def look_further(self, scan_bytes_max: int) -> Steps[tuple[int, bool]]: ...


class FilteredFetch:
    def __init__(self, broker: Broker, call: Call, request: FetchRequest, fetch: ViewFetch) -> None:
        self._broker = broker
        self._call = call
        self._min_bytes = request.min_bytes
        self._max_wait_s = request.max_wait_ms / 1000
        self._fetch = fetch
        self._scanned_bytes = 0
        self._is_over = self._max_wait_s <= 0
        self._is_looking = False
        self._is_listening = False
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        if not self._is_over:
            self._timer = self._broker.loop.call_later(self._max_wait_s, self._time_is_over)
        self._call.connection.close_callbacks.append(self._abandon)
        self._look_further()

    def _look_further(self) -> None:
        self._is_looking = True
        begin = partial(self._fetch.look_further, _PIECE_BYTES)
        self._broker.replicas.filtered_work.submit(begin, self._looked)

    def _looked(self, result: tuple[int, bool] | None, error: Exception | None) -> None:
        self._is_looking = False
        if not self._call.is_wanted:
            return
        if error is not None:
            self._finish()
            connection = self._call.connection
            logger.error("Fetch of %s failed; its connection is closed", connection.peer, exc_info=error)
            connection.close(f"Fetch failed: {error!r}")
            return
        assert result is not None
        scanned_bytes, has_more = result
        self._scanned_bytes += scanned_bytes
        answers, found_bytes, is_urgent = self._fetch.read()
        has_enough = found_bytes >= self._min_bytes
        if is_urgent or self._is_over or (has_enough and self._scanned_bytes >= _RESPONSE_SCAN_BYTES):
            self._finish()
            self._fetch.respond(answers)
        elif has_more:
            self._look_further()
        elif has_enough:
            self._finish()
            self._fetch.respond(answers)
        elif not self._is_listening:
            self._is_listening = True
            self._fetch.listen(self._grew)

    def _grew(self, _added_bytes: int) -> None:
        if not self._is_looking:
            self._look_further()

    def _time_is_over(self) -> None:
        self._is_over = True
        if not self._is_looking:
            self._look_further()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._is_listening:
            self._is_listening = False
            self._fetch.stop_listening(self._grew)
        self._call.connection.close_callbacks.remove(self._abandon)

    def _abandon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._is_listening:
            self._fetch.stop_listening(self._grew)
        self._fetch.abandon()


def flattened(parts: Sequence[Part | Filtered]) -> list[Part]:
    """The parts of a response. A filtered read has several."""
    flat: list[Part] = []
    for part in parts:
        if isinstance(part, Filtered):
            flat += part.parts
        else:
            flat.append(part)
    return flat
