"""The file of a tag index: it goes with its segment, and a wrong one is not used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

import pytest

from tests.unit.log.batches import T0, append, small_segments
from tests.unit.log.compacted import compact, open_log, put, seal, topic_config
from tests.unit.log.indexed import check_indexes, index_files, index_in_parts, index_sealed_segments
from tidemill.filters.language import parse
from tidemill.filters.matching import compile_filter
from tidemill.log.files import FileSlice
from tidemill.log.filtered_read import FilteredRead, Skipping
from tidemill.log.log import Log
from tidemill.log.segments.dictionaries import Probe
from tidemill.log.segments.segment import TAG_INDEX
from tidemill.log.segments.tag_index_files import Indexing, TagIndexes, write_index
from tidemill.protocol.record_walk import select
from tidemill.protocol.records import Record, build_batch, iterate_records, split_batches
from tidemill.protocol.steps import Steps, run_steps
from tidemill.sim.platform.disk import CutPoint, SimulatedDisk, every_cut_point

FOLDER = "/data/t-0"


def new_log(disk: SimulatedDisk) -> Log:
    disk.make_folder(FOLDER)
    return Log(disk, FOLDER, small_segments(retention_ms=1000), wall_ms=T0)


def fill(log: Log, count: int, key: bytes = b"n", leader_epoch: int = 0, timestamp: int = T0) -> None:
    """Batches of one size."""
    for _ in range(count):
        append(log, build_batch([Record(0, timestamp, key, b"v" * 30)]), leader_epoch=leader_epoch)


def shown_keys(disk: SimulatedDisk, log: Log, text: str) -> list[bytes | None]:
    """The keys of the records that a reader with a filter gets."""
    parsed = parse(text)
    shown = partial(select, matcher=compile_filter(parsed))
    skipping = Skipping(Probe(parsed), TagIndexes(disk))
    reading = FilteredRead(log, log.log_start_offset, shown, 1 << 30, pytest.fail, skipping)
    while reading.has_more(log.log_end_offset):
        run_steps(reading.advance(log.log_end_offset, 1 << 30))
    found = reading.result()
    parts = [] if found is None else found.parts
    data = b"".join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in parts)
    keys, position = list[bytes | None](), 0
    for header in split_batches(memoryview(data)):
        batch = memoryview(data)[position : position + header.size]
        keys += [record.key for record in iterate_records(batch, header)]
        position += header.size
    return keys


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def log(disk: SimulatedDisk) -> Log:
    return indexed_log(disk)


def indexed_log(disk: SimulatedDisk) -> Log:
    """Six sealed segments with an index, and the active one."""
    log = new_log(disk)
    while len(log.segments) < 7:
        fill(log, 1)
    assert index_sealed_segments(disk, log) == 6
    return log


# -- it goes with its segment ----------------------------------------------------------------------------------


def _delete_records(log: Log) -> list[str]:
    return log.move_start(log.segments[2].base_offset)


def _expire(log: Log) -> list[str]:
    log.segments[2].max_timestamp = T0 + 5000
    return log.apply_retention(T0 + 3000, log.log_end_offset)


@pytest.mark.parametrize("remove", [_delete_records, _expire])
def test_retention_and_delete_records_remove_it(
    disk: SimulatedDisk, log: Log, remove: Callable[[Log], list[str]]
) -> None:
    removed = remove(log)
    assert sum(path.endswith(f".{TAG_INDEX}.deleted") for path in removed) == 2
    for path in removed:
        disk.remove(path)
    assert check_indexes(disk, log) == 4


def test_truncation_removes_those_of_removed_segments_and_of_the_one_that_is_cut(
    disk: SimulatedDisk, log: Log
) -> None:
    log.truncate_to(log.segments[3].base_offset + 1)
    assert check_indexes(disk, log) == 3
    log.check_invariants()


def test_truncation_between_segments_leaves_the_active_one_without(disk: SimulatedDisk, log: Log) -> None:
    log.truncate_to(log.segments[3].base_offset)
    log.check_invariants()
    assert check_indexes(disk, log) == 2


def test_log_that_was_cut_and_filled_anew_is_searched_by_its_new_batches(
    disk: SimulatedDisk, log: Log
) -> None:
    """The new segments have the sizes of the old ones, and only the old batches match."""
    sizes = [segment.size for segment in log.segments]
    assert shown_keys(disk, log, "key = 'n'") == [b"n"] * log.log_end_offset
    end_offset, cut_at = log.log_end_offset, log.segments[3].base_offset + 1
    log.truncate_to(cut_at)
    fill(log, end_offset - cut_at, b"y", leader_epoch=1)
    assert [segment.size for segment in log.segments] == sizes, "otherwise no old index would fit"
    assert shown_keys(disk, log, "key = 'n'") == [b"n"] * cut_at
    assert shown_keys(disk, log, "key = 'y'") == [b"y"] * (end_offset - cut_at)


@pytest.mark.parametrize("end", ["truncation", "sealed index", "retention", "restart"])
def test_indexes_of_parts_go_with_their_batches(disk: SimulatedDisk, end: str) -> None:
    log = new_log(disk)
    fill(log, 2)
    active = log.active
    assert index_in_parts(disk, active, Random(2)) > 0
    assert active.tag_index_part_at(0) is not None
    while log.active is active:
        fill(log, 1)
    if end == "truncation":
        log.truncate_to(1)
    elif end == "sealed index":
        assert index_sealed_segments(disk, log) == 1
    elif end == "retention":
        for path in log.move_start(log.active.base_offset):
            disk.remove(path)
    else:
        log.release()
        log = Log(disk, FOLDER, log.config, wall_ms=T0)
    assert active.tag_index_part_at(0) is None or end == "restart"
    assert check_indexes(disk, log) == (end == "sealed index")


def test_parts_of_the_active_segment_are_searched(disk: SimulatedDisk) -> None:
    log = new_log(disk)
    fill(log, 1, b"y")
    fill(log, 1)
    assert index_in_parts(disk, log.active, Random(2)) > 0
    fill(log, 1, b"y")
    assert len(log.segments) == 1
    assert shown_keys(disk, log, "key = 'y'") == [b"y", b"y"]
    log.truncate_to(1)
    fill(log, 2, b"z", leader_epoch=1)
    assert shown_keys(disk, log, "key = 'y'") == [b"y"]
    assert shown_keys(disk, log, "key = 'z'") == [b"z", b"z"]


def test_restart_at_removes_all(disk: SimulatedDisk, log: Log) -> None:
    log.restart_at(500, T0)
    assert check_indexes(disk, log) == 0


def test_torn_segments_lose_it(disk: SimulatedDisk, log: Log) -> None:
    torn = log.segments[3]
    recovery_point = torn.base_offset
    log.release()
    disk.flip_bit(torn.path_of("log"), 100)
    again = Log(disk, FOLDER, log.config, wall_ms=T0, is_clean=False, recovery_point=recovery_point)
    assert again.recovered_bytes_cut
    assert check_indexes(disk, again) == 3


def test_a_compacted_segment_of_the_same_size_gets_none(disk: SimulatedDisk) -> None:
    log = compacted_twin(disk)
    size = log.segments[0].size
    log.config = topic_config(segment_bytes=2 * size)
    compact(disk, log)
    assert log.segments[0].size == size, "otherwise the index would not fit anyway"
    assert check_indexes(disk, log) == 0


def compacted_twin(disk: SimulatedDisk) -> Log:
    """Two sealed segments with an index. What compaction leaves of both has the size of each."""
    log = open_log(disk)
    for _ in range(2):
        for key in (b"a", b"b", b"c", b"d"):
            put(log, (key, b"v"))
        seal(log)
    assert index_sealed_segments(disk, log) == 2
    assert log.segments[0].size == log.segments[1].size
    return log


# -- starts ----------------------------------------------------------------------------------------------------


def test_a_clean_restart_keeps_it(disk: SimulatedDisk, log: Log) -> None:
    log.close()
    again = Log(disk, FOLDER, log.config, wall_ms=T0, recovery_point=log.recovery_point)
    assert check_indexes(disk, again) == 6


def test_an_unclean_restart_keeps_those_below_the_recovery_point(disk: SimulatedDisk, log: Log) -> None:
    recovery_point = log.segments[4].base_offset
    log.release()
    again = Log(disk, FOLDER, log.config, wall_ms=T0, is_clean=False, recovery_point=recovery_point)
    assert check_indexes(disk, again) == 4


def test_a_start_removes_temporary_files_and_indexes_without_a_segment(disk: SimulatedDisk, log: Log) -> None:
    log.close()
    for name in (f"{7:020d}.{TAG_INDEX}", f"{0:020d}.{TAG_INDEX}.tmp", f"{0:020d}.{TAG_INDEX}.deleted"):
        disk.open(f"{FOLDER}/{name}", create=True).write(b"x", 0)
    again = Log(disk, FOLDER, log.config, wall_ms=T0, recovery_point=log.recovery_point)
    assert check_indexes(disk, again) == 6


@dataclass
class History:
    # The checkpointed one.
    recovery_point: int = 0


def _cut_and_grown_again(disk: SimulatedDisk, history: History) -> None:
    """The cut segment reaches its old size again, with other records."""
    log = new_log(disk)
    disk.sync_folder("/data")
    disk.sync_folder("/")
    fill(log, 13)
    _sync(log, history)
    index_sealed_segments(disk, log)
    disk.sync_folder(FOLDER)
    history.recovery_point = log.segments[1].base_offset + 1
    log.truncate_to(log.segments[1].base_offset + 1)
    fill(log, 9, b"y", leader_epoch=1)
    _sync(log, history)
    index_sealed_segments(disk, log)


def _compacted(disk: SimulatedDisk, history: History) -> None:
    disk.make_folder(FOLDER)
    disk.sync_folder("/data")
    disk.sync_folder("/")
    log = compacted_twin(disk)
    _sync(log, history)
    disk.sync_folder(FOLDER)
    log.config = topic_config(segment_bytes=2 * log.segments[0].size)
    compact(disk, log)


def _sync(log: Log, history: History) -> None:
    work = log.sync_work()
    work.run()
    log.synced(work.end_offset, T0)
    history.recovery_point = log.recovery_point


def _survivors(cut: CutPoint[History]) -> Iterator[SimulatedDisk]:
    yield cut.disk.kill()
    yield cut.disk.crash(Random(0), keep="nothing")
    yield cut.disk.crash(Random(0), keep="everything")
    for seed in range(3):
        yield cut.disk.crash(Random(seed))


@pytest.mark.parametrize("scenario", [_cut_and_grown_again, _compacted])
def test_no_crash_leaves_a_segment_with_the_index_of_another(
    scenario: Callable[[SimulatedDisk, History], None],
) -> None:
    indexed = 0
    for cut in every_cut_point(scenario, History, torn_writes=()):
        for disk in _survivors(cut):
            if not disk.exists(FOLDER):
                continue
            for survivor in (disk, None):
                # The second time after a crash that follows the first start.
                survivor = survivor or disk.crash(Random(1))
                log = open_log(survivor, is_clean=False, recovery_point=cut.history.recovery_point)
                indexed += check_indexes(survivor, log)
    assert indexed > 100, "otherwise little was held against anything"


# -- wrong ones ------------------------------------------------------------------------------------------------


def _flip_a_bit(disk: SimulatedDisk, path: str) -> None:
    disk.flip_bit(path, disk.size(path) - 1)


def _cut_off(disk: SimulatedDisk, path: str) -> None:
    disk.truncate(path, disk.size(path) - 1)


def _take_that_of_another_size(disk: SimulatedDisk, path: str) -> None:
    other = disk.open(f"{FOLDER}/other", create=True)
    other.write(build_batch([Record(0, T0, b"n", b"another")]), 0)
    write_index(disk, Indexing(f"{FOLDER}/other", other.size(), path))


def _lose(disk: SimulatedDisk, path: str) -> None:
    disk.remove(path)


@pytest.mark.parametrize("spoil", [_flip_a_bit, _cut_off, _take_that_of_another_size, _lose])
def test_a_wrong_index_is_not_used_and_removed(
    disk: SimulatedDisk, log: Log, spoil: Callable[[SimulatedDisk, str], None]
) -> None:
    segment = log.segments[1]
    spoil(disk, segment.path_of(TAG_INDEX))
    indexes = TagIndexes(disk)
    assert run_steps(indexes.at(segment, 0)) is None
    assert segment.tag_index_key is None
    assert segment.base_offset not in index_files(disk, FOLDER)
    assert run_steps(indexes.at(log.segments[0], 0)) is not None
    assert index_sealed_segments(disk, log) == 1
    assert run_steps(indexes.at(segment, 0)) is not None


def test_an_index_that_cannot_be_removed_is_not_used_either(disk: SimulatedDisk, log: Log) -> None:
    segment = log.segments[1]
    _flip_a_bit(disk, segment.path_of(TAG_INDEX))
    disk.fail("remove", pattern=f"*.{TAG_INDEX}")
    assert run_steps(TagIndexes(disk).at(segment, 0)) is None
    disk.heal()
    log.truncate_to(segment.base_offset + 1)
    assert check_indexes(disk, log) == 1


def test_indexes_in_memory_are_bounded_and_read_once(disk: SimulatedDisk, log: Log) -> None:
    size = disk.size(log.segments[0].path_of(TAG_INDEX))
    indexes = TagIndexes(disk, 2 * size)
    for number, is_read in ((0, True), (1, True), (0, False), (2, True), (0, False), (1, True)):
        steps = indexes.at(log.segments[number], 0)
        assert isinstance(_first_step(steps), partial) == is_read, number


def _first_step(steps: Steps[object]) -> object:
    """What the steps want done in a thread first, if anything."""
    try:
        work = next(steps)
    except StopIteration:
        return None
    assert work is not None
    with pytest.raises(StopIteration):
        steps.send(work())
    return work


def test_a_topic_without_views_has_no_file_looked_for(disk: SimulatedDisk) -> None:
    log = new_log(disk)
    fill(log, 20)
    log.truncate_to(9)
    for path in log.move_start(4):
        disk.remove(path)
    log.close()
    Log(disk, FOLDER, log.config, wall_ms=T0, recovery_point=log.recovery_point).release()
    assert not [step for step in disk.trace if TAG_INDEX in step.path]
