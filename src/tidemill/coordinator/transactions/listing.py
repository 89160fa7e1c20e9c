"""DescribeTransactions and ListTransactions: the responses about transactions in every state."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.coordinator.transactions.transaction import STATES_BY_LABEL, Transaction
from tidemill.errors import ErrorCode
from tidemill.protocol.api.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsTransactionState,
    TopicData,
)
from tidemill.regex import Regex


def describe_transactions(
    request: DescribeTransactionsRequest, transactions: Mapping[str, Transaction]
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            _described(transactional_id, transactions.get(transactional_id))
            for transactional_id in request.transactional_ids
        ]
    )


def _described(
    transactional_id: str, transaction: Transaction | None
) -> DescribeTransactionsTransactionState:
    described = DescribeTransactionsTransactionState(transactional_id=transactional_id)
    if not transactional_id:
        described.error_code = ErrorCode.INVALID_REQUEST
    elif transaction is None:
        described.error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    else:
        described.transaction_state = transaction.state.label
        described.transaction_timeout_ms = transaction.timeout_ms
        described.transaction_start_time_ms = transaction.start_ms
        described.producer_id = transaction.producer_id
        described.producer_epoch = transaction.producer_epoch
        topics: dict[str, TopicData] = {}
        for topic, partition in transaction.partitions:
            topics.setdefault(topic, TopicData(topic=topic)).partitions.append(partition)
        described.topics = list(topics.values())
    return described


def check_pattern(pattern: str | None) -> None:
    """Raise `ApiError(INVALID_REGULAR_EXPRESSION)` for a pattern that cannot be used."""
    if pattern:
        Regex(pattern)


def list_transactions(
    request: ListTransactionsRequest, transactions: Mapping[str, Transaction], steady_ms: int
) -> ListTransactionsResponse:
    """List the transactions that pass the filters. As in Kafka, one without a start time passes the duration filter."""
    labels = list(dict.fromkeys(request.state_filters))
    states = {STATES_BY_LABEL[label] for label in labels if label in STATES_BY_LABEL}
    producer_ids = set(request.producer_id_filters)
    pattern = _pattern(request.transactional_id_pattern, transactions)
    duration_ms = request.duration_filter

    def is_wanted(transaction: Transaction) -> bool:
        return (
            (not producer_ids or transaction.producer_id in producer_ids)
            and (not labels or transaction.state in states)
            and (duration_ms < 0 or steady_ms - transaction.start_ms > duration_ms)
            and (pattern is None or pattern.matches(transaction.transactional_id))
        )

    return ListTransactionsResponse(
        unknown_state_filters=[label for label in labels if label not in STATES_BY_LABEL],
        transaction_states=[
            ListTransactionsTransactionState(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                transaction_state=each.state.label,
            )
            for each in transactions.values()
            if is_wanted(each)
        ],
    )


def _pattern(text: str | None, transactions: Mapping[str, Transaction]) -> Regex | None:
    """Transactional ids may have any characters, so the alphabet is the set of characters that occur in them."""
    if not text:
        return None
    return Regex(text, frozenset(char for transactional_id in transactions for char in transactional_id))
