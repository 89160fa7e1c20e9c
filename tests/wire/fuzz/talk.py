"""One connection of a valid conversation: each request waits for the answer to the one before."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any

from tests.brokers import RunningBroker
from tests.wire import messages
from tests.wire.fuzz.attack import HANG_LIMIT_S, Ledger
from tests.wire.fuzz.frames import Frame
from tests.wire.fuzz.values import Pools


class Talk:
    def __init__(self, ledger: Ledger, pools: Pools, rng: random.Random) -> None:
        self.ledger = ledger
        self.pools = pools
        self.random = rng
        self._number = 0
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, listener: RunningBroker) -> None:
        self._reader, self._writer = await asyncio.open_connection(
            listener.host, listener.port, limit=1 << 20
        )
        self._port = self._writer.get_extra_info("sockname")[1]

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()

    async def ask(self, api: str, version: int, **fields: Any) -> Any:
        self._number += 1
        wire = messages.request(api, version, self._number, **fields)
        frame = Frame(self._number, api, version, "sequence", wire[4:])
        self.ledger.note_sent(self._port, [frame])
        assert self._writer is not None, "it is open"
        self._writer.write(wire)
        try:
            async with asyncio.timeout(HANG_LIMIT_S):
                (size,) = struct.unpack(">i", await self._reader.readexactly(4))
                payload = await self._reader.readexactly(size)
        except TimeoutError:
            self.ledger.find(f"a step of a sequence had no answer within {HANG_LIMIT_S:g} s", frame)
            raise ConnectionError from None
        self.ledger.count(frame, "sequence")
        number, body = messages.read_response(api, version, payload)
        if number != self._number:
            self.ledger.find(f"an answer with number {number}", frame)
        return body
