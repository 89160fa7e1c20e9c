"""Records whose payload is in an object store: how they are published, and how they look to a reader.

`Deposits` is a publisher's side. It puts a payload above the threshold into the store before its record is handed over.
`Withdrawals` is a reader's side. It makes a `ClaimedRecord` of each claim, and reads payloads ahead as far as a batch
may hold them. A failure stays with its record and is raised where the value is used, so one bad claim does not stop a
partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from tidemill.claims.claim import (
    CLAIM_HEADERS,
    CLAIM_VALUE,
    Claim,
    Place,
    has_claim,
    parse_claim,
    without_claim,
)
from tidemill.claims.errors import ClaimError, ClaimTooLarge, ClaimUnresolved
from tidemill.claims.large_payloads import LargePayloads
from tidemill.claims.streams import is_stream
from tidemill.sdk.errors import InvalidSetting
from tidemill.sdk.records import Encoded, NewRecord, Record, Serializer, encoded, header_pairs

__all__ = ["ClaimedRecord", "Deposits", "LargePayloads", "Withdrawals"]


class Deposits:
    """Stores the large payloads of a publisher."""

    def __init__(self, large_payloads: LargePayloads) -> None:
        self._large_payloads = large_payloads

    def encoded(self, topic: str, record: NewRecord, serializer: Serializer | None) -> NewRecord:
        """The record with its value as bytes, since only these have a size. `put` reads a stream."""
        if isinstance(record.value, Encoded) or is_stream(record.value):
            return record
        value = encoded(topic, record.value, serializer)
        return record if value is None else replace(record, value=Encoded(value))

    def is_due(self, record: NewRecord) -> bool:
        """Whether `put` has to be called before an encoded record can be published."""
        value = record.value
        return is_stream(value) or (isinstance(value, Encoded) and self._large_payloads.is_large(value.data))

    def put(self, topic: str, record: NewRecord) -> NewRecord:
        """Put the payload into the store; the record that is left has the claim. Blocks as long as the store does."""
        pairs = header_pairs(record.headers) or []
        for name, _ in pairs:
            if name in CLAIM_HEADERS:
                raise InvalidSetting(
                    f"publish to {topic}: the header {name} is for claims; leave it out of a record with a value"
                )
        if is_stream(record.value):
            claim = self._large_payloads.put_stream(topic, record.value)
            if isinstance(claim, bytes):
                return replace(record, value=Encoded(claim))
        else:
            claim = self._large_payloads.put(topic, record.value.data)
        return replace(record, value=Encoded(CLAIM_VALUE), headers=[*pairs, *claim.headers()])


class ClaimedRecord(Record):
    """A record whose payload is in a store. Its value is read from there when it is used, unless it was read ahead."""

    __slots__ = ("_claim", "_failure", "_large_payloads", "_payload", "_stored")
    _claim: Claim | None
    _failure: ClaimError | None
    _large_payloads: LargePayloads | None
    _payload: bytes | None
    _stored: Record

    def __init__(self, record: Record, large_payloads: LargePayloads | None) -> None:
        for field in fields(record):
            if field.name != "value":
                object.__setattr__(self, field.name, getattr(record, field.name))
        object.__setattr__(self, "_large_payloads", large_payloads)
        object.__setattr__(self, "_stored", record)
        object.__setattr__(self, "_payload", None)
        object.__setattr__(self, "_claim", None)
        object.__setattr__(self, "_failure", None)
        try:
            object.__setattr__(self, "_claim", parse_claim(record.value, record.headers, self._place))
        except ClaimError as error:
            object.__setattr__(self, "_failure", error)
        if large_payloads is not None:
            object.__setattr__(self, "headers", without_claim(record.headers))

    @property
    def _place(self) -> Place:
        return Place(self.topic, self.partition, self.offset)

    @property
    def claim(self) -> Claim | None:
        """The record's claim on its payload; None when it does not parse."""
        return self._claim

    @property
    def value(self) -> bytes:
        """The payload, verified. Raises a `ClaimError` when it cannot be had."""
        if self._payload is not None:
            return self._payload
        claim, store = self._resolvable()
        return store.read(claim, self._place)

    def as_stored(self) -> Record:
        """The claim itself: an empty value, and its headers."""
        return self._stored

    def chunks(self) -> Iterator[bytes]:
        """The payload piece by piece, whatever its size. A wrong hash is raised at the end."""
        claim, store = self._resolvable()
        return store.chunks(claim, self._place)

    def _resolvable(self) -> tuple[Claim, LargePayloads]:
        claim, store, failure = self._claim, self._large_payloads, self._failure
        if failure is not None:
            raise failure
        assert claim is not None
        if store is None:
            raise ClaimUnresolved(
                f"{self._place}: the payload of {claim.size} bytes is at {claim.uri}; "
                "give the client that store with large_payloads=LargePayloads(...)"
            )
        return claim, store

    def read_ahead(self) -> None:
        """Keep the payload, or remember why it cannot be had."""
        try:
            object.__setattr__(self, "_payload", self.value)
        except ClaimTooLarge:
            # `chunks` may still read it.
            return
        except ClaimError as error:
            if not error.is_retriable:
                object.__setattr__(self, "_failure", error)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place}: {self._claim or self._failure}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClaimedRecord) and (self._place, self._claim) == (other._place, other._claim)

    def __hash__(self) -> int:
        return hash(self._place)

    def __reduce__(self) -> tuple[type[Record], tuple[object, ...]]:
        # In another process there is no store: the payload goes along.
        return Record, tuple(getattr(self, field.name) for field in fields(self))


class Withdrawals:
    """Resolves the claims that a reader finds."""

    def __init__(self, large_payloads: LargePayloads | None) -> None:
        self._large_payloads = large_payloads

    def resolved(self, record: Record) -> Record:
        """The record itself, or the record of its claim."""
        if record.value == b"" and record.headers and has_claim(record.value, record.headers):
            return ClaimedRecord(record, self._large_payloads)
        return record

    def read_ahead(self, records: list[Record]) -> None:
        """Read the payloads of a batch, in order, as long as they stay within the limit."""
        if self._large_payloads is None or not self._large_payloads.prefetch_bytes:
            return
        room = self._large_payloads.prefetch_bytes
        for record in records:
            if isinstance(record, ClaimedRecord) and record.claim is not None:
                room -= record.claim.size
                if room < 0:
                    return
                record.read_ahead()
