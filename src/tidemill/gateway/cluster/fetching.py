"""Fetches records of one topic's partitions from given offsets, without waiting for new ones.

A `Fetcher` belongs to one request and its thread. `round` sends one Fetch to each leader, for all partitions that it leads,
and returns the batches undecoded. The next round looks up a leader that moved or failed. A partition whose offset is out of
range is reported to the caller. Nothing waits for an election.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tidemill.client.cluster import Cluster, check, known_code
from tidemill.client.connections.connection import BrokerUnreachable, ConnectionLost
from tidemill.client.fetch import Batch, decoded, shown_batches, whole_batches
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tidemill.protocol.records import Record
from tidemill.types import TopicPartition

ANSWER_BYTES_MAX = 16 * 1024 * 1024
_PARTITION_BYTES_MAX = 1024 * 1024
_PARTITION_BYTES_MIN = 64 * 1024


class Read(NamedTuple):
    partition: int
    record: Record
    is_append_time: bool


class Chunk(NamedTuple):
    """The batches that one partition returned."""

    place: TopicPartition
    position: int
    batches: list[Batch]
    aborted: list[tuple[int, int]]
    high_watermark: int
    # The position is not, or no longer, one of the partition's.
    is_out_of_range: bool = False

    @property
    def partition(self) -> int:
        return self.place.partition

    @property
    def next_position(self) -> int:
        """The offset after the batches, not after the records: hidden records are not fetched again."""
        return max(self.position, self.batches[-1][0].next_offset) if self.batches else self.position

    def records(self, end: int) -> Iterator[Read]:
        """Yields the records before `end`."""
        for header, batch in shown_batches(self.batches, self.aborted):
            for record in decoded(self.place, header, batch):
                if self.position <= record.offset < end:
                    yield Read(self.partition, record, header.is_log_append_time)


class Fetcher:
    def __init__(self, cluster: Cluster, topic: str, isolation_level: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._isolation_level = isolation_level

    def leaders(self) -> dict[int, int]:
        """The leader of each partition, -1 where there is none. `UnknownTopic` when there is no such topic."""
        found = self._cluster.retrying(lambda: self._cluster.topic(self._topic))
        return {each.partition_index: each.leader_id for each in found.partitions}

    def round(self, positions: Mapping[int, int]) -> dict[int, Chunk]:
        """Returns the partitions that answered; there may be none. The first of an answer has at least one batch."""
        leaders = self.leaders()
        led: dict[int, dict[int, int]] = {}
        for partition, position in positions.items():
            leader_id = leaders.get(partition, -1)
            if leader_id >= 0:
                led.setdefault(leader_id, {})[partition] = position
        chunks: dict[int, Chunk] = {}
        is_stale = sum(map(len, led.values())) < len(positions)
        for leader_id, asked in led.items():
            try:
                answers = self._fetch(leader_id, asked)
            except (BrokerUnreachable, ConnectionLost):
                # A cached connection may have died; the next round looks up the leader.
                is_stale = True
                continue
            for data in answers:
                chunk = self._chunk(data, asked[data.partition_index])
                if chunk is None:
                    is_stale = True
                else:
                    chunks[data.partition_index] = chunk
        if is_stale:
            self._cluster.forget()
        return chunks

    def _fetch(self, leader_id: int, positions: Mapping[int, int]) -> list[PartitionData]:
        partition_bytes = min(
            _PARTITION_BYTES_MAX, max(_PARTITION_BYTES_MIN, ANSWER_BYTES_MAX // len(positions))
        )
        topic = FetchTopic(
            topic=self._topic,
            topic_id=self._cluster.topic(self._topic).topic_id,
            partitions=[
                FetchPartition(
                    partition=partition, fetch_offset=position, partition_max_bytes=partition_bytes
                )
                for partition, position in positions.items()
            ],
        )
        message = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=ANSWER_BYTES_MAX,
            isolation_level=self._isolation_level,
            topics=[topic],
        )
        response = self._cluster.broker(leader_id).request(message, FetchResponse)
        check(response.error_code)
        return [data for answered in response.responses for data in answered.partitions]

    def _chunk(self, data: PartitionData, position: int) -> Chunk | None:
        """None when the partition is to be looked up again."""
        place = TopicPartition(self._topic, data.partition_index)
        code = known_code(data.error_code)
        if data.error_code and code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            if code.retriable:
                return None
            check(data.error_code, f"{place}: {code.message}")
        return Chunk(
            place,
            position,
            whole_batches(memoryview(data.records or b"")),
            [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()],
            data.high_watermark,
            is_out_of_range=bool(data.error_code),
        )


def record_bytes(record: Record) -> int:
    headers = sum(len(header.key) + len(header.value or b"") for header in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers
