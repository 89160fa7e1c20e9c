"""The cleanup of a log's folder before it is opened: finishes interrupted deletions, writes and swaps."""

from __future__ import annotations

from tidemill.errors import StorageError
from tidemill.log.files import Files
from tidemill.log.recovery.swaps import complete_swaps
from tidemill.log.segments.segment import SUFFIXES

_LEFTOVERS = (".deleted", ".tmp", ".cleaned")
_BESIDE_A_LOG = tuple(f".{suffix}" for suffix in SUFFIXES[1:])


def tidy(files: Files, folder: str) -> list[int]:
    """Remove leftovers, complete swaps, and return the base offsets of the segments. Raises `StorageError` for a bad
    name.
    """
    files.make_folder(folder)
    for name in files.list(folder):
        if name.endswith(_LEFTOVERS):
            files.remove(f"{folder}/{name}")
    complete_swaps(files, folder)
    names = files.list(folder)
    base_offsets = []
    for name in names:
        if name.endswith(_BESIDE_A_LOG) and f"{name.partition('.')[0]}.log" not in names:
            files.remove(f"{folder}/{name}")
        elif name.endswith(".log"):
            if not name[:-4].isdigit():
                raise StorageError(f"{folder}/{name}: not the name of a segment")
            base_offsets.append(int(name[:-4]))
    return base_offsets
