"""A node in the test's own loop, a client of it, and a member that joins a group through that client."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

from tests.wire import messages
from tidemill.config import BrokerConfig, load_broker_config

LIMIT_S = 30.0
SESSION_MS = 60_000


def group_config(data_dir: Path, **settings: str) -> BrokerConfig:
    """Groups form at once, and sessions may be short."""
    config, _warnings = load_broker_config(
        {
            "log.dirs": str(data_dir),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "offsets.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "50",
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    return config


class Client:
    """One connection to a node in this very loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, api: str, version: int, **fields: Any) -> Any:
        self._writer.write(messages.request(api, version, **fields))
        async with asyncio.timeout(LIMIT_S):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            return messages.read_response(api, version, await self._reader.readexactly(size))[1]

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def join(client: Client, group: str, session_ms: int, metadata: bytes = b"") -> dict[str, Any]:
    """Into the group and its first generation; returns what a heartbeat has to say."""
    await client.ask("find_coordinator", 1, key=group)
    while True:
        joined = await client.ask(
            "join_group",
            2,
            group_id=group,
            session_timeout=session_ms,
            rebalance_timeout=SESSION_MS,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": metadata}],
        )
        if joined.error_code.name != "coordinator_load_in_progress":
            break
    member = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
    synced = await client.ask("sync_group", 1, **member)
    assert synced.error_code == 0
    return member
