"""How a broker joins, when the controller is in no state to let it in."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tidemill.broker.lifecycle import Lifecycle
from tidemill.config import load_broker_config
from tidemill.errors import ApiError, ConfigError, ErrorCode
from tidemill.log.datadir import Identity


class Refusing:
    """A controller in this very process, whose disk is full: it answers before anybody else gets a turn."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, _request: object, *, timeout_s: float) -> None:
        self.asked += 1
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "No space left on device")


async def test_a_refusal_that_comes_at_once_does_not_hold_up_the_loop() -> None:
    config, _ = load_broker_config({"initial.broker.registration.timeout.ms": "500"})
    driver = Refusing()
    lifecycle = Lifecycle(config, cast("Any", driver), lambda: bytes(16), lambda _: None)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.02)
            turns += 1

    counting = asyncio.create_task(count_turns())
    with pytest.raises(ConfigError, match="No space left on device"):
        await lifecycle.register(Identity("cluster", 1, "AAAAAAAAAAAAAAAAAAAAAA"), [], -1)
    counting.cancel()
    assert 2 <= driver.asked <= 6
    assert turns >= 5
