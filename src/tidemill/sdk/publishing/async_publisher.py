"""Publishing from an event loop, without ever holding it up.

A record is handed to librdkafka at once when there is room. Otherwise it waits in the backlog, and so do those after
it, to keep their order; one task works it off while a thread waits for room. The backlog is bounded, too: who
publishes without ever awaiting gets `QueueFull`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol

from tidemill.sdk.errors import QueueFull
from tidemill.sdk.publishing.publisher import Publication, Publisher
from tidemill.sdk.records import Delivery, NewRecord, Serializer

BACKLOG_MAX = 100_000


class Results(Protocol):
    """Answers for records: learns of each that the producer took, or in the end did not take."""

    def taken(self, publication: Publication) -> None: ...
    def refused(self, error: Exception) -> None: ...


class AsyncPublication:
    """A record on its way: `await` it for its `Delivery`. Cancelling the wait does not take the record back."""

    def __init__(
        self, topic: str, future: asyncio.Future[Delivery], unseen: set[AsyncPublication] | None
    ) -> None:
        self.topic = topic
        self._future = future
        self._unseen = unseen

    def __await__(self) -> Generator[Any, None, Delivery]:
        try:
            return (yield from asyncio.shield(self._future).__await__())
        finally:
            if self._unseen is not None:
                self._unseen.discard(self)

    def done(self) -> bool:
        return self._future.done()

    def end(self, delivery: Delivery | None, error: BaseException | None) -> None:
        if error is None:
            assert delivery is not None
            self._future.set_result(delivery)
            return
        self._future.set_exception(error)
        # Read once, so that asyncio does not complain; `flush` raises it if the caller does not await it.
        self._future.exception()
        if self._unseen is not None:
            self._unseen.add(self)


class _Waiting(NamedTuple):
    record: NewRecord
    publication: AsyncPublication


class AsyncPublishing:
    def __init__(
        self, publisher: Callable[[], Publisher], timeout_s: float, results: Results | None = None
    ) -> None:
        self._publisher = publisher
        self._timeout_s = timeout_s
        self._results = results
        self._backlog: deque[_Waiting] = deque()
        self._drain: asyncio.Task[None] | None = None
        # Failed, and not awaited. None when `results` answers for them.
        self._unseen: set[AsyncPublication] | None = set() if results is None else None

    def publish(self, topic: str, record: NewRecord, serializer: Serializer | None) -> AsyncPublication:
        loop = asyncio.get_running_loop()
        publisher = self._publisher()
        publication = AsyncPublication(topic, loop.create_future(), self._unseen)
        record = publisher.encoded(topic, record, serializer)
        must_wait = publisher.needs_partition_count(topic, record) or publisher.needs_deposit(record)
        if not self._backlog and not must_wait:
            taken = publisher.try_publish(topic, record, serializer)
            if taken is not None:
                self._follow(taken, publication, loop)
                return publication
        # An error of the serializer is the caller's, whether the record has to wait or not.
        record = publisher.as_bytes(topic, record, serializer)
        if len(self._backlog) >= BACKLOG_MAX:
            raise QueueFull(
                f"publish to {topic}: {len(self._backlog)} records wait for room already; await some of them first",
                code="_QUEUE_FULL",
                is_retriable=True,
            )
        self._backlog.append(_Waiting(record, publication))
        if self._drain is None or self._drain.done():
            self._drain = loop.create_task(self._work_off(publisher, loop))
        return publication

    def _follow(
        self, taken: Publication, publication: AsyncPublication, loop: asyncio.AbstractEventLoop
    ) -> None:
        def ended(done: Publication) -> None:
            error = done.exception()
            if not loop.is_closed():
                loop.call_soon_threadsafe(publication.end, None if error else done.result(), error)

        taken.reported_elsewhere()
        if self._results is not None:
            self._results.taken(taken)
        taken.add_done_callback(ended)  # type: ignore[arg-type]

    async def _work_off(self, publisher: Publisher, loop: asyncio.AbstractEventLoop) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        while self._backlog:
            record, publication = self._backlog[0]
            topic = publication.topic
            try:
                if publisher.needs_deposit(record):
                    record = await asyncio.to_thread(publisher.deposit, topic, record)
                    self._backlog[0] = _Waiting(record, publication)
                if publisher.needs_partition_count(topic, record):
                    await asyncio.to_thread(publisher.learn, topic)
                taken = publisher.try_publish(topic, record)
                if taken is None:
                    await asyncio.to_thread(publisher.await_room, topic, deadline_s)
                    continue
            except Exception as error:
                # Of whatever kind: those behind it must not wait for ever.
                publication.end(None, error)
                if self._results is not None:
                    self._results.refused(error)
            else:
                self._follow(taken, publication, loop)
            self._backlog.popleft()
            deadline_s = time.monotonic() + self._timeout_s

    async def drained(self) -> None:
        """Returns when everything is with librdkafka, or has failed before."""
        if self._drain is not None:
            await asyncio.shield(self._drain)

    def raise_unseen(self) -> None:
        if not self._unseen:
            return
        error = next(iter(self._unseen))._future.exception()
        self._unseen.clear()
        assert error is not None
        raise error
