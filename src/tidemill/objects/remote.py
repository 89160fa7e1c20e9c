"""Buckets of S3, Google Cloud Storage and Azure through obstore (extra `[claims]`).

A put is conditional on the absence of the key. A payload of more than one part cannot be: it is looked for first, and
then written in parts, which become visible together. Two writers may both do that, with the same bytes, since keys name
contents. It is read in parts, too: the time limit of a request covers its whole body, whatever the size.

Credentials and endpoints come from the options and from the environment, as each cloud's own tools have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from typing import Any

from tidemill.errors import ConfigError
from tidemill.objects.store import CHUNK_BYTES, ObjectInfo, ObjectNotFound, OpenObject, StoreUnavailable

# Up to here one conditional request; beyond it parts of this size, a few of them in memory.
_PART_BYTES = 8 * 1024 * 1024
_PARTS_AT_ONCE = 4
_RETRIES_S = 30
_RETRIES = 3


class RemoteStore:
    def __init__(self, url: str, options: Mapping[str, object]) -> None:
        try:
            import obstore
            from obstore.exceptions import BaseError
        except ModuleNotFoundError as error:
            if error.name != "obstore":
                raise
            raise ConfigError(f"object store {url}: needs obstore: pip install 'tidemill[claims]'") from None
        self._obstore: Any = obstore
        self._failure: type[Exception] = BaseError
        self.uri = url.rstrip("/")
        # No client options: they would hide those of the environment, such as AWS_ALLOW_HTTP. A request may take 30 s.
        given: dict[str, Any] = {
            "retry_config": {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRIES_S)},
            **options,
        }
        try:
            self._bucket: Any = obstore.store.from_url(self.uri, **given)
        except (BaseError, ValueError, TypeError) as error:
            raise ConfigError(f"object store {url}: {_first_line(error)}") from None

    def put_if_absent(self, key: str, chunks: Iterable[bytes]) -> bool:
        pieces = iter(chunks)
        first = bytearray()
        for piece in pieces:
            first += piece
            if len(first) > _PART_BYTES:
                break
        with self._failures(key):
            if len(first) > _PART_BYTES:
                return self._put_in_parts(key, chain((bytes(first),), pieces))
            try:
                self._obstore.put(self._bucket, key, bytes(first), mode="create")
            except self._obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def _put_in_parts(self, key: str, chunks: Iterator[bytes]) -> bool:
        try:
            self._obstore.head(self._bucket, key)
        except FileNotFoundError:
            self._obstore.put(
                self._bucket, key, chunks, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )
            return True
        return False

    def size(self, key: str) -> int:
        with self._failures(key):
            return int(self._obstore.head(self._bucket, key)["size"])

    @contextmanager
    def open(self, key: str) -> Iterator[OpenObject]:
        with self._failures(key):
            found = self._obstore.get(self._bucket, key)
        size = int(found.meta["size"])
        yield OpenObject(size, self._parts(key, size) if size > _PART_BYTES else self._chunks(key, found))

    def _chunks(self, key: str, found: Any) -> Iterator[bytes]:
        with self._failures(key):
            for chunk in found.stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    def _parts(self, key: str, size: int) -> Iterator[bytes]:
        for start in range(0, size, _PART_BYTES):
            with self._failures(key):
                end = min(start + _PART_BYTES, size)
                part = bytes(self._obstore.get_range(self._bucket, key, start=start, end=end))
            yield part

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        with self._failures(prefix):
            for found in self._obstore.list(self._bucket, prefix or None):
                for each in found:
                    modified_ms = int(each["last_modified"].timestamp() * 1000)
                    yield ObjectInfo(each["path"], int(each["size"]), modified_ms)

    def delete(self, key: str) -> None:
        try:
            with self._failures(key):
                self._obstore.delete(self._bucket, key)
        except ObjectNotFound:
            return

    @contextmanager
    def _failures(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise ObjectNotFound(f"{self.uri}/{key} is not there") from None
        except (self._failure, OSError) as error:
            raise StoreUnavailable(f"{self.uri}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[
        :300
    ]
