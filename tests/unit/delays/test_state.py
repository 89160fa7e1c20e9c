"""The delays of a partition, case by case. `tests/property/test_delays.py` mixes them all."""

from __future__ import annotations

import pytest

from tests.unit.delays.copied import carried_copy, visible_copy
from tests.unit.delays.log_model import DumbLog
from tests.unit.delays.snapshots import restore, snapshot
from tidemill.delays.pending import Delivery
from tidemill.delays.requests import (
    CANCEL,
    DELAY,
    DELIVER_AT,
    SCHEDULE,
    SCHEDULE_ID,
)
from tidemill.delays.state import PartitionDelays
from tidemill.protocol.records import Header, Record
from tidemill.protocol.steps import Steps, run_steps

NOW_MS = 1_767_225_600_000
LATER_MS = NOW_MS + 10_000
ID = (SCHEDULE_ID, b"a")


class Log:
    """A log whose every batch is replayed, as an appender, a fetcher and a recovery do."""

    def __init__(self) -> None:
        self.log = DumbLog()
        self.delays = PartitionDelays()

    def append(self, *headers: tuple[str, bytes], producer_id: int | None = None, key: bytes = b"k") -> int:
        return self.add(Record(0, NOW_MS, key, b"v", [Header(*each) for each in headers]), producer_id)

    def add(self, record: Record, producer_id: int | None = None) -> int:
        batch = self.log.append([record], producer_id)
        self.delays.replay(batch.header, batch.records)
        return batch.records[0].offset

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        marker = self.log.append_marker(producer_id, is_commit)
        self.delays.end_transaction(producer_id, is_commit, marker.offset)

    def commit(self) -> None:
        run_steps(self.delays.advance_committed(self.log.end))

    def due(self, wall_ms: int = LATER_MS) -> list[int]:
        return [each.offset for each in run_steps(self.delays.due(wall_ms, 100))]

    def deliver(self, wall_ms: int = LATER_MS) -> list[Delivery]:
        deliveries = self.delays.confirm(run_steps(self.delays.due(wall_ms, 100)))
        for each in deliveries:
            self.add(visible_copy(self.log.record(each.offset), each.due_ms, each.next_due_ms))
        return deliveries

    def carry(self, before_offset: int) -> list[int]:
        carries = self.delays.confirm_carries(self.delays.to_carry(before_offset, 100))
        return [self.add(carried_copy(self.log.record(each.offset), each.due_ms)) for each in carries]

    def truncate(self, end_offset: int) -> bool:
        self.log.truncate(end_offset)
        return self.delays.truncate(end_offset)


def test_record_is_hidden_and_due_at_its_time_not_before() -> None:
    log = Log()
    log.append()
    log.append((DELAY, b"10s"))
    log.commit()
    assert log.delays.hidden.between(0, 10) == [(1, 2)]
    assert log.delays.next_due_ms == LATER_MS
    assert log.due(LATER_MS - 1) == []
    assert log.due(LATER_MS) == [1]


def test_time_in_the_past_is_due_at_once() -> None:
    log = Log()
    log.append((DELIVER_AT, b"0"))
    log.commit()
    assert log.due(NOW_MS) == [0]


def test_due_gives_a_record_once_until_it_is_given_back() -> None:
    log = Log()
    log.append((DELAY, b"1s"))
    log.commit()
    assert log.due() == [0]
    assert log.due() == []
    log.delays.give_back()
    assert log.due() == [0]


def test_record_above_the_high_watermark_waits_for_its_commit() -> None:
    log = Log()
    log.append((DELAY, b"1s"))
    assert log.due() == []
    assert log.delays.waits_for_commit
    log.commit()
    assert log.due() == [0]
    assert not log.delays.waits_for_commit


def test_clock_that_goes_back_while_a_record_waits_for_its_commit_does_not_deliver_early() -> None:
    log = Log()
    log.append((DELAY, b"5s"))
    assert log.due(LATER_MS) == []
    log.commit()
    assert log.due(NOW_MS) == []
    assert log.due(LATER_MS) == [0]


def test_record_of_a_transaction_waits_for_the_committed_marker() -> None:
    log = Log()
    log.append((DELAY, b"1s"), producer_id=1)
    log.commit()
    assert log.due() == []
    log.end(1, is_commit=True)
    assert log.due() == []  # the marker itself is not committed
    log.commit()
    assert log.due() == [0]


