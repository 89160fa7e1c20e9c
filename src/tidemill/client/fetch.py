"""The raw batches of one range of one partition's offsets, as fast as a connection gives them.

`fetch_range` owns a connection to the leader, and is done with it when it ends, fails or is closed. One request is
always under way. As soon as the headers of a response's batches show where the next one begins, that is requested. So
the broker's response fills the socket while the caller decodes. There is no thread. Records are never copied: what a
caller gets are views into the buffer that the socket filled, and a buffer is used again when no view of it is left.

The caller gets whole batches with a right CRC-32C, in order, from the one that holds `start_offset` to the one that
holds the last offset before `end_offset`. The first and the last may hold records outside of the range. Control batches
are left out, and with `read_committed` those of aborted transactions. `next_offset` passes over all that was left out.

When the leader moves or its connection breaks, the range goes on from where it was, by the rules of `Cluster.retrying`.
What ends it with an error:

    OffsetsLost        retention or DeleteRecords took offsets of the range before they were read
    LogTruncated       the partition does not hold what was read before (an unclean election), or ends below the position
    TopicReplaced      the topic was deleted; the one that now has its name is another
    OffsetsNotReached  the end of the range did not become readable within the cluster's timeout
    ProtocolError      what arrived is not what a broker sends, or is damaged

Brokers older than Kafka 3.1, which do not know topics by id, are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tidemill.client.cluster import Cluster, known_code
from tidemill.client.connections.connection import Connection
from tidemill.client.offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, list_offsets
from tidemill.errors import ApiError, ErrorCode, ProtocolError, TidemillError
from tidemill.protocol import wire
from tidemill.protocol.api.data import FetchPartition, FetchRequest, FetchTopic
from tidemill.protocol.fetch import WALKED_SINCE, FetchedRecords, walk_fetched
from tidemill.protocol.isolation import READ_COMMITTED, READ_UNCOMMITTED, AbortedBatches
from tidemill.protocol.records import (
    CONTROL,
    HEADER_SIZE,
    LENGTH_PREFIX,
    BatchHeader,
    Record,
    checksum_matches,
    header_at,
    is_plausible,
    iterate_records,
)
from tidemill.types import TopicPartition, uuid_text

FETCH_BYTES = 4 * 1024 * 1024
# How long the broker may wait for the first new record before it answers with none.
MAX_WAIT_MS = 500
_CORRELATION_BYTES = 4
# What an answer is beside its records, more or less; a larger one gets a larger buffer.
_ANSWER_OVERHEAD_BYTES = 64 * 1024
# The one that is being filled, the one that the caller decodes and the one that it is done with any moment.
_BUFFER_COUNT = 3
_NO_EPOCH = -1

Batch = tuple[BatchHeader, memoryview]


class OffsetsLost(TidemillError):
    """Offsets from `first_offset` up to but not including `end_offset` are gone."""

    def __init__(
        self, partition: TopicPartition, first_offset: int, end_offset: int, log_start_offset: int
    ) -> None:
        super().__init__(
            f"{partition}: offsets {first_offset} to {end_offset - 1} were deleted before they were read; "
            f"the log now begins at offset {log_start_offset} (read sooner, or raise retention.ms or "
            "retention.bytes of the topic)"
        )
        self.partition = partition
        self.first_offset = first_offset
        self.end_offset = end_offset


class LogTruncated(TidemillError):
    """The leader's log does not continue what was read, or ends before it."""


class TopicReplaced(TidemillError):
    """A topic of the same name, but not the same topic."""


class OffsetsNotReached(TidemillError):
    """The end of the range lies above what can be read, and stayed there."""


class RangeAnswer(NamedTuple):
    batches: list[Batch]
    # Where the next answer begins; at last `end_offset`.
    next_offset: int


def fetch_range(
    cluster: Cluster,
    partition: TopicPartition,
    start_offset: int,
    end_offset: int,
    *,
    isolation_level: int = READ_UNCOMMITTED,
    fetch_bytes: int = FETCH_BYTES,
) -> Iterator[RangeAnswer]:
    """The batches of [start_offset, end_offset), an answer of about `fetch_bytes` at a time."""
    reader = _RangeReader(cluster, partition, start_offset, end_offset, isolation_level, fetch_bytes)
    try:
        while reader.position < end_offset:
            yield reader.next_answer()
    finally:
        reader.close()


