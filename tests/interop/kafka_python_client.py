"""kafka-python, the pure Python client."""

from __future__ import annotations

import contextlib
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from tests.interop.clients import (
    LIMIT_S,
    Client,
    ClientError,
    Delivery,
    GroupDescription,
    Message,
    Received,
)

with warnings.catch_warnings():
    # It loads its schemas, while it is imported, through a function that newer Pythons deprecate.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.errors
    from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, OffsetSpec
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

Result = TypeVar("Result")


def _call(work: Callable[[], Result]) -> Result:
    try:
        return work()
    except KafkaError as refused:
        raise ClientError(getattr(refused, "errno", -1), repr(refused)) from None


def _refuse(outcomes: Mapping[TopicPartition, Any]) -> None:
    for place, error in outcomes.items():
        if error.errno:
            raise ClientError(error.errno, f"{place}: {error.__name__}")


class _Reader:
    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer

    def next(self, limit_s: float = LIMIT_S) -> Received:
        deadline = time.monotonic() + limit_s
        while not (polled := self._consumer.poll(timeout_ms=500, max_records=1)):
            if time.monotonic() > deadline:
                raise AssertionError(f"no record within {limit_s:g} s")
        ((record,),) = polled.values()
        return Received(
            record.partition,
            record.offset,
            record.key,
            record.value,
            tuple(record.headers),
            record.timestamp,
            record.timestamp_type == 1,
        )


class KafkaPythonClient(Client):
    name = "kafka-python"
    gaps: ClassVar[Mapping[str, str]] = {
        "produce null headers": "its producer takes bytes only as a header's value",
        "replace_configs": "it reads the overrides first and sends them along, so that it replaces nothing",
    }

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def close(self) -> None:
        self._admin.close()

    @contextlib.contextmanager
    def _consumer(self, **settings: Any) -> Iterator[KafkaConsumer]:
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap, enable_auto_commit=False, group_id=None, **settings
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def brokers(self) -> set[str]:
        cluster = _call(self._admin.describe_cluster)
        return {f"{broker['host']}:{broker['port']}" for broker in cluster["brokers"]}

    def list_topics(self) -> set[str]:
        return set(_call(self._admin.list_topics))

    def partitions(self, topic: str) -> set[int]:
        (described,) = _call(lambda: self._admin.describe_topics([topic]))
        return {partition["partition_index"] for partition in described["partitions"]}

    def create_topic(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        new = {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": dict(configs or {})}}
        _call(lambda: self._admin.create_topics(new))

    def delete_topic(self, topic: str) -> None:
        _call(lambda: self._admin.delete_topics([topic]))

    def create_partitions(self, topic: str, total: int) -> None:
        _call(lambda: self._admin.create_partitions({topic: total}))

    def describe_configs(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        described = _call(lambda: self._admin.describe_configs([resource], config_filter="all"))
        return {name: entry["value"] for name, entry in described["topic"][topic].items()}

    def alter_configs(self, topic: str, change: Mapping[str, str | None]) -> None:
        configs = {
            name: (AlterConfigOp.DELETE, None) if value is None else (AlterConfigOp.SET, value)
            for name, value in change.items()
        }
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs)
        altered = _call(lambda: self._admin.alter_configs([resource], incremental=True))
        if refused := re.match(r"\[Error (\d+)\]", altered["topic"][topic]):
            raise ClientError(int(refused[1]), altered["topic"][topic])

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        place = TopicPartition(topic, partition)
        deleted = _call(lambda: self._admin.delete_records({place: before_offset}))
        return int(deleted[place]["low_watermark"])

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[Delivery]:
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks=acks if acks == "all" else int(acks),
            compression_type=None if compression == "none" else compression,
            enable_idempotence=idempotent,
            linger_ms=20,
            max_request_size=50_000_000,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers) or None,
                    partition=message.partition,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            producer.flush(LIMIT_S)
            reports = _call(lambda: [future.get(LIMIT_S) for future in sent])
        finally:
            producer.close(timeout=LIMIT_S)
        return [Delivery(report.partition, report.offset) for report in reports]

    @contextlib.contextmanager
    def reader(
        self, topic: str, partition: int, offset: int, *, reset: str = "none", wait_ms_max: int = 500
    ) -> Iterator[_Reader]:
        settings = {
            "auto_offset_reset": reset,
            "fetch_max_wait_ms": wait_ms_max,
            "request_timeout_ms": max(60_000, wait_ms_max + 1000),
        }
        with self._consumer(**settings) as consumer:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            yield _Reader(consumer)

    def beginning_offset(self, topic: str, partition: int) -> int:
        place = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            return int(_call(lambda: consumer.beginning_offsets([place]))[place])

    def end_offset(self, topic: str, partition: int) -> int:
        place = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            return int(_call(lambda: consumer.end_offsets([place]))[place])

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        place = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            found = _call(lambda: consumer.offsets_for_times({place: timestamp_ms}))[place]
            return None if found is None else int(found.offset)

    def offset_of_newest(self, topic: str, partition: int) -> int:
        place = TopicPartition(topic, partition)
        found = _call(lambda: self._admin.list_partition_offsets({place: OffsetSpec.MAX_TIMESTAMP}))
        return int(found[place].offset)

    def list_groups(self) -> set[str]:
        return {group["group_id"] for group in _call(self._admin.list_groups)}

    def describe_group(self, group: str) -> GroupDescription:
        described = _call(lambda: self._admin.describe_groups([group]))[group]
        return GroupDescription(described["group_state"].lower(), len(described["members"]))

    def delete_group(self, group: str) -> None:
        outcome = _call(lambda: self._admin.delete_groups([group]))[group]
        if outcome != "OK":
            raise ClientError(getattr(kafka.errors, outcome).errno, outcome)

    def group_offsets(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        found = _call(lambda: self._admin.list_group_offsets([group]))[group]
        return {
            (place.topic, place.partition): (one.offset, one.metadata or "") for place, one in found.items()
        }

    def alter_group_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        named = {
            TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in offsets.items()
        }
        _refuse(_call(lambda: self._admin.alter_group_offsets(group, named)))

    def delete_group_offsets(self, group: str, topic: str, partitions: Sequence[int]) -> None:
        places = [TopicPartition(topic, partition) for partition in partitions]
        _refuse(_call(lambda: self._admin.delete_group_offsets(group, places)))
