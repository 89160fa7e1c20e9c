"""A simulated group member that consumes, transforms and produces, exactly once.

Each poll is one transaction. Every input message becomes one output message, and the offsets are committed in the same
transaction, under the group's generation (KIP-447). After an abort the member reads again from the committed offsets.
When the end is unknown, it rejoins and fetches the offsets, which waits for pending ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidemill.sim.checks.transactions import Place
from tidemill.sim.clients.base import Client
from tidemill.sim.clients.member import HEARTBEAT_S, POLL_WAIT_MS, Generation, Member, Rejoin
from tidemill.sim.clients.transactional import TRANSACTION_TIMEOUT_MS
from tidemill.sim.clients.transactor import Abortable, Fenced, Transactor
from tidemill.types import TopicPartition

_PATIENCE_S = 8.0


class Transformer(Member):
    """The member's client."""

    _is_read_committed = True

    def __init__(
        self,
        client: Client,
        group: str,
        transactional_id: str,
        topics: Sequence[str],
        outputs: Sequence[TopicPartition],
        pause_s_max: float,
    ) -> None:
        super().__init__(client, group, topics)
        self._pause_s = min(HEARTBEAT_S, pause_s_max / 2)
        self._outputs = list(outputs)
        self._transactor = Transactor(client, transactional_id, TRANSACTION_TIMEOUT_MS)

    async def run(self) -> None:
        await self._client.find_topics(sorted({tp.topic for tp in self._outputs}))
        try:
            await self._start_anew()
            await super().run()
        except Fenced:
            self.is_done = True
        # A newer process has the transactional id; or this one stops, perhaps after a pause in which others took over.
        self._let_go(is_lost=True)

    async def _start_anew(self) -> None:
        while True:
            try:
                await self._transactor.initialise()
            except Fenced:
                if not self._transactor.is_newest:
                    raise
            else:
                return

    async def _poll(self, generation: Generation) -> None:
        await self._beat(generation)
        if not generation.positions:
            await asyncio.sleep(HEARTBEAT_S)
            return
        positions = list(generation.positions.values())
        fetched = await asyncio.gather(*(position.fetch(POLL_WAIT_MS) for position in positions))
        await self._beat(generation)
        sources = [
            Place(position.tp, offset)
            for position, messages in zip(positions, fetched, strict=True)
            for offset, _ in messages
        ]
        changed = {p.tp: p.offset for p in positions if p.offset != self.committed.get(p.tp)}
        if changed:
            await self._transform(generation, sources, changed)
            # Messages accumulate for the next transaction.
            await asyncio.sleep(self._client.rng.random() * self._pause_s)

    async def _transform(
        self, generation: Generation, sources: Sequence[Place], offsets: dict[TopicPartition, int]
    ) -> None:
        try:
            if await self._transact(generation, sources, offsets):
                self.committed.update(offsets)
            else:
                self._rewind(generation)
        except Fenced:
            await self._start_anew()
            # It may have been paused for long, while the group continued without it.
            raise Rejoin(is_lost=True) from None

    async def _transact(
        self, generation: Generation, sources: Sequence[Place], offsets: dict[TopicPartition, int]
    ) -> bool:
        """Run one transaction. Returns whether it was committed."""
        rng, transactor = self._client.rng, self._transactor
        await transactor.begin(_PATIENCE_S)
        try:
            shares: dict[TopicPartition, list[Place]] = {}
            for source in sources:
                shares.setdefault(rng.choice(self._outputs), []).append(source)
            for output, share in shares.items():
                await transactor.write(output, len(share), share)
                await self._beat(generation)
            await transactor.send_offsets(self._group, generation.number, self._member_id, offsets)
            is_commit = rng.random() < 0.85
            await transactor.end(is_commit=is_commit)
            return is_commit
        except Abortable as error:
            await self._abort()
            if error.code is not None:
                self._judge(error.code)
            return False
        except Rejoin:
            await self._abort()
            raise

    async def _abort(self) -> None:
        try:
            await self._transactor.abort()
        except Abortable:
            raise Fenced from None

    def _rewind(self, generation: Generation) -> None:
        for tp in list(generation.positions):
            generation.positions[tp] = self._position(tp, self.committed[tp])
