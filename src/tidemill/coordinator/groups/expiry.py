"""The rounds in which expired offsets and empty groups are removed, some at a time.

A shard may have a hundred thousand offsets, and going through them takes half a second. So a round checks
`_CHECKED_AT_ONCE` of them, then the event loop has its turn. What is left of the round is due at once.

A group with more offsets is checked topic by topic, in several decisions. Each is right by itself: an offset expires alone.
The group goes with the last of its offsets, or in the next round when it has got new ones meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from tidemill.coordinator.groups.group import Group
from tidemill.coordinator.groups.offsets import Offsets
from tidemill.coordinator.records import Record

_CHECKED_AT_ONCE = 256


class Expiry:
    """The groups that the present round has not checked yet."""

    def __init__(self, offsets: Offsets, groups: Mapping[str, Group]) -> None:
        self._offsets = offsets
        self._groups = groups
        self._waiting: deque[str] = deque()
        # Of the first group that waits: its topics that are not checked yet.
        self._topics: deque[str] = deque()
        # Groups whose offsets may be those of partitions that are gone, and the topics of the first of them.
        self._loaded: deque[str] = deque()
        self._loaded_topics: deque[str] = deque()
        self._checked = 0

    @property
    def is_under_way(self) -> bool:
        return bool(self._waiting or self._loaded)

    def begin(self, group_ids: Iterable[str]) -> None:
        self._waiting.extend(group_ids)

    def begin_loaded(self, group_ids: Iterable[str]) -> None:
        """Of these, check only groups with offsets of partitions that are gone."""
        self._loaded.extend(group_ids)

    def next_tombstones(self, steady_ms: int) -> list[Record]:
        """The records of the next decision. None are left, or the loop has its turn, when there are none."""
        while self.is_under_way:
            if self._checked >= _CHECKED_AT_ONCE:
                break
            if self._loaded:
                self._check_loaded()
            elif tombstones := self._check_next(steady_ms):
                return tombstones
        self._checked = 0
        return []

    def _check_loaded(self) -> None:
        group_id, left = self._loaded[0], self._loaded_topics
        topics = self._offsets.of_group(group_id)
        self._checked += 1
        if not left:
            left.extend(topics)
        while left and self._checked < _CHECKED_AT_ONCE:
            topic = left.popleft()
            self._checked += len(topics.get(topic, ()))
            if self._offsets.has_gone(group_id, topic):
                self._waiting.append(group_id)
                left.clear()
        if not left:
            self._loaded.popleft()

    def _check_next(self, steady_ms: int) -> list[Record]:
        """The tombstones of the first group, or of some of its topics."""
        group_id = self._waiting[0]
        group = self._groups.get(group_id)
        self._checked += 1
        if group is None or not group.may_expire:
            self._end_group()
            return []
        topics = self._offsets.of_group(group_id)
        if not self._topics:
            self._topics.extend(topics)
        tombstones: list[Record] = []
        while self._topics and self._checked < _CHECKED_AT_ONCE:
            topic = self._topics.popleft()
            self._checked += len(topics.get(topic, ()))
            tombstones += self._offsets.expired(group, topic, steady_ms)
        if self._topics:
            return tombstones
        self._end_group()
        if group.is_empty and not self._offsets.has_more_than(group_id, len(tombstones)):
            tombstones += group.deletion_records()
        return tombstones

    def _end_group(self) -> None:
        self._waiting.popleft()
        self._topics.clear()
