"""A log as a follower writes it: batches with their offsets and epochs, truncation, restart at an offset."""

from __future__ import annotations

import pytest

from tidemill.config import TopicConfig
from tidemill.log.epochs import EpochStart
from tidemill.log.log import Log
from tidemill.log.time_search import search_time
from tidemill.log.transactions import AbortedTransaction, TransactionEnd, build_marker
from tidemill.protocol.records import (
    CONTROL,
    TRANSACTIONAL,
    InvalidBatch,
    Record,
    build_batch,
    iterate_records,
    split_batches,
    stamp,
)
from tidemill.protocol.steps import run_steps
from tidemill.sim.platform.disk import SimulatedDisk

CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=100)


def batch(base_offset: int, *values: bytes, epoch: int = 0, **fields: int) -> bytes:
    records = [Record(base_offset + n, base_offset + n, None, value) for n, value in enumerate(values)]
    return bytes(build_batch(records, base_offset=base_offset, leader_epoch=epoch, **fields))


def at(base_offset: int, data: bytes) -> bytes:
    placed = bytearray(data)
    stamp(memoryview(placed), 0, base_offset, 0)
    return bytes(placed)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def opened(disk: SimulatedDisk, *, is_clean: bool = True, recovery_point: int = 0) -> Log:
    return Log(disk, "/log", CONFIG, wall_ms=0, is_clean=is_clean, recovery_point=recovery_point)


def take(log: Log, *batches: bytes) -> None:
    data = memoryview(bytearray(b"".join(batches)))
    log.append_fetched(data, split_batches(data), 0)
    log.check_invariants()


def values(log: Log) -> list[tuple[int, bytes | None]]:
    return [
        (record.offset, record.value)
        for segment in log.segments
        for _, header, data in segment.batches()
        for record in iterate_records(data, header)
    ]


def test_batches_keep_their_offsets_and_epochs(disk: SimulatedDisk) -> None:
    log = opened(disk)
    take(log, batch(0, b"a", b"b"), batch(2, b"c", epoch=3))
    take(log, batch(3, b"d", epoch=4))
    assert values(log) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    assert log.epochs.entries == [EpochStart(0, 0), EpochStart(3, 2), EpochStart(4, 3)]
    assert log.log_end_offset == 4
    assert log.end_offset_of(3) == (3, 3)


def test_a_gap_that_compaction_left_is_copied(disk: SimulatedDisk) -> None:
    log = opened(disk)
    take(log, batch(0, b"a"), batch(7, b"h"))
    assert values(log) == [(0, b"a"), (7, b"h")]
    assert log.log_end_offset == 8


@pytest.mark.parametrize(
    "wrong",
    [
        [batch(1, b"again", epoch=2)],
        [batch(2, b"c", epoch=2), batch(2, b"again", epoch=2)],
        [batch(2, b"of an epoch that is over", epoch=1)],
    ],
    ids=["overlap", "overlap within", "epoch"],
)
def test_fetched_batches_that_do_not_continue_log_are_rejected(
    disk: SimulatedDisk, wrong: list[bytes]
) -> None:
    log = opened(disk)
    take(log, batch(0, b"a", b"b", epoch=2))
    with pytest.raises(InvalidBatch):
        take(log, *wrong)
    assert log.log_end_offset == 2


def test_fetched_batches_may_fill_several_segments(disk: SimulatedDisk) -> None:
    log = opened(disk)
    take(log, *(batch(number, b"x" * 300) for number in range(10)))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6, 8]
    assert [offset for offset, _ in values(log)] == list(range(10))
    log.close()
    again = opened(disk)
    assert again.log_end_offset == 10


def test_follower_restores_producer_state_from_fetched_batches(disk: SimulatedDisk) -> None:
    log = opened(disk)
    take(
        log,
        batch(0, b"a", producer_id=7, producer_epoch=0, base_sequence=0),
        batch(1, b"b", producer_id=7, producer_epoch=0, base_sequence=1, attributes=TRANSACTIONAL),
        at(2, build_marker(TransactionEnd(7, 0, 3, is_commit=False), 5)),
    )
    state = log.producers.get(7)
    assert state is not None
    assert [each.base_offset for each in state.batches] == [0, 1]
    assert (state.coordinator_epoch, state.txn_first_offset, state.last_timestamp) == (3, -1, 5)
    assert log.aborted_between(0, 3) == [AbortedTransaction(7, 1, 2, 3)]


