"""How many of a log's first segments retention takes: by age, and by size.

Only whole segments go, the oldest first, and none before the records in it are committed. Transactions do not hold it
up, as in Kafka: a long one may lose its first records, and what is left of it is still decided by its marker.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.log.segments.segment import Segment


def count_expired(committed: Sequence[Segment], retention_ms: int, now_ms: int) -> int:
    """The segments whose newest record is older than `retention_ms`; a negative one keeps everything."""
    if retention_ms < 0:
        return 0
    count = 0
    for segment in committed:
        newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
        if not segment.size or now_ms - newest <= retention_ms:
            break
        count += 1
    return count


def count_in_excess(committed: Sequence[Segment], retention_bytes: int, size: int) -> int:
    """The segments without which a log of `size` bytes still has `retention_bytes`; a negative one keeps everything."""
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
