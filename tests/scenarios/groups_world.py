"""A groups machine in its shard, with clients that keep the responses they got, for transcripts and tests.

Clients are named by the transcript. A client keeps the member id and generation of its last answer and uses
them in its next request, unless the command sets them. Time stands still until `advance`. Records are committed as
soon as they are written, unless `commits hold` is in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidemill.config import GroupsConfig
from tidemill.coordinator.groups.group import Environment, GroupCall, RebalanceEvent
from tidemill.coordinator.groups.machine import Groups
from tidemill.coordinator.records import Record, decode
from tidemill.coordinator.shard import Caller, RawRecord, Shard, Writer
from tidemill.errors import ApiError, ErrorCode
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.coordinator_responses import error_response
from tidemill.protocol.schema import Request
from tidemill.types import TopicId

_MARKER_TOKEN = -2


class FakeTopics:
    """The cluster's topics; `create` and `delete` change them."""

    def __init__(self) -> None:
        self._topics: dict[str, tuple[TopicId, int]] = {}
        self._created = 0
        # The last leader epoch of partitions that were removed, by topic and index.
        self.former_epochs: dict[tuple[str, int], int] = {}

    def create(self, name: str, partitions: int) -> TopicId:
        self._created += 1
        topic_id = TopicId(self._created.to_bytes(16, "big"))
        self._topics[name] = (topic_id, partitions)
        return topic_id

    def set_partitions(self, name: str, partitions: int) -> None:
        """Gives the topic more or fewer partitions, or creates it."""
        if name in self._topics:
            self._topics[name] = (self._topics[name][0], partitions)
        else:
            self.create(name, partitions)

    def delete(self, name: str) -> TopicId:
        return self._topics.pop(name)[0]

    def partitions_of(self, name: str) -> int | None:
        found = self._topics.get(name)
        return None if found is None else found[1]

    def former_epoch(self, name: str, partition: int) -> int:
        return self.former_epochs.get((name, partition), -1)

    def id_of(self, name: str) -> TopicId | None:
        found = self._topics.get(name)
        return None if found is None else found[0]

    def name_of(self, topic_id: TopicId) -> str | None:
        return next((name for name, (each, _) in self._topics.items() if each == topic_id), None)

    def names(self) -> list[str]:
        return list(self._topics)


class Written(NamedTuple):
    """A record, in the transaction of `writer` if there is one; or the marker that ends a transaction."""

    record: RawRecord | None
    writer: Writer | None = None
    end: TransactionEnd | None = None


class MemoryLog:
    """The partition: keeps all records and markers, and can refuse the next appends."""

    def __init__(self) -> None:
        self.records: list[Written] = []
        self.refuse_with: ErrorCode | None = None

    def append(self, records: Sequence[RawRecord], steady_ms: int, writer: Writer | None = None) -> int:
        return self._append([Written(record, writer) for record in records])

    def has_ended(self, _end: TransactionEnd) -> bool:
        return False

    def append_marker(self, end: TransactionEnd, steady_ms: int) -> int:
        return self._append([Written(None, end=end)])

    def _append(self, written: Sequence[Written]) -> int:
        if self.refuse_with is not None:
            raise ApiError(self.refuse_with)
        self.records += written
        return len(self.records)


@dataclass
class Asked:
    client: str
    request: Request
    api_version: int


@dataclass
class World:
    config: GroupsConfig = field(default_factory=GroupsConfig)
    topics: FakeTopics = field(default_factory=FakeTopics)
    log: MemoryLog = field(default_factory=MemoryLog)
    steady_ms: int = 0
    holds_commits: bool = False
    answered: list[tuple[Asked, Any]] = field(default_factory=list)
    reported: list[RebalanceEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.asked: dict[int, Asked] = {}
        self._tokens = 0
        self.ended: list[ErrorCode] = []
        self._member_ids = 0
        self.shard = self._load()

    @property
    def groups(self) -> Groups:
        machine = self.shard.machine
        assert isinstance(machine, Groups)
        return machine

    def _load(self) -> Shard[Record]:
        shard = Shard(self._new_machine(), self.log, self._respond, self.reported.append)
        end_offset = len(self.log.records)
        for record, writer, end in self.log.records:
            if end is not None:
                shard.replay_end(end)
            elif record is not None:
                shard.replay_raw(*record, writer)
        shard.loaded(end_offset, end_offset, self.steady_ms)
        return shard

    def _new_machine(self) -> Groups:
        return Groups(Environment(self.config, self.topics, self._new_member_id))

    def _new_member_id(self, prefix: str | None) -> str:
        self._member_ids += 1
        return f"{prefix}-{self._member_ids}"

    def ask(self, client: str, request: Request, api_version: int | None = None) -> int:
        """Sends the request; its answer will be in `answered`."""
        version = request.versions.max if api_version is None else api_version
        self._tokens += 1
        token = self._tokens
        self.asked[token] = Asked(client, request, version)
        call = GroupCall(request, Caller(client_id=client, client_host="/127.0.0.1", api_version=version))
        self.shard.handle(call, token, self.steady_ms)
        self._settle()
        return token

    def end_transaction(self, end: TransactionEnd) -> None:
        """Writes the marker; what came of it will be in `ended`."""
        self.shard.end_transaction(end, _MARKER_TOKEN, self.steady_ms)
        self._settle()

    def tell(self, event: Any) -> None:
        """A change of the cluster, which gets no answer of interest."""
        self.shard.handle(event, -1, self.steady_ms)
        self._settle()

    def advance(self, duration_ms: int) -> None:
        end_ms = self.steady_ms + duration_ms
        while (deadline_ms := self.shard.deadline_ms) is not None and deadline_ms <= end_ms:
            self.steady_ms = max(self.steady_ms, deadline_ms)
            self.shard.tick(self.steady_ms)
            self._settle()
        self.steady_ms = end_ms

    def move_coordinator(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Leadership is lost, and another broker builds the machine from the log."""
        self.shard.fail(error)
        self.shard = self._load()

    def release_commits(self) -> None:
        self.holds_commits = False
        self._settle()

    def rebuilt(self) -> Groups:
        """Returns a machine that is rebuilt from the log."""
        machine = self._new_machine()
        for raw, writer, end in self.log.records:
            if end is not None:
                machine.replay_end(end)
                continue
            assert raw is not None
            record = decode(*raw)
            assert record is not None
            machine.replay(record, writer)
        return machine

    def _settle(self) -> None:
        if not self.holds_commits:
            self.shard.committed(len(self.log.records))
        self.groups.check_invariants()

    def _respond(self, token: int, response: Any) -> None:
        if token == -1:
            return
        if token == _MARKER_TOKEN:
            self.ended.append(response.code if isinstance(response, ApiError) else ErrorCode.NONE)
            return
        asked = self.asked.pop(token)
        if isinstance(response, ApiError):
            response = error_response(asked.request, asked.api_version, response.code, response.message)
        self.answered.append((asked, response))

    def take_answers(self) -> list[tuple[Asked, Any]]:
        answered, self.answered = self.answered, []
        return answered
