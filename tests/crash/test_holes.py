"""Holes between the segments of compacted logs: those that Apache Kafka's cleaner left are accepted, others are damage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest

from tests.unit.log.compacted import FOLDER, compact, open_log, put, records, seal, topic_config
from tidemill.config import TopicConfig
from tidemill.errors import StorageError
from tidemill.log.log import Log
from tidemill.log.recovery.holes import HOLES_END_NAME
from tidemill.protocol.records import Record, build_batch, split_batches
from tidemill.sim.platform.disk import CutPoint, SimulatedDisk, every_cut_point

MARK = f"{FOLDER}/{HOLES_END_NAME}"
DELETE = topic_config(cleanup_policy=("delete",), retention_ms=-1)
IS_MISSING = "a segment is missing or cut off"


def log_path(base_offset: int) -> str:
    return f"{FOLDER}/{base_offset:020d}.log"


def bases(disk: SimulatedDisk) -> list[int]:
    return sorted(int(name[:-4]) for name in disk.list(FOLDER) if name.endswith(".log"))


def write(log: Log, segments: int) -> None:
    """Append segments of four records, of which a later one replaces three."""
    for _ in range(segments):
        base = log.log_end_offset
        put(log, (b"a", b"x"), (b"b", b"x"), (b"c", b"x"), (b"%d" % base, b"x"))
        seal(log)


def close(disk: SimulatedDisk, log: Log, *, is_clean: bool) -> tuple[SimulatedDisk, int]:
    """Stop the broker, cleanly or not. Returns the disk and the recovery point."""
    if is_clean:
        log.close()
        return disk.kill(), log.recovery_point
    work = log.sync_work()
    work.run()
    log.synced(work.end_offset, 0)
    return disk.crash(Random(0), keep="nothing"), log.recovery_point


def foreign_folder(disk: SimulatedDisk) -> int:
    """A folder that Apache Kafka compacted, with a hole between two segments. Returns the offset where the hole ends."""
    disk.make_folder(FOLDER)
    disk.sync_folder("/data")
    disk.sync_folder("/")
    log = open_log(disk)
    write(log, 6)
    log.close()
    disk.remove(MARK)
    disk.remove(log_path(bases(disk)[2]))
    disk.sync_folder(FOLDER)
    return bases(disk)[2]


def new_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_folder(FOLDER)
    disk.sync_folder("/data")
    disk.sync_folder("/")
    return disk


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: data for path, data in disk.contents().items() if path.endswith((".log", HOLES_END_NAME))}


def check_refused(
    disk: SimulatedDisk, config: TopicConfig | None = None, *, is_clean: bool, recovery_point: int
) -> None:
    before = contents(disk)
    with pytest.raises(StorageError, match=IS_MISSING):
        open_log(disk, config, is_clean=is_clean, recovery_point=recovery_point)
    assert contents(disk) == before


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("is_cleaned", [True, False])
def test_missing_segment_of_compacted_log_is_damage(is_clean: bool, is_cleaned: bool) -> None:
    disk = new_disk()
    log = open_log(disk)
    write(log, 6)
    if is_cleaned:
        assert compact(disk, log).records_removed
    write(log, 2)
    assert len(log.segments) > 3
    disk, recovery_point = close(disk, log, is_clean=is_clean)
    disk.remove(log_path(bases(disk)[1]))
    check_refused(disk, is_clean=is_clean, recovery_point=recovery_point)


@pytest.mark.parametrize("is_clean", [True, False])
def test_hole_in_log_without_mark_is_accepted_and_later_ones_are_damage(is_clean: bool) -> None:
    disk = new_disk()
    hole_end = foreign_folder(disk)
    end_offset = 24
    log = open_log(disk, is_clean=is_clean, recovery_point=end_offset)
    assert log.log_end_offset == end_offset
    found = records(log)
    assert disk.read(MARK) == b"0\n%d\n" % hole_end
    write(log, 2)
    disk, recovery_point = close(disk, log, is_clean=is_clean)
    again = open_log(disk, is_clean=is_clean, recovery_point=recovery_point)
    assert records(again)[: len(found)] == found
    again.release()
    disk.remove(log_path(next(base for base in bases(disk) if base > hole_end)))
    check_refused(disk, is_clean=is_clean, recovery_point=recovery_point)


def test_hole_above_recovery_point_of_log_without_mark_is_torn_tail() -> None:
    disk = new_disk()
    hole_end = foreign_folder(disk)
    log = open_log(disk, is_clean=False, recovery_point=4)
    assert log.log_end_offset < hole_end
    assert disk.read(MARK) == b"0\n0\n"
    assert f"{hole_end:020d}.log.torn" in disk.list(FOLDER)


def test_cleaning_of_log_with_accepted_hole_leaves_it_readable() -> None:
    disk = new_disk()
    hole_end = foreign_folder(disk)
    log = open_log(disk)
    assert compact(disk, log).records_removed
    found = records(log)
    log.close()
    again = open_log(disk)
    assert records(again) == found
    assert disk.read(MARK) == b"0\n%d\n" % hole_end


@pytest.mark.parametrize("is_clean", [True, False])
def test_mark_outlives_change_of_policy_to_delete(is_clean: bool) -> None:
    disk = new_disk()
    hole_end = foreign_folder(disk)
    log = open_log(disk)
    log.configure(DELETE)
    disk, recovery_point = close(disk, log, is_clean=is_clean)
    log = open_log(disk, DELETE, is_clean=is_clean, recovery_point=recovery_point)
    assert log.log_end_offset == recovery_point
    log.release()
    disk.remove(log_path(next(base for base in bases(disk) if base > hole_end)))
    check_refused(disk, DELETE, is_clean=is_clean, recovery_point=recovery_point)


@pytest.mark.parametrize("is_clean", [True, False])
def test_change_of_policy_to_compact_marks_running_log(is_clean: bool) -> None:
    disk = new_disk()
    log = open_log(disk, DELETE)
    write(log, 4)
    work = log.sync_work()
    work.run()
    log.synced(work.end_offset, 0)
    assert not disk.exists(MARK)
    log.configure(topic_config())
    assert log.is_unsynced
    disk, recovery_point = close(disk, log, is_clean=is_clean)
    disk.remove(log_path(bases(disk)[1]))
    check_refused(disk, is_clean=is_clean, recovery_point=recovery_point)


@pytest.mark.parametrize("is_clean", [True, False])
def test_follower_of_compacted_leader_has_no_holes_between_segments(is_clean: bool) -> None:
    """The gaps in what it fetched lie inside its segments, so a missing segment is damage there too."""
    disk = new_disk()
    log = open_log(disk)
    for base in (0, 9, 30, 31, 80, 100, 150, 151, 190):
        record = Record(base, 0, b"%d" % base, b"x" * 150)
        data = memoryview(build_batch([record], base_offset=base, leader_epoch=0))
        log.append_fetched(data, split_batches(data), 0)
    assert len(log.segments) > 3
    found = records(log)
    disk, recovery_point = close(disk, log, is_clean=is_clean)
    again = open_log(disk, is_clean=is_clean, recovery_point=recovery_point)
    assert records(again) == found
    again.release()
    disk.remove(log_path(bases(disk)[1]))
    check_refused(disk, is_clean=is_clean, recovery_point=recovery_point)


def test_truncation_below_mark_lowers_it() -> None:
    disk = new_disk()
    hole_end = foreign_folder(disk)
    log = open_log(disk)
    log.truncate_to(6)
    write(log, 4)
    assert log.log_end_offset > hole_end
    log.close()
    disk.remove(log_path(bases(disk)[2]))
    assert bases(disk)[2] <= hole_end
    check_refused(disk, is_clean=True, recovery_point=log.recovery_point)


def test_restart_of_log_lowers_mark_to_zero() -> None:
    disk = new_disk()
    foreign_folder(disk)
    log = open_log(disk)
    log.restart_at(2, 0)
    assert disk.read(MARK) == b"0\n0\n"


@pytest.mark.parametrize("content", [b"", b"0\n", b"0\n1", b"0\n\0\0", b"1\n16\n", b"0\n-1\n"])
def test_torn_mark_counts_as_none(content: bytes) -> None:
    disk = new_disk()
    hole_end = foreign_folder(disk)
    disk.replace(MARK, content)
    assert open_log(disk).log_end_offset == 24
    assert disk.read(MARK) == b"0\n%d\n" % hole_end


def test_mark_that_cannot_be_written_does_not_stop_log() -> None:
    disk = new_disk()
    hole_end = foreign_folder(disk)
    disk.fail("write", pattern=f"*/{HOLES_END_NAME}")
    log = open_log(disk)
    disk.heal()
    found = records(log)
    log.close()
    again = open_log(disk)
    assert records(again) == found
    assert disk.read(MARK) == b"0\n%d\n" % hole_end


# -- every cut -----------------------------------------------------------------------------------------------


@dataclass
class Opening:
    """What the first start on a foreign folder has done so far."""

    is_prepared: bool = False
    recovery_point: int = 0
    is_synced: bool = False


def first_start(disk: SimulatedDisk, history: Opening) -> None:
    foreign_folder(disk)
    history.recovery_point = 24
    history.is_prepared = True
    log = open_log(disk, is_clean=False, recovery_point=24)
    write(log, 2)
    work = log.sync_work()
    work.run()
    log.synced(work.end_offset, 0)
    history.recovery_point = log.recovery_point
    history.is_synced = True
    compact(disk, log)
    write(log, 1)


def survivors(cut: CutPoint[Opening]) -> Iterator[SimulatedDisk]:
    yield cut.disk.kill()
    yield cut.disk.crash(Random(0), keep="nothing")
    yield cut.disk.crash(Random(0), keep="everything")
    for seed in range(3):
        yield cut.disk.crash(Random(seed))


def test_every_cut_of_first_start_keeps_accepted_hole_and_finds_later_damage() -> None:
    cuts = [cut for cut in every_cut_point(first_start, Opening) if cut.history.is_prepared]
    assert len(cuts) > 50
    refused = 0
    for cut in cuts:
        recovery_point = cut.history.recovery_point
        # Both runs of `survivors` give the same disks.
        for disk, twin in zip(survivors(cut), survivors(cut), strict=True):
            log = open_log(disk, is_clean=False, recovery_point=recovery_point)
            assert log.log_end_offset >= recovery_point, str(cut)
            assert log.log_start_offset == 0, str(cut)
            if not cut.history.is_synced or any(name.endswith(".swap") for name in twin.list(FOLDER)):
                continue
            twin.remove(log_path(next(base for base in bases(twin) if base >= 24)))
            check_refused(twin, is_clean=False, recovery_point=recovery_point)
            refused += 1
    assert refused > 20
