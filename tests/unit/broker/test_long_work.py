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


def test_what_blocks_is_done_elsewhere_and_may_fail() -> None:
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
def test_what_failed_work_held_is_free_at_once(is_in_thread: bool) -> None:
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
