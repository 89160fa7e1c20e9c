"""What a query has written already, kept where its records are: as committed offsets of consumer groups.

Each task of a streaming query has a group, `spark-<query id>-<partition id>`, of the same name as its transactional id.
In the transaction that writes the records of batch N it commits the offset N + 1 with `{"rows", "checksum"}` as metadata:
records and marker are there together or not at all. A repeated task that finds a marker above its batch has nothing to do.

The query as a whole has the group `spark-<query id>`, which the driver writes when a batch is over:

    N + 1    batch N is written by every task: a repetition has nothing to do, however it is cut into tasks
    N        with `{"partitions"}`: batch N failed after some task had written, and was cut into so many tasks

An offset needs a topic and a partition that exist: partition 0 of a topic that is written to. With the topic its markers
go, and so do the records they speak of. A query whose option `topic` says where it writes looks for markers on that topic
only: writing elsewhere, it has written nothing yet. Without the option the topic may be another one in each batch, so all
are looked at, and the highest offset counts. Groups that commit nothing are forgotten after
`offsets.retention.minutes` (7 days).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from tidemill.client.cluster import Cluster, check
from tidemill.client.transactional import CommittedOffset, stable_offsets
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidemill.types import TopicPartition

_LAST_VERSION_WITH_NAMES = 9
# Every topic has it.
_PARTITION = 0


class Marker(NamedTuple):
    """`next_batch_id` is the first batch that is not covered; what is not told is -1."""

    next_batch_id: int
    rows: int = -1
    checksum: int = -1
    partitions: int = -1
    # Where it was found.
    topic: str | None = None


NO_MARKER = Marker(-1)


def group_of(query_id: str, partition_id: int | None = None) -> str:
    """The group of the whole query, or of one of its tasks, whose transactional id it is as well."""
    return f"spark-{query_id}" if partition_id is None else f"spark-{query_id}-{partition_id}"


def read_marker(cluster: Cluster, group_id: str, topic: str | None = None) -> Marker:
    """The newest, on that topic or on any. Waits for a transaction that is still being committed."""
    wanted = None if topic is None else [TopicPartition(topic, _PARTITION)]
    found = stable_offsets(cluster, group_id, wanted)
    if not found:
        return NO_MARKER
    # On two topics with the same offset, the one that says more: a batch that failed comes after the one before it.
    partition, newest = max(
        found.items(), key=lambda item: (item[1].offset, "partitions" in item[1].metadata)
    )
    told = _parse(newest.metadata)
    return Marker(
        newest.offset,
        rows=told.get("rows", -1),
        checksum=told.get("checksum", -1),
        partitions=told.get("partitions", -1),
        topic=partition.topic,
    )


def marker_offsets(topic: str, marker: Marker) -> dict[TopicPartition, CommittedOffset]:
    """The marker as what a transaction commits."""
    return {TopicPartition(topic, _PARTITION): CommittedOffset(marker.next_batch_id, _metadata(marker))}


def write_query_marker(cluster: Cluster, query_id: str, topic: str, marker: Marker) -> None:
    """The driver's word, outside of any transaction."""
    group_id = group_of(query_id)
    partition = OffsetCommitRequestPartition(
        partition_index=_PARTITION,
        committed_offset=marker.next_batch_id,
        committed_metadata=_metadata(marker),
    )
    message = OffsetCommitRequest(
        group_id=group_id, topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    )

    def attempt() -> None:
        response = cluster.coordinator(group_id).request(
            message, OffsetCommitResponse, max_version=_LAST_VERSION_WITH_NAMES
        )
        for answered in response.topics:
            for each in answered.partitions:
                check(each.error_code, f"the marker of {group_id} on topic {topic} was not taken")

    cluster.retrying(attempt)


def _metadata(marker: Marker) -> str:
    told = {"rows": marker.rows, "checksum": marker.checksum, "partitions": marker.partitions}
    return json.dumps({name: value for name, value in told.items() if value >= 0}, separators=(",", ":"))


def _parse(metadata: str) -> Mapping[str, int]:
    """Empty when somebody else committed this offset, such as an operator who moved it."""
    try:
        told = json.loads(metadata)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
