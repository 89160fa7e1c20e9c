"""Offsets ordered by due time, in about 17 bytes each: sorted runs below a heap of their heads.

New entries wait in a small heap. When it is full it is sorted and becomes a run: two arrays, the soonest entry last, so
that taking it shrinks them. A heap over the last entries of all runs finds the soonest of all. A run that has become
short goes back into the small heap, so that few long delays do not keep many short runs.

A hierarchical timing wheel was measured beside it (`docs/decisions/0016`). The runs need no tick, and no cascade of a
bucket with millions of entries at once. They do not know the clock, so a jump of it does not matter. Every operation
touches at most one run.

The queue is a hint. Entries are never removed from the middle: the owner knows which ones are live, skips others when they
are taken, and lets `sweep` drop them. An entry may be there twice.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace

from tidemill.delays.offsets import FrozenArrays

RUN_ENTRIES = 512
_RUN_ENTRIES_MIN = RUN_ENTRIES // 4

IsLive = Callable[[int, int], bool]
# (due time, offset, serial number, due times, offsets). The serial number keeps arrays out of comparisons.
_Run = tuple[int, int, int, "array[int]", "array[int]"]


class DueQueue:
    """Entries of (due_ms, offset), the soonest first."""

    __slots__ = ("_fresh", "_frozen", "_runs", "_serial", "_size", "_swept")

    def __init__(self) -> None:
        self._fresh: list[tuple[int, int]] = []
        self._runs: list[_Run] = []
        self._size = 0
        self._serial = 0
        self._swept = 0
        self._frozen: FrozenArrays | None = None

    def __len__(self) -> int:
        """The number of entries, live or not."""
        return self._size

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """All entries, in no order."""
        yield from self._fresh
        for run in self._runs:
            yield from zip(run[3], run[4], strict=True)

    @property
    def run_count(self) -> int:
        return len(self._runs)

    @property
    def next_due_ms(self) -> int | None:
        """The due time of the first entry, which may no longer be live."""
        if self._runs and (not self._fresh or self._runs[0] < self._fresh[0]):
            return self._runs[0][0]
        return self._fresh[0][0] if self._fresh else None

    def add(self, due_ms: int, offset: int) -> None:
        heappush(self._fresh, (due_ms, offset))
        self._size += 1
        if len(self._fresh) >= RUN_ENTRIES:
            self._seal()

    def pop_due(self, wall_ms: int, limit: int) -> list[tuple[int, int]]:
        """Remove and return up to `limit` entries that are due, in the order of due times and offsets."""
        due: list[tuple[int, int]] = []
        while len(due) < limit:
            first_ms = self.next_due_ms
            if first_ms is None or first_ms > wall_ms:
                break
            due.append(self._pop())
        return due

    def drop_stale_heads(self, is_live: IsLive, limit: int) -> None:
        """Remove up to `limit` entries from the front that are not live."""
        for _ in range(limit):
            if not self._size:
                return
            head = (
                self._runs[0]
                if self._runs and (not self._fresh or self._runs[0] < self._fresh[0])
                else self._fresh[0]
            )
            if is_live(head[0], head[1]):
                return
            self._pop()

    def sweep(self, is_live: IsLive) -> None:
        """Remove what is not live from one run, or from the fresh entries; the next call takes the next one."""
        self._swept = (self._swept + 1) % (len(self._runs) + 1)
        if self._swept == len(self._runs):
            kept = [entry for entry in self._fresh if is_live(*entry)]
            self._size -= len(self._fresh) - len(kept)
            self._fresh = kept
            heapify(self._fresh)
            return
        run = self._runs[self._swept]
        live = [entry for entry in zip(run[3], run[4], strict=True) if is_live(*entry)]
        removed = len(run[3]) - len(live)
        if not removed:
            return
        self._size -= removed
        last = self._runs.pop()
        if last is not run:
            self._runs[self._swept] = last
        heapify(self._runs)
        self._put_back(live)

    def freeze(self) -> FrozenArrays:
        """Due times and offsets of all entries, run by run, for a snapshot. Its arrays do not change until `thaw`."""
        if self._fresh:
            self._seal()
        self._frozen = FrozenArrays([run[3] for run in self._runs], [run[4] for run in self._runs])
        return self._frozen

    def thaw(self) -> None:
        self._frozen = None

    def add_run(self, due_times: array[int], offsets: array[int]) -> None:
        """Add the entries of a run, as `freeze` gave them."""
        self._size += len(offsets)
        self._push(due_times, offsets)

    def _pop(self) -> tuple[int, int]:
        self._size -= 1
        if not self._runs or (self._fresh and self._fresh[0] < self._runs[0]):
            return heappop(self._fresh)
        due_ms, offset, serial, due_times, offsets = self._runs[0]
        if self._frozen is None or self._frozen.may_change(due_times):
            due_times.pop()
            offsets.pop()
        else:
            due_times, offsets = due_times[:-1], offsets[:-1]
            self._frozen.note_made(due_times)
        if len(due_times) > _RUN_ENTRIES_MIN:
            heapreplace(self._runs, (due_times[-1], offsets[-1], serial, due_times, offsets))
        else:
            heappop(self._runs)
            self._put_back(zip(due_times, offsets, strict=True))
        return due_ms, offset

    def _put_back(self, entries: Iterable[tuple[int, int]]) -> None:
        for entry in entries:
            heappush(self._fresh, entry)
        if len(self._fresh) >= RUN_ENTRIES:
            self._seal()

    def _seal(self) -> None:
        self._fresh.sort(reverse=True)
        due_times = array("q", [entry[0] for entry in self._fresh])
        offsets = array("q", [entry[1] for entry in self._fresh])
        self._fresh = []
        self._push(due_times, offsets)

    def _push(self, due_times: array[int], offsets: array[int]) -> None:
        self._serial += 1
        if self._frozen is not None:
            self._frozen.note_made(due_times)
        heappush(self._runs, (due_times[-1], offsets[-1], self._serial, due_times, offsets))
