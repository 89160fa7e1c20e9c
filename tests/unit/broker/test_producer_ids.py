"""Blocks of producer ids: unique ids, fetched ahead, and waited for when there are none."""

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


async def test_waiting_requests_share_the_first_block() -> None:
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


async def test_refused_allocation_is_repeated_by_the_next_request() -> None:
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


async def test_cancelled_request_does_not_lose_the_block() -> None:
    blocks = Blocks()
    ids = ProducerIds(blocks)
    impatient = asyncio.create_task(ids.next())
    patient = asyncio.create_task(ids.next())
    await asyncio.sleep(0)
    impatient.cancel()
    blocks.allowed.release()
    assert await patient == 1000
    ids.close()
