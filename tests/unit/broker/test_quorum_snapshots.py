"""Metadata snapshots: written while running, fetched by replicas far behind, and checked for damage."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.unit.broker.quorum_world import TestNode, World
from tests.virtual_time import in_virtual_time
from tidemill.errors import StorageError
from tidemill.protocol.records import Record, build_batch

FOLDER = "/data/__cluster_metadata-0"


async def _snapshot(node: TestNode) -> None:
    """As the driver does it: of the committed state."""
    await node.quorum.write_snapshot(iter(node.listener.values), node.listener.end_offset)


def _files(node: TestNode, suffix: str) -> list[str]:
    return [name for name in node.disk.list(FOLDER) if name.endswith(suffix)]


def _flip(node: TestNode, name: str) -> None:
    node.disk.flip_bit(f"{FOLDER}/{name}", node.disk.size(f"{FOLDER}/{name}") // 2)


async def _with_snapshots(world: World, count: int) -> list[bytes]:
    """Each followed by a record that is only in the log."""
    values: list[bytes] = []
    for number in range(count):
        values += [f"{number} {index}".encode() for index in range(20)]
        await world.commit(*values[-20:])
        await world.agree(*values)
        for node in world.up:
            await _snapshot(node)
    values.append(b"last")
    await world.commit(b"last")
    await world.agree(*values)
    return values


@in_virtual_time
async def test_a_snapshot_and_the_log_after_it_are_the_state() -> None:
    world = World([1], {})
    node = world.nodes[1]
    await node.start()
    assert node.quorum.records_since_snapshot == 0
    values = await _with_snapshots(world, 3)
    assert node.quorum.records_since_snapshot == 1
    assert node.quorum.bytes_since_snapshot == len(b"last")
    # Two are kept, and the log from the older one on.
    assert len(_files(node, ".checkpoint")) == 2
    assert node.quorum.log.log_start_offset == int(_files(node, ".checkpoint")[0][:20])
    assert len(_files(node, ".log")) < 4
    for is_power_failure in (False, True):
        node.kill(power=is_power_failure)
        await node.start()
        assert node.listener.events[0].startswith("restart ")
        await world.agree(*values)
        assert [voter.key.id for voter in node.quorum.voters] == [1]
    await world.stop()


@in_virtual_time
async def test_replica_too_far_behind_fetches_the_snapshot() -> None:
    settings = "controller.quorum.fetch.snapshot.max.bytes"
    world = World([1, 2, 3])
    for node in world.nodes.values():
        node.settings[settings] = "300"
    await world.start()
    await world.commit(b"before")
    await world.agree(b"before")
    leader = await world.leader()
    away = next(node for node in world.up if node is not leader)
    away.kill()
    values = [b"before"]
    for number in range(3):
        values.append(f"snapshot {number}".encode() * 10)
        await world.commit(values[-1])
        await _snapshot(await world.leader())
    await away.start()
    await world.agree(*values)
    assert any(event.startswith("restart ") for event in away.listener.events)
    away.kill(power=True)
    await away.start()
    await world.agree(*values)
    await world.stop()


@in_virtual_time
async def test_failure_16_a_damaged_snapshot_is_made_up_for_by_the_one_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World([1], {})
    node = world.nodes[1]
    await node.start()
    values = await _with_snapshots(world, 3)
    await node.stop()
    _flip(node, _files(node, ".checkpoint")[1])
    await node.start()
    await world.agree(*values)
    assert len(_files(node, ".checkpoint.damaged")) == 1
    # The next one is written, and the broken one is not offered to anybody.
    await world.commit(b"more")
    await _snapshot(node)
    await node.stop()
    await node.start()
    await world.agree(*values, b"more")
    await world.stop()
    assert any("damaged" in message for message in caplog.messages)


@in_virtual_time
async def test_failure_16_the_first_snapshot_is_made_up_for_by_the_whole_log() -> None:
    world = World([1], {})
    node = world.nodes[1]
    await node.start()
    values = await _with_snapshots(world, 1)
    await node.stop()
    await node.start()
    await node.stop()
    _flip(node, _files(node, ".checkpoint")[0])
    await node.start()
    await world.agree(*values)
    await world.stop()


@in_virtual_time
async def test_failure_16_a_node_alone_refuses_to_start_without_its_metadata() -> None:
    world = World([1], {})
    node = world.nodes[1]
    await node.start()
    values = await _with_snapshots(world, 3)
    await node.stop()
    before = node.disk.contents()
    for name in _files(node, ".checkpoint"):
        _flip(node, name)
    for _ in range(2):
        with pytest.raises(StorageError, match="no whole snapshot"):
            await node.start()
    # Nothing was taken for deleted, and the files are still there to be repaired.
    for name in _files(node, ".checkpoint"):
        _flip(node, name)
    assert {path: node.disk.contents()[path] for path in before if ".checkpoint" in path} == {
        path: content for path, content in before.items() if ".checkpoint" in path
    }
    await node.start()
    await world.agree(*values)
    await world.stop()


@in_virtual_time
async def test_failure_16_with_other_voters_the_metadata_is_fetched_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    world = World([1, 2, 3])
    await world.start()
    values = await _with_snapshots(world, 3)
    victim = next(node for node in world.up if node is not world.active())
    await victim.stop()
    for name in _files(victim, ".checkpoint"):
        _flip(victim, name)
    await victim.start()
    assert victim.quorum.log.is_incomplete
    await world.agree(*values)
    assert not victim.quorum.log.is_incomplete
    victim.kill(power=True)
    await victim.start()
    assert not victim.quorum.log.is_incomplete
    await world.agree(*values)
    await world.stop()
    assert any("does not vote until" in message for message in caplog.messages)
    assert any("complete again" in message for message in caplog.messages)


@in_virtual_time
async def test_a_snapshot_with_nothing_after_it_completes_a_log_too() -> None:
    """While nothing changes, no record comes that would show it."""
    world = World([1, 2, 3])
    await world.start()
    leader = await world.leader()
    victim = next(node for node in world.up if node is not leader)
    await world.commit(b"a")
    await world.agree(b"a")
    await victim.stop()
    # Two, so that the log below the first is gone and the victim cannot do without.
    await _snapshot(leader)
    await world.commit(b"b")
    await world.until(lambda: leader.listener.values == [b"a", b"b"])
    await _snapshot(leader)
    victim.disk.flip_bit(victim.log_path, 100)
    await victim.start()
    assert victim.quorum.log.is_incomplete
    await world.agree(b"a", b"b")
    await world.until(lambda: not victim.quorum.log.is_incomplete)
    assert victim.quorum.log.log_start_offset == victim.quorum.log.log_end_offset
    await world.stop()


@in_virtual_time
async def test_failure_15_replica_that_lost_its_log_does_not_vote() -> None:
    world = World([1, 2, 3])
    await world.start()
    await world.commit(b"a")
    await world.agree(b"a")
    leader = await world.leader()
    behind, damaged = (node for node in world.up if node is not leader)
    behind.kill()
    # Committed by the leader and the one whose disk goes bad.
    await world.commit(b"b")
    await world.until(lambda: damaged.listener.values == [b"a", b"b"])
    leader.kill()
    await damaged.stop()
    damaged.disk.flip_bit(damaged.log_path, 100)
    await damaged.start()
    await behind.start()
    assert damaged.quorum.log.is_incomplete
    # A majority of the voters is up, but no voter has everything.
    await asyncio.sleep(30)
    assert world.active() is None
    await leader.start()
    await world.agree(b"a", b"b")
    assert not damaged.quorum.log.is_incomplete
    await world.commit(b"c")
    await world.agree(b"a", b"b", b"c")
    await world.stop()


@in_virtual_time
async def test_failure_15_a_folder_that_was_lost_whole_is_noticed() -> None:
    world = World([1, 2, 3])
    await world.start()
    await world.commit(b"a")
    await world.agree(b"a")
    victim = world.nodes[2]
    for node in world.up:
        node.cluster_id = "cluster"
    victim.kill()
    victim.disk.remove(FOLDER)
    await victim.start()
    assert victim.quorum.log.is_incomplete
    await world.agree(b"a")
    assert not victim.quorum.log.is_incomplete
    await world.stop()


@in_virtual_time
async def test_a_snapshot_damaged_on_its_way_is_fetched_again(caplog: pytest.LogCaptureFixture) -> None:
    world = World([1, 2, 3])
    await world.start()
    leader = await world.leader()
    away = next(node for node in world.up if node is not leader)
    away.kill()
    values = []
    for number in range(3):
        values.append(f"{number}".encode())
        await world.commit(values[-1])
        await _snapshot(leader)
    name = _files(leader, ".checkpoint")[-1]
    _flip(leader, name)
    await away.start()
    await asyncio.sleep(3)
    assert away.listener.values == []
    assert away.failure is None
    _flip(leader, name)
    await world.agree(*values)
    await world.stop()
    assert any("fetched snapshot" in message for message in caplog.messages)


@in_virtual_time
async def test_the_directory_of_an_earlier_version_still_loads() -> None:
    """Data records of epoch 1, a snapshot without header and footer, no quorum-state."""

    def batch(values: list[bytes], base_offset: int) -> bytes:
        records = (Record(base_offset + number, 1_000, None, value) for number, value in enumerate(values))
        return bytes(build_batch(records, base_offset=base_offset, leader_epoch=1))

    world = World([1], {})
    node = world.nodes[1]
    node.disk.make_folder(FOLDER)
    node.disk.replace(f"{FOLDER}/{2:020d}-{1:010d}.checkpoint", batch([b"a", b"b"], 0))
    node.disk.replace(f"{FOLDER}/{2:020d}.log", batch([b"c"], 2) + batch([b"d"], 3))
    await node.start()
    await world.leader()
    assert node.listener.values == [b"a", b"b", b"c", b"d"]
    assert node.quorum.epoch == 2
    await world.commit(b"e")
    await node.stop()
    await node.start()
    await world.leader()
    assert node.listener.values == [b"a", b"b", b"c", b"d", b"e"]
    assert [voter.key.id for voter in node.quorum.voters] == [1]
    await world.stop()
