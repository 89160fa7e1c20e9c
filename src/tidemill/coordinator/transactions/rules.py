"""The rules for requests on a transactional id in each of its states, as in Kafka 4.

A rule returns the action or raises the error. While a transaction is decided and its markers are not all written, every
request gets CONCURRENT_TRANSACTIONS, and the client tries again. This check comes first, because the producer's id and
epoch may be about to change. Only an EndTxn before version 5 is checked for its producer before that.

EndTxn, by the state and the epoch of the request (version 5; CT is CONCURRENT_TRANSACTIONS, ITS
INVALID_TXN_STATE, PF PRODUCER_FENCED):

    state             commit, same   commit, one before   abort, same   abort, one before
    Empty             ITS            PF                   abort         PF
    Ongoing           commit         PF                   abort         PF
    Prepare…          CT             CT                   CT            CT
    CompleteCommit    ITS            retry                abort         ITS
    CompleteAbort     ITS            ITS                  abort         retry

The epoch of the request is one before when the response to its first attempt was lost: that attempt has bumped the
epoch. An EndTxn that was delayed until a later transaction is ongoing has an epoch that is too low in every state, so
it never decides the later one. Before version 5 nothing bumps the epoch, so only the state shows a retry.

A transaction that was taken over (KIP-939) is `Ongoing` for the producer that took it over, which may end it and nothing
else. The producer that wrote it is fenced.
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
from tidemill.types import ProducerEpoch, TopicPartition


class Ending(Enum):
    END = auto()
    # The transaction has ended as requested; only the response was lost.
    RETRY = auto()


class Initialization(Enum):
    # Or a new producer id, when no epoch is left.
    BUMP_EPOCH = auto()
    # An earlier attempt of this request has bumped the epoch; its response was lost.
    RETRY = auto()
    # A transaction is ongoing. It is aborted, and the client tries again.
    FENCE = auto()
    # A transaction is ongoing. It stays, and the client may end it (KIP-939).
    KEEP = auto()


def initialization(
    transaction: Transaction,
    expected: Producer | None,
    last_producer_epoch: ProducerEpoch,
    *,
    keeps_prepared: bool,
) -> Initialization:
    """`expected` is the id and epoch that a producer sends to continue after an error (KIP-360)."""
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
    """A new transactional id accepts any producer. Otherwise the id must be the current one, or the one before a change."""
    return (
        transaction.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == transaction.client.producer_id
        or (
            expected.producer_id == transaction.previous_producer_id and is_exhausted(expected.producer_epoch)
        )
    )


def check_added(transaction: Transaction | None, producer: Producer) -> Transaction:
    """Check that partitions may be added to the transaction, which may begin with them."""
    if transaction is None:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if transaction.is_prepared:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    _check_producer(transaction, producer)
    if transaction.is_kept:
        # Its records belong to the producer that wrote it. Records of another producer would be in no transaction.
        raise ApiError(ErrorCode.INVALID_TXN_STATE)
    return transaction


def verified(transaction: Transaction | None, producer: Producer, partition: TopicPartition) -> ErrorCode:
    """Returns NONE when the partition is part of the producer's ongoing transaction, or else the error."""
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
    """The rule of EndTxn before version 5."""
    _check_producer(transaction, producer)
    if transaction.is_prepared:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if transaction.state is TransactionState.ONGOING:
        return Ending.END
    if transaction.state is _completed(is_commit):
        return Ending.RETRY
    raise ApiError(ErrorCode.INVALID_TXN_STATE)


def bumping_ending(transaction: Transaction, producer: Producer, *, is_commit: bool) -> Ending:
    """The rule of EndTxn since version 5, which bumps the epoch."""
    if transaction.is_prepared:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    # Only an end that bumped the epoch can be retried. Otherwise the producer with the epoch before was replaced.
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
