"""The workload of delayed records: its producer, its readers, and the rules that hold for what they saw.

Some records are ordinary, most wait for a time, some have a schedule id, and some of those are cancelled. In worlds with
schedules some recur, some wait for a time after their append, and some take the place of others. The log decides: a copy
behind a cancel is a violation, one before it is not. Clocks of brokers may be wrong, so a record may be delivered
early by as much as the fastest clock was ever ahead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.protocol.records import Header, Record, build_batch
from tidemill.sim.checks.checker import MessageId, Violation
from tidemill.sim.clients.base import Client
from tidemill.sim.clients.fetching import Position, message_of
from tidemill.sim.clients.producer import Batch, IdempotentProducer
from tidemill.sim.stage import Stage
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.protocol.api.data import PartitionProduceResponse

DELAY_TOPIC = "later"
DELAY_CONFIGS = {DELAY_TOPIC: {"tidemill.delays.enable": "true"}}
_PARTITIONS = 2
DELAY_TOPICS = {DELAY_TOPIC: _PARTITIONS}
_DELAY_S_MAX = 40.0
_WAIT_MS = 5_000
_END_LIMIT_S = 300.0
# A copy that comes twice would come soon after the first.
_QUIET_S = 20.0


@dataclass(frozen=True, slots=True)
class Wish:
    """The request in a record. `ends` are the numbers of the messages that it cancels or replaces."""

    # The time that it names.
    due_ms: int | None = None
    ends: tuple[int, ...] = ()
    # Whether it waits for a time that counts from the append, and whether it comes again and again.
    counts_from_append: bool = False
    recurs: bool = False

    @property
    def waits(self) -> bool:
        return self.due_ms is not None or self.counts_from_append

    @property
    def is_shown(self) -> bool:
        """Whether readers get it some time, unless it is ended."""
        return self.waits or not self.ends


@dataclass(frozen=True, slots=True)
class Taken:
    """The broker acknowledged a message."""

    at_s: float
    partition: TopicPartition
    offset: int
    message: MessageId
    wish: Wish


@dataclass(frozen=True, slots=True)
class Seen:
    """A reader was shown a message. The headers of a copy are None unless it is the copy of a delayed record."""

    at_s: float
    reader: str
    partition: TopicPartition
    offset: int
    message: MessageId
    original_offset: int | None
    due_ms: int | None
    next_due_ms: int | None
    wall_ms: int


Event = Taken | Seen


class DelayedProducer(IdempotentProducer):
    """Writes ordinary, delayed and cancelling records to one partition."""

    def __init__(self, client: Client, tp: TopicPartition, pause_s_max: float, events: list[Event]) -> None:
        super().__init__(client, tp, pause_s_max)
        self._events = events
        self._wishes: dict[int, Wish] = {}

    def _encode(self, numbers: range, sequence: int) -> bytes:
        return bytes(
            build_batch(
                (self._record(index, number) for index, number in enumerate(numbers)),
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                base_sequence=sequence,
            )
        )

    def _record(self, index: int, number: int) -> Record:
        rng, wall_ms = self._client.rng, self._client.record.wall_ms()
        key, headers = b"%d" % number, []
        kind = rng.random()
        earlier = number - rng.randint(1, 10)
        wish = Wish()
        if kind < 0.1 and self._wishes.get(earlier, wish).due_ms is not None:
            wish = Wish(ends=(earlier,))
            key = b"%d" % earlier
            headers = [Header("tidemill-schedule-id", b"s"), Header("tidemill-cancel", b"")]
        elif kind < 0.85:
            wish = Wish(due_ms=wall_ms + int(rng.uniform(-1, _DELAY_S_MAX) * 1000))
            headers = [Header("tidemill-deliver-at", b"%d" % (wish.due_ms or 0))]
            headers.append(Header("tidemill-schedule-id", b"s"))
        self._wishes[number] = wish
        return Record(index, wall_ms, key, f"{self._name}/{number}".encode(), headers)

    def _acknowledged(self, batch: Batch, result: PartitionProduceResponse) -> None:
        self.acked += len(batch.numbers)
        for index, number in enumerate(batch.numbers):
            message = MessageId(self._name, number)
            at_s, offset = self._client.record.now_s(), result.base_offset + index
            self._events.append(Taken(at_s, self._tp, offset, message, self._wishes[number]))


class SchedulingProducer(DelayedProducer):
    """Writes delays that count from the append, schedules, and records that replace or cancel others of their name."""

    def __init__(self, client: Client, tp: TopicPartition, pause_s_max: float, events: list[Event]) -> None:
        super().__init__(client, tp, pause_s_max, events)
        # By key: the numbers of the messages that have it.
        self._named: dict[bytes, tuple[int, ...]] = {}

    def _record(self, index: int, number: int) -> Record:
        rng, wall_ms = self._client.rng, self._client.record.wall_ms()
        key, kind = b"%d" % number, rng.random()
        recent = list(self._named)[-10:]
        if recent and kind < 0.25:
            key = rng.choice(recent)
        ends = self._named.get(key, ())
        wish, headers = Wish(), []
        if ends and kind < 0.12:
            wish, headers = Wish(ends=ends), [Header("tidemill-cancel", b"")]
        elif kind < 0.9:
            wish, header = self._time(wall_ms, ends)
            headers = [header]
            self._named[key] = (*ends, number)
        if headers:
            headers.append(Header("tidemill-schedule-id", b"s"))
        self._wishes[number] = wish
        return Record(index, wall_ms, key, f"{self._name}/{number}".encode(), headers)

    def _time(self, wall_ms: int, ends: tuple[int, ...]) -> tuple[Wish, Header]:
        rng = self._client.rng
        kind, delay_ms = rng.random(), int(rng.uniform(0, _DELAY_S_MAX) * 1000)
        if kind < 0.4:
            return Wish(wall_ms + delay_ms, ends), Header("tidemill-deliver-at", b"%d" % (wall_ms + delay_ms))
        if kind < 0.8:
            return Wish(None, ends, counts_from_append=True), Header("tidemill-delay", b"%dms" % delay_ms)
        seconds = rng.choice((5, 10, 15, 20))
        text = b"@every %ds" % seconds if kind < 0.9 else b"*/%d * * * * *" % seconds
        return Wish(None, ends, counts_from_append=True, recurs=True), Header("tidemill-schedule", text)


class DelayedReader:
    """Reads a partition from its start, and notes what it is shown."""

    def __init__(self, client: Client, tp: TopicPartition, events: list[Event], rack: str) -> None:
        self._client = client
        self._tp = tp
        self._events = events
        self._position = Position(client, tp, rack=rack)
        self.seen: set[MessageId] = set()

    async def run(self) -> None:
        record = self._client.record
        while True:
            for each in await self._position.fetch_records(_WAIT_MS):
                message = message_of(each.value or b"")
                self.seen.add(message)
                self._events.append(
                    Seen(
                        record.now_s(),
                        self._client.name,
                        self._tp,
                        each.offset,
                        message,
                        _number(each, "tidemill-original-offset"),
                        _number(each, "tidemill-due"),
                        _number(each, "tidemill-next-due"),
                        record.wall_ms(),
                    )
                )
            await asyncio.sleep(0)


def _number(record: Record, name: str) -> int | None:
    """A header of the broker."""
    value = next((header.value for header in record.headers if header.key == name), None)
    return None if value is None else int(value)


class DelayedCrowd:
    """All clients of this workload."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.events: list[Event] = []
        self._producers: list[DelayedProducer] = []
        self._readers: list[tuple[TopicPartition, DelayedReader]] = []

    def start(self) -> None:
        stage = self._stage
        for index in range(_PARTITIONS):
            tp = TopicPartition(DELAY_TOPIC, index)
            client = stage.client(f"delaying-{index}")
            kind = SchedulingProducer if stage.plan.has_schedules else DelayedProducer
            producer = kind(client, tp, 2 * stage.plan.pause_s_max, self.events)
            self._producers.append(producer)
            stage.spawn(client, producer.run())
            for rack in ("", "rack-1"):
                client = stage.client(f"delayed-reader-{index}{rack and '-near'}")
                reader = DelayedReader(client, tp, self.events, rack)
                self._readers.append((tp, reader))
                stage.spawn(client, reader.run())

    def finish(self, ahead_ms_max: int) -> bool:
        """Wait until everything that is to be delivered was seen, and a little longer.

        What counts from an append by the clock that was ahead the most is due by that clock, so all clocks show its time.
        """
        stage = self._stage
        if not stage.wait_for(
            lambda: all(each.is_done for each in self._producers), _END_LIMIT_S, "writers end"
        ):
            return False
        for machine in stage.cluster.machines.values():
            machine.clock.skew_ms = max(0, ahead_ms_max) if stage.plan.has_schedules else 0
        missing = self._missing()

        def is_delivered() -> bool:
            # Asked after every step of the world, so the work of one answer is kept for the next.
            while missing and missing[-1][0] in missing[-1][1].seen:
                missing.pop()
            return not missing

        if not stage.wait_for(is_delivered, _END_LIMIT_S, "delayed records are delivered"):
            never = [message for message, reader in missing if message not in reader.seen]
            stage.accuse(f"never delivered: {never[:3]}")
            return False
        stage.scheduler.run_until(stage.scheduler.now_s + _QUIET_S, lambda: bool(stage.violations))
        return not stage.violations

    def _missing(self) -> list[tuple[MessageId, DelayedReader]]:
        """Returns taken messages with the readers that have not seen them. Complete when the producers are done."""
        taken = [event for event in self.events if isinstance(event, Taken)]
        cancelled = _cancelled(taken)
        return [
            (event.message, reader)
            for tp, reader in self._readers
            for event in taken
            if event.partition == tp
            and event.wish.is_shown
            and event.message not in cancelled
            and event.message not in reader.seen
        ]


