"""Completion of a segment swap that a crash interrupted: the second half of the protocol in `cleaning/swap.py`.

A `*.cleaned` file is a leftover and is removed. A `*.log.swap` file is whole and synced, while its source segments may
be complete, partly removed or gone. It holds everything that remains of them, so the swap is completed: the segments
in its range are removed and it takes its final name. Its offset and time indexes are rebuilt. The transaction index is
not: a cleaning with such an index always writes one, even an empty one. So when no index waits for its rename, the
right one is in place. A crash in here is harmless: the next start does the same again.
"""

from __future__ import annotations

from tidemill.errors import StorageError
from tidemill.log.files import Files
from tidemill.log.segments.segment import (
    INDEX_SUFFIXES,
    SUFFIXES,
    SWAP,
    TAG_INDEX,
    read_batches,
    segment_name,
)
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
            for suffix in (*SUFFIXES, TAG_INDEX):
                files.remove(f"{folder}/{segment_name(covered)}.{suffix}")
    # The old indexes are removed before the new log gets its name: their positions are wrong in it.
    for suffix in (*INDEX_SUFFIXES, TAG_INDEX):
        files.remove(f"{stem}.{suffix}")
    if files.exists(f"{stem}.txnindex{SWAP}"):
        files.rename(f"{stem}.txnindex{SWAP}", f"{stem}.txnindex")
    files.rename(f"{stem}.log{SWAP}", f"{stem}.log")


def _end_offset(files: Files, path: str, base_offset: int) -> int:
    """The end offset of a cleaned segment, whose last batch is always kept for this purpose."""
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
