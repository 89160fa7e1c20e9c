"""The requests in flight: at most one per destination, each with a timeout, and a backoff after a failure.

A response is matched by the number of its request. A response that is late, repeated, or made irrelevant by a change
of role has no entry here and is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidemill.raft.effects import (
    SendBeginQuorumEpoch,
    SendEndQuorumEpoch,
    SendFetch,
    SendFetchSnapshot,
    SendVote,
)

Sent: TypeAlias = SendVote | SendBeginQuorumEpoch | SendEndQuorumEpoch | SendFetch | SendFetchSnapshot


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A request in flight."""

    sent: Sent
    deadline_ms: int


class Requests:
    """The requests in flight to all destinations."""

    def __init__(self, timeout_ms: int, retry_backoff_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._in_flight: dict[int, _InFlight] = {}
        self._paused_until_ms: dict[int, int] = {}
        self._last_number = 0

    def next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def is_ready(self, destination: int, steady_ms: int) -> bool:
        """Whether a request may be sent now: none is in flight, or the one in flight has timed out."""
        in_flight = self._in_flight.get(destination)
        if in_flight is not None and steady_ms < in_flight.deadline_ms:
            return False
        return self._paused_until_ms.get(destination, steady_ms) <= steady_ms

    def ready_at_ms(self, destination: int) -> int | None:
        """Returns the time at which `is_ready` becomes true; None when it is true already."""
        in_flight = self._in_flight.get(destination)
        if in_flight is not None:
            return in_flight.deadline_ms
        return self._paused_until_ms.get(destination)

    def sent(self, sent: Sent, steady_ms: int) -> None:
        """Record a request that is in flight now. It replaces one that has timed out."""
        before = self._in_flight.get(sent.to)
        assert before is None or before.deadline_ms <= steady_ms, "one request per destination"
        self._paused_until_ms.pop(sent.to, None)
        self._in_flight[sent.to] = _InFlight(sent, steady_ms + self._timeout_ms)

    def answered(self, number: int) -> Sent | None:
        """Remove and return the request of this number; None when it is not in flight."""
        for destination, in_flight in self._in_flight.items():
            if in_flight.sent.number == number:
                del self._in_flight[destination]
                return in_flight.sent
        return None

    def failed(self, destination: int, steady_ms: int) -> None:
        self._paused_until_ms[destination] = steady_ms + self._retry_backoff_ms

    def clear(self) -> None:
        """Drop all requests after a change of role."""
        self._in_flight.clear()
        self._paused_until_ms.clear()
