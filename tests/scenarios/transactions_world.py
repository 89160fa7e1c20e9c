"""A transactions machine in its shard, for transcripts and tests.

Producer ids are 1000, 1001, …; a group's offsets are in the partition that its length says. Time stands still until
`advance`. Records are committed as soon as they are written, unless `holds_commits`. Markers that the machine wants
written stay in `markers` until `markers_written`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemill.config import TransactionsConfig
from tidemill.coordinator.shard import Caller, RawRecord, Shard, Writer
from tidemill.coordinator.transactions.machine import (
    MarkersWritten,
    TransactionCall,
    Transactions,
    WriteMarkers,
)
from tidemill.coordinator.transactions.records import TransactionRecord
from tidemill.errors import ApiError, ErrorCode
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.coordinator_responses import error_response
from tidemill.protocol.schema import Request


class MemoryLog:
    """The partition: keeps all records, and can refuse the next appends."""

    def __init__(self) -> None:
        self.records: list[RawRecord] = []
        self.refuse_with: ErrorCode | None = None

    def append(self, records: Sequence[RawRecord], steady_ms: int, writer: Writer | None = None) -> int:
        assert writer is None, "no record here is part of a transaction"
        if self.refuse_with is not None:
            raise ApiError(self.refuse_with)
        self.records += records
        return len(self.records)

    def has_ended(self, _end: TransactionEnd) -> bool:
        return False

    def append_marker(self, end: TransactionEnd, steady_ms: int) -> int:
        raise AssertionError("no transaction has records here")


@dataclass
class Asked:
    client: str
    request: Request
    api_version: int


@dataclass
class World:
    config: TransactionsConfig = field(default_factory=TransactionsConfig)
    transaction_version: int = 2
    log: MemoryLog = field(default_factory=MemoryLog)
    steady_ms: int = 0
    holds_commits: bool = False
    coordinator_epoch: int = 1
    # Producer ids that may still be given out; None is no limit.
    producer_ids_left: int | None = None
    answered: list[tuple[Asked, Any]] = field(default_factory=list)
    reported: list[WriteMarkers] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.asked: dict[int, Asked] = {}
        self.markers: dict[str, WriteMarkers] = {}
        self.committed_offset = 0
        self._tokens = 0
        self._producer_id = 999
        self.shard = self._load()

    @property
    def machine(self) -> Transactions:
        machine = self.shard.machine
        assert isinstance(machine, Transactions)
        return machine

    def _load(self) -> Shard[TransactionRecord]:
        return self.load(committed_offset=len(self.log.records))

    def load(self, committed_offset: int) -> Shard[TransactionRecord]:
        """Returns a shard with a machine that is loaded from the log, which is committed up to this offset."""
        self.committed_offset = committed_offset
        shard = Shard(self._new_machine(), self.log, self._respond, self._report)
        shard.load(list(self.log.records), len(self.log.records), committed_offset, self.steady_ms)
        return shard

    def _new_machine(self) -> Transactions:
        return Transactions(
            self.config, self.coordinator_epoch, len, self._next_producer_id, self.transaction_version
        )

    def _next_producer_id(self) -> int | None:
        if self.producer_ids_left == 0:
            return None
        if self.producer_ids_left is not None:
            self.producer_ids_left -= 1
        self._producer_id += 1
        return self._producer_id

    def ask(self, client: str, request: Request, api_version: int | None = None) -> int:
        """Sends the request; its answer will be in `answered`."""
        version = request.versions.max if api_version is None else api_version
        self._tokens += 1
        self.asked[self._tokens] = Asked(client, request, version)
        call = TransactionCall(
            request, Caller(client_id=client, client_host="/127.0.0.1", api_version=version)
        )
        self.shard.handle(call, self._tokens, self.steady_ms)
        self._settle()
        return self._tokens

    def answer(self, request: Request, api_version: int | None = None) -> Any:
        """The answer to a request that is answered at once."""
        self.take_answers()
        self.ask("test", request, api_version)
        ((_asked, response),) = self.take_answers()
        return response

    def markers_written(self, written: MarkersWritten) -> None:
        self.markers.pop(written.transactional_id, None)
        self.shard.handle(written, -1, self.steady_ms)
        self._settle()

    def write_markers(self) -> None:
        """Report that all requested markers are written."""
        for wanted in list(self.markers.values()):
            self.markers_written(wanted.written)

    def advance(self, duration_ms: int) -> None:
        end_ms = self.steady_ms + duration_ms
        while (deadline_ms := self.shard.deadline_ms) is not None and deadline_ms <= end_ms:
            self.steady_ms = max(self.steady_ms, deadline_ms)
            self.shard.tick(self.steady_ms)
            self._settle()
        self.steady_ms = end_ms

    def move_coordinator(self, *, loses_uncommitted: bool = False) -> None:
        """Leadership is lost, and another broker builds the machine from the log that it has."""
        self.shard.fail(ErrorCode.NOT_COORDINATOR)
        if loses_uncommitted:
            del self.log.records[self.committed_offset :]
        self.markers.clear()
        self.coordinator_epoch += 1
        self.shard = self._load()
        self.advance(0)

    def write(self, record: TransactionRecord) -> None:
        """A record that another coordinator could have written, and the machine that then comes of the log."""
        self.log.append([self.machine.encode(record)], self.steady_ms)
        self.move_coordinator()

    def release_commits(self) -> None:
        self.holds_commits = False
        self._settle()

    def rebuilt(self) -> Transactions:
        """Returns a machine that is rebuilt from the log."""
        machine = self._new_machine()
        for key, value in self.log.records:
            record = machine.decode(key, value)
            assert record is not None
            machine.replay(record)
        return machine

    def _settle(self) -> None:
        if not self.holds_commits:
            self.committed_offset = len(self.log.records)
            self.shard.committed(self.committed_offset)
        self.machine.check_invariants()

    def _report(self, effect: Any) -> None:
        assert isinstance(effect, WriteMarkers)
        self.markers[effect.transactional_id] = effect
        self.reported.append(effect)

    def _respond(self, token: int, response: Any) -> None:
        if token == -1:
            assert response is None or isinstance(response, ApiError)
            return
        asked = self.asked.pop(token)
        if isinstance(response, ApiError):
            response = error_response(asked.request, asked.api_version, response.code)
        self.answered.append((asked, response))

    def take_answers(self) -> list[tuple[Asked, Any]]:
        answered, self.answered = self.answered, []
        return answered
