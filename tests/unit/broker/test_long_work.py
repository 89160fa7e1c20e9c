"""Long work in steps: one piece at a time, in order, and a failure concerns its own piece only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tidemill.broker.disk.long_work import LongWork
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
