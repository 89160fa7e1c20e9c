"""Delayed records from outside: which are pending in a topic, and how one is cancelled or given another time.

Readers are not shown what waits. A fetch at the isolation level READ_HIDDEN is, if the client may change the topic's
configuration. What is pending follows from the log, so it is found here as the partition's leader finds it: the log is
replayed without keeping its records, and those to show are read again.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.cluster import Cluster
from tidemill.client.fetch import fetch_range
from tidemill.client.producing.producer import Producer
from tidemill.config import DELAYS_ENABLE
from tidemill.delays.offsets import PendingOffsets
from tidemill.delays.requests import (
    CANCEL,
    SCHEDULE,
    SCHEDULE_ID,
    TIME_ZONE,
    Copy,
    delay_records,
    meaning_of,
    plain_headers,
)
from tidemill.delays.state import PartitionDelays
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.isolation import READ_COMMITTED, READ_HIDDEN, READ_UNCOMMITTED
from tidemill.protocol.records import TRANSACTIONAL, BatchHeader, Header, Record
from tidemill.types import TopicPartition

_OFFSETS_A_STEP = 1000


class NotPending(ApiError):
    """No record waits at an offset, or no longer."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, message)


class PendingMessage(NamedTuple):
    partition: int
    offset: int
    due_ms: int
    key: bytes | None
    value: bytes | None
    schedule_id: str | None
    # The cron expression of a message that recurs, and its time zone.
    schedule: str | None
    time_zone: str | None
    # The whole size of a value that may have been cut.
    value_bytes: int


class PendingMessages(NamedTuple):
    """The messages that are due first, and how many wait in all."""

    total: int
    messages: list[PendingMessage]


class _Place(NamedTuple):
    due_ms: int
    partition: int
    offset: int


