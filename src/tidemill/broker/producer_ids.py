"""Producer ids for this broker's clients, handed out from blocks that the controller allocates.

Blocks make ids unique in the whole cluster without asking the controller for each; the rest of a block is lost when the
broker stops, which costs nothing: there are 2^63 ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class ProducerIds:
    def __init__(self, allocate_block: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        """`allocate_block` gives the first id of a new block and the block's length."""
        self._allocate_block = allocate_block
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        while self._next >= self._end:
            async with self._refill:
                if self._next >= self._end:
                    first, length = await self._allocate_block()
                    self._next, self._end = first, first + length
        self._next += 1
        return self._next - 1
