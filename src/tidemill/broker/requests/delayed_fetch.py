"""A fetch that waits: for enough bytes, for the end of its patience, or for nobody when its client is gone.

It hears how many bytes came, and answers when that adds up to what it lacked. It answers by reading again, so whatever
happened in between (a deletion, a new epoch) is seen. Who tells it of bytes is for the two kinds of fetch to say: a
consumer's hears its partitions, a follower's its session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.partitions.delayed_operations import WireKey
from tidemill.log.files import FileSlice
from tidemill.protocol.api.data import FetchRequest
from tidemill.protocol.fetch import Fetched

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from tidemill.broker.requests.context import Broker
    from tidemill.broker.requests.dispatch import Call

Answer = tuple[WireKey, Fetched, FileSlice | None]


class DelayedFetch:
    __slots__ = ("_broker", "_call", "_is_woken", "_missing_bytes", "_request", "_timer")

    def __init__(self, broker: Broker, call: Call, request: FetchRequest) -> None:
        self._broker = broker
        self._call = call
        self._request = request
        self._missing_bytes = 0
        self._is_woken = False
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        answers, found_bytes, is_urgent = self._read()
        request = self._request
        if is_urgent or found_bytes >= request.min_bytes or request.max_wait_ms <= 0:
            self._answer(answers)
        else:
            self._park(request.min_bytes - found_bytes)

    # -- what is fetched, and by whom ------------------------------------------------------------------------

    def _read(self) -> tuple[list[Answer], int, bool]:
        """What there is now, how many bytes of records that is, and whether it cannot wait."""
        raise NotImplementedError

    def _answer(self, answers: list[Answer]) -> None:
        raise NotImplementedError

    def _listen(self) -> None:
        """From now on have `_grew` called with the bytes that come."""
        raise NotImplementedError

    def _stop_listening(self) -> None:
        raise NotImplementedError

    # -- waiting ---------------------------------------------------------------------------------------------

    def _park(self, missing_bytes: int) -> None:
        self._missing_bytes = missing_bytes
        self._listen()
        self._timer = self._broker.loop.call_later(self._request.max_wait_ms / 1000, self._complete)
        self._call.connection.close_callbacks.append(self._abandon)

    def _grew(self, added_bytes: int) -> None:
        self._missing_bytes -= added_bytes
        if self._missing_bytes <= 0 and not self._is_woken:
            self._is_woken = True
            # Not at once: the producer's ack goes first, and what else arrives in this turn comes along.
            self._broker.loop.call_soon(self._complete)

    def _unpark(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._stop_listening()

    def _abandon(self) -> None:
        self._unpark()

    def _complete(self) -> None:
        if self._timer is None:
            return
        self._unpark()
        if self._call.is_wanted:
            self._call.connection.close_callbacks.remove(self._abandon)
            self._answer(self._read()[0])
