"""The common part of `Client` and `AsyncClient`: everything but how they wait.

Owns the settings, the one producer, the one admin client and the list of consumers that are open. Every call here may
block; the faces decide in which thread that happens.
"""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, get_args

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from tidemill.config import DELAYS_ENABLE
from tidemill.sdk.claims import LargePayloads, Withdrawals
from tidemill.sdk.consuming.commits import Commits
from tidemill.sdk.consuming.guarantees import (
    AtLeastOnce,
    AtLeastOnceWithRetries,
    AtMostOnce,
    ExactlyOnce,
    Guarantee,
    GuaranteeName,
    TransactionalOffsets,
)
from tidemill.sdk.consuming.positions import Place
from tidemill.sdk.consuming.reader import Reader, Reading
from tidemill.sdk.consuming.retries import Backoff, Retrying
from tidemill.sdk.errors import ClientError, Closed, InvalidSetting, TopicExists, UnknownTopic
from tidemill.sdk.kafka_errors import cause, translated
from tidemill.sdk.publishing.hot_keys import HotKeys
from tidemill.sdk.publishing.publisher import Publisher
from tidemill.sdk.publishing.transactions import Transactions
from tidemill.sdk.records import Serializer
from tidemill.sdk.settings import LOGGER, Settings, properties
from tidemill.sdk.waiting import Health, patiently

_MAX_BATCH_MAX = 1_000_000
_TRANSACTION_TIMEOUT_MS = 60_000
_RETRY_TRANSACTION_TIMEOUT_MS = 10_000
_PAUSE_S = 0.02


class OpenQueue(Protocol):
    """A queue, which is closed with the client."""

    def close(self) -> None: ...


