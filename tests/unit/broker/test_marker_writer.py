"""Long requests for transaction markers leave turns of the loop to others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from tidemill.broker.coordinators.marker_writer import MarkerWriter
from tidemill.errors import ErrorCode
from tidemill.protocol.api.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

MARKERS = 500
AT_ONCE_MAX = 16


class NoPartitions:
    """Replicas of a broker without partitions, which counts the searches since the last turn of another task."""

    def __init__(self) -> None:
        self.searched = 0
        self.in_one_turn_max = 0

    def find(self, tp: tuple[str, int]) -> tuple[None, ErrorCode]:
        self.searched += 1
        self.in_one_turn_max = max(self.in_one_turn_max, self.searched)
        return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def turns(self) -> None:
        while True:
            self.searched = 0
            await asyncio.sleep(0)


async def _write(*markers: WritableTxnMarker) -> tuple[NoPartitions, list[tuple[int, str, int, int]]]:
    replicas = NoPartitions()
    writer = MarkerWriter(cast(Any, replicas), cast(Any, None), cast(Any, SimpleNamespace(wall_ms=lambda: 0)))
    others = asyncio.ensure_future(replicas.turns())
    response = await writer.write(WriteTxnMarkersRequest(markers=list(markers)))
    others.cancel()
    return replicas, [
        (result.producer_id, topic.name, each.partition_index, each.error_code)
        for result in response.markers
        for topic in result.topics
        for each in topic.partitions
    ]


def _marker(producer_id: int, *partitions: int) -> WritableTxnMarker:
    topic = WritableTxnMarkerTopic(name="orders", partition_indexes=list(partitions))
    return WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=0,
        transaction_result=True,
        coordinator_epoch=0,
        topics=[topic],
    )


async def test_many_markers_leave_turns_to_others() -> None:
    replicas, answers = await _write(*(_marker(producer, 0) for producer in range(MARKERS)))
    assert answers == [
        (producer, "orders", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for producer in range(MARKERS)
    ]
    assert replicas.in_one_turn_max <= AT_ONCE_MAX


async def test_marker_of_many_partitions_leaves_turns_to_others() -> None:
    replicas, answers = await _write(_marker(7, *range(MARKERS)))
    assert answers == [(7, "orders", index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for index in range(MARKERS)]
    assert replicas.in_one_turn_max <= AT_ONCE_MAX
