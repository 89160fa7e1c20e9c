"""Stop a compaction of a log with transactions at every step: no reader takes an aborted record for a committed one.

The index of aborted transactions is swapped with its segment. With the wrong index a log would return aborted records,
or hide records that the same producer committed later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from tests.unit.log.compacted import (
    FOLDER,
    batches,
    committed,
    compact,
    end_transaction,
    latest,
    open_log,
    prepare,
    put,
    seal,
    swap_in,
    topic_config,
)
from tidemill.log.log import Log
from tidemill.protocol.records import TRANSACTIONAL, Record
from tidemill.sim.platform.disk import CutPoint, SimulatedDisk, Stopped, every_cut_point


@dataclass
class History:
    before: list[Record] = field(default_factory=list)
    kept: list[Record] = field(default_factory=list)
    end_offset: int = 0
    stable_offset: int = 0


def write(log: Log, rounds: range) -> None:
    """Of the same producer: aborted, committed, aborted, ..., with another that ends only every third round."""
    for number in rounds:
        keys = [(b"k%d" % (number % 3), b"%d" % number), (b"once%d" % number, b"x")]
        put(log, *keys, attributes=TRANSACTIONAL, producer_id=1, sequence=number * 2, timestamp=number)
        put(log, (b"slow", b"%d" % number), attributes=TRANSACTIONAL, producer_id=2, sequence=number)
        end_transaction(log, 1, commit=number % 2 == 1)
        if number % 3 == 2:
            end_transaction(log, 2, commit=number % 2 == 0)
    seal(log)


def scenario(disk: SimulatedDisk, history: History) -> None:
    """A log that was cleaned before, so that some markers and their entries go, some stay and some are new."""
    disk.make_folder(FOLDER)
    disk.sync_folder("/data")
    disk.sync_folder("/")
    log = open_log(disk)
    write(log, range(3))
    log.producers.expire(1_000)  # nothing holds their batches
    first_dirty = compact(disk, log, wall_ms=0).end_offset
    write(log, range(3, 6))
    first_dirty = compact(disk, log, first_dirty, wall_ms=0).end_offset
    write(log, range(6, 10))  # the last of the slow ones stays open
    put(log, (b"active", b"x"))
    log.sync_work().run()
    history.before = committed(log)
    history.end_offset = log.log_end_offset
    history.stable_offset = log.last_stable_offset(log.log_end_offset)
    log.config = topic_config(segment_bytes=700)
    swap, result = prepare(disk, log, first_dirty, wall_ms=1_000_000, limit=history.stable_offset)
    assert len(result.groups) > 1
    swap_in(disk, log, swap, result)
    history.kept = committed(log)


@pytest.fixture(scope="module")
def cuts() -> list[CutPoint[History]]:
    found = [cut for cut in every_cut_point(scenario, History, torn_writes=()) if cut.history.stable_offset]
    assert len(found) > 50
    return found


def survivors(cut: CutPoint[History]) -> Iterator[SimulatedDisk]:
    yield cut.disk.kill()
    yield cut.disk.crash(Random(0), keep="nothing")
    yield cut.disk.crash(Random(0), keep="everything")
    yield cut.disk.crash(Random(1))


def check(disk: SimulatedDisk, whole: History, where: str, *, is_trusted: bool) -> Log:
    """`is_trusted`: with a recovery point at the end, nothing but damage makes the log read its batches again."""
    recovery_point = whole.end_offset if is_trusted else 0
    log = open_log(disk, is_clean=False, recovery_point=recovery_point)
    log.check_invariants()
    assert log.log_end_offset == whole.end_offset, where
    assert log.last_stable_offset(log.log_end_offset) == whole.stable_offset, where
    for max_bytes in (1, 100_000):
        found = committed(log, max_bytes=max_bytes)
        assert set(found) <= set(whole.before), where
        assert set(found) >= set(whole.kept), where
        assert latest(found) == latest(whole.before), where
    markers = {header.base_offset for header, _ in batches(log) if header.is_control and header.record_count}
    listed = [entry.last_offset for entry in log.aborted_between(0, log.log_end_offset)]
    assert set(listed) <= markers, f"{where}: a reader would wait for a marker that is gone"
    left = [name for name in disk.list(FOLDER) if name.endswith((".cleaned", ".swap", ".deleted"))]
    assert left == [], where
    return log


def test_the_scenario_drops_keeps_and_makes_entries(cuts: list[CutPoint[History]]) -> None:
    whole = cuts[0]
    before = next(cut for cut in cuts[1:] if not any(".swap" in name for name in cut.disk.contents()))
    listed = [
        {entry.last_offset for entry in open_log(disk).aborted_between(0, whole.history.end_offset)}
        for disk in (before.disk.kill(), whole.disk.kill())
    ]
    assert listed[1] < listed[0]
    assert len(whole.history.kept) < len(whole.history.before)


@pytest.mark.parametrize("is_trusted", [True, False])
def test_every_cut_leaves_the_right_transactions_aborted(
    cuts: list[CutPoint[History]], is_trusted: bool
) -> None:
    for cut in cuts[::2]:
        for disk in survivors(cut):
            check(disk, cuts[0].history, str(cut), is_trusted=is_trusted)


def test_completing_a_swap_may_be_cut_as_well(cuts: list[CutPoint[History]]) -> None:
    interrupted = [cut for cut in cuts if any(".txnindex.swap" in path for path in cut.disk.contents())]
    assert len(interrupted) > 10
    for cut in interrupted[::20]:
        number = 0
        while True:
            disk = cut.disk.kill()
            disk.stop_at(number)
            try:
                open_log(disk, is_clean=False, recovery_point=cuts[0].history.end_offset)
            except Stopped:
                where = f"{cut}, then at step {number} of the restart"
                check(disk.crash(Random(number)), cuts[0].history, where, is_trusted=True)
                number += 1
            else:
                break
        assert number > 3
