"""Background compaction: its choice of logs, its checkpoints, and its behaviour under errors."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.log.compacted import (
    committed,
    end_transaction,
    latest,
    offsets,
    put,
    records,
    seal,
    topic_config,
)
from tidemill.broker.disk.cleaning_process import clean_in_process
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.partitions.upkeep.compaction import Compactor
from tidemill.config import TopicConfig, load_broker_config
from tidemill.errors import StorageError
from tidemill.log.cleaning.cleanable import find_dirt, plan_cleaning
from tidemill.log.cleaning.cleaner import SourceSegment, clean
from tidemill.log.datadir import DataDir
from tidemill.log.files import DiskFiles, Files
from tidemill.log.log import Log
from tidemill.log.segments.segment import segment_name
from tidemill.protocol.records import TRANSACTIONAL
from tidemill.sim.platform.disk import SimulatedDisk, Step
from tidemill.types import TopicPartition

TOPIC_ID = bytes(15) + b"\x01"
CHECKPOINT = "/data/cleaner-offset-checkpoint"


class Broker:
    """A data directory with compacted partitions, and a compactor whose blocking work is done at once."""

    def __init__(self, files: Files, **settings: str) -> None:
        self.files = files
        self.data_dir = DataDir(files, "/data", 1)
        self.partitions: list[Partition] = []
        self.after_blocking: Callable[[], None] = lambda: None
        properties = {name.replace("_", "."): value for name, value in settings.items()}
        self.compactor = Compactor(
            load_broker_config(properties)[0],
            files,
            self.data_dir,
            self,
            lambda: self.partitions,
            self._run_blocking,
        )

    def wall_ms(self) -> int:
        return 1_000

    # What a partition needs of its broker, none of which compaction uses.
    syncer = None

    def propose(self, partition: Partition, proposal: object) -> None: ...
    def reconsider_later(self, partition: Partition) -> None: ...
    def went_offline(self, partition: Partition, reason: str) -> None: ...

    async def _run_blocking(self, function: Callable[[], Any]) -> Any:
        result = function()
        self.after_blocking()
        return result

    def add(self, name: str, config: TopicConfig | None = None) -> tuple[Partition, Log]:
        tp = TopicPartition(name, 0)
        config = config or topic_config(min_cleanable_dirty_ratio=0.3)
        log = Log(self.files, self.data_dir.create_folder(tp, TOPIC_ID), config, wall_ms=0)
        partition = Partition(tp, TOPIC_ID, log, config, cast("Any", self))
        self.partitions.append(partition)
        return partition, log

    def fill(self, partition: Partition, *keys: bytes) -> None:
        log = partition.log
        assert log is not None
        for key in keys:
            put(log, (key, b"v" * 50))
        seal(log)
        partition.reader.high_watermark = log.log_end_offset


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


async def test_the_dirtiest_log_comes_first_and_each_is_cleaned_once(disk: SimulatedDisk) -> None:
    broker = Broker(disk)
    (half, half_log), (dirty, dirty_log) = broker.add("half"), broker.add("dirty")
    broker.fill(half, b"a", b"a")
    assert await broker.compactor.clean_dirtiest()
    broker.fill(half, b"a", b"b")
    broker.fill(dirty, b"a", b"b", b"a")
    assert await broker.compactor.clean_dirtiest()
    assert (offsets(dirty_log), offsets(half_log)) == ([1, 2], [1, 2, 3])
    assert await broker.compactor.clean_dirtiest()
    assert offsets(half_log) == [2, 3]
    assert not await broker.compactor.clean_dirtiest()
    assert disk.read(CHECKPOINT) == b"0\n2\nhalf 0 4\ndirty 0 3\n"


def kind_of(step: Step) -> str | None:
    if step.operation in ("sync_folder", "replace"):
        return step.operation
    if step.operation == "remove" and step.path.endswith(".deleted"):
        return "remove"
    if step.operation == "rename":
        old, new = step.path.split(" -> ")
        if new.endswith(".deleted"):
            return "old segments go"
        return "final names" if old.endswith(".swap") else "decided"
    return None


async def test_each_step_of_the_swap_is_on_disk_before_the_next(disk: SimulatedDisk) -> None:
    """A file system may reorder what was not synced; then old segments could go before the new ones are there."""
    broker = Broker(disk)
    partition, _ = broker.add("t")
    broker.fill(partition, *[b"a"] * 12)
    done = len(disk.trace)
    assert await broker.compactor.clean_dirtiest()
    kinds = [kind for step in disk.trace[done:] if (kind := kind_of(step)) is not None]
    assert [kind for kind, _ in groupby(kinds)] == [
        "decided",
        "sync_folder",
        "old segments go",
        "sync_folder",
        "final names",
        "sync_folder",
        "replace",
        "remove",
    ]


async def test_nothing_at_or_behind_an_open_transaction_is_cleaned(disk: SimulatedDisk) -> None:
    broker = Broker(disk)
    partition, log = broker.add("t", topic_config(min_cleanable_dirty_ratio=0.3, segment_bytes=10_000))
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    put(log, (b"b", b"1"), attributes=TRANSACTIONAL, producer_id=7, sequence=0)
    broker.fill(partition, b"a", b"a")
    assert await broker.compactor.clean_dirtiest()
    assert offsets(log) == [1, 2, 3, 4]
    assert not await broker.compactor.clean_dirtiest()
    end_transaction(log, 7, commit=False)
    broker.fill(partition, b"c")
    assert await broker.compactor.clean_dirtiest()
    assert [(record.offset, record.key) for record in committed(log)] == [(4, b"a"), (6, b"c")]


async def test_nothing_above_the_high_watermark_is_cleaned(disk: SimulatedDisk) -> None:
    broker = Broker(disk)
    partition, log = broker.add("t")
    broker.fill(partition, b"a", b"a", b"a")
    partition.reader.high_watermark = 2
    assert await broker.compactor.clean_dirtiest()
    assert offsets(log) == [1, 2]


async def test_a_small_map_takes_several_rounds(disk: SimulatedDisk) -> None:
    broker = Broker(disk, log_cleaner_dedupe_buffer_size=str(4 * 24))
    partition, log = broker.add("t", topic_config(min_cleanable_dirty_ratio=0.0))
    keys = [b"%d" % n for n in range(10)]
    broker.fill(partition, *keys, *keys)
    rounds = 0
    while await broker.compactor.clean_dirtiest():
        rounds += 1
    assert rounds > 4
    assert offsets(log) == list(range(10, 20))


async def test_only_compacted_topics_are_cleaned(disk: SimulatedDisk) -> None:
    broker = Broker(disk)
    partition, log = broker.add("t", topic_config(cleanup_policy=("delete",)))
    broker.fill(partition, b"a", b"a")
    assert not await broker.compactor.clean_dirtiest()
    assert offsets(log) == [0, 1]


async def test_a_log_that_cannot_be_cleaned_is_reported_once_and_the_others_go_on(
    disk: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(disk)
    (bad, bad_log), (good, good_log) = broker.add("bad"), broker.add("good")
    for partition in (bad, good):
        broker.fill(partition, b"a", b"a")
    disk.flip_bit(bad_log.segments[0].path_of("log"), bad_log.segments[0].size - 3)
    with caplog.at_level(logging.ERROR):
        while await broker.compactor.clean_dirtiest():
            pass
    assert ["bad-0 cannot be compacted" in message for message in caplog.messages] == [True]
    assert offsets(good_log) == [1]
    assert bad.log is bad_log


async def test_a_full_disk_is_tried_again_later(disk: SimulatedDisk) -> None:
    broker = Broker(disk)
    partition, log = broker.add("t")
    broker.fill(partition, b"a", b"a")
    disk.fail("write", pattern="*.cleaned", error=errno.ENOSPC)
    assert not await broker.compactor.clean_dirtiest()
    assert not [name for name in disk.list(log.folder) if name.endswith(".cleaned")]
    disk.heal()
    assert await broker.compactor.clean_dirtiest()
    assert offsets(log) == [1]


async def test_a_disk_that_fails_during_the_swap_takes_the_partition_offline(disk: SimulatedDisk) -> None:
    broker = Broker(disk)
    partition, _ = broker.add("t")
    broker.fill(partition, b"a", b"a")
    disk.fail("rename", pattern="*.deleted")
    assert await broker.compactor.clean_dirtiest()
    assert partition.log is None
    disk.heal()
    survivor = Log(disk.kill(), "/data/t-0", topic_config(), wall_ms=0, is_clean=False)
    assert latest(records(survivor)) == {b"a": b"v" * 50}


@pytest.mark.parametrize("step", range(4))
async def test_a_topic_deleted_at_any_step_is_left_alone(
    disk: SimulatedDisk, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(disk)
    partition, log = broker.add("t")
    broker.fill(partition, b"a", b"a")
    steps = iter(range(10))

    def delete() -> None:
        if next(steps) == step:
            partition.release().release()
            disk.rename(log.folder, "/data/t-0.gone-delete")

    broker.after_blocking = delete
    assert await broker.compactor.clean_dirtiest()
    assert not disk.exists(log.folder)
    assert not disk.exists(CHECKPOINT)
    assert caplog.messages == []


@pytest.mark.parametrize("step", range(4))
async def test_delete_records_at_any_step_wins(disk: SimulatedDisk, step: int) -> None:
    broker = Broker(disk)
    partition, log = broker.add("t")
    broker.fill(partition, *[b"%d" % (n % 6) for n in range(12)])
    steps = iter(range(100))

    def delete_records() -> None:
        if next(steps) == step:
            for path in log.move_start(8):
                disk.remove(path)

    broker.after_blocking = delete_records
    while await broker.compactor.clean_dirtiest():
        pass
    log.check_invariants()
    assert offsets(log) == [8, 9, 10, 11]
    again = Log(disk.kill(), log.folder, log.config, wall_ms=0, is_clean=False, log_start_offset=8)
    assert offsets(again) == [8, 9, 10, 11]


async def test_failure_21_a_recreated_topic_does_not_inherit_where_the_old_one_was_clean(
    disk: SimulatedDisk,
) -> None:
    broker = Broker(disk)
    partition, _ = broker.add("t")
    broker.fill(partition, b"a", b"a")
    assert await broker.compactor.clean_dirtiest()
    assert disk.read(CHECKPOINT) == b"0\n1\nt 0 2\n"
    broker.data_dir.mark_folder_deleted(partition.name, TOPIC_ID)
    broker.data_dir.create_folder(partition.name, bytes(16))
    assert disk.read(CHECKPOINT) == b"0\n0\n"
    assert DataDir(disk.kill(), "/data", 2).first_dirty_offset(partition.name) is None


async def test_it_runs_by_itself_and_stops(disk: SimulatedDisk) -> None:
    broker = Broker(disk, log_cleaner_backoff_ms="0")
    partition, log = broker.add("t")
    broker.fill(partition, b"a", b"a")
    cleaned = asyncio.Event()
    broker.after_blocking = lambda: cleaned.set() if disk.exists(CHECKPOINT) else None
    broker.compactor.start()
    await asyncio.wait_for(cleaned.wait(), 30)
    assert offsets(log) == [1]
    await broker.compactor.stop()


async def test_it_can_be_switched_off(disk: SimulatedDisk) -> None:
    broker = Broker(disk, log_cleaner_enable="false", log_cleaner_backoff_ms="0")
    partition, log = broker.add("t")
    broker.fill(partition, b"a", b"a")
    broker.compactor.start()
    for _ in range(20):
        await asyncio.sleep(0)
    assert offsets(log) == [0, 1]
    await broker.compactor.stop()


def small_log(folder: Path) -> Log:
    files = DiskFiles()
    log = Log(files, str(folder), topic_config(), wall_ms=0)
    for number in range(40):
        put(log, (b"%d" % (number % 3), b"v" * 20))
    seal(log)
    return log


def taken_cleaned_files(folder: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in folder.glob("*.cleaned")}
    for name in found:
        (folder / name).unlink()
    return found


async def test_a_process_of_its_own_does_the_same_as_a_thread(tmp_path: Path) -> None:
    log = small_log(tmp_path)
    cleaning = plan_cleaning(log, find_dirt(log, None, 0, 40), 0, map_bytes=10_000)

    expected = clean(DiskFiles(), cleaning)
    expected_files = taken_cleaned_files(tmp_path)
    assert await clean_in_process(cleaning) == expected
    assert taken_cleaned_files(tmp_path) == expected_files
    assert len(expected_files) >= 3
    log.close()


def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    """A killed broker must not leave a process that writes to the data directory of the next one."""
    source = SourceSegment(0, 10, 100, 0)
    log = small_log(tmp_path / "log")
    cleaning = plan_cleaning(log, find_dirt(log, None, 0, 40), 0, map_bytes=10_000)
    # Opening a pipe without a writer blocks, so the child is busy for as long as it lives.
    os.mkfifo(tmp_path / f"{segment_name(0)}.log")
    request = pickle.dumps(replace(cleaning, folder=str(tmp_path), sources=(source,)))
    with subprocess.Popen(
        [sys.executable, "-m", "tidemill.broker.disk.cleaning_process"], stdin=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.stdin.write(len(request).to_bytes(8, "big") + request)
        process.stdin.close()
        assert process.wait(timeout=60) == 1
    log.close()


async def test_an_error_comes_back_from_the_process(tmp_path: Path) -> None:
    log = small_log(tmp_path)
    cleaning = plan_cleaning(log, find_dirt(log, None, 0, 40), 0, map_bytes=10_000)
    path = log.segments[0].path_of("log")
    DiskFiles().open(path).write(b"\xff", 80)
    with pytest.raises(StorageError, match="is damaged"):
        await clean_in_process(cleaning)
    os.unlink(path)
    with pytest.raises(FileNotFoundError):
        await clean_in_process(cleaning)
    log.release()
