"""Shares the time of the event loop among connections.

A connection whose requests are there takes a turn: it handles requests for at most `TURN_S`, and what is left waits for
another turn. All clients together get at most `_ROUND_S` until the loop has looked at every socket and timer again; those
who come later wait in line. So a client waits for one turn of each busy connection at most, however much these have sent.

Nodes of the cluster do not wait in line. Heartbeats, votes and the fetches of followers are handled as soon as the loop sees
them, at most a round after they came. Which connections are a node's is proved by their address (`node_proof.py`). What a
node gains is that and no more: clients get their round each time the loop comes by.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import deque
from time import perf_counter
from typing import Protocol

TURN_S = 0.001
_ROUND_S = 0.004


class Taker(Protocol):
    def take_turn(self) -> None: ...


class Turns:
    """The queue of clients with more work. A client may skip it before the round `ends_s` if none is `waiting`.

    After a pause it must enter the queue, since other clients may have arrived.
    """

    __slots__ = ("_is_due", "_loop", "ends_s", "waiting")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self.waiting: deque[Taker] = deque()
        self.ends_s = 0.0
        self._is_due = False

    def wait(self, taker: Taker) -> None:
        """`taker` gets a turn when those before it had theirs."""
        self.waiting.append(taker)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        waiting = self.waiting
        self._is_due = False
        self.ends_s = ends_s = perf_counter() + _ROUND_S
        # Connections that come back wait for the next round.
        for _ in range(len(waiting)):
            waiting.popleft().take_turn()
            if perf_counter() >= ends_s:
                break
        if waiting and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._round)
