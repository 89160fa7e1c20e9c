"""Delayed records from outside: which are pending in a topic, and how one is cancelled or given another time.

Readers are not shown what waits. A fetch at the isolation level READ_WAITING is, and nothing else, if the client may
change the topic's configuration. The partition's leader knows what waits, so a listing costs as much as it shows.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.cluster import Cluster
from tidemill.client.fetch import FETCH_BYTES, fetch_range
from tidemill.client.producing.producer import Producer
from tidemill.config import DELAYS_ENABLE
from tidemill.delays.requests import (
    CANCEL,
    NEXT_DUE,
    SCHEDULE,
    SCHEDULE_ID,
    TIME_ZONE,
    Carried,
    Copy,
    Delayed,
    delay_records,
    meaning_of,
    plain_headers,
)
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.isolation import READ_COMMITTED, READ_HIDDEN, READ_UNCOMMITTED, READ_WAITING
from tidemill.protocol.records import BatchHeader, Header, Record
from tidemill.types import TopicPartition

# What a page asks a broker for at once: so much for itself, and for each message.
_PAGE_BYTES_MIN = 64 * 1024
_MESSAGE_BYTES = 1024
# How many waiting messages are searched for schedules.
_SEARCHED_MAX = 10_000


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


class PendingPage(NamedTuple):
    """Some messages, in the order in which they are due, and the place from which the next page goes on."""

    messages: list[PendingMessage]
    next_place: tuple[int, int] | None


class _Waiting(NamedTuple):
    """A record that waits. What settles it from now on is in the log from `settled_from` on."""

    record: Record
    settled_from: int


class DelayAdmin:
    """Lists, cancels and reschedules the delayed records of topics."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin = Admin(cluster)

    def pending(self, topic: str, limit: int | None = None) -> PendingMessages:
        """Returns the messages that wait in a topic, by due time; at most `limit`. Reads all that wait."""
        total = 0

        def counted() -> Iterator[PendingMessage]:
            nonlocal total
            for message in self._waiting(topic, (0, 0)):
                total += 1
                yield message

        messages = counted()
        first = sorted(messages, key=_due) if limit is None else heapq.nsmallest(limit, messages, key=_due)
        return PendingMessages(total, first)

    def page(
        self, topic: str, limit: int, place: tuple[int, int] = (0, 0), value_bytes_max: int | None = None
    ) -> PendingPage:
        """The next `limit` messages that wait from a (partition, offset) on, with the beginning of each value."""
        fetch_bytes = min(FETCH_BYTES, _PAGE_BYTES_MIN + limit * _MESSAGE_BYTES)
        found = list(islice(self._waiting(topic, place, value_bytes_max, fetch_bytes), limit + 1))
        next_place = (found[limit].partition, found[limit].offset) if len(found) > limit else None
        return PendingPage(sorted(found[:limit], key=_due), next_place)

    def schedules(self, topic: str, first_partition: int, limit: int) -> list[PendingMessage]:
        """Messages that recur in a partition and those after it, at most `limit`, among the first ones that wait there."""
        waiting = islice(self._waiting(topic, (first_partition, 0)), _SEARCHED_MAX)
        return list(islice((each for each in waiting if each.schedule is not None), limit))

    def cancel(self, topic: str, partition: int, offset: int) -> None:
        """Cancel the record that waits at an offset. `NotPending` when none does, or when it was delivered meanwhile."""
        waiting = self._waiting_record(topic, partition, offset)
        self._cancel(TopicPartition(topic, partition), offset, waiting.settled_from)

    def reschedule(self, topic: str, partition: int, offset: int, times: Sequence[Header]) -> int:
        """Give the record that waits at an offset another time: headers as producers write them.

        It is appended anew, and its new offset is returned. It keeps its schedule id unless `times` has another one.
        `NotPending` when no record waits there, or when it was delivered meanwhile: then nothing has changed.
        """
        record, settled_from = self._waiting_record(topic, partition, offset)
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
        tp = TopicPartition(topic, partition)
        try:
            carried_to = self._carried_to(tp, offset, settled_from, moved_to)
            if carried_to is not None:
                self._cancel(tp, carried_to, carried_to + 1)
        except NotPending:
            self._write_cancel(tp, moved_to)
            raise
        return moved_to

    def _cancel(self, tp: TopicPartition, offset: int, settled_from: int) -> None:
        """Cancel a record that waited, also at the offsets to which retention has carried it meanwhile."""
        while True:
            cancelled_at = self._write_cancel(tp, offset)
            carried_to = self._carried_to(tp, offset, settled_from, cancelled_at)
            if carried_to is None:
                return
            offset, settled_from = carried_to, carried_to + 1

    def _write_cancel(self, tp: TopicPartition, offset: int) -> int:
        """Returns the offset of the cancel."""
        producer = Producer(self._cluster)
        producer.add(tp.topic, None, partition=tp.partition, headers=[Header(CANCEL, b"%d" % offset)])
        producer.flush()
        return producer.appended[0].base_offset

    def _check_enabled(self, topic: str) -> None:
        if self._admin.topic_values([topic], DELAYS_ENABLE).get(topic) != "true":
            self._admin.topic(topic)
            # A client that may not see the configuration gets that error.
            self._admin.describe_configs(ResourceType.TOPIC, topic)
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"topic {topic} has no delayed records: {DELAYS_ENABLE} is not true"
            )

    # -- what the log says -------------------------------------------------------------------------------------

    def _waiting(
        self,
        topic: str,
        place: tuple[int, int],
        value_bytes_max: int | None = None,
        fetch_bytes: int = FETCH_BYTES,
    ) -> Iterator[PendingMessage]:
        """Yields the messages that wait from a (partition, offset) on, in the order of partitions and offsets."""
        self._check_enabled(topic)
        first_partition, first_offset = place
        partitions = [
            TopicPartition(topic, each.partition)
            for each in self._cluster.partitions_of(topic)
            if each.partition >= first_partition
        ]
        starts = self._admin.start_offsets(partitions)
        ends = self._admin.end_offsets(partitions, READ_COMMITTED)
        for each in sorted(partitions):
            start = max(starts[each], first_offset if each.partition == first_partition else 0)
            for record in self._waiting_records(each, start, ends[each], fetch_bytes):
                message = _message(each.partition, record, value_bytes_max)
                if message is not None:
                    yield message

    def _waiting_record(self, topic: str, partition: int, offset: int) -> _Waiting:
        """The record that waits at an offset. `NotPending` when none does."""
        self._check_enabled(topic)
        tp = TopicPartition(topic, partition)
        start_offset = self._admin.start_offsets([tp])[tp]
        end_offset = self._admin.end_offsets([tp], READ_COMMITTED)[tp]
        if start_offset <= offset < end_offset:
            for record in self._waiting_records(tp, offset, offset + 1, _PAGE_BYTES_MIN):
                if record.offset == offset:
                    return _Waiting(record, max(offset + 1, end_offset))
        raise NotPending(f"no record waits at offset {offset} of {topic}-{partition}")

    def _waiting_records(
        self, tp: TopicPartition, start_offset: int, end_offset: int, fetch_bytes: int
    ) -> Iterator[Record]:
        level = READ_COMMITTED | READ_WAITING
        for header, batch in self._batches(tp, start_offset, end_offset, level, fetch_bytes):
            for record in delay_records(batch, header):
                if start_offset <= record.offset < end_offset:
                    yield record

    def _carried_to(
        self, tp: TopicPartition, offset: int, settled_from: int, before_offset: int
    ) -> int | None:
        """The offset to which retention has carried the record, if it has, before another offset.

        `NotPending` when its last copy stands there. A schedule goes on after others.
        """
        level = READ_UNCOMMITTED | READ_HIDDEN
        for header, batch in self._batches(tp, settled_from, before_offset, level):
            for record in delay_records(batch, header):
                meaning = meaning_of(record)
                if record.offset >= before_offset or not isinstance(meaning, Carried | Copy):
                    continue
                if meaning.pending_offset != offset:
                    continue
                if isinstance(meaning, Carried):
                    return record.offset
                if meaning.next_due_ms is None:
                    raise NotPending(f"the record at offset {offset} of {tp} was delivered meanwhile")
        return None

    def _batches(
        self,
        tp: TopicPartition,
        start_offset: int,
        end_offset: int,
        isolation_level: int,
        fetch_bytes: int = FETCH_BYTES,
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        if start_offset >= end_offset:
            return
        for answer in fetch_range(
            self._cluster,
            tp,
            start_offset,
            end_offset,
            isolation_level=isolation_level,
            fetch_bytes=fetch_bytes,
        ):
            yield from answer.batches


def _due(message: PendingMessage) -> tuple[int, int, int]:
    return message.due_ms, message.partition, message.offset


def _message(partition: int, record: Record, value_bytes_max: int | None) -> PendingMessage | None:
    """A record that waits, as it is listed; None for one that does not say when it is due."""
    meaning = meaning_of(record)
    if isinstance(meaning, Carried):
        meaning = meaning.delayed
    if not isinstance(meaning, Delayed):
        return None
    texts = {
        each.key: (each.value or b"").decode(errors="replace")
        for each in record.headers
        if each.key in (SCHEDULE_ID, SCHEDULE, TIME_ZONE, NEXT_DUE)
    }
    schedule = texts.get(SCHEDULE)
    value = record.value
    return PendingMessage(
        partition,
        record.offset,
        # A record in the log states its first time only; the leader adds when its schedule fires next.
        int(texts[NEXT_DUE]) if NEXT_DUE in texts else meaning.due_ms,
        record.key,
        value if value is None else value[:value_bytes_max],
        texts.get(SCHEDULE_ID),
        schedule,
        None if schedule is None else texts.get(TIME_ZONE, "UTC"),
        len(value or b""),
    )
