"""Answers a request over many entries in pieces, and gives other connections their turns in between.

200 kB of a request can name 20,000 groups, and describing them all takes seconds. So the handlers of such APIs declare the
list that they go through (`Entries`). A longer list than one piece is cut: the handler, and before it the authorizer, get
one piece after the other. The lists of the answers are joined, and the answer is encoded in steps, too.

All such requests together do one piece in a turn of the loop. They take turns with each other, so a short list does not
wait for the end of a long one.
"""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from tidemill.protocol.schema import Request, Response, replace


@dataclass(frozen=True, slots=True)
class Entries:
    """The list of a request whose entries are answered one by one, and the list of the response with the answers."""

    asked: str
    answered: str
    # What an entry is about. Entries about the same are in one piece, where the handler judges them together.
    key: Callable[[Any], Hashable] = lambda entry: entry
    # How many entries take about a millisecond.
    piece_size: int = 16

    def is_more_than_a_piece(self, request: Request) -> bool:
        return len(getattr(request, self.asked) or ()) > self.piece_size

    def pieces_of(self, request: Request) -> Iterator[Request]:
        """The request, cut. Each piece has whole groups of entries about the same."""
        same: dict[Hashable, list[Any]] = {}
        for entry in getattr(request, self.asked):
            same.setdefault(self.key(entry), []).append(entry)
        piece: list[Any] = []
        for entries in same.values():
            piece += entries
            if len(piece) >= self.piece_size:
                yield replace(request, **{self.asked: piece})
                piece = []
        if piece:
            yield replace(request, **{self.asked: piece})


class PieceTurns:
    """The queue of requests that are answered in pieces. One of them goes on in each turn of the loop."""

    def __init__(self) -> None:
        self._waiting: deque[Future[None]] = deque()
        self._is_due = False

    def turn(self) -> Future[None]:
        """Done when those before it had their turns."""
        loop = get_running_loop()
        waiter: Future[None] = loop.create_future()
        self._waiting.append(waiter)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._admit_next)
        return waiter

    def _admit_next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break
        self._is_due = bool(self._waiting)
        if self._is_due:
            get_running_loop().call_soon(self._admit_next)


async def answer_in_pieces(
    turns: PieceTurns,
    entries: Entries,
    request: Request,
    serve: Callable[[Request], Response | Awaitable[Response]],
    is_wanted: Callable[[], bool],
) -> Response:
    """The joined answers of all pieces. What is not wanted any more is given up."""
    joined: Response | None = None
    for piece in entries.pieces_of(request):
        await turns.turn()
        answer = serve(piece)
        if not isinstance(answer, Response):
            answer = await answer
        if joined is None:
            joined = answer
        else:
            getattr(joined, entries.answered).extend(getattr(answer, entries.answered))
        if not is_wanted():
            break
    assert joined is not None, "a list of no entries is no list of many"
    return joined
