"""The metadata log and the quorum of one node, stopped at every step: acknowledged data is there, nothing is invented.

`kill -9` keeps all written data; a power failure keeps the synced data and any part of the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from tests.unit.broker.quorum_world import World
from tests.virtual_time import run_in_virtual_time
from tidemill.broker.quorum.log import MetadataLog
from tidemill.broker.quorum.records import data_batch
from tidemill.broker.quorum.snapshots import SnapshotFiles
from tidemill.raft.log import SnapshotKey
from tidemill.raft.voters import ReplicaKey, Voter, VoterSet
from tidemill.sim.platform.disk import CutPoint, SimulatedDisk, Stopped, every_cut_point

FOLDER = "/data/__cluster_metadata-0"
NOW_MS = 1_700_000_000_000
VOTERS = VoterSet(Voter(ReplicaKey(each)) for each in (1, 2, 3))


@dataclass
class History:
    """States that may be found: all values from the beginning, and how many of them were promised."""

    possible: list[tuple[list[bytes], int]] = field(default_factory=lambda: [([], 0)])
    epoch_of: dict[bytes, int] = field(default_factory=dict)

    @property
    def now(self) -> tuple[list[bytes], int]:
        return self.possible[-1]


class Store:
    """Runs the operations of `Quorum` on its log. The history first records what may be found after a crash."""

    def __init__(self, disk: SimulatedDisk, history: History) -> None:
        disk.make_folder(FOLDER)
        disk.sync_folder("/")
        disk.sync_folder("/data")
        self.disk = disk
        self.history = history
        self.log = MetadataLog(disk, FOLDER, VOTERS, NOW_MS)

    def append(self, epoch: int, *values: bytes) -> None:
        before, promised = self.history.now
        self.history.epoch_of.update(dict.fromkeys(values, epoch))
        self.history.possible = [([*before, *values], promised)]
        self.log.append_values(values, epoch, NOW_MS)

    def append_fetched(self, epoch: int, *values: bytes) -> None:
        before, promised = self.history.now
        self.history.epoch_of.update(dict.fromkeys(values, epoch))
        self.history.possible = [([*before, *values], promised)]
        content, offset = bytearray(), self.log.log_end_offset
        for number, value in enumerate(values):
            content += data_batch([value], offset + number, epoch, NOW_MS)
        self.log.check_fetched(memoryview(content), offset, epoch)
        self.log.append_fetched(content, NOW_MS)

    def sync(self) -> None:
        self.log.sync(NOW_MS)
        values, _ = self.history.now
        self.history.possible = [(values, len(values))]

    def truncate(self, end_offset: int) -> None:
        values, promised = self.history.now
        promised = min(promised, end_offset)
        self.history.possible = [(values, promised), (values[:end_offset], promised)]
        self.log.truncate(end_offset)
        self.history.possible = [(values[:end_offset], promised)]

    def snapshot(self, end_offset: int) -> None:
        values, _ = self.history.now
        key = SnapshotKey(end_offset, self.log.epoch_before(end_offset))
        self.log.snapshots.write(key, values[:end_offset], None, NOW_MS)
        for path in self.log.snapshot_written(key, NOW_MS):
            self.disk.remove(path)

    def install(self, content: bytes, key: SnapshotKey, values: list[bytes]) -> None:
        for position in range(0, len(content), 100):
            self.log.snapshots.receive(key, position, content[position : position + 100])
        self.log.snapshots.check_received(key)
        self.history.epoch_of.update(dict.fromkeys(values, key.epoch))
        self.history.possible += [(values, len(values))]
        self.log.install(key, NOW_MS)
        self.history.possible = [(values, len(values))]


def _values(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def _foreign_snapshot(key: SnapshotKey, values: list[bytes]) -> bytes:
    disk = SimulatedDisk()
    disk.make_folder("/leader")
    SnapshotFiles(disk, "/leader").write(key, values, None, NOW_MS)
    return disk.read(f"/leader/{key.end_offset:020d}-{key.epoch:010d}.checkpoint")


def _truncating(disk: SimulatedDisk, history: History) -> None:
    store = Store(disk, history)
    store.append(1, *_values("a", 3))
    store.sync()
    store.append(1, b"b")
    store.append(2, *_values("lost", 2))
    store.sync()
    store.truncate(4)
    store.append_fetched(3, *_values("c", 3))
    store.sync()
    store.append(3, b"unsynced")
    store.log.close()
    values, _ = history.now
    history.possible = [(values, len(values))]


def _snapshots(disk: SimulatedDisk, history: History) -> None:
    store = Store(disk, history)
    for number in range(3):
        store.append(number + 1, *_values(f"{number} ", 2))
        store.append(number + 1, f"{number} end".encode())
        store.sync()
        store.snapshot(store.log.log_end_offset - 1)
    store.append(4, b"after")
    store.sync()
    store.log.release()


def _installing(disk: SimulatedDisk, history: History) -> None:
    store = Store(disk, history)
    store.append(1, *_values("a", 3))
    store.sync()
    store.snapshot(3)
    # Longer than the leader's log, with an epoch that committed nothing.
    store.append(2, *_values("lost", 30))
    store.sync()
    key, values = SnapshotKey(20, 5), _values("leader ", 20)
    store.install(_foreign_snapshot(key, values), key, values)
    store.append_fetched(5, *_values("more", 2))
    store.sync()
    store.truncate(21)
    store.append_fetched(6, b"end")
    store.sync()
    store.log.release()


def _survivors(cut: CutPoint[History]) -> Iterator[SimulatedDisk]:
    yield cut.disk.kill()
    yield cut.disk.crash(Random(1), keep="nothing")
    yield cut.disk.crash(Random(1), keep="everything")
    for seed in range(3):
        yield cut.disk.crash(Random(seed))


def _judge(cut: CutPoint[History], disk: SimulatedDisk) -> None:
    for _ in range(2):
        disk.make_folder(FOLDER)
        log = MetadataLog(disk, FOLDER, VOTERS, NOW_MS)
        snapshot = log.latest_snapshot
        found: list[bytes] = list(log.snapshots.values(snapshot)) if snapshot else []
        start = snapshot.end_offset if snapshot else 0
        assert len(found) == start
        for end_offset, records in log.records(start, log.log_end_offset):
            assert [offset for offset, _ in records] == list(range(len(found), end_offset))
            found += [value for _, value in records]
        assert len(found) == log.log_end_offset, str(cut)
        fits = [
            found[:promised] == values[:promised] and found == values[: len(found)]
            for values, promised in cut.history.possible
            if len(found) >= promised
        ]
        assert any(fits), f"{cut}: {found} is none of {cut.history.possible}"
        for offset in range(max(log.log_start_offset, 1), log.log_end_offset + 1):
            assert log.epoch_before(offset) == cut.history.epoch_of[found[offset - 1]], str(cut)
        assert not log.is_incomplete
        log.release()
        # The second open finds the same: the first one has made it durable.
        disk = disk.crash(Random(1), keep="nothing")


@pytest.mark.parametrize("scenario", [_truncating, _snapshots, _installing])
def test_the_metadata_log_at_every_cut(scenario: object) -> None:
    assert callable(scenario)
    cuts = 0
    for cut in every_cut_point(scenario, History, stride_bytes=37):
        cuts += 1
        for disk in _survivors(cut):
            _judge(cut, disk)
    assert cuts > 40


@dataclass
class Acknowledged:
    values: list[bytes] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)


def _quorum_of_one(disk: SimulatedDisk, acknowledged: Acknowledged) -> None:
    async def main() -> None:
        world = World([1], {})
        node = world.nodes[1]
        node.disk = disk
        disk.make_folder("/data")
        disk.sync_folder("/")

        async def until_committed(value: bytes) -> None:
            while value not in node.listener.values:
                if disk._is_dead:
                    raise Stopped
                await asyncio.sleep(0.001)
            acknowledged.values.append(value)
            acknowledged.epochs.append(node.quorum.epoch)

        async def until_active() -> None:
            while not node.quorum.is_active:
                if disk._is_dead:
                    raise Stopped
                await asyncio.sleep(0.001)

        for start in range(2):
            await node.start()
            await until_active()
            for number in range(3):
                value = f"{start} {number}".encode()
                node.quorum.append([value])
                await until_committed(value)
            await node.quorum.write_snapshot(iter(node.listener.values), node.listener.end_offset)
            if start == 0:
                await node.quorum.close()
        node.quorum.log.release()

    run_in_virtual_time(main(), is_death_expected=True)


def test_a_quorum_of_one_at_every_cut() -> None:
    """Every value that was committed is there again, in its order, and the epoch only grows."""
    cuts = 0
    for cut in every_cut_point(_quorum_of_one, Acknowledged, torn_writes=()):
        cuts += 1
        for disk in (cut.disk.kill(), cut.disk.crash(Random(1), keep="nothing"), cut.disk.crash(Random(2))):
            _restart(cut, disk)
    assert cuts > 60


def _restart(cut: CutPoint[Acknowledged], disk: SimulatedDisk) -> None:
    async def main() -> None:
        world = World([1], {})
        node = world.nodes[1]
        node.disk = disk
        disk.make_folder("/data")
        await node.start()
        await world.leader()
        found, acknowledged = node.listener.values, cut.history.values
        assert found[: len(acknowledged)] == acknowledged, str(cut)
        assert len(found) <= len(acknowledged) + 1, str(cut)
        assert node.quorum.epoch > max(cut.history.epochs, default=0), str(cut)
        await world.stop()

    run_in_virtual_time(main())