def test_record_of_an_aborted_transaction_stays_hidden_and_is_never_due() -> None:
    log = Log()
    log.append((DELAY, b"1s"), producer_id=1)
    log.end(1, is_commit=False)
    log.commit()
    assert log.due() == []
    assert log.delays.hidden.between(0, 10) == [(0, 1)]


def test_open_transaction_of_another_producer_holds_nothing_back() -> None:
    log = Log()
    log.append((DELAY, b"1s"), producer_id=1)
    log.append((DELAY, b"1s"))
    log.commit()
    assert log.due() == [1]


# -- cancel, reschedule ------------------------------------------------------------------------------------------


def test_cancel_by_key_and_id_removes_what_is_pending() -> None:
    log = Log()
    log.append((DELAY, b"1s"), ID)
    log.append((DELAY, b"1s"), ID, key=b"another key")
    log.append((CANCEL, b""), ID)
    log.commit()
    assert log.delays.hidden.between(0, 10) == [(0, 3)]
    assert log.due() == [1]


def test_cancel_of_what_was_delivered_has_no_effect() -> None:
    log = Log()
    log.append((DELAY, b"1s"), ID)
    log.commit()
    log.deliver()
    log.append((CANCEL, b""), ID)
    log.append((CANCEL, b"0"))
    log.commit()
    assert log.due() == []
    assert [record.value for record in log.log.visible()] == [b"v"]


def test_cancel_by_offset_removes_a_record_without_a_name() -> None:
    log = Log()
    log.append((DELAY, b"1s"))
    log.append((CANCEL, b"0"))
    log.commit()
    assert log.due() == []


def test_cancel_that_comes_while_the_copy_is_on_its_way_wins() -> None:
    log = Log()
    log.append((DELAY, b"1s"), ID)
    log.commit()
    deliveries = run_steps(log.delays.due(LATER_MS, 100))
    log.append((CANCEL, b""), ID)
    assert deliveries
    assert log.delays.confirm(deliveries) == []


def test_same_key_and_id_with_a_new_time_replaces_the_old() -> None:
    log = Log()
    log.append((DELAY, b"1s"), ID)
    log.append((DELAY, b"5s"), ID)
    log.commit()
    assert log.due(NOW_MS + 1000) == []
    assert log.due() == [1]


def test_order_of_records_decides_not_the_order_of_markers() -> None:
    log = Log()
    log.append((DELAY, b"1s"), ID, producer_id=1)
    log.append((DELAY, b"2s"), ID)
    log.end(1, is_commit=True)
    log.commit()
    assert log.due() == [1]


def test_cancel_in_an_aborted_transaction_has_no_effect() -> None:
    log = Log()
    log.append((DELAY, b"1s"), ID)
    log.append((CANCEL, b""), ID, producer_id=1)
    log.end(1, is_commit=False)
    log.commit()
    assert log.due() == [0]


def test_replacement_that_is_cancelled_by_offset_before_its_commit_still_replaces() -> None:
    log = Log()
    log.append((DELAY, b"1s"), ID)
    log.append((DELAY, b"2s"), ID, producer_id=1)
    log.append((CANCEL, b"1"))
    log.end(1, is_commit=True)
    log.commit()
    assert log.due() == []


# -- schedules ---------------------------------------------------------------------------------------------------


def test_schedule_is_delivered_for_each_occurrence() -> None:
    log = Log()
    log.append((SCHEDULE, b"@every 4s"), ID)
    log.commit()
    assert log.deliver(NOW_MS + 4000) == [Delivery(0, NOW_MS + 4000, NOW_MS + 8000)]
    assert log.deliver(NOW_MS + 7999) == []
    assert log.deliver(NOW_MS + 8000) == [Delivery(0, NOW_MS + 8000, NOW_MS + 12_000)]


def test_missed_occurrences_are_delivered_once_for_the_latest() -> None:
    log = Log()
    log.append((SCHEDULE, b"@every 4s"), ID)
    log.commit()
    assert log.deliver(NOW_MS + 3_600_000) == [Delivery(0, NOW_MS + 3_600_000, NOW_MS + 3_604_000)]
    assert log.deliver(NOW_MS + 3_600_000) == []


