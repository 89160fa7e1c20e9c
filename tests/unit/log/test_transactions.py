"""Transactions in one log: markers, open transactions, the last stable offset, aborted transactions, restarts."""

from __future__ import annotations

import struct

import pytest

from tests.unit.log.batches import T0, append, batch, castagnoli, small_segments
from tidemill.errors import ErrorCode, ProtocolError
from tidemill.log.log import Log
from tidemill.log.transactions import AbortedTransaction, TransactionEnd, build_marker, marker_of
from tidemill.protocol.records import (
    CONTROL,
    TRANSACTIONAL,
    InvalidBatch,
    Record,
    build_batch,
    header_at,
    iterate_records,
)
from tidemill.sim.platform.disk import SimulatedDisk


@pytest.fixture
def log() -> Log:
    disk = SimulatedDisk()
    disk.make_folder("/d")
    return Log(disk, "/d", small_segments(), wall_ms=T0)


def write(log: Log, pid: int, sequence: int, count: int = 1, *, epoch: int = 0, at_ms: int = T0) -> int:
    """A transactional batch, as the partition takes it; its offset."""
    data = transactional(pid, sequence, count, epoch=epoch, at_ms=at_ms)
    duplicate = log.producers.duplicate_of(header_at(data))
    return duplicate.base_offset if duplicate is not None else append(log, data)


def transactional(
    pid: int,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    at_ms: int = T0,
    attributes: int = TRANSACTIONAL,
) -> bytearray:
    records = [Record(n, at_ms, b"k", b"v" * 20) for n in range(count)]
    return build_batch(
        records, attributes=attributes, producer_id=pid, producer_epoch=epoch, base_sequence=sequence
    )


def end(
    log: Log,
    pid: int,
    *,
    commit: bool,
    epoch: int = 0,
    coordinator_epoch: int = 1,
    version: int = 0,
    ordinal: int = -1,
) -> int:
    """The offset of the marker."""
    marker = TransactionEnd(pid, epoch, coordinator_epoch, commit, version, ordinal)
    return log.append_marker(marker, 0, T0) - 1


def refusal(log: Log, pid: int, **how: int) -> ErrorCode:
    before = log.log_end_offset
    with pytest.raises(InvalidBatch) as raised:
        end(log, pid, commit=False, **how)
    assert log.log_end_offset == before
    return raised.value.code


def reopened(log: Log, *, is_clean: bool) -> Log:
    if is_clean:
        log.close()
    files = log._files
    assert isinstance(files, SimulatedDisk)
    return Log(
        files.kill(), "/d", log.config, wall_ms=T0, is_clean=is_clean, recovery_point=log.recovery_point
    )


def names(log: Log, suffix: str) -> list[str]:
    return [name for name in log._files.list("/d") if name.endswith(suffix)]


# -- markers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_commit", "kind"), [(True, 1), (False, 0)])
def test_a_marker_is_kafkas_control_batch(is_commit: bool, kind: int) -> None:
    raw = build_marker(TransactionEnd(0x0102030405060708, 9, 0x11223344, is_commit), T0)
    fields = struct.unpack_from(">qiibIhiqqqhii", raw)
    assert fields == (
        *(0, len(raw) - 12, -1, 2, castagnoli(raw[21:]), TRANSACTIONAL | CONTROL),
        *(0, T0, T0, 0x0102030405060708, 9, -1, 1),
    )
    (record,) = iterate_records(memoryview(raw))
    assert record.key == bytes([0, 0, 0, kind])
    assert record.value == bytes([0, 0, 0x11, 0x22, 0x33, 0x44])
    assert marker_of(memoryview(raw), header_at(raw)) == TransactionEnd(
        0x0102030405060708, 9, 0x11223344, is_commit
    )


def control(key: bytes, value: bytes, producer_id: int = 7) -> memoryview:
    attributes = CONTROL | TRANSACTIONAL
    return memoryview(build_batch([Record(0, 0, key, value)], attributes=attributes, producer_id=producer_id))


