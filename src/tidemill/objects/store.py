"""The interface of an object store: put if absent, open, list and delete.

Objects have keys of path parts with slashes, and never change. All calls block; callers choose the thread. A store
raises `StoreError` and nothing else. `ObjectNotFound` stands for a missing object, `ObjectRefused` for one that must
not be read. `StoreUnavailable` means that the store gave no answer or refused the access.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from tidemill.errors import TidemillError

CHUNK_BYTES = 1024 * 1024
_PARTIAL = re.compile(r"((?:.*/)?)\.([^/]+)\.[0-9a-f]{16}\.partial")


def partial_name(name: str, token: str) -> str:
    """Returns the name of an object while it is written, which a crash leaves behind. `token` has 16 hexadecimal digits."""
    return f".{name}.{token}.partial"


def whole_key(key: str) -> str | None:
    """The key of the object that was being written under a partial one's key; None for any other key."""
    match = _PARTIAL.fullmatch(key)
    return match[1] + match[2] if match else None


class StoreError(TidemillError):
    """A store did not do what was asked of it."""


class StoreUnavailable(StoreError):
    """The store gives no answer, or does not let this client in."""


class ObjectNotFound(StoreError):
    """There is no object of this key."""


class ObjectRefused(StoreError):
    """There is something under this key that is no object of the store, such as a symbolic link."""


class ObjectInfo(NamedTuple):
    key: str
    size: int
    modified_ms: int


class OpenObject(NamedTuple):
    """An object that is being read. The chunks can be read once."""

    size: int
    chunks: Iterator[bytes]


class ObjectStore(Protocol):
    # What its objects' URIs begin with, without a slash at the end.
    @property
    def uri(self) -> str: ...

    def put_if_absent(self, key: str, chunks: Iterable[bytes]) -> bool:
        """Returns when the object is durable. False when it was there before."""
        ...

    def size(self, key: str) -> int: ...

    def open(self, key: str) -> AbstractContextManager[OpenObject]: ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects whose key begins with these path parts, in no order."""
        ...

    def delete(self, key: str) -> None:
        """An object that is not there is no error."""
        ...
