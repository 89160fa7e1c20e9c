"""Idempotent producers at the level of one log: the window of five, wraparound, epochs, snapshots, restarts."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.unit.log.batches import T0, append, batch, castagnoli, small_segments
from tidemill.errors import ErrorCode, StorageError
from tidemill.log.log import Log
from tidemill.log.producer_state.producers import Producers, later_sequence
from tidemill.protocol.records import (
    NAMED_PARTITION_MAX,
    InvalidBatch,
    header_at,
    restamp,
    with_named_partition,
)
from tidemill.sim.platform.disk import SimulatedDisk

LARGEST = 0x7FFFFFFF


@pytest.fixture
def log() -> Log:
    disk = SimulatedDisk()
    disk.make_folder("/d")
    return Log(disk, "/d", small_segments(), wall_ms=T0)


def _produce(
    log: Log,
    count: int,
    sequence: int,
    *,
    pid: int = 7,
    epoch: int = 0,
    named: int = 0,
    first_sequence: int | None = None,
) -> int:
    """Append as the partition does. Returns the offset of the batch, or of the one that it repeats."""
    data = batch(count, producer=(pid, epoch, sequence))
    header = header_at(data)
    header = restamp(
        memoryview(data), header._replace(attributes=with_named_partition(header.attributes, named))
    )
    duplicate = log.producers.duplicate_of(header, first_sequence)
    return duplicate.base_offset if duplicate is not None else append(log, data)


def _refusal(log: Log, count: int, sequence: int, **named: Any) -> ErrorCode:
    with pytest.raises(InvalidBatch) as raised:
        _produce(log, count, sequence, **named)
    return raised.value.code


def _restarted(log: Log, *, is_clean: bool) -> Log:
    if is_clean:
        log.close()
    files = log._files
    assert isinstance(files, SimulatedDisk)
    disk = files.kill()
    return Log(disk, "/d", log.config, wall_ms=T0, is_clean=is_clean, recovery_point=log.recovery_point)


def _without_snapshots(log: Log) -> Log:
    for name in log._files.list("/d"):
        if name.endswith(".snapshot"):
            log._files.remove(f"/d/{name}")
    return _restarted(log, is_clean=False)


RESTARTS = ["none", "clean", "crash", "crash without snapshots"]


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("named", [4, 300, NAMED_PARTITION_MAX])
def test_each_named_partition_has_its_own_sequence(log: Log, restart: str, named: int) -> None:
    own = {sequence: _produce(log, 3, sequence) for sequence in range(0, 9, 3)}
    passed_on = {sequence: _produce(log, 3, sequence, named=named) for sequence in range(30, 60, 3)}
    other = _produce(log, 3, 100, named=1)
    if restart == "crash without snapshots":
        log = _without_snapshots(log)
    elif restart != "none":
        log = _restarted(log, is_clean=restart == "clean")
    assert {sequence: _produce(log, 3, sequence) for sequence in own} == own
    last = {sequence: passed_on[sequence] for sequence in range(45, 60, 3)}
    assert {sequence: _produce(log, 3, sequence, named=named) for sequence in last} == last
    assert _produce(log, 3, 100, named=1) == other
    assert _refusal(log, 3, 63, named=named) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    end_offset = log.log_end_offset
    assert _produce(log, 3, 60, named=named) == end_offset
    assert _produce(log, 3, 9) == end_offset + 3


@pytest.mark.parametrize("is_known", [False, True])
def test_a_named_partition_begins_with_the_sequence_that_is_stated(log: Log, is_known: bool) -> None:
    if is_known:
        _produce(log, 3, 0)
    assert _refusal(log, 3, 15, named=4, first_sequence=12) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    _produce(log, 3, 12, named=4, first_sequence=12)
    # From here on the log knows: a leader that states an older sequence changes nothing.
    _produce(log, 3, 15, named=4, first_sequence=12)
    assert _refusal(log, 3, 21, named=4, first_sequence=12) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # The named partition stored batches of its own in between, because a shrink was taken back.
    assert _refusal(log, 3, 24, named=4, first_sequence=21) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    _produce(log, 3, 21, named=4, first_sequence=21)


def test_an_epoch_that_began_in_another_log_continues_its_sequence_here(log: Log) -> None:
    _produce(log, 3, 0)
    assert _refusal(log, 3, 0, named=4, epoch=1, first_sequence=6) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    _produce(log, 3, 6, named=4, epoch=1, first_sequence=6)


def test_the_later_of_two_sequences_is_found_across_the_wrap() -> None:
    assert later_sequence(5, None) == later_sequence(5, 3) == later_sequence(3, 5) == 5
    assert later_sequence(1, 0x7FFFFFFE) == later_sequence(0x7FFFFFFE, 1) == 1


def test_a_new_epoch_begins_anew_in_all_named_partitions(log: Log) -> None:
    _produce(log, 3, 0)
    _produce(log, 3, 0, named=4)
    _produce(log, 3, 0, named=4, epoch=1)
    assert _refusal(log, 3, 3, named=4) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert _refusal(log, 3, 3, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    _produce(log, 3, 0, epoch=1)
    _produce(log, 3, 3, named=4, epoch=1)


@pytest.mark.parametrize("restart", RESTARTS)
def test_failure_09_each_of_the_last_five_batches_is_known_again_and_keeps_its_offset(
    log: Log, restart: str
) -> None:
    offsets = {sequence: _produce(log, 3, sequence) for sequence in range(0, 24, 3)}
    if restart == "crash without snapshots":
        log = _without_snapshots(log)
    elif restart != "none":
        log = _restarted(log, is_clean=restart == "clean")
    end = log.log_end_offset
    for sequence in range(9, 24, 3):
        assert _produce(log, 3, sequence) == offsets[sequence]
    assert log.log_end_offset == end, "a retry was written twice"
    assert _refusal(log, 3, 6) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert _produce(log, 3, 24) == end


def test_a_gap_and_a_batch_of_another_length_are_out_of_order(log: Log) -> None:
    _produce(log, 3, 0)
    assert _refusal(log, 1, 4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert _refusal(log, 2, 0) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 3


def test_sequence_wraps_to_zero_after_int32_max(log: Log) -> None:
    _produce(log, 2, LARGEST - 3)
    assert _produce(log, 4, LARGEST - 1) == 2  # ends at sequence 1
    assert _produce(log, 4, LARGEST - 1) == 2
    log = _restarted(log, is_clean=True)
    assert _produce(log, 4, LARGEST - 1) == 2
    assert _refusal(log, 1, 3) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert _produce(log, 1, 2) == 6


def test_batch_after_int32_max_sequence_starts_at_zero(log: Log) -> None:
    _produce(log, 1, LARGEST)
    assert _produce(log, 1, 0) == 1


def test_a_bumped_epoch_begins_at_zero_and_fences_the_old_one(log: Log) -> None:
    _produce(log, 2, 0)
    _produce(log, 2, 2)
    assert _refusal(log, 1, 4, epoch=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert _produce(log, 2, 0, epoch=1) == 4, "the same sequences as in epoch 0, but no duplicate"
    assert _produce(log, 2, 0, epoch=1) == 4
    assert _refusal(log, 2, 4, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("sequence", [0, 40])
def test_failure_10_producer_with_expired_state_may_continue(log: Log, sequence: int) -> None:
    _produce(log, 2, 0)
    log.producers.expire(T0 + 1000)
    assert len(log.producers) == 0
    assert _produce(log, 2, sequence) == 2
    assert _produce(log, 2, sequence + 2) == 4


def test_expiry_keeps_producers_that_wrote_recently(log: Log) -> None:
    _produce(log, 1, 0, pid=1)
    append(log, batch(1, timestamps=[T0 + 5000], producer=(2, 0, 0)))
    log.producers.expire(T0 + 1)
    assert [state.producer_id for state in log.producers.states()] == [2]


def test_failure_10_snapshot_before_deleted_batches_is_not_used(log: Log) -> None:
    """It would expect a sequence that the producer is long past."""
    for sequence in range(0, 20, 2):
        _produce(log, 2, sequence)
    snapshots = [name for name in log._files.list("/d") if name.endswith(".snapshot")]
    assert len(snapshots) >= 2
    for name in snapshots[1:]:
        log._files.truncate(f"/d/{name}", 3)
    for path in log.move_start(19):
        log._files.remove(path)
    log._files.truncate(log.active.path_of("log"), 0)
    log = _restarted(log, is_clean=False)
    assert log.producers.get(7) is None
    _produce(log, 2, 20)


def test_a_log_that_restarts_where_it_has_a_snapshot_knows_no_producer(log: Log) -> None:
    """The snapshot may be of records that diverge from those of the leader."""
    for sequence in range(0, 20, 2):
        _produce(log, 2, sequence)
    snapshots = [name for name in log._files.list("/d") if name.endswith(".snapshot")]
    log.restart_at(int(snapshots[-1].removesuffix(".snapshot")), T0)
    assert log.producers.get(7) is None


@pytest.mark.parametrize("restart", RESTARTS)
def test_the_producer_state_is_incomplete_behind_records_that_were_never_seen(log: Log, restart: str) -> None:
    assert log.producers.is_complete
    log.restart_at(50, T0)
    for sequence in range(0, 20, 2):
        _produce(log, 2, sequence)
    if restart == "crash without snapshots":
        log = _without_snapshots(log)
    elif restart != "none":
        log = _restarted(log, is_clean=restart == "clean")
    assert not log.producers.is_complete


@pytest.mark.parametrize("restart", RESTARTS[:3])
def test_the_producer_state_stays_complete_when_seen_records_are_deleted(log: Log, restart: str) -> None:
    for sequence in range(0, 20, 2):
        _produce(log, 2, sequence)
    for path in log.move_start(19):
        log._files.remove(path)
    if restart != "none":
        log = _restarted(log, is_clean=restart == "clean")
    assert log.log_start_offset > 0
    assert log.producers.is_complete


def test_a_damaged_snapshot_is_dropped_and_the_log_replayed(log: Log) -> None:
    for sequence in range(0, 20, 2):
        _produce(log, 2, sequence)
    log.close()
    for name in log._files.list("/d"):
        if name.endswith(".snapshot"):
            log._files.replace(f"/d/{name}", b"\0" * 80)
    log = _restarted(log, is_clean=False)
    assert _produce(log, 2, 18) == 18
    assert _produce(log, 2, 20) == 20


# -- the snapshot's bytes ------------------------------------------------------------------------------------


def _state(*batches: tuple[int, int, int]) -> Producers:
    """(base offset, base sequence, records) of producer 0x0102030405060708, epoch 9."""
    producers = Producers()
    for base_offset, sequence, count in batches:
        header = header_at(batch(count, producer=(0x0102030405060708, 9, sequence)))
        producers.record(header._replace(base_offset=base_offset, max_timestamp=0x1122334455667788))
    return producers


def test_a_snapshot_is_kafkas_with_one_entry_for_each_producer() -> None:
    content = _state((100, 30, 3)).snapshot()
    body = bytes.fromhex(
        "00000001"  # entries
        "0102030405060708"  # producer id
        "0009"  # epoch
        "00000020"  # last sequence
        "0000000000000066"  # last offset
        "00000002"  # offset delta
        "1122334455667788"  # timestamp
        "ffffffff"  # coordinator epoch
        "ffffffffffffffff"  # first offset of the current transaction
    )
    assert content == b"\x00\x01" + struct.pack(">I", castagnoli(body)) + body


def test_snapshot_restores_all_five_batches_of_a_producer() -> None:
    batches = [(100, 30, 3), (103, 33, 1), (110, 34, 2), (112, LARGEST - 1, 4), (116, 2, 1)]
    saved = _state(*batches)
    restored = Producers()
    restored.restore(saved.snapshot())
    assert list(restored.states()) == list(saved.states())


@pytest.mark.parametrize("length", [0, 1, 5, 9, 30, 53])
def test_a_snapshot_that_is_cut_off_is_refused(length: int) -> None:
    with pytest.raises(StorageError):
        Producers().restore(_state((100, 30, 3)).snapshot()[:length])


def test_a_snapshot_with_a_flipped_bit_is_refused() -> None:
    content = _state((100, 30, 3), (103, 33, 1)).snapshot()
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 4
        with pytest.raises(StorageError):
            Producers().restore(bytes(flipped))
