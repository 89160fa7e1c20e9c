"""Computes how far a streaming query is behind, from the progress that Spark reports of it.

Spark's own Kafka source puts `minOffsetsBehindLatest`, `avgOffsetsBehindLatest` and `maxOffsetsBehindLatest` into the
`metrics` of its progress. A Python source has no way to do that: PySpark 4.3 requests its latest offsets and no more.
But the progress has the offsets, and these numbers follow from them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tidemill.spark.source.offsets import Offsets
from tidemill.types import TopicPartition


def offsets_behind_latest(progress: Any) -> list[dict[str, float]]:
    """The metrics of each source of a query, of a `StreamingQueryProgress`; none for one that has no such offsets."""
    return [
        {
            "minOffsetsBehindLatest": min(behind),
            "avgOffsetsBehindLatest": sum(behind) / len(behind),
            "maxOffsetsBehindLatest": max(behind),
        }
        if behind
        else {}
        for behind in partition_lags(json.loads(progress.json))
    ]


def partition_lags(progress: Mapping[str, Any]) -> Iterator[list[int]]:
    """For each source, how far each of its partitions is behind. `progress` is as plain JSON."""
    for source in progress.get("sources") or []:
        latest, end = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
        yield [max(offset - end.get(place, 0), 0) for place, offset in latest.items()]


def _offsets(told: object) -> Offsets:
    """JSON of topic → partition → offset, perhaps as text within JSON. Other sources have offsets of other forms."""
    while isinstance(told, str):
        try:
            told = json.loads(told)
        except ValueError:
            return {}
    if not isinstance(told, Mapping):
        return {}
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in told.items()
        if isinstance(partitions, Mapping)
        for partition, offset in partitions.items()
        if isinstance(offset, int) and partition.isdecimal()
    }
