"""Delayed records from outside: which are pending in a topic, and how one is cancelled.

Readers are not shown what waits. A fetch at the isolation level READ_HIDDEN is, if the client may change the topic's
configuration. What is pending follows from the log, so it is found here as the partition's leader finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemill.client.admin import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.fetch import fetch_range
from tidemill.client.producer import Producer
from tidemill.config import DELAYS_ENABLE
from tidemill.delays.requests import CANCEL, SCHEDULE_ID, delay_records
from tidemill.delays.state import PartitionDelays
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.isolation import READ_COMMITTED, READ_HIDDEN
from tidemill.protocol.records import TRANSACTIONAL, BatchHeader, Header, Record
from tidemill.types import TopicPartition


class PendingMessage(NamedTuple):
    partition: int
    offset: int
    due_ms: int
    key: bytes | None
    value: bytes | None
    schedule_id: str | None
    # The cron expression of a message that recurs.
    schedule: str | None


class DelayAdmin:
    """Lists and cancels the delayed records of topics."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin = Admin(cluster)

    def pending(self, topic: str) -> list[PendingMessage]:
        """What waits in a topic, in the order in which it is due. Reads the whole topic."""
        self._check_enabled(topic)
        partitions = [TopicPartition(topic, each.partition) for each in self._cluster.partitions_of(topic)]
        starts = self._admin.start_offsets(partitions)
        ends = self._admin.end_offsets(partitions, READ_COMMITTED)
        found = [
            message for each in partitions for message in self._pending_of(each, starts[each], ends[each])
        ]
        return sorted(found, key=lambda message: (message.due_ms, message.partition, message.offset))

    def cancel(self, topic: str, partition: int, offset: int) -> None:
        """Cancel the record that waits at an offset. `ApiError` when none does."""
        self._check_enabled(topic)
        tp = TopicPartition(topic, partition)
        starts, ends = self._admin.start_offsets([tp]), self._admin.end_offsets([tp], READ_COMMITTED)
        if all(message.offset != offset for message in self._pending_of(tp, starts[tp], ends[tp])):
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"no record waits at offset {offset} of {topic}-{partition}"
            )
        producer = Producer(self._cluster)
        producer.add(topic, None, partition=partition, headers=[Header(CANCEL, b"%d" % offset)])
        producer.flush()

    def _check_enabled(self, topic: str) -> None:
        if self._admin.topic_values([topic], DELAYS_ENABLE).get(topic) != "true":
            self._admin.topic(topic)
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"topic {topic} has no delayed records: {DELAYS_ENABLE} is not true"
            )

    def _pending_of(self, tp: TopicPartition, start_offset: int, end_offset: int) -> list[PendingMessage]:
        state = PartitionDelays(start_offset, end_offset)
        waiting: dict[int, Record] = {}
        for header, records in self._batches(tp, start_offset, end_offset):
            state.replay(header, records)
            waiting.update((each.offset, each) for each in records if each.offset in state.pending.offsets)
        found = []
        for offset, due_ms in state.pending.offsets.first_from(start_offset, len(waiting)):
            record, scheduled = waiting[offset], state.pending.scheduled.get(offset)
            named = next((each.value for each in record.headers if each.key == SCHEDULE_ID), None)
            schedule = scheduled.schedule if scheduled is not None else None
            found.append(
                PendingMessage(
                    tp.partition,
                    offset,
                    due_ms,
                    record.key,
                    record.value,
                    None if named is None else named.decode(errors="replace"),
                    None if schedule is None else schedule.expression,
                )
            )
        return found

    def _batches(
        self, tp: TopicPartition, start_offset: int, end_offset: int
    ) -> Iterator[tuple[BatchHeader, list[Record]]]:
        level = READ_COMMITTED | READ_HIDDEN
        for answer in fetch_range(self._cluster, tp, start_offset, end_offset, isolation_level=level):
            for header, batch in answer.batches:
                # Every transaction that was read is committed, so its records count where they stand.
                committed = header._replace(attributes=header.attributes & ~TRANSACTIONAL)
                yield committed, delay_records(batch, header)
