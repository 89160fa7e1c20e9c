"""Writes transaction markers to partitions, and describes the producers of a partition.

Markers come from transaction coordinators, and from administrators who abort a transaction that no coordinator has any
more. A partition's result is sent when its marker is committed. Markers of `__consumer_offsets` go through the group
coordinator, so that its state and the log agree on which offsets take effect.

Versions, and what each one changed:

    WriteTxnMarkers (27), from 1 (KIP-98)
       2  transaction version (KIP-1228)
    DescribeProducers (61), from 0 (KIP-664)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidemill.broker.partitions.partition import Partition
from tidemill.broker.requests.dispatch import Call, serves
from tidemill.controller.topic_names import check_topic_name
from tidemill.errors import ApiError, ErrorCode
from tidemill.internal_topics import OFFSETS_TOPIC
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.api.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.broker.requests.context import Broker

_COMMIT_S_MAX = 30.0
# What a transaction coordinator does not expect to hear: the partition is not ready for it yet.
_NOT_READY = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)

_Written = asyncio.Future[ErrorCode]


@serves(WriteTxnMarkersRequest, independent_since=WriteTxnMarkersRequest.versions.min)
async def write_txn_markers(
    broker: Broker, call: Call, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    return await write_markers(broker, request)


async def write_markers(broker: Broker, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """Write every marker now; the answer comes when they are committed, or refused, or late."""
    written: dict[int, dict[TopicPartition, _Written]] = {}
    for marker in request.markers:
        end = _end_of(marker)
        for topic in marker.topics:
            for index in topic.partition_indexes:
                tp = TopicPartition(topic.name, index)
                written.setdefault(marker.producer_id, {})[tp] = _write(broker, tp, end)
    waiting = [future for futures in written.values() for future in futures.values()]
    if waiting:
        await asyncio.wait(waiting, timeout=_COMMIT_S_MAX)
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(producer_id=producer_id, topics=_results(futures))
            for producer_id, futures in written.items()
        ]
    )


def _end_of(marker: WritableTxnMarker) -> TransactionEnd:
    return TransactionEnd(
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        marker.transaction_result,
        marker.transaction_version,
    )


def _write(broker: Broker, tp: TopicPartition, end: TransactionEnd) -> _Written:
    written: _Written = broker.loop.create_future()
    if end.producer_id < 0:
        written.set_result(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return written
    partition, _ = broker.replicas.find((tp.topic, tp.partition))
    if partition is None or partition.log is None:
        written.set_result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return written
    if tp.topic == OFFSETS_TOPIC:
        return asyncio.ensure_future(_end_in_groups(broker, tp.partition, end))

    def settled(code: ErrorCode) -> None:
        if not written.done():
            written.set_result(code)

    try:
        end_offset = partition.appender.append_marker(end, broker.clock.now_ms())
        partition.leadership.when_committed(end_offset, settled)
    except ApiError as error:
        settled(error.code)
    return written


async def _end_in_groups(broker: Broker, index: int, end: TransactionEnd) -> ErrorCode:
    try:
        await broker.groups.end_transaction(index, end)
    except ApiError as error:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if error.code in _NOT_READY else error.code
    return ErrorCode.NONE


def _results(futures: dict[TopicPartition, _Written]) -> list[WritableTxnMarkerTopicResult]:
    topics: dict[str, WritableTxnMarkerTopicResult] = {}
    for tp, written in futures.items():
        code = written.result() if written.done() else ErrorCode.REQUEST_TIMED_OUT
        topics.setdefault(tp.topic, WritableTxnMarkerTopicResult(name=tp.topic)).partitions.append(
            WritableTxnMarkerPartitionResult(partition_index=tp.partition, error_code=code)
        )
    return list(topics.values())


@serves(DescribeProducersRequest)
def describe_producers(
    broker: Broker, call: Call, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    # Each partition once, however often it is named.
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return DescribeProducersResponse(
        topics=[
            TopicResponse(name=name, partitions=[_producers_of(broker, name, index) for index in indexes])
            for name, indexes in wanted.items()
        ]
    )


def _producers_of(broker: Broker, topic: str, index: int) -> PartitionResponse:
    partition, error = broker.replicas.find((topic, index))
    if partition is None and topic not in broker.image.topics_by_name:
        message = error.message
        try:
            check_topic_name(topic)
        except ApiError as invalid:
            error, message = invalid.code, invalid.message
        return PartitionResponse(partition_index=index, error_code=error, error_message=message)
    if partition is None:
        return PartitionResponse(partition_index=index, error_code=error)
    if partition.log is None:
        return PartitionResponse(partition_index=index, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    return PartitionResponse(partition_index=index, active_producers=_active_producers(partition))


def _active_producers(partition: Partition) -> list[ProducerState]:
    assert partition.log is not None
    return [
        ProducerState(
            producer_id=state.producer_id,
            producer_epoch=state.epoch,
            last_sequence=state.last_sequence,
            last_timestamp=state.last_timestamp,
            coordinator_epoch=state.coordinator_epoch,
            current_txn_start_offset=state.txn_first_offset,
        )
        for state in partition.log.producers.states()
    ]
