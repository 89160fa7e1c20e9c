"""The positions of a consumer in its partitions: seeking, pausing, lag.

`assigned` is what this member has. A seek before the first assignment applies to the partitions of that assignment.
Partitions of other members, and their positions, are not affected. Later a seek is for what it has then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Position

from tidemill.sdk.errors import InvalidSetting, NotAssigned
from tidemill.sdk.kafka_errors import NO_ANSWER, cause, translated
from tidemill.sdk.waiting import Health, patiently
from tidemill.types import TopicPartition

Place = Literal["earliest", "latest"]

_ENDS: Mapping[str, int] = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}
# As timestamps in a search for offsets.
_LATEST, _EARLIEST = -1, -2
_PAUSE_S = 0.01


class Positions:
    def __init__(
        self,
        consumer: Consumer,
        topics: Sequence[str],
        timeout_s: float,
        health: Health,
        retry_topics: frozenset[str] = frozenset(),
    ) -> None:
        self._consumer = consumer
        self._topics = topics
        # Of the group alone: read from the oldest record on, and left where they are by a seek that does not name them.
        self._retry_topics = retry_topics
        self._timeout_s = timeout_s
        self._health = health
        self.partitions: set[TopicPartition] = set()
        # The next offset to hand out, of partitions of which something was handed out or sought.
        self._next: dict[TopicPartition, int] = {}
        self._wishes: dict[TopicPartition, int] = {}
        self._was_assigned = False
        self._paused: set[TopicPartition] = set()
        # Where to go back to, as soon as that is possible.
        self._owed: dict[TopicPartition, int] = {}

    # -- calls of the reader ---------------------------------------------------------------------------------

    def assigned(self, partitions: list[Position]) -> bool:
        """Writes into them where to begin, where that was wished; True if it was."""
        self.partitions |= {TopicPartition(each.topic, each.partition) for each in partitions}
        if not partitions:
            return False
        self._was_assigned = True
        is_changed = False
        for each in partitions:
            wish = self._wishes.get(TopicPartition(each.topic, each.partition))
            if wish is not None:
                each.offset, is_changed = wish, True
        self._wishes.clear()
        return self._begin_retries(partitions) or is_changed

    def _begin_retries(self, partitions: list[Position]) -> bool:
        """Reads retries from the oldest on where nothing is committed yet, wherever the group begins elsewhere."""
        retries = [each for each in partitions if each.topic in self._retry_topics and each.offset < 0]
        if not retries:
            return False
        committed = self._ask(
            lambda timeout_s: self._consumer.committed(retries, timeout=timeout_s), "read committed offsets"
        )
        fresh = {(each.topic, each.partition) for each in committed if each.offset < 0}
        for each in retries:
            if (each.topic, each.partition) in fresh:
                each.offset = OFFSET_BEGINNING
        return bool(fresh)

    def revoked(self, places: set[TopicPartition]) -> None:
        self.partitions -= places
        self._paused -= places
        for place in places:
            self._next.pop(place, None)
            self._owed.pop(place, None)

    def moved(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._next.update(offsets)

    def passed(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Those of these ends that are behind what is handed out next, of partitions of which something was handed out."""
        return {place: end for place, end in ends.items() if self._next.get(place, end) < end}

    def go_back(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read again from there, as far as the partitions are still here. What cannot be sought now is sought before the
        next record of it is read, or revoked until then."""
        self._owed.update({place: offset for place, offset in offsets.items() if place in self.partitions})
        self.pay_back()

    def pay_back(self) -> None:
        """Go back where that was not possible before."""
        for place, offset in list(self._owed.items()):
            try:
                self._consumer.seek(Position(*place, offset))
            except KafkaException as failure:
                if cause(failure).fatal():
                    raise translated(cause(failure), f"seek in {place}") from None
                continue
            self._next[place] = self._owed.pop(place)

    def is_owed(self, place: TopicPartition) -> bool:
        """Whether what is read of it now is from beyond the place to go back to."""
        return place in self._owed

    # -- what users ask --------------------------------------------------------------------------------------

    def seek(self, offset: int | Place, topic: str | None, partition: int | None) -> None:
        if isinstance(offset, str) and offset not in _ENDS:
            raise InvalidSetting(f"seek: {offset!r} is neither an offset nor 'earliest' or 'latest'")
        wanted = _ENDS[offset] if isinstance(offset, str) else offset
        for place in self._selected("seek", topic, partition):
            self._go(place, wanted)

    def seek_to_time(self, timestamp_ms: int, topic: str | None, partition: int | None) -> None:
        places = self._selected("seek", topic, partition)
        for place, offset in self._search(places, timestamp_ms).items():
            self._go(place, offset if offset >= 0 else OFFSET_END)

    def pause(self, topic: str | None, partition: int | None) -> None:
        places = self._assigned_only("pause", topic, partition)
        self._consumer.pause([Position(*place) for place in places])
        self._paused.update(places)

    def resume(self, topic: str | None, partition: int | None) -> None:
        places = self._assigned_only("resume", topic, partition)
        self._consumer.resume([Position(*place) for place in places])
        self._paused.difference_update(places)

    def lag(self) -> dict[TopicPartition, int]:
        """Returns the distance from the next record to the end, by partition, as the last response to a fetch stated it."""
        ends = {
            place: end for place in self.partitions - self._paused if (end := self._known_end(place)) >= 0
        }
        ends |= self._search(self.partitions - ends.keys(), _LATEST)
        following = {**self._begins(self.partitions - self._next.keys()), **self._next}
        return {place: max(0, ends[place] - following.get(place, ends[place])) for place in sorted(ends)}

    def _known_end(self, place: TopicPartition) -> int:
        """Below 0 when nothing was fetched yet. Asking the broker would wait behind the fetch that is under way."""
        return self._consumer.get_watermark_offsets(Position(*place), cached=True)[1]

    def _begins(self, places: set[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the first offset to read of partitions of which nothing was handed out yet."""
        if not places:
            return {}
        committed = self._ask(
            lambda timeout_s: self._consumer.committed(
                [Position(*place) for place in places], timeout=timeout_s
            ),
            "read committed offsets",
        )
        found = {TopicPartition(each.topic, each.partition): each.offset for each in committed}
        fresh = {place for place, offset in found.items() if offset < 0}
        return {**found, **self._search(fresh, _EARLIEST)}

    # -- how -------------------------------------------------------------------------------------------------

    def _selected(self, doing: str, topic: str | None, partition: int | None) -> list[TopicPartition]:
        if self._was_assigned:
            places = self._assigned_only(doing, topic, partition)
            return [each for each in places if topic is not None or each.topic not in self._retry_topics]
        found: list[TopicPartition] = []
        for each in self._topics:
            if topic in (None, each):
                known = self._ask(
                    lambda timeout_s, name=each: self._consumer.list_topics(name, timeout=timeout_s), doing
                ).topics[each]
                if known.error is not None:
                    raise translated(known.error, f"{doing} in {each}")
                found += [TopicPartition(each, number) for number in known.partitions]
        return self._matching(doing, found, topic, partition)

    def _assigned_only(self, doing: str, topic: str | None, partition: int | None) -> list[TopicPartition]:
        return self._matching(doing, sorted(self.partitions), topic, partition)

    def _matching(
        self, doing: str, places: list[TopicPartition], topic: str | None, partition: int | None
    ) -> list[TopicPartition]:
        found = [
            each for each in places if topic in (None, each.topic) and partition in (None, each.partition)
        ]
        if not found and (topic is not None or partition is not None or not self._was_assigned):
            what = f"{topic or ', '.join(self._topics)}{'' if partition is None else f'-{partition}'}"
            has = ", ".join(map(str, places)) or "nothing"
            raise NotAssigned(
                f"{doing} in {what}: this member has {has}; assigned are other members' partitions"
            )
        return found

    def _go(self, place: TopicPartition, offset: int) -> None:
        if place in self.partitions:
            self._seek(place, offset)
        else:
            self._wishes[place] = offset

    def _seek(self, place: TopicPartition, offset: int) -> None:
        self._owed.pop(place, None)
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                self._consumer.seek(Position(*place, offset))
                break
            except KafkaException as failure:
                error = cause(failure)
                # A partition that was assigned a moment ago is not being read yet.
                is_early = error.code() in (KafkaError._STATE, KafkaError._PREV_IN_PROGRESS)
                if not (is_early or error.code() in NO_ANSWER) or time.monotonic() >= deadline_s:
                    raise translated(error, f"seek in {place}") from None
            time.sleep(_PAUSE_S)
        if offset >= 0:
            self._next[place] = offset
        else:
            self._next.update(self._search({place}, _EARLIEST if offset == OFFSET_BEGINNING else _LATEST))

    def _search(
        self, places: set[TopicPartition] | list[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        if not places:
            return {}
        wanted = [Position(*place, timestamp_ms) for place in places]
        found = self._ask(
            lambda timeout_s: self._consumer.offsets_for_times(wanted, timeout=timeout_s), "look up offsets"
        )
        for each in found:
            if each.error is not None:
                raise translated(each.error, f"look up offsets of {each.topic}-{each.partition}")
        return {TopicPartition(each.topic, each.partition): each.offset for each in found}

    def _ask(self, call: Any, doing: str) -> Any:
        try:
            return patiently(call, doing, self._timeout_s, self._health, slice_s=2.0)
        except KafkaException as failure:
            raise translated(cause(failure), doing) from None
