"""One transactional id: its producer and the state of its transaction.

    Empty ── partitions added ──> Ongoing ── EndTxn ──> PrepareCommit ── markers ──> CompleteCommit
      ^                             │  (fenced, timed out)     └─> PrepareAbort ── markers ──> CompleteAbort
      └── InitProducerId ── from Empty and both Complete states; these also begin the next transaction

A `Transaction` is a value: the content of the id's last record. A transition is a method that returns the next value,
which the machine writes; nothing is changed in place. rules.py decides whether a request may cause a transition.

A producer is identified by its id and epoch. With version 2 of transactions each end of a transaction bumps the epoch
(KIP-890); before that only InitProducerId does. A client never gets the last epoch: it is reserved, so that the
coordinator can always fence. Where a bump would reach it, the producer gets a new id and starts at epoch 0.

An ongoing transaction may be taken over (KIP-939, `kept`). Its records and its own producer id and epoch stay. From then
on only the producer that took it over, `client`, may end it. Nothing can be added to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from tidemill.types import ProducerEpoch, TopicPartition

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = ProducerEpoch(-1)
EPOCH_MAX = 32_767
# The timeout of a transaction in a two-phase commit, which only its client ends.
TIMEOUT_NEVER_MS = 2**31 - 1
# Versions of transactions. 1: records are flexible, and tell the next producer and the version of the client.
FLEXIBLE_RECORDS_SINCE = 1
# 2: the epoch is bumped with every transaction, and the broker adds partitions for the client.
EPOCH_BUMP_SINCE = 2


class TransactionState(IntEnum):
    """The states, with their numbers in the log. Dead and PrepareEpochFence are never written."""

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
        """The name of the state in responses: `PrepareCommit`."""
        return self.name.title().replace("_", "")


class Producer(NamedTuple):
    """The id and epoch of a producer: the sender of a request, or the one that is expected."""

    producer_id: int
    producer_epoch: ProducerEpoch


STATES_BY_LABEL = {state.label: state for state in TransactionState}
_PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


def is_exhausted(producer_epoch: ProducerEpoch) -> bool:
    return producer_epoch >= EPOCH_MAX - 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """The state of a transactional id. `partitions` is an ordered set that never changes. Ids without a value are -1."""

    transactional_id: str
    producer_id: int
    producer_epoch: ProducerEpoch
    timeout_ms: int
    last_update_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: dict[TopicPartition, None] = field(default_factory=dict)
    start_ms: int = -1
    # The id before the last transition, and the id with which the producer continues when the markers are written. That
    # is a new id with epoch 0, or the id and epoch of the producer that took the transaction over.
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    client_version: int = 0

    @property
    def is_prepared(self) -> bool:
        """Whether the transaction is decided and its markers are being written."""
        return self.state in _PREPARED

    @property
    def is_commit(self) -> bool:
        return self.state is TransactionState.PREPARE_COMMIT

    @property
    def is_idle(self) -> bool:
        """Whether there is no transaction, so that the next one may begin and the id may expire."""
        return self.state is not TransactionState.ONGOING and not self.is_prepared

    @property
    def is_kept(self) -> bool:
        """Whether the transaction is ongoing and was taken over by another producer than its writer."""
        return self.state is TransactionState.ONGOING and self.next_producer_epoch != NO_PRODUCER_EPOCH

    @property
    def producer(self) -> Producer:
        """The producer of the transaction's records."""
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def client(self) -> Producer:
        """The producer that may act on the transaction."""
        return (
            Producer(self.next_producer_id, self.next_producer_epoch)
            if self.is_kept
            else Producer(self.producer_id, self.producer_epoch)
        )

    def is_timed_out(self, steady_ms: int, loaded_ms: int) -> bool:
        """Whether an ongoing transaction has exceeded its timeout.

        A start time in the future comes from another clock, which was ahead. `loaded_ms` replaces it.
        """
        started_ms = self.start_ms if self.start_ms <= steady_ms else loaded_ms
        return (
            self.state is TransactionState.ONGOING
            and self.timeout_ms != TIMEOUT_NEVER_MS
            and started_ms + self.timeout_ms < steady_ms
        )

    # Transitions.

    def initialized(
        self, producer_id: int, producer_epoch: ProducerEpoch, timeout_ms: int, steady_ms: int
    ) -> Transaction:
        """Returns the value after InitProducerId: a new producer, or the same one with a new epoch."""
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
        """Returns the value after another producer has taken over the ongoing transaction. Its timeout never shrinks."""
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
        """Returns the value with more partitions; the transaction may begin with them."""
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
        producer_epoch: ProducerEpoch,
        following: Producer | None,
        client_version: int,
        steady_ms: int,
    ) -> Transaction:
        """Returns the decided transaction. `following` is the producer afterwards, if it changes.

        An abort without a transaction (version 2) begins and ends now.
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
        """Returns the completed transaction: all markers are written. The producer continues with its next id, if any."""
        assert self.is_prepared, self.state
        has_next_id = self.next_producer_id != NO_PRODUCER_ID
        return replace(
            self,
            state=TransactionState.COMPLETE_COMMIT if self.is_commit else TransactionState.COMPLETE_ABORT,
            producer_id=self.next_producer_id if has_next_id else self.producer_id,
            producer_epoch=ProducerEpoch(max(0, self.next_producer_epoch))
            if has_next_id
            else self.producer_epoch,
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