def test_control_batches_of_other_kinds_end_no_transaction() -> None:
    leader_change = control(b"\0\0\0\2", b"")
    assert marker_of(leader_change, header_at(leader_change)) is None
    of_nobody = control(b"\0\0\0\1", b"\0" * 6, producer_id=-1)
    assert marker_of(of_nobody, header_at(of_nobody)) is None
    bare = memoryview(build_batch([], attributes=CONTROL | TRANSACTIONAL, producer_id=7))
    assert marker_of(bare, header_at(bare)) is None


@pytest.mark.parametrize(("key", "value"), [(b"\0\0\0", b"\0" * 6), (b"\0\0\0\1", b"\0" * 5)])
def test_a_marker_that_is_cut_off_is_refused(key: bytes, value: bytes) -> None:
    batch = control(key, value)
    with pytest.raises(ProtocolError):
        marker_of(batch, header_at(batch))


def test_marker_with_later_schema_version_is_read() -> None:
    batch = control(b"\0\1\0\1more", b"\0\1\0\0\0\5more")
    assert marker_of(batch, header_at(batch)) == TransactionEnd(7, -1, 5, True)


# -- what is open, and the last stable offset ----------------------------------------------------------------


def test_the_last_stable_offset_is_where_the_oldest_open_transaction_began(log: Log) -> None:
    append(log, batch(2))
    assert log.last_stable_offset(2) == 2
    assert write(log, 1, 0, 2) == 2
    assert write(log, 2, 0) == 4
    assert [state.producer_id for state in log.producers.open_transactions()] == [1, 2]
    assert log.last_stable_offset(5) == 2
    assert log.last_stable_offset(1) == 1, "never above the high watermark"
    assert end(log, 1, commit=True) == 5
    assert log.last_stable_offset(6) == 4
    end(log, 2, commit=False)
    assert log.last_stable_offset(7) == 7
    assert log.producers.open_transactions() == []
    assert log.producers.is_stable


def test_transaction_is_unstable_until_its_marker_is_committed(log: Log) -> None:
    write(log, 1, 0)
    write(log, 2, 0)
    end(log, 2, commit=True)
    end(log, 1, commit=True)
    append(log, batch(1))
    assert [log.last_stable_offset(hw) for hw in range(6)] == [0, 0, 0, 0, 4, 5]


def test_first_unstable_offset_is_a_query_and_committed_markers_are_dropped_by_command(log: Log) -> None:
    write(log, 1, 0, 2)
    assert end(log, 1, commit=True) == 2
    assert [log.producers.first_unstable_offset for _ in range(2)] == [0, 0]
    log.producers.drop_committed_markers(2)
    assert log.producers.first_unstable_offset == 0
    log.producers.drop_committed_markers(3)
    assert log.producers.first_unstable_offset is None
    assert log.producers.is_stable


def test_later_ended_transaction_bounds_last_stable_offset_after_the_older(log: Log) -> None:
    write(log, 1, 0)  # 0
    write(log, 2, 0)  # 1
    end(log, 1, commit=True)  # 2
    end(log, 2, commit=True)  # 3
    assert [log.last_stable_offset(hw) for hw in range(5)] == [0, 0, 0, 1, 4]


@pytest.mark.parametrize("is_clean", [True, False])
def test_restart_restores_open_and_uncommitted_ended_transactions(log: Log, is_clean: bool) -> None:
    for number in range(8):
        write(log, 1, number * 2, 2)  # 0 .. 15, in several segments
    write(log, 2, 0)  # 16
    end(log, 1, commit=True, coordinator_epoch=4)  # 17
    assert len(log.segments) > 1
    log = reopened(log, is_clean=is_clean)
    assert log.last_stable_offset(17) == 0
    assert log.last_stable_offset(18) == 16
    state = log.producers.get(1)
    assert state is not None
    assert (state.coordinator_epoch, state.txn_first_offset) == (4, -1)
    assert [b.base_sequence for b in state.batches] == [6, 8, 10, 12, 14]
    end(log, 2, commit=False)
    assert log.last_stable_offset(19) == 19


