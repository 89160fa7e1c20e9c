"""The work that makes a log durable: `fsync` of segments and folder, and the leader epoch checkpoint."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import NamedTuple

from tidemill.log.files import File, Files
from tidemill.log.recovery.holes import HOLES_END_NAME


class DiskFull(OSError):
    """A sync failed for want of disk space before any `fsync`. It can be repeated, unlike one whose `fsync` failed."""


class SyncWork(NamedTuple):
    """Makes the log durable up to `end_offset`. Runs once, in any thread."""

    files: Files
    segments: Sequence[File]
    folder: str
    is_folder_dirty: bool
    # The first sync since the log was opened also covers the folder's own entry, `partition.metadata` and the mark
    # of `recovery/holes.py`.
    is_first: bool
    epochs: tuple[str, bytes] | None
    end_offset: int
    # How many changes of the folder and of the epochs this sync covers.
    folder_changes: int
    epoch_changes: int
    # The error of a write that had to precede the sync.
    failure: OSError | None = None

    def run(self) -> None:
        if self.failure is not None:
            raise _as_disk_full(self.failure, self.folder)
        for file in self.segments:
            file.sync()
        if self.epochs is not None:
            self._save_epochs(*self.epochs)
        if self.is_first:
            for name in ("partition.metadata", HOLES_END_NAME):
                path = f"{self.folder}/{name}"
                if self.files.exists(path):
                    self.files.open(path).sync()
            self.files.sync_folder(self.folder)
            self.files.sync_folder(self.folder.rpartition("/")[0])
        elif self.is_folder_dirty:
            self.files.sync_folder(self.folder)

    def _save_epochs(self, path: str, content: bytes) -> None:
        try:
            self.files.replace(path, content)
        except OSError as error:
            raise _as_disk_full(error, path) from error


def _as_disk_full(error: OSError, path: str) -> OSError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(error.errno, error.strerror, path)
    return error