class DelayAdmin:
    """Lists, cancels and reschedules the delayed records of topics."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin = Admin(cluster)

    def pending(
        self,
        topic: str,
        limit: int | None = None,
        *,
        value_bytes_max: int | None = None,
        offsets_max: int | None = None,
    ) -> PendingMessages:
        """What waits in a topic, in the order in which it is due. Reads the whole topic.

        At most `limit` messages, and of each value the first `value_bytes_max`. `ApiError` when the topic has more
        offsets than `offsets_max`.
        """
        self._check_enabled(topic)
        partitions = [TopicPartition(topic, each.partition) for each in self._cluster.partitions_of(topic)]
        starts = self._admin.start_offsets(partitions)
        ends = self._admin.end_offsets(partitions, READ_COMMITTED)
        held = sum(ends.values()) - sum(starts.values())
        if offsets_max is not None and held > offsets_max:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"topic {topic} holds {held} offsets, and at most {offsets_max} are read to find what waits",
            )
        total = 0
        first: list[_Place] = []
        for each in partitions:
            waiting = self._replayed(each, starts[each], ends[each]).pending.offsets
            total += len(waiting)
            places = chain(first, (_Place(due_ms, each.partition, at) for at, due_ms in _all(waiting)))
            first = sorted(places) if limit is None else heapq.nsmallest(limit, places)
        return PendingMessages(total, self._messages(topic, first, value_bytes_max))

    def cancel(self, topic: str, partition: int, offset: int) -> None:
        """Cancel the record that waits at an offset. `NotPending` when none does."""
        self._waiting_record(topic, partition, offset)
        producer = Producer(self._cluster)
        producer.add(topic, None, partition=partition, headers=[Header(CANCEL, b"%d" % offset)])
        producer.flush()

    def reschedule(self, topic: str, partition: int, offset: int, times: Sequence[Header]) -> int:
        """Give the record that waits at an offset another time: headers as producers write them.

        It is appended anew, and its new offset is returned. It keeps its schedule id unless `times` has another one.
        `NotPending` when no record waits there, or when it was delivered meanwhile: then nothing has changed.
        """
        record = self._waiting_record(topic, partition, offset)
        named = next((each for each in record.headers if each.key == SCHEDULE_ID), None)
        headers = [*plain_headers(record.headers), *times]
        if named is not None and all(each.key != SCHEDULE_ID for each in times):
            headers.append(named)
        producer = Producer(self._cluster)
        producer.add(topic, record.value, key=record.key, partition=partition, headers=headers)
        # In the same batch, unless that is too large: rather twice than never.
        producer.add(topic, None, partition=partition, headers=[Header(CANCEL, b"%d" % offset)])
        producer.flush()
        moved_to = producer.appended[0].base_offset
        if self._was_delivered(TopicPartition(topic, partition), offset, moved_to):
            producer.add(topic, None, partition=partition, headers=[Header(CANCEL, b"%d" % moved_to)])
            producer.flush()
            raise NotPending(f"the record at offset {offset} of {topic}-{partition} was delivered meanwhile")
        return moved_to

    def _check_enabled(self, topic: str) -> None:
        if self._admin.topic_values([topic], DELAYS_ENABLE).get(topic) != "true":
            self._admin.topic(topic)
            # A client that may not see the configuration gets that error.
            self._admin.describe_configs(ResourceType.TOPIC, topic)
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"topic {topic} has no delayed records: {DELAYS_ENABLE} is not true"
            )

    # -- what the log says -------------------------------------------------------------------------------------

    def _waiting_record(self, topic: str, partition: int, offset: int) -> Record:
        """The record that waits at an offset. Whether it does follows from it and from what stands behind it."""
        self._check_enabled(topic)
        tp = TopicPartition(topic, partition)
        start_offset = self._admin.start_offsets([tp])[tp]
        end_offset = self._admin.end_offsets([tp], READ_COMMITTED)[tp]
        if start_offset <= offset < end_offset:
            state = self._replayed(tp, offset, end_offset)
            if offset in state.pending.offsets:
                return self._records_at(tp, {offset}, None)[offset][0]
        raise NotPending(f"no record waits at offset {offset} of {topic}-{partition}")

    def _replayed(self, tp: TopicPartition, start_offset: int, end_offset: int) -> PartitionDelays:
        state = PartitionDelays(start_offset, end_offset)
        for header, batch in self._batches(tp, start_offset, end_offset, READ_COMMITTED):
            # Every transaction that was read is committed, so its records count where they stand.
            committed = header._replace(attributes=header.attributes & ~TRANSACTIONAL)
            state.replay(committed, delay_records(batch, header))
        return state

    def _was_delivered(self, tp: TopicPartition, offset: int, before_offset: int) -> bool:
        """Whether a copy of the record at an offset stands before another offset."""
        if before_offset <= offset + 1:
            return False
        return any(
            isinstance(meaning := meaning_of(record), Copy) and meaning.pending_offset == offset
            for header, batch in self._batches(tp, offset + 1, before_offset, READ_UNCOMMITTED)
            for record in delay_records(batch, header)
            if record.offset < before_offset
        )

    def _messages(
        self, topic: str, places: Sequence[_Place], value_bytes_max: int | None
    ) -> list[PendingMessage]:
        wanted: dict[int, set[int]] = {}
        for place in places:
            wanted.setdefault(place.partition, set()).add(place.offset)
        found = {
            partition: self._records_at(TopicPartition(topic, partition), offsets, value_bytes_max)
            for partition, offsets in wanted.items()
        }
        return [
            _message(place, *found[place.partition][place.offset])
            for place in places
            # Retention may have carried it to another offset since.
            if place.offset in found[place.partition]
        ]

    def _records_at(
        self, tp: TopicPartition, offsets: Collection[int], value_bytes_max: int | None
    ) -> dict[int, tuple[Record, int]]:
        """The records at these offsets, with the size of the value, of which only the beginning is kept."""
        found: dict[int, tuple[Record, int]] = {}
        start_offset = max(min(offsets), self._admin.start_offsets([tp])[tp])
        for header, batch in self._batches(tp, start_offset, max(offsets) + 1, READ_COMMITTED):
            if not any(header.base_offset <= each < header.next_offset for each in offsets):
                continue
            for record in delay_records(batch, header):
                if record.offset in offsets:
                    value = record.value
                    kept = record if value is None else record._replace(value=value[:value_bytes_max])
                    found[record.offset] = kept, len(value or b"")
        return found

    def _batches(
        self, tp: TopicPartition, start_offset: int, end_offset: int, isolation_level: int
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        if start_offset >= end_offset:
            return
        level = isolation_level | READ_HIDDEN
        for answer in fetch_range(self._cluster, tp, start_offset, end_offset, isolation_level=level):
            yield from answer.batches


def _all(waiting: PendingOffsets) -> Iterator[tuple[int, int]]:
    offset = 0
    while some := waiting.first_from(offset, _OFFSETS_A_STEP):
        yield from some
        offset = some[-1][0] + 1


def _message(place: _Place, record: Record, value_bytes: int) -> PendingMessage:
    texts = {
        each.key: (each.value or b"").decode(errors="replace")
        for each in record.headers
        if each.key in (SCHEDULE_ID, SCHEDULE, TIME_ZONE)
    }
    schedule = texts.get(SCHEDULE)
    return PendingMessage(
        place.partition,
        place.offset,
        place.due_ms,
        record.key,
        record.value,
        texts.get(SCHEDULE_ID),
        schedule,
        None if schedule is None else texts.get(TIME_ZONE, "UTC"),
        value_bytes,
    )
