"""A folder as an object store, for one machine or a file system that several of them mount.

An object is a file. It is written beside its place, synced, and linked there: a reader sees all of it or nothing, and
of two writers one finds it there. Each part of a path is opened by itself and never through a symbolic link, so a link
in the folder leads nowhere.

Refuses to create the folder: where a file system is not mounted, the store is down.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidemill.objects.store import (
    CHUNK_BYTES,
    ObjectInfo,
    ObjectNotFound,
    ObjectRefused,
    OpenObject,
    StoreUnavailable,
    partial_name,
)

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_TRIES = 3


class FolderStore:
    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root).absolute()
        self.uri = self._root.as_uri()

    # -- writing ---------------------------------------------------------------------------------------------

    def put_if_absent(self, key: str, chunks: Iterable[bytes]) -> bool:
        with self._failures(key), self._folder_of(key, create=True) as (folder, name):
            if _is_file(name, folder):
                # Its writer may not have synced its name yet.
                os.fsync(folder)
                return False
            partial = partial_name(name, secrets.token_hex(8))
            try:
                self._write(partial, folder, chunks)
                try:
                    os.link(partial, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                    is_new = True
                except FileExistsError:
                    is_new = False
            finally:
                _remove(partial, folder)
            os.fsync(folder)
            return is_new

    def _write(self, name: str, folder: int, chunks: Iterable[bytes]) -> None:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder)
        with os.fdopen(descriptor, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())

    # -- reading ---------------------------------------------------------------------------------------------

    def size(self, key: str) -> int:
        with self.open(key) as found:
            return found.size

    @contextmanager
    def open(self, key: str) -> Iterator[OpenObject]:
        with self._failures(key), self._folder_of(key) as (folder, name):
            # O_NONBLOCK: a pipe of that name must not hold up the reader before it is refused.
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ObjectRefused(f"{self.uri}/{key} is no regular file")
            yield OpenObject(status.st_size, self._chunks(key, file.fileno()))

    def _chunks(self, key: str, descriptor: int) -> Iterator[bytes]:
        with self._failures(key):
            while chunk := os.read(descriptor, CHUNK_BYTES):
                yield chunk

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._check_root()
        parts = [part for part in prefix.split("/") if part]
        if any(part in (".", "..") for part in parts):
            raise ObjectRefused(f"{prefix} is no prefix of keys")
        for place, folders, names in os.walk(self._root.joinpath(*parts), onerror=self._unreadable):
            folders.sort()
            for name in sorted(names):
                path = Path(place, name)
                try:
                    status = path.lstat()
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    key = path.relative_to(self._root).as_posix()
                    yield ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000)

    def _unreadable(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise StoreUnavailable(f"{self.uri}: {error.strerror}") from error

    def delete(self, key: str) -> None:
        try:
            with self._failures(key), self._folder_of(key) as (folder, name):
                _remove(name, folder)
        except ObjectNotFound:
            return
        # The last object of a day takes its folder along. A writer that comes at this moment creates it again.
        place = self._root.joinpath(key).parent
        while place != self._root:
            try:
                place.rmdir()
            except OSError:
                return
            place = place.parent

    # -- paths -----------------------------------------------------------------------------------------------

    def _check_root(self) -> None:
        if not self._root.is_dir():
            raise StoreUnavailable(f"{self.uri}: there is no such folder; create it, or mount it")

    @contextmanager
    def _folder_of(self, key: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """The descriptor of the folder that holds an object, and the object's name in it."""
        *folders, name = key.split("/")
        if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in (*folders, name)):
            raise ObjectRefused(f"{key!r} is no key")
        self._check_root()
        folder = self._descend(folders, create)
        try:
            yield folder, name
        finally:
            os.close(folder)

    def _descend(self, folders: Sequence[str], create: bool) -> int:
        for _ in range(_TRIES - 1):
            try:
                return self._descend_once(folders, create)
            except FileNotFoundError:
                if not create:
                    raise
        return self._descend_once(folders, create)

    def _descend_once(self, folders: Sequence[str], create: bool) -> int:
        here = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for folder in folders:
                if create and not _exists(folder, here):
                    try:
                        os.mkdir(folder, 0o755, dir_fd=here)
                        os.fsync(here)
                    except FileExistsError:
                        pass
                below = os.open(folder, _FOLDER_FLAGS, dir_fd=here)
                os.close(here)
                here = below
        except BaseException:
            os.close(here)
            raise
        return here

    @contextmanager
    def _failures(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise ObjectNotFound(f"{self.uri}/{key} is not there") from None
        except (NotADirectoryError, IsADirectoryError) as error:
            raise ObjectRefused(f"{self.uri}/{key}: {error.strerror}") from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise ObjectRefused(f"{self.uri}/{key} is a symbolic link") from None
            raise StoreUnavailable(f"{self.uri}/{key}: {error.strerror or error}") from error


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _is_file(name: str, folder: int) -> bool:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode):
        raise ObjectRefused(f"{name} is there, and is no regular file")
    return True


def _remove(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
