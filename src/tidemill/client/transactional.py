"""Raw batches and a group's offsets in one transaction.

A `TransactionalProducer` owns a transactional id from `init` on: whoever used it before is fenced, and what he left open is
aborted. One transaction at a time: `begin`, `produce` and `send_offsets`, then `commit` or `abort`.

Two manners, by what the cluster has agreed on (its finalized feature `transaction.version`). *New* (version 2, KIP-890):
writing adds a partition to the transaction, and each end brings a new epoch. *Old*: the client adds partitions and groups
first and keeps its epoch, so after an abort, when something may still be under way, it asks for another one (KIP-360).

    Fenced               a newer producer has the transactional id, or the coordinator gave up on this one: nothing is
                         possible any more. Never answered with another `init`: two would fence each other for ever.
    TransactionFailed    this transaction cannot be committed; `abort` is possible

A commit whose answer is lost is asked again. When no answer comes within the cluster's timeout it is not known what
became of it: that is why a marker belongs into the transaction (`send_offsets`), and whoever comes next looks for it
(`stable_offsets`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tidemill import __version__
from tidemill.client.batch_producer import (
    DELIVERY_TIMEOUT_S,
    BatchProducer,
    DeliveryFailed,
    Encoded,
    Identity,
    RecordTooLarge,
)
from tidemill.client.cluster import Cluster, check, known_code
from tidemill.errors import ApiError, ConfigError, ErrorCode, TidemillError
from tidemill.protocol.api.cluster import ApiVersionsRequest, ApiVersionsResponse
from tidemill.protocol.api.data import ProduceRequest
from tidemill.protocol.api.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tidemill.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.records import TRANSACTIONAL
from tidemill.protocol.schema import Request, Response
from tidemill.types import TopicPartition

__all__ = [
    "BatchProducer",
    "CommittedOffset",
    "DeliveryFailed",
    "Encoded",
    "Fenced",
    "RecordTooLarge",
    "TransactionFailed",
    "TransactionalProducer",
    "stable_offsets",
]

ResponseT = TypeVar("ResponseT", bound=Response)

TRANSACTION_TIMEOUT_MS = 60_000
_FEATURE = "transaction.version"
_NEW_MANNER = 2
# The first that tells finalized features.
_API_VERSIONS_VERSION = 3
# The first version in which writing adds to the transaction.
_NEW_PRODUCE = 12
# The last versions of the old manner.
_OLD_PRODUCE = 11
_OLD_ADD_PARTITIONS = 3
_OLD_ADD_OFFSETS = 3
_OLD_OFFSET_COMMIT = 4
_OLD_END = 4
_LAST_VERSION_WITH_NAMES = 9
_FENCED = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
_FAILED = (
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
)


class Fenced(TidemillError):
    """Under this epoch nothing is possible any more."""


class TransactionFailed(TidemillError):
    """The transaction cannot be committed."""


class CommittedOffset(NamedTuple):
    offset: int
    metadata: str


def stable_offsets(
    cluster: Cluster, group_id: str, partitions: Sequence[TopicPartition] | None = None
) -> dict[TopicPartition, CommittedOffset]:
    """What the group has committed for these partitions or, with None, for all.

    Waits for transactions that are about to change it; for all, only for those that change what is committed already: a
    broker does not list a partition whose first offset is pending. After `init` nothing of that transactional id is pending.
    """
    indexes: dict[str, list[int]] = {}
    for name, index in partitions or ():
        indexes.setdefault(name, []).append(index)
    of_one = [OffsetFetchRequestTopic(name=name, partition_indexes=each) for name, each in indexes.items()]
    of_many = [OffsetFetchRequestTopics(name=name, partition_indexes=each) for name, each in indexes.items()]
    is_all = partitions is None
    message = OffsetFetchRequest(
        group_id=group_id,
        topics=None if is_all else of_one,
        groups=[OffsetFetchRequestGroup(group_id=group_id, topics=None if is_all else of_many)],
        require_stable=True,
    )

    def attempt() -> dict[TopicPartition, CommittedOffset]:
        response = cluster.coordinator(group_id).request(
            message, OffsetFetchResponse, max_version=_LAST_VERSION_WITH_NAMES
        )
        # Up to version 7 the answer has the fields of the one group itself.
        answered = response.groups[0] if response.groups else response
        check(answered.error_code)
        found = {}
        for topic in answered.topics:
            for each in topic.partitions:
                check(each.error_code)
                if each.committed_offset >= 0:
                    partition = TopicPartition(topic.name, each.partition_index)
                    found[partition] = CommittedOffset(each.committed_offset, each.metadata or "")
        return found

    return cluster.retrying(attempt)


class TransactionalProducer(BatchProducer):
    _attributes = TRANSACTIONAL

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        codec: int = CompressionType.NONE,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
    ) -> None:
        super().__init__(cluster, codec=codec, delivery_timeout_s=delivery_timeout_s)
        self._transactional_id: str = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._is_new = False
        self._is_open = False
        # What the coordinator may know to be part of this transaction: partitions, and groups by name.
        self._told: set[TopicPartition | str] = set()

    def init(self) -> None:
        """Fences whoever used the transactional id before; waits until what he left open is aborted."""
        self._is_new = self._cluster.retrying(self._is_manner_new)
        self._produce_version = None if self._is_new else _OLD_PRODUCE
        self._take_identity(self._ask_for_identity(Identity(-1, -1)))

    def begin(self) -> None:
        if self._identity is None:
            raise RuntimeError("a transactional producer begins with init()")
        if self._is_open:
            raise RuntimeError(f"{self._transactional_id} has a transaction open")
        self._is_open = True
        self._told.clear()

    def produce(self, batches: Iterable[tuple[TopicPartition, Encoded]]) -> None:
        if not self._is_open:
            raise RuntimeError("records are written between begin() and commit()")
        super().produce(batches)

    def send_offsets(self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """The group's offsets become part of the transaction."""
        if not self._is_new and group_id not in self._told:
            self._add_group(group_id)
        self._told.add(group_id)
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        for partition, committed in offsets.items():
            name = partition.topic
            if name not in topics:
                topics[name] = TxnOffsetCommitRequestTopic(name=name, topic_id=self._topic_id(name))
            topics[name].partitions.append(
                TxnOffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=committed.offset,
                    committed_metadata=committed.metadata,
                )
            )
        identity = self._known_identity()
        message = TxnOffsetCommitRequest(
            transactional_id=self._transactional_id,
            group_id=group_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            topics=list(topics.values()),
        )

        def attempt() -> None:
            response = self._cluster.coordinator(group_id).request(
                message, TxnOffsetCommitResponse, max_version=None if self._is_new else _OLD_OFFSET_COMMIT
            )
            for topic in response.topics:
                for answer in topic.partitions:
                    self._check(answer.error_code, f"the offsets of group {group_id}")

        self._cluster.retrying(attempt)

    def commit(self) -> None:
        """Returns when everything is written and the transaction is committed."""
        self.flush()
        self._end(is_commit=True)

    def abort(self) -> None:
        """Takes back what the transaction has written."""
        # What arrives after the end would be in no transaction, or in the next one.
        self._drain()
        self.close()
        self._end(is_commit=False)
        if not self._is_new and self._identity is not None:
            # Nothing but an epoch keeps a late batch of this transaction out of the next one.
            self._take_identity(self._ask_for_identity(self._identity))

    # --- what is asked of the coordinator ---

    def _is_manner_new(self) -> bool:
        connection = self._cluster.any_broker()
        hello = ApiVersionsRequest(client_software_name="tidemill", client_software_version=__version__)
        response = connection.request(hello, ApiVersionsResponse, max_version=_API_VERSIONS_VERSION)
        check(response.error_code)
        levels = {each.name: each.max_version_level for each in response.finalized_features}
        offers = connection.version_of(ProduceRequest) >= _NEW_PRODUCE
        return levels.get(_FEATURE, 0) >= _NEW_MANNER and offers

    def _ask_for_identity(self, known: Identity) -> Identity:
        message = InitProducerIdRequest(
            transactional_id=self._transactional_id,
            transaction_timeout_ms=self._transaction_timeout_ms,
            producer_id=known.producer_id,
            producer_epoch=known.producer_epoch,
        )
        try:
            return self._init_producer_id(message)
        except ApiError as failure:
            raise self._meaning_of(failure) from None

    def _take_identity(self, identity: Identity) -> None:
        # KIP-360: an epoch's sequences begin at 0.
        if identity != self._identity:
            self._identity = identity
            self._sequences.clear()

    def _admit(self, partitions: Iterable[TopicPartition]) -> None:
        new = [partition for partition in partitions if partition not in self._told]
        if not new:
            return
        if self._is_new:
            self._told.update(new)
            return
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for name, index in new:
            topics.setdefault(name, AddPartitionsToTxnTopic(name=name)).partitions.append(index)
        identity = self._known_identity()
        message = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=list(topics.values()),
        )

        def attempt() -> None:
            response = self._ask(message, AddPartitionsToTxnResponse, _OLD_ADD_PARTITIONS)
            for topic in response.results_by_topic_v3_and_below:
                for answer in topic.results_by_partition:
                    self._check(answer.partition_error_code, f"{topic.name}-{answer.partition_index}")

        self._cluster.retrying(attempt)
        self._told.update(new)

    def _add_group(self, group_id: str) -> None:
        identity = self._known_identity()
        message = AddOffsetsToTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            group_id=group_id,
        )

        def attempt() -> None:
            answer = self._ask(message, AddOffsetsToTxnResponse, _OLD_ADD_OFFSETS)
            self._check(answer.error_code, f"the offsets of group {group_id}")

        self._cluster.retrying(attempt)

    def _end(self, *, is_commit: bool) -> None:
        self._is_open = False
        if not self._told:
            return
        identity = self._known_identity()
        message = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            committed=is_commit,
        )

        def attempt() -> EndTxnResponse:
            answer = self._ask(message, EndTxnResponse, _OLD_END)
            self._check(answer.error_code, "the end of the transaction")
            return answer

        answer = self._cluster.retrying(attempt)
        if self._is_new and answer.producer_id >= 0:
            self._take_identity(Identity(answer.producer_id, answer.producer_epoch))

    def _ask(self, message: Request, response_type: type[ResponseT], old_version: int) -> ResponseT:
        connection = self._cluster.transaction_coordinator(self._transactional_id)
        return connection.request(message, response_type, max_version=None if self._is_new else old_version)

    # --- what answers mean ---

    def _topic_id(self, name: str) -> bytes:
        return self._cluster.retrying(lambda: self._cluster.topic(name)).topic_id

    def _known_identity(self) -> Identity:
        assert self._identity is not None
        return self._identity

    def _check(self, error_code: int, subject: str) -> None:
        if error_code:
            code = known_code(error_code)
            raise self._meaning_of(ApiError(code, f"{subject}: {code.message}"))

    def _note(self, failure: TidemillError) -> None:
        super()._note(self._meaning_of(failure))

    def _meaning_of(self, failure: TidemillError) -> TidemillError:
        if isinstance(failure, ApiError):
            if failure.code in _FENCED:
                return Fenced(
                    f"the producer {self._transactional_id} was fenced: a newer one uses its transactional id, or its "
                    f"transaction took longer than {self._transaction_timeout_ms} ms ({failure})"
                )
            if failure.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                return ConfigError(
                    f"transaction.timeout.ms={self._transaction_timeout_ms} is longer than the brokers'"
                    " transaction.max.timeout.ms: lower the one or raise the other"
                )
            if failure.code in _FAILED:
                return TransactionFailed(f"the transaction of {self._transactional_id} failed: {failure}")
        return failure