def test_failure_10_producer_with_open_transaction_never_expires(log: Log) -> None:
    write(log, 1, 0)
    append(log, batch(1, producer=(2, 0, 0), timestamps=[T0]))
    log.producers.expire(T0 + 1)
    assert [state.producer_id for state in log.producers.states()] == [1]
    assert log.last_stable_offset(2) == 0
    end(log, 1, commit=True)
    log.producers.expire(T0 + 1)
    assert len(log.producers) == 0
    assert log.last_stable_offset(3) == 3


def test_truncation_of_marker_reopens_transaction(log: Log) -> None:
    write(log, 1, 0)
    write(log, 2, 0)
    end(log, 1, commit=False)
    end(log, 2, commit=True)
    assert log.last_stable_offset(4) == 4
    log.truncate_to(3)
    assert [state.producer_id for state in log.producers.open_transactions()] == [2]
    assert log.aborted_between(0, 3) == [AbortedTransaction(1, 0, 2, 1)]
    log.truncate_to(2)
    assert [state.producer_id for state in log.producers.open_transactions()] == [1, 2]
    assert log.aborted_between(0, 2) == []
    log.truncate_to(0)
    assert log.last_stable_offset(0) == 0
    assert log.producers.is_stable


def test_truncation_back_to_a_snapshot_forgets_the_aborts_behind_it(log: Log) -> None:
    """There is nothing to replay then, so the index itself is cut."""
    write(log, 1, 0)
    end(log, 1, commit=False)
    log = reopened(log, is_clean=True)
    write(log, 1, 1)
    end(log, 1, commit=False)
    assert len(log.aborted_between(0, 4)) == 2
    log.truncate_to(2)
    assert log.aborted_between(0, 9) == [AbortedTransaction(1, 0, 1, 2)]
    log.check_invariants()


def test_deleted_records_do_not_end_a_transaction(log: Log) -> None:
    """As in Kafka, the last stable offset is then the log start offset."""
    for number in range(12):
        write(log, 1, number)
    for path in log.move_start(9):
        log._files.remove(path)
    assert log.last_stable_offset(12) == 9
    end(log, 1, commit=False)
    assert log.last_stable_offset(13) == 13
    assert log.aborted_between(9, 13) == [AbortedTransaction(1, 0, 12, 13)]


# -- who may write -------------------------------------------------------------------------------------------


def test_plain_batch_during_open_transaction_is_rejected(log: Log) -> None:
    write(log, 1, 0)
    with pytest.raises(InvalidBatch) as raised:
        log.producers.duplicate_of(header_at(batch(1, producer=(1, 0, 1))))
    assert raised.value.code == ErrorCode.INVALID_TXN_STATE
    end(log, 1, commit=True)
    assert log.producers.duplicate_of(header_at(batch(1, producer=(1, 0, 1)))) is None


def test_markers_of_older_producers_and_coordinators_are_refused(log: Log) -> None:
    write(log, 1, 0, epoch=5)
    assert refusal(log, 1, epoch=4) == ErrorCode.INVALID_PRODUCER_EPOCH
    end(log, 1, commit=True, epoch=5, coordinator_epoch=3)
    assert refusal(log, 1, epoch=5, coordinator_epoch=2) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    end(log, 1, commit=True, epoch=5, coordinator_epoch=3)  # a repeated one does no harm
    with pytest.raises(InvalidBatch):
        log.check_marker(TransactionEnd(1, 4, 3, is_commit=True))


