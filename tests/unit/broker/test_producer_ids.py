"""Producer ids: unique, at hand without waiting, and waited for when there are none."""

from __future__ import annotations

import asyncio

import pytest

from tidemill.broker.coordinators.producer_ids import ProducerIds
from tidemill.errors import ApiError, ErrorCode


class Blocks:
    """A controller that gives blocks when the test says so."""

    def __init__(self, length: int = 10) -> None:
        self.length = length
        self.asked = 0
        self.allowed = asyncio.Semaphore(0)
        self.error: ApiError | None = None

    async def __call__(self) -> tuple[int, int]:
        self.asked += 1
        first = self.asked * 1000
        await self.allowed.acquire()
        if self.error is not None:
            raise self.error
        return first, self.length


async def test_nothing_is_at_hand_until_a_block_has_come_and_all_who_wait_share_it() -> None:
    blocks = Blocks()
    ids = ProducerIds(blocks)
    assert ids.take() is None
    waiting = [asyncio.create_task(ids.next()) for _ in range(3)]
    blocks.allowed.release()
    assert sorted([await task for task in waiting]) == [1000, 1001, 1002]
    assert blocks.asked == 1
    assert ids.take() == 1003
    ids.close()


async def test_the_next_block_comes_before_this_one_ends() -> None:
    blocks = Blocks(length=10)
    ids = ProducerIds(blocks)
    blocks.allowed.release()
    await ids.stock()
    assert [ids.take() for _ in range(9)] == list(range(1000, 1009))
    assert blocks.asked == 1
    assert ids.take() == 1009
    assert blocks.asked == 1  # only asked for: nothing was awaited since
    blocks.allowed.release()
    await ids.stock()
    assert blocks.asked == 2
    assert [ids.take() for _ in range(2)] == [2000, 2001]
    ids.close()


async def test_a_controller_that_refuses_is_asked_again_by_the_next() -> None:
    blocks = Blocks()
    ids = ProducerIds(blocks)
    blocks.error = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    blocks.allowed.release()
    with pytest.raises(ApiError):
        await ids.stock()
    assert not ids.is_stocked
    blocks.error = None
    blocks.allowed.release()
    assert await ids.next() == 2000
    ids.close()


async def test_who_goes_away_does_not_take_the_block_with_it() -> None:
    blocks = Blocks()
    ids = ProducerIds(blocks)
    impatient = asyncio.create_task(ids.next())
    patient = asyncio.create_task(ids.next())
    await asyncio.sleep(0)
    impatient.cancel()
    blocks.allowed.release()
    assert await patient == 1000
    ids.close()
