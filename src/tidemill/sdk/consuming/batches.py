"""Batches, as a loop sees them.

    with client.consume("orders", group="billing") as batches:
        for batch in batches:
            ...

Asking for the next batch says that the one before is done. So does leaving the block without an exception. Leaving it
with one, or closing it in any other way, says that it is not: the batch is handed out again, except at most once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from types import TracebackType
from typing import Any, Self, overload

from tidemill.sdk.consuming.positions import Place
from tidemill.sdk.consuming.reader import Chunk, Reader
from tidemill.sdk.errors import ClientError
from tidemill.sdk.publishing.publisher import Publication
from tidemill.sdk.records import Headers, NewRecord, Record, Serializer, Text
from tidemill.sdk.settings import LOGGER
from tidemill.types import TopicPartition


class Attempt(AbstractContextManager[Record, bool]):
    """The work on one record of a batch."""

    def __init__(self, chunk: Chunk, reader: Reader, record: Record) -> None:
        self._chunk = chunk
        self._reader = reader
        self._record = record

    def __enter__(self) -> Record:
        return self._record

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        # Ctrl-C and a cancelled task are no failures of the record.
        if not isinstance(error, Exception):
            return False
        self._reader.fail(self._chunk, self._record, error)
        return True


class RecordBatch(Sequence[Record]):
    """Records that were read together, in the order of their partitions."""

    def __init__(self, chunk: Chunk, reader: Reader) -> None:
        self._chunk = chunk
        self._reader = reader

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self._chunk.records[index]

    def __len__(self) -> int:
        return len(self._chunk.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._chunk.records)

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The offsets to commit for this batch: by partition, the offset after its last record."""
        return dict(self._chunk.next_offsets)

    def attempt(self, record: Record) -> Attempt:
        """A block in which the record is worked on. With `consume(retries=...)` an exception that leaves it is swallowed:
        the record is retried later, or put among the dead letters, and the batch goes on."""
        return Attempt(self._chunk, self._reader, record)

    def fail(self, record: Record, why: BaseException | str) -> None:
        """Fails a record as an exception in `attempt` does, without one."""
        self._reader.fail(self._chunk, record, why)

    def __repr__(self) -> str:
        places = ", ".join(
            f"{place} {self._chunk.first_offsets[place]} to {after - 1}"
            for place, after in self._chunk.next_offsets.items()
        )
        return f"<{type(self).__name__} of {len(self)}: {places}>"


class Batch(RecordBatch):
    def publish(
        self,
        topic: str,
        value: Any,
        key: Text | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        *,
        serializer: Serializer | None = None,
    ) -> Publication:
        """A result of this batch. It is delivered before the batch's offsets are committed; exactly once, with them."""
        record = NewRecord(value, key, headers, partition, timestamp_ms)
        return self._reader.publish(self._chunk, topic, record, serializer)


def milliseconds(moment: int | datetime) -> int:
    return moment if isinstance(moment, int) else int(moment.timestamp() * 1000)


class IdleLimit:
    """Whether nothing has come for so long. Joining the group does not count."""

    def __init__(self, reader: Reader, limit_s: float | None) -> None:
        self._reader = reader
        self._limit_s = limit_s
        self._since_s = time.monotonic()

    @property
    def is_over(self) -> bool:
        from_s = self._reader.idle_from_s
        if self._limit_s is None or from_s is None:
            return False
        return time.monotonic() - max(from_s, self._since_s) >= self._limit_s


class Batches(Iterator[Batch]):
    """An iterator of batches, and a context manager. For one thread."""

    def __init__(
        self, reader: Reader, forget: Callable[[Reader], None], idle_timeout_s: float | None = None
    ) -> None:
        self._reader = reader
        self._forget = forget
        self._idle_timeout_s = idle_timeout_s

    def __next__(self) -> Batch:
        idle = IdleLimit(self._reader, self._idle_timeout_s)
        while (chunk := self._reader.step()) is None:
            if idle.is_over:
                raise StopIteration
        return Batch(chunk, self._reader)

    def commit(self, record: Record | None = None) -> None:
        """Commit now: the whole batch in hand, or up to and with one record of it (of its partition)."""
        self._reader.commit(record)

    def rewind(self) -> None:
        """The batch in hand is not done: what it published in a transaction is aborted, its records come again."""
        self._reader.rewind()

    def seek(self, offset: int | Place, *, partition: int | None = None, topic: str | None = None) -> None:
        """Go to an offset, "earliest" or "latest", in one partition or in all that this member has."""
        self._reader.control(is_move=True).seek(offset, topic, partition)

    def seek_to_time(
        self, moment: int | datetime, *, partition: int | None = None, topic: str | None = None
    ) -> None:
        """Go to the first record that is not older: milliseconds since 1970, or a datetime."""
        self._reader.control(is_move=True).seek_to_time(milliseconds(moment), topic, partition)

    def pause(self, *, partition: int | None = None, topic: str | None = None) -> None:
        """Read no more of them until `resume`, or until a rebalance gives them anew."""
        self._reader.control().pause(topic, partition)

    def resume(self, *, partition: int | None = None, topic: str | None = None) -> None:
        self._reader.control(is_move=True).resume(topic, partition)

    def lag(self) -> dict[TopicPartition, int]:
        """By partition that this member has: how far what is handed out next is from the end."""
        return self._reader.control().lag()

    @property
    def assignment(self) -> set[TopicPartition]:
        """The partitions that this member has. Empty before the first batch was asked for."""
        return set(self._reader.positions.partitions)

    def close(self) -> None:
        """Leave the group. The batch in hand is not committed: leave the `with` block for that, or call `commit`."""
        self._close(is_done=False)

    def _close(self, is_done: bool) -> None:
        self._forget(self._reader)
        self._reader.close(is_done)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._close(is_done=True)
            return
        try:
            self._close(is_done=False)
        except ClientError as failure:
            LOGGER.error("%s", failure)
