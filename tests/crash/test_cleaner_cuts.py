"""Stop a compaction at every disk operation: afterwards the log is as before it or as after it.

Cleaned segments come in one by one, so "before or after" holds for each of them. For the whole log it means three
things. Each record is one that was there before, everything that the cleaning keeps is there, and a reader's table of
last values is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from tests.unit.log.compacted import (
    FOLDER,
    compact,
    latest,
    open_log,
    prepare,
    put,
    records,
    seal,
    swap_in,
    topic_config,
)
from tidemill.errors import StorageError
from tidemill.log.log import Log
from tidemill.protocol.records import Record
from tidemill.sim.platform.disk import CutPoint, SimulatedDisk, Stopped, every_cut_point

_LEFTOVERS = (".cleaned", ".swap", ".deleted")


@dataclass
class History:
    before: list[Record] = field(default_factory=list)
    kept: list[Record] = field(default_factory=list)
    end_offset: int = 0


def write(log: Log, rounds: range) -> None:
    for number in rounds:
        put(log, (b"k%d" % (number % 5), b"%d" % number), (b"once%d" % number, b"x"), timestamp=number)
        if number % 4 == 3:
            put(log, (b"k%d" % (number % 5), None), timestamp=number, codec=number % 5)
    seal(log)


def scenario(disk: SimulatedDisk, history: History) -> None:
    """A log that was cleaned before, so that its clean section has tombstones that the next cleaning drops."""
    disk.make_folder(FOLDER)
    disk.sync_folder("/data")
    disk.sync_folder("/")
    log = open_log(disk)
    put(log, (b"gone", b"1"))
    write(log, range(8))
    put(log, (b"gone", None))
    seal(log)
    first_dirty = compact(disk, log, wall_ms=0).end_offset
    write(log, range(4, 14))
    put(log, (b"active", b"x"))
    log.sync_work().run()
    history.before = records(log)
    history.end_offset = log.log_end_offset
    log.config = topic_config(segment_bytes=900)
    swap, result = prepare(disk, log, first_dirty, wall_ms=1_000_000)
    assert len(result.groups) > 1
    assert all(len(group.source_offsets) > 1 for group in result.groups)
    swap_in(disk, log, swap, result)
    history.kept = records(log)


@pytest.fixture(scope="module")
def cuts() -> list[CutPoint[History]]:
    """The cuts after everything was written and synced, the complete run first."""
    found = [cut for cut in every_cut_point(scenario, History, torn_writes=()) if cut.history.before]
    assert len(found) > 50
    return found


def survivors(cut: CutPoint[History]) -> Iterator[SimulatedDisk]:
    # A crash or a kill returns a new disk; the old one can be used for another.
    yield cut.disk.kill()
    yield cut.disk.crash(Random(0), keep="nothing")
    yield cut.disk.crash(Random(0), keep="everything")
    for seed in range(2):
        yield cut.disk.crash(Random(seed))


def check(disk: SimulatedDisk, whole: History, where: str) -> Log:
    log = open_log(disk, is_clean=False)
    log.check_invariants()
    found = records(log)
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets)), where
    assert set(found) <= set(whole.before), where
    assert set(found) >= set(whole.kept), where
    assert latest(found) == latest(whole.before), where
    assert log.log_end_offset == whole.end_offset, where
    assert log.recovered_bytes_cut == 0, where
    left = [name for name in disk.list(FOLDER) if name.endswith(_LEFTOVERS)]
    assert left == [], where
    return log


def test_the_scenario_removes_and_keeps(cuts: list[CutPoint[History]]) -> None:
    whole = cuts[0].history
    assert len(whole.kept) < len(whole.before) * 0.8
    assert any(record.value is None for record in whole.before)
    assert [record.value for record in whole.before if record.key == b"gone"] == [None]
    assert not any(record.key == b"gone" for record in whole.kept)


def test_every_cut_leaves_the_log_before_or_after(cuts: list[CutPoint[History]]) -> None:
    whole = cuts[0].history
    for cut in cuts:
        for disk in survivors(cut):
            check(disk, whole, str(cut))


def test_a_log_that_was_cut_can_be_compacted_again(cuts: list[CutPoint[History]]) -> None:
    whole = cuts[0].history
    for cut in cuts[::3]:
        disk = cut.disk.kill()
        log = check(disk, whole, str(cut))
        compact(disk, log, None, wall_ms=2_000_000)
        assert latest(records(log)) == latest(whole.before), str(cut)
        assert {r.key for r in records(log) if r.value is not None} == set(latest(whole.before))


def test_completing_a_swap_may_be_cut_as_well(cuts: list[CutPoint[History]]) -> None:
    whole = cuts[0].history
    interrupted = [cut for cut in cuts if any(".swap" in path for path in cut.disk.contents())]
    assert len(interrupted) > 10
    for cut in interrupted[::15]:
        number = 0
        while True:
            disk = cut.disk.kill()
            disk.stop_at(number)
            try:
                open_log(disk, is_clean=False)
            except Stopped:
                check(disk.crash(Random(number)), whole, f"{cut}, then at step {number} of the restart")
                number += 1
            else:
                break
        assert number > 3


def files_that_count(disk: SimulatedDisk) -> dict[str, bytes]:
    return {name: data for name, data in disk.contents().items() if name.endswith((".log", ".log.swap"))}


def test_a_damaged_swap_file_is_refused_and_nothing_is_changed(cuts: list[CutPoint[History]]) -> None:
    cut = next(cut for cut in cuts if any(path.endswith(".log.swap") for path in cut.disk.contents()))
    disk = cut.disk.kill()
    path = next(path for path in disk.contents() if path.endswith(".log.swap"))
    disk.flip_bit(path, disk.size(path) - 1)
    logs = files_that_count(disk)
    with pytest.raises(StorageError, match=r"\.log\.swap"):
        open_log(disk, is_clean=False)
    assert files_that_count(disk) == logs
