"""Producers that live for a whole test, whichever library is underneath: idempotent, and records go where their key says.

`Feed` drives one in a thread of its own. Its values name the key and the record's number among those of the key, so that a
log tells what is missing, doubled or out of order.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
import warnings
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import aiokafka
import confluent_kafka

from tests.brokers import eventually
from tests.interop import kafka_tools
from tests.interop.clients import LIMIT_S, ClientError
from tests.interop.kcat_client import KcatClient
from tests.interop.other_clients import KAFKA_GO, KAFKAJS, SARAMA, Conversation, Program
from tidemill.sim.checks.checker import MessageId

with warnings.catch_warnings():
    # It loads its schemas, while it is imported, through a function that newer Pythons deprecate.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

ck: Any = confluent_kafka
METADATA_AGE_MS = 1_000
# How long a feed may take for what it does at once on a machine that is not busy.
FEED_LIMIT_S = 120.0
# Between two rounds over all keys.
ROUND_S = 0.02


class KeyedProducer(ABC):
    """One producer to one topic. All methods are called by one thread."""

    name: ClassVar[str]

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic

    @classmethod
    def missing(cls) -> str | None:
        """None when the client is installed, else how to install it."""
        return None

    @abstractmethod
    def send(self, key: bytes, value: bytes) -> None:
        """Returns before the broker has it."""

    @abstractmethod
    def flush(self) -> None:
        """Waits for the ack of everything that was sent. `ClientError` when the library has given a record up."""

    @abstractmethod
    def close(self) -> None: ...

    def partition_count(self) -> int | None:
        """Returns the number of partitions that the client knows; None for one that never learns of fewer."""
        return None


class ConfluentKeyed(KeyedProducer):
    name = "confluent-kafka"

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(bootstrap, topic)
        self._failures: list[Any] = []
        self._producer = ck.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "topic.metadata.refresh.interval.ms": METADATA_AGE_MS,
                "log_level": 0,
            }
        )

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failures.append(error)

    def send(self, key: bytes, value: bytes) -> None:
        self._producer.produce(self.topic, value, key, on_delivery=self._delivered)
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(LIMIT_S) == 0, "records without a delivery report"
        for failure in self._failures:
            raise ClientError(failure.code(), failure.str())

    def close(self) -> None:
        self._producer.purge()


class AiokafkaKeyed(KeyedProducer):
    """Its loop runs in a thread, as it would in an application: between two sends it must send batches, too."""

    name = "aiokafka"

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(bootstrap, topic)
        self._sent: list[Any] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._producer: Any = self._run(self._start())

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    async def _start(self) -> Any:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            enable_idempotence=True,
            linger_ms=5,
            metadata_max_age_ms=METADATA_AGE_MS,
        )
        await producer.start()
        return producer

    def send(self, key: bytes, value: bytes) -> None:
        self._sent.append(self._run(self._producer.send(self.topic, value, key)))

    def flush(self) -> None:
        async def acked() -> None:
            await asyncio.gather(*self._sent)

        try:
            self._run(acked())
        except aiokafka.errors.KafkaError as refused:
            raise ClientError(getattr(refused, "errno", -1), repr(refused)) from None
        self._sent.clear()

    def partition_count(self) -> int:
        return len(self._producer.client.cluster.partitions_for_topic(self.topic))

    def close(self) -> None:
        self._run(self._producer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()


class KafkaPythonKeyed(KeyedProducer):
    name = "kafka-python"

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(bootstrap, topic)
        self._sent: list[Any] = []
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            linger_ms=5,
            metadata_max_age_ms=METADATA_AGE_MS,
        )

    def send(self, key: bytes, value: bytes) -> None:
        self._sent.append(self._producer.send(self.topic, value, key))

    def flush(self) -> None:
        self._producer.flush(LIMIT_S)
        for future in self._sent:
            try:
                future.get(LIMIT_S)
            except kafka.errors.KafkaError as refused:
                raise ClientError(getattr(refused, "errno", -1), repr(refused)) from None
        self._sent.clear()

    def partition_count(self) -> int:
        return len(self._producer.partitions_for(self.topic))

    def close(self) -> None:
        self._producer.close(timeout=LIMIT_S)


class KcatKeyed(KeyedProducer):
    """One process that reads records from its standard input. Its exit code stands for all of them."""

    name = "kcat"

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(bootstrap, topic)
        command = ["kcat", "-b", bootstrap, "-P", "-t", topic, "-K", "\x1f", "-X", "enable.idempotence=true"]
        command += ["-X", "topic.partitioner=murmur2_random", "-X", "linger.ms=5"]
        command += ["-X", f"topic.metadata.refresh.interval.ms={METADATA_AGE_MS}"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)

    @classmethod
    def missing(cls) -> str | None:
        return KcatClient.missing()

    def send(self, key: bytes, value: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"%s\x1f%s\n" % (key, value))
        self._process.stdin.flush()

    def flush(self) -> None:
        """Does nothing: kcat reports its deliveries only at its end."""

    def close(self) -> None:
        _, stderr = self._process.communicate(timeout=LIMIT_S)
        told = stderr.decode(errors="replace")
        if self._process.returncode or "Delivery failed" in told:
            raise ClientError(-1, told[-2000:])


class ProgramKeyed(KeyedProducer):
    """A program of another language, which a line of its input makes send a record."""

    @classmethod
    @abstractmethod
    def start(cls, *arguments: str) -> Conversation: ...

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(bootstrap, topic)
        self._program = self.start(bootstrap, topic, "feed", str(METADATA_AGE_MS))

    def send(self, key: bytes, value: bytes) -> None:
        self._program.tell(f"{key.decode()} {value.decode()}")

    def flush(self) -> None:
        assert self._program.ask("flush") == "flushed"

    def partition_count(self) -> int | None:
        return int(self._program.ask("partitions"))

    def close(self) -> None:
        try:
            self._program.end()
        finally:
            self._program.close()


class JavaKeyed(ProgramKeyed):
    name = "Java"

    @classmethod
    def missing(cls) -> str | None:
        return kafka_tools.missing()

    @classmethod
    def start(cls, *arguments: str) -> Conversation:
        return kafka_tools.start_client(*arguments)


class OtherKeyed(ProgramKeyed):
    program: ClassVar[Program]

    @classmethod
    def missing(cls) -> str | None:
        return cls.program.missing()

    @classmethod
    def start(cls, *arguments: str) -> Conversation:
        return cls.program.start(*arguments)


class KafkajsKeyed(OtherKeyed):
    program = KAFKAJS
    name = program.name

    def partition_count(self) -> None:
        """It does not say. What it sends is assigned to partitions at that moment, so it holds nothing back."""


class KafkaGoKeyed(OtherKeyed):
    """The library has no idempotent producer. It repeats nothing here: no connection breaks."""

    program = KAFKA_GO
    name = program.name


class SaramaKeyed(OtherKeyed):
    program = SARAMA
    name = program.name


PRODUCERS: tuple[type[KeyedProducer], ...] = (ConfluentKeyed, AiokafkaKeyed, KafkaPythonKeyed, KcatKeyed)
OTHER_PRODUCERS: tuple[type[KeyedProducer], ...] = (KafkajsKeyed, KafkaGoKeyed, SaramaKeyed)


class Feed:
    """Sends a record of each key, again and again. Use as a context manager."""

    def __init__(self, kind: type[KeyedProducer], bootstrap: str, topic: str, keys: int) -> None:
        self.name = kind.name
        self.rounds = 0
        self.failure: Exception | None = None
        self._producer: KeyedProducer | None = None
        self._kind, self._bootstrap, self._topic = kind, bootstrap, topic
        self._keys = [f"{kind.name}-{number}" for number in range(keys)]
        self._is_stopping = threading.Event()
        self._is_to_pause = threading.Event()
        self._is_paused = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def sent(self) -> list[MessageId]:
        """All of them are acknowledged when the feed has stopped without a failure."""
        return [MessageId(key, number) for key in self._keys for number in range(self.rounds)]

    def go_on(self, rounds: int = 20) -> None:
        """Waits until so many more rounds were sent."""
        wanted = self.rounds + rounds

        def is_reached() -> bool:
            assert self.failure is None, f"{self.name}: {self.failure!r}"
            return self.rounds >= wanted

        eventually(is_reached, f"{rounds} more rounds of {self.name}", FEED_LIMIT_S)

    def pause(self) -> None:
        """Returns when everything that was sent has been acknowledged."""
        self._is_to_pause.set()
        assert self._is_paused.wait(FEED_LIMIT_S), f"{self.name} does not come to rest"

    def resume(self) -> None:
        self._is_paused.clear()
        self._is_to_pause.clear()

    def await_partitions(self, count: int) -> None:
        """Waits until the paused client knows so many partitions, if it ever will."""
        producer = self._producer
        assert producer is not None
        eventually(
            lambda: producer.partition_count() in (None, count),
            f"{self.name} knows of {count} partitions",
            FEED_LIMIT_S,
        )

    def stop(self) -> None:
        self._is_stopping.set()
        self._is_to_pause.clear()
        self._thread.join(FEED_LIMIT_S)
        assert not self._thread.is_alive(), f"{self.name} did not close"
        assert self.failure is None, f"{self.name}: {self.failure!r}"

    def _run(self) -> None:
        try:
            producer = self._producer = self._kind(self._bootstrap, self._topic)
            try:
                self._loop(producer)
                producer.flush()
            finally:
                producer.close()
        except Exception as failure:
            self.failure = failure
            self._is_paused.set()

    def _loop(self, producer: KeyedProducer) -> None:
        while not self._is_stopping.is_set():
            if self._is_to_pause.is_set():
                if not self._is_paused.is_set():
                    producer.flush()
                    self._is_paused.set()
            else:
                for key in self._keys:
                    producer.send(key.encode(), str(MessageId(key, self.rounds)).encode())
                self.rounds += 1
            time.sleep(ROUND_S)
