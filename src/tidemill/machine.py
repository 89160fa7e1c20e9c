"""The contract of everything that decides.

A *replicated machine* (`controller/`, `coordinator/groups`, `coordinator/transactions`) keeps its state in a log. It
turns a request into a `Decision`: records, replies and effects. Only `replay` changes what is replicated, so the state
is a function of the records. `runtime.py` runs every replicated machine: it appends, replays, and holds the replies back
until the records are committed.

A *protocol machine* (`raft/`, `replication/`) has no log of its own decisions. The shell passes it one event at a time
and carries out the effects that it returns.

Neither kind sees a clock, a socket, a file or a random source. The shell passes those in, so that a whole cluster runs in
one process on virtual time and repeats from a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from tidemill.errors import ErrorCode

RecordT = TypeVar("RecordT")
RawT_co = TypeVar("RawT_co", covariant=True)
RawT_contra = TypeVar("RawT_contra", contravariant=True)
ReplyT = TypeVar("ReplyT")


class _NoReply:
    def __repr__(self) -> str:
        return "NO_REPLY"


# The machine has kept the token of the request and answers it in a later decision. A reply may well be None.
NO_REPLY: Final[Any] = _NoReply()


class Writer(NamedTuple):
    """The producer in whose transaction records are written."""

    producer_id: int
    producer_epoch: int


class Answer(NamedTuple):
    """The response to an earlier request, which the machine has held back under its token."""

    token: int
    response: Any


@dataclass(frozen=True, slots=True)
class Decision(Generic[RecordT, ReplyT]):
    """A machine's decision: records to write, the reply once they are committed, and effects.

    `reply` answers the request at hand, `answers` requests that were held back. An answer is a response message, or the
    `ApiError` to put into one. `effects` are reported when the decision is carried out. `committed_effects` are reported
    when its records are committed, in order with the replies: what must not happen before the records are safe.

    `on_failed` is called instead of the replay when the records could not be appended. It takes back the soft state that
    goes with them. It may return a further decision, without records.

    With a `writer` the records are part of that producer's transaction.
    """

    records: Sequence[RecordT] = ()
    reply: ReplyT = NO_REPLY
    answers: Sequence[Answer] = ()
    effects: Sequence[Any] = ()
    on_failed: Callable[[ErrorCode], Decision[RecordT, Any] | None] | None = None
    committed_effects: Sequence[Any] = ()
    writer: Writer | None = None


class Machine(Protocol[RecordT, RawT_co]):
    """A replicated machine as the runtime drives it."""

    @property
    def deadline_ms(self) -> int | None:
        """The time at which `expire` is due next; a time that has passed means at once, None means never."""

    def decide(self, request: Any, token: int, steady_ms: int) -> Decision[RecordT, Any]:
        """Decides about one request. `ApiError` refuses it."""

    def expire(self, steady_ms: int) -> Decision[RecordT, Any] | None:
        """Returns one decision that is due by itself; None when none is. It has no reply."""

    def replay(self, record: RecordT, writer: Writer | None = None, offset: int = -1) -> None:
        """Takes in the record at `offset`. With a writer it takes effect when that producer's transaction is committed."""

    def on_loaded(self, steady_ms: int) -> None:
        """Starts timers: everything that the log holds is replayed."""

    def waiting_tokens(self) -> list[int]:
        """The tokens of the requests that the machine holds back."""

    def encode(self, record: RecordT) -> RawT_co: ...


class ReplicatedLog(Protocol[RawT_contra]):
    """The log that a runtime appends to.

    Its owner calls `MachineRuntime.committed` when the commit position has advanced, and `MachineRuntime.fail` when the
    log is no longer this node's to write.
    """

    def append(self, records: Sequence[RawT_contra], steady_ms: int, writer: Writer | None = None) -> int:
        """Writes the records as one atomic batch and returns the log's end offset. `ApiError`: nothing was written."""
