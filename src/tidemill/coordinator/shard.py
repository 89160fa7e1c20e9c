"""The one runtime for replicated machines, over one partition of an internal topic.

A request goes to the machine, which answers with a `Decision`: records to write, answers to give, effects to
report. The shard appends the records as one atomic batch, replays each at once so that the next decision
sees them, and parks the answers until the partition's high watermark has passed the batch. An answer without
records waits for the last write that it could have seen, or goes out at once when nothing is outstanding.

Effects are of two kinds: `effects` are reported when the decision is carried out, `committed_effects` when its
records are committed, in order with the parked answers. What must not happen before the records are safe is
one of the latter.

Records may be part of a transaction: then they are written as a transactional batch of the decision's `writer`, and
the machine is told with each whose it is. The transaction ends with a marker in the same partition, which goes through
`end_transaction`, so that machine and log see it at the same place.

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
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from tidemill.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from tidemill.log.transactions import TransactionEnd

RecordT = TypeVar("RecordT")
MachineRecordT = TypeVar("MachineRecordT")

RawRecord = tuple[bytes, bytes | None]


class Writer(NamedTuple):
    """The producer in whose transaction records are written."""

    producer_id: int
    producer_epoch: int


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
    committed_effects: Sequence[Any] = ()
    writer: Writer | None = None


class Log(Protocol):
    """The partition that a shard writes to."""

    def append(self, records: Sequence[RawRecord], now_ms: int, writer: Writer | None = None) -> int:
        """Writes the records as one atomic batch, in the writer's transaction if there is one.

        Returns the end offset after it; or raises ApiError."""

    def append_marker(self, end: TransactionEnd, now_ms: int) -> int:
        """Writes the marker that ends a transaction here; returns the end offset after it, or raises ApiError."""


class Machine(Protocol[MachineRecordT]):
    """A replicated machine as the shard drives it.

    Only `replay` and `replay_end` change what is replicated."""

    @property
    def deadline_ms(self) -> int | None: ...

    def decide(self, request: Any, token: int, now_ms: int) -> Decision[MachineRecordT]: ...

    def expire(self, now_ms: int) -> Decision[MachineRecordT] | None:
        """What the next due timer decides; None when none is due."""

    def replay(self, record: MachineRecordT, writer: Writer | None = None) -> None:
        """With a writer, the record takes effect when that producer's transaction is committed."""

    def replay_end(self, end: TransactionEnd) -> None:
        """A transaction with records of this partition has ended."""

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
    effects: Sequence[Any]


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
        # While it appends or gives out: what is called from there may lead back in here, and has to queue.
        self._is_busy = False
        # Invariant: something is parked only while committed_offset < written_offset, or the shard is busy.
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

    def replay_raw(self, key: bytes, value: bytes | None, writer: Writer | None = None) -> None:
        """One record of a load that is done in pieces; `loaded` ends it."""
        record = self.machine.decode(key, value)
        if record is not None:
            self.machine.replay(record, writer)

    def replay_end(self, end: TransactionEnd) -> None:
        """One marker of a load that is done in pieces."""
        self.machine.replay_end(end)

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

    def end_transaction(self, end: TransactionEnd, token: int, now_ms: int) -> None:
        """Ends a transaction in this partition. The answer is None, or ApiError, when the marker is committed."""
        if self._error is not None:
            self._respond(token, ApiError(self._error))
            return
        try:
            self._append(lambda: self._log.append_marker(end, now_ms))
        except ApiError as error:
            self._park([Answer(token, ApiError(coordinator_error(error.code), error.message))])
            return
        self.machine.replay_end(end)
        self._park([Answer(token, None)])

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
        self._give_committed()

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
                self._append(lambda: self._log.append(batch, now_ms, decision.writer))
            except ApiError as error:
                self._append_failed(decision, error.code)
                return
            for record in decision.records:
                self.machine.replay(record, decision.writer)
        for effect in decision.effects:
            self._report(effect)
        self._park(decision.answers, decision.committed_effects)

    def _append(self, append: Callable[[], int]) -> None:
        """A log that commits at once tells so before it returns, when the machine has not replayed the records yet."""
        was_busy, self._is_busy = self._is_busy, True
        try:
            self._written_offset = append()
        finally:
            self._is_busy = was_busy

    def _append_failed(self, decision: Decision[RecordT], appended: ErrorCode) -> None:
        error = coordinator_error(appended)
        undone = decision.on_failed(error) if decision.on_failed is not None else None
        answers = [Answer(answer.token, ApiError(error)) for answer in decision.answers]
        committed_effects: Sequence[Any] = ()
        if undone is not None:
            assert not undone.records, "an undone decision writes nothing"
            answers += undone.answers
            committed_effects = undone.committed_effects
            for effect in undone.effects:
                self._report(effect)
        self._park(answers, committed_effects)

    def _park(self, answers: Sequence[Answer], effects: Sequence[Any] = ()) -> None:
        """Queues what a decision has to say until everything that it has seen is committed."""
        if self._error is not None:
            # The shard failed in the middle of the append.
            for answer in answers:
                self._respond(answer.token, ApiError(self._error))
            return
        if answers or effects:
            self._parked.append(_Parked(self._written_offset, answers, effects))
        self._give_committed()

    def _give_committed(self) -> None:
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._parked and self._parked[0].end_offset <= self._committed_offset:
                _, answers, effects = self._parked.popleft()
                for effect in effects:
                    self._report(effect)
                for answer in answers:
                    self._respond(answer.token, answer.response)
        finally:
            self._is_busy = False


_COORDINATOR_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    # The coordinator of a transaction could not be asked; retrying here is right, and old clients know this error.
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def coordinator_error(appended: ErrorCode) -> ErrorCode:
    """What a coordinator's client hears when the append of its records ended with `appended`."""
    return _COORDINATOR_ERRORS.get(appended, appended)
