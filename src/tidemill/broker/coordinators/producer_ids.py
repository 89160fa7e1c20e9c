"""Producer ids for this broker's clients, handed out from blocks that the controller allocates.

Blocks make ids unique in the whole cluster without a request to the controller for each. The rest of a block is lost
when the broker stops, which costs nothing: there are 2^63 ids.

A coordinator decides at once or not at all, so `take` does not wait. The next block is fetched before this one ends; when
there is nothing to take, as at the start, `stock` waits for a block.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidemill.errors import ApiError

logger = logging.getLogger(__name__)

# The share of a block that is left when the next one is fetched.
_REFILL_BELOW = 0.1


class ProducerIds:
    def __init__(self, allocate_block: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        """`allocate_block` gives the first id of a new block and the block's length."""
        self._allocate_block = allocate_block
        self._next = 0
        self._end = 0
        self._refill_at = 0
        # The block after this one, when it has come already.
        self._following: tuple[int, int] | None = None
        self._refill: asyncio.Task[None] | None = None

    @property
    def is_stocked(self) -> bool:
        return self._next < self._end or self._following is not None

    def take(self) -> int | None:
        """The next id, or None when there is none at hand; one is on its way then."""
        if self._next >= self._end and self._following is not None:
            first, length = self._following
            self._following = None
            self._next, self._end = first, first + length
            self._refill_at = self._end - int(length * _REFILL_BELOW)
        if self._next >= self._refill_at and self._following is None:
            self._begin_refill()
        if self._next >= self._end:
            return None
        self._next += 1
        return self._next - 1

    async def next(self) -> int:
        while True:
            producer_id = self.take()
            if producer_id is not None:
                return producer_id
            await self.stock()

    async def stock(self) -> None:
        """Wait until there is something to take. `ApiError` when no controller gives any."""
        if not self.is_stocked:
            # The block is for all waiting requests, so a cancelled one must not cancel the refill.
            await asyncio.shield(self._begin_refill())

    def _begin_refill(self) -> asyncio.Task[None]:
        if self._refill is None:
            self._refill = asyncio.get_running_loop().create_task(self._fetch_block())
            self._refill.add_done_callback(self._refilled)
        return self._refill

    async def _fetch_block(self) -> None:
        self._following = await self._allocate_block()

    def _refilled(self, task: asyncio.Task[None]) -> None:
        self._refill = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ApiError):
            logger.info("cannot get a block of producer ids from the controller, trying again: %s", error)
        elif error is not None:
            logger.error(
                "cannot get a block of producer ids from the controller, trying again", exc_info=error
            )

    def close(self) -> None:
        if self._refill is not None:
            self._refill.cancel()
