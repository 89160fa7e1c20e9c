"""Answers a request over many entries in pieces, and gives other connections their turns in between.

200 kB of a request can name 20,000 groups, and describing them all takes seconds. So the handlers of such APIs declare the
list that they go through (`Entries`). A longer list than one piece is cut: the handler, and before it the authorizer, get
one piece after the other. The lists of the answers are joined, and the answer is encoded in steps, too.

Where each entry has a list of its own, such as the partitions of a topic, that list is cut, too (`inner`).

Each piece is a decision of its own. What one piece has done stays done when a later one is refused. So an API is cut only
where its answer has an error for each entry: the refused entries have it, and the client repeats them. An error about the
whole request stands alone, as it does without pieces. It leaves open what was done before.

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

# How many entries are sorted into pieces in one turn.
_SORTED_AT_ONCE = 1_000


def _itself(entry: Any) -> Hashable:
    same: Hashable = entry
    return same


@dataclass(frozen=True, slots=True)
class Inner:
    """The list of an entry, such as the partitions of a topic, and the list of the answer's entry with the answers."""

    asked: str
    answered: str
    # What is judged together, as `Entries.key`. None when each is judged by itself, in their order.
    key: Callable[[Any], Hashable] | None = None


@dataclass(frozen=True, slots=True)
class Entries:
    """The list of a request whose entries are answered one by one, and the list of the response with the answers."""

    asked: str
    answered: str
    # What an entry is about. Entries about the same are in one piece, where the handler judges them together.
    key: Callable[[Any], Hashable] = _itself
    # How many entries take about a millisecond.
    piece_size: int = 16
    # What is judged by itself when each entry has a list: then the entries of that list count. `key` also tells which
    # entries of the answers are about the same.
    inner: Inner | None = None
    # Whether a piece is decided before its answer is awaited: then the pieces wait for their commits together.
    decides_at_once: bool = False

    def is_more_than_a_piece(self, request: Request) -> bool:
        entries = getattr(request, self.asked) or ()
        if self.inner is None or len(entries) > self.piece_size:
            return len(entries) > self.piece_size
        # Every commit comes by here, so this makes no generator.
        inner, count = self.inner.asked, 0
        for entry in entries:
            count += len(getattr(entry, inner) or ())
        return count > self.piece_size

    def pieces_of(self, request: Request) -> Iterator[Request | None]:
        """The request, cut. Each piece has whole groups of entries about the same. None is a turn without a piece."""
        same: dict[Hashable, list[tuple[Any, Any]]] = {}
        for number, (entry, each) in enumerate(self._leaves(request), 1):
            same.setdefault((self.key(entry), self._inner_key(each, number)), []).append((entry, each))
            if number % _SORTED_AT_ONCE == 0:
                yield None
        piece: list[tuple[Any, Any]] = []
        for leaves in same.values():
            piece += leaves
            if len(piece) >= self.piece_size:
                yield replace(request, **{self.asked: self._entries_of(piece)})
                piece = []
        if piece:
            yield replace(request, **{self.asked: self._entries_of(piece)})

    def _inner_key(self, each: Any, number: int) -> Hashable:
        if self.inner is None or each is None:
            return None
        return number if self.inner.key is None else self.inner.key(each)

    def _leaves(self, request: Request) -> Iterator[tuple[Any, Any]]:
        """Each entry with each entry of its own list; with None where it has none."""
        for entry in getattr(request, self.asked):
            inner = None if self.inner is None else getattr(entry, self.inner.asked)
            if inner:
                for each in inner:
                    yield entry, each
            else:
                yield entry, None

    def _entries_of(self, leaves: list[tuple[Any, Any]]) -> list[Any]:
        entries: list[Any] = []
        whole: Any = None
        for entry, each in leaves:
            if self.inner is None or each is None:
                entries.append(entry)
                whole = None
            elif entry is whole:
                getattr(entries[-1], self.inner.asked).append(each)
            else:
                entries.append(replace(entry, **{self.inner.asked: [each]}))
                whole = entry
        return entries

    def join(self, joined: Response, answer: Response) -> None:
        """Puts the entries of an answer behind those of the others."""
        entries, more = getattr(joined, self.answered), getattr(answer, self.answered)
        if self.inner is not None and entries and more and self.key(entries[-1]) == self.key(more[0]):
            if getattr(more[0], "error_code", 0):
                entries[-1] = more[0]
            elif not getattr(entries[-1], "error_code", 0):
                getattr(entries[-1], self.inner.answered).extend(getattr(more[0], self.inner.answered))
            more = more[1:]
        entries.extend(more)


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
    awaited: deque[Response | Awaitable[Response]] = deque()
    for piece in entries.pieces_of(request):
        await turns.turn()
        if piece is None:
            continue
        awaited.append(serve(piece))
        if not entries.decides_at_once:
            joined = await _joined(entries, joined, awaited)
            if _has_failed(joined):
                return joined
        if not is_wanted():
            break
    while awaited:
        joined = await _joined(entries, joined, awaited)
    assert joined is not None, "a list of no entries is no list of many"
    return joined


async def _joined(
    entries: Entries, joined: Response | None, awaited: deque[Response | Awaitable[Response]]
) -> Response:
    """The answers so far with the next one. An error about the whole request stands alone."""
    answer = awaited.popleft()
    if not isinstance(answer, Response):
        answer = await answer
    if joined is None or _has_failed(answer):
        return answer
    if not _has_failed(joined):
        entries.join(joined, answer)
    return joined


def _has_failed(response: Response) -> bool:
    return bool(getattr(response, "error_code", 0))
