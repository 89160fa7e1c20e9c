"""Compact sets of offsets: the pending ones in 16 bytes each, the hidden ones in 12 bytes for each run.

Both hold sorted arrays of a bounded length, so that no change moves many bytes. `HiddenOffsets` only grows at its end and is
cut at both ends, as the log is.

A snapshot of them is written while they change. `freeze` gives it their arrays. Until `thaw`, each of these is copied before
its first change.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

_BLOCK_ENTRIES = 1024
_BLOCK_RUNS = 4096
_RUN_OFFSETS_MAX = (1 << 32) - 1


class FrozenArrays:
    """Pairs of arrays that a snapshot reads, and which arrays were made since."""

    __slots__ = ("_first", "_made", "_second")

    def __init__(self, first: Sequence[array[int]], second: Sequence[array[int]]) -> None:
        # As long as they are here, no other array has the identity of one of them.
        self._first, self._second = list(first), list(second)
        self._made: set[int] = set()

    def __iter__(self) -> Iterator[tuple[array[int], array[int]]]:
        return iter(zip(self._first, self._second, strict=True))

    def may_change(self, first: array[int]) -> bool:
        """Whether a pair was made since, and so is in no snapshot."""
        return id(first) in self._made

    def note_made(self, first: array[int]) -> None:
        self._made.add(id(first))


class PendingOffsets:
    """A map from offsets to due times, in ascending order of offsets."""

    __slots__ = ("_due_times", "_frozen", "_lasts", "_offsets", "_size")

    def __init__(self) -> None:
        # Blocks of offsets, the due times of each block, and the last offset of each block.
        self._offsets: list[array[int]] = []
        self._due_times: list[array[int]] = []
        self._lasts: list[int] = []
        self._size = 0
        self._frozen: FrozenArrays | None = None

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
        if self._frozen is not None:
            self._copy_frozen(index)
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
            if self._frozen is not None:
                self._frozen.note_made(self._offsets[index])
                self._frozen.note_made(self._offsets[index + 1])

    def pop(self, offset: int) -> int | None:
        """Remove an offset. Returns its due time, or None when it was not there."""
        index = bisect_left(self._lasts, offset)
        if index == len(self._lasts):
            return None
        block = self._offsets[index]
        position = bisect_left(block, offset)
        if block[position] != offset:
            return None
        if self._frozen is not None:
            self._copy_frozen(index)
            block = self._offsets[index]
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

    def freeze(self) -> FrozenArrays:
        """Offsets and due times, block by block, for a snapshot."""
        self._frozen = FrozenArrays(self._offsets, self._due_times)
        return self._frozen

    def thaw(self) -> None:
        self._frozen = None

    def append_block(self, offsets: array[int], due_times: array[int]) -> None:
        """Add the largest offsets, as `freeze` gave them."""
        self._offsets.append(offsets)
        self._due_times.append(due_times)
        self._lasts.append(offsets[-1])
        self._size += len(offsets)

    def _append(self, offset: int, due_ms: int) -> None:
        self._size += 1
        if self._offsets and len(self._offsets[-1]) < _BLOCK_ENTRIES:
            if self._frozen is not None:
                self._copy_frozen(-1)
            self._offsets[-1].append(offset)
            self._due_times[-1].append(due_ms)
            self._lasts[-1] = offset
        else:
            self._offsets.append(array("q", [offset]))
            self._due_times.append(array("q", [due_ms]))
            self._lasts.append(offset)
            if self._frozen is not None:
                self._frozen.note_made(self._offsets[-1])

    def _join(self, index: int) -> None:
        """Append the next block to a short one, so that few offsets do not keep many blocks."""
        if index + 1 == len(self._offsets) or len(self._offsets[index + 1]) > _BLOCK_ENTRIES // 2:
            return
        # The short one was changed before, so no snapshot has it.
        for blocks in (self._offsets, self._due_times):
            blocks[index].extend(blocks.pop(index + 1))
        del self._lasts[index]

    def _copy_frozen(self, index: int) -> None:
        """Copy a block before its first change, if a snapshot has it."""
        assert self._frozen is not None
        if not self._frozen.may_change(self._offsets[index]):
            self._offsets[index] = self._offsets[index][:]
            self._due_times[index] = self._due_times[index][:]
            self._frozen.note_made(self._offsets[index])


class HiddenOffsets:
    """The offsets that readers do not get, as runs in ascending order.

    They stand in blocks, so that growing, and removing the first ones, moves few bytes.
    """

    __slots__ = ("_firsts", "_frozen", "_lengths", "_starts", "run_count")

    def __init__(self) -> None:
        # For each block its first offset, the first offsets of its runs, and their lengths.
        self._firsts: list[int] = []
        self._starts: list[array[int]] = []
        self._lengths: list[array[int]] = []
        self.run_count = 0
        self._frozen: FrozenArrays | None = None

    def __contains__(self, offset: int) -> bool:
        return self.run_end(offset) > offset

    def run_end(self, offset: int) -> int:
        """The end of the run that holds an offset; the offset itself when it is not hidden."""
        block = bisect_right(self._firsts, offset) - 1
        if block < 0:
            return offset
        index = bisect_right(self._starts[block], offset) - 1
        return max(offset, self._starts[block][index] + self._lengths[block][index])

    def append(self, offset: int) -> None:
        """Add an offset behind all others."""
        if self._starts:
            if self._frozen is not None:
                self._copy_frozen(-1)
            starts, lengths = self._starts[-1], self._lengths[-1]
            if starts[-1] + lengths[-1] == offset and lengths[-1] < _RUN_OFFSETS_MAX:
                lengths[-1] += 1
                return
            if len(starts) < _BLOCK_RUNS:
                starts.append(offset)
                lengths.append(1)
                self.run_count += 1
                return
        self.extend(array("q", [offset]), array("I", [1]))

    def first_from(self, offset: int) -> int | None:
        """The first hidden offset that is not before `offset`."""
        if offset in self:
            return offset
        block = max(0, bisect_right(self._firsts, offset) - 1)
        for starts in self._starts[block : block + 2]:
            index = bisect_right(starts, offset)
            if index < len(starts):
                return starts[index]
        return None

    def between(self, offset: int, end_offset: int) -> list[tuple[int, int]]:
        """The hidden runs in a range, each as (first offset, end offset)."""
        runs: list[tuple[int, int]] = []
        for block in range(max(0, bisect_right(self._firsts, offset) - 1), len(self._firsts)):
            starts, lengths = self._starts[block], self._lengths[block]
            for index in range(max(0, bisect_right(starts, offset) - 1), len(starts)):
                start = starts[index]
                if start >= end_offset:
                    return runs
                first, end = max(start, offset), min(start + lengths[index], end_offset)
                if first < end:
                    runs.append((first, end))
        return runs

    def truncate(self, end_offset: int) -> None:
        """Remove the offsets from `end_offset` on."""
        while self._firsts and self._firsts[-1] >= end_offset:
            self.run_count -= len(self._starts[-1])
            del self._firsts[-1], self._starts[-1], self._lengths[-1]
        if self._firsts:
            if self._frozen is not None:
                self._copy_frozen(-1)
            starts, lengths = self._starts[-1], self._lengths[-1]
            index = bisect_left(starts, end_offset)
            self.run_count -= len(starts) - index
            del starts[index:], lengths[index:]
            lengths[-1] = min(lengths[-1], end_offset - starts[-1])

    def trim(self, start_offset: int) -> None:
        """Remove the offsets before `start_offset`."""
        block = bisect_right(self._firsts, start_offset) - 1
        if block < 0:
            return
        self.run_count -= sum(map(len, self._starts[:block]))
        del self._firsts[:block], self._starts[:block], self._lengths[:block]
        if self._frozen is not None:
            self._copy_frozen(0)
        starts, lengths = self._starts[0], self._lengths[0]
        index = bisect_right(starts, start_offset) - 1
        end = starts[index] + lengths[index]
        if end > start_offset:
            starts[index], lengths[index] = start_offset, end - start_offset
        else:
            index += 1
        self.run_count -= index
        del starts[:index], lengths[:index]
        if starts:
            self._firsts[0] = starts[0]
        else:
            del self._firsts[0], self._starts[0], self._lengths[0]

    def freeze(self) -> FrozenArrays:
        """First offsets and lengths of all runs, block by block, for a snapshot."""
        self._frozen = FrozenArrays(self._starts, self._lengths)
        return self._frozen

    def thaw(self) -> None:
        self._frozen = None

    def extend(self, starts: array[int], lengths: array[int]) -> None:
        """Add the last runs, as `freeze` gave them."""
        self._firsts.append(starts[0])
        self._starts.append(starts)
        self._lengths.append(lengths)
        self.run_count += len(starts)
        if self._frozen is not None:
            self._frozen.note_made(starts)

    def _copy_frozen(self, block: int) -> None:
        """Copy a block before its first change, if a snapshot has it."""
        assert self._frozen is not None
        if not self._frozen.may_change(self._starts[block]):
            self._starts[block] = self._starts[block][:]
            self._lengths[block] = self._lengths[block][:]
            self._frozen.note_made(self._starts[block])
