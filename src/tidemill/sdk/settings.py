"""The configuration of each librdkafka client, from what the user gave.

Users write librdkafka's properties as keyword arguments, dots as underscores: `security_protocol="SASL_SSL"`. Each
goes to the clients that it is for, so that none of them complains about a property of another. What the SDK's
promises rest on (who commits, how partitions are chosen) cannot be set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError

from tidemill.sdk.errors import InvalidSetting

LOGGER = logging.getLogger("tidemill.sdk")
# librdkafka's own log lines go here instead of to stderr; what matters in them comes as an exception, too.
LOGGER.addHandler(logging.NullHandler())

_PRODUCER_ONLY = frozenset(
    {
        "acks",
        "request.required.acks",
        "request.timeout.ms",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "linger.ms",
        "queue.buffering.max.ms",
        "queue.buffering.max.messages",
        "queue.buffering.max.kbytes",
        "queue.buffering.backpressure.threshold",
        "batch.size",
        "batch.num.messages",
        "compression.codec",
        "compression.type",
        "compression.level",
        "message.send.max.retries",
        "retries",
        "enable.idempotence",
        "enable.gapless.guarantee",
        "transaction.timeout.ms",
        "sticky.partitioning.linger.ms",
    }
)
_CONSUMER_ONLY = frozenset(
    {
        "auto.offset.reset",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "heartbeat.interval.ms",
        "group.protocol",
        "group.remote.assignor",
        "group.instance.id",
        "coordinator.query.interval.ms",
        "max.poll.interval.ms",
        "queued.min.messages",
        "queued.max.messages.kbytes",
        "fetch.wait.max.ms",
        "fetch.queue.backoff.ms",
        "fetch.message.max.bytes",
        "max.partition.fetch.bytes",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "fetch.error.backoff.ms",
        "check.crcs",
        "isolation.level",
        "consume.callback.max.messages",
    }
)
_OURS = {
    "bootstrap.servers": "give it as the first argument",
    "group.id": "give it as consume(group=...)",
    "enable.auto.commit": "choose consume(guarantee=...)",
    "enable.auto.offset.store": "choose consume(guarantee=...)",
    "enable.partition.eof": "ends of partitions are not handed out",
    "transactional.id": "choose consume(guarantee='exactly-once', instance=...)",
    "partitioner": "keys go where Kafka's own client sends them; for others, give publish(partition=...)",
    "delivery.report.only.error": "each publication has a result",
}

OnError = Callable[[KafkaError], None]


def _property(name: str) -> str:
    return name if name.endswith("_cb") else name.replace("_", ".")


def properties(given: Mapping[str, Any]) -> dict[str, Any]:
    """librdkafka's names for them."""
    found = {_property(name): value for name, value in given.items()}
    for name in found:
        if name in _OURS:
            raise InvalidSetting(f"{name} cannot be set: {_OURS[name]}")
    return found


@dataclass(frozen=True)
class Settings:
    """The settings that a client was given."""

    bootstrap: str
    # How long a call waits for brokers before it raises.
    timeout_s: float = 30.0
    given: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, bootstrap: str, timeout_s: float, given: Mapping[str, Any]) -> Settings:
        if not bootstrap:
            raise InvalidSetting("bootstrap is empty; give HOST:PORT of one or more brokers")
        if timeout_s <= 0:
            raise InvalidSetting(f"timeout_s is {timeout_s:g}; it has to be above 0")
        return cls(bootstrap, timeout_s, properties(given))

    def _common(self, on_error: OnError) -> dict[str, Any]:
        shared = {
            name: value
            for name, value in self.given.items()
            if name not in _PRODUCER_ONLY and name not in _CONSUMER_ONLY
        }
        return {
            "client.id": "tidemill",
            **shared,
            "bootstrap.servers": self.bootstrap,
            "error_cb": on_error,
            "logger": LOGGER,
        }

    def _only(self, names: frozenset[str]) -> dict[str, Any]:
        return {name: value for name, value in self.given.items() if name in names}

    def admin(self, on_error: OnError) -> dict[str, Any]:
        return self._common(on_error)

    def producer(self, on_error: OnError, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return {
            **self._common(on_error),
            "enable.idempotence": True,
            "message.timeout.ms": max(1, int(self.timeout_s * 1000)),
            **self._only(_PRODUCER_ONLY),
            **(more or {}),
            # As Kafka's own client does it. librdkafka's default is another hash.
            "partitioner": "murmur2_random",
        }

    def consumer(self, on_error: OnError, group: str, more: Mapping[str, Any]) -> dict[str, Any]:
        return {
            # Longer than a fetch waits. A commit that loses its connection is sent again after this time. Sooner, before the
            # search for the coordinator is answered (it stands behind a fetch), librdkafka fails it over and over.
            "retry.backoff.ms": 1_000,
            **self._common(on_error),
            **self._only(_CONSUMER_ONLY),
            **more,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
        }
