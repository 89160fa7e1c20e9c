"""`Workers`: the members of share groups that live in this gateway, each for one caller, and when they end.

A worker fetches only while a request for jobs waits. A record that lay here would be locked for a caller that never
requests it, and each lock that ends counts as a delivery. What a fetch brings after its request has ended is for the
next request.

A retry after a time of its own is a delayed copy in the same topic, as in the SDK: the job is done when the copy is
written. Both kinds of retries count as attempts.

A worker ends when it is deleted, when it got no request for `instance_idle_s`, or with the gateway. It leaves its group in
each case, and what its caller holds goes to others at once. It belongs to the access that made it: it reads as that user,
and ends with the access. For others it is not there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tidemill.client.cluster import Cluster
from tidemill.client.connections.sasl import CredentialsRefused
from tidemill.client.delayed_retries import Origin, retried_of, retry_headers
from tidemill.client.share.consumer import ShareConsumer
from tidemill.client.share.deliveries import AlreadySettled, LockLost, ShareDelivery
from tidemill.client.share.session import Acknowledge
from tidemill.errors import TidemillError
from tidemill.gateway.cluster.access import Access
from tidemill.gateway.cluster.backend import CLIENT_ID, credentials_refused
from tidemill.gateway.problems import Problem, problem_of
from tidemill.gateway.settings import Settings
from tidemill.protocol.records import Header, Record

JOBS_MAX = 1000
# How many jobs a caller may have in hand.
_CAPACITY = 10_000
# A request waits at least so long: less is no time for a fetch.
_WAIT_S_MIN = 0.2
_STEP_S = 0.1
# How long a fetch under way may take to end, after its request has what it wants.
_FETCH_END_S = 1.0
_LEAVE_S = 5.0
_KEPT = "workers"

_log = logging.getLogger("tidemill.gateway")

DONE, RETRIED, FAILED, EXTENDED = "done", "retried", "failed", "extended"
LOST, UNKNOWN, UNANSWERED = "lost", "unknown", "unanswered"
_KINDS = {
    DONE: Acknowledge.ACCEPT,
    RETRIED: Acknowledge.RELEASE,
    FAILED: Acknowledge.REJECT,
    EXTENDED: Acknowledge.RENEW,
}


class Job(NamedTuple):
    """A record in the hand of a caller."""

    delivery: ShareDelivery
    # A retry has the headers of its original.
    record: Record
    # Deliveries and delayed retries together.
    attempt: int
    origin: Origin

    @classmethod
    def of(cls, delivery: ShareDelivery) -> Job:
        record, (topic, partition) = delivery.record, delivery.partition
        retried = retried_of((name, value) for name, value in record.headers)
        if retried is None:
            origin = Origin(topic, partition, record.offset, record.timestamp)
            return cls(delivery, record, delivery.delivery_count, origin)
        headers = tuple(Header(name, value) for name, value in retried.headers)
        attempt = retried.attempt + delivery.delivery_count - 1
        return cls(delivery, record._replace(headers=headers), attempt, retried.origin)

    @property
    def topic(self) -> str:
        return self.delivery.partition.topic


class Settled(NamedTuple):
    """The outcome of a receipt, and the reason where it is not the requested one."""

    outcome: str
    error: str | None = None


class Worker:
    def __init__(self, access: Access, group: str, topics: Sequence[str], attempts_max: int) -> None:
        settings = access.backend.settings
        self._backend = access.backend
        self._attempts_max = attempts_max
        self.id = uuid.uuid4().hex
        self.owner = access.owner
        self.group = group
        self.used_s = time.monotonic()
        self.requests = 0
        self._timeout_s = settings.timeout_s
        self._is_users = settings.user is not None
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._taking = asyncio.Lock()
        # What the caller has in hand, by receipt.
        self._jobs: dict[str, Job] = {}
        self._handed_out = 0
        cluster = Cluster(
            settings.bootstrap,
            client_id=f"{CLIENT_ID}-{self.id[:8]}",
            timeout_s=settings.timeout_s,
            security=settings.security,
        )
        self._consumer = ShareConsumer(
            cluster, group, topics, capacity=_CAPACITY, ready_max=0, on_ready=self._wake
        )

    def _wake(self) -> None:
        """In a thread of the consumer."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ready.set)

    def is_idle(self, limit_s: float) -> bool:
        return self.requests == 0 and time.monotonic() - self.used_s >= limit_s

    async def take(self, count: int, wait_s: float, is_gone: Callable[[], Awaitable[bool]]) -> dict[str, Job]:
        """The next jobs by receipt, as soon as there are any; none when none came in time. One request at a time."""
        taken: dict[str, Job] = {}
        async with self._taking:
            self._forget_lost()
            deadline_s = time.monotonic() + max(wait_s, _WAIT_S_MIN)
            self._consumer.want(count)
            try:
                while not self._collect(taken, count) and time.monotonic() < deadline_s:
                    await self._wait(deadline_s)
                    if await is_gone():
                        return {}
            finally:
                self._consumer.want(0)
            # What these fetches bring is locked already.
            deadline_s = time.monotonic() + _FETCH_END_S
            while self._consumer.is_fetching and len(taken) < count and time.monotonic() < deadline_s:
                await self._wait(deadline_s)
                self._collect(taken, count)
        return taken

    async def _wait(self, deadline_s: float) -> None:
        left_s = max(0.0, min(_STEP_S, deadline_s - time.monotonic()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._ready.wait()
        self._ready.clear()

    def _collect(self, taken: dict[str, Job], count: int) -> bool:
        while len(taken) < count:
            try:
                delivery = self._consumer.take()
            except CredentialsRefused as failure:
                raise credentials_refused() if self._is_users else problem_of(failure) from None
            except TidemillError as failure:
                raise problem_of(failure) from None
            if delivery is None:
                break
            if not delivery.is_for(self.group):
                self._consumer.acknowledge(delivery, Acknowledge.ACCEPT)
                continue
            job = Job.of(delivery)
            if job.attempt > self._attempts_max:
                # Lost or released too often, after delayed retries.
                self._consumer.acknowledge(delivery, Acknowledge.REJECT)
                continue
            self._handed_out += 1
            receipt = f"{delivery.partition}-{delivery.record.offset}-{self._handed_out}"
            taken[receipt] = self._jobs[receipt] = job
        return bool(taken)

    def _forget_lost(self) -> None:
        for receipt, job in list(self._jobs.items()):
            if not self._consumer.holds(job.delivery):
                del self._jobs[receipt]

    def lock_ms(self, job: Job) -> int:
        """Returns how long the lock still lasts."""
        return max(0, round((job.delivery.locked_until_s - time.monotonic()) * 1000))

    def topics_of(self, receipts: Iterable[str]) -> set[str]:
        """The topics of those receipts that it holds."""
        return {self._jobs[receipt].topic for receipt in receipts if receipt in self._jobs}

    async def settle(self, receipt: str, outcome: str) -> Settled:
        """Settles a receipt. Returns the outcome itself, or `lost`, `unknown`, `unanswered`."""
        job = self._jobs.get(receipt)
        if job is None:
            return Settled(UNKNOWN)
        if outcome != EXTENDED:
            del self._jobs[receipt]
        return await self._acknowledge(receipt, job, _KINDS[outcome], outcome)

    async def retry_later(self, receipt: str, delay: str) -> Settled:
        """Let it come again after a time of its own; the last attempt fails it. A job without a copy is held as before."""
        job = self._jobs.pop(receipt, None)
        if job is None:
            return Settled(UNKNOWN)
        if job.attempt >= self._attempts_max:
            return await self._acknowledge(receipt, job, Acknowledge.REJECT, FAILED)
        if not self._consumer.holds(job.delivery):
            return Settled(LOST)
        record = job.record
        headers = retry_headers(record.headers, job.origin, job.attempt + 1, self.group, delay, "")
        try:
            await self._backend.produce(job.topic, None, record.key, record.value, headers)
        except Problem as problem:
            self._jobs[receipt] = job
            return Settled(UNANSWERED, problem.message)
        return await self._acknowledge(receipt, job, Acknowledge.ACCEPT, RETRIED)

    async def _acknowledge(self, receipt: str, job: Job, kind: Acknowledge, outcome: str) -> Settled:
        try:
            future = self._consumer.acknowledge(job.delivery, kind)
            async with asyncio.timeout(self._timeout_s):
                await asyncio.shield(asyncio.wrap_future(future))
        except LockLost:
            self._jobs.pop(receipt, None)
            return Settled(LOST)
        except AlreadySettled:
            return Settled(UNKNOWN)
        except TimeoutError:
            return Settled(UNANSWERED)
        return Settled(outcome)

    def close(self) -> None:
        """Blocks until it has left its group."""
        self._consumer.close()


class Workers:
    def __init__(self, settings: Settings) -> None:
        self._limits = settings.limits
        self._timeout_s = settings.timeout_s
        # By owner, group and id.
        self._workers: dict[tuple[str, str, str], Worker] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._workers)

    def create(self, access: Access, group: str, topics: Sequence[str], attempts_max: int) -> Worker:
        if self._is_closed:
            raise Problem(503, 50301, "the gateway is stopping")
        if len(self._workers) + len(self._leaving) >= self._limits.instances_max:
            raise Problem(
                429,
                429,
                f"the gateway has {self._limits.instances_max} workers and takes no more; delete some",
            )
        worker = Worker(access, group, topics, attempts_max)
        self._workers[worker.owner, group, worker.id] = worker
        if not access.kept(_KEPT):
            access.keep(_KEPT, lambda: True)
            access.closers.append(lambda: self.end_all(access.owner))
        return worker

    @contextlib.contextmanager
    def using(self, owner: str, group: str, worker_id: str) -> Iterator[Worker]:
        """For the time of one request."""
        worker = self._workers.get((owner, group, worker_id))
        if worker is None:
            raise Problem(404, 40403, f"group {group} has no worker {worker_id} here; it may have expired")
        worker.requests += 1
        try:
            yield worker
        finally:
            worker.requests -= 1
            worker.used_s = time.monotonic()

    async def delete(self, owner: str, group: str, worker_id: str) -> None:
        """Returns when it has left its group, or goes on leaving after a while."""
        with self.using(owner, group, worker_id) as worker:
            leaving = self.end(worker)
        if leaving is not None:
            await asyncio.wait([leaving], timeout=self._timeout_s)

    async def expire(self) -> None:
        """Runs as long as the gateway."""
        limit_s = self._limits.instance_idle_s
        while True:
            await asyncio.sleep(min(limit_s / 4, 5.0))
            for worker in [each for each in self._workers.values() if each.is_idle(limit_s)]:
                _log.info("worker %s of group %s was idle and is deleted", worker.id, worker.group)
                self.end(worker)

    async def end_all(self, owner: str) -> None:
        """Does not wait until they have left their groups."""
        for worker in [each for each in self._workers.values() if each.owner == owner]:
            self.end(worker)

    def end(self, worker: Worker) -> asyncio.Task[None] | None:
        if self._workers.pop((worker.owner, worker.group, worker.id), None) is None:
            return None
        leaving = asyncio.create_task(asyncio.to_thread(worker.close))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        return leaving

    async def close(self) -> None:
        self._is_closed = True
        for worker in list(self._workers.values()):
            self.end(worker)
        if self._leaving:
            _, pending = await asyncio.wait(self._leaving, timeout=_LEAVE_S)
            if pending:
                _log.warning("%d workers did not leave their groups in time", len(pending))
