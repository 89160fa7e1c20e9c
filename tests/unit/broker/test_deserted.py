"""A leader from which no in-sync follower fetches may have been replaced without knowing it."""

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


def test_leader_at_rest_is_not_deserted(world: World) -> None:
    assert not is_deserted(world)


def test_leader_that_is_cut_off_is_deserted_until_followers_fetch_again(world: World) -> None:
    world.cut_off(1)
    world.settle(_SILENCE_S)
    assert is_deserted(world)
    world.heal()
    world.settle(_SILENCE_S)
    assert not is_deserted(world)


def test_fetches_of_one_follower_are_enough(world: World) -> None:
    world.kill(2)
    world.settle(_SILENCE_S)
    assert not is_deserted(world)
    world.kill(3)
    world.settle(_SILENCE_S)
    assert is_deserted(world)


def test_sole_member_of_isr_is_never_deserted(world: World) -> None:
    world.alter_partition = lambda _request: None
    world.change(isr=[1])
    world.cut_off(1)
    world.settle(_SILENCE_S)
    assert not is_deserted(world)


def test_new_leader_is_not_deserted_before_the_first_fetch(world: World) -> None:
    world.cut_off(1)
    world.settle(_SILENCE_S)
    assert not is_deserted(world, since_ms=world[1].replicas.steady_ms())


def test_followers_that_follow_another_leader_have_left_though_they_fetch_other_partitions(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.start()
    world.create_topic(partitions=2)
    world.settle(_SILENCE_S)
    # The first leader does not know it yet.
    world.change(leader=2, to=(2, 3))
    world.settle(1)
    host = world[1]
    assert host.replicas.is_deserted(host.partition(0), 0)
    assert not host.replicas.is_deserted(host.partition(1), 0)
