"""The runtime of replicated machines, over one log.

A request goes to the machine, which returns a `Decision`. The runtime appends the records as one atomic batch and replays
each at once, so that the next decision sees them. It parks the replies until the log has committed the batch. A reply
without records waits for the last write that it could have seen, or goes out at once when nothing is outstanding.

A decision may answer other requests than the one at hand, and may leave that one for later. Tokens are opaque numbers;
`respond` is called exactly once for each.

When an append fails, nothing of it is replayed, its replies turn into the error, and `on_failed` lets the machine take
back its soft state. When the leadership is lost or a commit fails, the machine is void. Every request that waits gets
the error, and the next leader builds a new machine from the log. Records that were appended may be committed
nevertheless, so that error means an unknown outcome.

The runtime waits for nothing and knows no kind of log. The owner of the log calls `committed` when the commit position has
advanced, `fail` when the log is lost, and `tick` when `deadline_ms` has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from tidemill.errors import ApiError, ErrorCode
from tidemill.machine import NO_REPLY, Answer, Decision, Machine, ReplicatedLog

RecordT = TypeVar("RecordT")
RawT = TypeVar("RawT")

# The event loop has its turn between two ticks.
_DECISIONS_PER_TICK_MAX = 64

# The token of what the shell passes in by itself. Its reply goes nowhere.
NO_TOKEN = 0


class _Parked(NamedTuple):
    end_offset: int
    answers: Sequence[Answer]
    effects: Sequence[Any]


class MachineRuntime(Generic[RecordT, RawT]):
    def __init__(
        self,
        machine: Machine[RecordT, RawT],
        log: ReplicatedLog[RawT],
        respond: Callable[[int, Any], None],
        report: Callable[[Any], None] = lambda _effect: None,
        *,
        until_loaded: ErrorCode,
        client_error: Callable[[ErrorCode], ErrorCode] = lambda error: error,
    ) -> None:
        """`client_error` translates the error of an append into what the machine's clients know."""
        self.machine = machine
        self._log = log
        self._respond = respond
        self._report = report
        self._client_error = client_error
        self._parked: deque[_Parked] = deque()
        # Set while the runtime appends or gives out: calls that lead back in here have to queue.
        self._is_busy = False
        # Invariant: something is parked only while committed_offset < written_offset, or the runtime is busy.
        self._written_offset = 0
        self._committed_offset = 0
        # The error of every request, None while the machine decides.
        self._error: ErrorCode | None = until_loaded
        self._has_failed = False

    @property
    def is_active(self) -> bool:
        return self._error is None

    @property
    def deadline_ms(self) -> int | None:
        return self.machine.deadline_ms if self._error is None else None

    def loaded(self, end_offset: int, committed_offset: int, steady_ms: int) -> None:
        """The machine has replayed the log up to `end_offset`, and decides from now on."""
        assert self._error is not None, "already loaded"
        assert not self._has_failed, self._error
        self._written_offset = end_offset
        self._committed_offset = committed_offset
        self._error = None
        self.machine.on_loaded(steady_ms)

    def handle(self, request: Any, token: int, steady_ms: int) -> None:
        """Decides about the request. `respond(token, …)` is called exactly once, now or later."""
        if self._error is not None:
            self._respond(token, ApiError(self._error))
            return
        decision: Decision[RecordT, Any]
        try:
            decision = self.machine.decide(request, token, steady_ms)
        except ApiError as error:
            decision = Decision(reply=error)
        self._carry_out(decision, token, steady_ms)

    def tick(self, steady_ms: int) -> None:
        """Carries out what is due, each decision on the state that the one before it left.

        A great many are cut short: `deadline_ms` is still due then.
        """
        for _ in range(_DECISIONS_PER_TICK_MAX):
            decision = self.machine.expire(steady_ms) if self._error is None else None
            if decision is None:
                return
            assert decision.reply is NO_REPLY, "there is no request to reply to"
            self._carry_out(decision, NO_TOKEN, steady_ms)

    def committed(self, offset: int) -> None:
        """Everything before `offset` is committed."""
        if offset <= self._committed_offset:
            return
        self._committed_offset = offset
        self._give_committed()

    def fail(self, error: ErrorCode) -> None:
        """The leadership is lost or a commit failed: all that waits gets the error, and the machine is not used again."""
        if self._has_failed:
            return
        self._error, self._has_failed = error, True
        tokens = [answer.token for parked in self._parked for answer in parked.answers]
        tokens += self.machine.waiting_tokens()
        self._parked.clear()
        for token in tokens:
            self._respond(token, ApiError(error))

    def _carry_out(self, decision: Decision[RecordT, Any], token: int, steady_ms: int) -> None:
        answers = decision.answers
        if decision.reply is not NO_REPLY:
            answers = [Answer(token, decision.reply), *answers]
        if decision.records:
            batch = [self.machine.encode(record) for record in decision.records]
            try:
                self._append(lambda: self._log.append(batch, steady_ms, decision.writer))
            except ApiError as error:
                self._append_failed(decision, answers, error)
                return
            for offset, record in enumerate(decision.records, self._written_offset - len(decision.records)):
                self.machine.replay(record, decision.writer, offset)
        for effect in decision.effects:
            self._report(effect)
        self._park(answers, decision.committed_effects)

    def _append(self, append: Callable[[], int]) -> None:
        """A log that commits at once says so before it returns, when the machine has not replayed the records yet."""
        was_busy, self._is_busy = self._is_busy, True
        try:
            self._written_offset = append()
        finally:
            self._is_busy = was_busy

    def _append_failed(
        self, decision: Decision[RecordT, Any], answers: Sequence[Answer], appended: ApiError
    ) -> None:
        error = self._refusal(appended)
        undone = decision.on_failed(error.code) if decision.on_failed is not None else None
        failed = [Answer(answer.token, error) for answer in answers]
        committed_effects: Sequence[Any] = ()
        if undone is not None:
            assert not undone.records, "an undone decision writes nothing"
            failed += undone.answers
            committed_effects = undone.committed_effects
            for effect in undone.effects:
                self._report(effect)
        self._park(failed, committed_effects)

    def _refusal(self, appended: ApiError) -> ApiError:
        code = self._client_error(appended.code)
        return appended if code is appended.code else ApiError(code)

    def _park(self, answers: Sequence[Answer], effects: Sequence[Any] = ()) -> None:
        """Queues the answers and effects of a decision until everything that it has seen is committed."""
        if self._error is not None:
            # The runtime failed in the middle of the append.
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
