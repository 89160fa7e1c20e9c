"""The three Python clients as transactional producers; the columns of the table for transactions."""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

import aiokafka
import aiokafka.errors
import confluent_kafka
import pytest

from tests.interop.clients import LIMIT_S
from tests.interop.transactional import FencedError, TransactionalProducer
from tidemill.types import TopicPartition

with warnings.catch_warnings():
    # It loads its schemas, while it is imported, through a function that newer Pythons deprecate.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.errors
    from kafka.structs import OffsetAndMetadata

    import kafka

ck: Any = confluent_kafka
Result = TypeVar("Result")


class ConfluentTransactions(TransactionalProducer):
    name = "confluent-kafka"

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._producer = ck.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": self.timeout_ms,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(LIMIT_S)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except ck.KafkaException as refused:
            if refused.args[0].code() == ck.KafkaError._FENCED:
                raise FencedError(str(refused)) from None
            raise

    def begin(self) -> None:
        with self._told():
            self._producer.begin_transaction()

    def send(self, partition: TopicPartition, *values: bytes) -> None:
        failures: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failures.append(error)

        with self._told():
            for value in values:
                self._producer.produce(
                    partition.topic, value, partition=partition.partition, on_delivery=delivered
                )
            assert self._producer.flush(LIMIT_S) == 0
            for failure in failures:
                raise ck.KafkaException(failure)

    def send_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        member = ck.Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        positions = [ck.TopicPartition(tp.topic, tp.partition, offset) for tp, offset in offsets.items()]
        try:
            with self._told():
                metadata = member.consumer_group_metadata()
                self._producer.send_offsets_to_transaction(positions, metadata, LIMIT_S)
        finally:
            member.close()

    def commit(self) -> None:
        with self._told():
            self._producer.commit_transaction(LIMIT_S)

    def abort(self) -> None:
        with self._told():
            self._producer.abort_transaction(LIMIT_S)

    def close(self) -> None:
        self._producer.purge()
        with contextlib.suppress(FencedError), self._told():
            self._producer.flush(0)

    @classmethod
    def read(cls, bootstrap: str, partition: TopicPartition, isolation: str) -> list[bytes]:
        consumer = ck.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "never-committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "fetch.wait.max.ms": 10,
            }
        )
        values = []
        try:
            consumer.assign([ck.TopicPartition(*partition, 0)])
            while message := consumer.poll(LIMIT_S):
                if message.error() is None:
                    values.append(message.value())
                elif message.error().code() == ck.KafkaError._PARTITION_EOF:
                    return values
                else:
                    raise ck.KafkaException(message.error())
        finally:
            consumer.close()
        raise AssertionError("the end of the partition was not reached")


class AiokafkaTransactions(TransactionalProducer):
    name = "aiokafka"

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._runner = asyncio.Runner()
        # The calls raise, too, what the sender task of a fenced producer leaves behind.
        self._runner.get_loop().set_exception_handler(lambda _loop, _context: None)
        self._producer: aiokafka.AIOKafkaProducer = self._run(self._start())

    async def _start(self) -> aiokafka.AIOKafkaProducer:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
        )
        await producer.start()
        return producer

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return self._runner.run(asyncio.wait_for(work, LIMIT_S))
        except aiokafka.errors.ProducerFenced as fenced:
            raise FencedError(str(fenced)) from None

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, partition: TopicPartition, *values: bytes) -> None:
        async def send() -> None:
            sent = [
                await self._producer.send(partition.topic, value, partition=partition.partition)
                for value in values
            ]
            await asyncio.gather(*sent)

        self._run(send())

    def send_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        positions = {aiokafka.TopicPartition(*tp): offset for tp, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(positions, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        with contextlib.suppress(FencedError):
            self._run(self._producer.stop())
        self._runner.close()

    @classmethod
    def read(cls, bootstrap: str, partition: TopicPartition, isolation: str) -> list[bytes]:
        async def read() -> list[bytes]:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap, isolation_level=isolation, fetch_max_wait_ms=10
            )
            await consumer.start()
            try:
                place = aiokafka.TopicPartition(*partition)
                consumer.assign([place])
                consumer.seek(place, 0)
                end_offset = (await consumer.end_offsets([place]))[place]
                values = []
                while await consumer.position(place) < end_offset:
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        values += [record.value or b"" for record in records]
                return values
            finally:
                await consumer.stop()

        return asyncio.run(asyncio.wait_for(read(), LIMIT_S))


class KafkaPythonTransactions(TransactionalProducer):
    name = "kafka-python"

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap,
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
        )
        self._call(self._producer.init_transactions)

    def _call(self, work: Callable[..., Any], *args: Any) -> None:
        try:
            work(*args)
        except kafka.errors.ProducerFencedError as fenced:
            raise FencedError(str(fenced)) from None

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, partition: TopicPartition, *values: bytes) -> None:
        def send() -> None:
            sent = [
                self._producer.send(partition.topic, value, partition=partition.partition) for value in values
            ]
            for future in sent:
                future.get(LIMIT_S)

        self._call(send)

    def send_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        positions = {
            kafka.TopicPartition(*tp): OffsetAndMetadata(offset, "", -1) for tp, offset in offsets.items()
        }
        self._call(self._producer.send_offsets_to_transaction, positions, group)

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=1)

    @classmethod
    def read(cls, bootstrap: str, partition: TopicPartition, isolation: str) -> list[bytes]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level=isolation, fetch_max_wait_ms=10, group_id=None
        )
        try:
            place = kafka.TopicPartition(*partition)
            consumer.assign([place])
            consumer.seek(place, 0)
            end_offset = consumer.end_offsets([place])[place]
            values: list[bytes] = []
            deadline_s = time.monotonic() + LIMIT_S
            while consumer.position(place) < end_offset:
                assert time.monotonic() < deadline_s, (consumer.position(place), end_offset)
                for records in consumer.poll(timeout_ms=100).values():
                    values += [record.value for record in records]
            return values
        finally:
            consumer.close()


KINDS: tuple[type[TransactionalProducer], ...] = (
    ConfluentTransactions,
    AiokafkaTransactions,
    KafkaPythonTransactions,
)


def with_producers() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS])
