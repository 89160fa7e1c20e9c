"""Jobs: records of a queue, each locked for one worker until it says what became of it.

A job ends once: `done`, `retry` or `fail`; a second call raises `JobSettled`. When its lock is gone, because the work
took too long or the partition has moved, all of them raise `JobLost`, and another worker gets the job. `extend` begins
the lock's time anew.

`Settling` has the rules and returns futures; the faces `Job` and `AsyncJob` wait for them in their own ways.

A retry without a time is the broker's release, which comes again at once or after the group's backoff. A retry after a
time of its own is a delayed copy in the same topic; the original is done when the copy is acknowledged. Both count as
attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from tidemill.client.share.consumer import ShareConsumer
from tidemill.client.share.deliveries import AlreadySettled, LockLost, ShareDelivery
from tidemill.client.share.session import Acknowledge
from tidemill.sdk.consuming.retries import dead_letter_of, restored, retry_of
from tidemill.sdk.errors import ClientError, InvalidSetting, JobLost, JobSettled
from tidemill.sdk.kafka_errors import one_line
from tidemill.sdk.publishing.delays import Delay, delay_text
from tidemill.sdk.publishing.publisher import Publication
from tidemill.sdk.records import NewRecord, Record
from tidemill.sdk.settings import LOGGER

Publish = Callable[[str, NewRecord], Publication]


def record_of(delivery: ShareDelivery) -> Record:
    """The record as handlers see it. Attempts of a delayed retry and deliveries of the broker add up."""
    raw = delivery.record
    headers = tuple((name, value) for name, value in raw.headers)
    record = restored(Record(*delivery.partition, raw.offset, raw.timestamp, raw.key, raw.value, headers))
    return replace(record, attempt=record.attempt + delivery.delivery_count - 1)


class Settling:
    """Settles the jobs of one queue."""

    def __init__(
        self,
        consumer: ShareConsumer,
        publish: Publish,
        attempts_max: int,
        has_delays: Callable[[str], bool],
        dead_letters: str | None,
    ) -> None:
        self._consumer = consumer
        self._publish = publish
        self._attempts_max = attempts_max
        self._has_delays = has_delays
        self._dead_letters = dead_letters

    def done(self, job: BaseJob) -> Future[None]:
        job.settle()
        return self._acknowledge(job, Acknowledge.ACCEPT)

    def is_last(self, job: BaseJob) -> bool:
        """Whether a retry would fail the job."""
        return job.attempt >= self._attempts_max

    def retry(self, job: BaseJob, after: Delay | None, why: str) -> Future[None]:
        """Waits for a broker or for room, unless `after` is None and it is not the last attempt."""
        # A claim is passed on as a claim.
        record = job.record.as_stored()
        is_last = self.is_last(job)
        if after is not None and not is_last and not self._has_delays(record.topic):
            raise InvalidSetting(
                f"retry: topic {record.topic} has no delays, so a job cannot come again at a time of its own; create "
                "the topic with tidemill.delays.enable=true, or call retry() without after"
            )
        if is_last:
            return self.fail(
                job, f"{why or 'retried'}; that was attempt {record.attempt} of {self._attempts_max}"
            )
        job.settle()
        if after is None:
            return self._acknowledge(job, Acknowledge.RELEASE)
        return self._replace(
            job, record.topic, retry_of(record, self._consumer.group, delay_text(after), why)
        )

    def fail(self, job: BaseJob, why: str) -> Future[None]:
        """With dead letters it waits for room, and for the store of a large payload."""
        job.settle()
        record = job.record.as_stored()
        LOGGER.warning("job %s offset %d failed: %s", record.topic_partition, record.offset, why)
        if self._dead_letters is None:
            return self._acknowledge(job, Acknowledge.REJECT)
        return self._replace(job, self._dead_letters, dead_letter_of(record, self._consumer.group, why))

    def extend(self, job: BaseJob) -> Future[None]:
        if job.is_settled:
            raise _settled(job)
        return self._acknowledge(job, Acknowledge.RENEW)

    def _acknowledge(self, job: BaseJob, kind: Acknowledge) -> Future[None]:
        try:
            return self._consumer.acknowledge(job.delivery, kind)
        except AlreadySettled:
            raise _settled(job) from None

    def _replace(self, job: BaseJob, topic: str, instead: NewRecord) -> Future[None]:
        """The job is done as soon as what takes its place is acknowledged. Between the two a crash makes two of one."""
        if not self._consumer.holds(job.delivery):
            return self._acknowledge(job, Acknowledge.ACCEPT)
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        try:
            publication = self._publish(topic, instead)
        except ClientError:
            # It is locked as before: the caller may try something else.
            job.is_settled = False
            raise
        publication.reported_elsewhere()

        def published(_: object) -> None:
            error = publication.exception()
            if error is not None:
                job.is_settled = False
                future.set_exception(error)
                return
            self._acknowledge(job, Acknowledge.ACCEPT).add_done_callback(lambda done: _pass_on(done, future))

        publication.add_done_callback(published)
        return future


def _pass_on(done: Future[None], future: Future[None]) -> None:
    error = done.exception()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _settled(job: BaseJob) -> JobSettled:
    record = job.record
    return JobSettled(
        f"job {record.topic_partition} offset {record.offset} was done, retried or failed before"
    )


def translated_failure(error: BaseException) -> BaseException:
    """Returns the exception that users catch."""
    return JobLost(str(error)) if isinstance(error, LockLost) else error


class BaseJob:
    """A record to work on, and what the two faces share."""

    def __init__(self, delivery: ShareDelivery, record: Record, settling: Settling, timeout_s: float) -> None:
        self.delivery = delivery
        self.record = record
        self.is_settled = False
        self._settling = settling
        self._timeout_s = timeout_s

    def settle(self) -> None:
        """Marks the job as settled. A second call raises."""
        if self.is_settled:
            raise _settled(self)
        self.is_settled = True

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def value(self) -> bytes | None:
        return self.record.value

    @property
    def attempt(self) -> int:
        """The number of times it has been handed out to a worker, this one included."""
        return self.record.attempt

    def text(self) -> str:
        """The value as UTF-8."""
        return self.record.text()

    def json(self) -> Any:
        """The value as JSON; None for a job without a value."""
        return self.record.json()

    def header(self, name: str) -> bytes | None:
        """The last header of that name."""
        return self.record.header(name)

    def __repr__(self) -> str:
        record = self.record
        return f"<{type(self).__name__} {record.topic_partition} offset {record.offset}, attempt {record.attempt}>"

    def _timed_out(self) -> ClientError:
        record = self.record
        return JobLost(
            f"job {record.topic_partition} offset {record.offset}: no broker has confirmed it within {self._timeout_s:g} s"
        )


class Job(BaseJob):
    """A job of `Client.queue`."""

    def done(self) -> None:
        """It is done: returns when that is durable. `JobLost` when another worker has the job."""
        self._wait(self._settling.done(self))

    def retry(self, after: Delay | None = None, why: str = "") -> None:
        """Let it come again: at once or after the group's backoff, or after a time of its own in a topic with delays."""
        self._wait(self._settling.retry(self, after, why))

    def fail(self, why: BaseException | str = "") -> None:
        """Give it up: it is archived, and becomes a dead letter where the queue or the group has such a topic."""
        self._wait(self._settling.fail(self, message_of(why)))

    def extend(self) -> None:
        """Begin the time of its lock anew."""
        self._wait(self._settling.extend(self))

    def _wait(self, future: Future[None]) -> None:
        try:
            future.result(self._timeout_s)
        except TimeoutError:
            raise self._timed_out() from None
        except LockLost as error:
            raise translated_failure(error) from None


