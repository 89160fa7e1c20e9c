"""Finds the start of each record in many batches.

A record's length is its first varint, so the next one's place is known only when this one has been looked at. This is
the single part of decoding that is sequential, and a loop over records would cost more than all the rest. So it is
walked in many lanes at once: each batch begins a lane, and more of them begin where something within a batch looks
like a record. All lanes take one step, then all the next, until each has come to where the following lane began.

A lane whose start was no record is found out, because the lane before it does not end there. A first lane begins with
its batch, so it is right, and what begins where a right lane ends is right too. Then the walk is done once more without
the wrong ones; where that does not help, and for few records, a loop does it.

What is found here costs little and promises only to lie within the buffer. `read_fields` reads the lengths at these
positions again, and they stand when each record ends exactly where the next one begins.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tidemill.spark.arrow.varints import RECORD_LENGTH_MIN, Buffer, Ints

# Below this the loop is as fast as lanes are.
_RECORDS_MIN = 2000
# Steps between two looks at whether all lanes are done.
_STEPS = 8
# Walks with the lanes that are left when wrong ones were found out.
_TRIES = 2
# Of offsets from record to record, where a lane may begin: compaction leaves holes, but seldom wide ones.
_OFFSET_STEP_MAX = 64

# How far the next record is, by the first byte of a length; the second adds 64 times itself.
_FIRST_BYTE = np.array([1 + (n >> 7) + ((n & 0x7F) >> 1) for n in range(256)], dtype=np.int64)


def guess_positions(buffer: Buffer, starts: Ints, counts: Ints) -> Ints | None:
    """The positions of `counts[i]` records from `starts[i]`, for each batch; None where only a walk finds them.

    Batches lie end to end. The positions lie within the buffer, and nearly always are the right ones.
    """
    total = int(counts.sum())
    if total < _RECORDS_MIN:
        return None
    lanes = _lanes(buffer, starts, total)
    for _ in range(_TRIES):
        ends = np.append(lanes[1:], buffer.size)
        walked = _walk_lanes(buffer, lanes, ends, 64 + 4 * total // len(lanes))
        if walked is None:
            return None
        inside = walked < ends
        is_met = walked[inside.sum(axis=0), np.arange(len(lanes))] == ends
        if is_met.all():
            positions: Ints = walked.T[inside.T]
            found = np.diff(np.searchsorted(positions, starts), append=len(positions))
            return positions if np.array_equal(found, counts) else None
        lanes = lanes[np.append(True, is_met[:-1])]
    return None


def _lanes(buffer: Buffer, starts: Ints, record_count: int) -> Ints:
    """Returns the starts of lanes: each batch, and records found between if that is not enough."""
    wanted = 4 * math.isqrt(record_count)
    # So wide that nearly every window has a record's beginning.
    width = 2 * (buffer.size // record_count) + 8
    span = buffer.size // wanted
    targets = np.arange(span, buffer.size - width, span)
    if 2 * len(starts) >= wanted or len(targets) == 0:
        return np.unique(starts)
    candidates, windows = _candidates(buffer, targets, width)
    limits = np.append(starts, buffer.size)[np.searchsorted(starts, candidates, side="right")]
    ends, deltas = _likely_records(buffer, candidates, limits)
    # The last byte of a value and the number of headers after it may look like a beginning; two such in a row hardly do.
    good = np.flatnonzero(ends < limits)
    ends, next_deltas = _likely_records(buffer, ends[good], limits[good])
    step = next_deltas - deltas[good]
    good = good[(ends <= limits[good]) & (step > 0) & (step <= _OFFSET_STEP_MAX)]
    _, firsts = np.unique(windows[good], return_index=True)
    return np.unique(np.concatenate((starts, candidates[good[firsts]])))


def _candidates(buffer: Buffer, targets: Ints, width: int) -> tuple[Ints, NDArray[np.intp]]:
    """Positions with a length of one or two bytes and then attributes, which are zero; and the window of each."""
    raw = buffer.raw
    zeros = np.flatnonzero(sliding_window_view(raw, width)[targets] == 0)
    windows, columns = np.divmod(zeros, width)
    attributes = targets[windows] + columns
    first, second = raw[attributes - 2], raw[attributes - 1]
    # A length that is not negative is an even number.
    two = np.flatnonzero((first >= 0x80) & (second < 0x80) & (first & 1 == 0))
    one = np.flatnonzero((second >= 2 * RECORD_LENGTH_MIN) & (second < 0x80) & (second & 1 == 0))
    return (
        np.concatenate((attributes[two] - 2, attributes[one] - 1)),
        np.concatenate((windows[two], windows[one])),
    )


def _likely_records(buffer: Buffer, positions: Ints, limits: Ints) -> tuple[Ints, Ints]:
    """Returns records' ends, after `limits` if their fields do not add up to their lengths, and their offset deltas."""
    lengths, at = buffer.read(positions)
    good = (lengths >= RECORD_LENGTH_MIN) & (lengths <= limits - at)
    ends = np.where(good, at + lengths, positions)
    _, at = buffer.read(np.minimum(at + 1, ends))
    deltas, at = buffer.read(np.minimum(at, ends))
    for _ in range(2):  # key and value
        lengths, at = buffer.read(np.minimum(at, ends))
        at += np.clip(lengths, 0, buffer.size)
    headers, at = buffer.read(np.minimum(at, ends))
    good &= np.where(headers == 0, at == ends, (headers > 0) & (headers <= ends - at))
    return np.where(good, ends, limits + 1), deltas


def _walk_lanes(buffer: Buffer, lanes: Ints, ends: Ints, steps_max: int) -> Ints | None:
    """Returns the position of each lane after each step, until all are at their ends or have passed them.

    Those that are done go on with the next one's records. So lanes of very different lengths would mostly walk in vain, and
    this gives up.
    """
    raw, size = buffer.raw, buffer.size
    rows = [lanes]
    at = lanes
    while (at < ends).any():
        if len(rows) > steps_max:
            return None
        for _ in range(_STEPS):
            first = raw.take(at)
            second = raw.take(at + 1)
            second *= first >> np.uint8(7)
            step = _FIRST_BYTE.take(first)
            step += second.astype(np.int64) << 6
            at = np.minimum(at + step, size)
            rows.append(at)
    return np.array(rows)


def walk_positions(buffer: Buffer, starts: Ints, counts: Ints) -> Ints:
    """As `guess_positions`, record by record: correct if the records are valid."""
    data, size = buffer.raw.data, buffer.size
    positions: list[int] = []
    for position, count in zip(starts.tolist(), counts.tolist(), strict=True):
        for _ in range(count):
            positions.append(position)
            first = data[position]
            if first < 0x80:
                position += 1 + (first >> 1)
            elif (second := data[position + 1]) < 0x80:
                position += 2 + ((first & 0x7F) >> 1) + (second << 6)
            else:
                position = _after_long(data, position)
            if position > size:
                position = size
    return np.array(positions, dtype=np.int64)


def _after_long(data: memoryview, position: int) -> int:
    """After a record whose length takes three to five bytes; none takes more."""
    length = 0
    for index in range(5):
        byte = data[position + index]
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return position + index + 1 + (length >> 1)
    return position + 5
