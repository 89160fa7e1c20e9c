"""Opening a log after a swap of segments was interrupted: `swap.py` tells the protocol, here is its other half.

`*.cleaned` never counted: the log removes it with the other leftovers. A `*.log.swap` is whole and synced, and the segments
that it replaces may be there, half gone or gone. It holds all that should be left of them, so the swap is completed: what
lies in its range goes and it takes its name. Its indexes are made anew, but for the aborted transactions: a cleaning that
finds such an index writes one, be it empty, so that where none waits to be renamed the right one is in place. Stopping
anywhere in here and beginning again does the same.
"""

from __future__ import annotations

from tidemill.errors import StorageError
from tidemill.log.files import Files
from tidemill.log.segments.segment import INDEX_SUFFIXES, SUFFIXES, SWAP, read_batches, segment_name
from tidemill.protocol.records import checksum_matches

_SWAPPED_LOG = f".log{SWAP}"


def complete_swaps(files: Files, folder: str) -> None:
    names = files.list(folder)
    if not any(name.endswith(SWAP) for name in names):
        return
    bases = [int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit()]
    for name in names:
        if name.endswith(_SWAPPED_LOG):
            _complete(files, folder, int(name.removesuffix(_SWAPPED_LOG)), bases)
    for name in names:
        if name.endswith(SWAP) and not name.endswith(_SWAPPED_LOG):
            files.remove(f"{folder}/{name}")
    files.sync_folder(folder)


def _complete(files: Files, folder: str, base_offset: int, bases: list[int]) -> None:
    stem = f"{folder}/{segment_name(base_offset)}"
    end_offset = _end_offset(files, f"{stem}.log{SWAP}", base_offset)
    if end_offset == base_offset and base_offset in bases:
        raise StorageError(
            f"{stem}.log{SWAP} is empty, but it should replace {stem}.log. Nothing was changed"
        )
    for covered in bases:
        if base_offset < covered < end_offset:
            for suffix in SUFFIXES:
                files.remove(f"{folder}/{segment_name(covered)}.{suffix}")
    # The old indexes go before the new log comes: they would point astray in it.
    for suffix in INDEX_SUFFIXES:
        files.remove(f"{stem}.{suffix}")
    if files.exists(f"{stem}.txnindex{SWAP}"):
        files.rename(f"{stem}.txnindex{SWAP}", f"{stem}.txnindex")
    files.rename(f"{stem}.log{SWAP}", f"{stem}.log")


def _end_offset(files: Files, path: str, base_offset: int) -> int:
    """Where the segment's offsets end: the last batch of a cleaned segment is always kept for this."""
    size = files.size(path)
    position, end_offset = 0, base_offset
    for start, header, batch in read_batches(files.open(path, writable=False), size):
        if not checksum_matches(batch, header):
            break
        position, end_offset = start + header.size, header.next_offset
    if position != size:
        raise StorageError(
            f"{path}: the batch at position {position} is damaged, but the file was on disk. Nothing was changed"
        )
    return end_offset
