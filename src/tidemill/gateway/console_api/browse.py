"""Messages of a topic: from an offset or a time on, or the last ones; all, or those with a key or a text in them.

Partitions are read side by side and merged by timestamp. The result is in the order of time as far as the partitions
are, and always in the order of each partition. Forward, each partition is read from its position on; backward, in ever
larger steps before it, because a log can only be read forward.

A question is bounded by the records it wants, those it looks at (`max_scan`), the bytes it shows and the time it takes.
Where it stopped is in the answer: `next` goes on, `previous` goes back, and with `is_complete` nothing was left.
`remaining` is how many offsets lie before it in its direction.

A key is looked for in every partition, unless one is named: a record need not lie where the default partitioner would
have put it. Where that is, is in `key_partition`.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from starlette.requests import Request

from tidemill.client.admin.topics import Admin
from tidemill.client.producing.partitioner import partition_of_key
from tidemill.client.retry import UnknownTopic
from tidemill.errors import ApiError, ErrorCode
from tidemill.gateway.cluster.fetching import Fetcher, Read, record_bytes
from tidemill.gateway.console_api import listing
from tidemill.gateway.console_api.messages import message_row
from tidemill.gateway.console_api.picture import Row
from tidemill.protocol.isolation import READ_COMMITTED, READ_UNCOMMITTED
from tidemill.protocol.records import Record
from tidemill.types import TopicPartition

LIMIT_DEFAULT = 50
LIMIT_MAX = 500
SCAN_DEFAULT = 10_000
SCAN_MAX = 1_000_000
ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
_SECONDS_MAX = 5.0
# What an answer shows, and what is held of all partitions at a time while reading backward.
_SHOWN_BYTES_MAX = 16 * 1024 * 1024
_HELD_BYTES_MAX = 32 * 1024 * 1024
_STEP_MIN, _STEP_MAX = 8, 8192
# Between two rounds that brought nothing, because a leader has just moved.
_PAUSE_S = 0.02
_INT32_MAX = 2**31 - 1
_KINDS = "earliest, latest, offset:N, time:MS, offsets:P:N,P:N or before:P:N,P:N"


@dataclass(frozen=True)
class Query:
    partition: int | None = None
    # earliest, latest, offset, time, offsets or before.
    start: str = "latest"
    value: int = 0
    positions: dict[int, int] = field(default_factory=dict)
    key: bytes | None = None
    # In lower case.
    contains: bytes | None = None
    limit: int = LIMIT_DEFAULT
    max_scan: int = SCAN_DEFAULT
    isolation_level: int = READ_UNCOMMITTED

    @property
    def is_backward(self) -> bool:
        return self.start in ("latest", "before")

    def matches(self, record: Record) -> bool:
        if self.key is not None and record.key != self.key:
            return False
        if self.contains is None:
            return True
        parts = [record.key, record.value, *(header.value for header in record.headers)]
        return any(part is not None and self.contains in part.lower() for part in parts)


def parse_query(request: Request) -> Query:
    start, value, positions = _parse_from(listing.text(request, "from") or "latest")
    key = listing.text(request, "key")
    contains = listing.text(request, "contains")
    isolation = listing.choice(request, "isolation", list(ISOLATION_LEVELS))
    return Query(
        partition=listing.optional_number(request, "partition", _INT32_MAX),
        start=start,
        value=value,
        positions=positions,
        key=None if key is None else key.encode("utf-8", "surrogateescape"),
        contains=None if contains is None else contains.encode("utf-8", "surrogateescape").lower(),
        limit=listing.number(request, "limit", LIMIT_DEFAULT, 1, LIMIT_MAX),
        max_scan=listing.number(request, "max_scan", SCAN_DEFAULT, 1, SCAN_MAX),
        isolation_level=ISOLATION_LEVELS[isolation or "read_uncommitted"],
    )


def _parse_from(text: str) -> tuple[str, int, dict[int, int]]:
    kind, _, rest = text.partition(":")
    match kind:
        case "earliest" | "latest" if not rest:
            return kind, 0, {}
        case "offset" | "time":
            return kind, listing.whole_number(f"from={kind}:", rest), {}
        case "offsets" | "before":
            positions = {}
            for pair in rest.split(","):
                partition, _, offset = pair.partition(":")
                index = listing.whole_number("a partition in from", partition, 0, _INT32_MAX)
                positions[index] = listing.whole_number("an offset in from", offset)
            return kind, 0, positions
    raise listing.refused(f"from is {_KINDS}, not {text[:50]!r}")


def read(admin: Admin, topic: str, query: Query) -> Row:
    """The answer, as the console gets it. In a thread."""
    reading = _Reading(admin, topic, query)
    return reading.backward() if query.is_backward else reading.forward()


class _Reading:
    """One question while it is answered."""

    def __init__(self, admin: Admin, topic: str, query: Query) -> None:
        self._admin = admin
        self._topic = topic
        self._query = query
        self._fetcher = Fetcher(admin.cluster, topic, query.isolation_level)
        self._deadline_s = time.monotonic() + _SECONDS_MAX
        self._leaders = self._fetcher.leaders()
        self._partitions = self._readable()
        wanted = [TopicPartition(topic, each) for each in self._partitions]
        self._starts = {each.partition: offset for each, offset in admin.start_offsets(wanted).items()}
        ends = admin.end_offsets(wanted, query.isolation_level)
        self._ends = {each.partition: offset for each, offset in ends.items()}
        self.items: list[Row] = []
        self.scanned = 0
        self._shown_bytes = 0

    def _readable(self) -> list[int]:
        """Returns the requested partitions that have a leader."""
        query = self._query
        wanted = sorted(query.positions or self._leaders)
        if query.partition is not None:
            wanted = [query.partition]
        for each in wanted:
            if each not in self._leaders:
                last = len(self._leaders) - 1
                raise UnknownTopic(f"topic {self._topic} has no partition {each}, only 0 to {last}")
        readable = [each for each in wanted if self._leaders[each] >= 0]
        if not readable:
            raise ApiError(
                ErrorCode.LEADER_NOT_AVAILABLE,
                f"no partition of topic {self._topic} that is asked for has a leader",
            )
        self._is_all = len(readable) == len(wanted)
        return readable

    def _is_over(self) -> bool:
        query = self._query
        return (
            len(self.items) >= query.limit
            or self.scanned >= query.max_scan
            or self._shown_bytes >= _SHOWN_BYTES_MAX
            or time.monotonic() >= self._deadline_s
        )

    def _look_at(self, found: Read) -> None:
        self.scanned += 1
        if self._query.matches(found.record):
            self.items.append(message_row(found, self._topic))
            self._shown_bytes += min(record_bytes(found.record), _SHOWN_BYTES_MAX)

    def _answer(self, *, is_complete: bool, following: dict[int, int], previous: dict[int, int]) -> Row:
        key = self._query.key
        if self._query.is_backward:
            remaining = sum(max(0, offset - self._starts[each]) for each, offset in previous.items())
        else:
            remaining = sum(max(0, self._ends[each] - offset) for each, offset in following.items())
        return {
            "items": self.items,
            "scanned": self.scanned,
            "remaining": remaining,
            "is_complete": is_complete and self._is_all,
            "next": following,
            "previous": previous,
            "key_partition": None if key is None else partition_of_key(key, len(self._leaders)),
        }

    # --- forward ---

    def forward(self) -> Row:
        begins = self._begins()
        streams = {each: _Forward(each, begins[each], self._ends[each]) for each in self._partitions}
        heads: list[tuple[int, int]] = []
        starving = list(streams.values())
        while not self._is_over():
            if starving:
                self._feed(starving)
                heads = [
                    (each.head.record.timestamp, each.partition) for each in streams.values() if each.head
                ]
                heapq.heapify(heads)
            if not heads:
                break
            _, partition = heads[0]
            stream = streams[partition]
            self._look_at(stream.take())
            if stream.head:
                heapq.heapreplace(heads, (stream.head.record.timestamp, partition))
            else:
                heapq.heappop(heads)
            starving = [] if stream.head or stream.is_done else [stream]
        return self._answer(
            is_complete=all(each.is_done for each in streams.values()),
            following={each.partition: each.position for each in streams.values()},
            previous=begins,
        )

    def _begins(self) -> dict[int, int]:
        query = self._query
        match query.start:
            case "offsets":
                wanted = query.positions
            case "time":
                partitions = [TopicPartition(self._topic, each) for each in self._partitions]
                found = self._admin.offsets_at(partitions, query.value)
                wanted = {each.partition: offset for each, offset in found.items()}
            case "offset":
                wanted = dict.fromkeys(self._partitions, query.value)
            case _:
                wanted = self._starts
        # What retention has taken is not there any more; what is to come is not there yet.
        return {each: max(wanted.get(each, 0), self._starts[each]) for each in self._partitions}

    def _feed(self, streams: Iterable[_Forward]) -> None:
        """Reads until each partition has a record to show, or none is left in it."""
        starving = {each.partition: each for each in streams}
        while starving and time.monotonic() < self._deadline_s:
            chunks = self._fetcher.round({each.partition: each.fetch_position for each in starving.values()})
            is_idle = True
            for chunk in chunks.values():
                stream = starving[chunk.partition]
                if chunk.is_out_of_range:
                    self._find_again(stream)
                elif chunk.batches:
                    is_idle = False
                    stream.add(chunk.records(stream.end), chunk.next_position)
            starving = {
                each.partition: each for each in starving.values() if not each.head and not each.is_done
            }
            if starving and is_idle:
                time.sleep(_PAUSE_S)

    def _find_again(self, stream: _Forward) -> None:
        """Retention has passed the position, or the log was cut below it."""
        place = TopicPartition(self._topic, stream.partition)
        stream.end = min(stream.end, self._admin.end_offsets([place], self._query.isolation_level)[place])
        stream.skip_to(max(stream.fetch_position, self._admin.start_offsets([place])[place]))

    # --- backward ---

    def backward(self) -> Row:
        uppers = {
            each: min(self._query.positions.get(each, self._ends[each]), self._ends[each])
            for each in self._partitions
        }
        count = len(self._partitions)
        step = max(_STEP_MIN, 2 * self._query.limit // count)
        if self._query.key is not None or self._query.contains is not None:
            step = max(step, min(_STEP_MAX, self._query.max_scan // count))
        streams = {
            each: _Backward(each, self._starts[each], uppers[each], step, _HELD_BYTES_MAX // count)
            for each in self._partitions
        }
        heads: list[tuple[int, int]] = []
        starving = list(streams.values())
        while not self._is_over():
            if starving:
                self._feed_backward(starving)
                heads = [
                    (-each.held[-1].record.timestamp, each.partition)
                    for each in streams.values()
                    if each.held
                ]
                heapq.heapify(heads)
            if not heads:
                break
            _, partition = heads[0]
            stream = streams[partition]
            self._look_at(stream.take())
            if stream.held:
                heapq.heapreplace(heads, (-stream.held[-1].record.timestamp, partition))
            else:
                heapq.heappop(heads)
            starving = [] if stream.held or stream.is_done else [stream]
        return self._answer(
            is_complete=all(each.is_done and not each.held for each in streams.values()),
            following=uppers,
            previous={each.partition: each.position for each in streams.values()},
        )

    def _feed_backward(self, streams: Iterable[_Backward]) -> None:
        starving = {each.partition: each for each in streams if not each.is_done}
        while starving and time.monotonic() < self._deadline_s:
            for stream in starving.values():
                stream.step_back()
            self._read_steps(starving)
            starving = {
                each.partition: each for each in starving.values() if not each.held and not each.is_done
            }

    def _read_steps(self, streams: dict[int, _Backward]) -> None:
        positions = {each.partition: each.low for each in streams.values()}
        while positions:
            if time.monotonic() >= self._deadline_s:
                for partition in positions:
                    streams[partition].give_up()
                return
            chunks = self._fetcher.round(positions)
            is_idle = True
            for partition, chunk in chunks.items():
                stream = streams[partition]
                if chunk.is_out_of_range:
                    # Retention took it meanwhile, and everything before it.
                    place = TopicPartition(self._topic, partition)
                    stream.start = self._admin.start_offsets([place])[place]
                    positions[partition] = max(stream.start, positions[partition] + 1)
                elif chunk.batches:
                    is_idle = False
                    stream.add(chunk.records(stream.high))
                    positions[partition] = chunk.next_position
                if positions[partition] >= stream.high:
                    stream.end_step()
                    del positions[partition]
            if positions and is_idle:
                time.sleep(_PAUSE_S)


class _Forward:
    """One partition's records up to `end`, as far as they are fetched."""

    def __init__(self, partition: int, position: int, end: int) -> None:
        self.partition = partition
        # The first that was not looked at.
        self.position = position
        self.fetch_position = position
        self.end = end
        self.head: Read | None = None
        self._buffered: Iterator[Read] = iter(())

    @property
    def is_done(self) -> bool:
        return self.head is None and self.fetch_position >= self.end

    def add(self, records: Iterator[Read], next_position: int) -> None:
        self._buffered = records
        self.fetch_position = next_position
        self._advance()

    def take(self) -> Read:
        taken = self.head
        assert taken is not None
        self.position = taken.record.offset + 1
        self._advance()
        return taken

    def skip_to(self, position: int) -> None:
        self.position = self.fetch_position = position

    def _advance(self) -> None:
        self.head = next(self._buffered, None)
        if self.head is None:
            self.position = max(self.position, min(self.fetch_position, self.end))


