"""Writes transaction markers to the partitions that this broker leads.

Markers come from transaction coordinators, this broker's own among them, and from an administrator who ends a transaction
that no coordinator knows any more. Each partition is answered when its marker is committed. Markers of
`__consumer_offsets` go through the group coordinator, so that it and the log agree on which offsets take effect.

A coordinator repeats a request that was not answered in time, and the first one may still arrive: after the transaction
is complete, and the producer has begun the next one. That must not end with an old marker (failure 7). A coordinator
therefore numbers its ends and names the leader epoch. A leader writes each number once, and refuses markers for an
earlier leader epoch, since it does not know what the leader of that epoch has written.

A long request is written in slices, between which the loop has turns for other connections.
"""

from __future__ import annotations

import asyncio
from itertools import repeat

from tidemill.broker.clock import Clock
from tidemill.broker.coordinators.groups import GroupCoordinators
from tidemill.broker.partitions.replicas import Replicas
from tidemill.errors import ApiError, ErrorCode
from tidemill.internal_topics import OFFSETS_TOPIC
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.api.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidemill.types import TopicPartition

_COMMIT_S_MAX = 30.0
# Errors of a group coordinator that a transaction coordinator does not know: the partition is not ready yet.
_NOT_READY = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)

# How many markers are written in one turn of the loop.
_WRITTEN_AT_ONCE = 16

# A marker that is refused at once has its error here.
_Written = ErrorCode | asyncio.Future[ErrorCode]


class MarkerWriter:
    def __init__(self, replicas: Replicas, groups: GroupCoordinators, clock: Clock) -> None:
        self._replicas = replicas
        self._groups = groups
        self._clock = clock

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Writes all markers. The response comes when they are committed, or refused, or late."""
        written: dict[int, dict[TopicPartition, _Written]] = {}
        writes = 0
        for marker in request.markers:
            end = _end_of(marker)
            for tp, leader_epoch in _addressed(marker).items():
                written.setdefault(marker.producer_id, {})[tp] = self._write(tp, end, leader_epoch)
                writes += 1
                if writes % _WRITTEN_AT_ONCE == 0:
                    await asyncio.sleep(0)
        waiting = [
            future
            for futures in written.values()
            for future in futures.values()
            if isinstance(future, asyncio.Future)
        ]
        if waiting:
            await asyncio.wait(waiting, timeout=_COMMIT_S_MAX)
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(producer_id=producer_id, topics=_results(futures))
                for producer_id, futures in written.items()
            ]
        )

    def _write(self, tp: TopicPartition, end: TransactionEnd, leader_epoch: int | None) -> _Written:
        if end.producer_id < 0:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        partition, _ = self._replicas.find((tp.topic, tp.partition))
        if partition is None or partition.log is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if leader_epoch is not None and leader_epoch != partition.leadership.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if tp.topic == OFFSETS_TOPIC:
            return asyncio.ensure_future(self._end_in_groups(tp.partition, end))
        written: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def settled(code: ErrorCode) -> None:
            if not written.done():
                written.set_result(code)

        try:
            end_offset = partition.appender.append_marker(end, self._clock.wall_ms())
            partition.leadership.when_committed(end_offset, settled)
        except ApiError as error:
            return error.code
        return written

    async def _end_in_groups(self, index: int, end: TransactionEnd) -> ErrorCode:
        try:
            await self._groups.end_transaction(index, end)
        except ApiError as error:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER if error.code in _NOT_READY else error.code
        return ErrorCode.NONE


def _addressed(marker: WritableTxnMarker) -> dict[TopicPartition, int | None]:
    """The partitions of a marker, each once however often it is named.

    With each is the leader epoch that the marker is addressed to; None where the sender names none.
    """
    addressed: dict[TopicPartition, int | None] = {}
    for topic in marker.topics:
        indexes, epochs = topic.partition_indexes, topic.leader_epochs
        named = zip(indexes, epochs if len(epochs) == len(indexes) else repeat(None), strict=False)
        addressed.update((TopicPartition(topic.name, index), epoch) for index, epoch in named)
    return addressed


def _end_of(marker: WritableTxnMarker) -> TransactionEnd:
    return TransactionEnd(
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        marker.transaction_result,
        marker.transaction_version,
        marker.ordinal,
    )


def _results(futures: dict[TopicPartition, _Written]) -> list[WritableTxnMarkerTopicResult]:
    topics: dict[str, WritableTxnMarkerTopicResult] = {}
    for tp, written in futures.items():
        if isinstance(written, asyncio.Future):
            code = written.result() if written.done() else ErrorCode.REQUEST_TIMED_OUT
        else:
            code = written
        topics.setdefault(tp.topic, WritableTxnMarkerTopicResult(name=tp.topic)).partitions.append(
            WritableTxnMarkerPartitionResult(partition_index=tp.partition, error_code=code)
        )
    return list(topics.values())
