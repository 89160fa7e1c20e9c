"""A leader may have been replaced without knowing it when neither the metadata nor every in-sync follower reaches it."""

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


def is_deserted(world: World, index: int = 0) -> bool:
    host = world[1]
    return host.replicas.is_deserted(host.partition(index))


def test_leader_at_rest_is_not_deserted(world: World) -> None:
    assert not is_deserted(world)


def test_leader_that_is_cut_off_is_deserted_until_followers_fetch_again(world: World) -> None:
    world.cut_off(1)
    world.settle(_SILENCE_S)
    assert is_deserted(world)
    world.heal()
    world.settle(_SILENCE_S)
    assert not is_deserted(world)


def test_silent_follower_may_lead_unless_the_metadata_is_known(world: World) -> None:
    world.kill(2)
    world.settle(_SILENCE_S)
    assert is_deserted(world)
    world[1].metadata_known_ms = world[1].replicas.steady_ms()
    assert not is_deserted(world)
    world.settle(_SILENCE_S)
    assert is_deserted(world)


def test_follower_that_follows_other_partitions_only_may_lead_this_one(make_world: MakeWorld) -> None:
    world = make_world()
    world.start()
    world.create_topic(partitions=2)
    world.settle(_SILENCE_S)
    world.change(leader=2, to=[2, 3])
    world.settle(_SILENCE_S)
    assert is_deserted(world, 0)
    assert not is_deserted(world, 1)


def test_fetch_that_was_long_under_way_confirms_nothing(world: World) -> None:
    world.cut_off(1)
    world.change(leader=2, to=[2, 3])
    world.settle(_SILENCE_S)
    world.heal()
    world.settle(0.5)
    assert is_deserted(world)


def test_sole_member_of_isr_is_never_deserted(world: World) -> None:
    world.alter_partition = lambda _request: None
    world.change(isr=[1])
    world.cut_off(1)
    world.settle(_SILENCE_S)
    assert not is_deserted(world)


def is_succession_over(world: World, since_ms: int) -> bool:
    host = world[2]
    return host.replicas.is_succession_over(host.partition(), since_ms)


def test_succession_is_over_when_the_old_leader_follows_the_new_one(world: World) -> None:
    began_ms = world[2].replicas.steady_ms()
    world.change(leader=2)
    world.settle(1)
    assert is_succession_over(world, began_ms)


def test_succession_lasts_until_an_old_leader_that_does_not_know_is_deserted(world: World) -> None:
    began_ms = world[2].replicas.steady_ms()
    world.change(leader=2, to=[2, 3])
    world.settle(1)
    assert not is_succession_over(world, began_ms)
    world.settle(_SILENCE_S)
    assert is_deserted(world)
    assert is_succession_over(world, began_ms)


def test_succession_lasts_while_an_old_leader_outside_of_the_isr_may_not_know(world: World) -> None:
    """Found by seed 101247: it had been fenced, and its followers had proved to it until lately that it led."""
    began_ms = world[2].replicas.steady_ms()
    world.cut_off(1)
    world.change(leader=2, isr=[2, 3], to=[2, 3])
    world.settle(1)
    assert not is_succession_over(world, began_ms)
    world.settle(_SILENCE_S)
    assert is_succession_over(world, began_ms)