def test_undecodable_marker_is_not_appended(disk: SimulatedDisk) -> None:
    log = opened(disk)
    with pytest.raises(InvalidBatch):
        take(log, batch(0, b"", producer_id=7, producer_epoch=0, attributes=CONTROL | TRANSACTIONAL))
    assert log.log_end_offset == 0


@pytest.mark.parametrize("cut", range(13))
def test_truncated_log_equals_log_that_was_never_longer(disk: SimulatedDisk, cut: int) -> None:
    log = opened(disk)
    take(log, *(batch(number, b"x" * 200, epoch=number // 4) for number in range(12)))
    log.truncate_to(cut)
    log.check_invariants()
    other = Log(SimulatedDisk(), "/log", CONFIG, wall_ms=0)
    if cut:
        take(other, *(batch(number, b"x" * 200, epoch=number // 4) for number in range(cut)))
    assert values(log) == values(other)
    assert log.epochs.entries == other.epochs.entries
    assert [s.max_timestamp for s in log.segments][-1] == [s.max_timestamp for s in other.segments][-1]
    take(log, *(batch(number, b"y" * 200, epoch=9) for number in range(cut, 14)))
    take(other, *(batch(number, b"y" * 200, epoch=9) for number in range(cut, 14)))
    assert values(log) == values(other)
    for timestamp in range(14):
        assert run_steps(search_time(log, timestamp)) == run_steps(search_time(other, timestamp))
    log.close()
    assert values(opened(disk)) == values(other)


def test_an_epoch_without_records_goes_with_a_cut_at_the_end(disk: SimulatedDisk) -> None:
    log = opened(disk)
    take(log, batch(0, b"a", epoch=1))
    log.epochs.assign(5, 1)
    log.truncate_to(1)
    assert log.epochs.entries == [EpochStart(1, 0)]
    assert log.log_end_offset == 1


def test_restart_at_empties_log_and_continues_at_offset(disk: SimulatedDisk) -> None:
    log = opened(disk)
    take(log, *(batch(number, b"x" * 300, epoch=1) for number in range(6)))
    log.restart_at(50, 0)
    log.check_invariants()
    assert (log.log_start_offset, log.log_end_offset, log.latest_epoch) == (50, 50, -1)
    take(log, batch(50, b"a", epoch=2))
    assert values(log) == [(50, b"a")]
    crashed = opened(disk.kill(), is_clean=False)
    assert values(crashed) == [(50, b"a")]
    assert crashed.epochs.entries == [EpochStart(2, 50)]


def test_snapshot_after_truncation_point_is_not_used(disk: SimulatedDisk) -> None:
    log = opened(disk)
    take(log, batch(0, b"a"), batch(1, b"b", producer_id=7, producer_epoch=0, base_sequence=0))
    log.roll(0)
    log.producers.clear()
    log.truncate_to(1)
    assert not [name for name in disk.list("/log") if name.endswith(".snapshot")]


def test_epochs_of_a_tail_that_was_cut_off_are_forgotten_by_a_crash(disk: SimulatedDisk) -> None:
    """The file still names them: it is written with the next sync, which did not come."""
    log = opened(disk)
    take(
        log,
        batch(0, b"a", epoch=3),
        batch(1, b"b", epoch=4),
        batch(2, b"c", epoch=6),
        batch(3, b"d", epoch=6),
    )
    work = log.sync_work()
    work.run()
    log.synced(work.end_offset, 0)
    log.truncate_to(1)
    take(log, *(batch(number, b"x", epoch=5) for number in range(1, 8)))
    crashed = opened(disk.kill(), is_clean=False, recovery_point=1)
    assert crashed.log_end_offset == 8
    assert crashed.epochs.entries == [EpochStart(3, 0), EpochStart(5, 1)]
