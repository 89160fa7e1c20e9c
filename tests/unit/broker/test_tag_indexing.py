"""Background indexing for views: its choice of segments, and its behaviour under errors."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.log.batches import T0, append, batch, small_segments
from tests.unit.log.indexed import check_indexes, index_files
from tidemill.broker.disk.cleaning_process import index_in_process
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.partitions.replicas import Replicas
from tidemill.broker.partitions.upkeep import tag_indexing
from tidemill.broker.partitions.upkeep.tag_indexing import Finished, TagIndexer
from tidemill.errors import StorageError
from tidemill.log.files import DiskFiles, Files
from tidemill.log.log import Log
from tidemill.log.segments.segment import TAG_INDEX
from tidemill.log.segments.tag_index_files import Indexing, write_index, write_indexes
from tidemill.sim.platform.disk import SimulatedDisk
from tidemill.types import TopicPartition

NO_PARTS = 1 << 40
TOPIC_ID = bytes(15) + b"\x01"


class Broker:
    """Partitions that views show, and an indexer whose blocking work is done at once."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.shown: list[Partition] = []
        self.during_work: Callable[[], object] = lambda: None
        self.indexer = TagIndexer(files, lambda: self.shown, self._run_blocking)
        self.indexer._part_bytes_at_rest = NO_PARTS

    # What a partition needs of its broker, none of which indexing uses.
    syncer = None

    def propose(self, partition: Partition, proposal: object) -> None: ...
    def reconsider_later(self, partition: Partition) -> None: ...
    def went_offline(self, partition: Partition, reason: str) -> None: ...

    async def _run_blocking(self, function: Callable[[], Any]) -> Any:
        result = function()
        self.during_work()
        return result

    def add(self, name: str) -> Log:
        folder = f"/data/{name}-0"
        self.files.make_folder(folder)
        config = small_segments()
        log = Log(self.files, folder, config, wall_ms=T0)
        self.shown.append(Partition(TopicPartition(name, 0), TOPIC_ID, log, config, cast("Any", self)))
        return log


def fill(log: Log, sealed: int, timestamp: int = T0) -> None:
    """So many sealed segments, on disk, and an active one."""
    while len(log.segments) <= sealed:
        append(log, batch(2, timestamps=[timestamp + len(log.segments)] * 2))
    work = log.sync_work()
    work.run()
    log.synced(work.end_offset, T0)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


async def test_the_newest_segment_comes_first_and_each_is_indexed_once(disk: SimulatedDisk) -> None:
    broker = Broker(disk)
    old, new = broker.add("old"), broker.add("new")
    fill(old, 1)
    fill(new, 2, T0 + 1000)
    order = []
    while await broker.indexer.index_newest():
        order.append((index_files(disk, old.folder), index_files(disk, new.folder)))
    first, second = (segment.base_offset for segment in new.segments[:2])
    assert order == [([], [second]), ([], [first, second]), ([0], [first, second])]
    assert (check_indexes(disk, old), check_indexes(disk, new)) == (1, 2)


def test_only_partitions_that_a_view_shows_are_indexed() -> None:
    views = {name: SimpleNamespace(source="shown") for name in ("view", b"id of the view", "second view")}
    hosted = {name: {0: f"{name}-0", 1: f"{name}-1"} for name in ("plain", "shown", "view")}
    replicas = cast("Any", SimpleNamespace(views=views, by_name=hosted))
    assert [str(each) for each in Replicas.sources_of_views(replicas)] == ["shown-0", "shown-1"]
    replicas.views = {}
    assert list(Replicas.sources_of_views(replicas)) == []


async def test_a_segment_above_the_recovery_point_waits(disk: SimulatedDisk) -> None:
    broker = Broker(disk)
    log = broker.add("t")
    fill(log, 3)
    log.recovery_point = log.segments[2].base_offset - 1
    while await broker.indexer.index_newest():
        pass
    assert index_files(disk, log.folder) == [0]


def _cut(log: Log) -> None:
    log.truncate_to(1)


def _delete_front(log: Log) -> None:
    log.move_start(log.segments[1].base_offset)


@pytest.mark.parametrize("change", [_cut, _delete_front])
async def test_an_index_of_a_log_that_changed_meanwhile_is_dropped(
    disk: SimulatedDisk, change: Callable[[Log], None]
) -> None:
    broker = Broker(disk)
    log = broker.add("t")
    fill(log, 2)
    broker.during_work = lambda: change(log)
    assert await broker.indexer.index_newest()
    assert all(segment.tag_index_key is None for segment in log.segments)
    assert not [name for name in disk.list(log.folder) if TAG_INDEX in name]


