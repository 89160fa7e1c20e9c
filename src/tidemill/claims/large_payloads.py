"""Puts large payloads into a store, and gets them back for claims.

One `LargePayloads` is what a producer and its consumers agree on: the store, and limits. It may be shared by threads.
All calls block as long as the store does.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tidemill.claims.claim import Claim, Place, key_for, resolve
from tidemill.claims.errors import (
    ClaimCorrupt,
    ClaimError,
    ClaimForged,
    ClaimMissing,
    ClaimStoreDown,
    ClaimTooLarge,
)
from tidemill.claims.streams import Stream, rewindable
from tidemill.errors import ConfigError
from tidemill.objects.opening import open_store
from tidemill.objects.store import (
    CHUNK_BYTES,
    ObjectNotFound,
    ObjectRefused,
    ObjectStore,
    StoreError,
    StoreUnavailable,
)

THRESHOLD_BYTES = 512 * 1024
LIMIT_BYTES = 64 * 1024 * 1024


class Counts:
    """Counts the payloads that were stored, that were read, and that could not be."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.stored = 0
        self.read = 0
        self.failed = 0

    def add(self, *, stored: int = 0, read: int = 0, failed: int = 0) -> None:
        with self._lock:
            self.stored += stored
            self.read += read
            self.failed += failed


class LargePayloads:
    """The object store of payloads above a threshold, and the largest payload that is read into memory."""

    def __init__(
        self,
        store: ObjectStore | str,
        *,
        threshold_bytes: int = THRESHOLD_BYTES,
        limit_bytes: int = LIMIT_BYTES,
        prefetch_bytes: int = LIMIT_BYTES,
        aliases: Sequence[str] = (),
        wall_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        **options: object,
    ) -> None:
        """`store` is a folder, the URL of a bucket, or an `ObjectStore`; `options` are those of obstore.

        A value of more than `threshold_bytes` goes to the store. A reader takes at most `limit_bytes` of one payload into
        memory, and reads at most `prefetch_bytes` of a batch ahead; 0 reads each payload when it is used. `aliases`
        are URIs under which other clients know the same store.
        """
        if threshold_bytes < 0 or limit_bytes < 0 or prefetch_bytes < 0:
            raise ConfigError("large payloads: threshold, limit and prefetch are numbers of bytes from 0 on")
        self.store = open_store(store, **options) if isinstance(store, str) else store
        self.threshold_bytes = threshold_bytes
        self.limit_bytes = limit_bytes
        self.prefetch_bytes = prefetch_bytes
        self._uris = (self.store.uri, *(alias.rstrip("/") for alias in aliases))
        self._wall_ms = wall_ms
        self.counts = Counts()

    def is_large(self, value: bytes | memoryview | None) -> bool:
        return value is not None and len(value) > self.threshold_bytes

    # -- a producer ------------------------------------------------------------------------------------------

    def put(self, topic: str, payload: bytes | memoryview) -> Claim:
        """Returns when the payload is durable in the store.

        `ClaimStoreDown` when it is not, `ClaimCorrupt` when another object has its place.
        """
        sha256 = hashlib.sha256(payload).hexdigest()
        view = memoryview(payload)
        chunks = (bytes(view[start : start + CHUNK_BYTES]) for start in range(0, len(view), CHUNK_BYTES))
        return self._put(topic, sha256, len(view), chunks)

    def put_stream(self, topic: str, stream: Stream) -> Claim | bytes:
        """Put a file, or an iterator of bytes, without holding it in memory. Returns the payload itself if it is not large.

        `PayloadUnreadable` when the stream fails.
        """
        with rewindable(stream, f"publish to {topic}") as payload:
            if payload.size <= self.threshold_bytes:
                return b"".join(payload.chunks())
            try:
                return self._put(topic, payload.sha256, payload.size, payload.chunks())
            except ClaimStoreDown as error:
                if payload.failure is not None:
                    raise payload.failure from error
                raise

    def _put(self, topic: str, sha256: str, size: int, chunks: Iterator[bytes]) -> Claim:
        key = str(key_for(topic, self._wall_ms(), sha256))
        try:
            is_new = self.store.put_if_absent(key, chunks)
            found_size = size if is_new else self.store.size(key)
        except StoreError as error:
            self.counts.add(failed=1)
            raise ClaimStoreDown(
                f"publish to {topic}: a payload of {size} bytes was not stored, and its record not sent: {error}"
            ) from error
        if found_size != size:
            # It was cut off, in the store or on its way to another one. A claim on it could never be read.
            self.counts.add(failed=1)
            raise ClaimCorrupt(
                f"publish to {topic}: {self.store.uri}/{key} is in the store with {found_size} bytes instead of {size}, and "
                "the record was not sent; remove the object, or restore it from a copy"
            )
        self.counts.add(stored=1)
        return Claim(f"{self.store.uri}/{key}", size, sha256)

    # -- a consumer ------------------------------------------------------------------------------------------

    def read(self, claim: Claim, place: Place) -> bytes:
        """The whole payload, verified. `ClaimTooLarge` above the limit."""
        if claim.size > self.limit_bytes:
            raise ClaimTooLarge(
                f"{place}: the payload has {claim.size} bytes, and {self.limit_bytes} are allowed in memory; "
                "raise limit_bytes, or read it in chunks"
            )
        return b"".join(self.chunks(claim, place))

    def chunks(self, claim: Claim, place: Place) -> Iterator[bytes]:
        """The payload piece by piece, whatever its size. What is wrong with it may be known only at the end."""
        try:
            yield from self._verified_chunks(claim, place)
        except ClaimError:
            self.counts.add(failed=1)
            raise
        self.counts.add(read=1)

    def _verified_chunks(self, claim: Claim, place: Place) -> Iterator[bytes]:
        key = str(resolve(claim, self._uris, place))
        digest = hashlib.sha256()
        size = 0
        with self._failures(claim, place), self.store.open(key) as source:
            if source.size != claim.size:
                raise _wrong_size(claim, place, source.size)
            for chunk in source.chunks:
                size += len(chunk)
                if size > claim.size:
                    raise _wrong_size(claim, place, size)
                digest.update(chunk)
                yield chunk
        if size != claim.size:
            raise _wrong_size(claim, place, size)
        if digest.hexdigest() != claim.sha256:
            raise ClaimCorrupt(
                f"{place}: {claim.uri} has the SHA-256 {digest.hexdigest()}, and the claim says {claim.sha256}; "
                "restore the object from a copy"
            )

    def check_exists(self, claim: Claim, place: Place) -> None:
        """Raise what is wrong with a claim as far as it can be known without reading its object."""
        key = str(resolve(claim, self._uris, place))
        with self._failures(claim, place):
            size = self.store.size(key)
        if size != claim.size:
            raise _wrong_size(claim, place, size)

    @contextmanager
    def _failures(self, claim: Claim, place: Place) -> Iterator[None]:
        try:
            yield
        except ObjectNotFound:
            raise ClaimMissing(
                f"{place}: {claim.uri} is gone; restore it, or skip the record. "
                "Does the store keep objects for as long as the topic keeps records?"
            ) from None
        except ObjectRefused as error:
            raise ClaimForged(f"{place}: {error}; nothing was fetched") from None
        except StoreUnavailable as error:
            raise ClaimStoreDown(f"{place}: the payload cannot be read: {error}; try again later") from error


def _wrong_size(claim: Claim, place: Place, size: int) -> ClaimCorrupt:
    return ClaimCorrupt(
        f"{place}: {claim.uri} has {size} bytes, and the claim says {claim.size}; restore the object from a copy"
    )
