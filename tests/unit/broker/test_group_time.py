"""The time by which the sessions of group members end, when somebody sets the clock."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

from tests.wire import messages
from tidemill.broker.clock import SteadyClock
from tidemill.broker.node import Node
from tidemill.config import load_broker_config

LIMIT_S = 30.0
HOUR_MS = 3_600_000
SESSION_MS = 60_000


class JumpingClock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


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


async def _join(client: Client, group: str, session_ms: int) -> dict[str, Any]:
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
            protocols=[{"name": "range", "metadata": b""}],
        )
        if joined.error_code.name != "coordinator_load_in_progress":
            break
    member = {"group_id": group, "generation_id": joined.generation_id, "member_id": joined.member_id}
    synced = await client.ask("sync_group", 1, **member)
    assert synced.error_code == 0
    return member


async def test_failure_28_a_clock_that_jumps_ends_no_session_and_keeps_no_silent_member(
    tmp_path: Path,
) -> None:
    clock = JumpingClock()
    config, _warnings = load_broker_config(
        {
            "log.dirs": str(tmp_path),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "offsets.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "50",
        }
    )
    node = Node(config, clock=clock)
    await node.start()
    client = Client(*await asyncio.open_connection("127.0.0.1", node.addresses[0][1]))
    try:
        alive = await _join(client, "alive", SESSION_MS)
        for jump_ms in (HOUR_MS, -2 * HOUR_MS, HOUR_MS):
            clock.ms += jump_ms
            # Its initial delay is a timer: when that fires, every session that seems to be over ends.
            await _join(client, f"jump {jump_ms} from {clock.ms}", SESSION_MS)
            assert (await client.ask("heartbeat", 1, **alive)).error_code == 0, jump_ms

        silent = await _join(client, "silent", 50)
        clock.ms -= HOUR_MS
        async with asyncio.timeout(LIMIT_S):
            while (await client.ask("describe_groups", 0, groups=["silent"])).groups[0].members:
                pass
        assert (await client.ask("heartbeat", 1, **silent)).error_code.name == "unknown_member_id"
        assert (await client.ask("heartbeat", 1, **alive)).error_code == 0
    finally:
        await client.close()
        await node.stop()


def test_failure_28_a_steady_clock_starts_at_the_wall_clock_and_follows_the_loop() -> None:
    wall, loop_seconds = JumpingClock(), [1000.5]
    steady = SteadyClock(wall, lambda: loop_seconds[0])
    start_ms = steady.now_ms()
    assert start_ms == wall.ms
    wall.ms += HOUR_MS
    assert steady.now_ms() == start_ms
    loop_seconds[0] += 2.25
    assert steady.now_ms() == start_ms + 2250
    wall.ms -= 3 * HOUR_MS
    assert steady.now_ms() == start_ms + 2250
