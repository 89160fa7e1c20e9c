"""A connection whose requests wait to be appended is not read further than a few megabytes."""

from __future__ import annotations

import asyncio
import socket
import struct

from tidemill.broker.net.connection import Connection
from tidemill.broker.net.turns import Turns

MEGABYTE = 1 << 20
FRAME = struct.pack(">i", MEGABYTE) + bytes(MEGABYTE)
COUNT = 20
KEPT_MAX = 4


async def test_reading_pauses_while_too_many_bytes_are_kept() -> None:
    loop = asyncio.get_running_loop()
    kept: list[int] = []
    is_kept = asyncio.Event()

    def keep(connection: Connection, frame: memoryview) -> None:
        connection.add_kept_bytes(len(frame))
        kept.append(len(frame))
        is_kept.set()

    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    connection = Connection(
        loop,
        ours,
        "10.0.0.9:50000",
        ("10.0.0.1", 9092),
        "PLAINTEXT",
        turns=Turns(loop),
        dispatch=keep,
        on_close=lambda _connection, _reason: None,
        frame_bytes_max=2 * MEGABYTE,
    )
    sending = loop.create_task(loop.sock_sendall(theirs, FRAME * COUNT))
    try:
        async with asyncio.timeout(60):
            for done in range(COUNT - KEPT_MAX + 1):
                while len(kept) < done + KEPT_MAX:
                    is_kept.clear()
                    await is_kept.wait()
                for _ in range(20):
                    await asyncio.sleep(0)
                assert len(kept) == done + KEPT_MAX
                connection.add_kept_bytes(-MEGABYTE)
            await sending
    finally:
        connection.close(None)
        theirs.close()
