"""A simulated transactional producer: numbered messages to several partitions, in transactions that commit or abort.

Sometimes it exceeds the transaction timeout, gives up during a write, or drops its transaction and starts again under
the same id, like a restarted process. A process that is fenced by a newer one ends; the newest one initialises again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidemill.sim.clients.base import Client
from tidemill.sim.clients.transactor import Abortable, Fenced, Transactor
from tidemill.types import TopicPartition

TRANSACTION_TIMEOUT_MS = 10_000


class TransactionalProducer:
    """The producer's client."""

    def __init__(
        self, client: Client, transactional_id: str, partitions: Sequence[TopicPartition], pause_s_max: float
    ) -> None:
        self._client = client
        self._partitions = list(partitions)
        self._pause_s_max = pause_s_max
        self._transactor = Transactor(client, transactional_id, TRANSACTION_TIMEOUT_MS)
        self.is_done = False

    async def run(self) -> None:
        client, record = self._client, self._client.record
        await client.find_topics(sorted({tp.topic for tp in self._partitions}))
        while not record.is_ending:
            try:
                await self._transactor.initialise()
                while not record.is_ending:
                    if not await self._transact():
                        break
                    await asyncio.sleep(client.rng.random() * self._pause_s_max)
            except Fenced:
                if not self._transactor.is_newest:
                    break
        self.is_done = True

    async def _transact(self) -> bool:
        """Run one transaction. Returns False when it is left open for the next process with this id."""
        rng, transactor = self._client.rng, self._transactor
        await transactor.begin(patience_s=rng.uniform(1, 12))
        try:
            for _ in range(rng.randint(1, 4)):
                await self._write()
                await asyncio.sleep(self._thinking_time_s())
            chance = rng.random()
            if chance < 0.04:
                return False
            await transactor.end(is_commit=chance < 0.75)
        except Abortable:
            await self._abort()
        return True

    async def _write(self) -> None:
        rng = self._client.rng
        await self._transactor.write(rng.choice(self._partitions), rng.randint(1, 3))

    def _thinking_time_s(self) -> float:
        rng = self._client.rng
        chance = rng.random()
        if chance < 0.7:
            return 0.0
        return rng.random() if chance < 0.995 else 1.5 * TRANSACTION_TIMEOUT_MS / 1000

    async def _abort(self) -> None:
        try:
            await self._transactor.abort()
        except Abortable:
            # The abort failed too: only a new epoch helps.
            raise Fenced from None
