"""Retention: how many of a log's oldest segments are deleted, by age and by size.

Only whole segments are deleted, the oldest first, and only below the high watermark. Open transactions do not delay
retention, as in Kafka: a long transaction may lose its first records, and its marker decides the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.log.segments.segment import Segment


def count_expired(committed: Sequence[Segment], retention_ms: int, wall_ms: int) -> int:
    """Counts the oldest segments whose newest record is older than `retention_ms`. A negative limit keeps
    everything."""
    if retention_ms < 0:
        return 0
    count = 0
    for segment in committed:
        newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
        if not segment.size or wall_ms - newest <= retention_ms:
            break
        count += 1
    return count


def count_in_excess(committed: Sequence[Segment], retention_bytes: int, size: int) -> int:
    """Counts the oldest segments that a log of `size` bytes has beyond `retention_bytes`. A negative limit keeps
    everything.
    """
    if retention_bytes < 0:
        return 0
    excess = size - retention_bytes
    count = 0
    for segment in committed:
        if not segment.size or excess < segment.size:
            break
        excess -= segment.size
        count += 1
    return count
