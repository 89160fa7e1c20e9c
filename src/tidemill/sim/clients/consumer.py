"""Simulated consumers without a group: one that reads along, and one that reads everything at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidemill.sim.checks.checker import (
    Assigned,
    Delivered,
    Drained,
    Found,
    LogEnded,
    MemberName,
    Shown,
    ShownToEnd,
)
from tidemill.sim.checks.transactions import Read, ReadToEnd
from tidemill.sim.clients.base import Client
from tidemill.sim.clients.fetching import Position
from tidemill.types import TopicPartition

_WAIT_MS = 5_000


class Reader:
    """Reads partitions from their start while they are written."""

    def __init__(self, client: Client, partitions: Sequence[TopicPartition], rack: str = "") -> None:
        self._client = client
        self._member = MemberName(client.name, client.name)
        self._positions = [Position(client, tp, rack=rack) for tp in partitions]
        # Where to stop; unknown until all messages are written.
        self.end_offsets: dict[TopicPartition, int] | None = None
        self.is_done = False

    async def run(self) -> None:
        record = self._client.record
        tps = tuple(position.tp for position in self._positions)
        record.history.append(Assigned(record.now_s(), self._member, tps))
        await asyncio.gather(*(self._read(position) for position in self._positions))
        record.history.append(Drained(record.now_s(), self._member.group))
        self.is_done = True

    async def _read(self, position: Position) -> None:
        record = self._client.record
        while self.end_offsets is None or position.offset < self.end_offsets[position.tp]:
            for offset, message in await position.fetch(_WAIT_MS):
                event = Delivered(record.now_s(), self._member, position.tp, offset, message)
                record.history.append(event)


class ViewReader:
    """Reads a view of a topic from its start while the topic is written. Reports offsets of the topic."""

    def __init__(
        self, client: Client, view: str, partitions: Sequence[TopicPartition], rack: str = ""
    ) -> None:
        self._client = client
        self._positions = [
            (tp, Position(client, TopicPartition(view, tp.partition), rack=rack)) for tp in partitions
        ]
        self.end_offsets: dict[TopicPartition, int] | None = None
        self.is_done = False

    async def run(self) -> None:
        await asyncio.gather(*(self._read(tp, position) for tp, position in self._positions))
        self.is_done = True

    async def _read(self, tp: TopicPartition, position: Position) -> None:
        record, name = self._client.record, self._client.name
        while self.end_offsets is None or position.offset < self.end_offsets[tp]:
            for offset, message in await position.fetch(_WAIT_MS):
                record.history.append(Shown(record.now_s(), name, tp, offset, message))
        record.history.append(ShownToEnd(record.now_s(), name, tp))


class Auditor:
    """Finds the end of each partition at the end of the run, then reads all of it."""

    def __init__(self, client: Client, partitions: Sequence[TopicPartition]) -> None:
        self._client = client
        self._partitions = partitions
        self.end_offsets: dict[TopicPartition, int] | None = None
        self.is_done = False

    async def run(self) -> None:
        positions = [Position(self._client, tp) for tp in self._partitions]
        self.end_offsets = {position.tp: await position.end_offset() for position in positions}
        await asyncio.gather(*(self._read(position) for position in positions))
        self.is_done = True

    async def _read(self, position: Position) -> None:
        assert self.end_offsets is not None
        record, tp = self._client.record, position.tp
        while position.offset < self.end_offsets[tp]:
            for offset, message in await position.fetch(_WAIT_MS):
                record.history.append(Found(record.now_s(), tp, offset, message))
        record.history.append(LogEnded(record.now_s(), tp))


class TransactionReader:
    """Reads transactional partitions from their start, at one isolation level."""

    def __init__(
        self, client: Client, partitions: Sequence[TopicPartition], *, is_read_committed: bool, rack: str = ""
    ) -> None:
        self._client = client
        self._is_read_committed = is_read_committed
        self._positions = [
            Position(client, tp, rack=rack, is_read_committed=is_read_committed) for tp in partitions
        ]
        self.end_offsets: dict[TopicPartition, int] | None = None
        self.is_done = False

    async def run(self) -> None:
        await asyncio.gather(*(self._read(position) for position in self._positions))
        self.is_done = True

    async def _read(self, position: Position) -> None:
        record, name, tp = self._client.record, self._client.name, position.tp
        while self.end_offsets is None or position.offset < self.end_offsets[tp]:
            for offset, message in await position.fetch(_WAIT_MS):
                record.transactions.append(
                    Read(record.now_s(), name, self._is_read_committed, tp, offset, message)
                )
        record.transactions.append(ReadToEnd(record.now_s(), name, self._is_read_committed, tp))
