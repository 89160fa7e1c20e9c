"""Finds offsets by time at the leaders of partitions (ListOffsets)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tidemill.client.cluster import Cluster, PartitionAnswer
from tidemill.client.connections.connection import Connection
from tidemill.protocol.api.data import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidemill.protocol.isolation import READ_UNCOMMITTED
from tidemill.types import TopicPartition

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2


class FoundOffset(NamedTuple):
    """The answer to a search by timestamp; both are -1 when no record is as young as that."""

    offset: int
    timestamp_ms: int


def list_offsets(
    cluster: Cluster,
    timestamps_ms: Mapping[TopicPartition, int],
    isolation_level: int = READ_UNCOMMITTED,
) -> dict[TopicPartition, FoundOffset]:
    """The first offset at or after each timestamp; LATEST_TIMESTAMP and EARLIEST_TIMESTAMP are the ends."""

    def ask(
        connection: Connection, partitions: list[TopicPartition]
    ) -> Iterator[PartitionAnswer[FoundOffset]]:
        topics: dict[str, ListOffsetsTopic] = {}
        for topic, index in partitions:
            topics.setdefault(topic, ListOffsetsTopic(name=topic)).partitions.append(
                ListOffsetsPartition(
                    partition_index=index, timestamp=timestamps_ms[TopicPartition(topic, index)]
                )
            )
        message = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=list(topics.values()),
            timeout_ms=int(cluster.timeout_s * 1000),
        )
        for answered in connection.request(message, ListOffsetsResponse).topics:
            for each in answered.partitions:
                partition = TopicPartition(answered.name, each.partition_index)
                found = FoundOffset(each.offset, each.timestamp)
                yield PartitionAnswer(partition, each.error_code, found)

    return cluster.per_leader(timestamps_ms, ask)
