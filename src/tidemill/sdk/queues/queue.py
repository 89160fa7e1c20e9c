"""Queues: jobs of a topic, shared among the workers of a group by a share group (KIP-932).

`Workshop` has what both faces need: the member of the share group, which is opened with the first job, and the choice
of jobs. Retries of another group, and jobs that were attempted often enough, are not handed out. `Queue` and
`AsyncQueue` iterate over jobs.

At most `concurrency` jobs are in hand, and `prefetch` more wait here, locked. Closing releases what was not started at
once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, get_args

from tidemill.client.admin.share_groups import ShareGroupAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.retry import UnknownTopic as NoTopic
from tidemill.client.share.consumer import ShareConsumer
from tidemill.client.share.deliveries import ShareDelivery
from tidemill.client.share.session import Acknowledge
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.sdk.claims import ClaimedRecord
from tidemill.sdk.consuming.positions import Place
from tidemill.sdk.core import Core
from tidemill.sdk.errors import ClientError, Closed, InvalidSetting, NotAuthorized, UnknownTopic, Unreachable
from tidemill.sdk.publishing.publisher import Publication
from tidemill.sdk.queues.jobs import AsyncJob, BaseJob, Job, Settling, message_of, record_of
from tidemill.sdk.records import NewRecord, Record
from tidemill.sdk.settings import LOGGER
from tidemill.sdk.tokens import security_of

_COUNT_MAX = 10_000
_STEP_S = 0.1
_DELIVERY_LIMIT_DEFAULT = 5
_FORBIDDEN = (
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)


class Workshop:
    """The side of a queue that does not depend on how its user waits."""

    def __init__(
        self,
        core: Core,
        topic: str,
        group: str,
        prefetch: int,
        concurrency: int,
        start: Place,
        dead_letters: str | None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        if not topic or not group:
            raise InvalidSetting("queue: give a topic and a group")
        if not 0 <= prefetch <= _COUNT_MAX or not 1 <= concurrency <= _COUNT_MAX:
            raise InvalidSetting(f"queue: prefetch is 0 to {_COUNT_MAX}, concurrency 1 to {_COUNT_MAX}")
        if dead_letters == topic:
            raise InvalidSetting(
                "queue: dead_letters is the queue itself; failed jobs would go round for ever"
            )
        if start not in get_args(Place):
            raise InvalidSetting(f"queue: start is {start!r}; it has to be 'earliest' or 'latest'")
        self._core = core
        self._withdrawals = core.withdrawals()
        self._start = start
        self._topic = topic
        self._group = group
        self._capacity = prefetch + concurrency
        self.concurrency = concurrency
        self._dead_letters = dead_letters
        self._on_ready = on_ready
        self._doing = f"queue {topic} as {group}"
        self._lock = threading.Lock()
        self._consumer: ShareConsumer | None = None
        self._settling: Settling | None = None
        self._attempts_max = _DELIVERY_LIMIT_DEFAULT
        self._delays: dict[str, bool] = {}
        self._in_hand: list[BaseJob] = []
        self.is_closed = False

    # -- opening and closing ---------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._settling is not None

    def open(self) -> None:
        """Joins the group, once. Waits for brokers."""
        with self._lock:
            if self.is_closed:
                raise Closed(f"{self._doing}: already closed")
            if self._consumer is not None:
                return
            cluster = self._cluster()
            try:
                admin = Admin(cluster)
                admin.topic(self._topic)
                if self._dead_letters is not None:
                    admin.topic(self._dead_letters)
                self._attempts_max = self._prepare_group(cluster)
            except TidemillError as failure:
                cluster.close()
                raise self._translated(failure) from None
            self._consumer = ShareConsumer(
                cluster, self._group, [self._topic], capacity=self._capacity, on_ready=self._on_ready
            )
            self._settling = Settling(
                self._consumer, self._publish, self._attempts_max, self._has_delays, self._dead_letters
            )

    def _cluster(self) -> Cluster:
        settings = self._core.settings
        client_id = str(settings.given.get("client.id", "tidemill"))
        return Cluster(
            settings.bootstrap,
            client_id=client_id,
            timeout_s=settings.timeout_s,
            security=security_of(settings.given),
        )

    def _prepare_group(self, cluster: Cluster) -> int:
        """Returns after how many attempts a record is archived."""
        try:
            limit = ShareGroupAdmin(cluster).prepare(self._group, self._start)
        except ApiError as failure:
            # Without the right to do so the group begins where the broker says.
            LOGGER.info("%s: %s", self._doing, failure)
            return _DELIVERY_LIMIT_DEFAULT
        return limit or _DELIVERY_LIMIT_DEFAULT

    def release_not_started(self) -> None:
        """Releases jobs that are not started, at once; jobs in hand may still be settled."""
        if self._consumer is not None:
            self._consumer.release_not_started()

    def close(self) -> None:
        """Leaves the group; what is not settled is released."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
        if self._consumer is not None:
            self._consumer.close()

    # -- jobs ------------------------------------------------------------------------------------------------

    def take(self, timeout_s: float) -> tuple[ShareDelivery, Record] | None:
        """The next delivery that is for this group's workers."""
        if self.is_closed:
            raise Closed(f"{self._doing}: already closed")
        assert self._consumer is not None
        if self.has_full_hands:
            return None
        try:
            delivery = self._consumer.take(timeout_s)
        except TidemillError as failure:
            raise self._translated(failure) from None
        if delivery is None:
            return None
        if not delivery.is_for(self._group):
            self._consumer.acknowledge(delivery, Acknowledge.ACCEPT)
            return None
        return delivery, self._withdrawals.resolved(record_of(delivery))

    def read_ahead(self, record: Record) -> None:
        """Keep the payload of a claim with it. Blocks as long as the store does."""
        self._withdrawals.read_ahead([record])

    def hand_out(self, job: BaseJob) -> bool:
        """False for a job whose attempts are used up: workers died of it, or lost it, after delayed retries."""
        if job.attempt > self._attempts_max:
            return False
        self._in_hand.append(job)
        return True

    def give_up(self, job: BaseJob) -> None:
        """Fails a job whose attempts are used up. Where that is not possible, it comes again when its lock ends."""
        try:
            self.settling.fail(job, f"attempt {job.attempt} of {self._attempts_max}")
        except ClientError as error:
            LOGGER.warning("%r: %s", job, error)

    @property
    def has_full_hands(self) -> bool:
        assert self._consumer is not None
        self._in_hand = [
            each for each in self._in_hand if not each.is_settled and self._consumer.holds(each.delivery)
        ]
        return len(self._in_hand) >= self.concurrency

    @property
    def settling(self) -> Settling:
        assert self._settling is not None
        return self._settling

    @property
    def timeout_s(self) -> float:
        return self._core.settings.timeout_s

    def _publish(self, topic: str, record: NewRecord) -> Publication:
        return self._core.publisher().publish(topic, record, bytes)

    def _has_delays(self, topic: str) -> bool:
        if topic not in self._delays:
            self._delays[topic] = self._core.has_delays(topic)
        return self._delays[topic]

    def _translated(self, failure: TidemillError) -> ClientError:
        text = f"{self._doing}: {failure}"
        if isinstance(failure, NoTopic):
            return UnknownTopic(f"{text}; create it with create_topic", code="UNKNOWN_TOPIC_OR_PART")
        if isinstance(failure, ApiError):
            kind = NotAuthorized if failure.code in _FORBIDDEN else ClientError
            return kind(text, code=failure.code.name, is_retriable=failure.code.retriable)
        return Unreachable(text, is_retriable=True)


