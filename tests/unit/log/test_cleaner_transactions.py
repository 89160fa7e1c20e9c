"""Compaction of logs with transactions: aborted records are removed, markers stay as long as they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from tests.unit.log.compacted import (
    DELETE_RETENTION_MS,
    FOLDER,
    batches,
    committed,
    compact,
    end_transaction,
    latest,
    open_log,
    put,
    seal,
    topic_config,
)
from tidemill.log.cleaning.cleanable import find_dirt
from tidemill.log.cleaning.transactions import CleanedTransactions
from tidemill.log.log import Log
from tidemill.log.transactions import AbortedTransaction
from tidemill.protocol.records import DELETE_HORIZON, TRANSACTIONAL, Record, build_batch, header_at
from tidemill.sim.platform.disk import SimulatedDisk


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def log(disk: SimulatedDisk) -> Log:
    return open_log(disk, topic_config(segment_bytes=10_000))


def write(log: Log, pid: int, sequence: int, *keys: bytes, epoch: int = 0) -> list[Record]:
    value = b"%d of %d" % (sequence, pid)
    return put(
        log,
        *[(key, value) for key in keys],
        attributes=TRANSACTIONAL,
        producer_id=pid,
        sequence=sequence,
        epoch=epoch,
    )


def shape(log: Log) -> list[tuple[int, int, str]]:
    """Offset, records and kind of each batch."""
    return [
        (
            header.base_offset,
            header.record_count,
            ("marker" if header.is_control else "data") + ("+" * bool(header.attributes & DELETE_HORIZON)),
        )
        for header, _ in batches(log)
    ]


def txn_indexes(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.list(FOLDER) if ".txnindex" in name]


def without_snapshots(disk: SimulatedDisk) -> None:
    for name in disk.list(FOLDER):
        if name.endswith(".snapshot"):
            disk.remove(f"{FOLDER}/{name}")


def test_aborted_records_go_and_displace_nothing_and_markers_stay(disk: SimulatedDisk, log: Log) -> None:
    put(log, (b"a", b"1"))
    write(log, 7, 0, b"a", b"b")
    end_transaction(log, 7, commit=False)
    write(log, 7, 2, b"c")
    end_transaction(log, 7, commit=True)
    seal(log)
    compact(disk, log)
    assert shape(log) == [(0, 1, "data"), (1, 0, "data"), (3, 1, "marker"), (4, 1, "data"), (5, 1, "marker")]
    assert [record.key for record in committed(log)] == [b"a", b"c"]
    assert log.aborted_between(0, 6) == [AbortedTransaction(7, 1, 3, 4)]


@pytest.mark.parametrize("is_commit", [True, False])
def test_failure_08_marker_is_removed_after_its_records_and_delete_retention(
    disk: SimulatedDisk, log: Log, is_commit: bool
) -> None:
    write(log, 7, 0, b"a")
    end_transaction(log, 7, commit=is_commit)
    put(log, (b"a", b"later"))
    seal(log)
    log.producers.expire(1)
    aborted = [] if is_commit else [AbortedTransaction(7, 0, 1, 2)]

    first_dirty = compact(disk, log, wall_ms=10).end_offset
    assert shape(log) == [(1, 1, "marker"), (2, 1, "data")], "its records were there until now"
    assert log.aborted_between(0, 3) == aborted
    assert bool(txn_indexes(disk)) == bool(aborted)
    first_dirty = compact(disk, log, first_dirty, wall_ms=20).end_offset
    assert shape(log) == [(1, 1, "marker+"), (2, 1, "data")]
    compact(disk, log, first_dirty, wall_ms=19 + DELETE_RETENTION_MS)
    assert shape(log) == [(1, 1, "marker+"), (2, 1, "data")]
    assert log.aborted_between(0, 3) == aborted
    compact(disk, log, first_dirty, wall_ms=20 + DELETE_RETENTION_MS)
    assert shape(log) == [(2, 1, "data")]
    assert log.aborted_between(0, 3) == [], "a reader would wait for the marker"
    assert txn_indexes(disk) == []


def test_a_commit_marker_stays_with_the_records_that_it_committed(disk: SimulatedDisk, log: Log) -> None:
    write(log, 7, 0, b"a", b"b")
    end_transaction(log, 7, commit=True)
    put(log, (b"a", b"later"))
    seal(log)
    log.producers.expire(1)
    for wall_ms in (0, 10_000, 20_000):
        compact(disk, log, wall_ms=wall_ms)
        assert shape(log) == [(0, 1, "data"), (2, 1, "marker"), (3, 1, "data")]
    without_snapshots(disk)
    again = open_log(disk, is_clean=False)
    assert again.last_stable_offset(4) == 4


def test_a_bare_header_still_needs_its_marker(disk: SimulatedDisk, log: Log) -> None:
    """It is kept for the producer's sequence, and a replay finds a transaction begun there."""
    write(log, 7, 0, b"a")
    end_transaction(log, 7, commit=False)
    put(log, (b"b", b"1"))
    seal(log)
    for wall_ms in (0, 10_000, 20_000):
        compact(disk, log, wall_ms=wall_ms)
    assert shape(log) == [(0, 0, "data"), (1, 1, "marker"), (2, 1, "data")]
    without_snapshots(disk)
    again = open_log(disk, is_clean=False)
    assert again.producers.is_stable or again.last_stable_offset(3) == 3
    assert again.aborted_between(0, 3) == [AbortedTransaction(7, 0, 1, 2)]


