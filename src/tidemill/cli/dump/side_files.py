"""The readers of the index and checkpoint files, without the code that repairs or removes them.

An index that a broker has open is longer than its entries; the rest is zeros, and no entry is zero. So reading stops
at the first zero entry.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tidemill.errors import StorageError
from tidemill.log.datadir import parse_checkpoint
from tidemill.log.producer_state.producers import Producers
from tidemill.log.segments.index import OffsetEntry, TimeEntry
from tidemill.log.transactions import AbortedTransaction

Event = dict[str, object]

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_ABORTED_ENTRY = struct.Struct(">hqqqq")

TEXT_FILES = (
    "meta.properties",
    "partition.metadata",
    "quorum-state",
    ".kafka_cleanshutdown",
    ".tidemill_registration",
)
OFFSET_CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "replication-offset-checkpoint",
)
EPOCH_CHECKPOINT = "leader-epoch-checkpoint"


class Index(NamedTuple):
    """The entries of an offset index. `remainder_bytes` at its end are not a whole entry."""

    entries: list[OffsetEntry]
    remainder_bytes: int


class TimeIndex(NamedTuple):
    """The entries of a time index."""

    entries: list[TimeEntry]
    remainder_bytes: int


def base_offset_of(path: Path) -> int:
    """The base offset in the name of a segment's file; 0 for another name."""
    text = path.name.partition(".")[0]
    return int(text) if text.isdecimal() else 0


def read_index(path: Path) -> Index:
    base_offset, data = base_offset_of(path), path.read_bytes()
    whole = len(data) - len(data) % _OFFSET_ENTRY.size
    entries = []
    for relative, position in _OFFSET_ENTRY.iter_unpack(data[:whole]):
        if relative == 0 == position:
            break
        entries.append(OffsetEntry(base_offset + relative, position))
    return Index(entries, len(data) - whole)


def read_time_index(path: Path) -> TimeIndex:
    base_offset, data = base_offset_of(path), path.read_bytes()
    whole = len(data) - len(data) % _TIME_ENTRY.size
    entries = []
    for timestamp, relative in _TIME_ENTRY.iter_unpack(data[:whole]):
        if relative == 0 == timestamp:
            break
        entries.append(TimeEntry(timestamp, base_offset + relative))
    return TimeIndex(entries, len(data) - whole)


def read_aborted(path: Path) -> tuple[list[AbortedTransaction], int]:
    """The entries, and the number of bytes after the last whole one."""
    data = path.read_bytes()
    whole = len(data) - len(data) % _ABORTED_ENTRY.size
    entries = [AbortedTransaction._make(fields[1:]) for fields in _ABORTED_ENTRY.iter_unpack(data[:whole])]
    return entries, len(data) - whole


# -- as events -------------------------------------------------------------------------------------------------


def events(path: Path) -> Iterator[Event] | None:
    """The content of the file, entry by entry; None for another kind of file."""
    if path.name in OFFSET_CHECKPOINTS:
        return _checkpoint(path)
    if path.name == EPOCH_CHECKPOINT:
        return _epochs(path)
    if path.name in TEXT_FILES:
        return _text(path)
    by_suffix = {".index": _index, ".timeindex": _time_index, ".txnindex": _aborted, ".snapshot": _producers}
    read = by_suffix.get(path.suffix)
    return None if read is None else read(path)


def damage(path: Path, position: int, reason: str, size_bytes: int = 0) -> Event:
    return {
        "type": "damage",
        "file": str(path),
        "position": position,
        "size_bytes": size_bytes,
        "reason": reason,
    }


def _remainder(path: Path, remainder_bytes: int) -> Iterator[Event]:
    if remainder_bytes:
        size = path.stat().st_size
        yield damage(path, size - remainder_bytes, "an entry is cut off", remainder_bytes)


def _index(path: Path) -> Iterator[Event]:
    found = read_index(path)
    for offset, position in found.entries:
        yield {"type": "index", "offset": offset, "position": position}
    yield from _remainder(path, found.remainder_bytes)


def _time_index(path: Path) -> Iterator[Event]:
    found = read_time_index(path)
    for timestamp, offset in found.entries:
        yield {"type": "timeindex", "timestamp": timestamp, "offset": offset}
    yield from _remainder(path, found.remainder_bytes)


def _aborted(path: Path) -> Iterator[Event]:
    entries, remainder_bytes = read_aborted(path)
    for entry in entries:
        yield {"type": "aborted", **entry._asdict()}
    yield from _remainder(path, remainder_bytes)


def _producers(path: Path) -> Iterator[Event]:
    producers = Producers()
    try:
        producers.restore(path.read_bytes())
    except StorageError as error:
        yield damage(path, 0, str(error), path.stat().st_size)
        return
    for state in producers.states():
        yield {
            "type": "producer",
            "producer_id": state.producer_id,
            "producer_epoch": state.epoch,
            "coordinator_epoch": state.coordinator_epoch,
            "last_timestamp": state.last_timestamp,
            "transaction_first_offset": state.txn_first_offset if state.txn_first_offset >= 0 else None,
            "batches": [batch._asdict() for batch in state.batches],
        }


def _checkpoint(path: Path) -> Iterator[Event]:
    try:
        offsets = parse_checkpoint(str(path), path.read_bytes())
    except StorageError as error:
        yield damage(path, 0, str(error), path.stat().st_size)
        return
    for partition, offset in offsets.items():
        yield {"type": "checkpoint", **partition._asdict(), "offset": offset}


def _epochs(path: Path) -> Iterator[Event]:
    try:
        version, count, *lines = path.read_text().split("\n")
        pairs = [tuple(map(int, line.split())) for line in lines if line]
        if int(version) != 0 or len(pairs) != int(count) or any(len(pair) != 2 for pair in pairs):
            raise ValueError("its count or version is wrong")
    except ValueError as error:
        yield damage(path, 0, f"not a leader epoch checkpoint: {error}", path.stat().st_size)
        return
    for epoch, start_offset in pairs:
        yield {"type": "epoch", "epoch": epoch, "start_offset": start_offset}


def _text(path: Path) -> Iterator[Event]:
    for line in path.read_text(errors="replace").splitlines():
        yield {"type": "text", "line": line}
