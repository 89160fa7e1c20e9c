"""Requests under way: at most one per destination, each with a time limit, and a pause after a failure.

An answer is known by the number of its request. One that comes after the time limit, or a second time, or
to a request that a change of role made meaningless, has no number here and is ignored.
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
class _UnderWay:
    sent: Sent
    deadline_ms: int


class Requests:
    def __init__(self, timeout_ms: int, retry_backoff_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._under_way: dict[int, _UnderWay] = {}
        self._paused_until_ms: dict[int, int] = {}
        self._last_number = 0

    def next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def is_ready(self, destination: int, now_ms: int) -> bool:
        """Whether a request may go there now; expires what took too long."""
        under_way = self._under_way.get(destination)
        if under_way is not None:
            if now_ms < under_way.deadline_ms:
                return False
            del self._under_way[destination]
        return self._paused_until_ms.get(destination, now_ms) <= now_ms

    def ready_at_ms(self, destination: int) -> int | None:
        """When `is_ready` changes by itself; None when it is ready already."""
        under_way = self._under_way.get(destination)
        if under_way is not None:
            return under_way.deadline_ms
        return self._paused_until_ms.get(destination)

    def sent(self, sent: Sent, now_ms: int) -> None:
        assert sent.to not in self._under_way, "one request per destination"
        self._paused_until_ms.pop(sent.to, None)
        self._under_way[sent.to] = _UnderWay(sent, now_ms + self._timeout_ms)

    def answered(self, number: int) -> Sent | None:
        """What it was; None when nobody waits for it any more."""
        for destination, under_way in self._under_way.items():
            if under_way.sent.number == number:
                del self._under_way[destination]
                return under_way.sent
        return None

    def failed(self, destination: int, now_ms: int) -> None:
        self._paused_until_ms[destination] = now_ms + self._retry_backoff_ms

    def forget_all(self) -> None:
        """A new role asks other questions at once."""
        self._under_way.clear()
        self._paused_until_ms.clear()
