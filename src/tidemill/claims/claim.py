"""The format of a claim, and which URIs a store may resolve.

A claim is a record with an empty value and three headers, each once. The URI is that of the store, a slash, and a key
`topic/date/sha256`. A reader resolves a claim only when the URI begins with that of its own store and the rest is such
a key, character by character. Nothing is decoded or normalised, so no spelling leads elsewhere. The hash in the key is
that in the header.

A null value is a tombstone and a value with content is that value: neither is a claim, whatever the headers say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import NamedTuple

from tidemill.claims.errors import ClaimForged, ClaimInvalid

URI_HEADER = "tidemill-claim-uri"
SIZE_HEADER = "tidemill-claim-size"
SHA256_HEADER = "tidemill-claim-sha256"
CLAIM_HEADERS = frozenset({URI_HEADER, SIZE_HEADER, SHA256_HEADER})
# The value of a claim. Null would be a tombstone, and compaction would remove the key.
CLAIM_VALUE = b""

_URI_CHARACTERS_MAX = 4096
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(
    r"(?P<topic>[A-Za-z0-9._-]{1,249})/(?P<date>\d{4}-\d\d-\d\d)/(?P<sha256>[0-9a-f]{64})", re.ASCII
)
_SHOWN_CHARACTERS = 200

Text = str | bytes


class Place(NamedTuple):
    """The partition and offset of a record with a claim."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} at offset {self.offset}"


class ClaimKey(NamedTuple):
    """The name of an object in its store."""

    topic: str
    date: date
    sha256: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.date.isoformat()}/{self.sha256}"


@dataclass(frozen=True, slots=True)
class Claim:
    """A record's reference to its payload: URI, size and checksum."""

    uri: str
    # In bytes.
    size: int
    # Hexadecimal.
    sha256: str

    def headers(self) -> list[tuple[str, bytes]]:
        return [
            (URI_HEADER, self.uri.encode()),
            (SIZE_HEADER, str(self.size).encode()),
            (SHA256_HEADER, self.sha256.encode()),
        ]


def key_for(topic: str, wall_ms: int, sha256: str) -> ClaimKey:
    """The key of a payload that is put into the store at this time."""
    return ClaimKey(topic, datetime.fromtimestamp(wall_ms / 1000, UTC).date(), sha256)


def parse_key(text: str) -> ClaimKey | None:
    """None for what is no key of a claim."""
    found = _KEY.fullmatch(text)
    if found is None or found["topic"] in (".", ".."):
        return None
    try:
        return ClaimKey(found["topic"], date.fromisoformat(found["date"]), found["sha256"])
    except ValueError:
        return None


def has_claim(value: bytes | memoryview | None, headers: Iterable[tuple[str, Text | None]]) -> bool:
    """Whether the payload of a record is elsewhere."""
    return value is not None and not len(value) and any(name in CLAIM_HEADERS for name, _ in headers)


def parse_claim(
    value: bytes | memoryview | None, headers: Iterable[tuple[str, Text | None]], place: Place
) -> Claim | None:
    """None for a record whose value is its own. `ClaimInvalid` for headers that are no claim."""
    if value is None or len(value):
        return None
    found: dict[str, str] = {}
    for name, content in headers:
        if name not in CLAIM_HEADERS:
            continue
        if name in found:
            raise _invalid(place, f"the header {name} is there twice")
        found[name] = _decoded(name, content, place)
    if not found:
        return None
    for name in (URI_HEADER, SIZE_HEADER, SHA256_HEADER):
        if name not in found:
            raise _invalid(place, f"the header {name} is missing")
    if len(found[URI_HEADER]) > _URI_CHARACTERS_MAX:
        raise _invalid(place, f"the header {URI_HEADER} has more than {_URI_CHARACTERS_MAX} characters")
    if _SIZE.fullmatch(found[SIZE_HEADER]) is None:
        raise _invalid(
            place, f"the header {SIZE_HEADER} is {_shown(found[SIZE_HEADER])}, not a number of bytes"
        )
    if _SHA256.fullmatch(found[SHA256_HEADER]) is None:
        raise _invalid(
            place, f"the header {SHA256_HEADER} is {_shown(found[SHA256_HEADER])}, not 64 hexadecimal digits"
        )
    return Claim(found[URI_HEADER], int(found[SIZE_HEADER]), found[SHA256_HEADER])


def shown_claim(
    value: bytes | memoryview | None, headers: Sequence[tuple[str, Text | None]], place: Place
) -> str | None:
    """The line that stands for the value where people read it; None for a record whose value is its own."""
    try:
        claim = parse_claim(value, headers, place)
    except ClaimInvalid as error:
        return f"(a claim that cannot be resolved: {error})"
    return None if claim is None else f"(a claim: the payload of {claim.size} bytes is at {claim.uri})"


def claimed_bytes(
    value: bytes | memoryview | None, headers: Iterable[tuple[str, Text | None]], place: Place
) -> int:
    """The size of the payload of a claim; 0 for other records, and for claims that are not valid."""
    try:
        claim = parse_claim(value, headers, place)
    except ClaimInvalid:
        return 0
    return 0 if claim is None else claim.size


def resolve(claim: Claim, store_uris: Sequence[str], place: Place) -> ClaimKey:
    """The key of a claim's object in the store that has these URIs. `ClaimForged` for an object elsewhere."""
    for store_uri in store_uris:
        if claim.uri.startswith(f"{store_uri}/"):
            key = parse_key(claim.uri[len(store_uri) + 1 :])
            if key is None:
                break
            if key.sha256 != claim.sha256:
                raise ClaimForged(
                    f"{place}: the claim has another hash in its URI than in its header; nothing was fetched"
                )
            return key
    raise ClaimForged(
        f"{place}: the claim points to {_shown(claim.uri)}, which is no object of {store_uris[0]}; nothing was fetched. "
        "If that is the same store under another name, give that name as an alias: aliases= of LargePayloads, "
        "--store-alias, or largePayloadsAliases of Spark"
    )


def without_claim(headers: Iterable[tuple[str, bytes | None]]) -> tuple[tuple[str, bytes | None], ...]:
    """The headers of a record whose payload is resolved."""
    return tuple(each for each in headers if each[0] not in CLAIM_HEADERS)


def _decoded(name: str, content: Text | None, place: Place) -> str:
    try:
        text = content.decode("ascii") if isinstance(content, bytes) else content
    except UnicodeDecodeError:
        text = None
    if not text or not text.isascii() or not text.isprintable():
        raise _invalid(place, f"the header {name} is no text of printable ASCII characters")
    return text


def _invalid(place: Place, problem: str) -> ClaimInvalid:
    return ClaimInvalid(
        f"{place}: {problem}, so the payload cannot be found; look at the producer of the record"
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")
