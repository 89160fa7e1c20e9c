"""The dirty section of a log: which segments may be compacted, whether compaction is due, and its plan.

A log is clean up to its first dirty offset: the end of its last cleaning, which the checkpoint holds. The sealed
segments after it are dirty. Cleaning stops before the first segment younger than `min.compaction.lag.ms`, and at the
limit that the caller sets. That limit is the high watermark, because a truncated record must not replace an older one.
It is also the last stable offset, because an open transaction may yet abort.

Compaction is due when dirty bytes exceed `min.cleanable.dirty.ratio` of the log, or when a dirty record is older than
`max.compaction.lag.ms`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from tidemill.log.cleaning.cleaner import Cleaning, SourceSegment
from tidemill.log.log import Log
from tidemill.log.segments.segment import Segment


class Dirt(NamedTuple):
    """The dirty section of a log, and the facts that decide whether it is cleaned."""

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes) if self.dirty_bytes else 0.0

    def is_due(self, min_ratio: float) -> bool:
        return self.dirty_bytes > 0 and (self.is_overdue or self.ratio > min_ratio)


def find_dirt(log: Log, checkpoint: int | None, wall_ms: int, end_offset_limit: int) -> Dirt:
    """Find the dirty section. `checkpoint` is the end of the last cleaning, if it is known."""
    first_dirty = log.log_start_offset
    if checkpoint is not None and first_dirty < checkpoint <= log.log_end_offset:
        first_dirty = checkpoint
    sealed = _sealed(log)
    dirty = [(segment, end) for segment, end in sealed if end > first_dirty]
    end_offset = min(end_offset_limit, log.active.base_offset)
    if log.config.min_compaction_lag_ms > 0:
        oldest_ms = wall_ms - log.config.min_compaction_lag_ms
        young = (segment.base_offset for segment, _ in dirty if _newest_ms(segment) > oldest_ms)
        end_offset = min(end_offset, next(young, end_offset))
    end_offset = max(end_offset, first_dirty)
    dirty = [(segment, end) for segment, end in dirty if segment.base_offset < end_offset]
    lag_ms = max(log.config.max_compaction_lag_ms, log.config.min_compaction_lag_ms)
    return Dirt(
        first_dirty,
        end_offset,
        sum(segment.size for segment, end in sealed if end <= first_dirty),
        sum(segment.size for segment, _ in dirty) if end_offset > first_dirty else 0,
        any(0 < (segment.first_timestamp or 0) < wall_ms - lag_ms for segment, _ in dirty),
    )


def _sealed(log: Log) -> list[tuple[Segment, int]]:
    """Every segment but the active one, with the base offset of its successor."""
    return [(segment, following.base_offset) for segment, following in pairwise(log.segments)]


def _newest_ms(segment: Segment) -> int:
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms


def plan_cleaning(
    log: Log,
    dirt: Dirt,
    wall_ms: int,
    *,
    map_bytes: int,
    map_load_factor: float = 0.9,
) -> Cleaning:
    config = log.config
    sources = tuple(
        SourceSegment(segment.base_offset, end, segment.size, segment.offset_index.count)
        for segment, end in _sealed(log)
        if segment.base_offset < dirt.end_offset
    )
    return Cleaning(
        folder=log.folder,
        sources=sources,
        first_dirty_offset=dirt.first_dirty_offset,
        end_offset=dirt.end_offset,
        wall_ms=wall_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        index_interval_bytes=config.index_interval_bytes,
        index_size_max=config.segment_index_bytes,
        map_bytes=map_bytes,
        map_load_factor=map_load_factor,
        producer_batches=frozenset(
            batch.last_offset
            for state in log.producers.states()
            for batch in state.batches
            if batch.last_offset < dirt.end_offset
        ),
        marked_producers=frozenset(
            (state.producer_id, state.epoch) for state in log.producers.states() if not state.batches
        ),
        aborted=tuple(log.aborted_between(sources[0].base_offset, sources[-1].end_offset)) if sources else (),
    )