def whole_batches(data: memoryview) -> list[Batch]:
    """The batches of an answer, unchecked but for their headers; a last one that is cut off is left out."""
    batches = []
    position, end = 0, len(data)
    while end - position >= HEADER_SIZE:
        header = header_at(data, position)
        if not is_plausible(header):
            raise ProtocolError(f"what follows offset {header.base_offset} is not a record batch")
        following = position + header.batch_length + LENGTH_PREFIX
        if following > end:
            break
        batches.append((header, data[position:following]))
        position = following
    return batches


def shown_batches(batches: Iterable[Batch], aborted: Sequence[tuple[int, int]]) -> Iterator[Batch]:
    """Yields the batches that hold records for a reader.

    `aborted` has (producer id, first offset) of aborted transactions.
    """
    hidden = AbortedBatches(aborted) if aborted else None
    for each in batches:
        header, batch = each
        if not checksum_matches(batch, header):
            raise ProtocolError(
                f"the batch at offset {header.base_offset} is damaged: its CRC-32C does not match"
            )
        if hidden is not None and hidden.includes(batch, header):
            continue
        if not header.attributes & CONTROL:
            yield each


def decoded(partition: TopicPartition, header: BatchHeader, batch: memoryview) -> Iterator[Record]:
    """The records of a batch whose checksum is right; `ProtocolError` names the place where they do not decode."""
    try:
        yield from iterate_records(batch, header)
    except ProtocolError as error:
        raise ProtocolError(
            f"{partition}: the batch at offset {header.base_offset} was encoded wrongly by its producer "
            f"({error}); what follows it begins at offset {header.next_offset}"
        ) from error


class _Buffers:
    """Buffers for answers; one is used again as soon as no view of it is left."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: list[bytearray] = []

    def allocate(self, size: int) -> bytearray:
        for index, kept in enumerate(self._kept):
            if len(kept) >= size and _is_free(kept):
                # To the end: what was given last is the last to be free again.
                self._kept.append(self._kept.pop(index))
                return kept
        fresh = bytearray(max(size, self._size))
        self._kept = [*self._kept[1 - _BUFFER_COUNT :], fresh]
        return fresh


def _is_free(buffer: bytearray) -> bool:
    """A bytearray refuses to change its size while a view of it exists."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True


