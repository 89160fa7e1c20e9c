"""What a request may do to a transactional id in each of its states, as Kafka 4 answers.

A rule gives what is to be done, or raises the error. A transaction that is decided, but whose markers are not
all written, lets nobody do anything: CONCURRENT_TRANSACTIONS, and the client tries again. That comes first,
because with it the producer's id and epoch may be about to change; only an EndTxn of the first kind (before
version 5) is checked for its producer before.

EndTxn, by the state and the epoch of the request (version 5; CT is CONCURRENT_TRANSACTIONS, ITS
INVALID_TXN_STATE, PF PRODUCER_FENCED):

    state             commit, same   commit, one before   abort, same   abort, one before
    Empty             ITS            PF                   abort         PF
    Ongoing           commit         PF                   abort         PF
    Prepare…          CT             CT                   CT            CT
    CompleteCommit    ITS            retry                abort         ITS
    CompleteAbort     ITS            ITS                  abort         retry

The epoch of the request is one before when its answer was lost: the end that it asks for has bumped the
epoch. An EndTxn that was delayed until a later transaction is under way has an epoch that is too low in every
state, so that it never decides the later one. Before version 5 nothing bumps the epoch, so only the state can
tell a retry.

A transaction that was taken over (KIP-939) is `Ongoing` for the producer that took it over: it may end the transaction and
nothing else. Whoever wrote it is fenced.
"""

from __future__ import annotations

from enum import Enum, auto

from tidemill.coordinator.transactions.transaction import (
    EPOCH_BUMP_SINCE,
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    Producer,
    Transaction,
    TransactionState,
    is_exhausted,
)
from tidemill.errors import ApiError, ErrorCode
from tidemill.types import TopicPartition


class Ending(Enum):
    END = auto()
    # The transaction has ended like this; only the answer was lost.
    RETRY = auto()


class Initialization(Enum):
    # Or a new producer id, when there is no epoch left.
    BUMP_EPOCH = auto()
    # The epoch was bumped for this very request before; its answer was lost.
    RETRY = auto()
    # A transaction is under way. It is aborted, and the client tries again.
    FENCE = auto()
    # A transaction is under way. It stays, and the client may end it (KIP-939).
    KEEP = auto()


def initialization(
    transaction: Transaction, expected: Producer | None, last_producer_epoch: int, *, keeps_prepared: bool
) -> Initialization:
    """`expected` is who the producer thinks it is, when it wants to go on after an error (KIP-360)."""
    if transaction.is_prepared:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if expected is not None and not _may_initialize(transaction, expected):
        raise ApiError(ErrorCode.PRODUCER_FENCED)
    if transaction.state is TransactionState.ONGOING:
        if not keeps_prepared:
            return Initialization.FENCE
        if expected is not None and expected != transaction.client:
            raise ApiError(ErrorCode.PRODUCER_FENCED)
        return Initialization.KEEP
    is_current = (
        expected is None
        or transaction.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_epoch == transaction.producer_epoch
    )
    if is_current:
        return Initialization.BUMP_EPOCH
    assert expected is not None
    if expected.producer_epoch == last_producer_epoch:
        return Initialization.RETRY
    raise ApiError(ErrorCode.PRODUCER_FENCED)


def _may_initialize(transaction: Transaction, expected: Producer) -> bool:
    """A new transactional id takes anybody. Else the id must be right, or the one before a change of ids."""
    return (
        transaction.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == transaction.client.producer_id
        or (
            expected.producer_id == transaction.previous_producer_id and is_exhausted(expected.producer_epoch)
        )
    )


def check_added(transaction: Transaction | None, producer: Producer) -> Transaction:
    """Partitions may be added to the transaction, which may begin with them."""
    if transaction is None:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if transaction.is_prepared:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    _check_producer(transaction, producer)
    if transaction.is_kept:
        # Its records belong to the producer that wrote it; those of another would be in no transaction.
        raise ApiError(ErrorCode.INVALID_TXN_STATE)
    return transaction


def verified(transaction: Transaction | None, producer: Producer, partition: TopicPartition) -> ErrorCode:
    """Whether the partition is part of the transaction that the producer has under way."""
    if transaction is None or transaction.client.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if transaction.client.producer_epoch != producer.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if transaction.is_kept:
        return ErrorCode.INVALID_TXN_STATE
    if transaction.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE if partition in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE


def _check_producer(transaction: Transaction, producer: Producer) -> None:
    if transaction.client.producer_id != producer.producer_id:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if transaction.client.producer_epoch != producer.producer_epoch:
        raise ApiError(ErrorCode.PRODUCER_FENCED)


def ending(transaction: Transaction, producer: Producer, *, is_commit: bool) -> Ending:
    """EndTxn before version 5."""
    _check_producer(transaction, producer)
    if transaction.is_prepared:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if transaction.state is TransactionState.ONGOING:
        return Ending.END
    if transaction.state is _completed(is_commit):
        return Ending.RETRY
    raise ApiError(ErrorCode.INVALID_TXN_STATE)


def bumping_ending(transaction: Transaction, producer: Producer, *, is_commit: bool) -> Ending:
    """EndTxn since version 5, which bumps the epoch."""
    if transaction.is_prepared:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    # Only an end that bumped the epoch can be a retry's: else whoever has the epoch before was replaced.
    has_bumped = transaction.client_version >= EPOCH_BUMP_SINCE
    is_after_id_change = (
        has_bumped
        and producer == (transaction.previous_producer_id, EPOCH_MAX - 1)
        and transaction.producer_epoch == 0
    )
    if transaction.client.producer_id != producer.producer_id and not is_after_id_change:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_current = transaction.client.producer_epoch == producer.producer_epoch
    is_before = has_bumped and transaction.producer_epoch == producer.producer_epoch + 1
    is_before = is_before or is_after_id_change
    is_complete = transaction.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    if not (is_current or (is_complete and is_before)):
        raise ApiError(ErrorCode.PRODUCER_FENCED)
    if is_complete and is_before:
        if transaction.state is _completed(is_commit):
            return Ending.RETRY
    elif transaction.state is TransactionState.ONGOING or not is_commit:
        return Ending.END
    raise ApiError(ErrorCode.INVALID_TXN_STATE)


def _completed(is_commit: bool) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
