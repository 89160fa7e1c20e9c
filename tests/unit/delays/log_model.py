"""A dumb reference for `PartitionDelays`: a list of batches, and functions that read all of it for every answer.

It knows nothing of queues, journals or snapshots. What a record means comes from its headers, as in a real log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidemill.delays.requests import Cancel, Carried, Copy, Delayed, is_hidden, meaning_of
from tidemill.protocol.records import TRANSACTIONAL, BatchHeader, Record, build_batch, header_at


class Marker(NamedTuple):
    offset: int
    producer_id: int
    is_commit: bool


class Batch(NamedTuple):
    records: tuple[Record, ...]
    producer_id: int | None

    @property
    def header(self) -> BatchHeader:
        built = build_batch(
            self.records,
            base_offset=self.records[0].offset,
            producer_id=-1 if self.producer_id is None else self.producer_id,
            attributes=0 if self.producer_id is None else TRANSACTIONAL,
        )
        return header_at(built)


class Request(NamedTuple):
    """A request that took effect, in the order of records. `at` is the offset that must be committed."""

    offset: int
    at: int
    request: Delayed | Cancel


@dataclass
class Chain:
    """A record that took effect: the offsets at which it was pending, one after the other."""

    places: list[int]
    order: int
    at: int
    identity: bytes | None
    due_ms: int


@dataclass
class DumbLog:
    entries: list[Batch | Marker] = field(default_factory=list)
    start: int = 0
    end: int = 0

    def append(self, records: list[Record], producer_id: int | None = None) -> Batch:
        placed = tuple(record._replace(offset=self.end + index) for index, record in enumerate(records))
        batch = Batch(placed, producer_id)
        self.entries.append(batch)
        self.end += len(records)
        return batch

    def append_marker(self, producer_id: int, is_commit: bool) -> Marker:
        marker = Marker(self.end, producer_id, is_commit)
        self.entries.append(marker)
        self.end += 1
        return marker

    def truncate(self, end: int) -> None:
        self.entries = [each for each in self.entries if _last_offset(each) < end]
        self.end = end

    def border(self, end: int) -> int:
        """The last border between two batches that is not after `end`."""
        return max(
            [self.start, *(_last_offset(each) + 1 for each in self.entries if _last_offset(each) < end)]
        )

    def records(self) -> list[tuple[Record, int | None]]:
        return [
            (record, batch.producer_id)
            for batch in self.entries
            if isinstance(batch, Batch)
            for record in batch.records
            if record.offset >= self.start
        ]

    def record(self, offset: int) -> Record:
        return next(record for record, _ in self.records() if record.offset == offset)

    def hidden(self) -> set[int]:
        return {record.offset for record, _ in self.records() if is_hidden(_meaning(record))}

    def visible(self) -> list[Record]:
        return [record for record, _ in self.records() if not is_hidden(_meaning(record))]

    def outcome(self, offset: int, producer_id: int | None) -> Marker | None:
        """The marker that ends the transaction of a record."""
        for each in self.entries:
            if isinstance(each, Marker) and each.producer_id == producer_id and each.offset > offset:
                return each
        return None

    def pending(self) -> dict[int, tuple[int, int]]:
        """By offset: the due time, and the offset that must be committed before the delivery."""
        found = {}
        effective = self._effective()
        for chain in self._chains(effective):
            settled = any(self._ends(request, chain) for request in effective)
            due_ms: int | None = chain.due_ms
            for copy in self._copies(chain.places[-1]):
                due_ms = copy.next_due_ms
            if due_ms is not None and not settled:
                found[chain.places[-1]] = (due_ms, chain.at)
        return found

    def _chains(self, effective: list[Request]) -> list[Chain]:
        """Every record that took effect, with the places to which it was carried."""
        chains = [
            Chain([offset], offset, at, request.identity, request.due_ms)
            for offset, at, request in effective
            if isinstance(request, Delayed)
        ]
        for record, _ in self.records():
            meaning = _meaning(record)
            if isinstance(meaning, Carried):
                chain = next((each for each in chains if each.places[-1] == meaning.pending_offset), None)
                if chain is None:
                    assert meaning.pending_offset < self.start
                    chain = Chain([], meaning.original_offset, 0, meaning.delayed.identity, 0)
                    chains.append(chain)
                chain.places.append(record.offset)
                chain.at, chain.due_ms = record.offset, meaning.delayed.due_ms
        return chains

    def _ends(self, request: Request, chain: Chain) -> bool:
        """Whether a request cancels or replaces what a chain holds."""
        if request.request.identity is not None:
            return request.request.identity == chain.identity and request.offset > chain.order
        if not isinstance(request.request, Cancel) or (request.request.offset or 0) >= request.offset:
            return False
        place_then = max((place for place in chain.places if place < request.at), default=None)
        return place_then == request.request.offset

    def _copies(self, place: int) -> list[Copy]:
        meanings = [_meaning(record) for record, _ in self.records()]
        return [each for each in meanings if isinstance(each, Copy) and each.pending_offset == place]

    def _effective(self) -> list[Request]:
        effective = []
        for record, producer_id in self.records():
            meaning = _meaning(record)
            if isinstance(meaning, Delayed | Cancel):
                marker = self.outcome(record.offset, producer_id) if producer_id is not None else None
                if producer_id is None:
                    effective.append(Request(record.offset, record.offset, meaning))
                elif marker is not None and marker.is_commit:
                    effective.append(Request(record.offset, marker.offset, meaning))
        return effective


Meaning = Delayed | Cancel | Carried | Copy | None
_MEANINGS: dict[int, tuple[Record, Meaning]] = {}


def _meaning(record: Record) -> Meaning:
    """What a record means, computed once: the twin reads the whole log again and again."""
    known = _MEANINGS.get(id(record))
    if known is None or known[0] is not record:
        known = _MEANINGS[id(record)] = (record, meaning_of(record))
    return known[1]


def _last_offset(entry: Batch | Marker) -> int:
    return entry.offset if isinstance(entry, Marker) else entry.records[-1].offset
