"""The records of the transactions machine in `__transaction_state`: the whole state of a transactional id, or a
tombstone.

The formats are Kafka's. Version 1 of the value carries in tagged fields what version 2 of transactions needs. These are
the producer ids before and after, the epoch of the one after (KIP-939), and the client's version. The cluster's
`transaction.version` decides which version is written.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.coordinator.transactions.transaction import (
    FLEXIBLE_RECORDS_SINCE,
    Transaction,
    TransactionState,
)
from tidemill.errors import ProtocolError
from tidemill.protocol.api.coordinator_records import (
    TRANSACTION_RECORDS,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from tidemill.protocol.wire import read_int16
from tidemill.types import ProducerEpoch, TopicPartition

# Versions of TransactionLogValue.
_PLAIN_VALUE, _FLEXIBLE_VALUE = 0, 1


class TransactionRecord(NamedTuple):
    """One record. A `transaction` of None is a tombstone: the transactional id has expired."""

    transactional_id: str
    transaction: Transaction | None


def encode(record: TransactionRecord, transaction_version: int) -> tuple[bytes, bytes | None]:
    key = encode_key(TransactionLogKey(transactional_id=record.transactional_id))
    transaction = record.transaction
    if transaction is None:
        return key, None
    is_flexible = transaction_version >= FLEXIBLE_RECORDS_SINCE
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=_partitions(transaction),
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    if is_flexible:
        value.previous_producer_id = transaction.previous_producer_id
        value.next_producer_id = transaction.next_producer_id
        value.next_producer_epoch = transaction.next_producer_epoch
        value.client_transaction_version = transaction.client_version
    return key, encode_value(value, _FLEXIBLE_VALUE if is_flexible else _PLAIN_VALUE)


def _partitions(transaction: Transaction) -> list[PartitionsSchema] | None:
    if transaction.state is TransactionState.EMPTY:
        return None
    topics: dict[str, list[int]] = {}
    for topic, partition in transaction.partitions:
        topics.setdefault(topic, []).append(partition)
    return [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in topics.items()]


def decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Returns the record; None for a type that is not known here. A later version wrote it, and it stays in the log."""
    if len(key) < 2:
        raise ProtocolError("transaction record without a type in its key")
    if read_int16(key, 0)[0] not in TRANSACTION_RECORDS:
        return None
    decoded = decode_key(TRANSACTION_RECORDS, key)
    assert isinstance(decoded, TransactionLogKey)
    message = decode_value(TRANSACTION_RECORDS, decoded, value)
    if message is None:
        return TransactionRecord(decoded.transactional_id, None)
    assert isinstance(message, TransactionLogValue)
    partitions = {
        TopicPartition(each.topic, partition): None
        for each in message.transaction_partitions or []
        for partition in each.partition_ids
    }
    return TransactionRecord(
        decoded.transactional_id,
        Transaction(
            transactional_id=decoded.transactional_id,
            producer_id=message.producer_id,
            producer_epoch=ProducerEpoch(message.producer_epoch),
            timeout_ms=message.transaction_timeout_ms,
            last_update_ms=message.transaction_last_update_timestamp_ms,
            state=TransactionState(message.transaction_status),
            partitions=partitions,
            start_ms=message.transaction_start_timestamp_ms,
            previous_producer_id=message.previous_producer_id,
            next_producer_id=message.next_producer_id,
            next_producer_epoch=ProducerEpoch(message.next_producer_epoch),
            client_version=message.client_transaction_version,
        ),
    )