class AsyncJob(BaseJob):
    """A job of `AsyncClient.queue`."""

    async def done(self) -> None:
        """It is done: returns when that is durable. `JobLost` when another worker has the job."""
        await self._wait(self._settling.done(self))

    async def retry(self, after: Delay | None = None, why: str = "") -> None:
        """Let it come again: at once or after the group's backoff, or after a time of its own in a topic with delays."""
        if after is None and not self._settling.is_last(self):
            await self._wait(self._settling.retry(self, None, why))
        else:
            await self._wait(await asyncio.to_thread(self._settling.retry, self, after, why))

    async def fail(self, why: BaseException | str = "") -> None:
        """Give it up: it is archived, and becomes a dead letter where the queue or the group has such a topic."""
        await self._wait(await asyncio.to_thread(self._settling.fail, self, message_of(why)))

    async def extend(self) -> None:
        """Begin the time of its lock anew."""
        await self._wait(self._settling.extend(self))

    async def _wait(self, future: Future[None]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.shield(asyncio.wrap_future(future))
        except TimeoutError:
            raise self._timed_out() from None
        except LockLost as error:
            raise translated_failure(error) from None


def message_of(why: BaseException | str) -> str:
    return one_line(why if isinstance(why, str) else f"{type(why).__name__}: {why}")
