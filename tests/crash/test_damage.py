"""Cases that are no torn tail: damage below the recovery point, a crash during recovery, a full disk, a failing disk."""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random

import pytest

from tests.crash.store import DATA, History, Store, found_disks, go_on, judge, surviving_batches
from tests.crash.test_every_cut import CONFIG, ID, NEXT_ID, TP, recreated_topic
from tests.unit.log.batches import T0, append, batch, parse_segment, small_segments
from tidemill.errors import StorageError
from tidemill.log.log import Log
from tidemill.sim.platform.disk import SimulatedDisk, Stopped, every_cut_point

FOLDER = f"{DATA}/t-0"


def _synced_store(disk: SimulatedDisk, batches: int = 9, synced: int = 6) -> tuple[Store, History]:
    history = History()
    store = Store(disk, history, CONFIG)
    store.create(TP, ID)
    for number in range(batches):
        store.append(TP, batch(2, producer=(5, 0, number * 2)), leader_epoch=number // 4)
        if number == synced - 1:
            store.sync(TP)
            store.checkpoint()
    return store, history


def test_failure_15_every_bit_flip_is_either_cut_off_or_refused() -> None:
    """Below the recovery point: refused, and not a byte of a segment changes. Above it: what came before survives."""
    disk = SimulatedDisk()
    store, history = _synced_store(disk, synced=5)
    segments = [s.base_offset for s in store.logs[TP].segments]
    rng = Random(15)
    refused = cut = 0
    for base in segments:
        path = f"{FOLDER}/{base:020d}.log"
        for _ in range(40):
            found = disk.kill()
            position = rng.randrange(found.size(path))
            found.flip_bit(path, position, rng.randrange(8))
            before = {p: c for p, c in found.contents().items() if p.endswith(".log")}
            try:
                log = Store(found, history, CONFIG).logs[TP]
            except StorageError:
                refused += 1
                assert {p: c for p, c in found.contents().items() if p.endswith(".log")} == before
                continue
            cut += log.recovered_bytes_cut > 0
            assert log.log_end_offset >= history.partitions[TP].now.synced_end
    assert refused
    assert cut


@pytest.mark.parametrize("position", [8, 16, 17, 25, 61, 80])
def test_failure_15_damage_below_the_recovery_point_refuses_to_open_and_changes_nothing(
    position: int,
) -> None:
    """In the length, the magic, the CRC, the delta, the first record and the middle of the records."""
    disk = SimulatedDisk()
    store, history = _synced_store(disk, batches=3, synced=3)
    assert len(store.logs[TP].segments) == 1
    disk = disk.kill()
    disk.flip_bit(f"{FOLDER}/{0:020d}.log", position, 6)
    before = {path: content for path, content in disk.contents().items() if path.endswith(".log")}
    with pytest.raises(StorageError, match="everything below offset 6 was on disk"):
        Store(disk, history, CONFIG)
    assert {path: content for path, content in disk.contents().items() if path.endswith(".log")} == before


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_segment_that_ends_too_early_between_two_batches_is_refused(is_clean: bool) -> None:
    disk = SimulatedDisk()
    store, history = _synced_store(disk, batches=3, synced=3)
    if is_clean:
        store.shut_down()
    disk = disk.kill()
    path = f"{FOLDER}/{0:020d}.log"
    disk.truncate(path, parse_segment(disk.read(path))[-1].position)
    with pytest.raises(StorageError, match="below offset 6 was on disk"):
        Store(disk, history, CONFIG)


def test_a_hole_between_unsynced_segments_is_where_the_log_ends() -> None:
    """A power failure emptied one segment and not the next: the segments after the hole are set aside."""
    disk = SimulatedDisk()
    store, history = _synced_store(disk, batches=9, synced=1)
    bases = [segment.base_offset for segment in store.logs[TP].segments]
    assert len(bases) >= 3
    disk = disk.crash(Random(0), keep="everything")
    disk.truncate(f"{FOLDER}/{bases[1]:020d}.log", 0)
    log = judge(disk, history, CONFIG).logs[TP]
    assert log.log_end_offset == bases[1]
    assert f"{bases[2]:020d}.log.torn" in disk.list(FOLDER)


def _logs(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: content for path, content in disk.contents().items() if path.endswith(".log")}


def _without_a_segment(number: int, *, is_clean: bool) -> tuple[SimulatedDisk, History, int]:
    """Returns a disk without one segment, its history, and the base offset of that segment."""
    disk = SimulatedDisk()
    store, history = _synced_store(disk, batches=15, synced=15)
    base_offset = store.logs[TP].segments[number].base_offset
    assert len(store.logs[TP].segments) > 3
    if is_clean:
        store.shut_down()
    disk = disk.kill()
    disk.remove(f"{FOLDER}/{base_offset:020d}.log")
    return disk, history, base_offset


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("number", [1, 2])
def test_a_missing_segment_is_damage_and_changes_nothing(number: int, is_clean: bool) -> None:
    disk, history, base_offset = _without_a_segment(number, is_clean=is_clean)
    before = _logs(disk)
    with pytest.raises(StorageError, match=f"ends at offset {base_offset} and the next segment begins at"):
        Store(disk, history, CONFIG)
    assert _logs(disk) == before


def test_a_missing_first_segment_is_damage_after_a_clean_shutdown() -> None:
    """After a crash retention may have removed it: the checkpoint of the log start offset is written later."""
    disk, history, _ = _without_a_segment(0, is_clean=True)
    before = _logs(disk)
    with pytest.raises(StorageError, match="but the log began at 0 when it was closed"):
        Store(disk, history, CONFIG)
    assert _logs(disk) == before


@pytest.mark.parametrize("is_clean", [True, False])
def test_hole_below_log_start_is_accepted(is_clean: bool) -> None:
    disk = SimulatedDisk()
    store, history = _synced_store(disk, batches=15, synced=15)
    bases = [segment.base_offset for segment in store.logs[TP].segments]
    for path in store.logs[TP].move_start(bases[3]):
        disk.remove(path)
    # A crash brought one of them back.
    history.partitions[TP].start_max = bases[3]
    if is_clean:
        store.shut_down()
    else:
        store.checkpoint()
    disk = disk.kill()
    disk.open(f"{FOLDER}/{bases[1]:020d}.log", create=True)
    if is_clean:
        assert Store(disk, history, CONFIG).logs[TP].log_start_offset == bases[3]
    else:
        assert judge(disk, history, CONFIG).logs[TP].log_start_offset == bases[3]


def test_hole_in_compacted_log_without_mark_is_accepted() -> None:
    disk, history, _ = _without_a_segment(2, is_clean=True)
    log = Store(disk, history, replace(CONFIG, cleanup_policy=("compact",))).logs[TP]
    assert log.log_end_offset == history.partitions[TP].now.synced_end


def test_recovery_may_be_interrupted_at_every_step_by_another_crash() -> None:
    disk = SimulatedDisk(page_bytes=64)
    _, history = _synced_store(disk)
    for seed in range(8):
        torn = disk.crash(Random(seed))
        steps_max = 1
        number = 0
        while number < steps_max:
            again = torn.kill()
            again.stop_at(number)
            try:
                Store(again, history, CONFIG)
                steps_max = 0
            except Stopped:
                steps_max = number + 2
            for found in (again.kill(), again.crash(Random(seed + number))):
                judge(found, history, CONFIG)
            number += 1
        assert number > 1


def test_recovery_twice_finds_the_same() -> None:
    disk = SimulatedDisk(page_bytes=64)
    _, history = _synced_store(disk)
    for seed in range(20):
        once = disk.crash(Random(seed))
        first = judge(once, history, CONFIG).logs[TP]
        again = once.crash(Random(seed), keep="nothing")
        assert judge(again, history, CONFIG).logs[TP].log_end_offset == first.log_end_offset


def test_failure_21_a_recreated_topic_never_shows_records_or_offsets_of_the_old_one() -> None:
    for cut in every_cut_point(lambda disk, history: recreated_topic(Store(disk, history, CONFIG)), History):
        known = cut.history.partitions.get(TP)
        for how, disk in found_disks(cut, seeds=3):
            try:
                store = judge(disk, cut.history, CONFIG)
            except StorageError as error:
                # The old folder came back under its name: refused rather than mixed up.
                if "another topic id" not in str(error):
                    raise AssertionError(f"{how}, {cut}") from error
                continue
            if known is not None and known.topic_id == NEXT_ID:
                assert store.logs[TP].log_start_offset == 0, f"{how}, {cut}"


@pytest.mark.parametrize("free_bytes", [0, 1, 60, 61, 100, 300, 1000])
def test_failure_27_a_full_disk_tears_no_batch_and_the_partition_recovers(free_bytes: int) -> None:
    disk = SimulatedDisk(page_bytes=64)
    history = History()
    store = Store(disk, history, CONFIG)
    log = store.create(TP, ID)
    for number in range(5):
        store.append(TP, batch(2, producer=(5, 0, number * 2)))
    disk.free_bytes = free_bytes
    batches = [batch(2, producer=(5, 0, number * 2)) for number in range(5, 20)]
    with pytest.raises(OSError, match="No space left"):
        _append_all(store, batches)
    log.check_invariants()
    _check_serves(log, history)
    # A batch of another size may still fit, or not; either way nothing is torn.
    for size in (1, 30, 5):
        try:
            store.append(TP, batch(1, value=b"s" * size))
        except OSError:
            log.check_invariants()
        _check_serves(log, history)
    judge(disk.kill(), history, CONFIG)


@pytest.mark.parametrize("free_bytes", [1, 60, 100, 200, 300, 500])
def test_failure_27_the_partition_recovers_when_space_returns(free_bytes: int) -> None:
    disk = SimulatedDisk(page_bytes=64)
    history = History()
    store = Store(disk, history, CONFIG)
    log = store.create(TP, ID)
    disk.free_bytes = free_bytes
    for size in (20, 20, 1, 20, 20, 1, 1, 20):
        try:
            store.append(TP, batch(1, value=b"v" * size))
        except OSError:
            log.check_invariants()
    disk.heal()
    for _ in range(6):
        store.append(TP, batch(2))
    log.check_invariants()
    _check_serves(log, history)
    store.sync(TP)
    store.checkpoint()
    go_on(judge(disk.kill(), history, CONFIG), TP)


@pytest.mark.parametrize("is_clean", [True, False])
def test_failure_27_a_roll_that_fails_leaves_no_segment_behind(is_clean: bool) -> None:
    """An empty segment at the log's end would hide a smaller batch that the segment before it takes."""
    disk = SimulatedDisk()
    history = History()
    store = Store(disk, history, CONFIG)
    store.create(TP, ID)
    for _ in range(2):
        store.append(TP, batch(2))
    disk.fail("create", pattern="*/*.timeindex", error=errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        store.append(TP, batch(2, value=b"v" * 120))
    store.append(TP, batch(1, value=b""))
    disk.heal()
    if is_clean:
        store.shut_down()
    assert judge(disk.kill(), history, CONFIG).logs[TP].log_end_offset == 5


def test_failure_27_an_index_that_cannot_grow_does_not_write_a_batch_twice() -> None:
    disk = SimulatedDisk()
    history = History()
    store = Store(disk, history, small_segments(segment_bytes=100_000))
    log = store.create(TP, ID)
    disk.fail("map", error=errno.ENOSPC)
    for number in range(10):
        store.append(TP, batch(2, producer=(5, 0, number * 2)))
    assert log.log_end_offset == 20
    disk.heal()
    store.append(TP, batch(2, producer=(5, 0, 20)))
    log.check_invariants()
    assert log.active.offset_index.count == 1
    judge(disk.kill(), history, CONFIG)


def test_failed_sync_leaves_epochs_and_folder_dirty() -> None:
    """The epochs and the folder stay to be saved until a sync has really covered them."""
    disk = SimulatedDisk()
    history = History()
    store = Store(disk, history, CONFIG)
    store.create(TP, ID)
    for number in range(6):
        store.append(TP, batch(2), leader_epoch=number)
    disk.fail("sync", "sync_folder", "replace", times=1)
    with pytest.raises(OSError, match="error"):
        store.sync(TP)
    store.sync(TP)
    store.checkpoint()
    judge(disk.crash(Random(0), keep="nothing"), history, CONFIG)


def test_sync_does_not_cover_batches_rewritten_after_truncation() -> None:
    disk = SimulatedDisk()
    store = Store(disk, History(), CONFIG)
    log = store.create(TP, ID)
    for _ in range(4):
        store.append(TP, batch(2))
    work = log.sync_work()
    log.truncate_to(4)
    for _ in range(4):
        store.append(TP, batch(2))
    log.synced(work.end_offset, T0)
    assert log.recovery_point == 4


def test_failure_28_a_clock_that_jumps_deletes_nothing_early_and_rolls_nothing() -> None:
    hour_ms = 3_600_000
    disk = SimulatedDisk()
    disk.make_folder("/d")
    config = small_segments(segment_bytes=10_000, retention_ms=2 * hour_ms, segment_ms=2 * hour_ms)
    log = Log(disk, "/d", config, wall_ms=T0)
    for wall_ms in (T0, T0 + hour_ms, T0 - hour_ms, T0):
        data = batch(1, timestamps=[wall_ms])
        append(log, data, wall_ms=wall_ms)
        assert log.apply_retention(wall_ms, log.log_end_offset) == []
    assert len(log.segments) == 1
    assert log.apply_retention(T0 - 1000 * hour_ms, log.log_end_offset) == []
    # The newest record counts, not the last one: an hour after it was written it is still there.
    assert log.apply_retention(T0 + 3 * hour_ms, log.log_end_offset) == []
    assert log.apply_retention(T0 + 3 * hour_ms + 1, log.log_end_offset) != []
    assert log.log_start_offset == log.log_end_offset == 4


def _append_all(store: Store, batches: list[bytearray]) -> None:
    for data in batches:
        store.append(TP, data)


def _check_serves(log: Log, history: History) -> None:
    found = surviving_batches(log._files, log)  # type: ignore[arg-type]
    assert [b.raw for b in found] == history.partitions[TP].now.batches
    slices = []
    offset = 0
    while (part := log.read(offset, 10_000, log.log_end_offset)) is not None:
        slices += parse_segment(part.read())
        offset = slices[-1].last_offset + 1
    assert [b.raw for b in slices] == [b.raw for b in found]
