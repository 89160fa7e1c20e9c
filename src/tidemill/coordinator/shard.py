"""The runtime of a coordinator's machine, over one partition of an internal topic.

`runtime.py` does most of the work. A partition adds two things: it is loaded from raw records, and it may hold records
of transactions. Such records are written as a transactional batch of the decision's `writer`, and the machine gets the
writer with each. The transaction ends with a marker in the same partition, which goes through `end_transaction`, so that
machine and log see it at the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidemill.errors import ApiError, ErrorCode
from tidemill.machine import Answer, Machine, ReplicatedLog, Writer
from tidemill.runtime import MachineRuntime

if TYPE_CHECKING:
    from tidemill.log.transactions import TransactionEnd

__all__ = [
    "Caller",
    "CoordinatorMachine",
    "PartitionLog",
    "RawRecord",
    "Shard",
    "Writer",
    "coordinator_error",
]

RecordT = TypeVar("RecordT")

RawRecord = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a request, and the version of the API that it uses."""

    client_id: str = ""
    client_host: str = ""
    api_version: int = 0
    # Whether the client may describe a topic; None without an authorizer.
    sees_topic: Callable[[str], bool] | None = field(default=None, compare=False)


class PartitionLog(ReplicatedLog[RawRecord], Protocol):
    def has_ended(self, end: TransactionEnd) -> bool:
        """Whether the marker has been appended before, in this leader epoch."""

    def append_marker(self, end: TransactionEnd, steady_ms: int) -> int:
        """Append the marker that ends a transaction in this partition. Returns the log end offset, or raises ApiError."""


class CoordinatorMachine(Machine[RecordT, RawRecord], Protocol[RecordT]):
    def decode(self, key: bytes, value: bytes | None) -> RecordT | None:
        """Returns the decoded record; None for a kind that this version does not know."""

    def replay_end(self, end: TransactionEnd) -> None:
        """Update the state: a transaction with records in this partition has ended."""


class Shard(MachineRuntime[RecordT, RawRecord]):
    machine: CoordinatorMachine[RecordT]
    _log: PartitionLog

    def __init__(
        self,
        machine: CoordinatorMachine[RecordT],
        log: PartitionLog,
        respond: Callable[[int, Any], None],
        report: Callable[[Any], None] = lambda _effect: None,
    ) -> None:
        super().__init__(
            machine,
            log,
            respond,
            report,
            until_loaded=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            client_error=coordinator_error,
        )

    def load(
        self, records: Iterable[RawRecord], end_offset: int, committed_offset: int, steady_ms: int
    ) -> None:
        """Builds the machine from the partition's records up to `end_offset`, tombstones included."""
        for offset, (key, value) in enumerate(records):
            self.replay_raw(key, value, offset=offset)
        self.loaded(end_offset, committed_offset, steady_ms)

    def replay_raw(
        self, key: bytes, value: bytes | None, writer: Writer | None = None, offset: int = -1
    ) -> None:
        """Replays one record of a load that is done in pieces; `loaded` ends it."""
        record = self.machine.decode(key, value)
        if record is not None:
            self.machine.replay(record, writer, offset)

    def replay_end(self, end: TransactionEnd) -> None:
        """Replays one marker of a load that is done in pieces."""
        self.machine.replay_end(end)

    def end_transaction(self, end: TransactionEnd, token: int, steady_ms: int) -> None:
        """Ends a transaction in this partition. The answer is None, or ApiError, when the marker is committed."""
        if self._error is not None:
            self._respond(token, ApiError(self._error))
            return
        if self._log.has_ended(end):
            # A late repetition must not decide the offsets of the producer's next transaction (failure 7).
            self._park([Answer(token, None)])
            return
        try:
            self._append(lambda: self._log.append_marker(end, steady_ms))
        except ApiError as error:
            self._park([Answer(token, self._refusal(error))])
            return
        self.machine.replay_end(end)
        self._park([Answer(token, None)])


_COORDINATOR_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    # The transaction coordinator could not be reached. A retry here is right, and old clients know this error.
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def coordinator_error(appended: ErrorCode) -> ErrorCode:
    """The error that a coordinator's client gets when the append of its records ended with `appended`."""
    return _COORDINATOR_ERRORS.get(appended, appended)
