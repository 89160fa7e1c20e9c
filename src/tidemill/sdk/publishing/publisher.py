"""One producer: records go in, delivery results come out.

A record that is taken gives a `Publication`, a future that ends with the `Delivery` or with `DeliveryFailed`. A
thread serves librdkafka's callbacks, so results come without anybody asking. When librdkafka's queue is full
`try_publish` says so, and `publish` waits for room: that is the back pressure, in `timeout_s` at most.

A failure is never silent. One whose result was not read is raised by the next `flush` or by `close`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidemill.claims.streams import is_stream
from tidemill.sdk.claims import Deposits, LargePayloads
from tidemill.sdk.errors import (
    ClientError,
    Closed,
    DeliveryFailed,
    InvalidSetting,
    QueueFull,
    UnknownTopic,
)
from tidemill.sdk.kafka_errors import cause, translated
from tidemill.sdk.publishing.hot_keys import HotKeys, HotKeySpreader
from tidemill.sdk.records import Delivery, Encoded, NewRecord, Serializer, Text, encoded, header_pairs
from tidemill.sdk.settings import Settings
from tidemill.sdk.waiting import Health, topic_metadata
from tidemill.types import NO_OFFSET

_POLL_S = 0.1
_ROOM_POLL_S = 0.01
# Beyond the time that a record may take, so that its own failure is what is reported.
_FLUSH_GRACE_S = 2.0
# The first question creates a topic, where brokers allow it; it is unknown until that is done.
_CREATION_S = 10.0


class Publication(Future[Delivery]):
    """A record on its way. `result()` waits for the delivery; it cannot be cancelled, since it may be in the log already."""

    def __init__(self, topic: str, unseen: set[Publication]) -> None:
        super().__init__()
        self.topic = topic
        self._unseen = unseen
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> Delivery:
        try:
            return super().result(timeout)
        finally:
            self._unseen.discard(self)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            return super().exception(timeout)
        finally:
            self._unseen.discard(self)

    def reported_elsewhere(self) -> None:
        """The caller reports a failure, so `flush` need not."""
        self._unseen.discard(self)
        self._unseen = set()

    def fail(self, error: ClientError) -> None:
        self._unseen.add(self)
        self.set_exception(error)


class Publisher:
    def __init__(
        self,
        settings: Settings,
        serializer: Serializer | None = None,
        hot_keys: HotKeys | None = None,
        config: Mapping[str, Any] | None = None,
        large_payloads: LargePayloads | None = None,
    ) -> None:
        self._timeout_s = settings.timeout_s
        self._serializer = serializer
        self._spreader = HotKeySpreader(hot_keys) if hot_keys else None
        self._deposits = Deposits(large_payloads) if large_payloads else None
        self._spreader_lock = threading.Lock()
        self._partition_counts: dict[str, int] = {}
        self.health = Health(settings.bootstrap)
        # Failed, and the result was not read yet.
        self._unseen: set[Publication] = set()
        self._is_closed = threading.Event()
        try:
            self.producer = Producer(settings.producer(self.health.on_error, config))
        except KafkaException as failure:
            raise translated(cause(failure), "publish", InvalidSetting) from None
        self._poller = threading.Thread(target=self._poll, name="tidemill-sdk-deliveries", daemon=True)
        self._poller.start()

    def _poll(self) -> None:
        while not self._is_closed.is_set():
            self._serve(_POLL_S)

    def _serve(self, timeout_s: float) -> None:
        """Deliveries and errors. A fatal one is raised here by librdkafka; records and transactions fail with it, too."""
        try:
            self.producer.poll(timeout_s)
        except KafkaException as failure:
            self.health.on_error(cause(failure))

    def _flush_a_while(self, timeout_s: float) -> int:
        """Flushes for at most `timeout_s`; returns how many records are left."""
        try:
            return self.producer.flush(max(0.0, timeout_s))
        except KafkaException as failure:
            self.health.on_error(cause(failure))
            return len(self.producer)

    # -- one record ------------------------------------------------------------------------------------------

    def publish(self, topic: str, record: NewRecord, serializer: Serializer | None = None) -> Publication:
        """Waits for room when the queue is full, and for the store of a large payload."""
        record = self.encoded(topic, record, serializer)
        if self.needs_deposit(record):
            record = self.deposit(topic, record)
        if self.needs_partition_count(topic, record):
            self.learn(topic)
        publication = self.try_publish(topic, record, serializer)
        if publication is None:
            deadline_s = time.monotonic() + self._timeout_s
            while publication is None:
                self.await_room(topic, deadline_s)
                publication = self.try_publish(topic, record, serializer)
        return publication

    def try_publish(
        self, topic: str, record: NewRecord, serializer: Serializer | None = None
    ) -> Publication | None:
        """None when the queue is full. Never waits."""
        if self._is_closed.is_set():
            raise Closed(f"publish to {topic}: the client is closed")
        value = encoded(topic, record.value, serializer or self._serializer)
        publication = Publication(topic, self._unseen)
        try:
            key = _bytes_of(record.key)
            self.producer.produce(
                topic,
                value=value,
                key=key,
                partition=self._partition(topic, key, record.partition),
                timestamp=record.timestamp_ms or 0,
                headers=header_pairs(record.headers),
                on_delivery=partial(self._delivered, publication),
            )
        except BufferError:
            return None
        except KafkaException as failure:
            raise self._failed(topic, cause(failure)) from None
        except (TypeError, ValueError, OverflowError) as failure:
            raise InvalidSetting(f"publish to {topic}: {failure}") from None
        return publication

    def _partition(self, topic: str, key: bytes | None, partition: int | None) -> int:
        if partition is not None:
            return partition
        if self._spreader is None or key is None:
            return -1
        count = self._partition_counts.get(topic)
        if count is None:
            # A record of the topic has failed since the count was asked for. This one goes where its key belongs.
            return -1
        with self._spreader_lock:
            chosen = self._spreader.partition(topic, key, count)
        return -1 if chosen is None else chosen

    def _delivered(self, publication: Publication, error: KafkaError | None, message: Message) -> None:
        topic = publication.topic
        if error is not None:
            self._partition_counts.pop(topic, None)
            publication.fail(self._failed(topic, error))
            return
        _, timestamp_ms = message.timestamp()
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        if offset is None:
            # The partition is decommissioned: the record is in another one.
            offset = NO_OFFSET
        publication.set_result(Delivery(topic, partition, offset, timestamp_ms))

    def _failed(self, topic: str, error: KafkaError) -> ClientError:
        doing = f"publish to {topic}"
        if error.code() == KafkaError._MSG_TIMED_OUT:
            late = self.health.unreachable(doing, self._timeout_s)
            return DeliveryFailed(str(late), code=error.name(), is_retriable=True)
        advice = ""
        failed = translated(error, doing, DeliveryFailed)
        if error.code() == KafkaError.TOPIC_EXCEPTION:
            advice = (
                "views and internal topics take no records: publish to the source of the view; or no topic can have "
                "that name"
            )
        elif isinstance(failed, UnknownTopic):
            advice = "create it with create_topic, or give a partition that it has"
        elif error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
            advice = "raise message_max_bytes here and max.message.bytes of the topic, or send less"
        return translated(error, doing, DeliveryFailed, advice) if advice else failed

    def as_bytes(self, topic: str, record: NewRecord, serializer: Serializer | None) -> NewRecord:
        """The record with its value as bytes. A stream stays as it is: the store reads it."""
        value = record.value
        if not is_stream(value):
            data = encoded(topic, value, serializer or self._serializer)
            value = None if data is None else Encoded(data)
        return replace(record, value=value)

    # -- large payloads --------------------------------------------------------------------------------------

    def encoded(self, topic: str, record: NewRecord, serializer: Serializer | None) -> NewRecord:
        """The record with its value as bytes where their number matters, or as it is."""
        if self._deposits is None:
            return record
        return self._deposits.encoded(topic, record, serializer or self._serializer)

    def needs_deposit(self, record: NewRecord) -> bool:
        """Whether `deposit` has to be called before such an encoded record can be published."""
        return self._deposits is not None and self._deposits.is_due(record)

    def deposit(self, topic: str, record: NewRecord) -> NewRecord:
        """Put the payload into the store. Returns the record that refers to it."""
        if self._is_closed.is_set():
            raise Closed(f"publish to {topic}: the client is closed")
        assert self._deposits is not None
        return self._deposits.put(topic, record)

    # -- room and counts -------------------------------------------------------------------------------------

    def await_room(self, topic: str, deadline_s: float | None = None) -> None:
        """Returns after a moment in which deliveries were served; `QueueFull` when the time is over."""
        if deadline_s is not None and time.monotonic() >= deadline_s:
            raise QueueFull(
                f"publish to {topic}: {len(self.producer)} records wait already, and none was delivered within "
                f"{self._timeout_s:g} s; is the broker up? queue_buffering_max_messages sets how many may wait",
                code="_QUEUE_FULL",
                is_retriable=True,
            )
        self._serve(_ROOM_POLL_S)

    def needs_partition_count(self, topic: str, record: NewRecord) -> bool:
        """Whether `learn` has to be called before such a record can be published."""
        return (
            self._spreader is not None
            and record.key is not None
            and record.partition is None
            and topic not in self._partition_counts
        )

    def learn(self, topic: str) -> None:
        """Ask how many partitions the topic has. A number that has grown since only makes hot keys use fewer of them."""
        doing = f"publish to {topic}"
        found = topic_metadata(
            lambda name, seconds: self.producer.list_topics(name, timeout=seconds),
            topic,
            doing,
            self._timeout_s,
            self.health,
            _CREATION_S,
        )
        if found.error is not None:
            raise translated(found.error, doing, DeliveryFailed, "create it with create_topic")
        self._partition_counts[topic] = len(found.partitions)

    # -- all records -----------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when every record is delivered; raises when one failed whose result was not read."""
        limit_s = self._timeout_s + _FLUSH_GRACE_S if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + limit_s
        while left := self._flush_a_while(min(_POLL_S, deadline_s - time.monotonic())):
            if time.monotonic() >= deadline_s:
                raise self.health.unreachable(f"flush: {left} records are not delivered", limit_s)
        self.raise_unseen()

    def raise_unseen(self) -> None:
        """Raises the first failure whose result was not read; from then on all of them count as read."""
        failed = list(self._unseen)
        self._unseen.clear()
        if failed:
            first = failed[0].exception()
            assert isinstance(first, ClientError)
            more = f" (and {len(failed) - 1} more failed)" if len(failed) > 1 else ""
            raise type(first)(f"{first}{more}", code=first.code, is_retriable=first.is_retriable) from first

    def forgive_unseen(self) -> None:
        """Forgets failures that are reported in another way."""
        self._unseen.clear()

    def close(self) -> None:
        """Flush and end. Raises what `flush` raises, and is closed all the same."""
        if self._is_closed.is_set():
            return
        try:
            self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End at once: what is still under way fails."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        self._poller.join()
        self.producer.purge()
        self._flush_a_while(_POLL_S)


def _bytes_of(text: Text | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
