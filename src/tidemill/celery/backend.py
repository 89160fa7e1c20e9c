"""Topics, groups, publishing and the table of bindings: the blocking calls of one kombu connection.

Calls may come from any thread; they take turns. A forked process must not write to the sockets of its parent, nor keep
them open. The broker ends a share session with its connection, so a child that holds it would keep the locks of a
parent that was killed. So every socket is closed in the child.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from amqp.exceptions import PreconditionFailed

from tidemill.celery import routing
from tidemill.celery.envelope import Message, due_headers, encode, priority_of
from tidemill.celery.failures import translated
from tidemill.celery.names import PRIORITY_STEPS, Names
from tidemill.celery.routing import Binding, Entry, Exchange, Routes
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.share_groups import ShareGroupAdmin
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import Address, Connection
from tidemill.client.connections.security import SecurityOptions
from tidemill.client.consumer import Consumer
from tidemill.client.producing.producer import Producer
from tidemill.client.retry import UnknownTopic
from tidemill.config import DELAYS_ENABLE
from tidemill.config.keys.topics import DEAD_LETTERS_ENABLE
from tidemill.config.share_groups import DEAD_LETTER_TOPIC
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.records import Header
from tidemill.types import TopicPartition

LOGGER = logging.getLogger("tidemill.celery")

_STREAM_CONFIGS = {"retention.ms": "600000", "segment.ms": "600000"}
_BINDINGS_CONFIGS = {"cleanup.policy": "compact"}
# The source of a setting that was made for the group itself.
_SET_FOR_GROUP = 8
_DELIVERY_LIMIT = "share.delivery.count.limit"
# As much as brokers allow: a queue is no place where work gets lost.
_GROUP_CONFIGS = {"share.auto.offset.reset": "earliest", _DELIVERY_LIMIT: "10"}
_DELIVERY_LIMIT_DEFAULT = 5
# The table was deleted, and perhaps made anew.
_TABLE_REPLACED = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OFFSET_OUT_OF_RANGE)


@dataclass(frozen=True)
class Options:
    """The settings in a connection's URL and `transport_options`."""

    bootstrap: str
    virtual_host: str = "/"
    security: SecurityOptions | None = None
    client_id: str = "tidemill-celery"
    timeout_s: float = 10.0
    partitions: int = -1
    replication_factor: int = -1
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    priority_steps: Sequence[int] = PRIORITY_STEPS
    dead_letters: str | None = None


class _ForkedCluster(Cluster):
    """Its connections are closed in forked processes."""

    def open(self, address: Address, timeout_s: float) -> Connection:
        connection = super().open(address, timeout_s)
        _CONNECTIONS.add(connection)
        return connection


_CONNECTIONS: weakref.WeakSet[Connection] = weakref.WeakSet()


def _close_inherited() -> None:
    # Another thread of the parent may have been changing the set at that moment.
    with contextlib.suppress(RuntimeError):
        for connection in list(_CONNECTIONS):
            connection.close()


os.register_at_fork(after_in_child=_close_inherited)


