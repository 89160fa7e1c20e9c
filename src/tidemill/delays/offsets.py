"""Compact sets of offsets: the pending ones in 16 bytes each, the hidden ones in 12 bytes for each run.

`PendingOffsets` holds sorted arrays of a bounded length, so that an insertion or removal moves few bytes. `HiddenOffsets`
only grows at its end and is cut at both ends, as the log is.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

_BLOCK_ENTRIES = 1024
_RUN_OFFSETS_MAX = (1 << 32) - 1


class PendingOffsets:
    """A map from offsets to due times, in ascending order of offsets."""

    __slots__ = ("_due_times", "_lasts", "_offsets", "_size")

    def __init__(self) -> None:
        # Blocks of offsets, the due times of each block, and the last offset of each block.
        self._offsets: list[array[int]] = []
        self._due_times: list[array[int]] = []
        self._lasts: list[int] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, offset: int) -> bool:
        return self.get(offset) is not None

    @property
    def first(self) -> int | None:
        return self._offsets[0][0] if self._offsets else None

    def get(self, offset: int) -> int | None:
        """The due time of an offset; None when it is not pending."""
        index = bisect_left(self._lasts, offset)
        if index == len(self._lasts):
            return None
        block = self._offsets[index]
        position = bisect_left(block, offset)
        return self._due_times[index][position] if block[position] == offset else None

    def set(self, offset: int, due_ms: int) -> None:
        if not self._lasts or offset > self._lasts[-1]:
            self._append(offset, due_ms)
            return
        index = bisect_left(self._lasts, offset)
        block, due_times = self._offsets[index], self._due_times[index]
        position = bisect_left(block, offset)
        if block[position] == offset:
            due_times[position] = due_ms
            return
        block.insert(position, offset)
        due_times.insert(position, due_ms)
        self._size += 1
        if len(block) >= 2 * _BLOCK_ENTRIES:
            for blocks in (self._offsets, self._due_times):
                whole = blocks[index]
                blocks[index : index + 1] = [whole[:_BLOCK_ENTRIES], whole[_BLOCK_ENTRIES:]]
            self._lasts.insert(index, block[_BLOCK_ENTRIES - 1])

    def pop(self, offset: int) -> int | None:
        """Remove an offset. Returns its due time, or None when it was not there."""
        index = bisect_left(self._lasts, offset)
        if index == len(self._lasts):
            return None
        block = self._offsets[index]
        position = bisect_left(block, offset)
        if block[position] != offset:
            return None
        del block[position]
        due_ms = self._due_times[index].pop(position)
        self._size -= 1
        if not block:
            del self._offsets[index], self._due_times[index], self._lasts[index]
        else:
            self._lasts[index] = block[-1]
            if len(block) < _BLOCK_ENTRIES // 4:
                self._join(index)
        return due_ms

    def first_below(self, end_offset: int, limit: int) -> list[tuple[int, int]]:
        """Up to `limit` of the smallest offsets below `end_offset`, with their due times."""
        found: list[tuple[int, int]] = []
        for block, due_times in zip(self._offsets, self._due_times, strict=True):
            count = min(bisect_left(block, end_offset), limit - len(found))
            found += zip(block[:count], due_times[:count], strict=True)
            if count < len(block):
                break
        return found

    def first_from(self, offset: int, limit: int) -> list[tuple[int, int]]:
        """Up to `limit` of the smallest offsets from `offset` on, with their due times."""
        found: list[tuple[int, int]] = []
        for index in range(bisect_left(self._lasts, offset), len(self._lasts)):
            start = 0 if found else bisect_left(self._offsets[index], offset)
            end = start + limit - len(found)
            found += zip(self._offsets[index][start:end], self._due_times[index][start:end], strict=True)
            if len(found) == limit:
                break
        return found

    def arrays(self) -> list[tuple[array[int], array[int]]]:
        """Offsets and due times, block by block, for a snapshot."""
        return list(zip(self._offsets, self._due_times, strict=True))

    def append_block(self, offsets: array[int], due_times: array[int]) -> None:
        """Add the largest offsets, as `arrays` gave them."""
        self._offsets.append(offsets)
        self._due_times.append(due_times)
        self._lasts.append(offsets[-1])
        self._size += len(offsets)

    def _append(self, offset: int, due_ms: int) -> None:
        self._size += 1
        if self._offsets and len(self._offsets[-1]) < _BLOCK_ENTRIES:
            self._offsets[-1].append(offset)
            self._due_times[-1].append(due_ms)
            self._lasts[-1] = offset
        else:
            self._offsets.append(array("q", [offset]))
            self._due_times.append(array("q", [due_ms]))
            self._lasts.append(offset)

    def _join(self, index: int) -> None:
        """Append the next block to a short one, so that few offsets do not keep many blocks."""
        if index + 1 == len(self._offsets) or len(self._offsets[index + 1]) > _BLOCK_ENTRIES // 2:
            return
        for blocks in (self._offsets, self._due_times):
            blocks[index].extend(blocks.pop(index + 1))
        del self._lasts[index]


class HiddenOffsets:
    """The offsets that readers do not get, as runs in ascending order."""

    __slots__ = ("_lengths", "_skipped", "_starts")

    def __init__(self) -> None:
        self._starts: array[int] = array("q")
        self._lengths: array[int] = array("I")
        # Runs at the front that lie below the log start. They are removed when they are half of all.
        self._skipped = 0

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._starts, offset, self._skipped) - 1
        return index >= self._skipped and offset < self._starts[index] + self._lengths[index]

    def run_end(self, offset: int) -> int:
        """The end of the run that holds an offset; the offset itself when it is not hidden."""
        index = bisect_right(self._starts, offset, self._skipped) - 1
        return max(offset, self._starts[index] + self._lengths[index]) if index >= self._skipped else offset

    def append(self, offset: int) -> None:
        """Add an offset behind all others."""
        is_next = len(self._starts) > self._skipped and self._starts[-1] + self._lengths[-1] == offset
        if is_next and self._lengths[-1] < _RUN_OFFSETS_MAX:
            self._lengths[-1] += 1
        else:
            self._starts.append(offset)
            self._lengths.append(1)

    def first_from(self, offset: int) -> int | None:
        """The first hidden offset that is not before `offset`."""
        if offset in self:
            return offset
        index = bisect_right(self._starts, offset, self._skipped)
        return self._starts[index] if index < len(self._starts) else None

    def between(self, offset: int, end_offset: int) -> list[tuple[int, int]]:
        """The hidden runs in a range, each as (first offset, end offset)."""
        runs = []
        index = max(bisect_right(self._starts, offset, self._skipped) - 1, self._skipped)
        while index < len(self._starts) and (start := self._starts[index]) < end_offset:
            first, end = max(start, offset), min(start + self._lengths[index], end_offset)
            if first < end:
                runs.append((first, end))
            index += 1
        return runs

    def truncate(self, end_offset: int) -> None:
        """Remove the offsets from `end_offset` on."""
        index = bisect_left(self._starts, end_offset, self._skipped)
        del self._starts[index:], self._lengths[index:]
        if len(self._starts) > self._skipped:
            self._lengths[-1] = min(self._lengths[-1], end_offset - self._starts[-1])

    def trim(self, start_offset: int) -> None:
        """Remove the offsets before `start_offset`."""
        index = bisect_right(self._starts, start_offset, self._skipped) - 1
        if index >= self._skipped:
            if start_offset < self._starts[index] + self._lengths[index]:
                self._lengths[index] -= start_offset - self._starts[index]
                self._starts[index] = start_offset
                self._skipped = index
            else:
                self._skipped = index + 1
        if self._skipped > len(self._starts) // 2:
            del self._starts[: self._skipped], self._lengths[: self._skipped]
            self._skipped = 0

    @property
    def run_count(self) -> int:
        return len(self._starts) - self._skipped

    def arrays(self, limit: int) -> Iterator[tuple[array[int], array[int]]]:
        """First offsets and lengths of all runs, up to `limit` at a time, for a snapshot."""
        for first in range(self._skipped, len(self._starts), limit):
            yield self._starts[first : first + limit], self._lengths[first : first + limit]

    def extend(self, starts: array[int], lengths: array[int]) -> None:
        """Add the last runs, as `arrays` gave them."""
        self._starts += starts
        self._lengths += lengths