def test_failure_07_a_late_marker_does_not_end_the_next_transaction(log: Log) -> None:
    """KIP-890: each transaction has its own epoch, and its marker the next one."""
    write(log, 1, 0, epoch=0)
    end(log, 1, commit=True, epoch=1, version=2)
    end(log, 1, commit=True, epoch=1, version=2)  # sent twice: allowed, nothing is open
    write(log, 1, 0, epoch=1)
    assert refusal(log, 1, epoch=1, version=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.producers.is_open(1, 1)
    end(log, 1, commit=False, epoch=2, version=2)
    assert not log.producers.is_open(1, 2)
    assert log.aborted_between(0, 6) == [AbortedTransaction(1, 3, 4, 5)]


def test_failure_07_repetition_of_a_numbered_marker_is_recognised(log: Log) -> None:
    def has_ended(
        ordinal: int, *, epoch: int = 0, coordinator_epoch: int = 1, is_commit: bool = False
    ) -> bool:
        repeated = TransactionEnd(1, epoch, coordinator_epoch, is_commit, ordinal=ordinal)
        return log.producers.has_ended(repeated)

    assert not has_ended(5)
    write(log, 1, 0)
    end(log, 1, commit=False, ordinal=5)
    assert has_ended(5)
    assert has_ended(4), "the marker of an earlier transaction, later still"
    assert not has_ended(6)
    assert not has_ended(-1), "a marker without a number"
    assert not has_ended(5, epoch=1)
    end(log, 1, commit=False)
    assert has_ended(5), "an administrator's marker is not numbered"
    end(log, 1, commit=False, coordinator_epoch=2, ordinal=3)
    assert not has_ended(5, coordinator_epoch=2), "each coordinator has its own numbers"
    assert has_ended(3, coordinator_epoch=2)


def test_the_largest_epoch_ends_its_own_transaction(log: Log) -> None:
    write(log, 1, 0, epoch=0x7FFF)
    end(log, 1, commit=True, epoch=0x7FFF, version=2)
    assert log.producers.open_transactions() == []


@pytest.mark.parametrize("restart", ["none", "clean", "crash"])
def test_a_marker_of_the_same_epoch_keeps_the_sequence_and_of_a_new_one_restarts_it(
    log: Log, restart: str
) -> None:
    for pid, epoch in ((1, 0), (2, 1)):
        write(log, pid, 0, 3)
        end(log, pid, commit=True, epoch=epoch, coordinator_epoch=6)
    if restart != "none":
        log = reopened(log, is_clean=restart == "clean")
    assert write(log, 1, 0, 3) == 0, "a retry that arrives after the commit"
    assert write(log, 1, 3) == 8
    with pytest.raises(InvalidBatch) as raised:
        write(log, 2, 0, 3, epoch=0)
    assert raised.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(InvalidBatch) as raised:
        write(log, 2, 3, epoch=1)
    assert raised.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(log, 2, 0, epoch=1) == 9
    state = log.producers.get(2)
    assert state is not None
    assert (state.coordinator_epoch, state.epoch) == (6, 1)


def test_bumped_epoch_continues_open_transaction(log: Log) -> None:
    """As in Kafka, only a marker ends the transaction."""
    write(log, 1, 0)
    write(log, 1, 0, epoch=1)
    assert log.last_stable_offset(2) == 0
    end(log, 1, commit=False, epoch=1)
    assert log.aborted_between(0, 3) == [AbortedTransaction(1, 0, 2, 3)]


# -- aborted transactions and their index --------------------------------------------------------------------


def test_a_log_without_aborts_has_no_index(log: Log) -> None:
    for number in range(6):
        write(log, 1, number)
        end(log, 1, commit=True)
    end(log, 9, commit=False)  # of a transaction that wrote nothing here
    log.close()
    assert len(log.segments) > 1
    assert names(log, ".txnindex") == []
    assert log.aborted_between(0, 13) == []


@pytest.mark.parametrize("restart", ["none", "clean", "crash"])
def test_aborted_transactions_are_found_where_they_overlap(log: Log, restart: str) -> None:
    """Kafka's rule: ended at or behind the first offset, begun below the end."""
    expected = []
    for number in range(10):
        first = write(log, 1, number * 2, 2)
        marker = end(log, 1, commit=number % 3 == 0)
        if number % 3:
            expected.append(AbortedTransaction(1, first, marker, marker + 1))
    if restart != "none":
        log = reopened(log, is_clean=restart == "clean")
    assert len(log.segments) > 2
    end_offset = log.log_end_offset
    for start in range(end_offset + 1):
        for stop in range(start, end_offset + 1):
            overlapping = [e for e in expected if e.last_offset >= start and e.first_offset < stop]
            assert log.aborted_between(start, stop) == overlapping, (start, stop)


def test_txn_index_entry_holds_last_stable_offset_of_open_transactions(log: Log) -> None:
    write(log, 1, 0)
    write(log, 2, 0)
    write(log, 3, 0)
    end(log, 2, commit=False)
    end(log, 1, commit=False)
    end(log, 3, commit=False)
    expected = [
        AbortedTransaction(2, 1, 3, 0),
        AbortedTransaction(1, 0, 4, 2),
        AbortedTransaction(3, 2, 5, 6),
    ]
    for start in range(7):
        for stop in range(start, 7):
            overlapping = [e for e in expected if e.last_offset >= start and e.first_offset < stop]
            assert log.aborted_between(start, stop) == overlapping, (start, stop)


def test_txn_index_has_kafkas_format(log: Log) -> None:
    write(log, 0x0102030405060708, 0)
    end(log, 0x0102030405060708, commit=False)
    log.close()
    (name,) = names(log, ".txnindex")
    assert name == "00000000000000000000.txnindex"
    assert log._files.read(f"/d/{name}") == struct.pack(">hqqqq", 0, 0x0102030405060708, 0, 1, 2)


@pytest.mark.parametrize("damage", ["cut", "version", "disorder", "zeros"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_damaged_txn_index_is_rebuilt(log: Log, damage: str, is_clean: bool) -> None:
    for number in range(6):
        write(log, 1, number)
        end(log, 1, commit=False)
    expected = log.aborted_between(0, 12)
    assert len(expected) == 6
    log.close()
    path = f"/d/{names(log, '.txnindex')[0]}"
    content = log._files.read(path)
    assert len(content) >= 68
    changed = {
        "cut": content[:-1],
        "version": b"\0\1" + content[2:],
        "disorder": content[34:68] + content[:34] + content[68:],
        "zeros": bytes(len(content)),
    }[damage]
    log._files.replace(path, changed)
    files = log._files
    assert isinstance(files, SimulatedDisk)
    again = Log(
        files.kill(), "/d", log.config, wall_ms=T0, is_clean=is_clean, recovery_point=log.recovery_point
    )
    assert again.aborted_between(0, 12) == expected
    again.close()
    assert again._files.read(path) == content


def test_an_index_that_was_not_synced_and_is_gone_is_made_anew(log: Log) -> None:
    for number in range(6):
        write(log, 1, number)
        end(log, 1, commit=False)
    expected = log.aborted_between(0, 12)
    assert len(names(log, ".txnindex")) > 1
    for name in names(log, ".txnindex"):
        log._files.remove(f"/d/{name}")
    assert log.recovery_point == 0
    assert reopened(log, is_clean=False).aborted_between(0, 12) == expected


def test_an_index_goes_with_its_segment(log: Log) -> None:
    for number in range(8):
        write(log, 1, number)
        end(log, 1, commit=False)
    assert len(log.segments) > 3
    log.sync_work().run()
    assert len(names(log, ".txnindex")) == len(log.segments)
    removed = log.move_start(log.segments[2].base_offset)
    assert sum(path.endswith(".txnindex.deleted") for path in removed) == 2
    log.truncate_to(log.segments[1].base_offset)
    assert len(names(log, ".txnindex")) == 1
    assert [e.last_offset for e in log.aborted_between(0, 99)] == [
        e.last_offset for e in log.segments[0].txn_index.entries
    ]


def test_a_full_disk_keeps_the_recovery_point_until_the_index_is_written(log: Log) -> None:
    files = log._files
    assert isinstance(files, SimulatedDisk)
    write(log, 1, 0)
    end(log, 1, commit=False)
    files.free_bytes = 0
    with pytest.raises(OSError, match="space"):
        log.sync_work().run()
    files.free_bytes = 1 << 20
    log.sync_work().run()
    assert files.size("/d/00000000000000000000.txnindex") == 34