class Queue(Iterator[Job]):
    """An iterator of jobs, and a context manager."""

    def __init__(self, workshop: Workshop, forget: Callable[[Workshop], None]) -> None:
        self._workshop = workshop
        self._forget = forget

    def __next__(self) -> Job:
        while (job := self.get(_STEP_S)) is None:
            pass
        return job

    def get(self, timeout_s: float) -> Job | None:
        """The next job, or None when none came in time or `concurrency` jobs are in hand."""
        workshop = self._workshop
        workshop.open()
        taken = workshop.take(timeout_s)
        if taken is None:
            if workshop.has_full_hands:
                _PAUSE.wait(min(timeout_s, _STEP_S / 10))
            return None
        job = Job(*taken, workshop.settling, workshop.timeout_s)
        if workshop.hand_out(job):
            return job
        workshop.give_up(job)
        return None

    def run(self, handler: Callable[[Job], object], *, stop: threading.Event | None = None) -> None:
        """Work on jobs in `concurrency` threads, until `stop` is set or Ctrl-C.

        A job is done when `handler` returns, unless it said otherwise; an exception lets it come again. At the end jobs in
        hand are finished, and what was not started is released.
        """
        stopping = stop or threading.Event()
        with self, ThreadPoolExecutor(self._workshop.concurrency, "tidemill-sdk-job") as threads:
            try:
                while not stopping.is_set():
                    job = self.get(_STEP_S)
                    if job is not None:
                        threads.submit(_work, handler, job)
            finally:
                # The pool waits for jobs in hand when its block ends.
                self._workshop.release_not_started()

    def close(self) -> None:
        """Leave the group. Jobs that are not done are released at once."""
        self._forget(self._workshop)
        self._workshop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_PAUSE = threading.Event()


