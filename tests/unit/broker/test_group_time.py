"""Sessions of group members when the wall clock is set."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.unit.broker.node_client import LIMIT_S, SESSION_MS, Client, group_config, join
from tidemill.broker.clock import Clock
from tidemill.broker.node import Node
from tidemill.broker.platform import real_platform

HOUR_MS = 3_600_000


class JumpingClock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.ms


async def test_failure_28_a_clock_that_jumps_ends_no_session_and_keeps_no_silent_member(
    tmp_path: Path,
) -> None:
    clock = JumpingClock()
    node = Node(group_config(tmp_path), real_platform(clock=clock))
    await node.start()
    client = Client(*await asyncio.open_connection("127.0.0.1", node.addresses[0][1]))
    try:
        alive = await join(client, "alive", SESSION_MS)
        for jump_ms in (HOUR_MS, -2 * HOUR_MS, HOUR_MS):
            clock.ms += jump_ms
            # Its initial delay is a timer: when that fires, every session that seems to be over ends.
            await join(client, f"jump {jump_ms} from {clock.ms}", SESSION_MS)
            assert (await client.ask("heartbeat", 1, **alive)).error_code == 0, jump_ms

        silent = await join(client, "silent", 500)
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
    clock = Clock(wall, lambda: loop_seconds[0])
    start_ms = clock.steady_ms()
    assert start_ms == wall.ms
    wall.ms += HOUR_MS
    assert clock.steady_ms() == start_ms
    loop_seconds[0] += 2.25
    assert clock.steady_ms() == start_ms + 2250
    wall.ms -= 3 * HOUR_MS
    assert clock.steady_ms() == start_ms + 2250
