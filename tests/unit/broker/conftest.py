from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.authorized_node import Authorized, authorized_node
from tests.unit.broker.replica_world import World


@pytest.fixture
def make_world() -> Iterator[Callable[..., World]]:
    """Brokers on virtual time; taken apart at the end."""
    worlds: list[World] = []

    def make(*args: Any, **settings: Any) -> World:
        worlds.append(World(*args, **settings))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
async def authorized(tmp_path: Path) -> AsyncIterator[Authorized]:
    async with authorized_node(tmp_path) as served:
        yield served