class Core:
    def __init__(
        self,
        bootstrap: str,
        timeout_s: float,
        serializer: Serializer | None,
        hot_keys: HotKeys | None,
        config: Mapping[str, Any],
        large_payloads: LargePayloads | None = None,
    ) -> None:
        self.settings = Settings.of(bootstrap, timeout_s, config)
        self._serializer = serializer
        self._hot_keys = hot_keys
        self._large_payloads = large_payloads
        self._lock = threading.Lock()
        self._publisher: Publisher | None = None
        self._admin: AdminClient | None = None
        self._health = Health(bootstrap)
        self._readers: list[Reader] = []
        self.open_queues: list[OpenQueue] = []
        self._is_closed = False

    def publisher(self) -> Publisher:
        """Made when the first record is published. Does not wait for brokers."""
        with self._lock:
            self._check_open("publish")
            if self._publisher is None:
                self._publisher = Publisher(
                    self.settings, self._serializer, self._hot_keys, large_payloads=self._large_payloads
                )
            return self._publisher

    def _check_open(self, doing: str) -> None:
        if self._is_closed:
            raise Closed(f"{doing}: the client is closed")

    # -- topics ----------------------------------------------------------------------------------------------

    def admin_client(self, doing: str) -> AdminClient:
        with self._lock:
            self._check_open(doing)
            if self._admin is None:
                try:
                    self._admin = AdminClient(self.settings.admin(self._health.on_error))
                except KafkaException as failure:
                    raise translated(cause(failure), doing, InvalidSetting) from None
            return self._admin

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, object] | None,
        exist_ok: bool,
    ) -> None:
        """Returns when every partition has a leader."""
        doing = f"create topic {name}"
        admin = self.admin_client(doing)
        texts = {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in (configs or {}).items()
        }
        wanted = NewTopic(
            name, num_partitions=partitions, replication_factor=replication_factor, config=texts
        )
        limit_s = self.settings.timeout_s
        try:
            self.wait_for(
                admin.create_topics([wanted], operation_timeout=limit_s, request_timeout=limit_s)[name], doing
            )
        except TopicExists:
            if not exist_ok:
                raise
        self._await_leaders(admin, name, doing)

    def delete_topic(self, name: str) -> None:
        doing = f"delete topic {name}"
        limit_s = self.settings.timeout_s
        admin = self.admin_client(doing)
        self.wait_for(
            admin.delete_topics([name], operation_timeout=limit_s, request_timeout=limit_s)[name], doing
        )

    def topic_names(self, doing: str) -> list[str]:
        """The names of all topics that the cluster shows."""
        admin = self.admin_client(doing)
        limit_s = self.settings.timeout_s
        listed = patiently(
            lambda timeout_s: admin.list_topics(timeout=timeout_s), doing, limit_s, self._health
        )
        return sorted(listed.topics)

    def wait_for(self, future: Any, doing: str) -> Any:
        """The result of a request of the admin client."""
        limit_s = self.settings.timeout_s
        try:
            return future.result(limit_s + 1.0)
        except TimeoutError:
            raise self._health.unreachable(doing, limit_s) from None
        except KafkaException as failure:
            failed = translated(cause(failure), doing)
            if failed.code in ("_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN"):
                raise self._health.unreachable(doing, limit_s) from None
            raise failed from None

    def _await_leaders(self, admin: AdminClient, name: str, doing: str) -> None:
        limit_s = self.settings.timeout_s
        deadline_s = time.monotonic() + limit_s
        while True:
            found = patiently(
                lambda timeout_s: admin.list_topics(name, timeout=timeout_s), doing, limit_s, self._health
            ).topics[name]
            if found.error is None and all(each.leader >= 0 for each in found.partitions.values()):
                return
            if time.monotonic() >= deadline_s:
                raise ClientError(f"{doing}: not all of its partitions had a leader within {limit_s:g} s")
            time.sleep(_PAUSE_S)

    # -- consumers -------------------------------------------------------------------------------------------

    def reader(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        max_batch: int,
        guarantee: GuaranteeName,
        start: Place,
        linger_s: float,
        instance: str | None,
        retries: int | None,
        backoff: Backoff,
        dead_letters: str | None,
        retry_topic: str | None,
        config: Mapping[str, Any],
    ) -> Reader:
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names or not group:
            raise InvalidSetting("consume: give at least one topic, and a group")
        if not 1 <= max_batch <= _MAX_BATCH_MAX:
            raise InvalidSetting(f"consume: max_batch is {max_batch}; it has to be 1 to {_MAX_BATCH_MAX}")
        if guarantee not in get_args(GuaranteeName):
            raise InvalidSetting(
                f"consume: guarantee is {guarantee!r}; it has to be one of {', '.join(get_args(GuaranteeName))}"
            )
        if start not in get_args(Place):
            raise InvalidSetting(f"consume: start is {start!r}; it has to be 'earliest' or 'latest'")
        retrying = Retrying.of(group, names, retries, backoff, dead_letters, retry_topic)
        if retrying is not None and guarantee != "at-least-once":
            raise InvalidSetting(
                f"consume: retries and dead letters need guarantee='at-least-once', not {guarantee}"
            )
        given = {**self.settings.given, **properties(config)}
        if guarantee == "exactly-once" and given.get("isolation.level", "read_committed") != "read_committed":
            raise InvalidSetting(
                "consume: exactly-once reads committed records only; leave isolation_level away"
            )
        consumer_config = {"isolation.level": "read_committed", "auto.offset.reset": start, **given}
        settings = Settings(self.settings.bootstrap, self.settings.timeout_s, consumer_config)
        reading = Reading(names, group, max_batch, linger_s, consumer_config, retrying)
        with self._lock:
            self._check_open("consume")
            reader = Reader(
                settings,
                reading,
                lambda consumer, commits: self._guarantee(
                    guarantee, retrying, consumer, commits, settings, instance
                ),
                self._prepare_retries,
                self.withdrawals(),
            )
            self._readers.append(reader)
        return reader

    def withdrawals(self) -> Withdrawals:
        return Withdrawals(self._large_payloads)

    def _guarantee(
        self,
        name: GuaranteeName,
        retrying: Retrying | None,
        consumer: Consumer,
        commits: Commits,
        settings: Settings,
        instance: str | None,
    ) -> Guarantee:
        if name == "at-most-once":
            return AtMostOnce(self.publisher, commits)
        if name == "at-least-once" and retrying is None:
            return AtLeastOnce(self.publisher, commits, settings.timeout_s)
        process = instance or f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}"
        if retrying is not None:
            transactional_id = f"{commits.group}-retries-{process}"
            # It is open for a moment only: what a killed process leaves open holds nothing up for long.
            offsets = TransactionalOffsets(
                consumer,
                lambda: self._transactions(settings, transactional_id, _RETRY_TRANSACTION_TIMEOUT_MS),
            )
            return AtLeastOnceWithRetries(self.publisher, commits, settings.timeout_s, offsets, retrying)
        limit_ms = int(settings.given.get("transaction.timeout.ms", _TRANSACTION_TIMEOUT_MS))
        return ExactlyOnce(
            TransactionalOffsets(
                consumer, lambda: self._transactions(settings, f"{commits.group}-{process}", limit_ms)
            )
        )

    def _transactions(self, settings: Settings, transactional_id: str, limit_ms: int) -> Transactions:
        config = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": limit_ms,
            # A record that takes longer than its transaction may is of no use.
            "message.timeout.ms": min(limit_ms, int(settings.timeout_s * 1000)),
        }
        publisher = Publisher(settings, self._serializer, self._hot_keys, config, self._large_payloads)
        return Transactions(publisher, transactional_id, settings.timeout_s)

    def _prepare_retries(self, retrying: Retrying) -> None:
        """The dead-letter topic has to be there; the retry topic is created, or has to have delays."""
        doing = f"consume as {retrying.group}"
        names = self.topic_names(doing)
        if retrying.dead_letters not in names:
            raise UnknownTopic(
                f"{doing}: there is no topic {retrying.dead_letters} for dead letters; create it with create_topic",
                code="UNKNOWN_TOPIC_OR_PART",
            )
        if not retrying.retries:
            return
        name = retrying.retry_topic
        if name not in names:
            # As many partitions as the broker gives by default; the group's members share them.
            self.create_topic(name, -1, -1, {DELAYS_ENABLE: True}, exist_ok=True)
        if not self.has_delays(name):
            raise InvalidSetting(
                f"{doing}: topic {name} has no delays; create it with {DELAYS_ENABLE}=true, or name another with retry_topic"
            )

    def has_delays(self, topic: str) -> bool:
        """Whether the topic takes delayed records."""
        doing = f"describe topic {topic}"
        resource = ConfigResource(ResourceType.TOPIC, topic)
        described = self.admin_client(doing).describe_configs([resource])[resource]
        enabled = self.wait_for(described, doing).get(DELAYS_ENABLE)
        return enabled is not None and enabled.value == "true"

    def forget(self, reader: Reader) -> None:
        with self._lock:
            if reader in self._readers:
                self._readers.remove(reader)

    def forget_queue(self, queue: OpenQueue) -> None:
        if queue in self.open_queues:
            self.open_queues.remove(queue)

    # -- the end ---------------------------------------------------------------------------------------------

    def close(self, is_clean: bool) -> None:
        """Batches in hand are given up, what was published is flushed. Unless it is clean, failures are only logged."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            readers, self._readers = self._readers, []
        failures: list[ClientError] = []
        for queue in self.open_queues:
            queue.close()
        for reader in readers:
            try:
                reader.close(is_done=False)
            except ClientError as failure:
                failures.append(failure)
        if self._publisher is not None:
            try:
                self._publisher.close()
            except ClientError as failure:
                failures.append(failure)
        if failures and is_clean:
            raise failures[-1]
        for each in failures:
            LOGGER.error("%s", each)
