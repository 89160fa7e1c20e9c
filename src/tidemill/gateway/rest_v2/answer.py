"""`RecordsAnswer`: an answer whose records count as read only when all of it has been handed to the network.

It is sent in pieces, each after the network has taken most of those before it. When the caller goes away before the
last piece, or takes nothing for too long, the instance gets the records back. What the network has taken and then
loses cannot be known from here; only a commit by the caller shows that.
"""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidemill.gateway.rest_v2.instance import Read
from tidemill.gateway.rest_v2.registry import Entry, Instances

_PIECE_BYTES = 64 * 1024
_PIECE_S = 10.0
_TURNS = 3


async def until_gone(receive: Receive) -> None:
    """Returns when the caller has closed its connection. The request's body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


class RecordsAnswer(Response):
    def __init__(
        self,
        body: bytes,
        media_type: str,
        *,
        instances: Instances,
        entry: Entry,
        read: Read,
        gone: asyncio.Task[None],
    ) -> None:
        super().__init__(body, media_type=media_type)
        self._instances = instances
        self._entry = entry
        self._read = read
        self._gone = gone

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        is_delivered = False
        try:
            with self._instances.use_of(self._entry):
                is_delivered = await self._send(send)
        except TimeoutError:
            # The server closes the connection of an answer that has no end.
            return
        finally:
            self._gone.cancel()
            self._entry.instance.settle(self._read, is_delivered=is_delivered)

    async def _is_gone(self) -> bool:
        # A broken connection accepts data silently until the event loop has informed the protocol, and that the task.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        return self._gone.done()

    async def _send(self, send: Send) -> bool:
        body = bytes(self.body)
        pieces = [body[i : i + _PIECE_BYTES] for i in range(0, len(body), _PIECE_BYTES)]
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in pieces[:-1]:
            await _in_time(send, piece, is_last=False)
            if await self._is_gone():
                return False
        if await self._is_gone():
            return False
        await _in_time(send, pieces[-1], is_last=True)
        return True


async def _in_time(send: Send, piece: bytes, *, is_last: bool) -> None:
    async with asyncio.timeout(_PIECE_S):
        await send({"type": "http.response.body", "body": piece, "more_body": not is_last})
