"""confluent-kafka: librdkafka's current release.

Its Consumer wants a `group.id` even for a plain assignment; nothing is ever committed under it.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import confluent_kafka
import confluent_kafka.admin

from tests.interop.clients import (
    LIMIT_S,
    Client,
    ClientError,
    Delivery,
    GroupDescription,
    Message,
    Received,
)

# Its annotations say less than it does: optional where it never is, unexported where it is public.
ck: Any = confluent_kafka
ck_admin: Any = confluent_kafka.admin


def _done(futures: Mapping[Any, Any]) -> Any:
    """The result of the only future of an admin call."""
    (future,) = futures.values()
    try:
        return future.result(timeout=LIMIT_S)
    except ck.KafkaException as refused:
        raise ClientError(refused.args[0].code(), refused.args[0].str()) from None


class _Reader:
    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def next(self, limit_s: float = LIMIT_S) -> Received:
        deadline = time.monotonic() + limit_s
        while (message := self._consumer.poll(max(0.0, deadline - time.monotonic()))) is None:
            if time.monotonic() > deadline:
                raise AssertionError(f"no record within {limit_s:g} s")
        if error := message.error():
            raise ClientError(error.code(), error.str())
        kind, timestamp_ms = message.timestamp()
        return Received(
            message.partition(),
            message.offset(),
            message.key(),
            message.value(),
            tuple(message.headers() or ()),
            timestamp_ms,
            kind == ck.TIMESTAMP_LOG_APPEND_TIME,
        )


class ConfluentClient(Client):
    name = "confluent-kafka"
    gaps: ClassVar[Mapping[str, str]] = {
        "delete_group_offsets": "its Python binding leaves OffsetDelete out",
    }

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._admin = ck_admin.AdminClient({"bootstrap.servers": bootstrap})

    def close(self) -> None:
        del self._admin

    @contextlib.contextmanager
    def _consumer(self, **settings: Any) -> Iterator[Any]:
        consumer = ck.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "never-committed",
                "enable.auto.commit": False,
                "allow.auto.create.topics": False,
                **settings,
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def brokers(self) -> set[str]:
        metadata = self._admin.list_topics(timeout=LIMIT_S)
        return {f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()}

    def list_topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=LIMIT_S).topics)

    def partitions(self, topic: str) -> set[int]:
        with self._consumer() as consumer:
            return set(consumer.list_topics(topic, timeout=LIMIT_S).topics[topic].partitions)

    def create_topic(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        new = ck_admin.NewTopic(
            topic, num_partitions=partitions, replication_factor=1, config=dict(configs or {})
        )
        _done(self._admin.create_topics([new]))

    def delete_topic(self, topic: str) -> None:
        _done(self._admin.delete_topics([topic]))

    def create_partitions(self, topic: str, total: int) -> None:
        _done(self._admin.create_partitions([ck_admin.NewPartitions(topic, total)]))

    def describe_configs(self, topic: str) -> dict[str, str | None]:
        resource = ck_admin.ConfigResource(ck_admin.ConfigResource.Type.TOPIC, topic)
        entries = _done(self._admin.describe_configs([resource]))
        return {name: entry.value for name, entry in entries.items()}

    def alter_configs(self, topic: str, change: Mapping[str, str | None]) -> None:
        operations = ck_admin.AlterConfigOpType
        entries = [
            ck_admin.ConfigEntry(
                name,
                value,
                incremental_operation=operations.DELETE if value is None else operations.SET,
            )
            for name, value in change.items()
        ]
        resource = ck_admin.ConfigResource(
            ck_admin.ConfigResource.Type.TOPIC, topic, incremental_configs=entries
        )
        _done(self._admin.incremental_alter_configs([resource]))

    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        resource = ck_admin.ConfigResource(
            ck_admin.ConfigResource.Type.TOPIC, topic, set_config=dict(configs)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            altered = self._admin.alter_configs([resource])
        _done(altered)

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        deleted = _done(self._admin.delete_records([ck.TopicPartition(topic, partition, before_offset)]))
        return int(deleted.low_watermark)

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[Delivery]:
        producer = ck.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": acks,
                "compression.type": compression,
                "enable.idempotence": idempotent,
                "partitioner": "murmur2_random",
                "linger.ms": 20,
                "message.max.bytes": 50_000_000,
                "delivery.timeout.ms": int(LIMIT_S * 1000),
            }
        )
        reports: list[tuple[Any, Any]] = []
        for message in messages:
            optional: dict[str, Any] = {}
            if message.partition is not None:
                optional["partition"] = message.partition
            if message.timestamp_ms is not None:
                optional["timestamp"] = message.timestamp_ms
            if message.headers:
                optional["headers"] = list(message.headers)
            producer.produce(
                topic,
                value=message.value,
                key=message.key,
                on_delivery=lambda error, sent: reports.append((error, sent)),
                **optional,
            )
        producer.flush(LIMIT_S)
        assert len(reports) == len(messages), "a message got no delivery report"
        for error, _ in reports:
            if error is not None:
                raise ClientError(error.code(), error.str())
        return [Delivery(sent.partition(), sent.offset()) for _, sent in reports]

    @contextlib.contextmanager
    def reader(
        self, topic: str, partition: int, offset: int, *, reset: str = "none", wait_ms_max: int = 500
    ) -> Iterator[_Reader]:
        settings = {
            "auto.offset.reset": "error" if reset == "none" else reset,
            "fetch.wait.max.ms": wait_ms_max,
            "socket.timeout.ms": max(60_000, wait_ms_max + 1000),
        }
        with self._consumer(**settings) as consumer:
            consumer.assign([ck.TopicPartition(topic, partition, offset)])
            yield _Reader(consumer)

    def _watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        with self._consumer() as consumer:
            low, high = consumer.get_watermark_offsets(ck.TopicPartition(topic, partition), timeout=LIMIT_S)
            return low, high

    def beginning_offset(self, topic: str, partition: int) -> int:
        return self._watermarks(topic, partition)[0]

    def end_offset(self, topic: str, partition: int) -> int:
        return self._watermarks(topic, partition)[1]

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        with self._consumer() as consumer:
            asked = [ck.TopicPartition(topic, partition, timestamp_ms)]
            (found,) = consumer.offsets_for_times(asked, timeout=LIMIT_S)
            return None if found.offset < 0 else int(found.offset)

    def offset_of_newest(self, topic: str, partition: int) -> int:
        asked = {ck.TopicPartition(topic, partition): ck_admin.OffsetSpec.max_timestamp()}
        return int(_done(self._admin.list_offsets(asked)).offset)

    def list_groups(self) -> set[str]:
        listed = self._admin.list_consumer_groups().result(LIMIT_S)
        assert not listed.errors, listed.errors
        return {group.group_id for group in listed.valid}

    def describe_group(self, group: str) -> GroupDescription:
        described = _done(self._admin.describe_consumer_groups([group]))
        return GroupDescription(
            described.state.name.lower().replace("_", ""),
            len(described.members),
        )

    def delete_group(self, group: str) -> None:
        _done(self._admin.delete_consumer_groups([group]))

    def group_offsets(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        found = _done(self._admin.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions(group)]))
        return {
            (one.topic, one.partition): (one.offset, one.metadata or "") for one in found.topic_partitions
        }

    def alter_group_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        places = [ck.TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        altered = _done(
            self._admin.alter_consumer_group_offsets([ck.ConsumerGroupTopicPartitions(group, places)])
        )
        for one in altered.topic_partitions:
            if one.error:
                raise ClientError(one.error.code(), one.error.str())