def test_failure_36_clock_that_goes_back_repeats_no_occurrence() -> None:
    log = Log()
    log.append((SCHEDULE, b"@every 4s"), ID)
    log.commit()
    log.deliver(NOW_MS + 3_600_000)
    assert log.deliver(NOW_MS + 8000) == []
    assert log.delays.next_due_ms == NOW_MS + 3_604_000


def test_cancelled_schedule_fires_no_more() -> None:
    log = Log()
    log.append((SCHEDULE, b"@every 4s"), ID)
    log.commit()
    log.deliver(NOW_MS + 4000)
    log.append((CANCEL, b""), ID)
    assert log.deliver(NOW_MS + 100_000) == []


# -- failover, truncation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("copy_survives", [True, False])
def test_failure_29_leader_that_dies_between_append_and_ack_of_the_copy(copy_survives: bool) -> None:
    """The successor's log has the copy or lacks it. It has delivered already, or delivers for the first time."""
    log = Log()
    log.append((DELAY, b"1s"))
    log.commit()
    log.deliver()
    if not copy_survives:
        log.log.truncate(1)
    successor = PartitionDelays()
    for batch in log.log.entries:
        successor.replay(batch.header, batch.records)  # type: ignore[union-attr]
    run_steps(successor.advance_committed(log.log.end))
    assert [each.offset for each in run_steps(successor.due(LATER_MS, 100))] == ([] if copy_survives else [0])


def test_failure_29_truncated_copy_makes_its_record_due_again() -> None:
    log = Log()
    log.append((DELAY, b"1s"))
    log.commit()
    log.deliver()
    assert log.due() == []
    assert log.truncate(1)
    assert log.due() == [0]


def test_failure_29_truncated_record_is_never_due() -> None:
    log = Log()
    log.append()
    log.commit()
    log.append((DELAY, b"1s"))
    assert log.due() == []
    assert log.truncate(1)
    log.append()
    log.commit()
    assert log.due() == []
    assert log.delays.hidden.between(0, 10) == []


def test_truncated_cancel_and_marker_are_undone() -> None:
    log = Log()
    log.append((DELAY, b"1s"), ID)
    log.append((DELAY, b"1s"), producer_id=1)
    log.commit()
    log.append((CANCEL, b""), ID)
    log.end(1, is_commit=True)
    assert log.truncate(2)
    assert log.due() == [0]
    log.end(1, is_commit=True)
    log.commit()
    assert log.due() == [1]


def test_truncation_below_the_high_watermark_requires_a_rebuild() -> None:
    log = Log()
    log.append((DELAY, b"1s"))
    log.append()
    log.commit()
    assert not log.truncate(1)


def test_batch_that_is_replayed_again_has_no_effect() -> None:
    log = Log()
    log.append((DELAY, b"1s"))
    log.commit()
    log.deliver()
    for batch in log.log.entries:
        log.delays.replay(batch.header, batch.records)  # type: ignore[union-attr]
    assert log.due() == []
    assert log.delays.hidden.between(0, 10) == [(0, 1)]


def test_second_copy_of_a_record_changes_nothing() -> None:
    log = Log()
    log.append((DELAY, b"1s"))
    log.commit()
    copy = visible_copy(log.log.record(0), NOW_MS + 1000, None)
    log.add(copy)
    log.add(copy)
    log.commit()
    assert log.due() == []
    assert log.delays.retained_offset == log.log.end


# -- retention ---------------------------------------------------------------------------------------------------


def test_failure_23_pending_record_is_carried_before_its_segment_goes() -> None:
    log = Log()
    log.append((DELAY, b"10s"), ID)
    log.commit()
    assert log.delays.retained_offset == 0
    assert log.carry(1) == [1]
    log.commit()
    assert log.delays.retained_offset == 1
    log.log.start = 1
    run_steps(log.delays.advance_log_start(1))
    assert log.due(LATER_MS - 1) == []
    assert log.deliver(LATER_MS) == [Delivery(1, LATER_MS, None)]
    assert dict(log.log.visible()[0].headers)["tidemill-original-offset"] == b"0"


def test_failure_23_replay_that_begins_after_the_original_finds_the_carried_record() -> None:
    log = Log()
    log.append((DELAY, b"10s"), ID)
    log.carry(1)
    log.append((CANCEL, b""), ID, producer_id=1)
    again = PartitionDelays(log_start_offset=1)
    for batch in log.log.entries:
        again.replay(batch.header, batch.records)  # type: ignore[union-attr]
    assert again.pending.offsets.first_from(0, 10) == [(1, LATER_MS)]
    again.end_transaction(1, True, log.log.end)
    assert again.pending.offsets.first_from(0, 10) == []