class _RangeReader:
    """One range's position, connection and request under way."""

    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        start_offset: int,
        end_offset: int,
        isolation_level: int,
        fetch_bytes: int,
    ) -> None:
        self.position = start_offset
        self._cluster = cluster
        self._partition = partition
        self._end_offset = end_offset
        self._isolation_level = isolation_level
        self._fetch_bytes = fetch_bytes
        self._buffers = _Buffers(fetch_bytes + _ANSWER_OVERHEAD_BYTES)
        self._connection: Connection | None = None
        self._version = 0
        # Of the request under way; None when there is none.
        self._correlation_id: int | None = None
        self._topic_id: bytes | None = None
        self._leader_epoch = _NO_EPOCH
        # Of the last batch that was read: by it a leader notices that its log has another history.
        self._last_fetched_epoch = _NO_EPOCH

    def close(self) -> None:
        self._correlation_id = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def next_answer(self) -> RangeAnswer:
        """The next batches, waiting for them as long as the cluster's timeout allows."""
        deadline = self._cluster.clock() + self._cluster.timeout_s
        while True:
            answer, fetched = self._cluster.retrying(self._attempt)
            if answer.next_offset > self.position:
                self.position = answer.next_offset
                return answer
            if self._cluster.clock() > deadline:
                raise self._not_reached(fetched)

    def _attempt(self) -> tuple[RangeAnswer, FetchedRecords]:
        try:
            if self._connection is None:
                self._connect()
            if self._correlation_id is None:
                self._ask(self.position, self._last_fetched_epoch)
            return self._take()
        except BaseException:
            # Whatever went wrong: the next attempt begins with a connection to the leader of that time.
            self.close()
            raise

    def _connect(self) -> None:
        topic = self._cluster.topic(self._partition.topic)
        if self._topic_id is None:
            self._topic_id = topic.topic_id
        elif self._topic_id != topic.topic_id:
            raise TopicReplaced(
                f"{self._partition}: topic {self._partition.topic} was deleted and created again while it was read: "
                f"its id was {uuid_text(self._topic_id)} and is {uuid_text(topic.topic_id)} "
                "(offsets of the old topic mean nothing in the new one; start again without them)"
            )
        self._connection = connection = self._cluster.open_leader(self._partition)
        self._leader_epoch = next(
            each.leader_epoch
            for each in topic.partitions
            if each.partition_index == self._partition.partition
        )
        self._version = connection.version_of(FetchRequest)
        if self._version < WALKED_SINCE:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{connection.address} offers Fetch up to version {self._version}, needed is {WALKED_SINCE} "
                "(Apache Kafka 3.1 or newer)",
            )

    def _ask(self, offset: int, last_fetched_epoch: int) -> None:
        assert self._connection is not None
        assert self._topic_id is not None
        wanted = FetchPartition(
            partition=self._partition.partition,
            current_leader_epoch=self._leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_fetched_epoch,
            partition_max_bytes=self._fetch_bytes,
        )
        message = FetchRequest(
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            isolation_level=self._isolation_level,
            topics=[FetchTopic(topic_id=self._topic_id, partitions=[wanted])],
        )
        self._correlation_id = self._connection.post(message, self._version)

    def _take(self) -> tuple[RangeAnswer, FetchedRecords]:
        assert self._connection is not None
        assert self._correlation_id is not None
        frame = self._connection.take(
            self._correlation_id, wait_s=MAX_WAIT_MS / 1000, allocate=self._buffers.allocate
        )
        self._correlation_id = None
        body = frame[wire.skip_tagged_fields(frame, _CORRELATION_BYTES) :]
        fetched = self._checked(body)
        batches = whole_batches(fetched.records)
        if fetched.records and not batches:
            raise ProtocolError(
                f"{self._partition}: an answer of {len(fetched.records)} bytes has no whole batch"
            )
        next_offset, epoch = self.position, self._last_fetched_epoch
        if batches:
            last = batches[-1][0]
            next_offset, epoch = min(max(last.next_offset, next_offset), self._end_offset), last.leader_epoch
        if next_offset < self._end_offset:
            self._ask(next_offset, epoch)
        within = (each for each in batches if each[0].base_offset < self._end_offset)
        answer = RangeAnswer(list(shown_batches(within, fetched.aborted)), next_offset)
        self._last_fetched_epoch = epoch
        return answer, fetched

    # --- what else a leader may answer ---

    def _checked(self, body: memoryview) -> FetchedRecords:
        walk = walk_fetched(body, self._version)
        answered = [] if walk.error_code else list(walk.partitions)
        error_code = walk.error_code
        if not error_code:
            if len(answered) != 1 or answered[0].partition != self._partition.partition:
                raise ProtocolError(
                    f"{self._partition}: an answer about {len(answered)} partitions to one question"
                )
            error_code = answered[0].error_code
        if error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._explain_out_of_range()
        if error_code:
            code = known_code(error_code)
            raise ApiError(code, f"{self._partition}: {code.message}")
        (fetched,) = answered
        if fetched.diverging is not None:
            raise LogTruncated(
                f"{self._partition}: the log was truncated below offset {self.position} after that was read: its "
                f"leader's records of epoch {fetched.diverging[0]} end at offset {fetched.diverging[1]} "
                "(an unclean leader election loses records; read again from that offset)"
            )
        return fetched

    def _explain_out_of_range(self) -> None:
        """Raises OffsetsLost or LogTruncated; otherwise a retriable ApiError, because the offset is in range again."""
        log_start_offset = self._offset_at(EARLIEST_TIMESTAMP)
        if self.position < log_start_offset:
            lost_end = min(log_start_offset, self._end_offset)
            raise OffsetsLost(self._partition, self.position, lost_end, log_start_offset)
        log_end_offset = self._offset_at(LATEST_TIMESTAMP)
        if self.position > log_end_offset:
            raise LogTruncated(
                f"{self._partition}: offset {self.position} is above the end of the log, {log_end_offset} "
                "(was the topic created again, or did an unclean leader election lose records?)"
            )
        # An epoch that the leader does not remember is answered with the same code.
        self._last_fetched_epoch = _NO_EPOCH
        raise ApiError(
            ErrorCode.LEADER_NOT_AVAILABLE, f"{self._partition}: no leader has offset {self.position} now"
        )

    def _offset_at(self, timestamp_ms: int) -> int:
        return list_offsets(self._cluster, {self._partition: timestamp_ms})[self._partition].offset

    def _not_reached(self, fetched: FetchedRecords) -> OffsetsNotReached:
        reason = "records up to there are not written or not replicated yet"
        readable = fetched.high_watermark
        if self._isolation_level & READ_COMMITTED and fetched.last_stable_offset < fetched.high_watermark:
            readable, reason = fetched.last_stable_offset, "a transaction is still open there"
        return OffsetsNotReached(
            f"{self._partition}: offset {self._end_offset} was not reached within {self._cluster.timeout_s:g} s: "
            f"the log can be read up to offset {readable}, {reason}"
        )
