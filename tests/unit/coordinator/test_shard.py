"""The shard runtime with a machine that knows nothing of groups: it counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tidemill.coordinator.shard import RawRecord, Shard, coordinator_error
from tidemill.errors import ApiError, ErrorCode
from tidemill.log.transactions import TransactionEnd
from tidemill.machine import Answer, Decision, Writer

WRITER = Writer(producer_id=7, producer_epoch=2)
COMMIT = TransactionEnd(producer_id=7, producer_epoch=2, coordinator_epoch=0, is_commit=True)
ABORT = COMMIT._replace(is_commit=False)


class Counter:
    """`add n` writes one record per n, `read` writes none, `wait` is answered by the next `wake`."""

    def __init__(self) -> None:
        self.total = 0
        self.seen: list[int] = []
        self.waiting: list[int] = []
        self.loaded_at_ms: int | None = None
        self.alarms: list[int] = []
        self.undone: list[ErrorCode] = []
        self.pending: dict[int, list[int]] = {}

    @property
    def deadline_ms(self) -> int | None:
        return min(self.alarms, default=None)

    def decide(self, request: Any, token: int, steady_ms: int) -> Decision[int, Any]:
        match request:
            case ("add", *numbers):
                return Decision(
                    numbers, ("total", self.total + sum(numbers)), effects=["added"], on_failed=self.undo
                )
            case ("add in", writer, *numbers):
                return Decision(numbers, "pending", writer=writer)
            case ("announce", *numbers):
                announced = [("announced", number) for number in numbers]
                return Decision(
                    numbers,
                    "announced",
                    effects=["announcing"],
                    on_failed=lambda error: Decision(committed_effects=[("undone", error)]),
                    committed_effects=announced or [("announced", "nothing")],
                )
            case "read":
                return Decision(reply=("total", self.total))
            case "wait":
                self.waiting.append(token)
                return Decision()
            case "wake":
                woken, self.waiting = self.waiting, []
                return Decision([1], "woken", [Answer(each, "woken") for each in woken])
            case _:
                raise ApiError(ErrorCode.INVALID_REQUEST)

    def undo(self, error: ErrorCode) -> None:
        self.undone.append(error)

    def expire(self, steady_ms: int) -> Decision[int, Any] | None:
        due = [alarm for alarm in self.alarms if alarm <= steady_ms]
        if not due:
            return None
        self.alarms.remove(due[0])
        # Each decision sees the record of the one before it.
        return Decision([self.total + 1])

    def replay(self, record: int, writer: Writer | None = None, _offset: int = -1) -> None:
        if writer is not None:
            self.pending.setdefault(writer.producer_id, []).append(record)
            return
        self.total += record
        self.seen.append(record)

    def replay_end(self, end: TransactionEnd) -> None:
        pending = self.pending.pop(end.producer_id, [])
        for record in pending if end.is_commit else ():
            self.replay(record)

    def on_loaded(self, steady_ms: int) -> None:
        self.loaded_at_ms = steady_ms

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
        self.writers: list[Writer | None] = []
        self.markers: list[tuple[int, TransactionEnd]] = []
        self.error: ErrorCode | None = None
        self.before_append: Callable[[], None] = lambda: None

    def append(self, records: Sequence[RawRecord], steady_ms: int, writer: Writer | None = None) -> int:
        self.before_append()
        if self.error is not None:
            raise ApiError(self.error)
        self.batches.append(list(records))
        self.writers.append(writer)
        return self.end_offset

    def has_ended(self, _end: TransactionEnd) -> bool:
        return False

    def append_marker(self, end: TransactionEnd, steady_ms: int) -> int:
        if self.error is not None:
            raise ApiError(self.error)
        self.markers.append((steady_ms, end))
        return self.end_offset

    @property
    def end_offset(self) -> int:
        return sum(map(len, self.batches)) + len(self.markers)


class Harness:
    def __init__(self) -> None:
        self.machine = Counter()
        self.log = Log()
        self.answers: list[tuple[int, Any]] = []
        self.effects: list[Any] = []
        # Answers and effects in the order in which they came.
        self.told: list[Any] = []
        self.shard = Shard(self.machine, self.log, self.respond, self.report)

    def respond(self, token: int, response: Any) -> None:
        answer = (token, response.code if isinstance(response, ApiError) else response)
        self.answers.append(answer)
        self.told.append(answer)

    def report(self, effect: Any) -> None:
        self.effects.append(effect)
        self.told.append(effect)


@pytest.fixture
def harness() -> Harness:
    harness = Harness()
    harness.shard.load([], 0, 0, steady_ms=7)
    return harness


def test_a_decision_is_one_batch_and_is_replayed_at_once(harness: Harness) -> None:
    harness.shard.handle(("add", 1, 2), token=1, steady_ms=0)
    assert harness.log.batches == [[(b"n", b"1"), (b"n", b"2")]]
    assert harness.machine.seen == [1, 2]
    assert harness.effects == ["added"]


def test_an_answer_waits_until_its_last_record_is_committed(harness: Harness) -> None:
    harness.shard.handle(("add", 1, 2), token=1, steady_ms=0)
    harness.shard.handle(("add", 3), token=2, steady_ms=0)
    harness.shard.committed(1)
    assert harness.answers == []
    harness.shard.committed(2)
    assert harness.answers == [(1, ("total", 3))]
    harness.shard.committed(3)
    assert harness.answers == [(1, ("total", 3)), (2, ("total", 6))]


def test_a_read_waits_for_the_last_write_it_has_seen_and_for_no_later_one(harness: Harness) -> None:
    harness.shard.handle("read", token=1, steady_ms=0)
    assert harness.answers == [(1, ("total", 0))]
    harness.shard.handle(("add", 5), token=2, steady_ms=0)
    harness.shard.handle("read", token=3, steady_ms=0)
    harness.shard.handle(("add", 6), token=4, steady_ms=0)
    assert len(harness.answers) == 1
    harness.shard.committed(1)
    assert harness.answers[1:] == [(2, ("total", 5)), (3, ("total", 5))]


def test_repeated_or_late_high_watermark_changes_nothing(harness: Harness) -> None:
    harness.shard.handle(("add", 1), token=1, steady_ms=0)
    harness.shard.committed(1)
    harness.shard.committed(1)
    harness.shard.committed(0)
    assert harness.answers == [(1, ("total", 1))]
    harness.shard.handle("read", token=2, steady_ms=0)
    assert harness.answers[1:] == [(2, ("total", 1))]


def test_a_decision_answers_other_requests_too(harness: Harness) -> None:
    harness.shard.handle("wait", token=1, steady_ms=0)
    harness.shard.handle("wait", token=2, steady_ms=0)
    harness.shard.handle("wake", token=3, steady_ms=0)
    assert harness.answers == []
    harness.shard.committed(1)
    assert harness.answers == [(3, "woken"), (1, "woken"), (2, "woken")]


def test_an_api_error_of_the_machine_is_an_answer_like_any_other(harness: Harness) -> None:
    harness.shard.handle(("add", 1), token=1, steady_ms=0)
    harness.shard.handle("nonsense", token=2, steady_ms=0)
    assert harness.answers == []
    harness.shard.committed(1)
    assert harness.answers[1] == (2, ErrorCode.INVALID_REQUEST)


def test_failed_append_replays_nothing_and_fails_all_its_answers(harness: Harness) -> None:
    harness.shard.handle("wait", token=1, steady_ms=0)
    harness.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    harness.shard.handle("wake", token=2, steady_ms=0)
    harness.shard.handle(("add", 9), token=3, steady_ms=0)
    assert harness.machine.seen == []
    assert harness.answers == [(token, ErrorCode.COORDINATOR_NOT_AVAILABLE) for token in (2, 1, 3)]
    assert harness.machine.undone == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert harness.effects == []
    harness.log.error = None
    harness.shard.handle(("add", 4), token=4, steady_ms=0)
    harness.shard.committed(1)
    assert harness.answers[3:] == [(4, ("total", 4))]


def test_the_answer_to_a_failed_append_keeps_its_place_behind_earlier_writes(harness: Harness) -> None:
    harness.shard.handle(("add", 1), token=1, steady_ms=0)
    harness.log.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    harness.shard.handle(("add", 2), token=2, steady_ms=0)
    harness.shard.committed(1)
    assert harness.answers == [(1, ("total", 1)), (2, ErrorCode.NOT_COORDINATOR)]


def test_lost_leadership_answers_waiting_and_later_requests(harness: Harness) -> None:
    harness.shard.handle("wait", token=1, steady_ms=0)
    harness.shard.handle(("add", 1), token=2, steady_ms=0)
    harness.shard.handle("read", token=3, steady_ms=0)
    harness.shard.fail(ErrorCode.NOT_COORDINATOR)
    harness.shard.committed(1)
    harness.shard.handle("read", token=4, steady_ms=0)
    harness.machine.alarms = [1]
    harness.shard.tick(steady_ms=5)
    assert sorted(harness.answers) == [(token, ErrorCode.NOT_COORDINATOR) for token in (1, 2, 3, 4)]
    assert harness.shard.deadline_ms is None
    assert not harness.shard.is_active


def test_loading_replays_in_order_and_skips_what_is_not_known() -> None:
    harness = Harness()
    harness.shard.handle("read", token=1, steady_ms=0)
    assert harness.answers == [(1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)]
    harness.shard.load([(b"n", b"1"), (b"future", b"x"), (b"n", None), (b"n", b"2")], 4, 4, steady_ms=7)
    assert harness.machine.seen == [1, 0, 2]
    assert harness.machine.loaded_at_ms == 7
    harness.shard.handle("read", token=2, steady_ms=7)
    assert harness.answers[1:] == [(2, ("total", 3))]


def test_a_read_after_loading_waits_for_what_was_loaded_but_not_committed() -> None:
    harness = Harness()
    harness.shard.load([(b"n", b"1"), (b"n", b"2")], 2, 1, steady_ms=0)
    harness.shard.handle("read", token=1, steady_ms=0)
    assert harness.answers == []
    harness.shard.committed(2)
    assert harness.answers == [(1, ("total", 3))]


def test_each_timer_sees_what_the_one_before_it_wrote(harness: Harness) -> None:
    harness.machine.alarms = [3, 4, 90]
    assert harness.shard.deadline_ms == 3
    harness.shard.tick(steady_ms=10)
    assert harness.machine.seen == [1, 2]
    assert harness.shard.deadline_ms == 90


def test_committed_effects_are_reported_in_order_with_the_answers(harness: Harness) -> None:
    harness.shard.handle(("add", 1), token=1, steady_ms=0)
    harness.shard.handle(("announce", 2), token=2, steady_ms=0)
    harness.shard.handle("read", token=3, steady_ms=0)
    assert harness.told == ["added", "announcing"]
    harness.shard.committed(1)
    assert harness.told[2:] == [(1, ("total", 1))]
    harness.shard.committed(2)
    assert harness.told[3:] == [("announced", 2), (2, "announced"), (3, ("total", 3))]


def test_an_effect_without_records_waits_for_what_it_has_seen(harness: Harness) -> None:
    harness.shard.handle(["announce"], token=1, steady_ms=0)
    assert harness.told == ["announcing", ("announced", "nothing"), (1, "announced")]
    harness.shard.handle(("add", 1), token=2, steady_ms=0)
    harness.shard.handle(["announce"], token=3, steady_ms=0)
    assert harness.told[3:] == ["added", "announcing"]
    harness.shard.committed(1)
    assert harness.told[5:] == [(2, ("total", 1)), ("announced", "nothing"), (3, "announced")]


def test_an_effect_that_was_never_committed_is_not_reported(harness: Harness) -> None:
    harness.shard.handle(("announce", 1), token=1, steady_ms=0)
    harness.shard.fail(ErrorCode.NOT_COORDINATOR)
    harness.shard.committed(1)
    assert harness.told == ["announcing", (1, ErrorCode.NOT_COORDINATOR)]


def test_a_failed_append_reports_what_undoing_it_has_to_say_and_nothing_else(harness: Harness) -> None:
    harness.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    harness.shard.handle(("announce", 1), token=1, steady_ms=0)
    error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.told == [("undone", error), (1, error)]


def test_answer_caused_by_an_effect_comes_after_answers_parked_before_it(harness: Harness) -> None:
    def report(effect: Any) -> None:
        harness.told.append(effect)
        if effect == ("announced", 1):
            harness.shard.handle("read", token=9, steady_ms=0)

    harness.shard = Shard(harness.machine, harness.log, harness.respond, report)
    harness.shard.load([], 0, 0, steady_ms=0)
    harness.shard.handle(("announce", 1), token=1, steady_ms=0)
    harness.shard.handle(("add", 1), token=2, steady_ms=0)
    harness.shard.committed(2)
    assert harness.answers == [(1, "announced"), (2, ("total", 2)), (9, ("total", 2))]


def test_nothing_is_given_out_in_the_middle_of_an_append(harness: Harness) -> None:
    def report(effect: Any) -> None:
        if effect == ("announced", 1):
            harness.shard.handle("read", token=9, steady_ms=0)

    harness.shard = Shard(harness.machine, harness.log, harness.respond, report)
    harness.shard.load([], 0, 0, steady_ms=0)
    harness.shard.handle(("announce", 1), token=1, steady_ms=0)
    harness.log.before_append = lambda: harness.shard.committed(2)
    harness.shard.handle(("add", 1), token=2, steady_ms=0)
    assert harness.answers == [(1, "announced"), (2, ("total", 2)), (9, ("total", 2))]


def test_a_shard_that_fails_in_the_middle_of_an_append_answers_the_request_too(harness: Harness) -> None:
    harness.shard.handle(("add", 1), token=1, steady_ms=0)
    harness.log.before_append = lambda: harness.shard.fail(ErrorCode.NOT_COORDINATOR)
    harness.log.error = ErrorCode.KAFKA_STORAGE_ERROR
    harness.shard.handle(("add", 1), token=2, steady_ms=0)
    assert harness.answers == [(1, ErrorCode.NOT_COORDINATOR), (2, ErrorCode.NOT_COORDINATOR)]


def test_records_of_a_transaction_are_written_and_replayed_as_the_writers(harness: Harness) -> None:
    harness.shard.handle(("add in", WRITER, 3, 4), token=1, steady_ms=0)
    harness.shard.handle(("add", 1), token=2, steady_ms=0)
    assert harness.log.writers == [WRITER, None]
    assert harness.machine.pending == {7: [3, 4]}
    assert harness.machine.total == 1


def test_the_marker_goes_through_the_log_and_is_answered_when_it_is_committed(harness: Harness) -> None:
    harness.shard.handle(("add in", WRITER, 3, 4), token=1, steady_ms=0)
    harness.shard.end_transaction(COMMIT, token=2, steady_ms=5)
    assert harness.log.markers == [(5, COMMIT)]
    assert harness.machine.seen == [3, 4]
    harness.shard.committed(2)
    assert harness.answers == [(1, "pending")]
    harness.shard.committed(3)
    assert harness.answers == [(1, "pending"), (2, None)]


def test_an_aborted_transaction_leaves_nothing(harness: Harness) -> None:
    harness.shard.handle(("add in", WRITER, 3), token=1, steady_ms=0)
    harness.shard.end_transaction(ABORT, token=2, steady_ms=0)
    assert harness.machine.total == 0
    assert harness.machine.pending == {}


def test_a_marker_that_the_log_refuses_ends_nothing(harness: Harness) -> None:
    harness.shard.handle(("add in", WRITER, 3), token=1, steady_ms=0)
    harness.shard.committed(1)
    for token, (refused, told) in enumerate(
        [
            (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
            (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
            (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        ]
    ):
        harness.log.error = refused
        harness.shard.end_transaction(COMMIT, token=token, steady_ms=0)
        assert harness.answers[-1] == (token, told)
    assert harness.machine.pending == {7: [3]}


def test_a_marker_for_a_shard_that_is_not_loaded_or_has_failed() -> None:
    harness = Harness()
    harness.shard.end_transaction(COMMIT, token=1, steady_ms=0)
    harness.shard.load([], 0, 0, steady_ms=0)
    harness.shard.end_transaction(COMMIT, token=2, steady_ms=0)
    harness.shard.fail(ErrorCode.NOT_COORDINATOR)
    harness.shard.end_transaction(COMMIT, token=3, steady_ms=0)
    assert harness.answers == [
        (1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (2, ErrorCode.NOT_COORDINATOR),
        (3, ErrorCode.NOT_COORDINATOR),
    ]


def test_loading_replays_transactions_and_their_ends() -> None:
    harness = Harness()
    harness.shard.replay_raw(b"n", b"1", WRITER)
    harness.shard.replay_raw(b"n", b"2", Writer(8, 0))
    harness.shard.replay_raw(b"n", b"3")
    harness.shard.replay_end(COMMIT)
    harness.shard.loaded(4, 4, steady_ms=0)
    assert harness.machine.seen == [3, 1]
    assert harness.machine.pending == {8: [2]}


@pytest.mark.parametrize(
    ("appended", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_errors_of_an_append_become_errors_for_clients(appended: ErrorCode, told: ErrorCode) -> None:
    assert coordinator_error(appended) is told