async def test_a_partition_that_went_away_meanwhile_is_left_alone(disk: SimulatedDisk) -> None:
    broker = Broker(disk)
    log = broker.add("t")
    fill(log, 1)
    broker.during_work = lambda: setattr(broker.shown[0].reader, "log", None)
    assert await broker.indexer.index_newest()
    assert index_files(disk, log.folder) == []
    assert not await broker.indexer.index_newest()


async def test_a_damaged_segment_is_reported_once_and_the_others_are_indexed(
    disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(disk)
    log = broker.add("t")
    fill(log, 3)
    disk.flip_bit(log.segments[1].path_of("log"), 16)  # the magic byte
    with caplog.at_level(logging.WARNING):
        while await broker.indexer.index_newest():
            pass
    assert index_files(disk, log.folder) == [0, log.segments[2].base_offset]
    assert len(caplog.records) == 1


async def test_on_a_full_disk_it_tries_again_later(disk: SimulatedDisk) -> None:
    broker = Broker(disk)
    log = broker.add("t")
    fill(log, 1)
    disk.fail("write", pattern=f"*{TAG_INDEX}*", error=errno.ENOSPC)
    assert not await broker.indexer.index_newest()
    assert index_files(disk, log.folder) == []
    disk.heal()
    assert await broker.indexer.index_newest()
    assert check_indexes(disk, log) == 1


async def test_a_process_of_its_own_does_the_same(tmp_path: Path) -> None:
    log = Log(DiskFiles(), str(tmp_path), small_segments(), wall_ms=T0)
    fill(log, 2)
    indexings = [Indexing.of(segment) for segment in log.segments[:2]]
    expected = []
    for indexing in indexings:
        write_index(DiskFiles(), indexing)
        expected.append(DiskFiles().read(indexing.path))
        DiskFiles().remove(indexing.path)
    wrong = indexings[0]._replace(segment_size=indexings[0].segment_size - 1, path=f"{tmp_path}/wrong")
    outcomes: list[Exception | None] = []
    await index_in_process([indexings[0], wrong, indexings[1]], outcomes.append)
    first, failed, second = outcomes
    assert (first, second) == (None, None)
    assert isinstance(failed, StorageError)
    assert [DiskFiles().read(indexing.path) for indexing in indexings] == expected
    log.close()


async def test_indexes_of_a_process_are_used_one_by_one_and_what_it_died_of_is_left_out(
    disk: SimulatedDisk,
) -> None:
    broker = Broker(disk)
    log = broker.add("t")
    fill(log, 4)
    good, damaged, deadly, newest = log.segments[:4]
    order: list[int] = []

    async def run(indexings: Sequence[Indexing], finished: Finished) -> None:
        segments = {Indexing.of(segment): segment for segment in log.segments}
        for indexing in indexings:
            segment = segments[indexing]
            order.append(segment.base_offset)
            if segment is deadly:
                raise StorageError("the process died")
            (outcome,) = write_indexes(disk, [indexing])
            finished(StorageError("damaged") if segment is damaged else outcome)
            assert (segment.tag_index_key is None) == (segment is damaged)

    broker.indexer = TagIndexer(disk, lambda: broker.shown, broker._run_blocking, run)
    broker.indexer._size_min = 1
    while await broker.indexer.index_newest():
        pass
    assert order == [each.base_offset for each in (newest, deadly, damaged, good)]
    assert index_files(disk, log.folder) == [good.base_offset, newest.base_offset]


async def test_active_segment_is_indexed_in_parts_when_it_rests_or_has_grown_by_much(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(disk)
    broker.indexer._part_bytes_at_rest = 1
    log = broker.add("t")
    append(log, batch(1))
    active = log.active
    assert not await broker.indexer.index_newest(), "it may grow"
    assert await broker.indexer.index_newest(), "it rested"
    first_end = active.tag_index_end
    assert first_end == active.size
    assert not await broker.indexer.index_newest()
    append(log, batch(1))
    assert not await broker.indexer.index_newest()
    monkeypatch.setattr(tag_indexing, "_PART_BYTES", 1)
    append(log, batch(1))
    assert await broker.indexer.index_newest(), "it has grown by so much"
    assert first_end < active.tag_index_end == active.size
    monkeypatch.undo()
    fill(log, 1)
    while await broker.indexer.index_newest():
        pass
    assert log.segments[0] is active
    assert active.tag_index_part_at(0) is None, "the index of the sealed segment is in their place"
    assert active.tag_index_key is not None


async def test_part_of_a_log_that_was_cut_meanwhile_is_dropped(disk: SimulatedDisk) -> None:
    broker = Broker(disk)
    broker.indexer._part_bytes_at_rest = 1
    log = broker.add("t")
    append(log, batch(1))
    append(log, batch(1))
    assert not await broker.indexer.index_newest()
    broker.during_work = lambda: log.truncate_to(1)
    assert await broker.indexer.index_newest()
    assert log.active.tag_index_end == 0
    assert not [name for name in disk.list(log.folder) if TAG_INDEX in name]
