"""The swap of cleaned segments for their sources. A crash at any point loses nothing.

The log's owner calls three short steps. A thread syncs the folder between them, because each step must be durable
before the next:

1. `begin` renames `*.cleaned` to `*.swap`. From here on a restart completes the swap (`recovery/swaps.py`).
2. `switch` renames the old segments to `*.deleted`, and the log uses the new ones. Responses in flight keep their files.
3. `finish` gives `*.swap` its final name.

Retention, DeleteRecords or truncation may remove segments during the cleaning or between the steps. The whole swap is
then abandoned: with some groups missing, a tombstone could go while an older record of its key stays. A swap that has
begun is withdrawn *before* the segments are removed; otherwise a crash in between would restore them.
"""

from __future__ import annotations

from tidemill.log.cleaning.cleaner import CleaningResult
from tidemill.log.files import Files
from tidemill.log.log import Log
from tidemill.log.segments.segment import CLEANED, IN_PLACE, SUFFIXES, SWAP, Segment, segment_name


class CleaningAbandoned(Exception):
    """The log lost segments during the cleaning. The cleaned files are removed and the log is unchanged."""


class SegmentSwap:
    """One swap, from the planning of the cleaning to the final names."""

    def __init__(self, files: Files, log: Log) -> None:
        """Must be created before the cleaning is planned: removals are counted from here on."""
        self._files = files
        self._log = log
        self._removals = log.removals
        self._result: CleaningResult | None = None
        self._new: list[Segment] = []

    def begin(self, result: CleaningResult) -> None:
        self._result = result
        if self._log.removals != self._removals:
            self.discard()
            raise CleaningAbandoned
        self._log.before_removal = self.discard
        for group in result.groups:
            # The log file is renamed last: it decides, and its indexes must exist by then.
            for suffix in reversed(SUFFIXES):
                path = self._path(group.base_offset, suffix)
                if self._files.exists(path + CLEANED):
                    self._files.rename(path + CLEANED, path + SWAP)

    def switch(self) -> list[str]:
        """Use the new segments. Returns the paths to remove."""
        log, result = self._log, self._result
        if log.removals != self._removals or result is None:
            raise CleaningAbandoned
        log.before_removal = None
        self._new = [self._open(group.base_offset) for group in result.groups]
        old_segments = {segment.base_offset: segment for segment in log.segments}
        removed = []
        for group, new in zip(result.groups, self._new, strict=True):
            old = [old_segments[offset] for offset in group.source_offsets]
            new.created_ms = old[-1].created_ms
            removed += log.replace_segments(old, new)
        return removed

    def finish(self) -> None:
        still_there = set(map(id, self._log.segments))
        for segment in self._new:
            if id(segment) in still_there:
                if not len(segment.txn_index):
                    segment.txn_index.remove()
                segment.move_to(IN_PLACE)

    def discard(self) -> None:
        """Remove the files of the cleaning, in whatever state they are."""
        if self._log.before_removal == self.discard:
            self._log.before_removal = None
        if self._result is not None and not self._new:
            for group in self._result.groups:
                for suffix in SUFFIXES:
                    for state in (SWAP, CLEANED):
                        self._files.remove(self._path(group.base_offset, suffix) + state)

    def _open(self, base_offset: int) -> Segment:
        config = self._log.config
        return Segment(
            self._files,
            self._log.folder,
            base_offset,
            index_interval_bytes=config.index_interval_bytes,
            index_size_max=config.segment_index_bytes,
            created_ms=0,
            state=SWAP,
        )

    def _path(self, base_offset: int, suffix: str) -> str:
        return f"{self._log.folder}/{segment_name(base_offset)}.{suffix}"
