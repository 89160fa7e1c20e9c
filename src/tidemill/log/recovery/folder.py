"""The folder of a log before it is opened: what an interrupted deletion, write or swap left behind is settled first."""

from __future__ import annotations

from tidemill.errors import StorageError
from tidemill.log.files import Files
from tidemill.log.recovery.swaps import complete_swaps
from tidemill.log.segments.segment import SUFFIXES

_LEFTOVERS = (".deleted", ".tmp", ".cleaned")
_BESIDE_A_LOG = tuple(f".{suffix}" for suffix in SUFFIXES[1:])


def tidy(files: Files, folder: str) -> list[int]:
    """The base offsets of the segments that count; `StorageError` for a log file that is none."""
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
