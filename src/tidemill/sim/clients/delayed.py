"""Simulated clients of delayed records: producers with and without transactions, and readers.

Some records are ordinary, most wait for a time, some have a schedule id, and some of those are cancelled. In worlds with
schedules some recur, some wait for a time after their append, and some take the place of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from tidemill.errors import ErrorCode
from tidemill.protocol.records import Header, Record, build_batch
from tidemill.sim.checks.checker import MessageId
from tidemill.sim.checks.delays import Event, Seen, Skipped, Taken, Wish
from tidemill.sim.clients.base import Client
from tidemill.sim.clients.fetching import EARLIEST, Position, message_of
from tidemill.sim.clients.producer import Batch, IdempotentProducer
from tidemill.sim.clients.transactional import TransactionalProducer
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.protocol.api.data import PartitionProduceResponse

DELAY_S_MAX = 40.0
_WAIT_MS = 5_000


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
            wish = Wish(ends=(MessageId(self._name, earlier),))
            key = b"%d" % earlier
            headers = [Header("tidemill-schedule-id", b"s"), Header("tidemill-cancel", b"")]
        elif kind < 0.85:
            wish = Wish(due_ms=wall_ms + int(rng.uniform(-1, DELAY_S_MAX) * 1000))
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


class Scheduling:
    """Draws delays that count from the append, schedules, and records that replace or cancel others of their name."""

    def __init__(self, rng: Random, delay_s_max: float) -> None:
        self._rng = rng
        self._delay_s_max = delay_s_max
        # By key: the messages that have it.
        self._named: dict[bytes, tuple[MessageId, ...]] = {}

    def draw(
        self, index: int, message: MessageId, key: bytes, wall_ms: int, value: bytes
    ) -> tuple[Wish, Record]:
        """The request of a message, and its record. `key` is its key, unless it takes that of an earlier one."""
        rng = self._rng
        kind = rng.random()
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
            self._named[key] = (*ends, message)
        if headers:
            headers.append(Header("tidemill-schedule-id", b"s"))
        return wish, Record(index, wall_ms, key, value, headers)

    def _time(self, wall_ms: int, ends: tuple[MessageId, ...]) -> tuple[Wish, Header]:
        rng = self._rng
        kind, delay_ms = rng.random(), int(rng.uniform(0, self._delay_s_max) * 1000)
        if kind < 0.4:
            return Wish(wall_ms + delay_ms, ends), Header("tidemill-deliver-at", b"%d" % (wall_ms + delay_ms))
        if kind < 0.8:
            return Wish(None, ends, counts_from_append=True), Header("tidemill-delay", b"%dms" % delay_ms)
        seconds = rng.choice((5, 10, 15, 20))
        text = b"@every %ds" % seconds if kind < 0.9 else b"*/%d * * * * *" % seconds
        return Wish(None, ends, counts_from_append=True, recurs=True), Header("tidemill-schedule", text)


class SchedulingProducer(DelayedProducer):
    """Writes what `Scheduling` draws."""

    def __init__(
        self,
        client: Client,
        tp: TopicPartition,
        pause_s_max: float,
        events: list[Event],
        delay_s_max: float = DELAY_S_MAX,
    ) -> None:
        super().__init__(client, tp, pause_s_max, events)
        self._scheduling = Scheduling(client.rng, delay_s_max)

    def _record(self, index: int, number: int) -> Record:
        message, wall_ms = MessageId(self._name, number), self._client.record.wall_ms()
        value = f"{self._name}/{number}".encode()
        wish, record = self._scheduling.draw(index, message, b"%d" % number, wall_ms, value)
        self._wishes[number] = wish
        return record


class DelayedTransactions(TransactionalProducer):
    """Writes what `Scheduling` draws, in transactions that commit or abort."""

    def __init__(
        self,
        client: Client,
        transactional_id: str,
        partitions: Sequence[TopicPartition],
        pause_s_max: float,
        events: list[Event],
        delay_s_max: float,
    ) -> None:
        super().__init__(client, transactional_id, partitions, pause_s_max)
        self._events = events
        self._schedulings = {tp: Scheduling(client.rng, delay_s_max) for tp in partitions}
        self._drawn = 0

    async def _write(self) -> None:
        client = self._client
        tp = client.rng.choice(self._partitions)
        wishes: list[Wish] = []

        def record_of(index: int, message: MessageId) -> Record:
            self._drawn += 1
            key, wall_ms = f"{client.name}-{self._drawn}".encode(), client.record.wall_ms()
            wish, record = self._schedulings[tp].draw(index, message, key, wall_ms, str(message).encode())
            wishes.append(wish)
            return record

        messages, base_offset = await self._transactor.write_records(tp, client.rng.randint(1, 3), record_of)
        if base_offset < 0:
            return  # a duplicate whose offset the broker does not know any more
        at_s = client.record.now_s()
        for index, (message, wish) in enumerate(zip(messages, wishes, strict=True)):
            self._events.append(Taken(at_s, tp, base_offset + index, message, wish))


class _ExpiringPosition(Position):
    """A position in a partition whose first records retention removes. It goes on at the log start then."""

    def __init__(
        self,
        client: Client,
        tp: TopicPartition,
        rack: str,
        skipped: Callable[[Skipped], None],
        *,
        is_read_committed: bool,
    ) -> None:
        super().__init__(client, tp, rack=rack, is_read_committed=is_read_committed)
        self._skipped = skipped
        self._is_behind = False

    def _refused(self, code: ErrorCode, follower: int | None, high_watermark: int) -> None:  # noqa: ARG002
        self._is_behind |= code == ErrorCode.OFFSET_OUT_OF_RANGE and follower is None

    async def fetch_records(self, max_wait_ms: int) -> list[Record]:
        if self._is_behind:
            start_offset = await self.list_offset(EARLIEST)
            if start_offset is None:
                await self._look_around()
                return []
            self._is_behind = False
            if start_offset > self.offset:
                self._skipped(Skipped(self._client.record.wall_ms(), self.offset, start_offset))
                self.offset, self.epoch = start_offset, -1
        return await super().fetch_records(max_wait_ms)


class DelayedReader:
    """Reads a partition from its start, and notes what it is shown."""

    def __init__(
        self,
        client: Client,
        tp: TopicPartition,
        events: list[Event],
        rack: str,
        *,
        is_read_committed: bool = False,
        is_expiring: bool = False,
    ) -> None:
        self._client = client
        self._tp = tp
        self._events = events
        self._is_read_committed = is_read_committed
        self.seen: set[MessageId] = set()
        self.skipped: list[Skipped] = []
        self._position = (
            _ExpiringPosition(client, tp, rack, self.skipped.append, is_read_committed=is_read_committed)
            if is_expiring
            else Position(client, tp, rack=rack, is_read_committed=is_read_committed)
        )

    def may_have_missed(self, taken: Taken, ahead_ms_max: int) -> bool:
        return any(each.may_hold(taken, ahead_ms_max) for each in self.skipped)

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
                        self._is_read_committed,
                    )
                )
            await asyncio.sleep(0)


def _number(record: Record, name: str) -> int | None:
    """A header of the broker."""
    value = next((header.value for header in record.headers if header.key == name), None)
    return None if value is None else int(value)
