"""Merges the delivery states of a share partition (Kafka: PersisterStateBatchCombiner).

Each offset has at most one state. Of two states the one with the larger delivery count stays, then the one with the
larger delivery state. So the result does not depend on the order of the writes, and a repeated write changes nothing.
Neighbours with the same state become one batch. Offsets before the start offset have no state.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from tidemill.protocol.share_state import NO_START_OFFSET, StateBatch


def combined(
    so_far: Sequence[StateBatch], added: Iterable[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """Merges `added` into `so_far`, which is in order and without overlap; so is the result."""
    kept = _from_start(so_far, start_offset)
    new = sorted(_from_start(added, start_offset))
    if not new:
        return tuple(kept)
    # Only what the new batches touch is merged: a state may have thousands of batches, and a write changes a few.
    # A batch that ends just before them may be a neighbour with the same state.
    touched_end_offset = max(batch.last_offset for batch in new) + 1
    begin = bisect_left(kept, new[0].first_offset - 1, key=lambda batch: batch.last_offset)
    end = bisect_left(kept, touched_end_offset + 1, begin, key=lambda batch: batch.first_offset)
    merged = _joined(_without_overlap(sorted([*kept[begin:end], *new])))
    return (*kept[:begin], *merged, *kept[end:])


def _from_start(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    if start_offset == NO_START_OFFSET:
        return list(batches)
    return [
        batch if batch.first_offset >= start_offset else batch._replace(first_offset=start_offset)
        for batch in batches
        if batch.last_offset >= start_offset
    ]


def _without_overlap(batches: Sequence[StateBatch]) -> list[StateBatch]:
    """Cuts batches in the order of their first offsets so that the strongest state of each offset is left."""
    pieces: list[StateBatch] = []
    # The batches that reach the current offset, the strongest first.
    open_batches: list[tuple[int, int, StateBatch]] = []
    position, index = 0, 0
    while index < len(batches) or open_batches:
        if not open_batches:
            position = max(position, batches[index].first_offset)
        while index < len(batches) and batches[index].first_offset <= position:
            batch = batches[index]
            heapq.heappush(open_batches, (-batch.delivery_count, -batch.delivery_state, batch))
            index += 1
        strongest = open_batches[0][2]
        if strongest.last_offset < position:
            heapq.heappop(open_batches)
            continue
        last = strongest.last_offset
        if index < len(batches):
            last = min(last, batches[index].first_offset - 1)
        pieces.append(strongest._replace(first_offset=position, last_offset=last))
        position = last + 1
    return pieces


def _joined(pieces: Iterable[StateBatch]) -> list[StateBatch]:
    joined: list[StateBatch] = []
    for piece in pieces:
        before = joined[-1] if joined else None
        if before is not None and before.last_offset + 1 == piece.first_offset and before[2:] == piece[2:]:
            joined[-1] = before._replace(last_offset=piece.last_offset)
        else:
            joined.append(piece)
    return joined
