"""aiokafka, driven synchronously on an event loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from tests.interop.clients import (
    LIMIT_S,
    Client,
    ClientError,
    Delivery,
    GroupDescription,
    Message,
    Received,
)

Result = TypeVar("Result")


def _check(code: int, message: object = "") -> None:
    if code:
        raise ClientError(code, str(message))


class _Reader:
    def __init__(self, runner: asyncio.Runner, consumer: aiokafka.AIOKafkaConsumer) -> None:
        self._runner = runner
        self._consumer = consumer

    def next(self, limit_s: float = LIMIT_S) -> Received:
        record = self._runner.run(asyncio.wait_for(self._consumer.getone(), limit_s))
        return Received(
            record.partition,
            record.offset,
            record.key,
            record.value,
            tuple(record.headers),
            record.timestamp,
            record.timestamp_type == 1,
        )


class AiokafkaClient(Client):
    name = "aiokafka"
    gaps: ClassVar[Mapping[str, str]] = {
        "alter_configs": "its admin client has AlterConfigs only, not the incremental one",
        "offset_of_newest": "it asks for offsets by timestamp, earliest and latest only",
        "delete_group": "its admin client cannot delete groups",
        "alter_group_offsets": "its admin client cannot commit",
        "delete_group_offsets": "its admin client cannot delete offsets",
    }

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._runner = asyncio.Runner()
        self._admin: AIOKafkaAdminClient = self._run(self._start_admin())

    async def _start_admin(self) -> AIOKafkaAdminClient:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        return admin

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return self._runner.run(work)
        except KafkaError as refused:
            raise ClientError(getattr(refused, "errno", -1), repr(refused)) from None

    def close(self) -> None:
        self._runner.run(self._admin.close())
        self._runner.close()

    def brokers(self) -> set[str]:
        cluster = self._run(self._admin.describe_cluster())
        return {f"{broker['host']}:{broker['port']}" for broker in cluster["brokers"]}

    def list_topics(self) -> set[str]:
        return set(self._run(self._admin.list_topics()))

    def partitions(self, topic: str) -> set[int]:
        described = self._run(self._admin.describe_topics())
        return {
            partition["partition"]
            for one in described
            if one["topic"] == topic
            for partition in one["partitions"]
        }

    def create_topic(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        new = NewTopic(topic, partitions, 1, topic_configs=dict(configs or {}))
        response = self._run(self._admin.create_topics([new]))
        for _, code, message, *_ in response.topic_errors:
            _check(code, message)

    def delete_topic(self, topic: str) -> None:
        response = self._run(self._admin.delete_topics([topic]))
        for _, code, *_ in response.topic_error_codes:
            _check(code)

    def create_partitions(self, topic: str, total: int) -> None:
        self._run(self._admin.create_partitions({topic: NewPartitions(total)}))

    def describe_configs(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (response,) = self._run(self._admin.describe_configs([resource]))
        ((code, message, _, _, entries),) = response.resources
        _check(code, message)
        return {name: value for name, value, *_ in entries}

    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))
        (response,) = self._run(self._admin.alter_configs([resource]))
        for code, message, *_ in response.resources:
            _check(code, message)

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        asked = {aiokafka.TopicPartition(topic, partition): RecordsToDelete(before_offset)}
        (low_watermark,) = self._run(self._admin.delete_records(asked)).values()
        return int(low_watermark)

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[Delivery]:
        return self._run(self._produce(topic, messages, compression, acks, idempotent))

    async def _produce(
        self, topic: str, messages: Sequence[Message], compression: str, acks: str, idempotent: bool
    ) -> list[Delivery]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks=acks if acks == "all" else int(acks),
            compression_type=None if compression == "none" else compression,
            enable_idempotence=idempotent,
            linger_ms=20,
            max_request_size=50_000_000,
        )
        async with producer:
            sent = [
                await producer.send(
                    topic,
                    message.value,
                    message.key,
                    message.partition,
                    message.timestamp_ms,
                    list(message.headers) or None,
                )
                for message in messages
            ]
            reports = await asyncio.wait_for(asyncio.gather(*sent), LIMIT_S)
        return [Delivery(report.partition, report.offset) for report in reports if report is not None]

    @contextlib.contextmanager
    def reader(
        self, topic: str, partition: int, offset: int, *, reset: str = "none", wait_ms_max: int = 500
    ) -> Iterator[_Reader]:
        consumer = self._run(self._start_consumer(reset, wait_ms_max))
        try:
            place = aiokafka.TopicPartition(topic, partition)
            self._run(_assign(consumer, place, offset))
            yield _Reader(self._runner, consumer)
        finally:
            self._runner.run(consumer.stop())

    async def _start_consumer(self, reset: str = "none", wait_ms_max: int = 500) -> aiokafka.AIOKafkaConsumer:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            auto_offset_reset=reset,
            fetch_max_wait_ms=wait_ms_max,
            enable_auto_commit=False,
            request_timeout_ms=max(40_000, wait_ms_max + 1000),
        )
        await consumer.start()
        return consumer

    async def _ask(self, method: str, argument: Any) -> Any:
        consumer = await self._start_consumer()
        try:
            return await getattr(consumer, method)(argument)
        finally:
            await consumer.stop()

    def beginning_offset(self, topic: str, partition: int) -> int:
        place = aiokafka.TopicPartition(topic, partition)
        return int(self._run(self._ask("beginning_offsets", [place]))[place])

    def end_offset(self, topic: str, partition: int) -> int:
        place = aiokafka.TopicPartition(topic, partition)
        return int(self._run(self._ask("end_offsets", [place]))[place])

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        place = aiokafka.TopicPartition(topic, partition)
        found = self._run(self._ask("offsets_for_times", {place: timestamp_ms}))[place]
        return None if found is None else int(found.offset)

    def list_groups(self) -> set[str]:
        return {name for name, *_ in self._run(self._admin.list_consumer_groups())}

    def describe_group(self, group: str) -> GroupDescription:
        (response,) = self._run(self._admin.describe_consumer_groups([group]))
        ((code, _, state, _, _, members, *_),) = response.groups
        _check(code)
        return GroupDescription(state.lower(), len(members))

    def group_offsets(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        found = self._run(self._admin.list_consumer_group_offsets(group))
        return {(place.topic, place.partition): (one.offset, one.metadata) for place, one in found.items()}


async def _assign(consumer: aiokafka.AIOKafkaConsumer, place: aiokafka.TopicPartition, offset: int) -> None:
    consumer.assign([place])
    consumer.seek(place, offset)
