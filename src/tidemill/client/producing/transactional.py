"""Raw batches and a group's offsets in one transaction.

A `TransactionalProducer` owns a transactional id from `init` on: the producer that used it before is fenced, and its open
transaction is aborted. One transaction at a time: `begin`, `produce` and `send_offsets`, then `commit` or `abort`. Requests
to the coordinator, and their failures, are in `transaction_coordinator`.

Another producer may end the transaction (KIP-939): `prepare` returns the writer's identity when everything is written.
`take_over` instead of `init` returns what an earlier producer left open; `end_taken_over` ends it.

A commit whose response is lost is sent again. Without a response within the cluster's timeout its outcome is unknown. So a
marker belongs into the transaction (`send_offsets`), and the next producer looks for it (`stable_offsets`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidemill.client.cluster import Cluster, check
from tidemill.client.producing.batch_producer import (
    DELIVERY_TIMEOUT_S,
    BatchProducer,
    DeliveryFailed,
    Encoded,
    RecordTooLarge,
)
from tidemill.client.producing.transaction_coordinator import (
    TRANSACTION_TIMEOUT_MS,
    Fenced,
    Identity,
    TransactionCoordinator,
    TransactionFailed,
)
from tidemill.errors import TidemillError
from tidemill.protocol.api.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tidemill.protocol.api.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.records import TRANSACTIONAL
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

# The last versions of the old manner.
_OLD_PRODUCE = 11
_OLD_OFFSET_COMMIT = 4
_LAST_VERSION_WITH_NAMES = 9


class CommittedOffset(NamedTuple):
    offset: int
    metadata: str


def stable_offsets(
    cluster: Cluster, group_id: str, partitions: Sequence[TopicPartition] | None = None
) -> dict[TopicPartition, CommittedOffset]:
    """Returns the offsets that the group has committed for these partitions or, with None, for all.

    Waits for transactions that are about to change it. For all partitions, it waits only for those that change a
    committed offset: a broker does not list a partition whose first offset is pending. After `init` nothing of that
    transactional id is pending.
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
        if not cluster.has_groups():
            return {}
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
        self._coordinator = TransactionCoordinator(cluster, transactional_id, transaction_timeout_ms)
        self._is_open = False
        # What the coordinator may know to be part of this transaction: partitions, and groups by name.
        self._told: set[TopicPartition | str] = set()

    def init(self) -> None:
        """Fences earlier producers of the transactional id; waits until their open transaction is aborted."""
        self._take_identity(self._coordinator.init())

    def take_over(self) -> Identity | None:
        """Fences earlier producers of the transactional id; returns whose transaction is open, if one is.

        That one has to be ended before the next can begin.
        """
        taken = self._coordinator.take_over()
        self._take_identity(taken.producer)
        return taken.writer

    def end_taken_over(self, *, is_commit: bool) -> None:
        self._take_identity(self._coordinator.end(self._known_identity(), is_commit=is_commit))

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction to end."""
        return self._is_open

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
        if not self._coordinator.is_new and group_id not in self._told:
            self._coordinator.add_group(self._known_identity(), group_id)
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
                message,
                TxnOffsetCommitResponse,
                max_version=None if self._coordinator.is_new else _OLD_OFFSET_COMMIT,
            )
            for topic in response.topics:
                for answer in topic.partitions:
                    self._coordinator.check(answer.error_code, f"the offsets of group {group_id}")

        self._cluster.retrying(attempt)

    def prepare(self) -> Identity:
        """Returns the writer's identity when everything is written, and leaves the transaction open."""
        self.flush()
        self._is_open = False
        return self._known_identity()

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
        if not self._coordinator.is_new and self._identity is not None:
            # Nothing but an epoch keeps a late batch of this transaction out of the next one.
            self._take_identity(self._coordinator.init(self._identity))

    def _take_identity(self, identity: Identity) -> None:
        self._produce_version = None if self._coordinator.is_new else _OLD_PRODUCE
        # KIP-360: an epoch's sequences begin at 0.
        if identity != self._identity:
            self._identity = identity
            self._sequences.clear()

    def _admit(self, partitions: Iterable[TopicPartition]) -> None:
        new = [partition for partition in partitions if partition not in self._told]
        if not new:
            return
        if not self._coordinator.is_new:
            self._coordinator.add_partitions(self._known_identity(), new)
        self._told.update(new)

    def _end(self, *, is_commit: bool) -> None:
        self._is_open = False
        if self._told:
            self._take_identity(self._coordinator.end(self._known_identity(), is_commit=is_commit))

    def _topic_id(self, name: str) -> bytes:
        return self._cluster.retrying(lambda: self._cluster.topic(name)).topic_id

    def _known_identity(self) -> Identity:
        assert self._identity is not None
        return self._identity

    def _note(self, failure: TidemillError) -> None:
        super()._note(self._coordinator.meaning_of(failure))