@pytest.mark.parametrize("is_commit", [True, False])
def test_producer_known_only_by_marker_keeps_its_epoch(
    disk: SimulatedDisk, log: Log, is_commit: bool
) -> None:
    write(log, 7, 0, b"a")
    end_transaction(log, 7, commit=is_commit, epoch=1, coordinator_epoch=3)
    put(log, (b"a", b"later"))
    seal(log)
    for wall_ms in (0, 10_000, 20_000):
        compact(disk, log, wall_ms=wall_ms)
    assert shape(log) == [(1, 0, "marker"), (2, 1, "data")]
    assert log.aborted_between(0, 3) == []
    without_snapshots(disk)
    state = open_log(disk, is_clean=False).producers.get(7)
    assert state is not None
    assert (state.epoch, state.batches, state.txn_first_offset) == (1, [], -1)


def test_nothing_at_or_behind_the_last_stable_offset_is_touched(disk: SimulatedDisk, log: Log) -> None:
    put(log, (b"a", b"1"))
    write(log, 7, 0, b"a")  # 1, open
    write(log, 8, 0, b"a")  # 2
    end_transaction(log, 8, commit=False)  # 3
    put(log, (b"a", b"2"))  # 4
    seal(log)
    stable = log.last_stable_offset(log.log_end_offset)
    assert stable == 1
    assert find_dirt(log, None, 0, stable).end_offset == 1
    compact(disk, log, limit=stable)
    assert [offset for offset, _, _ in shape(log)] == [0, 1, 2, 3, 4]
    assert log.aborted_between(0, 5) == [AbortedTransaction(8, 2, 3, 1)]


def test_aborted_records_are_removed_when_marker_is_after_cleaned_section(
    disk: SimulatedDisk, log: Log
) -> None:
    write(log, 7, 0, b"a")  # 0
    write(log, 8, 0, b"b")  # 1, open
    end_transaction(log, 7, commit=False)  # 2
    log.producers.expire(1)
    seal(log)
    put(log, (b"c", b"1"))
    compact(disk, log, limit=log.last_stable_offset(log.log_end_offset))
    assert shape(log) == [(1, 1, "data"), (2, 1, "marker"), (3, 1, "data")]
    assert log.aborted_between(0, 4) == [AbortedTransaction(7, 0, 2, 1)]


def test_tracker_separates_transactions_of_one_producer() -> None:
    known = CleanedTransactions([AbortedTransaction(7, 10, 20, 21), AbortedTransaction(7, 30, 40, 41)])

    def batch(offset: int, pid: int = 7, attributes: int = TRANSACTIONAL) -> bool:
        record = Record(offset, 0, b"k", b"v")
        data = build_batch([record], base_offset=offset, producer_id=pid, attributes=attributes)
        return known.is_aborted(header_at(data))

    assert [offset for offset in range(50) if batch(offset)] == [*range(10, 21), *range(30, 41)]
    assert not batch(15, pid=8)
    assert not batch(15, attributes=0)


