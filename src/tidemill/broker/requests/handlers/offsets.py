"""Looks up offsets by timestamp and by leader epoch, and deletes records.

The leader answers. Consumers see offsets up to the high watermark, or up to the last stable offset with `read_committed`.
Replicas see the whole log; a debugging client (replica id -2) may query any replica. A new leader answers
OFFSET_NOT_AVAILABLE until its followers have fetched. DeleteRecords completes when every live replica has dropped the
records.

A short search for a timestamp runs at once, as nearly all do; a long one runs in steps beside other requests.

Versions, and what each one changed:

    ListOffsets (2), from 1 (KIP-79)
       2  isolation level (KIP-98)
       3  a throttled client waits by itself (KIP-219)
       4  leader epochs (KIP-320)
       5  the error OFFSET_NOT_AVAILABLE (KIP-207)
       6  flexible (KIP-482)
       7  timestamp -3: the record with the largest timestamp (KIP-734)
       8  timestamp -4: the earliest local offset (KIP-405)
       9  timestamp -5: the latest tiered offset (KIP-1005)
      10  timeout (KIP-1075)
      11  timestamp -6: the earliest offset that is not uploaded (KIP-1023)
    DeleteRecords (21), from 0 (KIP-107)
       1  a throttled client waits by itself (KIP-219)
       2  flexible (KIP-482)
    OffsetForLeaderEpoch (23), from 2 (KIP-320)
       3  replica id (KIP-392)
       4  flexible (KIP-482)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from tidemill.broker.partitions.partition import Partition
from tidemill.broker.requests.api_table import serves
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.pieces import Entries, Inner
from tidemill.errors import ErrorCode, ProtocolError, StorageError
from tidemill.log.log import Log
from tidemill.log.time_search import LogChanged, TimestampedOffset, search_newest, search_time
from tidemill.protocol.api.data import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from tidemill.protocol.compression import DecompressionFailed
from tidemill.protocol.steps import NotAtOnce, Steps, run_first_step

_LATEST = -1
_EARLIEST = -2
_MAX_TIMESTAMP = -3
_EARLIEST_LOCAL = -4
_LATEST_TIERED = -5
_EARLIEST_PENDING_UPLOAD = -6
# The version that introduced each of the special timestamps.
_SPECIAL_SINCE = {
    _LATEST: 0,
    _EARLIEST: 0,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}
_NO_VERSION = 1 << 15
_HIGH_WATERMARK = -1
_READ_COMMITTED = 1
_CONSUMER = -1
_DEBUGGER = -2
_OFFSET_NOT_AVAILABLE_SINCE = 5


# How a log is searched for a timestamp, or for the newest record.
_SearchLog = Callable[[Log, int], TimestampedOffset | None]


@serves(
    ListOffsetsRequest,
    entries=Entries(
        "topics",
        "topics",
        key=lambda topic: topic.name,
        inner=Inner("partitions", "partitions", lambda wanted: wanted.partition_index),
    ),
)
def list_offsets(
    broker: Broker, call: Call, request: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    counts = Counter(
        (topic.name, wanted.partition_index) for topic in request.topics for wanted in topic.partitions
    )
    response = ListOffsetsResponse()
    later: list[_Later] = []
    for topic in request.topics:
        answers: list[ListOffsetsPartitionResponse] = []
        for wanted in {wanted.partition_index: wanted for wanted in topic.partitions}.values():
            answer = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
            if counts[topic.name, wanted.partition_index] > 1:
                answer.error_code = ErrorCode.INVALID_REQUEST
            else:
                try:
                    _list_offset(broker, call.version, topic.name, wanted, request, answer)
                except NotAtOnce:
                    later.append(_Later(topic.name, wanted, answer))
            answers.append(answer)
        response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return _search_later(broker, call.version, request, response, later) if later else response


class _Later(NamedTuple):
    topic: str
    wanted: ListOffsetsPartition
    answer: ListOffsetsPartitionResponse


async def _search_later(
    broker: Broker,
    version: int,
    request: ListOffsetsRequest,
    response: ListOffsetsResponse,
    later: Sequence[_Later],
) -> ListOffsetsResponse:
    for topic, wanted, answer in later:
        search = await _searched(broker, topic, wanted)
        # All is checked anew: the search took its time.
        _list_offset(broker, version, topic, wanted, request, answer, search)
    return response


async def _searched(broker: Broker, topic: str, wanted: ListOffsetsPartition) -> _SearchLog:
    """Search in the background of other requests. Returns what then gives the outcome."""
    found: TimestampedOffset | None = None
    failure: Exception | None = None
    while True:
        partition, _, _ = broker.replicas.find_readable((topic, wanted.partition_index))
        log = partition.log if partition is not None else None
        if log is None:
            break
        try:
            found = await broker.replicas.long_work.run(partial(_search, log, wanted.timestamp))
        except LogChanged:
            continue
        except (StorageError, ProtocolError) as error:
            failure = error
        break

    def outcome(_log: Log, _timestamp: int) -> TimestampedOffset | None:
        if failure is not None:
            raise failure
        return found

    return outcome


def _search(log: Log, timestamp: int) -> Steps[TimestampedOffset | None]:
    return search_newest(log) if timestamp == _MAX_TIMESTAMP else search_time(log, timestamp)


def _search_at_once(log: Log, timestamp: int) -> TimestampedOffset | None:
    return run_first_step(_search(log, timestamp))


def _list_offset(
    broker: Broker,
    version: int,
    topic: str,
    wanted: ListOffsetsPartition,
    request: ListOffsetsRequest,
    answer: ListOffsetsPartitionResponse,
    search: _SearchLog = _search_at_once,
) -> None:
    """Fill in the answer; `NotAtOnce` when the search takes longer."""
    replica_id = request.replica_id
    partition, _, error = broker.replicas.find_readable((topic, wanted.partition_index))
    if partition is not None:
        error = partition.check_leader_epoch(wanted.current_leader_epoch)
        if not error and not partition.is_leader and replica_id != _DEBUGGER and partition.log is not None:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    if not error and wanted.timestamp < 0 and version < _SPECIAL_SINCE.get(wanted.timestamp, _NO_VERSION):
        error = ErrorCode.UNSUPPORTED_VERSION
    if not error and partition is not None and partition.log is None:
        error = ErrorCode.KAFKA_STORAGE_ERROR
    if error or partition is None or partition.log is None:
        answer.error_code = error
        return
    is_consumer = replica_id == _CONSUMER
    end_offset = partition.log.log_end_offset
    if is_consumer:
        is_committed = request.isolation_level == _READ_COMMITTED
        end_offset = partition.last_stable_offset if is_committed else partition.high_watermark
    try:
        found = _offset_at(partition, partition.log, wanted.timestamp, end_offset, is_consumer, search)
    except _NotKnownYet:
        is_new = version >= _OFFSET_NOT_AVAILABLE_SINCE
        answer.error_code = ErrorCode.OFFSET_NOT_AVAILABLE if is_new else ErrorCode.LEADER_NOT_AVAILABLE
    except StorageError as failure:
        broker.replicas.report_damage(partition, str(failure))
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    except ProtocolError as failure:
        broker.replicas.report_undecodable(partition, str(failure))
        answer.error_code = _undecodable(failure)
    else:
        if found is not None:
            answer.timestamp, answer.offset, answer.leader_epoch = found


def _undecodable(failure: ProtocolError) -> ErrorCode:
    """As Kafka: only what was decompressed can be an invalid record."""
    if isinstance(failure, DecompressionFailed):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.INVALID_RECORD


class _NotKnownYet(Exception):
    """The leader is new and has not heard from those in sync: what was committed before it is not known here."""


def _offset_at(
    partition: Partition,
    log: Log,
    timestamp: int,
    end_offset: int,
    is_consumer: bool,
    search: _SearchLog,
) -> TimestampedOffset | None:
    if timestamp == _LATEST:
        if is_consumer and partition.leadership.is_high_watermark_behind:
            raise _NotKnownYet
        return TimestampedOffset(-1, end_offset, partition.leader_epoch)
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        start = log.log_start_offset
        epoch = log.epochs.epoch_of(start) if start < log.log_end_offset else partition.leader_epoch
        return TimestampedOffset(-1, start, epoch)
    if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return None  # nothing is tiered
    found = search(log, timestamp)
    if found is not None and found.offset >= end_offset:
        if is_consumer and partition.leadership.is_high_watermark_behind:
            raise _NotKnownYet
        return None
    return found


@serves(DeleteRecordsRequest)
async def delete_records(broker: Broker, call: Call, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse()
    waiting: list[tuple[DeleteRecordsPartitionResult, asyncio.Future[ErrorCode]]] = []
    for topic in request.topics:
        results = []
        for wanted in topic.partitions:
            partition, error = broker.replicas.find((topic.name, wanted.partition_index))
            result = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=-1)
            if partition is not None:
                error = _delete_before(broker, partition, wanted.offset)
                if not error and partition.log is not None:
                    result.low_watermark = partition.log.log_start_offset
                    waiting.append((result, _deleted_everywhere(broker, partition, result.low_watermark)))
            result.error_code = error
            results.append(result)
        response.topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    if waiting:
        # What was deleted on request must not come back with a crash.
        await broker.replicas.checkpoint()
        await asyncio.wait([deleted for _, deleted in waiting], timeout=request.timeout_ms / 1000)
    for result, deleted in waiting:
        result.error_code = deleted.result() if deleted.done() else ErrorCode.REQUEST_TIMED_OUT
        if result.error_code:
            result.low_watermark = -1
    return response


def _delete_before(broker: Broker, partition: Partition, offset: int) -> ErrorCode:
    if partition.log is None:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if not partition.is_leader:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if "delete" not in partition.config.cleanup_policy:
        return ErrorCode.POLICY_VIOLATION
    if offset == _HIGH_WATERMARK:
        offset = partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    broker.replicas.move_start(partition, offset)
    return ErrorCode.NONE


def _deleted_everywhere(broker: Broker, partition: Partition, offset: int) -> asyncio.Future[ErrorCode]:
    future: asyncio.Future[ErrorCode] = broker.loop.create_future()

    def settled(code: ErrorCode) -> None:
        if not future.done():
            future.set_result(code)

    partition.leadership.when_deleted(offset, settled)
    return future


@serves(
    OffsetForLeaderEpochRequest,
    entries=Entries(
        "topics",
        "topics",
        key=lambda topic: topic.topic,
        piece_size=64,
        inner=Inner("partitions", "partitions"),
    ),
)
def offset_for_leader_epoch(
    broker: Broker, call: Call, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_epoch_end(broker, topic.topic, wanted) for wanted in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _epoch_end(broker: Broker, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=wanted.partition)
    partition, _, error = broker.replicas.find_readable((topic, wanted.partition))
    if partition is not None:
        error = partition.check_leader_epoch(wanted.current_leader_epoch)
        if not error and partition.log is None:
            error = ErrorCode.KAFKA_STORAGE_ERROR
        if not error and not partition.is_leader:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    if error or partition is None or partition.log is None:
        answer.error_code = error
        return answer
    log = partition.log
    if wanted.leader_epoch == partition.leader_epoch:
        answer.leader_epoch, answer.end_offset = partition.leader_epoch, log.log_end_offset
    elif wanted.leader_epoch < -1:
        # As Kafka: below every epoch, so nothing is shared from the start of the log on.
        answer.leader_epoch, answer.end_offset = wanted.leader_epoch, log.log_start_offset
    else:
        answer.leader_epoch, answer.end_offset = log.epochs.end_offset_of(
            wanted.leader_epoch, log.log_end_offset
        )
    return answer
