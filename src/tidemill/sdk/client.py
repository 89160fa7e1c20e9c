"""`tidemill.Client`: publish and consume, from ordinary code."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from tidemill.sdk.claims import LargePayloads
from tidemill.sdk.consuming.batches import Batches
from tidemill.sdk.consuming.guarantees import GuaranteeName
from tidemill.sdk.consuming.positions import Place
from tidemill.sdk.consuming.retries import Backoff
from tidemill.sdk.core import Core
from tidemill.sdk.publishing.delays import Delay, cancel_headers, delay_headers
from tidemill.sdk.publishing.hot_keys import HotKeys
from tidemill.sdk.publishing.publisher import Publication
from tidemill.sdk.queues.queue import Queue, Workshop
from tidemill.sdk.records import Delivery, Headers, NewRecord, Serializer, Text
from tidemill.sdk.tokens import GetToken, with_token
from tidemill.sdk.views import Views


def as_new_record(item: Any) -> NewRecord:
    return item if isinstance(item, NewRecord) else NewRecord(item)


class Client:
    """A connection to a cluster. Publishing is safe from several threads; an iterator of batches belongs to one."""

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
        """`bootstrap` is HOST:PORT of one or more brokers. Nothing is connected yet.

        No call waits longer than `timeout_s` for brokers. `serializer` gets every value that is published, except None.
        `large_payloads` is the store of values above a threshold: a `LargePayloads`, or where the store is.
        `config` are librdkafka's properties, dots as underscores: `security_protocol="SASL_SSL"`, `linger_ms=20`.
        `token` logs in with OAUTHBEARER: a function that returns a token, or the path of a file that has one.
        """
        self._core = Core(
            bootstrap,
            timeout_s,
            serializer,
            hot_keys,
            with_token(config, token),
            LargePayloads(large_payloads) if isinstance(large_payloads, str) else large_payloads,
        )
        self.views = Views(self._core)

    # -- topics ----------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = -1,
        configs: Mapping[str, object] | None = None,
        *,
        exist_ok: bool = False,
    ) -> None:
        """Returns when every partition has a leader. -1 leaves a number to the broker."""
        self._core.create_topic(name, partitions, replication_factor, configs, exist_ok)

    def delete_topic(self, name: str) -> None:
        self._core.delete_topic(name)

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
    ) -> Publication:
        """Hand over one record; `.result()` waits for its `Delivery`. Waits itself only for room in the queue.

        In a topic with `tidemill.delays.enable=true` it is hidden until it is due. That is after `delay` (seconds, a
        timedelta or a text such as "15m"), at `deliver_at`, or each time that `cron` says, in `time_zone`. A later
        record with the same key and `schedule_id` takes its place; `cancel` takes it back.
        """
        headers = delay_headers(headers, delay, deliver_at, cron, time_zone, schedule_id)
        record = NewRecord(value, key, headers, partition, timestamp_ms)
        return self._core.publisher().publish(topic, record, serializer)

    def cancel(self, topic: str, key: Text | None, schedule_id: str) -> Publication:
        """Take back what waits under this key and schedule id. What was delivered stays delivered."""
        return self._core.publisher().publish(topic, NewRecord(None, key, cancel_headers(schedule_id)), None)

    def publish_many(
        self, topic: str, records: Iterable[Any], *, serializer: Serializer | None = None
    ) -> list[Delivery]:
        """Values, or `NewRecord`s where there is more to say. Returns when all are delivered, in their order.

        The first failure is raised, when all others have ended one way or the other.
        """
        publisher = self._core.publisher()
        handed_over = [publisher.publish(topic, as_new_record(item), serializer) for item in records]
        failures = [error for each in handed_over if (error := each.exception()) is not None]
        if failures:
            raise failures[0]
        return [each.result() for each in handed_over]

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when everything is delivered. Raises `DeliveryFailed` if a record failed whose result was not read."""
        self._core.publisher().flush(timeout_s)

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
    ) -> Batches:
        """An iterator of batches with at most `max_batch` records each.

        A batch is what has arrived; with `linger_s` it may wait for more. `start` is for partitions in which the group has
        committed nothing. After `idle_timeout_s` without a record the iterator ends. `instance` names this process among
        those of the group: exactly once, a new process of that name ends at once what the last one left open.

        With `retries` a record whose `batch.attempt` fails is retried so often, through `retry_topic`
        (`<group>-retry`). It waits for `backoff`: the first and the longest wait, doubled in between. Then it goes to
        the topic `dead_letters`.
        """
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
        return Batches(reader, self._core.forget, idle_timeout_s)

    def queue(
        self,
        topic: str,
        group: str,
        *,
        prefetch: int = 10,
        concurrency: int = 1,
        start: Place = "earliest",
        dead_letters: str | None = None,
    ) -> Queue:
        """An iterator of jobs: records of the topic, each locked for one worker of the group until it is done.

        At most `concurrency` jobs are in hand, and `prefetch` more wait here. Jobs that `fail` go to the topic
        `dead_letters`, if there is one. `start` is where a new group begins.
        """
        workshop = Workshop(self._core, topic, group, prefetch, concurrency, start, dead_letters)
        self._core.open_queues.append(workshop)
        return Queue(workshop, self._core.forget_queue)

    # -- the end ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, and end everything. Batches in hand are not committed."""
        self._core.close(is_clean=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._core.close(is_clean=kind is None)
