"""Compaction, rule by rule."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.log.compacted import (
    DELETE_RETENTION_MS,
    FOLDER,
    batches,
    compact,
    latest,
    offsets,
    open_log,
    prepare,
    put,
    records,
    seal,
    swap_in,
    topic_config,
)
from tidemill.errors import StorageError
from tidemill.log.cleaning.cleanable import find_dirt
from tidemill.log.cleaning.cleaner import SourceSegment, group_segments
from tidemill.log.cleaning.swap import CleaningAbandoned
from tidemill.protocol.records import DELETE_HORIZON, LOG_APPEND_TIME, checksum_matches
from tidemill.sim.platform.disk import SimulatedDisk

CODECS = (0, 1, 2, 3, 4)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def test_keeps_the_last_record_of_each_key_at_its_offset(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", b"2"))
    seal(log)
    result = compact(disk, log)
    assert [(r.offset, r.key, r.value) for r in records(log)] == [(1, b"b", b"1"), (2, b"a", b"2")]
    assert (result.end_offset, result.records_removed, result.keys) == (3, 1, 2)
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_that_stays_is_not_changed(disk: SimulatedDisk, codec: int) -> None:
    log = open_log(disk, topic_config(segment_bytes=10_000))
    written = put(log, *[(b"%d" % (n % 7), b"v" * n) for n in range(20)], timestamp=500, codec=codec)
    seal(log)
    compact(disk, log)
    assert records(log) == written[13:]
    ((header, data),) = batches(log)
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 19, 7)
    assert (header.codec, header.base_timestamp, header.max_timestamp) == (codec, 500, 519)
    assert checksum_matches(memoryview(data), header)


def test_the_newest_timestamp_of_a_batch_is_that_of_its_records(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    put(log, (b"a", b"1"), (b"b", b"1"), timestamp=100)
    put(log, (b"b", b"2"), timestamp=50)
    seal(log)
    compact(disk, log)
    assert [header.max_timestamp for header, _ in batches(log)] == [100, 50]
    newest = log.newest()
    assert newest is not None
    assert newest[:2] == (100, 0)


def test_log_append_time_stays_the_batch_s(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    put(log, (b"a", b"1"), (b"b", None), timestamp=100, attributes=LOG_APPEND_TIME)
    put(log, (b"a", b"2"), timestamp=200)
    seal(log)
    compact(disk, log, wall_ms=5_000)
    assert [(r.key, r.timestamp) for r in records(log)] == [(b"b", 101), (b"a", 200)]


def test_records_without_key_are_removed(disk: SimulatedDisk) -> None:
    """The topic was not compacted when they were written; Kafka drops them too."""
    log = open_log(disk)
    put(log, (None, b"1"), (b"a", b"1"), (None, b"2"))
    seal(log)
    compact(disk, log, limit=2)
    assert offsets(log) == [1, 2]


def test_the_active_segment_and_what_is_above_the_limit_stay(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    put(log, (b"a", b"0"), (b"a", b"1"), (b"a", b"2"), (b"a", b"3"))
    seal(log)
    put(log, (b"a", b"4"), (b"a", b"5"))
    result = compact(disk, log, limit=2)
    assert (result.end_offset, offsets(log)) == (2, [1, 2, 3, 4, 5])
    result = compact(disk, log, result.end_offset)
    assert (result.end_offset, offsets(log)) == (4, [3, 4, 5])


def test_a_tombstone_keeps_its_timestamp_when_its_horizon_is_written(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    put(log, (b"a", b"1"), timestamp=100)
    written = put(log, (b"a", None), (b"b", b"1"), timestamp=200)
    seal(log)
    compact(disk, log, wall_ms=5_000)
    assert records(log) == written
    ((header, _),) = batches(log)
    assert header.attributes & DELETE_HORIZON
    assert (header.base_timestamp, header.max_timestamp) == (5_000 + DELETE_RETENTION_MS, 201)


def test_a_tombstone_goes_after_its_horizon_which_stays_what_it_was(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    put(log, (b"a", b"1"))
    put(log, (b"a", None))
    seal(log)
    clean_to = compact(disk, log, wall_ms=5_000).end_offset
    for wall_ms in (5_500, 5_000 + DELETE_RETENTION_MS - 1):
        put(log, (b"z", b"%d" % wall_ms))
        seal(log)
        clean_to = compact(disk, log, clean_to, wall_ms=wall_ms).end_offset
        assert 1 in offsets(log)
    put(log, (b"z", b"3"))
    seal(log)
    compact(disk, log, clean_to, wall_ms=5_000 + DELETE_RETENTION_MS)
    assert [r.key for r in records(log)] == [b"z"]


def test_failure_08_a_tombstone_stays_while_anything_below_it_may_be_uncleaned(disk: SimulatedDisk) -> None:
    """A batch that claims an expired horizon but lies above the first dirty offset has hidden nothing yet.

    That is a replica's copy of a leader's cleaned batch: here the older value still stands, and a crash between the swaps
    of two groups would leave it without its tombstone.
    """
    log = open_log(disk)
    put(log, (b"a", b"1"))
    put(log, (b"a", None), timestamp=10, attributes=DELETE_HORIZON)
    seal(log)
    clean_to = compact(disk, log, wall_ms=1_000_000).end_offset
    assert [(r.offset, r.value) for r in records(log)] == [(1, None)]
    put(log, (b"z", b"1"))
    seal(log)
    compact(disk, log, clean_to, wall_ms=1_000_000)
    assert latest(records(log)) == {b"z": b"1"}
    assert offsets(log) == [2]


def test_failure_08_a_deleted_key_never_comes_back_over_small_maps_and_restarts(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    for round_number in range(3):
        put(log, *[(b"key%d" % n, b"%d" % round_number) for n in range(8)])
    put(log, *[(b"key%d" % n, None) for n in range(8)])
    put(log, (b"stays", b"1"))
    seal(log)
    clean_to: int | None = None
    for number in range(40):
        wall_ms = number * DELETE_RETENTION_MS
        clean_to = compact(disk, log, clean_to, wall_ms=wall_ms, map_bytes=4 * 24).end_offset
        log.close()
        log = open_log(disk)
        older = [r for r in records(log) if r.key != b"stays"]
        assert latest(older) == {} or clean_to < 32, "a value outlived its tombstone"
        put(log, (b"stays", b"%d" % number))
        seal(log)
    assert {r.key for r in records(log)} == {b"stays"}


def test_full_offset_map_ends_cleaning_at_the_first_key_without_room(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    put(log, *[(b"%d" % (n % 6), b"x") for n in range(12)])
    seal(log)
    ends, clean_to = [], 0
    while clean_to < 12:
        clean_to = compact(disk, log, clean_to, map_bytes=4 * 24).end_offset
        ends.append(clean_to)
    assert ends == [3, 6, 9, 12]
    assert offsets(log) == [6, 7, 8, 9, 10, 11]


def test_the_horizon_waits_until_the_whole_batch_is_cleaned(disk: SimulatedDisk) -> None:
    """One batch has one horizon: set with its first tombstone, it would let the last one go too early."""
    log = open_log(disk)
    put(log, *[(b"%d" % n, None) for n in range(5)])
    seal(log)
    compact(disk, log, 0, wall_ms=1_000, map_bytes=4 * 24)
    ((header, _),) = batches(log)
    assert not header.attributes & DELETE_HORIZON
    assert compact(disk, log, 3, wall_ms=7_000, map_bytes=4 * 24).end_offset == 5
    ((header, _),) = batches(log)
    assert header.base_timestamp == 7_000 + DELETE_RETENTION_MS


def test_swap_replaces_records_only_by_synced_successors(disk: SimulatedDisk) -> None:
    """A record is dropped for a newer one, whose segment may be swapped in later or never. The newer one must be synced."""
    log = open_log(disk)
    for number in range(12):
        put(log, (b"a", b"v" * 60), (b"%d" % number, b"x"))
    seal(log)
    for folder in ("/", "/data", FOLDER):
        disk.sync_folder(folder)
    before = records(log)
    prepare(disk, log)
    survivor = open_log(disk.crash(Random(0), keep="nothing"), is_clean=False)
    assert records(survivor) == before


@pytest.mark.parametrize("has_snapshots", [True, False])
def test_producers_are_the_same_after_cleaning_and_reopening(
    disk: SimulatedDisk, has_snapshots: bool
) -> None:
    log = open_log(disk)
    for number in range(8):
        put(log, (b"a", b"%d" % number), (b"b", b"x"), producer_id=5, sequence=number * 2)
        put(log, (b"a", b"%d" % number), producer_id=6, sequence=number)
    put(log, (b"a", b"end"), (b"b", b"end"))
    seal(log)
    before = {s.producer_id: (s.epoch, list(s.batches)) for s in log.producers.states()}
    compact(disk, log)
    assert offsets(log) == [24, 25]
    log.close()
    if not has_snapshots:
        for name in disk.list(FOLDER):
            if name.endswith(".snapshot"):
                disk.remove(f"{FOLDER}/{name}")
    log = open_log(disk)
    assert {s.producer_id: (s.epoch, list(s.batches)) for s in log.producers.states()} == before


def test_the_batches_of_a_forgotten_producer_go(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    put(log, (b"a", b"1"), producer_id=5, sequence=0)
    put(log, (b"a", b"2"))
    seal(log)
    log.producers.expire(1)
    compact(disk, log)
    assert [header.base_offset for header, _ in batches(log)] == [1]


def test_small_neighbours_become_one_segment(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    for number in range(12):
        put(log, (b"a", b"v" * 100), (b"%d" % number, b"x"))
    before = [segment.base_offset for segment in log.segments]
    assert len(before) > 4
    seal(log)
    clean_to = compact(disk, log).end_offset
    put(log, (b"b", b"x"))
    seal(log)
    compact(disk, log, clean_to)
    assert len(log.segments) < len(before)
    assert log.segments[0].base_offset == 0
    log.close()
    again = open_log(disk)
    assert again.log_end_offset == log.log_end_offset
    assert len(latest(records(again))) == 14


def test_groups_fit_one_segment_in_bytes_index_and_offsets() -> None:
    def groups(*sources: SourceSegment) -> list[list[int]]:
        found = group_segments(sources, 100, 120)
        return [[source.base_offset for source in group] for group in found]

    assert groups(SourceSegment(0, 5, 50, 0), SourceSegment(5, 9, 50, 0), SourceSegment(9, 12, 1, 0)) == [
        [0, 5],
        [9],
    ]
    assert groups(SourceSegment(0, 5, 1, 4), SourceSegment(5, 9, 1, 4), SourceSegment(9, 12, 1, 0)) == [
        [0, 5],
        [9],
    ]
    last = 1 << 31
    assert groups(
        SourceSegment(0, 5, 1, 0), SourceSegment(5, last, 1, 0), SourceSegment(last, last + 1, 1, 0)
    ) == [
        [0, 5],
        [last],
    ]


def test_segment_without_records_keeps_its_end_offset(disk: SimulatedDisk) -> None:
    log = open_log(disk, topic_config(segment_bytes=100))
    put(log, (b"a", b"1"), timestamp=700)
    put(log, (b"a", b"2"), timestamp=800)
    seal(log)
    compact(disk, log)
    assert [(h.base_offset, h.record_count, h.max_timestamp) for h, _ in batches(log)] == [
        (0, 0, 700),
        (1, 1, 800),
    ]
    newest = log.newest()
    assert newest is not None
    assert newest.offset == 1


def test_unchanged_segment_is_not_rewritten(disk: SimulatedDisk) -> None:
    log = open_log(disk, topic_config(segment_bytes=100))
    put(log, (b"a", b"1"))
    put(log, (b"b", b"1"))
    put(log, (b"a", b"2"))
    seal(log)
    _, first = prepare(disk, log)
    assert [group.source_offsets for group in first.groups] == [(0,)]
    compact(disk, log)
    _, second = prepare(disk, log, 0)
    assert second.groups == ()
    assert not [name for name in disk.list(FOLDER) if name.endswith(".cleaned")]


def test_reader_continues_during_segment_swap(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    for number in range(30):
        put(log, (b"%d" % (number % 4), b"v" * 30))
    seal(log)
    swap, result = prepare(disk, log)
    held = log.read(0, 150, log.log_end_offset)
    assert held is not None
    before = held.read()
    swap_in(disk, log, swap, result)
    assert held.read() == before
    # A read at a removed offset returns the next batch that exists.
    for offset in range(26):
        found = log.read(offset, 1, log.log_end_offset)
        assert found is not None
        assert found.length > 0
    assert offsets(log) == [26, 27, 28, 29]


def test_a_swap_is_abandoned_when_retention_removed_segments(disk: SimulatedDisk) -> None:
    log = open_log(disk, topic_config(cleanup_policy=("compact", "delete"), retention_ms=1_000))
    for number in range(12):
        put(log, (b"a", b"v" * 60), timestamp=number * 200)
    seal(log)
    swap, result = prepare(disk, log)
    for path in log.apply_retention(2_300, log.log_end_offset):
        disk.remove(path)
    left = records(log)
    with pytest.raises(CleaningAbandoned):
        swap.begin(result)
    assert records(log) == left
    assert not [name for name in disk.list(FOLDER) if name.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("how", ["delete records", "truncate"])
def test_a_swap_that_began_is_withdrawn_before_segments_go(disk: SimulatedDisk, how: str) -> None:
    log = open_log(disk)
    for _ in range(12):
        put(log, (b"a", b"v" * 60))
    seal(log)
    swap, result = prepare(disk, log)
    swap.begin(result)
    assert [name for name in disk.list(FOLDER) if name.endswith(".log.swap")]
    if how == "truncate":
        log.truncate_to(5)
    else:
        log.move_start(7)
    assert not [name for name in disk.list(FOLDER) if name.endswith(".swap")]
    with pytest.raises(CleaningAbandoned):
        swap.switch()
    log.check_invariants()
    survivor = open_log(disk.kill(), is_clean=False)
    assert offsets(survivor)[-1] == (4 if how == "truncate" else 11)
    assert survivor.log_start_offset == log.segments[0].base_offset


def test_segments_removed_between_switch_and_finish_stay_removed(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    for number in range(12):
        put(log, (b"%d" % number, b"v" * 60))
    put(log, (b"0", b"x"))
    seal(log)
    swap, result = prepare(disk, log)
    swap.begin(result)
    swap.switch()
    log.move_start(log.log_end_offset)
    swap.finish()
    assert records(open_log(disk.kill(), is_clean=False)) == []


@pytest.mark.parametrize("steps_done", [1, 2, 3])
def test_a_shutdown_between_the_steps_is_completed_by_the_next_start(
    disk: SimulatedDisk, steps_done: int
) -> None:
    log = open_log(disk)
    for number in range(12):
        put(log, (b"%d" % (number % 5), b"v" * 60), producer_id=1, sequence=number)
    seal(log)
    swap, result = prepare(disk, log)
    swap.begin(result)
    if steps_done > 1:
        swap.switch()
    if steps_done > 2:
        swap.finish()
    log.close()
    again = open_log(disk, recovery_point=log.recovery_point)
    assert offsets(again) == [7, 8, 9, 10, 11]
    assert again.log_end_offset == 12
    assert not [name for name in disk.list(FOLDER) if name.endswith((".cleaned", ".swap", ".deleted"))]
    again.check_invariants()


@pytest.mark.parametrize("position", [0, 70])
def test_a_damaged_batch_ends_the_cleaning_and_changes_nothing(disk: SimulatedDisk, position: int) -> None:
    log = open_log(disk)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    seal(log)
    disk.flip_bit(log.segments[0].path_of("log"), log.segments[0].size - 10 if position else 16, 1)
    before = disk.contents()
    with pytest.raises(StorageError):
        prepare(disk, log)
    assert disk.contents() == before


def test_log_is_due_by_dirty_ratio_or_max_lag(disk: SimulatedDisk) -> None:
    config = topic_config(min_cleanable_dirty_ratio=0.5, max_compaction_lag_ms=10_000)
    log = open_log(disk, config)
    put(log, (b"a", b"1"), timestamp=1_000)
    assert not find_dirt(log, None, 1_000, 1).is_due(0.0), "only the active segment"
    seal(log)
    dirt = find_dirt(log, None, 1_000, 1)
    assert (dirt.first_dirty_offset, dirt.end_offset, dirt.ratio) == (0, 1, 1.0)
    put(log, (b"b", b"1"), timestamp=2_000)
    seal(log)
    dirt = find_dirt(log, 1, 2_000, 2)
    assert (dirt.first_dirty_offset, dirt.end_offset, dirt.ratio) == (1, 2, 0.5)
    assert not dirt.is_due(0.5)
    assert find_dirt(log, 1, 12_000, 2).is_due(0.5) is False
    assert find_dirt(log, 1, 12_001, 2).is_due(0.5) is True
    assert not find_dirt(log, 2, 99_000, 2).is_due(0.0), "nothing is dirty"
    assert not find_dirt(log, 1, 99_000, 1).is_due(0.0), "above the limit"
    assert find_dirt(log, 99, 0, 2).first_dirty_offset == 0, "a checkpoint beyond the end is not believed"


def test_young_segments_are_not_cleaned(disk: SimulatedDisk) -> None:
    log = open_log(disk, topic_config(min_compaction_lag_ms=1_000))
    put(log, (b"a", b"1"), timestamp=1_000)
    seal(log)
    put(log, (b"a", b"2"), timestamp=1_500)
    seal(log)
    assert find_dirt(log, None, 1_999, 2).end_offset == 0
    assert find_dirt(log, None, 2_000, 2).end_offset == 1
    assert find_dirt(log, None, 2_500, 2).end_offset == 2


def test_a_compacted_log_rolls_in_time_for_its_max_lag(disk: SimulatedDisk) -> None:
    log = open_log(disk, topic_config(segment_bytes=10_000, max_compaction_lag_ms=1_000))
    put(log, (b"a", b"1"), timestamp=1_000)
    put(log, (b"a", b"2"), timestamp=2_000)
    assert len(log.segments) == 1
    put(log, (b"a", b"3"), timestamp=2_001)
    assert len(log.segments) == 2


def test_retention_applies_when_a_topic_is_compacted_and_deleted(disk: SimulatedDisk) -> None:
    log = open_log(disk, topic_config(cleanup_policy=("compact", "delete"), retention_ms=1_000))
    put(log, (b"a", b"1"), timestamp=1_000)
    seal(log)
    compact(disk, log)
    put(log, (b"b", b"1"), timestamp=3_000)
    assert log.apply_retention(3_000, log.log_end_offset)
    assert offsets(log) == [1]
