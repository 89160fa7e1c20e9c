"""`tidemill.AsyncClient`: the same as `Client`, for asyncio. Nothing blocks the event loop.

What waits runs in threads: each iterator of batches has one of its own, because a consumer's rebalances happen in the
thread that reads. A step of it takes a tenth of a second at most, so a cancelled task is free at once. What such a
step has read meanwhile is not lost: the next one to ask gets it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from tidemill.sdk.claims import LargePayloads
from tidemill.sdk.client import as_new_record
from tidemill.sdk.consuming.batches import IdleLimit, RecordBatch, milliseconds
from tidemill.sdk.consuming.guarantees import GuaranteeName
from tidemill.sdk.consuming.positions import Place, Positions
from tidemill.sdk.consuming.reader import Chunk, Reader
from tidemill.sdk.consuming.retries import Backoff
from tidemill.sdk.core import Core
from tidemill.sdk.errors import ClientError
from tidemill.sdk.publishing.async_publisher import AsyncPublication, AsyncPublishing
from tidemill.sdk.publishing.delays import Delay, cancel_headers, delay_headers
from tidemill.sdk.publishing.hot_keys import HotKeys
from tidemill.sdk.queues.queue import AsyncQueue, Workshop
from tidemill.sdk.records import Delivery, Headers, NewRecord, Record, Serializer, Text
from tidemill.sdk.settings import LOGGER
from tidemill.sdk.tokens import GetToken, with_token
from tidemill.sdk.views import AsyncViews
from tidemill.types import TopicPartition

T = TypeVar("T")

# How many records `publish_many` has under way at a time.
_WINDOW = 10_000


class AsyncBatch(RecordBatch):
    def __init__(self, chunk: Chunk, reader: Reader, publishing: AsyncPublishing) -> None:
        super().__init__(chunk, reader)
        self._publishing = publishing

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
    ) -> AsyncPublication:
        """Publishes a result of this batch. There is no need to await it.

        It is delivered before the batch's offsets are committed, exactly once with them. A failure is raised when the next
        batch is requested.
        """
        self._reader.check_in_hand(self._chunk, topic)
        record = NewRecord(value, key, headers, partition, timestamp_ms)
        return self._publishing.publish(topic, record, serializer)


class AsyncBatches(AsyncIterator[AsyncBatch]):
    """An asynchronous iterator of batches, and a context manager.

    For one task; others may ask for `lag` and `assignment`, `pause` and `resume`, and get their answer between two steps.
    """

    def __init__(
        self,
        reader: Reader,
        publishing: AsyncPublishing,
        forget: Callable[[AsyncBatches], None],
        idle_s: float | None,
    ) -> None:
        """`publishing` is for the results of batches."""
        self._reader = reader
        self._publishing = publishing
        self._forget = forget
        self._idle_timeout_s = idle_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tidemill-sdk-reader")
        # A step whose task was cancelled, and what such a step has read.
        self._abandoned: asyncio.Future[Chunk | None] | None = None
        self._unclaimed: Chunk | None = None
        self._is_closed = False

    @property
    def reader(self) -> Reader:
        return self._reader

    async def _run(self, call: Callable[..., T], *arguments: Any) -> T:
        job = asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)
        return await asyncio.shield(job)

    async def __anext__(self) -> AsyncBatch:
        idle = IdleLimit(self._reader, self._idle_timeout_s)
        while True:
            chunk, self._unclaimed = self._unclaimed, None
            chunk = chunk or await self._next_chunk()
            if chunk is not None:
                return AsyncBatch(chunk, self._reader, self._publishing)
            if idle.is_over:
                raise StopAsyncIteration

    async def _next_chunk(self) -> Chunk | None:
        step, self._abandoned = self._abandoned, None
        if step is None:
            await self._publishing.drained()
            step = asyncio.get_running_loop().run_in_executor(self._thread, self._reader.step)
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            self._abandoned = step
            raise

    async def _settle(self) -> None:
        """Wait for an abandoned step; what it has read is the next batch."""
        if self._abandoned is not None:
            self._unclaimed = await self._next_chunk()

    async def commit(self, record: Record | None = None) -> None:
        """Commit now: the whole batch in hand, or up to and with one record of it (of its partition)."""
        await self._settle()
        await self._publishing.drained()
        if self._unclaimed is None:
            await self._run(self._reader.commit, record)

    async def rewind(self) -> None:
        """The batch in hand is not done: what it published in a transaction is aborted, its records come again."""
        await self._settle()
        await self._publishing.drained()
        if self._unclaimed is None:
            await self._run(self._reader.rewind)

    async def _control(self, call: Callable[[Positions], T], *, is_move: bool = False) -> T:
        await self._settle()
        return await self._run(lambda: call(self._reader.control(is_move)))

    async def _move(self, call: Callable[[Positions], None]) -> None:
        """To another place: what was read at the old one, and not handed out yet, is dropped."""
        await self._settle()
        if self._unclaimed is not None:
            self._unclaimed = None
            await self._run(self._reader.rewind)
        await self._control(call, is_move=True)

    async def seek(
        self, offset: int | Place, *, partition: int | None = None, topic: str | None = None
    ) -> None:
        """Go to an offset, "earliest" or "latest", in one partition or in all that this member has."""
        await self._move(lambda positions: positions.seek(offset, topic, partition))

    async def seek_to_time(
        self, moment: int | datetime, *, partition: int | None = None, topic: str | None = None
    ) -> None:
        """Go to the first record that is not older: milliseconds since 1970, or a datetime."""
        timestamp_ms = milliseconds(moment)
        await self._move(lambda positions: positions.seek_to_time(timestamp_ms, topic, partition))

    async def pause(self, *, partition: int | None = None, topic: str | None = None) -> None:
        """Read no more of them until `resume`, or until a rebalance gives them anew."""
        await self._control(lambda positions: positions.pause(topic, partition))

    async def resume(self, *, partition: int | None = None, topic: str | None = None) -> None:
        await self._control(lambda positions: positions.resume(topic, partition), is_move=True)

    async def lag(self) -> dict[TopicPartition, int]:
        """By partition that this member has: how far what is handed out next is from the end."""
        return await self._control(lambda positions: positions.lag())

    @property
    def assignment(self) -> set[TopicPartition]:
        """The partitions that this member has. Empty before the first batch was asked for."""
        return set(self._reader.positions.partitions)

    async def close(self) -> None:
        """Leave the group. The batch in hand is not committed: leave the block for that, or call `commit`."""
        await self._close(is_done=False)

    async def _close(self, is_done: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._forget(self)
        try:
            await self._settle()
            await self._publishing.drained()
        finally:
            try:
                await self._run(self._reader.close, is_done and self._unclaimed is None)
            finally:
                self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self._close(is_done=True)
            return
        try:
            await self._close(is_done=False)
        except ClientError as failure:
            LOGGER.error("%s", failure)


class AsyncClient:
    """A connection to a cluster, for one event loop."""

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout_s: float = 30.0,
        serializer: Serializer | None = None,
        hot_keys: HotKeys | None = None,
        large_payloads: LargePayloads | str | None = None,
        token: GetToken | str | os.PathLike[str] | None = None,
        **config: Any,
    ) -> None:
        """As `Client`."""
        self._core = Core(
            bootstrap,
            timeout_s,
            serializer,
            hot_keys,
            with_token(config, token),
            LargePayloads(large_payloads) if isinstance(large_payloads, str) else large_payloads,
        )
        self.views = AsyncViews(self._core)
        self._publishing = AsyncPublishing(self._core.publisher, timeout_s)
        self._open: list[AsyncBatches] = []

    # -- topics ----------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = -1,
        configs: Mapping[str, object] | None = None,
        *,
        exist_ok: bool = False,
    ) -> None:
        """Returns when every partition has a leader. -1 leaves a number to the broker."""
        await asyncio.to_thread(
            self._core.create_topic, name, partitions, replication_factor, configs, exist_ok
        )

    async def delete_topic(self, name: str) -> None:
        await asyncio.to_thread(self._core.delete_topic, name)

    # -- publishing ------------------------------------------------------------------------------------------

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
        delay: Delay | None = None,
        deliver_at: datetime | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        schedule_id: str | None = None,
    ) -> AsyncPublication:
        """Hand over one record; await what is returned for its `Delivery`. Without awaiting, `flush` raises the failure.

        In a topic with `tidemill.delays.enable=true` it is hidden until it is due. That is after `delay` (seconds, a
        timedelta or a text such as "15m"), at `deliver_at`, or each time that `cron` says, in `time_zone`. A later
        record with the same key and `schedule_id` takes its place; `cancel` takes it back.
        """
        headers = delay_headers(headers, delay, deliver_at, cron, time_zone, schedule_id)
        record = NewRecord(value, key, headers, partition, timestamp_ms)
        return self._publishing.publish(topic, record, serializer)

    def cancel(self, topic: str, key: Text | None, schedule_id: str) -> AsyncPublication:
        """Take back what waits under this key and schedule id. What was delivered stays delivered."""
        return self._publishing.publish(topic, NewRecord(None, key, cancel_headers(schedule_id)), None)

    async def publish_many(
        self,
        topic: str,
        records: Iterable[Any] | AsyncIterable[Any],
        *,
        serializer: Serializer | None = None,
    ) -> list[Delivery]:
        """Values, or `NewRecord`s where there is more to say. Returns when all are delivered, in their order."""
        deliveries: list[Delivery] = []
        under_way: list[AsyncPublication] = []
        try:
            async for item in _asynchronous(records):
                under_way.append(self._publishing.publish(topic, as_new_record(item), serializer))
                if len(under_way) >= _WINDOW:
                    deliveries += await _all(under_way)
                    under_way = []
        finally:
            deliveries += await _all(under_way)
        return deliveries

    async def flush(self, timeout_s: float | None = None) -> None:
        """Returns when everything is delivered. Raises `DeliveryFailed` if a record failed whose result was not awaited."""
        await self._publishing.drained()
        await asyncio.to_thread(self._core.publisher().flush, timeout_s)
        self._publishing.raise_unseen()

    # -- consuming -------------------------------------------------------------------------------------------

    def consume(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        max_batch: int = 500,
        guarantee: GuaranteeName = "at-least-once",
        start: Place = "earliest",
        linger_s: float = 0.0,
        idle_timeout_s: float | None = None,
        instance: str | None = None,
        retries: int | None = None,
        backoff: Backoff = "1s..10m",
        dead_letters: str | None = None,
        retry_topic: str | None = None,
        **config: Any,
    ) -> AsyncBatches:
        """As `Client.consume`, for `async for`."""
        reader = self._core.reader(
            topics,
            group,
            max_batch=max_batch,
            guarantee=guarantee,
            start=start,
            linger_s=linger_s,
            instance=instance,
            retries=retries,
            backoff=backoff,
            dead_letters=dead_letters,
            retry_topic=retry_topic,
            config=config,
        )
        publishing, results = self._publishing, reader.guarantee
        if results.awaits_results:
            publishing = AsyncPublishing(results.publisher, self._core.settings.timeout_s, results)
        batches = AsyncBatches(reader, publishing, self._forget, idle_timeout_s)
        self._open.append(batches)
        return batches

    def _forget(self, batches: AsyncBatches) -> None:
        self._open.remove(batches)
        self._core.forget(batches.reader)

    def queue(
        self,
        topic: str,
        group: str,
        *,
        prefetch: int = 10,
        concurrency: int = 1,
        start: Place = "earliest",
        dead_letters: str | None = None,
    ) -> AsyncQueue:
        """As `Client.queue`, for `async for`."""
        queue = AsyncQueue(
            lambda on_ready: Workshop(
                self._core, topic, group, prefetch, concurrency, start, dead_letters, on_ready
            ),
            lambda queue: self._core.forget_queue(queue.workshop),
        )
        self._core.open_queues.append(queue.workshop)
        return queue

    # -- the end ---------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Flush, and end everything. Batches in hand are not committed."""
        await self._close(is_clean=True)

    async def _close(self, is_clean: bool) -> None:
        try:
            for batches in list(self._open):
                await batches.close()
            await self._publishing.drained()
        finally:
            await asyncio.to_thread(self._core.close, is_clean)
        if is_clean:
            self._publishing.raise_unseen()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._close(is_clean=kind is None)
        except ClientError as failure:
            if kind is None:
                raise
            LOGGER.error("%s", failure)


async def _all(publications: list[AsyncPublication]) -> list[Delivery]:
    """Waits for every one of them; then raises the first failure."""
    ends = await asyncio.gather(*publications, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return [end for end in ends if isinstance(end, Delivery)]


async def _asynchronous(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
