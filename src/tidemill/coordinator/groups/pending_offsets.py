"""The pending offsets: written in transactions that have no marker yet.

An offset is pending for the producer that wrote it: several producers may have one for the same partition of the same
group. A producer's offsets are removed together when its transaction ends; those of one partition are removed together
when a tombstone removes the partition's offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemill.types import TopicId


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    # Only for commits before version 5 that set it, otherwise -1.
    expire_timestamp_ms: int
    topic_id: TopicId
    # Grows with the position in the log. It shows which of two offsets was written later.
    position: int


class Place(NamedTuple):
    """The topic and partition of a committed offset."""

    group_id: str
    topic: str
    partition: int


class PendingOffsets:
    def __init__(self) -> None:
        self._by_producer: dict[int, dict[Place, CommittedOffset]] = {}
        # The producers that have an offset pending, by group and then by place.
        self._producers: dict[str, dict[Place, dict[int, None]]] = {}

    def put(self, producer_id: int, place: Place, offset: CommittedOffset) -> None:
        self._by_producer.setdefault(producer_id, {})[place] = offset
        self._producers.setdefault(place.group_id, {}).setdefault(place, {})[producer_id] = None

    def forget(self, place: Place) -> None:
        """Remove the pending offsets of all producers for one partition."""
        for producer_id in list(self._producers.get(place.group_id, {}).get(place, ())):
            self._remove(producer_id, place)

    def end(self, producer_id: int) -> dict[Place, CommittedOffset]:
        """Remove and return the pending offsets of a producer whose transaction has ended."""
        ended = dict(self._by_producer.get(producer_id, {}))
        for place in ended:
            self._remove(producer_id, place)
        return ended

    def _remove(self, producer_id: int, place: Place) -> None:
        places = self._by_producer[producer_id]
        del places[place]
        if not places:
            del self._by_producer[producer_id]
        in_group = self._producers[place.group_id]
        del in_group[place][producer_id]
        if not in_group[place]:
            del in_group[place]
        if not in_group:
            del self._producers[place.group_id]

    def has(self, place: Place) -> bool:
        return place in self._producers.get(place.group_id, ())

    def has_group(self, group_id: str) -> bool:
        return group_id in self._producers

    def places_of(self, group_id: str) -> Iterable[Place]:
        return self._producers.get(group_id, ())

    def places(self) -> Iterable[Place]:
        return (place for places in self._producers.values() for place in places)

    def of(self, place: Place) -> list[CommittedOffset]:
        producers = self._producers.get(place.group_id, {}).get(place, ())
        return [self._by_producer[producer_id][place] for producer_id in producers]

    def replicated_state(self) -> object:
        return self._by_producer

    def check_invariants(self) -> None:
        written = {
            (producer_id, place) for producer_id, places in self._by_producer.items() for place in places
        }
        found = {
            (producer_id, place)
            for group_id, places in self._producers.items()
            for place, producers in places.items()
            for producer_id in producers
            if place.group_id == group_id
        }
        assert written == found, "pending offsets and their index differ"
        assert all(self._by_producer.values()), "a producer without pending offsets is still known"
        assert all(places and all(places.values()) for places in self._producers.values())
