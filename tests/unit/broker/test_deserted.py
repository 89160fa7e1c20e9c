"""A leader that nobody in sync has asked for anything may have been replaced without hearing of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.broker.replica_world import World

MakeWorld = Callable[..., World]
_SILENCE_S = 4.0


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    world = make_world()
    world.start()
    world.create_topic()
    world.settle(_SILENCE_S)
    return world


def is_deserted(world: World, since_ms: int = 0) -> bool:
    host = world[1]
    return host.replicas.is_deserted(host.partition(), since_ms)


def test_a_leader_at_rest_is_not_deserted(world: World) -> None:
    assert not is_deserted(world)


def test_a_leader_that_is_cut_off_is_until_its_followers_are_back(world: World) -> None:
    world.cut_off(1)
    world.settle(_SILENCE_S)
    assert is_deserted(world)
    world.heal()
    world.settle(_SILENCE_S)
    assert not is_deserted(world)


def test_one_follower_is_enough(world: World) -> None:
    world.kill(2)
    world.settle(_SILENCE_S)
    assert not is_deserted(world)
    world.kill(3)
    world.settle(_SILENCE_S)
    assert is_deserted(world)


def test_nobody_can_replace_a_leader_that_is_in_sync_alone(world: World) -> None:
    world.alter_partition = lambda _request: None
    world.change(isr=[1])
    world.cut_off(1)
    world.settle(_SILENCE_S)
    assert not is_deserted(world)


def test_one_that_has_just_begun_to_lead_waits_for_the_first_fetch(world: World) -> None:
    world.cut_off(1)
    world.settle(_SILENCE_S)
    assert not is_deserted(world, since_ms=world[1].replicas.steady_ms())