class Backend:
    def __init__(self, options: Options) -> None:
        self.names = Names(options.virtual_host, options.priority_steps)
        self._options = options
        # Reentrant: what is published may need its topic first.
        self._lock = threading.RLock()
        self._cluster = self.cluster()
        self._admin = Admin(self._cluster)
        self._producer: Producer | None = None
        # Topics that were there, and whether they take delayed records.
        self._topics: dict[str, bool] = {}
        self._routes = Routes()
        self._routes_reader: Consumer | None = None

    def cluster(self) -> Cluster:
        """A new one, which the caller owns."""
        options = self._options
        return _ForkedCluster(
            options.bootstrap,
            client_id=options.client_id,
            timeout_s=options.timeout_s,
            security=options.security,
        )

    def connect(self) -> None:
        with self._lock, translated():
            self._cluster.load_metadata([])

    def close(self) -> None:
        with self._lock:
            self._cluster.close()

    # -- queues ----------------------------------------------------------------------------------------------

    def has_queue(self, queue: str) -> bool:
        topic = self.names.topic(queue)
        with self._lock, translated():
            return topic in self._topics or bool(self._known([topic]))

    def ensure_queue(self, queue: str, *, has_priorities: bool = False) -> None:
        """Creates the topic of a queue, with priorities those of all steps. Otherwise they come with the first message."""
        topics = self.names.topics(queue) if has_priorities else [self.names.topic(queue)]
        for topic in topics:
            self._ensure_queue_topic(topic)

    def _ensure_queue_topic(self, topic: str) -> None:
        with self._lock, translated():
            if topic in self._topics or self._known([topic]):
                return
            options = self._options
            try:
                self._create(topic, {DELAYS_ENABLE: "true", **options.topic_configs}, options.partitions)
            except ApiError as failure:
                if failure.code is not ErrorCode.INVALID_CONFIG:
                    raise
                # Apache Kafka has no delayed messages: workers keep tasks until they are due.
                self._create(topic, options.topic_configs, options.partitions)
            self._known([topic])

    def _create(self, topic: str, configs: Mapping[str, str], partitions: int) -> None:
        try:
            self._admin.create_topic(
                topic,
                partition_count=partitions,
                replication_factor=self._options.replication_factor,
                configs=dict(configs),
            )
        except ApiError as failure:
            if failure.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    def _known(self, topics: Sequence[str]) -> list[str]:
        """Returns the topics that exist."""
        found = list(self._admin.existing_topics(topics))
        if found:
            delays = self._admin.topic_values(found, DELAYS_ENABLE)
            self._topics.update({topic: delays.get(topic) == "true" for topic in found})
        return found

    def publish(self, queue: str, message: Message) -> None:
        """Writes a message to the queue's topic, and returns when it is there."""
        topic = self.names.topic(queue, priority_of(message))
        value = encode(message)
        with self._lock, translated():
            self._ensure_queue_topic(topic)
            try:
                self._write(topic, value, self._due_headers(topic, message))
            except UnknownTopic:
                # Deleted by another client since.
                del self._topics[topic]
                self._ensure_queue_topic(topic)
                self._write(topic, value, self._due_headers(topic, message))

    def _due_headers(self, topic: str, message: Message) -> list[Header]:
        return due_headers(message, time.time_ns() // 1_000_000) if self._topics[topic] else []

    def publish_again(self, topic: str, value: bytes | None) -> None:
        """Writes a copy of a record."""
        with self._lock, translated():
            self._write(topic, value, [])

    def _write(
        self, topic: str, value: bytes | None, headers: Sequence[Header], key: bytes | None = None
    ) -> None:
        producer = self._producer or Producer(self._cluster)
        # After a failure its sequence numbers are unsure: the next record would be taken for a duplicate.
        self._producer = None
        producer.add(topic, value, key=key, headers=headers)
        producer.flush()
        producer.appended.clear()
        self._producer = producer

    def size(self, queue: str) -> int:
        """Returns the number of messages that wait in the queue or are in hand."""
        with self._lock, translated():
            positions = {
                each.partition: each
                for each in ShareGroupAdmin(self._cluster).positions(self.names.group(queue))
            }
            partitions = self._partitions(queue)
            ends, starts = self._admin.end_offsets(partitions), self._admin.start_offsets(partitions)
        total = 0
        for partition in partitions:
            position = positions.get(partition)
            if position is not None and position.lag is not None:
                total += position.lag
            else:
                start_offset = None if position is None else position.start_offset
                total += ends[partition] - max(starts[partition], start_offset or 0)
        return total

    def _partitions(self, queue: str) -> list[TopicPartition]:
        existing = self._admin.existing_topics(self.names.topics(queue))
        return [
            TopicPartition(name, each.partition_index)
            for name, topic in existing.items()
            for each in topic.partitions
        ]

    def purge(self, queue: str) -> int:
        """Deletes what is in the queue, delayed messages too."""
        count = self.size(queue)
        with self._lock, translated():
            self._admin.delete_records(self._admin.end_offsets(self._partitions(queue)))
        return count

    def delete(self, queue: str) -> None:
        """Deletes a queue with its bindings and its group. Workers that still consume from it get nothing more."""
        self._note([routing.binding_entry(each, is_bound=False) for each in self.routes().bindings_of(queue)])
        with self._lock, translated():
            for topic in self._admin.existing_topics(self.names.topics(queue)):
                self._admin.delete_topic(topic)
                self._topics.pop(topic, None)
            with contextlib.suppress(ApiError):
                GroupAdmin(self._cluster).delete(self.names.group(queue))

    def prepare_group(self, queue: str) -> int:
        """Settings of the queue's group, unless it has others; returns after how many deliveries a message is given up."""
        group = self.names.group(queue)
        wanted = dict(_GROUP_CONFIGS)
        dead_letters = self._options.dead_letters
        with self._lock, translated():
            if dead_letters is not None:
                wanted[DEAD_LETTER_TOPIC] = dead_letters
                if not self._admin.existing_topics([dead_letters]):
                    self._create(dead_letters, {DEAD_LETTERS_ENABLE: "true"}, -1)
            try:
                self._set_for_group(group, wanted)
                found = {each.name: each for each in self._admin.describe_configs(ResourceType.GROUP, group)}
                return int(found[_DELIVERY_LIMIT].value or _DELIVERY_LIMIT_DEFAULT)
            except ApiError as failure:
                LOGGER.warning("settings of group %s: %s", group, failure)
                return _DELIVERY_LIMIT_DEFAULT

    def _set_for_group(self, group: str, wanted: Mapping[str, str]) -> None:
        described = self._admin.describe_configs(ResourceType.GROUP, group)
        given = {each.name for each in described if each.config_source == _SET_FOR_GROUP}
        # Each by itself: brokers may refuse one of them.
        for name in sorted(wanted.keys() - given):
            try:
                self._admin.alter_configs(ResourceType.GROUP, group, changes={name: wanted[name]})
            except ApiError as failure:
                LOGGER.warning("%s=%s of group %s was not set: %s", name, wanted[name], group, failure)

    # -- exchanges -------------------------------------------------------------------------------------------

    def routes(self) -> Routes:
        """The exchanges and bindings as they are now."""
        with self._lock, translated():
            try:
                self._read_routes()
            except ApiError as failure:
                if failure.code not in _TABLE_REPLACED:
                    raise
                self._routes_reader = None
                self._read_routes()
            return self._routes

    def _read_routes(self) -> None:
        if self._routes_reader is None and not self._start_reading():
            return
        assert self._routes_reader is not None
        while records := list(self._routes_reader.poll(max_wait_ms=0)):
            for each in records:
                self._routes.replay(each.record.key, each.record.value)

    def _start_reading(self) -> bool:
        """False while there is no table."""
        partition = TopicPartition(self.names.bindings, 0)
        self._routes = Routes()
        if not self._admin.existing_topics([partition.topic]):
            return False
        start_offset = self._admin.start_offsets([partition])[partition]
        self._routes_reader = Consumer(self._cluster, {partition: start_offset})
        return True

    def _note(self, entries: Sequence[Entry]) -> None:
        with self._lock, translated():
            if entries and self.names.bindings not in self._topics:
                if not self._known([self.names.bindings]):
                    self._create(self.names.bindings, _BINDINGS_CONFIGS, 1)
                self._topics[self.names.bindings] = False
            for key, value in entries:
                self._write(self.names.bindings, value, [], key)

    def declare_exchange(self, name: str, exchange_type: str) -> None:
        known = self.routes().exchanges.get(name)
        if known is None:
            self._note([routing.exchange_entry(name, Exchange(exchange_type))])
        elif known.type != exchange_type:
            raise PreconditionFailed(f"exchange {name!r} is of type {known.type}, not {exchange_type}")

    def delete_exchange(self, name: str) -> None:
        bound = [each for each in self.routes().bindings if each.exchange == name]
        self._note(
            [
                *(routing.binding_entry(each, is_bound=False) for each in sorted(bound)),
                routing.exchange_entry(name, None),
            ]
        )

    def bind(self, binding: Binding) -> None:
        if binding not in self.routes().bindings:
            self._note([routing.binding_entry(binding, is_bound=True)])

    def unbind(self, binding: Binding) -> None:
        if binding in self.routes().bindings:
            self._note([routing.binding_entry(binding, is_bound=False)])

    # -- streams of exchanges --------------------------------------------------------------------------------

    def open_stream(self, exchange: str) -> dict[TopicPartition, int]:
        """Creates the exchange's stream, if it has none; the positions of its end."""
        topic = self.names.stream(exchange)
        with self._lock, translated():
            if topic not in self._topics and not self._known([topic]):
                self._create(topic, _STREAM_CONFIGS, 1)
                self._topics[topic] = False
            positions = self._admin.end_offsets([TopicPartition(topic, 0)])
        known = self.routes().exchanges.get(exchange)
        if exchange and (known is None or not known.has_stream):
            exchange_type = "direct" if known is None else known.type
            self._note([routing.exchange_entry(exchange, Exchange(exchange_type, has_stream=True))])
        return positions

    def has_stream(self, exchange: str) -> bool:
        if exchange:
            known = self.routes().exchanges.get(exchange)
            return known is not None and known.has_stream
        topic = self.names.stream(exchange)
        with self._lock, translated():
            return topic in self._topics or bool(self._known([topic]))

    def publish_to_stream(self, exchange: str, message: Message) -> None:
        with self._lock, translated():
            self._write(self.names.stream(exchange), encode(message), [])
