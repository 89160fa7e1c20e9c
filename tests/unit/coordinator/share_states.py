"""A share state machine on its runtime, over a log that commits, holds back, prunes and fails over as told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.config import ShareCoordinatorConfig
from tidemill.coordinator.shard import RawRecord, Shard, Writer
from tidemill.coordinator.share_state.machine import (
    LettersOwed,
    PartitionState,
    PruneLog,
    ShareStates,
)
from tidemill.errors import ApiError, ErrorCode
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.share_state import SharePartitionKey
from tidemill.types import TopicId

TOPIC = TopicId(bytes(range(16)))
KEY = SharePartitionKey("workers", TOPIC, 0)
OTHER = SharePartitionKey("workers", TOPIC, 1)


class World:
    def __init__(self, **settings: int) -> None:
        self.config = ShareCoordinatorConfig(**settings)
        self.topics = {TOPIC}
        # What the log holds from `start_offset` on.
        self.log: list[RawRecord] = []
        self.start_offset = 0
        self.committed_offset = 0
        self.is_holding = False
        self.failure: ErrorCode | None = None
        self.steady_ms = 1_000_000
        self.replies: dict[int, Any] = {}
        # Of share partitions that owe dead letters.
        self.reminders: list[SharePartitionKey] = []
        self._token = 0
        self._load()

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.log)

    def _load(self) -> None:
        self.machine = ShareStates(self.config, lambda topic_id, index: topic_id in self.topics and index < 2)
        self.shard: Shard[Any] = Shard(self.machine, self, self.replies.__setitem__, self._report)
        for index, (key, value) in enumerate(self.log):
            self.shard.replay_raw(key, value, None, self.start_offset + index)
        self.shard.loaded(self.end_offset, self.committed_offset, self.steady_ms)
        self.pass_time(0)

    def _report(self, effect: Any) -> None:
        if isinstance(effect, LettersOwed):
            self.reminders.append(effect.key)
            return
        assert isinstance(effect, PruneLog)
        assert effect.offset <= self.committed_offset, "only what is committed may be deleted"
        del self.log[: effect.offset - self.start_offset]
        self.start_offset = max(self.start_offset, effect.offset)

    # -- as the log of the shard -----------------------------------------------------------------------------

    def append(self, records: Sequence[RawRecord], _steady_ms: int, _writer: Writer | None = None) -> int:
        if self.failure is not None:
            raise ApiError(self.failure)
        self.log += records
        return self.end_offset

    def has_ended(self, _end: TransactionEnd) -> bool:
        return False

    def append_marker(self, end: TransactionEnd, steady_ms: int) -> int:
        raise AssertionError("no transactions here")

    # -- driving it ------------------------------------------------------------------------------------------

    def ask(self, request: Any) -> Any:
        """Returns the reply, an error code, or "waits" while its records are not committed."""
        self._token += 1
        self.shard.handle(request, self._token, self.steady_ms)
        if not self.is_holding:
            self.commit()
        reply = self.replies.get(self._token, "waits")
        return reply.code if isinstance(reply, ApiError) else reply

    def commit(self) -> None:
        self.is_holding = False
        self.committed_offset = self.end_offset
        self.shard.committed(self.committed_offset)

    def pass_time(self, duration_ms: int) -> None:
        self.steady_ms += duration_ms
        while (deadline_ms := self.shard.deadline_ms) is not None and deadline_ms <= self.steady_ms:
            self.shard.tick(self.steady_ms)
        if not self.is_holding:
            self.commit()

    def fail_over(self) -> None:
        """A new coordinator has what was committed, and may lack the rest."""
        self.shard.fail(ErrorCode.NOT_COORDINATOR)
        del self.log[self.committed_offset - self.start_offset :]
        self.is_holding = False
        self._load()

    def check_replay(self) -> None:
        rebuilt = ShareStates(self.config, lambda *_: True)
        for index, (key, value) in enumerate(self.log):
            record = rebuilt.decode(key, value)
            assert record is not None
            rebuilt.replay(record, None, self.start_offset + index)
        live = {key: _durable(state) for key, state in self.machine.states.items()}
        assert {key: _durable(state) for key, state in rebuilt.states.items()} == live


def _durable(state: PartitionState) -> tuple[Any, ...]:
    return (
        state.state_epoch,
        state.leader_epoch,
        state.fencing_leader_epoch,
        state.start_offset,
        state.batches,
        state.snapshot_offset,
        state.creation_offset,
    )
