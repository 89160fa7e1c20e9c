"""Reads partitions from given offsets on, without a group.

`fetch` is one round over the leaders and returns raw batches; `poll` decodes them and moves the positions, record by
record, so that a caller may stop anywhere. With `read_committed` it gives what committed transactions wrote and what was
written without one, up to the last stable offset. Positions move past batches, not past records: what compaction removed,
what was aborted and what holds only a transaction's markers is passed over and never asked for again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tidemill.client.cluster import Cluster, PartitionAnswer, check
from tidemill.client.connections.connection import Connection
from tidemill.client.fetch import decoded, shown_batches, whole_batches
from tidemill.protocol.api.data import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidemill.protocol.isolation import READ_UNCOMMITTED
from tidemill.protocol.records import Record
from tidemill.types import TopicPartition

PARTITION_BYTES_MAX = 1024 * 1024
FETCH_BYTES_MAX = 16 * 1024 * 1024


class Fetched(NamedTuple):
    """The data of one partition: batches, the last of which may be cut off."""

    batches: memoryview
    high_watermark: int
    log_start_offset: int
    # (producer id, first offset) of each aborted transaction in it; none unless committed records were asked for.
    aborted: Sequence[tuple[int, int]] = ()


class Consumed(NamedTuple):
    partition: TopicPartition
    record: Record


class Consumer:
    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        *,
        partition_bytes_max: int = PARTITION_BYTES_MAX,
        isolation_level: int = READ_UNCOMMITTED,
    ) -> None:
        self._cluster = cluster
        self._isolation_level = isolation_level
        self._partition_bytes_max = partition_bytes_max
        # The next offset to read. Take a partition out to stop reading it.
        self.positions = dict(positions)

    def poll(self, max_wait_ms: int = 500) -> Iterator[Consumed]:
        """The records of one round, waiting so long when there are none."""
        for partition, fetched in self.fetch(max_wait_ms).items():
            batches = whole_batches(fetched.batches)
            for header, batch in shown_batches(batches, fetched.aborted):
                for record in decoded(partition, header, batch):
                    if record.offset >= self.positions[partition]:
                        self.positions[partition] = record.offset + 1
                        yield Consumed(partition, record)
            if batches:
                self.positions[partition] = max(self.positions[partition], batches[-1][0].next_offset)

    def fetch(self, max_wait_ms: int) -> dict[TopicPartition, Fetched]:
        """One request to each leader; the positions stay where they are."""
        if not self.positions:
            return {}
        # Leaders are asked one after the other, so they share the wait.
        leaders = self._cluster.retrying(lambda: self._cluster.leaders(self.positions))
        wait_ms = max_wait_ms // len(leaders)

        def ask(
            connection: Connection, partitions: list[TopicPartition]
        ) -> Iterator[PartitionAnswer[Fetched]]:
            return self._fetch(connection, partitions, wait_ms)

        return self._cluster.per_leader(self.positions, ask)

    def _fetch(
        self, connection: Connection, partitions: list[TopicPartition], wait_ms: int
    ) -> Iterator[PartitionAnswer[Fetched]]:
        topics: dict[str, FetchTopic] = {}
        names: dict[bytes, str] = {}
        for partition in partitions:
            topic_id = self._cluster.topic(partition.topic).topic_id
            names[topic_id] = partition.topic
            wanted = topics.setdefault(partition.topic, FetchTopic(topic=partition.topic, topic_id=topic_id))
            wanted.partitions.append(
                FetchPartition(
                    partition=partition.partition,
                    fetch_offset=self.positions[partition],
                    partition_max_bytes=self._partition_bytes_max,
                )
            )
        message = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            isolation_level=self._isolation_level,
            topics=list(topics.values()),
        )
        response = connection.request(message, FetchResponse, wait_s=wait_ms / 1000)
        check(response.error_code)
        for topic in response.responses:
            name = topic.topic or names[topic.topic_id]
            for data in topic.partitions:
                fetched = Fetched(
                    memoryview(data.records or b""),
                    data.high_watermark,
                    data.log_start_offset,
                    [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()],
                )
                yield PartitionAnswer(TopicPartition(name, data.partition_index), data.error_code, fetched)
