"""Delivers records to the cluster: one producer for all requests, and a future for each record.

The producer is confluent-kafka's (acks=all, idempotent). `hand_over` does not wait; its future gets the outcome. A thread
polls the producer and passes delivery reports to the event loop once per poll, not once per record. The number and the size
of pending records are bounded: a record beyond the bound is refused (503), never stored.

The producer never creates topics. librdkafka does not recover from some errors (the cluster lost the producer's sequence);
then the producer is replaced. Records under way fail, later ones do not.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException, Message, Producer

from tidemill.gateway.problems import Problem, problem_of
from tidemill.gateway.settings import Settings
from tidemill.gateway.turns import TURN_S
from tidemill.types import NO_OFFSET

Headers = Sequence[tuple[str, bytes | None]]

CLIENT_ID = "tidemill-gateway"
_POLL_S = 0.1
_LOG_APPEND_TIME = 2

_log = logging.getLogger("tidemill.gateway.producer")


class Delivery(NamedTuple):
    """The place of a written record. The timestamp is the topic's: the record's own, or its append time."""

    partition: int
    # `NO_OFFSET` for a decommissioned partition: the record is in another one.
    offset: int
    timestamp_ms: int | None
    is_append_time: bool


class Deliveries:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._line: _Line | None = None
        self._is_closed = False
        self._outcomes: deque[tuple[asyncio.Future[Delivery], Delivery | KafkaError]] = deque()
        self.pending = 0
        # librdkafka found no broker, and none has acknowledged anything since.
        self.is_cluster_gone = False
        self.on_unknown_topic: Callable[[], None] = lambda: None

    def open(self, *, is_eager: bool) -> None:
        """Does not wait for the cluster. To be called in the event loop. The producer is made now, or for the first
        record."""
        if not _log.filters:
            _log.addFilter(_OncePerHalfMinute())
        self._loop = asyncio.get_running_loop()
        if is_eager:
            self._line = self._new_line()

    async def close(self) -> None:
        """Waits for the outcomes of what was handed over, as long as the drain may take."""
        self._is_closed = True
        line, self._line = self._line, None
        if line is not None:
            await asyncio.to_thread(line.close, self._settings.drain_s)
            while self._outcomes:
                self._tell()

    def hand_over(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int | None,
    ) -> asyncio.Future[Delivery]:
        self._check_size(key, value, headers)
        if self.pending >= self._limits.records_pending_max:
            raise _too_many()
        assert self._loop is not None
        future: asyncio.Future[Delivery] = self._loop.create_future()
        options: dict[str, Any] = {"on_delivery": functools.partial(self._on_delivery, future)}
        if timestamp_ms is not None:
            options["timestamp"] = timestamp_ms
        if headers:
            options["headers"] = list(headers)
        try:
            self._working_line().producer.produce(
                topic, value, key, -1 if partition is None else partition, **options
            )
        except BufferError:
            raise _too_many() from None
        except KafkaException as error:
            raise problem_of(error.args[0]) from None
        self.pending += 1
        return future

    def _check_size(self, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        size_bytes = len(key or b"") + len(value or b"")
        if headers:
            size_bytes += sum(len(name) + len(content or b"") for name, content in headers)
        limit = self._limits.record_bytes_max
        if size_bytes > limit:
            raise Problem(413, 413, f"the record has {size_bytes} bytes; {limit} is the limit here")

    def _working_line(self) -> _Line:
        if self._is_closed:
            raise Problem(503, 50301, "the gateway is stopping")
        if self._line is None or self._line.is_broken:
            self._line = self._new_line()
        return self._line

    def _new_line(self) -> _Line:
        limits = self._limits
        config = {
            **self._settings.client_config(),
            "client.id": CLIENT_ID,
            "enable.idempotence": True,
            "acks": "all",
            "allow.auto.create.topics": False,
            # As in Java's clients, so that a key is always in the same partition.
            "partitioner": "murmur2_random",
            "linger.ms": 1,
            "reconnect.backoff.max.ms": 500,
            "message.max.bytes": min(limits.record_bytes_max + 65_536, 1_000_000_000),
            "queue.buffering.max.messages": limits.records_pending_max,
            "queue.buffering.max.kbytes": max(1, limits.records_pending_bytes_max // 1024),
            "message.timeout.ms": int(self._settings.timeout_s * 1000),
            "error_cb": self._on_error,
        }
        return _Line(config, self._wake)

    # --- in the poller's thread ---

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.is_cluster_gone = True

    def _on_delivery(
        self, future: asyncio.Future[Delivery], error: KafkaError | None, message: Message
    ) -> None:
        if error is not None:
            self._outcomes.append((future, error))
            return
        kind, timestamp_ms = message.timestamp()
        offset = message.offset()
        delivery = Delivery(
            message.partition() or 0,
            NO_OFFSET if offset is None else offset,
            None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
            kind == _LOG_APPEND_TIME,
        )
        self._outcomes.append((future, delivery))

    def _wake(self) -> bool:
        """Schedules the delivery of outcomes on the event loop; False when the loop is closed."""
        if not self._outcomes:
            return True
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._tell)
        except RuntimeError:
            return False
        return True

    # --- in the event loop ---

    def _tell(self) -> None:
        """As many as fit in a turn; the rest has another."""
        until_s = time.monotonic() + TURN_S
        while self._outcomes:
            if time.monotonic() >= until_s:
                self._wake()
                return
            future, outcome = self._outcomes.popleft()
            self.pending -= 1
            if isinstance(outcome, Delivery):
                self.is_cluster_gone = False
            if future.done():
                continue
            if isinstance(outcome, Delivery):
                future.set_result(outcome)
                continue
            if outcome.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
                self.on_unknown_topic()
            future.set_exception(problem_of(outcome))
            # A caller that disconnected does not read the exception.
            future.exception()


class _Line:
    """One producer, and the thread that polls it."""

    def __init__(self, config: dict[str, Any], wake: Callable[[], bool]) -> None:
        self.producer = Producer(config, logger=_log)
        self.is_broken = False
        self._is_closing = False
        self._wake = wake
        self._poller = threading.Thread(target=self._poll, name="gateway-producer", daemon=True)
        self._poller.start()

    def close(self, drain_s: float) -> None:
        """Closes the producer. Records without an outcome after `drain_s` fail."""
        self.producer.flush(drain_s)
        self.producer.purge()
        self._is_closing = True
        self._poller.join()

    def _poll(self) -> None:
        while not self._is_over():
            try:
                self.producer.poll(_POLL_S)
            except KafkaException as error:
                # Only an error that is final for the producer is raised here.
                _log.error("the producer is replaced: %s", error.args[0].str())
                self.is_broken = True
                self.producer.purge()
            if not self._wake():
                return

    def _is_over(self) -> bool:
        return (self._is_closing or self.is_broken) and not len(self.producer)


class _OncePerHalfMinute(logging.Filter):
    """Drops librdkafka's log line for every single attempt to connect."""

    def __init__(self) -> None:
        super().__init__()
        self._quiet_until_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.getMessage().startswith("FAIL "):
            return True
        if time.monotonic() < self._quiet_until_s:
            return False
        self._quiet_until_s = time.monotonic() + 30.0
        return True


def _too_many() -> Problem:
    return Problem(503, 50301, "too many records are waiting for their acknowledgement; try again later")
