"""The shard runtime with a machine that knows nothing of groups: it counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tidemill.coordinator.shard import Answer, Decision, RawRecord, Shard, coordinator_error
from tidemill.errors import ApiError, ErrorCode


class Counter:
    """`add n` writes one record per n, `read` writes none, `wait` is answered by the next `wake`."""

    def __init__(self) -> None:
        self.total = 0
        self.seen: list[int] = []
        self.waiting: list[int] = []
        self.loaded_at_ms: int | None = None
        self.alarms: list[int] = []
        self.undone: list[ErrorCode] = []

    @property
    def deadline_ms(self) -> int | None:
        return min(self.alarms, default=None)

    def decide(self, request: Any, token: int, now_ms: int) -> Decision[int]:
        match request:
            case ("add", *numbers):
                return Decision(
                    numbers, [Answer(token, ("total", self.total + sum(numbers)))], ["added"], self.undo
                )
            case "read":
                return Decision(answers=[Answer(token, ("total", self.total))])
            case "wait":
                self.waiting.append(token)
                return Decision()
            case "wake":
                woken, self.waiting = self.waiting, []
                return Decision([1], [Answer(each, "woken") for each in [*woken, token]])
            case _:
                raise ApiError(ErrorCode.INVALID_REQUEST)

    def undo(self, error: ErrorCode) -> None:
        self.undone.append(error)

    def expire(self, now_ms: int) -> Decision[int] | None:
        due = [alarm for alarm in self.alarms if alarm <= now_ms]
        if not due:
            return None
        self.alarms.remove(due[0])
        # Each sees what the one before it wrote.
        return Decision([self.total + 1])

    def replay(self, record: int) -> None:
        self.total += record
        self.seen.append(record)

    def on_loaded(self, now_ms: int) -> None:
        self.loaded_at_ms = now_ms

    def waiting_tokens(self) -> list[int]:
        return list(self.waiting)

    def encode(self, record: int) -> RawRecord:
        return b"n", b"%d" % record

    def decode(self, key: bytes, value: bytes | None) -> int | None:
        if key != b"n":
            return None
        return 0 if value is None else int(value)


class Log:
    def __init__(self) -> None:
        self.batches: list[list[RawRecord]] = []
        self.error: ErrorCode | None = None

    def append(self, records: Sequence[RawRecord], now_ms: int) -> int:
        if self.error is not None:
            raise ApiError(self.error)
        self.batches.append(list(records))
        return sum(map(len, self.batches))


class Harness:
    def __init__(self) -> None:
        self.machine = Counter()
        self.log = Log()
        self.answers: list[tuple[int, Any]] = []
        self.effects: list[Any] = []
        self.shard = Shard(self.machine, self.log, self.respond, self.effects.append)

    def respond(self, token: int, response: Any) -> None:
        self.answers.append((token, response.code if isinstance(response, ApiError) else response))


@pytest.fixture
def harness() -> Harness:
    harness = Harness()
    harness.shard.load([], 0, 0, now_ms=7)
    return harness


def test_a_decision_is_one_batch_and_is_replayed_at_once(harness: Harness) -> None:
    harness.shard.handle(("add", 1, 2), token=1, now_ms=0)
    assert harness.log.batches == [[(b"n", b"1"), (b"n", b"2")]]
    assert harness.machine.seen == [1, 2]
    assert harness.effects == ["added"]


def test_an_answer_waits_until_its_last_record_is_committed(harness: Harness) -> None:
    harness.shard.handle(("add", 1, 2), token=1, now_ms=0)
    harness.shard.handle(("add", 3), token=2, now_ms=0)
    harness.shard.committed(1)
    assert harness.answers == []
    harness.shard.committed(2)
    assert harness.answers == [(1, ("total", 3))]
    harness.shard.committed(3)
    assert harness.answers == [(1, ("total", 3)), (2, ("total", 6))]


def test_a_read_waits_for_the_last_write_it_has_seen_and_for_no_later_one(harness: Harness) -> None:
    harness.shard.handle("read", token=1, now_ms=0)
    assert harness.answers == [(1, ("total", 0))]
    harness.shard.handle(("add", 5), token=2, now_ms=0)
    harness.shard.handle("read", token=3, now_ms=0)
    harness.shard.handle(("add", 6), token=4, now_ms=0)
    assert len(harness.answers) == 1
    harness.shard.committed(1)
    assert harness.answers[1:] == [(2, ("total", 5)), (3, ("total", 5))]


def test_a_watermark_that_is_told_twice_or_late_changes_nothing(harness: Harness) -> None:
    harness.shard.handle(("add", 1), token=1, now_ms=0)
    harness.shard.committed(1)
    harness.shard.committed(1)
    harness.shard.committed(0)
    assert harness.answers == [(1, ("total", 1))]
    harness.shard.handle("read", token=2, now_ms=0)
    assert harness.answers[1:] == [(2, ("total", 1))]


def test_a_decision_answers_other_requests_too(harness: Harness) -> None:
    harness.shard.handle("wait", token=1, now_ms=0)
    harness.shard.handle("wait", token=2, now_ms=0)
    harness.shard.handle("wake", token=3, now_ms=0)
    assert harness.answers == []
    harness.shard.committed(1)
    assert harness.answers == [(1, "woken"), (2, "woken"), (3, "woken")]


def test_an_api_error_of_the_machine_is_an_answer_like_any_other(harness: Harness) -> None:
    harness.shard.handle(("add", 1), token=1, now_ms=0)
    harness.shard.handle("nonsense", token=2, now_ms=0)
    assert harness.answers == []
    harness.shard.committed(1)
    assert harness.answers[1] == (2, ErrorCode.INVALID_REQUEST)


def test_a_failed_append_replays_nothing_and_tells_everybody_it_would_have_answered(harness: Harness) -> None:
    harness.shard.handle("wait", token=1, now_ms=0)
    harness.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    harness.shard.handle("wake", token=2, now_ms=0)
    harness.shard.handle(("add", 9), token=3, now_ms=0)
    assert harness.machine.seen == []
    assert harness.answers == [(token, ErrorCode.COORDINATOR_NOT_AVAILABLE) for token in (1, 2, 3)]
    assert harness.machine.undone == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert harness.effects == []
    harness.log.error = None
    harness.shard.handle(("add", 4), token=4, now_ms=0)
    harness.shard.committed(1)
    assert harness.answers[3:] == [(4, ("total", 4))]


def test_the_answer_to_a_failed_append_keeps_its_place_behind_earlier_writes(harness: Harness) -> None:
    harness.shard.handle(("add", 1), token=1, now_ms=0)
    harness.log.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    harness.shard.handle(("add", 2), token=2, now_ms=0)
    harness.shard.committed(1)
    assert harness.answers == [(1, ("total", 1)), (2, ErrorCode.NOT_COORDINATOR)]


def test_lost_leadership_answers_everybody_and_whoever_comes_later(harness: Harness) -> None:
    harness.shard.handle("wait", token=1, now_ms=0)
    harness.shard.handle(("add", 1), token=2, now_ms=0)
    harness.shard.handle("read", token=3, now_ms=0)
    harness.shard.fail(ErrorCode.NOT_COORDINATOR)
    harness.shard.committed(1)
    harness.shard.handle("read", token=4, now_ms=0)
    harness.machine.alarms = [1]
    harness.shard.tick(now_ms=5)
    assert sorted(harness.answers) == [(token, ErrorCode.NOT_COORDINATOR) for token in (1, 2, 3, 4)]
    assert harness.shard.deadline_ms is None
    assert not harness.shard.is_active


def test_loading_replays_in_order_and_skips_what_is_not_known() -> None:
    harness = Harness()
    harness.shard.handle("read", token=1, now_ms=0)
    assert harness.answers == [(1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)]
    harness.shard.load([(b"n", b"1"), (b"future", b"x"), (b"n", None), (b"n", b"2")], 4, 4, now_ms=7)
    assert harness.machine.seen == [1, 0, 2]
    assert harness.machine.loaded_at_ms == 7
    harness.shard.handle("read", token=2, now_ms=7)
    assert harness.answers[1:] == [(2, ("total", 3))]


def test_a_read_after_loading_waits_for_what_was_loaded_but_not_committed() -> None:
    harness = Harness()
    harness.shard.load([(b"n", b"1"), (b"n", b"2")], 2, 1, now_ms=0)
    harness.shard.handle("read", token=1, now_ms=0)
    assert harness.answers == []
    harness.shard.committed(2)
    assert harness.answers == [(1, ("total", 3))]


def test_each_timer_sees_what_the_one_before_it_wrote(harness: Harness) -> None:
    harness.machine.alarms = [3, 4, 90]
    assert harness.shard.deadline_ms == 3
    harness.shard.tick(now_ms=10)
    assert harness.machine.seen == [1, 2]
    assert harness.shard.deadline_ms == 90


@pytest.mark.parametrize(
    ("appended", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_what_clients_hear_of_an_append(appended: ErrorCode, told: ErrorCode) -> None:
    assert coordinator_error(appended) is told
