"""The follower of a partition: where it fetches, and where it cuts its log."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tidemill.errors import ErrorCode
from tidemill.replication.follower import (
    FetchPosition,
    FetchState,
    FollowHighWatermark,
    FollowLogStart,
    PartitionFollower,
    RestartAt,
    TruncateTo,
)

BACKOFF_MS = 1_000


@dataclass
class FakeLog:
    """(epoch, first offset) of each epoch, the log's start and end."""

    log_end_offset: int = 0
    log_start_offset: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)

    @property
    def latest_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else -1

    def end_offset_of(self, epoch: int) -> tuple[int, int]:
        known = [entry for entry in self.epochs if entry[0] <= epoch]
        later = [start for number, start in self.epochs if number > epoch]
        if not self.epochs or epoch > self.latest_epoch:
            return -1, -1
        if not known:
            return epoch, later[0]
        return known[-1][0], later[0] if later else self.log_end_offset


def follower(log: FakeLog) -> PartitionFollower:
    return PartitionFollower(log, leader_id=2, leader_epoch=9, backoff_ms=BACKOFF_MS)


def test_position_names_log_end_and_last_epoch() -> None:
    machine = follower(FakeLog(20, 5, [(1, 5), (4, 12)]))
    assert machine.position() == FetchPosition(20, 4, 9, 5)


def test_high_watermark_of_leader_is_followed_up_to_own_log_end() -> None:
    machine = follower(FakeLog(20, 5))
    assert machine.appended(30, 5) == [FollowHighWatermark(20)]
    assert machine.appended(10, 8) == [FollowHighWatermark(10), FollowLogStart(8)]


# (own epochs, own end, leader's epoch, leader's end of it) -> where to cut
CUTS = {
    "the leader's epoch ends earlier": ([(1, 0), (2, 10)], 20, 2, 15, 15),
    "the own epoch ends earlier": ([(1, 0), (2, 10)], 20, 1, 30, 10),
    "the leader's epoch is unknown here": ([(1, 0), (4, 10)], 20, 3, 15, 10),
    "all own epochs are later": ([(3, 0)], 20, 2, 5, 0),
    "an epoch without records": ([(1, 0), (5, 20)], 20, 1, 20, 20),
    "no epochs here": ([], 20, 3, 15, 15),
}


@pytest.mark.parametrize("case", CUTS)
def test_failure_01_divergence_truncates_where_epochs_diverge(case: str) -> None:
    """Never at its own high watermark: after two failovers that would cut off what others count on."""
    epochs, end, leader_epoch, leader_end, expected = CUTS[case]
    machine = follower(FakeLog(end, 0, epochs))
    assert machine.diverged(end, leader_epoch, leader_end, 0, 0) == [TruncateTo(expected)]
    assert machine.state is FetchState.TRUNCATING
    assert not machine.is_ready(0)
    machine.truncated()
    assert machine.is_ready(0)


def test_truncation_below_log_start_restarts_the_log() -> None:
    machine = follower(FakeLog(20, 10, [(1, 10)]))
    assert machine.diverged(20, 0, 4, 0, 0) == [RestartAt(4)]


def test_divergence_below_leaders_log_start_restarts_the_log_there() -> None:
    """The leader has deleted the records where the logs diverged. Those of this log may belong to other transactions."""
    machine = follower(FakeLog(20, 0, [(1, 0), (4, 5)]))
    assert machine.diverged(20, 4, 12, 12, 11) == [RestartAt(12)]


@pytest.mark.parametrize(("log_start", "high_watermark"), [(0, 12), (12, 0), (0, 15)])
def test_divergence_at_leaders_log_start_truncates_where_records_below_were_committed(
    log_start: int, high_watermark: int
) -> None:
    machine = follower(FakeLog(20, log_start, [(1, log_start), (4, 15)]))
    assert machine.diverged(20, 1, 12, 12, high_watermark) == [TruncateTo(12)]


def test_follower_behind_leaders_log_start_restarts_there() -> None:
    machine = follower(FakeLog(20, 0, [(1, 0)]))
    assert machine.refused(ErrorCode.OFFSET_OUT_OF_RANGE, 20, 50, 0) == [RestartAt(50)]


def test_response_to_fetch_before_truncation_is_ignored() -> None:
    log = FakeLog(20, 0, [(1, 0)])
    machine = follower(log)
    assert machine.expects(20)
    machine.diverged(20, 1, 10, 0, 0)
    assert not machine.expects(20)
    assert not machine.diverged(20, 1, 5, 0, 0)
    log.log_end_offset = 10
    machine.truncated()
    assert not machine.expects(20)
    assert machine.expects(10)
    assert not machine.diverged(20, 1, 5, 0, 0)
    assert not machine.refused(ErrorCode.OFFSET_OUT_OF_RANGE, 20, 50, 0)


def test_fenced_leader_epoch_waits_for_the_image() -> None:
    machine = follower(FakeLog())
    machine.refused(ErrorCode.FENCED_LEADER_EPOCH, 0, -1, 0)
    assert not machine.is_ready(1 << 60)


@pytest.mark.parametrize("code", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OFFSET_OUT_OF_RANGE])
def test_other_errors_back_off(code: ErrorCode) -> None:
    machine = follower(FakeLog())
    assert not machine.refused(code, 0, -1, steady_ms=500)
    assert not machine.is_ready(500 + BACKOFF_MS - 1)
    assert machine.is_ready(500 + BACKOFF_MS)


def test_back_off_ends_with_a_tick_after_its_deadline_and_not_with_a_question() -> None:
    machine = follower(FakeLog())
    machine.failed(steady_ms=500)
    assert machine.deadline_ms == 500 + BACKOFF_MS
    assert machine.is_ready(500 + BACKOFF_MS)
    assert machine.state is FetchState.BACKING_OFF
    machine.tick(500 + BACKOFF_MS - 1)
    assert machine.state is FetchState.BACKING_OFF
    machine.tick(500 + BACKOFF_MS)
    assert machine.deadline_ms is None
    assert machine.expects(0)


def test_time_ends_no_truncation() -> None:
    machine = follower(FakeLog(20, 0, [(1, 0)]))
    machine.diverged(20, 1, 10, 0, 0)
    machine.tick(1 << 60)
    assert machine.state is FetchState.TRUNCATING


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_leader_that_does_not_know_its_role_is_retried_soon(code: ErrorCode) -> None:
    machine = follower(FakeLog())
    assert not machine.refused(code, 0, -1, steady_ms=500)
    assert not machine.is_ready(500)
    assert machine.is_ready(500 + BACKOFF_MS // 2)
