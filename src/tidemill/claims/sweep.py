"""Decides which objects of a store may be removed: those that no record of the cluster refers to.

Objects are listed first, then records are read, so an object that comes meanwhile is never a candidate. An object is a
candidate only when its grace period is over. That period begins at the end of the date in its key. Until then another
producer may find the object in the store and send a record that refers to it. A reference is recognised by its hash
alone, so a store that is known under several names, or a claim that does not parse, cannot cost an object.

Memory grows with the candidates, not with the records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, time, timedelta
from enum import Enum

from tidemill.claims.claim import SHA256_HEADER, URI_HEADER, ClaimKey, Text, parse_key
from tidemill.objects.store import ObjectInfo, whole_key

GRACE_MS = 24 * 60 * 60 * 1000
# An object with the id of the cluster that sweeps the store.
OWNER_KEY = "tidemill-cluster-id"

_SHA256_CHARACTERS = 64


class Standing(Enum):
    """The standing of an object before any record was read."""

    CANDIDATE = "candidate"
    # A record that refers to it may still be on its way.
    IN_GRACE = "in grace"
    # Its topic is not among those that this user sees: deleted, or hidden from the user.
    UNKNOWN_TOPIC = "unknown topic"
    # Not of a claim.
    FOREIGN = "foreign"


class Sweep:
    def __init__(
        self, *, topics: Collection[str], wall_ms: int, grace_ms: int = GRACE_MS, deleted_topics: bool = False
    ) -> None:
        """`topics` are all that the user sees. With `deleted_topics` objects of others are candidates, too."""
        self._topics = topics
        self._wall_ms = wall_ms
        self._grace_ms = grace_ms
        self._takes_deleted_topics = deleted_topics
        # By hash: the same payload may lie under several dates and topics.
        self._candidates: dict[bytes, list[ObjectInfo]] = {}
        self._partials: list[ObjectInfo] = []

    def consider(self, found: ObjectInfo) -> Standing:
        """An object of the store. To be called for all of them before the first reference."""
        whole = whole_key(found.key)
        if whole is not None and (whole == OWNER_KEY or parse_key(whole) is not None):
            if found.modified_ms + self._grace_ms > self._wall_ms:
                return Standing.IN_GRACE
            self._partials.append(found)
            return Standing.CANDIDATE
        key = parse_key(found.key)
        if key is None:
            return Standing.FOREIGN
        if max(found.modified_ms, _date_end_ms(key)) + self._grace_ms > self._wall_ms:
            return Standing.IN_GRACE
        if key.topic not in self._topics and not self._takes_deleted_topics:
            return Standing.UNKNOWN_TOPIC
        self._candidates.setdefault(bytes.fromhex(key.sha256), []).append(found)
        return Standing.CANDIDATE

    def refer(self, headers: Iterable[tuple[str, Text | None]]) -> None:
        """A record with these headers is in a log."""
        for name, content in headers:
            if name not in (URI_HEADER, SHA256_HEADER) or content is None:
                continue
            text = content.decode("ascii", "replace") if isinstance(content, bytes) else content
            try:
                self._candidates.pop(bytes.fromhex(text[-_SHA256_CHARACTERS:]), None)
            except ValueError:
                continue

    @property
    def removable(self) -> list[ObjectInfo]:
        """Returns the objects that no record referred to so far, in the order of keys."""
        found = [each for listed in self._candidates.values() for each in listed]
        return sorted([*found, *self._partials])


def _date_end_ms(key: ClaimKey) -> int:
    end = datetime.combine(key.date, time(), UTC) + timedelta(days=1)
    return int(end.timestamp() * 1000)
