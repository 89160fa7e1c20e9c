"""What a log says of transactions, read by the simulator: open ones, aborted ones, and what may not stand there."""

from __future__ import annotations

from tidemill.log.transactions import TransactionEnd, build_marker
from tidemill.protocol.isolation import AbortedBatches
from tidemill.protocol.records import TRANSACTIONAL, Record, build_batch, header_at, stamp
from tidemill.sim.checks.open_transactions import OpenTransactions


class Log:
    """Batches at growing offsets, and what two readers make of them."""

    def __init__(self, *aborted: tuple[int, int]) -> None:
        self.seen = OpenTransactions()
        self.wrong: list[str] = []
        self.shown: list[int] = []
        self.end = 0
        self._reader = AbortedBatches(aborted)

    def _take(self, raw: bytes) -> None:
        batch = memoryview(bytearray(raw))
        stamp(batch, 0, self.end, 0)
        header = header_at(batch)
        self.wrong += self.seen.take(batch, header)
        if not self._reader.includes(batch, header) and not header.is_control:
            self.shown.append(self.end)
        self.end = header.next_offset

    def write(self, producer_id: int, epoch: int = 0) -> Log:
        record = Record(0, 0, None, b"v")
        self._take(
            bytes(
                build_batch(
                    [record],
                    attributes=TRANSACTIONAL,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    base_sequence=0,
                )
            )
        )
        return self

    def end_of(self, producer_id: int, *, is_commit: bool, epoch: int = 0, coordinator_epoch: int = 0) -> Log:
        self._take(build_marker(TransactionEnd(producer_id, epoch, coordinator_epoch, is_commit), 0))
        return self


def test_the_oldest_open_transaction_bounds_what_is_stable() -> None:
    log = Log().write(1).write(2).write(1)
    assert log.seen.stable_offset(log.end) == 0
    log.end_of(1, is_commit=True)
    assert log.seen.stable_offset(log.end) == 1
    log.end_of(2, is_commit=False)
    assert log.seen.stable_offset(log.end) == 5
    assert log.seen.aborted == [(2, 1, 4)]
    assert not log.wrong


def test_transaction_whose_first_batches_are_deleted_goes_on_until_its_marker() -> None:
    log = Log().write(1).write(2).write(1)
    log.seen.start_at(2, has_read_all_before=True)
    assert (log.seen.cut, log.seen.stable_offset(log.end)) == ({1: 0, 2: 1}, 3)
    log.write(1).end_of(1, is_commit=False)
    assert (log.seen.cut, log.seen.aborted, log.seen.open) == ({2: 1}, [(1, 0, 4)], {})


def test_aborted_transaction_names_its_last_batch() -> None:
    log = Log().write(1).write(2).write(1).write(2).end_of(1, is_commit=False)
    assert log.seen.last_batches == {4: 2}


def test_transactions_before_a_gap_in_the_reading_are_forgotten() -> None:
    log = Log().write(1)
    log.seen.start_at(9, has_read_all_before=False)
    assert (log.seen.cut, log.seen.open, log.seen.start_offset) == ({}, {}, 9)


def test_a_marker_without_a_transaction_ends_nothing() -> None:
    assert Log().end_of(1, is_commit=False).seen.aborted == []


def test_an_older_producer_epoch_is_found() -> None:
    assert "epoch 3" in Log().write(1, 5).write(1, 3).wrong[0]
    assert "marker" in Log().write(1, 5).end_of(1, is_commit=True, epoch=4).wrong[0]


def test_an_older_coordinator_is_found() -> None:
    log = Log().write(1).end_of(1, is_commit=True, coordinator_epoch=7)
    assert not log.wrong
    log.write(1).end_of(1, is_commit=True, coordinator_epoch=6)
    assert "coordinator epoch 6" in log.wrong[0]


def test_a_committed_reader_leaves_out_what_the_list_covers_and_nothing_else() -> None:
    log = Log((1, 0)).write(1).write(2).end_of(1, is_commit=False).write(1).end_of(2, is_commit=True)
    assert log.shown == [1, 3]


def test_batches_before_aborted_transaction_are_returned() -> None:
    log = Log((1, 2)).write(1).end_of(1, is_commit=True).write(1).end_of(1, is_commit=False)
    assert log.shown == [0]
