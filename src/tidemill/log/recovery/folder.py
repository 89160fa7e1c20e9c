"""The cleanup of a log's folder before it is opened: finishes interrupted deletions, writes and swaps."""

from __future__ import annotations

from tidemill.errors import StorageError
from tidemill.log.files import Files
from tidemill.log.recovery.swaps import complete_swaps
from tidemill.log.segments.segment import SUFFIXES, TAG_INDEX

_LEFTOVERS = (".deleted", ".tmp", ".cleaned")
_BESIDE_A_LOG = tuple(f".{suffix}" for suffix in (*SUFFIXES[1:], TAG_INDEX))


def tidy(files: Files, folder: str) -> dict[int, bool]:
    """Remove leftovers and complete swaps. Returns the base offsets of the segments in order, each with whether it has a
    tag index. Raises `StorageError` for a bad name.
    """
    files.make_folder(folder)
    for name in files.list(folder):
        if name.endswith(_LEFTOVERS):
            files.remove(f"{folder}/{name}")
    complete_swaps(files, folder)
    names = dict.fromkeys(files.list(folder))
    base_offsets: dict[int, bool] = {}
    for name in names:
        if name.endswith(_BESIDE_A_LOG) and f"{name.partition('.')[0]}.log" not in names:
            files.remove(f"{folder}/{name}")
        elif name.endswith(".log"):
            if not name[:-4].isdigit():
                raise StorageError(f"{folder}/{name}: not the name of a segment")
            base_offsets[int(name[:-4])] = f"{name[:-4]}.{TAG_INDEX}" in names
    return base_offsets
