from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

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
