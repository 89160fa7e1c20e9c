"""One transactional id: who its producer is, and what its transaction does.

    Empty ── partitions added ──> Ongoing ── EndTxn ──> PrepareCommit ── markers ──> CompleteCommit
      ^                             │  (fenced, timed out)     └─> PrepareAbort ── markers ──> CompleteAbort
      └── InitProducerId ── from Empty and both Complete states; these also begin the next transaction

A `Transaction` is a value: what the id's last record says. A transition is a method that gives the next
value, which the machine writes; nothing is changed in place. Whether a request may cause a transition is
decided elsewhere (transaction_rules.py).

A producer is known by its id and epoch. With version 2 of transactions each end of a transaction bumps the
epoch (KIP-890), with the versions before only InitProducerId does. A client never uses the last epoch: it is
kept so that the coordinator can always fence. Where a bump would give that out, the producer gets a new id
and starts at epoch 0.

A transaction may be taken over while it is under way (KIP-939, `kept`): its records and its own producer id and epoch stay
what they are, and from then on only the producer that took it over, `client`, may end it. Nothing can be added to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from tidemill.types import TopicPartition

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
EPOCH_MAX = 32_767
# The timeout of a transaction that only its client ends: one of a two-phase commit.
TIMEOUT_NEVER_MS = 2**31 - 1
# Version 2: the epoch is bumped with every transaction, and the broker adds partitions for the client.
EPOCH_BUMP_SINCE = 2


class TransactionState(IntEnum):
    """As in the log. Dead and PrepareEpochFence have names and numbers, but are never written."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """As clients read it: `PrepareCommit`."""
        return self.name.title().replace("_", "")


class Producer(NamedTuple):
    """Who a request says it comes from, or who may make it."""

    producer_id: int
    producer_epoch: int


STATES_BY_LABEL = {state.label: state for state in TransactionState}
_PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


def is_exhausted(producer_epoch: int) -> bool:
    return producer_epoch >= EPOCH_MAX - 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """`partitions` is an ordered set, and never changed; the ids without a value are -1."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    last_update_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: dict[TopicPartition, None] = field(default_factory=dict)
    start_ms: int = -1
    # The id before the last transition, and what the producer goes on with when the markers are written: an id of
    # its own, whose epochs begin at 0, or, when the transaction was taken over, the id and epoch of who did.
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    client_version: int = 0

    @property
    def is_prepared(self) -> bool:
        """It is decided, and its markers are being written."""
        return self.state in _PREPARED

    @property
    def is_commit(self) -> bool:
        return self.state is TransactionState.PREPARE_COMMIT

    @property
    def is_idle(self) -> bool:
        """There is no transaction, so a next one may begin, and the id may expire."""
        return self.state is not TransactionState.ONGOING and not self.is_prepared

    @property
    def is_kept(self) -> bool:
        """It is under way, and was taken over by another producer than wrote it."""
        return self.state is TransactionState.ONGOING and self.next_producer_epoch != NO_PRODUCER_EPOCH

    @property
    def producer(self) -> Producer:
        """Whose records the transaction consists of."""
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def client(self) -> Producer:
        """Who may act on it."""
        return (
            Producer(self.next_producer_id, self.next_producer_epoch)
            if self.is_kept
            else Producer(self.producer_id, self.producer_epoch)
        )

    def is_timed_out(self, steady_ms: int, loaded_ms: int) -> bool:
        """`loaded_ms` is since when this clock measures: a later beginning was noted by another one, which was ahead."""
        started_ms = self.start_ms if self.start_ms <= steady_ms else loaded_ms
        return (
            self.state is TransactionState.ONGOING
            and self.timeout_ms != TIMEOUT_NEVER_MS
            and started_ms + self.timeout_ms < steady_ms
        )

    # Transitions.

    def initialized(
        self, producer_id: int, producer_epoch: int, timeout_ms: int, steady_ms: int
    ) -> Transaction:
        """A producer takes over, or goes on with a new epoch."""
        return replace(
            self,
            state=TransactionState.EMPTY,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timeout_ms=timeout_ms,
            partitions={},
            start_ms=-1,
            last_update_ms=steady_ms,
            previous_producer_id=self.producer_id,
        )

    def kept(self, client: Producer, timeout_ms: int, steady_ms: int) -> Transaction:
        """Another producer takes over the right to end what is under way. That never leaves it less time."""
        return replace(
            self,
            next_producer_id=client.producer_id,
            next_producer_epoch=client.producer_epoch,
            timeout_ms=max(self.timeout_ms, timeout_ms),
            last_update_ms=steady_ms,
        )

    def with_partitions(
        self, partitions: dict[TopicPartition, None], client_version: int, steady_ms: int
    ) -> Transaction:
        """The transaction begins, or grows."""
        return replace(
            self,
            state=TransactionState.ONGOING,
            partitions={**self.partitions, **partitions},
            start_ms=steady_ms if self.is_idle else self.start_ms,
            last_update_ms=steady_ms,
            previous_producer_id=self.producer_id,
            client_version=client_version,
        )

    def prepared(
        self,
        *,
        is_commit: bool,
        producer_epoch: int,
        following: Producer | None,
        client_version: int,
        steady_ms: int,
    ) -> Transaction:
        """It is decided; `following` is who the producer is afterwards, if not the one it is now.

        An abort of nothing (version 2) begins and ends now.
        """
        next_producer_id, next_producer_epoch = following or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        return replace(
            self,
            state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
            producer_epoch=producer_epoch,
            start_ms=steady_ms if self.is_idle else self.start_ms,
            last_update_ms=steady_ms,
            previous_producer_id=self.producer_id,
            next_producer_id=next_producer_id,
            next_producer_epoch=next_producer_epoch,
            client_version=client_version,
        )

    def completed(self, steady_ms: int) -> Transaction:
        """All markers are written. The producer goes on under its next id, if it has one."""
        assert self.is_prepared, self.state
        has_next_id = self.next_producer_id != NO_PRODUCER_ID
        return replace(
            self,
            state=TransactionState.COMPLETE_COMMIT if self.is_commit else TransactionState.COMPLETE_ABORT,
            producer_id=self.next_producer_id if has_next_id else self.producer_id,
            producer_epoch=max(0, self.next_producer_epoch) if has_next_id else self.producer_epoch,
            partitions={},
            last_update_ms=steady_ms,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_PRODUCER_EPOCH,
        )

    def check_invariants(self) -> None:
        assert self.producer_id >= 0, self
        assert 0 <= self.producer_epoch <= EPOCH_MAX, self
        assert self.state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE), self
        if self.is_idle:
            assert not self.partitions, self
            assert self.next_producer_id == NO_PRODUCER_ID, self
            assert self.next_producer_epoch == NO_PRODUCER_EPOCH, self
        if self.state is not TransactionState.EMPTY:
            assert self.start_ms >= 0, self
        if self.state in (TransactionState.EMPTY, TransactionState.ONGOING):
            assert self.client.producer_epoch < EPOCH_MAX, "a client uses the last epoch"