def test_failure_30_delivered_record_is_kept_until_its_copy_is_committed() -> None:
    log = Log()
    log.append((DELAY, b"1s"))
    log.commit()
    log.deliver()
    assert log.delays.retained_offset == 0
    log.commit()
    assert log.delays.retained_offset == log.log.end


def test_failure_30_carried_record_is_kept_until_the_carry_is_committed() -> None:
    log = Log()
    log.append((DELAY, b"10s"))
    log.commit()
    log.carry(1)
    assert log.delays.retained_offset == 0


def test_failure_30_records_of_an_open_or_barely_ended_transaction_are_kept() -> None:
    log = Log()
    log.append((DELAY, b"1s"), producer_id=1)
    log.commit()
    assert log.delays.retained_offset == 0
    log.end(1, is_commit=False)
    assert log.delays.retained_offset == 0
    log.commit()
    assert log.delays.retained_offset == log.log.end


def test_record_that_an_open_transaction_cancels_is_not_carried() -> None:
    log = Log()
    log.append((DELAY, b"10s"), ID)
    log.append((DELAY, b"10s"))
    log.append((CANCEL, b""), ID, producer_id=1)
    log.append((CANCEL, b"1"), producer_id=1)
    assert log.carry(2) == []
    log.end(1, is_commit=False)
    assert len(log.carry(2)) == 2


def test_delete_records_drops_what_is_pending_below() -> None:
    log = Log()
    log.append((DELAY, b"1s"))
    log.append((DELAY, b"1s"))
    log.commit()
    run_steps(log.delays.advance_log_start(1))
    assert log.due() == [1]
    assert log.delays.hidden.between(0, 10) == [(1, 2)]


def test_truncation_brings_nothing_back_from_below_the_log_start() -> None:
    log = Log()
    log.append((DELAY, b"1s"))
    log.append((DELAY, b"1s"), ID, producer_id=1)
    log.append()
    log.commit()
    log.append((CANCEL, b"0"))
    log.append((CANCEL, b""), ID)
    run_steps(log.delays.advance_log_start(2))
    assert log.truncate(3)
    log.end(1, is_commit=True)
    log.commit()
    assert log.due() == []


# -- large transactions ------------------------------------------------------------------------------------------


def _steps_of(steps: Steps[object]) -> int:
    return sum(1 for _ in steps)


def test_end_of_a_large_transaction_takes_steps_and_retains_its_records_meanwhile() -> None:
    log = Log()
    log.append()
    records = [Record(n, NOW_MS, None, b"v", [Header(DELAY, b"10s")]) for n in range(1_000)]
    batch = log.log.append(records, 7)
    log.delays.replay(batch.header, batch.records)
    log.commit()
    marker = log.log.append_marker(7, True)
    steps = log.delays.end_transaction_in_steps(7, True, marker.offset)
    next(steps)
    assert log.delays.retained_offset == 1
    assert log.delays.end_offset == marker.offset, "the marker is not taken in before its end"
    assert _steps_of(steps) > 5
    assert log.delays.end_offset == marker.offset + 1
    assert log.due() == [], "the marker is not committed"
    steps = log.delays.advance_committed(log.log.end)
    assert _steps_of(steps) >= 2
    assert log.due() == list(range(1, 101))


def test_large_batch_is_replayed_in_steps_and_readers_may_look_between_them() -> None:
    log = Log()
    records = [Record(n, NOW_MS, None, b"v", [Header(DELAY, b"10s")]) for n in range(1_000)]
    batch = log.log.append(records)
    steps = log.delays.replay_in_steps(batch.header, batch.records)
    next(steps)
    end_offset = log.delays.end_offset
    assert 0 < end_offset <= 100
    assert log.delays.hidden.between(0, 1_000) == [(0, end_offset)]
    assert log.delays.retained_offset == 0
    log.delays.replay(batch.header, batch.records)
    log.commit()
    assert log.delays.end_offset == 1_000
    assert len(log.due()) == 100


