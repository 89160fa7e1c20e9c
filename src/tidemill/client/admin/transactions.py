"""Lists and describes transactions, and finds and aborts hanging ones, for operators.

Two parties know of a transaction: its coordinator, by transactional id, and the leader of each partition that it wrote
to, by producer id. A transaction hangs when a leader has it open and its coordinator does not know of it. Then no
coordinator sends the marker that ends it, and `read_committed` readers of that partition wait for ever. `abort` sends
that marker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tidemill.client.cluster import Cluster, PartitionAnswer, check
from tidemill.client.connections.connection import Connection
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProducerState,
    TopicRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidemill.types import TopicPartition

_VERSION_WITH_DURATION = 1
_VERSION_WITH_PATTERN = 2


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


class TransactionDescription(NamedTuple):
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    # Of the transaction that is open, or of the last one; None when there was none.
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]


class OpenTransaction(NamedTuple):
    """As the leader of a partition knows it."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    # -1 when no marker of this producer has reached the partition yet.
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


class TransactionAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        duration_ms_min: int | None = None,
        id_pattern: str | None = None,
    ) -> list[ListedTransaction]:
        """Lists the transactions of every coordinator, by transactional id.

        A state that no broker knows is INVALID_REQUEST.
        """
        message = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=-1 if duration_ms_min is None else duration_ms_min,
            transactional_id_pattern=id_pattern,
        )

        def attempt() -> list[ListedTransaction]:
            return [
                found
                for broker_id in self.cluster.broker_ids()
                for found in self._of_broker(broker_id, message)
            ]

        return sorted(self.cluster.retrying(attempt))

    def _of_broker(self, broker_id: int, message: ListTransactionsRequest) -> Iterator[ListedTransaction]:
        connection = self.cluster.broker(broker_id)
        _check_filters(connection, message)
        response = connection.request(message, ListTransactionsResponse)
        check(response.error_code)
        if response.unknown_state_filters:
            unknown = ", ".join(response.unknown_state_filters)
            raise ApiError(ErrorCode.INVALID_REQUEST, f"no transaction is ever in state {unknown}")
        for each in response.transaction_states:
            yield ListedTransaction(
                each.transactional_id, each.producer_id, each.transaction_state, broker_id
            )

    def describe(self, transactional_id: str) -> TransactionDescription:
        """TRANSACTIONAL_ID_NOT_FOUND when its coordinator does not know it."""

        def attempt() -> TransactionDescription:
            if not self.cluster.has_transactions():
                raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
            message = DescribeTransactionsRequest(transactional_ids=[transactional_id])
            connection = self.cluster.transaction_coordinator(transactional_id)
            (state,) = connection.request(message, DescribeTransactionsResponse).transaction_states
            check(state.error_code)
            return _description(state)

        return self.cluster.retrying(attempt)

    def describe_many(self, transactional_ids: Sequence[str]) -> dict[str, TransactionDescription]:
        """Each as its own coordinator describes it. Those that it does not know are left out."""

        def attempt() -> dict[str, TransactionDescription]:
            if not transactional_ids or not self.cluster.has_transactions():
                return {}
            return {
                state.transactional_id: _description(state)
                for connection, led in self.cluster.by_transaction_coordinator(transactional_ids)
                for state in _known_states(connection, led)
            }

        return self.cluster.retrying(attempt)

    # --- hanging transactions ---

    def open_transactions(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        """As the leaders of these partitions know them, by partition and start."""
        answers = self.cluster.per_leader(partitions, _ask_producers)
        return sorted(
            OpenTransaction(
                partition,
                each.producer_id,
                each.producer_epoch,
                each.coordinator_epoch,
                each.current_txn_start_offset,
                each.last_timestamp,
            )
            for partition, producers in answers.items()
            for each in producers
            if each.current_txn_start_offset >= 0
        )

    def owners(self, candidates: Sequence[OpenTransaction]) -> dict[OpenTransaction, str]:
        """Returns the transactions that a coordinator knows of and will end, with their transactional ids.

        The others hang.
        """
        producer_ids = sorted({each.producer_id for each in candidates})
        if not producer_ids:
            return {}
        known: dict[int, TransactionDescription] = {}
        for listed in self.transactions(producer_ids=producer_ids):
            try:
                known[listed.producer_id] = self.describe(listed.transactional_id)
            except ApiError as error:
                # It has expired meanwhile.
                if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise
        return {
            each: known[each.producer_id].transactional_id
            for each in candidates
            if each.producer_id in known and each.partition in known[each.producer_id].partitions
        }

    def abort(self, transaction: OpenTransaction) -> None:
        """Has the leader of the partition write the marker that ends the transaction there, as aborted."""
        topic, index = transaction.partition
        marker = WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
            # A leader refuses an older epoch than the one it has seen.
            coordinator_epoch=max(transaction.coordinator_epoch, 0),
        )

        def ask(connection: Connection, led: list[TopicPartition]) -> Iterator[PartitionAnswer[None]]:
            response = connection.request(WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse)
            codes = {
                TopicPartition(answered.name, each.partition_index): each.error_code
                for written in response.markers
                for answered in written.topics
                for each in answered.partitions
            }
            for partition in led:
                yield PartitionAnswer(partition, codes[partition], None)

        self.cluster.per_leader([transaction.partition], ask)


def _known_states(
    connection: Connection, transactional_ids: list[str]
) -> Iterator[DescribeTransactionsTransactionState]:
    message = DescribeTransactionsRequest(transactional_ids=transactional_ids)
    for state in connection.request(message, DescribeTransactionsResponse).transaction_states:
        if state.error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            check(state.error_code)
            yield state


def _check_filters(connection: Connection, message: ListTransactionsRequest) -> None:
    """A broker that is too old for a filter would leave it out and list too much."""
    version = connection.version_of(ListTransactionsRequest)
    for what, is_used, needed in (
        ("how long a transaction is open", message.duration_filter >= 0, _VERSION_WITH_DURATION),
        ("a pattern of ids", message.transactional_id_pattern is not None, _VERSION_WITH_PATTERN),
    ):
        if is_used and version < needed:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"the broker is too old to filter by {what}")


def _ask_producers(
    connection: Connection, led: list[TopicPartition]
) -> Iterator[PartitionAnswer[list[ProducerState]]]:
    topics: dict[str, TopicRequest] = {}
    for topic, index in led:
        topics.setdefault(topic, TopicRequest(name=topic)).partition_indexes.append(index)
    message = DescribeProducersRequest(topics=list(topics.values()))
    for answered in connection.request(message, DescribeProducersResponse).topics:
        for each in answered.partitions:
            partition = TopicPartition(answered.name, each.partition_index)
            yield PartitionAnswer(partition, each.error_code, each.active_producers, each.error_message)


def _description(state: DescribeTransactionsTransactionState) -> TransactionDescription:
    return TransactionDescription(
        state.transactional_id,
        state.transaction_state,
        state.producer_id,
        state.producer_epoch,
        state.transaction_timeout_ms,
        state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None,
        tuple(
            sorted(TopicPartition(each.topic, index) for each in state.topics for index in each.partitions)
        ),
    )