# -- against a model -----------------------------------------------------------------------------------------


@dataclass
class Model:
    """The committed records in the order of the log, and the open transactions of each producer."""

    committed: list[Record] = field(default_factory=list)
    open: dict[int, list[Record]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)

    def end(self, pid: int, *, commit: bool, bump: bool) -> int:
        """The marker's epoch."""
        written = self.open.pop(pid, [])
        if commit:
            self.committed = sorted(self.committed + written, key=lambda record: record.offset)
        if bump:
            self.epochs[pid] = self.epochs.get(pid, 0) + 1
            self.sequences[pid] = 0
        return self.epochs.get(pid, 0)


pids = st.integers(1, 3)
keys = st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=3)
steps = st.one_of(
    st.tuples(st.just("write"), pids, keys),
    st.tuples(st.just("write"), pids, keys),
    st.tuples(st.just("plain"), keys),
    st.tuples(st.just("end"), pids, st.booleans(), st.booleans()),
    st.tuples(st.just("end"), pids, st.booleans(), st.booleans()),
    st.tuples(st.just("roll")),
    st.tuples(st.just("clean"), st.integers(0, 2 * DELETE_RETENTION_MS)),
    st.tuples(st.just("expire")),
    st.tuples(st.just("reopen"), st.booleans(), st.booleans()),
)


def check(log: Log, model: Model) -> None:
    log.check_invariants()
    for max_bytes in (1, 100_000):
        found = committed(log, max_bytes=max_bytes)
        stable = log.last_stable_offset(log.log_end_offset)
        visible = [record for record in model.committed if record.offset < stable]
        assert latest(found) == latest(visible)
        assert set(found) <= set(visible)
    opened = [records[0].offset for records in model.open.values()]
    assert log.last_stable_offset(log.log_end_offset) == min(opened, default=log.log_end_offset)
    assert {state.producer_id for state in log.producers.open_transactions()} == set(model.open)


def _sequences(log: Log) -> Iterator[tuple[int, int]]:
    for state in log.producers.states():
        yield state.producer_id, state.last_sequence + 1


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(steps, max_size=40))
def test_readers_of_committed_records_notice_no_cleaning(history: list[tuple[object, ...]]) -> None:
    disk, model = SimulatedDisk(), Model()
    log = open_log(disk)
    wall_ms = first_dirty = 0
    for step in history:
        match step:
            case ("write", int(pid), list(wanted)):
                sequence = model.sequences.get(pid, 0)
                written = write(log, pid, sequence, *wanted, epoch=model.epochs.get(pid, 0))
                model.open.setdefault(pid, []).extend(written)
                model.sequences[pid] = sequence + len(wanted)
            case ("plain", list(wanted)):
                model.committed += put(log, *[(key, b"%d" % log.log_end_offset) for key in wanted])
            case ("end", int(pid), bool(commit), bool(bump)):
                epoch = model.end(pid, commit=commit, bump=bump)
                end_transaction(log, pid, commit=commit, epoch=epoch, at_ms=wall_ms)
            case ("roll",) if log.active.size:
                seal(log)
            case ("clean", int(waited_ms)):
                wall_ms += waited_ms
                stable = log.last_stable_offset(log.log_end_offset)
                first_dirty = compact(disk, log, first_dirty, wall_ms=wall_ms, limit=stable).end_offset
            case ("expire",):
                log.producers.expire(wall_ms)
                # An expired producer starts again. A marker alone restores its entry, without its sequence.
                forgotten = [pid for pid in model.sequences if log.producers.get(pid) is None]
                for pid in forgotten:
                    del model.sequences[pid]
            case ("reopen", bool(is_clean), bool(has_snapshots)):
                log.close()
                if not has_snapshots:
                    without_snapshots(disk)
                log = open_log(disk, is_clean=is_clean)
        check(log, model)
    known = dict(_sequences(log))
    assert all(known.get(pid, sequence) == sequence for pid, sequence in model.sequences.items())
