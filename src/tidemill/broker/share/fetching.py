"""A ShareFetch that acquires records, at once or when there are enough (Kafka: DelayedShareFetch).

It goes through its partitions in the order of the session and acquires at most `max_records` in all of them together.
Reading and acquiring happen in one turn of the loop. Partitions with an error are answered without waiting for others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.broker.share.led_partition import LedSharePartition
from tidemill.broker.share.reading import Part, Shared
from tidemill.errors import ApiError, ErrorCode, StorageError
from tidemill.replication.share_messages import Acquired


@dataclass(frozen=True, slots=True)
class Wanted:
    """The limits of a member's fetch."""

    member_id: str
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    max_wait_ms: int


class SharedRecords(NamedTuple):
    """The acquired records of one partition, or its error."""

    source: LedSharePartition
    parts: Sequence[Part] = ()
    acquired: Sequence[Acquired] = ()
    error: ApiError | None = None


class DelayedShareFetch:
    def __init__(self, sources: Sequence[LedSharePartition], wanted: Wanted) -> None:
        self._sources = sources
        self._wanted = wanted
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = wanted.max_wait_ms <= 0
        self.result: asyncio.Future[list[SharedRecords]] = self._loop.create_future()

    def start(self) -> None:
        """Complete now, or wait. What came earlier is served first."""
        for source in self._sources:
            source.wait(self)
        if self._is_over or not any(source.has_queue for source in self._sources):
            self.try_complete()
        if not self.result.done():
            self._timer = self._loop.call_later(self._wanted.max_wait_ms / 1000, self._time_is_over)

    def abandon(self) -> None:
        """The member is gone: it acquires nothing any more."""
        if not self.result.done():
            self._finish([])

    def _time_is_over(self) -> None:
        self._is_over = True
        self.try_complete()

    def try_complete(self) -> bool:
        if self.result.done():
            return True
        found: list[tuple[LedSharePartition, Shared]] = []
        failed: list[SharedRecords] = []
        left = self._wanted.max_bytes
        for source in self._sources:
            if source.end_if_replaced():
                failed.append(SharedRecords(source, error=source.error))
                continue
            try:
                read = source.read(left, at_least_one=not found)
            except StorageError as damage:
                source.report_damage(str(damage))
                failed.append(SharedRecords(source, error=ApiError(ErrorCode.KAFKA_STORAGE_ERROR)))
                continue
            if read is not None:
                found.append((source, read))
                left = max(0, left - read.length)
        has_enough = bool(found) and self._wanted.max_bytes - left >= self._wanted.min_bytes
        if not (failed or has_enough or self._is_over):
            return False
        records = self._acquire(found, failed)
        if not (records or self._is_over):
            return False
        self._finish(records)
        return True

    def _acquire(
        self, found: Sequence[tuple[LedSharePartition, Shared]], failed: list[SharedRecords]
    ) -> list[SharedRecords]:
        results = list(failed)
        left = self._wanted.max_records
        for source, read in found:
            if left <= 0:
                break
            machine = source.machine
            assert machine is not None, "it was read in this turn of the loop"
            before = machine.next_fetch_offset(source.steady_ms())
            try:
                acquired = machine.acquire(
                    self._wanted.member_id, read.spans(), left, self._wanted.batch_size, source.steady_ms()
                )
            except StorageError as damage:
                source.report_damage(str(damage))
                results.append(SharedRecords(source, error=ApiError(ErrorCode.KAFKA_STORAGE_ERROR)))
                continue
            if acquired:
                source.locked()
                left -= sum(each.end_offset - each.first_offset for each in acquired)
                results.append(SharedRecords(source, read.parts_with(acquired), acquired))
            elif machine.next_fetch_offset(source.steady_ms()) != before:
                # There was nothing to deliver, and there may be behind it.
                source.wake()
        return results

    def _finish(self, records: list[SharedRecords]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for source in self._sources:
            source.stop_waiting(self)
        self.result.set_result(records)
