"""A stock idempotent producer that writes steadily to every partition of a topic and keeps the history of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import confluent_kafka

from tests.brokers import RunningBroker
from tests.wire.connection import Connection, read_all
from tidemill.sim.checks import checker
from tidemill.sim.checks.checker import MessageId
from tidemill.types import TopicPartition

ck: Any = confluent_kafka
PAUSE_S = 0.01
FLUSH_LIMIT_S = 60.0


class Producing:
    """Use as a context manager; leaving it waits for every ack."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        per_pause: int = 2,
        settings: Mapping[str, object] | None = None,
        *,
        pause_s: float = PAUSE_S,
    ) -> None:
        self.events: list[checker.Event] = []
        self.failures: list[str] = []
        # Acked without an offset: the client knows only that a retry was not needed.
        self.unplaced: list[tuple[MessageId, TopicPartition]] = []
        self._topic, self._partitions, self._per_pause = topic, partitions, per_pause
        self._pause_s = pause_s
        self._is_stopping = threading.Event()
        self._producer = ck.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, **(settings or {})}
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Producing:
        self.start()
        return self

    def start(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(FLUSH_LIMIT_S + 1)
        assert self.failures == []

    def give_up(self) -> None:
        """Without waiting for acks."""
        self._producer.purge()
        self._is_stopping.set()
        self._thread.join(FLUSH_LIMIT_S + 1)

    def acked(self) -> set[MessageId]:
        placed = {event.message for event in list(self.events) if isinstance(event, checker.Acked)}
        return placed | {message for message, _place in list(self.unplaced)}

    def _run(self) -> None:
        number = 0
        while not self._is_stopping.wait(self._pause_s):
            for partition in range(self._partitions):
                for each in range(number, number + self._per_pause):
                    self._send(partition, MessageId(f"p{partition}", each))
            number += self._per_pause
            self._producer.poll(0)
        if self._producer.flush(FLUSH_LIMIT_S):
            self.failures.append("messages without a delivery report")

    def _send(self, partition: int, message: MessageId) -> None:
        place = TopicPartition(self._topic, partition)

        def report(error: Any, sent: Any) -> None:
            if error is not None:
                self.failures.append(str(error))
            elif sent.offset() is None:
                self.unplaced.append((message, place))
            else:
                self.events.append(checker.Acked(time.monotonic(), message, place, sent.offset()))

        self.events.append(checker.Sent(time.monotonic(), message, is_idempotent=True))
        self._producer.produce(self._topic, str(message).encode(), partition=partition, on_delivery=report)


def producing_to(broker: RunningBroker, topic: str, partitions: int, per_pause: int = 2) -> Producing:
    """To a topic that is created for it."""
    with Connection(broker) as connection:
        connection.create_topic(topic, partitions)
    return Producing(broker.bootstrap, topic, partitions, per_pause)


def read_log(broker: RunningBroker, topic: str, partitions: Iterable[int]) -> list[checker.Event]:
    """Returns the records of the partitions, to their ends."""
    events: list[checker.Event] = []
    for partition in partitions:
        place = TopicPartition(topic, partition)
        for batch in read_all(broker, topic, partition):
            for delta, value in enumerate(batch.values()):
                producer, _, number = (value or b"").decode().partition("/")
                message = MessageId(producer, int(number))
                events.append(checker.Found(time.monotonic(), place, batch.base_offset + delta, message))
        events.append(checker.LogEnded(time.monotonic(), place))
    return events