def _cancelled(taken: Sequence[Taken]) -> dict[MessageId, int]:
    """By message: the offset of the first record that cancels or replaces it."""
    cancelled: dict[MessageId, int] = {}
    for event in taken:
        for number in event.wish.ends:
            message = MessageId(event.message.producer, number)
            cancelled[message] = min(event.offset, cancelled.get(message, event.offset))
    return cancelled


def check_delays(events: Sequence[Event], ahead_ms_max: int) -> list[Violation]:
    # Clocks that were all behind are right at the end.
    return [Violation("delays", text) for text in _violations(events, max(0, ahead_ms_max))]


def _violations(events: Sequence[Event], ahead_ms_max: int) -> Iterator[str]:
    taken = {event.message: event for event in events if isinstance(event, Taken)}
    cancelled = _cancelled(list(taken.values()))
    seen = [event for event in events if isinstance(event, Seen)]
    yield from _repeated(seen, taken)
    for each in seen:
        known = taken.get(each.message)
        if known is None:
            continue  # its acknowledgement was lost
        wish, place = known.wish, f"{each.message} at {each.partition} offset {each.offset}"
        if not wish.waits:
            if wish.ends:
                yield f"{place} cancels another record and was shown"
            elif each.offset != known.offset:
                yield f"{place} was acked at {known.offset}"
            continue
        if each.original_offset != known.offset:
            yield f"{place} is shown as a copy of {each.original_offset} and was acked at {known.offset}"
        if wish.due_ms is not None and each.due_ms != wish.due_ms:
            yield f"{place} says that it was due at {each.due_ms}, and asked for {wish.due_ms}"
        if each.due_ms is None or each.wall_ms + ahead_ms_max < each.due_ms:
            yield f"{place} was shown at {each.wall_ms} and was due at {each.due_ms}"
        if (each.next_due_ms is not None) != wish.recurs:
            yield f"{place} is due again at {each.next_due_ms}"
        if cancelled.get(each.message, each.offset) < each.offset:
            yield f"{place} was cancelled at offset {cancelled[each.message]}"


def _repeated(seen: Sequence[Seen], taken: Mapping[MessageId, Taken]) -> Iterator[str]:
    """A message is shown once, and one that recurs once for each of its times, in their order."""
    last: dict[tuple[str, MessageId], Seen] = {}
    for each in seen:
        before = last.get((each.reader, each.message))
        last[each.reader, each.message] = each
        if before is None:
            continue
        known = taken.get(each.message)
        if known is not None and not known.wish.recurs:
            yield f"{each.reader} was shown {each.message} at offsets {before.offset} and {each.offset}"
        elif before.next_due_ms is None or each.due_ms is None or each.due_ms < before.next_due_ms:
            yield (
                f"{each.reader} was shown {each.message} for {each.due_ms} after the copy for {before.due_ms}, "
                f"which said {before.next_due_ms}"
            )
