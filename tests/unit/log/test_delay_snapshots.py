"""The files of snapshots of delayed records: which are trusted, and which are removed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.log.batches import T0, append, small_segments
from tidemill.delays.requests import DELAY, delay_records
from tidemill.delays.snapshot import FrozenDelays
from tidemill.delays.state import PartitionDelays
from tidemill.log.log import Log
from tidemill.protocol.records import Header, Record, build_batch
from tidemill.protocol.steps import run_steps
from tidemill.sim.platform.disk import SimulatedDisk

FOLDER = "/data/t-0"


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def log(disk: SimulatedDisk) -> Log:
    disk.make_folder(FOLDER)
    log = Log(disk, FOLDER, small_segments(tidemill_delays_enable=True), wall_ms=T0)
    fill(log, 20)
    return log


def fill(log: Log, count: int, leader_epoch: int = 3) -> None:
    for number in range(count):
        record = Record(0, T0 + number, None, b"v", [Header(DELAY, b"1h")])
        append(log, build_batch([record]), leader_epoch=leader_epoch)


def state_of(log: Log, end_offset: int | None = None) -> PartitionDelays:
    delays = PartitionDelays()
    for segment in log.segments:
        for _, header, batch in segment.batches():
            if end_offset is None or header.base_offset < end_offset:
                delays.replay(header, delay_records(batch, header))
    return delays


def write(log: Log, delays: PartitionDelays, is_still_true: Callable[[], bool] = lambda: True) -> None:
    epoch = log.epochs.epoch_of(delays.end_offset - 1)
    run_steps(log.delay_snapshots.write(FrozenDelays(delays), epoch, is_still_true))


def restored(log: Log) -> PartitionDelays | None:
    return run_steps(
        log.delay_snapshots.restore(
            log.log_start_offset,
            log.log_end_offset,
            log.log_end_offset,
            lambda offset: log.epochs.epoch_of(offset - 1),
        )
    )


def names(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.list(FOLDER) if "delays" in name]


def name_of(end_offset: int) -> str:
    return f"{end_offset:020d}.delays"


def pending(delays: PartitionDelays | None) -> list[tuple[int, int]]:
    assert delays is not None
    return delays.pending.offsets.first_from(0, 1000)


def test_newest_snapshot_is_restored_and_two_are_kept(disk: SimulatedDisk, log: Log) -> None:
    for end_offset in (5, 10, 15):
        write(log, state_of(log, end_offset))
    assert names(disk) == [name_of(10), name_of(15)]
    found = restored(log)
    assert found is not None
    assert found.end_offset == 15
    assert pending(found) == pending(state_of(log, 15))
    assert found.hidden.between(0, 100) == [(0, 15)]


def test_damaged_snapshot_is_removed_and_the_one_before_is_used(disk: SimulatedDisk, log: Log) -> None:
    write(log, state_of(log, 5))
    write(log, state_of(log, 10))
    disk.flip_bit(f"{FOLDER}/{name_of(10)}", disk.size(f"{FOLDER}/{name_of(10)}") - 1)
    found = restored(log)
    assert found is not None
    assert found.end_offset == 5
    assert names(disk) == [name_of(5)]


def test_failure_29_truncation_removes_snapshots_beyond_the_new_end(disk: SimulatedDisk, log: Log) -> None:
    write(log, state_of(log, 5))
    write(log, state_of(log, 15))
    log.truncate_to(10)
    assert names(disk) == [name_of(5)]
    fill(log, 10, leader_epoch=4)
    found = restored(log)
    assert found is not None
    assert found.end_offset == 5


def test_failure_29_snapshot_of_another_leaders_epoch_is_not_trusted(disk: SimulatedDisk, log: Log) -> None:
    """A power failure may take the end of a log and leave the snapshot."""
    write(log, state_of(log, 15))
    content = disk.read(f"{FOLDER}/{name_of(15)}")
    log.truncate_to(10)
    fill(log, 10, leader_epoch=4)
    disk.open(f"{FOLDER}/{name_of(15)}", create=True).write(content, 0)
    assert restored(log) is None
    assert names(disk) == []


def test_restart_at_an_offset_removes_all(disk: SimulatedDisk, log: Log) -> None:
    write(log, state_of(log, 5))
    log.restart_at(500, T0)
    assert names(disk) == []


def test_snapshot_of_a_log_that_was_cut_meanwhile_is_dropped(disk: SimulatedDisk, log: Log) -> None:
    write(log, state_of(log, 15), lambda: False)
    assert names(disk) == []


def test_failed_write_leaves_nothing(disk: SimulatedDisk, log: Log) -> None:
    disk.fail("write", pattern="*.delays*")
    with pytest.raises(OSError, match="delays"):
        write(log, state_of(log))
    disk.heal()
    assert names(disk) == []
