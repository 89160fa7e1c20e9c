"""The one runtime for replicated machines, over one partition of an internal topic.

A request goes to the machine, which answers with a `Decision`: records to write, answers to give, effects to
report. The shard appends the records as one atomic batch, replays each at once so that the next decision
sees them, and parks the answers until the partition's high watermark has passed the batch. An answer without
records waits for the last write that it could have seen, or goes out at once when nothing is outstanding.

A decision may answer other requests than the one at hand, and may leave the one at hand unanswered until
later; tokens are opaque numbers that the caller hands in and gets back exactly once.

When an append fails nothing of it is replayed, its answers turn into the error, and the decision's `on_failed`
lets the machine take back what it did beside its replicated state. When leadership is lost, or a commit
fails, the whole machine is void: everything parked or waiting gets the error, and a new shard is loaded from
the log. Nothing here knows what the machine decides about, and nothing waits: whoever owns the partition calls
`committed` when the high watermark moves, and `tick` when `deadline_ms` has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from tidemill.errors import ApiError, ErrorCode

RecordT = TypeVar("RecordT")
MachineRecordT = TypeVar("MachineRecordT")

RawRecord = tuple[bytes, bytes | None]


class Answer(NamedTuple):
    """What the request behind `token` hears: a response message, or the error to put into one."""

    token: int
    response: Any


@dataclass(frozen=True, slots=True)
class Decision(Generic[RecordT]):
    """What a machine wants written, whom it answers once that is committed, and what else happened.

    `on_failed` is called instead of the replay when the records could not be appended. It undoes the soft
    state that goes with them and may have more to say, but it writes no records.
    """

    records: Sequence[RecordT] = ()
    answers: Sequence[Answer] = ()
    effects: Sequence[Any] = ()
    on_failed: Callable[[ErrorCode], Decision[RecordT] | None] | None = None


class Log(Protocol):
    """The partition that a shard writes to."""

    def append(self, records: Sequence[RawRecord], now_ms: int) -> int:
        """Writes the records as one atomic batch and returns the end offset after it; or raises ApiError."""


class Machine(Protocol[MachineRecordT]):
    """A replicated machine as the shard drives it; only `replay` changes what is replicated."""

    @property
    def deadline_ms(self) -> int | None: ...

    def decide(self, request: Any, token: int, now_ms: int) -> Decision[MachineRecordT]: ...

    def expire(self, now_ms: int) -> Decision[MachineRecordT] | None:
        """What the next due timer decides; None when none is due."""

    def replay(self, record: MachineRecordT) -> None: ...

    def on_loaded(self, now_ms: int) -> None:
        """All records are replayed: timers may start."""

    def waiting_tokens(self) -> list[int]:
        """The requests that the machine holds back, each of which it would answer later."""

    def encode(self, record: MachineRecordT) -> RawRecord: ...

    def decode(self, key: bytes, value: bytes | None) -> MachineRecordT | None:
        """None for a record of a kind that this version does not know."""


class _Parked(NamedTuple):
    end_offset: int
    answers: Sequence[Answer]


class Shard(Generic[RecordT]):
    def __init__(
        self,
        machine: Machine[RecordT],
        log: Log,
        respond: Callable[[int, Any], None],
        report: Callable[[Any], None] = lambda _effect: None,
    ) -> None:
        self.machine = machine
        self._log = log
        self._respond = respond
        self._report = report
        self._parked: deque[_Parked] = deque()
        # Invariant: parked answers exist only while committed_offset < written_offset.
        self._written_offset = 0
        self._committed_offset = 0
        self._error: ErrorCode | None = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    @property
    def is_active(self) -> bool:
        return self._error is None

    @property
    def deadline_ms(self) -> int | None:
        return self.machine.deadline_ms if self._error is None else None

    def load(self, records: Iterable[RawRecord], end_offset: int, committed_offset: int, now_ms: int) -> None:
        """Builds the machine from the partition's records up to `end_offset`, tombstones included."""
        assert self._error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, self._error
        for key, value in records:
            self.replay_raw(key, value)
        self.loaded(end_offset, committed_offset, now_ms)

    def replay_raw(self, key: bytes, value: bytes | None) -> None:
        """One record of a load that is done in pieces; `loaded` ends it."""
        record = self.machine.decode(key, value)
        if record is not None:
            self.machine.replay(record)

    def loaded(self, end_offset: int, committed_offset: int, now_ms: int) -> None:
        self._written_offset = end_offset
        self._committed_offset = committed_offset
        self._error = None
        self.machine.on_loaded(now_ms)

    def handle(self, request: Any, token: int, now_ms: int) -> None:
        """Decides about the request. `respond(token, …)` is called exactly once, now or later."""
        if self._error is not None:
            self._respond(token, ApiError(self._error))
            return
        try:
            decision = self.machine.decide(request, token, now_ms)
        except ApiError as error:
            decision = Decision(answers=[Answer(token, error)])
        self._carry_out(decision, now_ms)

    def tick(self, now_ms: int) -> None:
        """Carries out every timer that is due, each on the state that the one before it left."""
        while self._error is None:
            decision = self.machine.expire(now_ms)
            if decision is None:
                return
            self._carry_out(decision, now_ms)

    def committed(self, offset: int) -> None:
        """The high watermark is now `offset`: everything before it is committed."""
        if offset <= self._committed_offset:
            return
        self._committed_offset = offset
        while self._parked and self._parked[0].end_offset <= offset:
            self._give(self._parked.popleft().answers)

    def fail(self, error: ErrorCode) -> None:
        """Leadership is lost or a commit failed: nobody is left waiting, and the machine is not used again."""
        if self._error is not None and self._error is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return
        self._error = error
        tokens = [answer.token for parked in self._parked for answer in parked.answers]
        tokens += self.machine.waiting_tokens()
        self._parked.clear()
        for token in tokens:
            self._respond(token, ApiError(error))

    def _carry_out(self, decision: Decision[RecordT], now_ms: int) -> None:
        if decision.records:
            batch = [self.machine.encode(record) for record in decision.records]
            try:
                self._written_offset = self._log.append(batch, now_ms)
            except ApiError as error:
                self._append_failed(decision, error.code)
                return
            for record in decision.records:
                self.machine.replay(record)
        for effect in decision.effects:
            self._report(effect)
        self._park(decision.answers)

    def _append_failed(self, decision: Decision[RecordT], appended: ErrorCode) -> None:
        error = coordinator_error(appended)
        undone = decision.on_failed(error) if decision.on_failed is not None else None
        answers = [Answer(answer.token, ApiError(error)) for answer in decision.answers]
        if undone is not None:
            assert not undone.records, "an undone decision writes nothing"
            answers += undone.answers
            for effect in undone.effects:
                self._report(effect)
        self._park(answers)

    def _park(self, answers: Sequence[Answer]) -> None:
        if not answers:
            return
        if self._committed_offset >= self._written_offset:
            self._give(answers)
        else:
            self._parked.append(_Parked(self._written_offset, answers))

    def _give(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self._respond(answer.token, answer.response)


_COORDINATOR_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def coordinator_error(appended: ErrorCode) -> ErrorCode:
    """What a coordinator's client hears when the append of its records ended with `appended`."""
    return _COORDINATOR_ERRORS.get(appended, appended)
