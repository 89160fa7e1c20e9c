"""Long work in steps: one piece at a time, in order, and a failure concerns its own piece only."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from tidemill.broker.disk.long_work import LongWork
from tidemill.errors import ProtocolError
from tidemill.protocol.steps import Steps


def _in_thread(function: Callable[[], object]) -> asyncio.Future[object]:
    return asyncio.get_running_loop().run_in_executor(None, function)


def test_pieces_do_not_overlap_and_others_get_their_turn() -> None:
    async def run() -> None:
        seen: list[object] = []

        def piece(name: str) -> Steps[str]:
            for number in range(3):
                seen.append(f"{name}{number}")
                yield None
            return name

        async def other() -> None:
            while len(seen) < 6:
                seen.append("other")
                await asyncio.sleep(0)

        work = LongWork(_in_thread)
        first, second, _ = await asyncio.gather(
            work.run(lambda: piece("a")), work.run(lambda: piece("b")), other()
        )
        assert (first, second) == ("a", "b")
        mine = [each for each in seen if each != "other"]
        assert mine == ["a0", "a1", "a2", "b0", "b1", "b2"]
        assert "other" in seen[seen.index("a0") : seen.index("a2")]

    asyncio.run(run())


class _Owner:
    """A connection."""

    def __init__(self) -> None:
        self.is_closed = False
        self.close_callbacks: list[Callable[[], None]] = []

    def close(self) -> None:
        self.is_closed = True
        for callback in self.close_callbacks:
            callback()
        self.close_callbacks.clear()


class _Work:
    """Notes what was done, and what was given up."""

    def __init__(self) -> None:
        self.work = LongWork(_in_thread)
        self.done: list[str] = []
        self.given_up: list[str] = []

    def submit(self, name: str, owner: _Owner | None, size: int = 0) -> None:
        def piece() -> Steps[None]:
            yield None

        def done(_: None, error: Exception | None) -> None:
            (self.done if error is None else self.given_up).append(name)

        self.work.submit(piece, done, owner, size)


async def test_owners_take_turns_and_the_pieces_of_each_keep_their_order() -> None:
    mine, busy, other = _Work(), _Owner(), _Owner()
    for number in range(3):
        mine.submit(f"busy{number}", busy)
    mine.submit("own", None)
    for number in range(2):
        mine.submit(f"other{number}", other)
    await mine.work.drain(10)
    assert mine.done == ["busy0", "own", "other0", "busy1", "other1", "busy2"]
    assert not busy.close_callbacks


async def test_closed_owners_leave_little_behind_and_share_one_turn() -> None:
    mine, owners, open_one = _Work(), [_Owner(), _Owner()], _Owner()
    mine.submit("first", open_one)
    for name, owner in zip("ab", owners, strict=True):
        for number in range(400):
            mine.submit(f"{name}{number}", owner)
        owner.close()
    mine.submit("last of a", owners[0])
    mine.submit("second", open_one)
    await mine.work.drain(30)
    assert mine.done[:4] == ["first", "a0", "second", "a1"]
    assert mine.done[4:] == [f"a{number}" for number in range(2, 400)] + [
        f"b{number}" for number in range(112)
    ]
    assert mine.given_up == [f"b{number}" for number in range(112, 400)] + ["last of a"]


async def test_bytes_that_closed_owners_leave_behind_are_few() -> None:
    mine, owner = _Work(), _Owner()
    for number in range(10):
        mine.submit(str(number), owner, size=1 << 20)
    owner.close()
    mine.submit("large", _closed(), size=100 << 20)
    await mine.work.drain(10)
    mine.submit("large, alone", _closed(), size=100 << 20)
    await mine.work.drain(10)
    assert mine.done == ["0", "1", "2", "3", "large, alone"]


def _closed() -> _Owner:
    owner = _Owner()
    owner.close()
    return owner


def test_blocking_step_runs_in_a_thread_and_may_fail() -> None:
    async def run() -> None:
        def piece(function: Callable[[], int]) -> Steps[int]:
            result: int = yield function
            return result + 1

        def caught() -> Steps[str]:
            try:
                yield lambda: 1 // 0
            except ZeroDivisionError:
                return "caught"
            return "not raised"

        work = LongWork(_in_thread)
        assert await work.run(lambda: piece(lambda: 41)) == 42
        assert await work.run(caught) == "caught"
        failing = asyncio.ensure_future(work.run(lambda: piece(lambda: 1 // 0)))
        following = asyncio.ensure_future(work.run(lambda: piece(lambda: 1)))
        with pytest.raises(ZeroDivisionError):
            await failing
        assert await following == 2

    asyncio.run(run())


class _Large:
    """Stands for a decompressed batch."""


@pytest.mark.parametrize("is_in_thread", [False, True])
def test_objects_of_failed_work_are_released_at_once(is_in_thread: bool) -> None:
    """Without the garbage collector, which a few large objects do not call."""
    held: list[weakref.ref[_Large]] = []

    def walk() -> Iterator[int]:
        large = _Large()
        held.append(weakref.ref(large))
        try:
            yield 1
            raise IndexError
        except IndexError as error:
            raise ProtocolError(f"a record of {large} is cut off") from error

    def piece() -> Steps[None]:
        if is_in_thread:
            yield lambda: list(walk())
        for _ in walk():
            yield None

    async def run() -> None:
        work = LongWork(_in_thread)
        for _ in range(3):
            with pytest.raises(ProtocolError):
                await work.run(piece)
        # The last one's future is let go in the next turn.
        await asyncio.sleep(0)

    gc.disable()
    try:
        asyncio.run(run())
        assert len(held) == 3
        assert [reference() for reference in held[:-1]] == [None, None]
    finally:
        gc.enable()