def _work(handler: Callable[[Job], object], job: Job) -> None:
    try:
        try:
            handler(job)
        except Exception as error:
            LOGGER.warning("%r: %s", job, message_of(error), exc_info=error)
            if not job.is_settled:
                job.retry(why=message_of(error))
        else:
            if not job.is_settled:
                job.done()
    except ClientError as error:
        LOGGER.warning("%r: %s", job, error)


class AsyncQueue(AsyncIterator[AsyncJob]):
    """An asynchronous iterator of jobs, and a context manager."""

    def __init__(
        self, make: Callable[[Callable[[], None]], Workshop], forget: Callable[[AsyncQueue], None]
    ) -> None:
        self._workshop = make(self._wake)
        self._forget = forget
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = asyncio.Event()

    @property
    def workshop(self) -> Workshop:
        return self._workshop

    def _wake(self) -> None:
        """In a thread of the consumer."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._ready.set)

    async def __anext__(self) -> AsyncJob:
        while (job := await self.get(_STEP_S)) is None:
            pass
        return job

    async def get(self, timeout_s: float) -> AsyncJob | None:
        """The next job, or None when none came in time or `concurrency` jobs are in hand."""
        workshop = self._workshop
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if not workshop.is_open:
            await asyncio.to_thread(workshop.open)
        self._ready.clear()
        taken = workshop.take(0.0)
        if taken is None:
            # Hands are free again without a sign from the consumer: then the wait is short.
            limit_s = min(timeout_s, _STEP_S / 10) if workshop.has_full_hands else timeout_s
            try:
                await asyncio.wait_for(self._ready.wait(), limit_s)
            except TimeoutError:
                return None
            taken = workshop.take(0.0)
        if taken is None:
            return None
        if isinstance(taken[1], ClaimedRecord):
            # A handler that uses the value later must not hold up the loop.
            await asyncio.to_thread(workshop.read_ahead, taken[1])
        job = AsyncJob(*taken, workshop.settling, workshop.timeout_s)
        if workshop.hand_out(job):
            return job
        await asyncio.to_thread(workshop.give_up, job)
        return None

    async def run(self, handler: Callable[[AsyncJob], Awaitable[object]]) -> None:
        """Work on `concurrency` jobs at a time, until the task is cancelled.

        A job is done when `handler` returns, unless it said otherwise; an exception lets it come again. At the end jobs in
        hand are finished, and what was not started is released.
        """
        under_way: set[asyncio.Task[None]] = set()
        async with self:
            try:
                async for job in self:
                    task = asyncio.create_task(_work_async(handler, job))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
            finally:
                self._workshop.release_not_started()
                if under_way:
                    await asyncio.wait(under_way)

    async def close(self) -> None:
        """Leave the group. Jobs that are not done are released at once."""
        self._forget(self)
        await asyncio.to_thread(self._workshop.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _work_async(handler: Callable[[AsyncJob], Awaitable[object]], job: AsyncJob) -> None:
    try:
        try:
            await handler(job)
        except Exception as error:
            LOGGER.warning("%r: %s", job, message_of(error), exc_info=error)
            if not job.is_settled:
                await job.retry(why=message_of(error))
        else:
            if not job.is_settled:
                await job.done()
    except ClientError as error:
        LOGGER.warning("%r: %s", job, error)