def test_due_schedules_are_looked_up_in_steps_and_all_are_taken_before_the_first() -> None:
    log = Log()
    for number in range(60):
        log.append((SCHEDULE, b"%d * * * *" % number), (SCHEDULE_ID, b"%d" % number))
    log.commit()
    steps = log.delays.due(NOW_MS + 10**9, 100)
    next(steps)
    assert len(log.delays.pending.taken) == 60
    assert _steps_of(steps) >= 10


def test_records_of_a_transaction_take_effect_in_the_order_of_offsets() -> None:
    """A record that another one cancelled in the same transaction stands before later ones all the same."""
    log = Log()
    first = log.append((DELAY, b"10s"), ID, producer_id=7)
    log.append((DELAY, b"20s"), (SCHEDULE_ID, b"b"), producer_id=7)
    log.append((CANCEL, b"%d" % first))
    log.append((DELAY, b"10s"), ID, producer_id=7)
    log.end(7, is_commit=True)
    log.commit()
    assert log.due() == [3]


def test_batch_that_does_not_decode_is_hidden() -> None:
    log = Log()
    log.append()
    batch = log.log.append([Record(n, NOW_MS, None, b"v") for n in range(3)])
    log.delays.replay_undecodable(batch.header)
    log.delays.replay_undecodable(batch.header)
    assert log.delays.hidden.between(0, 10) == [(1, 4)]
    assert log.delays.end_offset == 4


# -- snapshots ---------------------------------------------------------------------------------------------------


def _full_log() -> Log:
    log = Log()
    log.append((DELAY, b"1s"))
    log.append((SCHEDULE, b"0 6 * * *"), ("tidemill-timezone", b"Europe/Berlin"), ID)
    log.append((DELAY, b"2s"), (SCHEDULE_ID, b"b"), producer_id=1)
    log.append((CANCEL, b"0"), producer_id=2)
    log.append((DELAY, b"3s"), producer_id=3)
    log.end(3, is_commit=True)
    return log


def test_restored_snapshot_goes_on_as_the_state_did() -> None:
    log = _full_log()
    run_steps(log.delays.due(LATER_MS, 100))  # taken entries are pending, too
    restored = restore(snapshot(log.delays, 4), 0, log.log.end, 0, lambda _: 4)
    assert restored is not None
    for delays in (log.delays, restored):
        delays.give_back()
        delays.end_transaction(1, True, log.log.end)
        delays.end_transaction(2, True, log.log.end + 1)
        run_steps(delays.advance_committed(log.log.end + 2))
    assert run_steps(restored.due(NOW_MS + 10**8, 100)) == run_steps(log.delays.due(NOW_MS + 10**8, 100))
    assert restored.hidden.between(0, 100) == log.delays.hidden.between(0, 100)


def test_failure_29_snapshot_is_not_trusted_past_a_truncation() -> None:
    log = _full_log()
    data = snapshot(log.delays, 4)
    end = log.log.end
    assert restore(data, 0, end - 1, 0, lambda _: 4) is None, "the log is shorter"
    assert restore(data, 0, end + 9, 0, lambda _: 5) is None, "another leader wrote what is there now"
    assert restore(data, end + 1, end + 9, 0, lambda _: 4) is None, "the log starts behind it"
    assert restore(data, 0, end, 0, lambda _: 4) is not None


def test_damaged_snapshot_is_none() -> None:
    data = snapshot(_full_log().delays, 4)
    for position in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[position] ^= 1
        assert restore(bytes(damaged), 0, 100, 0, lambda _: 4) is None
    assert restore(b"", 0, 100, 0, lambda _: 4) is None
    assert restore(data[:-1], 0, 100, 0, lambda _: 4) is None


def test_nothing_is_removed_while_a_snapshot_hides_what_is_uncommitted() -> None:
    log = Log()
    log.append((DELAY, b"1s"))
    log.commit()
    log.deliver()
    restored = restore(snapshot(log.delays, 4), 0, log.log.end, 1, lambda _: 4)
    assert restored is not None
    assert restored.retained_offset == 0
    run_steps(restored.advance_committed(log.log.end))
    assert restored.retained_offset == log.log.end


def test_replay_goes_on_behind_a_gap_of_the_log() -> None:
    log = Log()
    log.append()
    log.delays.skip_to(5)
    assert log.delays.end_offset == 5
    log.delays.skip_to(3)
    assert log.delays.end_offset == 5, "a gap is passed over once"
