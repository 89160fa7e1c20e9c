"""Gathers records into batches and writes them to the leaders of their partitions.

With acks=all the producer is idempotent: each batch carries a sequence number, so sending it again after a lost
connection cannot write it twice. With acks 1 and 0 a lost connection raises an error and is never retried.
A batch that is larger than its topic allows is cut in halves until it fits or is a single record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tidemill.client.cluster import Cluster, PartitionAnswer, check
from tidemill.client.connections.connection import Connection
from tidemill.client.producing.partitioner import Partitioner
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.protocol.api.transactions import InitProducerIdRequest, InitProducerIdResponse
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.records import Header, Record, build_batch
from tidemill.types import NO_OFFSET, TopicPartition

ACKS_ALL = -1
# Well below the default of max.message.bytes, 1 MiB.
GATHERED_BYTES_MAX = 512 * 1024
_RECORD_OVERHEAD_BYTES = 24


class Appended(NamedTuple):
    """One batch that the leader took. Without acks its offset is unknown: NO_OFFSET."""

    partition: TopicPartition
    base_offset: int
    record_count: int


class _Batch(NamedTuple):
    records: list[Record]
    data: bytearray


class Producer:
    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = ACKS_ALL,
        codec: int = CompressionType.NONE,
        partitioner: Partitioner | None = None,
        wall_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._cluster = cluster
        self._acks = acks
        self._codec = codec
        self._partitioner = partitioner or Partitioner()
        self._wall_ms = wall_ms
        self._gathered: dict[TopicPartition, list[Record]] = {}
        self._gathered_bytes = 0
        self._partition_counts: dict[str, int] = {}
        self._identity: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}
        # In the order of the answers.
        self.appended: list[Appended] = []

    def add(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Gathers one record, and writes everything gathered when that is enough for a batch."""
        if partition is None:
            count = self._partition_counts.get(topic)
            if count is None:
                count = self._partition_counts[topic] = len(self._cluster.partitions_of(topic))
            partition = self._partitioner.partition(topic, key, count)
        records = self._gathered.setdefault(TopicPartition(topic, partition), [])
        timestamp = self._wall_ms() if timestamp_ms is None else timestamp_ms
        records.append(Record(len(records), timestamp, key, value, headers))
        self._gathered_bytes += _RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        self._gathered_bytes += sum(len(name) + len(content or b"") for name, content in headers)
        if self._gathered_bytes >= GATHERED_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Writes what is gathered, and returns when it is acknowledged."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, {}, 0
        self._partitioner.next_batch()
        self._partition_counts.clear()
        if gathered:
            self._write(gathered)

    def _write(self, gathered: dict[TopicPartition, list[Record]]) -> None:
        if self._acks == ACKS_ALL and self._identity is None:
            self._identity = self._cluster.retrying(self._init_producer_id)
        batches = {partition: self._batch(partition, records) for partition, records in gathered.items()}
        too_large: list[TopicPartition] = []

        def ask(connection: Connection, partitions: list[TopicPartition]) -> Iterator[PartitionAnswer[None]]:
            for answer in self._produce(connection, {each: batches[each] for each in partitions}):
                if _is_divisible(answer, batches[answer.partition].records):
                    too_large.append(answer.partition)
                    answer = answer._replace(error_code=ErrorCode.NONE)
                elif not answer.error_code:
                    self._note(answer.partition, answer.result, len(batches[answer.partition].records))
                yield PartitionAnswer(answer.partition, answer.error_code, None, answer.error_message)

        self._cluster.per_leader(gathered, ask, is_repeatable=self._acks == ACKS_ALL)
        for partition in too_large:
            for half in _halves(gathered[partition]):
                self._write({partition: half})

    def _init_producer_id(self) -> tuple[int, int]:
        message = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        response = self._cluster.any_broker().request(message, InitProducerIdResponse)
        check(response.error_code)
        return response.producer_id, response.producer_epoch

    def _batch(self, partition: TopicPartition, records: list[Record]) -> _Batch:
        if self._identity is None:
            return _Batch(records, build_batch(records, codec=self._codec))
        producer_id, producer_epoch = self._identity
        data = build_batch(
            records,
            codec=self._codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=self._sequences.get(partition, 0),
        )
        return _Batch(records, data)

    def _produce(
        self, connection: Connection, batches: dict[TopicPartition, _Batch]
    ) -> Iterator[PartitionAnswer[int]]:
        topics: dict[str, TopicProduceData] = {}
        names: dict[bytes, str] = {}
        for partition, batch in batches.items():
            topic_id = self._cluster.topic(partition.topic).topic_id
            names[topic_id] = partition.topic
            data = topics.setdefault(
                partition.topic, TopicProduceData(name=partition.topic, topic_id=topic_id)
            )
            data.partition_data.append(PartitionProduceData(index=partition.partition, records=batch.data))
        timeout_ms = int(self._cluster.timeout_s * 1000)
        message = ProduceRequest(acks=self._acks, timeout_ms=timeout_ms, topic_data=list(topics.values()))
        if self._acks == 0:
            connection.send(message)
            for partition in batches:
                yield PartitionAnswer(partition, ErrorCode.NONE, NO_OFFSET)
            return
        for topic in connection.request(message, ProduceResponse).responses:
            name = topic.name or names[topic.topic_id]
            for answer in topic.partition_responses:
                # Written by an earlier try whose answer was lost, and too old for the broker to know where.
                is_duplicate = answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
                yield PartitionAnswer(
                    TopicPartition(name, answer.index),
                    ErrorCode.NONE if is_duplicate else answer.error_code,
                    NO_OFFSET if is_duplicate else answer.base_offset,
                    answer.error_message,
                )

    def _note(self, partition: TopicPartition, base_offset: int, record_count: int) -> None:
        self.appended.append(Appended(partition, base_offset, record_count))
        sequence = self._sequences.get(partition, 0) + record_count
        self._sequences[partition] = sequence & 0x7FFFFFFF


def _is_divisible(answer: PartitionAnswer[int], records: list[Record]) -> bool:
    too_large = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
    return answer.error_code in too_large and len(records) > 1


def _halves(records: list[Record]) -> Iterator[list[Record]]:
    middle = len(records) // 2
    for half in (records[:middle], records[middle:]):
        yield [record._replace(offset=index) for index, record in enumerate(half)]