class _Backward:
    """One partition's records below a position, read in steps; what is held is in the order of offsets."""

    def __init__(self, partition: int, start: int, upper: int, step: int, held_bytes_max: int) -> None:
        self.partition = partition
        self.start = start
        # Everything from here on was looked at.
        self.position = max(start, upper)
        # The step that is read: [low, high).
        self.low = self.high = self.position
        self.held: deque[Read] = deque()
        self._step = step
        self._held_bytes = 0
        self._held_bytes_max = held_bytes_max
        self._is_overfull = False

    @property
    def is_done(self) -> bool:
        return self.low <= self.start

    def step_back(self) -> None:
        self.high = self.low
        self.low = max(self.start, self.high - self._step)
        self._step = min(self._step * 2, _STEP_MAX)
        self._held_bytes = 0
        self._is_overfull = False

    def add(self, records: Iterator[Read]) -> None:
        for each in records:
            self.held.append(each)
            self._held_bytes += record_bytes(each.record)
            while self._held_bytes > self._held_bytes_max and len(self.held) > 1:
                self._held_bytes -= record_bytes(self.held.popleft().record)
                self._is_overfull = True

    def end_step(self) -> None:
        if self._is_overfull:
            # The older ones did not fit: they are read again, in smaller steps.
            self.low = self.held[0].record.offset
            self._step = max(1, len(self.held) // 2)
        elif not self.held:
            self.position = self.low

    def give_up(self) -> None:
        """The step was not read to its end, so nothing of it counts."""
        self.held.clear()
        self.low = self.high

    def take(self) -> Read:
        taken = self.held.pop()
        self.position = taken.record.offset if self.held else self.low
        return taken
