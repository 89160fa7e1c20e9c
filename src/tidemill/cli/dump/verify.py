"""The verification of a segment's indexes against its batches, in one pass.

Offset index: an entry has the position of a batch and its last offset. Time index: up to an entry's offset no batch is
newer, and the batch with that offset has the entry's timestamp. Transaction index: each entry ends with an abort
marker at its last offset. Order: offsets and leader epochs rise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tidemill.cli.dump.scan import Batch
from tidemill.cli.dump.side_files import read_aborted, read_index, read_time_index
from tidemill.log.segments.index import OffsetEntry, TimeEntry

_NO_TIME = -1


class Verification:
    """The verification of one segment. It reads the indexes before the log, so the log is at least as new."""

    def __init__(self, log: Path) -> None:
        self._offsets: list[OffsetEntry] = []
        self._times: list[TimeEntry] = []
        self._abort_offsets: set[int] = set()
        self.checked: list[str] = []
        if (path := log.with_suffix(".index")).exists():
            self._offsets = read_index(path).entries
            self.checked.append("index")
        if (path := log.with_suffix(".timeindex")).exists():
            self._times = read_time_index(path).entries
            self.checked.append("timeindex")
        if (path := log.with_suffix(".txnindex")).exists():
            self._abort_offsets = {entry.last_offset for entry in read_aborted(path)[0]}
            self.checked.append("txnindex")
        self._next_offset_entry = self._next_time_entry = 0
        self._newest_ms = _NO_TIME
        self._end_offset = self._epoch = -1
        self._end_position = 0

    def note(self, batch: Batch) -> Iterator[str]:
        header = batch.header
        if header.base_offset < self._end_offset:
            yield f"the batch at {batch.position} begins at offset {header.base_offset}, below {self._end_offset}"
        if header.leader_epoch < self._epoch:
            yield f"the batch at {batch.position} has leader epoch {header.leader_epoch}, below {self._epoch}"
        yield from self._note_position(batch)
        yield from self._note_time(batch)
        self._end_offset = max(self._end_offset, header.next_offset)
        self._epoch = max(self._epoch, header.leader_epoch)
        self._end_position = batch.position + header.size

    def note_abort(self, offset: int) -> None:
        self._abort_offsets.discard(offset)

    def finish(self) -> Iterator[str]:
        for offset, position in self._offsets[self._next_offset_entry :]:
            yield f"index: offset {offset} at {position} lies behind the last batch, which ends at {self._end_position}"
        for timestamp, offset in self._times[self._next_time_entry :]:
            yield f"timeindex: {timestamp} at offset {offset} lies behind the last batch"
        for offset in sorted(self._abort_offsets):
            yield f"txnindex: there is no abort marker at offset {offset}"

    def _note_position(self, batch: Batch) -> Iterator[str]:
        while self._next_offset_entry < len(self._offsets):
            offset, position = self._offsets[self._next_offset_entry]
            if position > batch.position:
                return
            self._next_offset_entry += 1
            if position < batch.position:
                yield f"index: offset {offset} at {position} is not where a batch begins"
            elif offset != batch.header.last_offset:
                yield f"index: offset {offset} at {position}, where a batch ends at offset {batch.header.last_offset}"

    def _note_time(self, batch: Batch) -> Iterator[str]:
        header = batch.header
        while self._next_time_entry < len(self._times):
            timestamp, offset = self._times[self._next_time_entry]
            if offset > header.last_offset:
                break
            self._next_time_entry += 1
            if self._newest_ms > timestamp:
                yield f"timeindex: {timestamp} at offset {offset}, before which {self._newest_ms} was written"
            elif max(header.max_timestamp, self._newest_ms) < timestamp:
                yield f"timeindex: {timestamp} at offset {offset}, where nothing is as new"
        self._newest_ms = max(self._newest_ms, header.max_timestamp)
