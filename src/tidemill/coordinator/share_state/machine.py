"""The share state machine: the delivery state of every share partition in one partition of `__share_group_state`.

A share partition begins with InitializeShareGroupState. Its leader reads the state when it begins, which fences the
leaders before it, and writes each change. A write becomes a ShareUpdate; after a number of those, a ShareSnapshot holds
all of the state. A share partition that has had no snapshot for a while gets one by itself, so that every record before
the oldest of the latest snapshots is redundant. `PruneLog` tells the shell to delete those.

A dead letter that is owed longer than its leader needs to write it is owed by a leader that is gone. `LettersOwed`
tells the shell, again and again, until the letter is written: no member of the group has to come for it.

Four rules are stricter than those of Kafka 4.3, so that a request that is sent twice or arrives late does no harm.

* The start offset never moves back. Below it the delivery states are forgotten, so records would be delivered again.
* Initialising again with the same state epoch and the same or no start offset changes nothing.
* A write carries where its state was created. After a deletion another state may have the same epochs, and is not
  changed by a leader of the deleted one.
* What a replaced coordinator could get wrong is answered when a commit has proved that this one leads. A read writes
  its leader epoch, and a request that finds no state writes a tombstone. The key of that tombstone is no share
  partition's: the name in the request may be long, and would fill the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill import machine
from tidemill.config import ShareCoordinatorConfig
from tidemill.coordinator.shard import RawRecord, Writer
from tidemill.coordinator.share_state import records as share_records
from tidemill.coordinator.share_state.batches import combined
from tidemill.coordinator.share_state.records import ShareRecord, batch_messages, batches_of
from tidemill.coordinator.timers import Timers
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.coordinator_records import ShareSnapshotValue, ShareUpdateValue
from tidemill.protocol.share_state import (
    ARCHIVING,
    DURABLE_STATES,
    NO_CREATION_OFFSET,
    NO_DELIVERY_COMPLETE_COUNT,
    NO_START_OFFSET,
    SharePartitionKey,
    ShareState,
    ShareStateChange,
    ShareStateSummary,
    StateBatch,
)
from tidemill.types import NO_TOPIC_ID, TopicId

if TYPE_CHECKING:
    from tidemill.log.transactions import TransactionEnd

    Decision = machine.Decision[ShareRecord, Any]
else:
    Decision = machine.Decision

# An epoch that the request does not supply, and which therefore fences nothing.
_NO_EPOCH = -1
# In a snapshot: this record created the state.
_CREATED_HERE = -2
# Snapshots and tombstones that are due together are written in batches of this many.
_RECORDS_PER_BATCH_MAX = 64
# A tombstone under a key that no share partition has.
_PROOF_OF_LEADERSHIP = ShareRecord(SharePartitionKey("", NO_TOPIC_ID, -1), None)
_COLD, _PRUNE, _SWEEP, _OWED = "cold", "prune", "sweep", "owed"
# A letter that is owed at two such moments is reported.
_OWED_INTERVAL_MS = 10_000
_OWED_REPORTED_MAX = 64
# A sweep that could not be written is tried again after this time.
_RETRY_MS = 1_000


class Initialize(NamedTuple):
    key: SharePartitionKey
    state_epoch: int
    start_offset: int


class Read(NamedTuple):
    key: SharePartitionKey
    leader_epoch: int


class Write(NamedTuple):
    key: SharePartitionKey
    change: ShareStateChange


class ReadSummary(NamedTuple):
    key: SharePartitionKey


class Delete(NamedTuple):
    key: SharePartitionKey


class TopicsDeleted(NamedTuple):
    """Topics are gone, and with them the states of their partitions."""


class PruneLog(NamedTuple):
    """Delete the records before `offset`: the snapshots from there on say all that they said. A committed effect."""

    offset: int


class LettersOwed(NamedTuple):
    """The leader of the partition is to write dead letters of the group."""

    key: SharePartitionKey


ShareRequest = Initialize | Read | Write | ReadSummary | Delete


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of one share partition (Kafka: ShareGroupOffset)."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]
    created_ms: int
    # When its latest snapshot was written, at which offset, and how many updates followed.
    written_ms: int
    snapshot_offset: int
    updates: int = 0
    # The largest leader epoch so far. Initialising sets `leader_epoch` to 0 and fences as before.
    fencing_leader_epoch: int = 0
    creation_offset: int = NO_CREATION_OFFSET


class ShareStates:
    def __init__(
        self,
        config: ShareCoordinatorConfig,
        has_partition: Callable[[TopicId, int], bool],
    ) -> None:
        """`has_partition` is whether the cluster has a topic of that id, with that partition."""
        self.config = config
        self.states: dict[SharePartitionKey, PartitionState] = {}
        self._has_partition = has_partition
        self._timers: Timers[Decision | None] = Timers()
        # Where the log may begin when no state is left: at the last tombstone.
        self._tombstone_offset = 0
        self._pruned_offset = 0
        # Share partitions with dead letters that are owed, and whether they were when that was last looked at.
        self._owing: dict[SharePartitionKey, bool] = {}

    # The interface to the shard.

    @property
    def deadline_ms(self) -> int | None:
        return self._timers.deadline_ms

    def encode(self, record: ShareRecord) -> RawRecord:
        return share_records.encode(record)

    def decode(self, key: bytes, value: bytes | None) -> ShareRecord | None:
        return share_records.decode(key, value)

    def waiting_tokens(self) -> list[int]:
        return []

    def replay(self, record: ShareRecord, _writer: Writer | None = None, offset: int = -1) -> None:
        key, value = record
        match value:
            case None:
                self.states.pop(key, None)
                self._owing.pop(key, None)
                self._tombstone_offset = offset
            case ShareSnapshotValue():
                self._replay_snapshot(key, value, offset)
            case ShareUpdateValue():
                self._replay_update(key, value)

    def replay_end(self, _end: TransactionEnd) -> None:
        """Does nothing: no transaction has records in this partition."""

    def on_loaded(self, steady_ms: int) -> None:
        self._timers.set(_SWEEP, steady_ms, self._sweep)
        cold_ms = steady_ms + self.config.cold_partition_snapshot_interval_ms
        self._timers.set(_COLD, cold_ms, self._snapshot_cold)
        self._timers.set(_PRUNE, steady_ms + self.config.state_topic_prune_interval_ms, self._prune)
        if self._owing:
            self._timers.set(_OWED, steady_ms + _OWED_INTERVAL_MS, self._report_owed)

    def decide(self, request: ShareRequest | TopicsDeleted, _token: int, steady_ms: int) -> Decision:
        match request:
            case TopicsDeleted():
                self._timers.set(_SWEEP, steady_ms, self._sweep)
                return Decision(reply=None)
            case Initialize():
                return self._initialize(request, steady_ms)
            case Read():
                return self._read(request, steady_ms)
            case Write():
                return self._write(request, steady_ms)
            case ReadSummary():
                return self._read_summary(request)
            case Delete():
                return self._delete(request)

    def expire(self, steady_ms: int) -> Decision | None:
        """Returns the next due decision: tombstones of deleted topics, cold snapshots, a prune; None when none is due."""
        while (run := self._timers.pop_due(steady_ms)) is not None:
            decision = run(steady_ms)
            if decision is not None:
                return decision
        return None

    # Requests.

    def _initialize(self, request: Initialize, steady_ms: int) -> Decision:
        key, state_epoch, start_offset = request
        _check_key(key)
        state = self.states.get(key)
        if state is not None and state_epoch != _NO_EPOCH and state.state_epoch > state_epoch:
            raise ApiError(ErrorCode.FENCED_STATE_EPOCH)
        self._check_partition(key)
        is_known = state is not None and state.state_epoch == state_epoch
        if state is not None and is_known and start_offset in (state.start_offset, NO_START_OFFSET):
            # A coordinator that did not get the answer asks again, when members may be at work already.
            return Decision(reply=None)
        snapshot = ShareSnapshotValue(
            snapshot_epoch=0 if state is None else state.snapshot_epoch + 1,
            state_epoch=state_epoch,
            leader_epoch=0,
            start_offset=start_offset,
            delivery_complete_count=(NO_DELIVERY_COMPLETE_COUNT if start_offset == NO_START_OFFSET else 0),
            create_timestamp=steady_ms,
            write_timestamp=steady_ms,
            fencing_leader_epoch=0 if state is None else state.fencing_leader_epoch,
            creation_offset=_CREATED_HERE if state is None else state.creation_offset,
        )
        return Decision([ShareRecord(key, snapshot)], None)

    def _read(self, request: Read, steady_ms: int) -> Decision:
        key, leader_epoch = request
        _check_key(key)
        state = self.states.get(key)
        if state is None:
            return _refuse_uninitialized("Read operation on uninitialized share partition not allowed.")
        _check_leader(state, leader_epoch)
        self._check_partition(key)
        reply = ShareState(state.state_epoch, state.start_offset, state.batches, state.creation_offset)
        if leader_epoch == _NO_EPOCH:
            return Decision(reply=reply)
        same = ShareStateChange(
            state.state_epoch,
            leader_epoch,
            state.start_offset,
            delivery_complete_count=state.delivery_complete_count,
        )
        return Decision([self._changed(key, state, same, leader_epoch, steady_ms)], reply)

    def _write(self, request: Write, steady_ms: int) -> Decision:
        key, change = request
        _check_key(key)
        state = self.states.get(key)
        if state is None:
            return _refuse_uninitialized("Write operation on uninitialized share partition not allowed.")
        _check_leader(state, change.leader_epoch)
        if change.state_epoch != _NO_EPOCH and state.state_epoch > change.state_epoch:
            raise ApiError(ErrorCode.FENCED_STATE_EPOCH)
        if change.creation_offset not in (NO_CREATION_OFFSET, state.creation_offset):
            raise ApiError(ErrorCode.FENCED_STATE_EPOCH)
        _check_batches(change.batches)
        self._check_partition(key)
        if _owes(change.batches) and not self._timers.is_set(_OWED):
            self._timers.set(_OWED, steady_ms + _OWED_INTERVAL_MS, self._report_owed)
        # Only a read makes a leader known.
        return Decision([self._changed(key, state, change, state.leader_epoch, steady_ms)], None)

    def _read_summary(self, request: ReadSummary) -> Decision:
        _check_key(request.key)
        self._check_partition(request.key)
        state = self.states.get(request.key)
        if state is None:
            summary = ShareStateSummary(0, 0, NO_START_OFFSET, NO_DELIVERY_COMPLETE_COUNT)
        else:
            summary = ShareStateSummary(
                state.state_epoch,
                state.leader_epoch,
                state.start_offset,
                state.delivery_complete_count,
                state.creation_offset,
            )
        return Decision(reply=summary)

    def _delete(self, request: Delete) -> Decision:
        _check_key(request.key)
        self._check_partition(request.key)
        return Decision([ShareRecord(request.key, None)], None)

    def _check_partition(self, key: SharePartitionKey) -> None:
        if not self._has_partition(key.topic_id, key.partition):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    # Records.

    def _changed(
        self,
        key: SharePartitionKey,
        state: PartitionState,
        change: ShareStateChange,
        leader_epoch: int,
        steady_ms: int,
    ) -> ShareRecord:
        start_offset = max(state.start_offset, change.start_offset)
        complete_count = _delivery_complete_count(state, change)
        if state.updates < self.config.snapshot_update_records_per_snapshot:
            update = ShareUpdateValue(
                snapshot_epoch=state.snapshot_epoch,
                leader_epoch=leader_epoch,
                start_offset=start_offset,
                delivery_complete_count=complete_count,
                state_batches=batch_messages(combined((), change.batches, start_offset)),
            )
            return ShareRecord(key, update)
        after = replace(
            state,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=complete_count,
            batches=combined(state.batches, change.batches, start_offset),
            created_ms=steady_ms,
        )
        return ShareRecord(key, _snapshot_of(after, steady_ms))

    def _replay_snapshot(self, key: SharePartitionKey, value: ShareSnapshotValue, offset: int) -> None:
        before = self.states.get(key)
        self.states[key] = PartitionState(
            value.snapshot_epoch,
            value.state_epoch,
            value.leader_epoch,
            value.start_offset,
            value.delivery_complete_count,
            batches_of(value),
            value.create_timestamp,
            value.write_timestamp,
            offset,
            fencing_leader_epoch=max(
                value.leader_epoch,
                value.fencing_leader_epoch,
                before.fencing_leader_epoch if before else 0,
            ),
            creation_offset=offset if value.creation_offset == _CREATED_HERE else value.creation_offset,
        )
        self._note_owing(key)

    def _replay_update(self, key: SharePartitionKey, value: ShareUpdateValue) -> None:
        state = self.states.get(key)
        if state is None:
            # Its snapshot was pruned: a later snapshot or tombstone follows.
            return
        start_offset = max(state.start_offset, value.start_offset)
        added = batches_of(value)
        self.states[key] = replace(
            state,
            leader_epoch=value.leader_epoch if value.leader_epoch != _NO_EPOCH else state.leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=value.delivery_complete_count,
            batches=combined(state.batches, added, start_offset),
            updates=state.updates + 1,
            fencing_leader_epoch=max(state.fencing_leader_epoch, value.leader_epoch),
        )
        if key in self._owing or _owes(added):
            self._note_owing(key)

    def _note_owing(self, key: SharePartitionKey) -> None:
        if _owes(self.states[key].batches):
            self._owing.setdefault(key, False)
        else:
            self._owing.pop(key, None)

    # What is due by itself.

    def _sweep(self, steady_ms: int) -> Decision | None:
        """Removes states whose topics are deleted."""
        gone = [key for key in self.states if not self._has_partition(key.topic_id, key.partition)]
        if not gone:
            return None
        tombstones = [ShareRecord(key, None) for key in gone[:_RECORDS_PER_BATCH_MAX]]
        if len(gone) > len(tombstones):
            self._timers.set(_SWEEP, steady_ms, self._sweep)

        def retry(_error: ErrorCode) -> None:
            self._timers.set(_SWEEP, steady_ms + _RETRY_MS, self._sweep)

        return Decision(tombstones, on_failed=retry)

    def _snapshot_cold(self, steady_ms: int) -> Decision | None:
        """Writes the states that have had no snapshot for the interval, so that they do not keep the log from pruning.

        When each has such a snapshot already, as the timestamps tell, nothing has happened since that could be pruned.
        """
        interval_ms = self.config.cold_partition_snapshot_interval_ms
        cold = []
        if any(state.created_ms == state.written_ms for state in self.states.values()):
            cold = [
                ShareRecord(key, _snapshot_of(state, steady_ms))
                for key, state in self.states.items()
                if steady_ms - state.written_ms >= interval_ms
            ]
        is_more = len(cold) > _RECORDS_PER_BATCH_MAX
        self._timers.set(_COLD, steady_ms + (0 if is_more else interval_ms), self._snapshot_cold)
        return Decision(cold[:_RECORDS_PER_BATCH_MAX]) if cold else None

    def _report_owed(self, steady_ms: int) -> Decision | None:
        """Reports some of those that have owed letters for an interval; others have their turn next time."""
        if not self._owing:
            return None
        self._timers.set(_OWED, steady_ms + _OWED_INTERVAL_MS, self._report_owed)
        late = [key for key, is_late in self._owing.items() if is_late][:_OWED_REPORTED_MAX]
        for key in late:
            del self._owing[key]
        self._owing = {**dict.fromkeys(self._owing, True), **dict.fromkeys(late, True)}
        return Decision(committed_effects=[LettersOwed(key) for key in late]) if late else None

    def _prune(self, steady_ms: int) -> Decision | None:
        self._timers.set(_PRUNE, steady_ms + self.config.state_topic_prune_interval_ms, self._prune)
        offsets = (state.snapshot_offset for state in self.states.values())
        offset = min(offsets, default=self._tombstone_offset)
        if offset <= self._pruned_offset:
            return None
        self._pruned_offset = offset
        return Decision(committed_effects=[PruneLog(offset)])


def _snapshot_of(state: PartitionState, steady_ms: int) -> ShareSnapshotValue:
    return ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch + 1,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp=state.created_ms,
        write_timestamp=steady_ms,
        state_batches=batch_messages(state.batches),
        creation_offset=state.creation_offset,
        fencing_leader_epoch=fencing if (fencing := state.fencing_leader_epoch) > state.leader_epoch else 0,
    )


def _delivery_complete_count(state: PartitionState, change: ShareStateChange) -> int:
    """Returns the count that belongs to the larger start offset; of two for the same one, the larger."""
    if change.start_offset < state.start_offset:
        return state.delivery_complete_count
    if change.start_offset == state.start_offset:
        return max(state.delivery_complete_count, change.delivery_complete_count)
    return change.delivery_complete_count


def _refuse_uninitialized(message: str) -> Decision:
    return Decision([_PROOF_OF_LEADERSHIP], ApiError(ErrorCode.INVALID_REQUEST, message))


def _owes(batches: Sequence[StateBatch]) -> bool:
    return any(batch.delivery_state == ARCHIVING for batch in batches)


def _check_batches(batches: Iterable[StateBatch]) -> None:
    """What no leader could read back is not stored: the share partition could not begin any more."""
    for batch in batches:
        if not 0 <= batch.first_offset <= batch.last_offset:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"No offsets are from {batch.first_offset} to {batch.last_offset}."
            )
        if batch.delivery_state not in DURABLE_STATES or batch.delivery_count < 0:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Delivery state {batch.delivery_state} with count {batch.delivery_count} cannot be stored.",
            )


def _check_leader(state: PartitionState, leader_epoch: int) -> None:
    if leader_epoch != _NO_EPOCH and state.fencing_leader_epoch > leader_epoch:
        raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)


def _check_key(key: SharePartitionKey) -> None:
    if key.partition < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number.")
