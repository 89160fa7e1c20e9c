"""Members by confluent-kafka, with the classic protocol and with the one of KIP-848.

librdkafka does not tell its generation; its debug log does, in the line about the answer to a join.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import confluent_kafka

from tests.interop.clients import LIMIT_S, ClientError, Received
from tests.interop.group_consumers import CONSUMER, GroupConsumer, GroupListener, MemberSettings, Position
from tidemill.types import TopicPartition

ck: Any = confluent_kafka
_GENERATION = re.compile(r"JoinGroup response: GenerationId (\d+)")


def _places(partitions: Any) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(one.topic, one.partition) for one in partitions)


class _Generations(logging.Handler):
    generation: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if found := _GENERATION.search(record.getMessage()):
            self.generation = int(found[1])


class ConfluentConsumer(GroupConsumer):
    name = "confluent-kafka"
    assignors: ClassVar[tuple[str, ...]] = ("range", "roundrobin", "cooperative-sticky")

    def __init__(self, bootstrap: str, settings: MemberSettings, listener: GroupListener) -> None:
        super().__init__(bootstrap, settings, listener)
        logger = logging.Logger("librdkafka", logging.DEBUG)
        self._generations = _Generations()
        logger.addHandler(self._generations)
        self._consumer = ck.Consumer(self._settings(), logger=logger)
        topics = list(settings.topics) if settings.pattern is None else [self._pattern(settings.pattern)]
        self._consumer.subscribe(
            topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _settings(self) -> dict[str, Any]:
        settings = self.settings
        options: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": settings.group,
            "group.instance.id": settings.instance_id,
            "auto.offset.reset": settings.reset,
            "enable.auto.commit": settings.auto_commit_ms is not None,
            "auto.commit.interval.ms": settings.auto_commit_ms,
            "topic.metadata.refresh.interval.ms": settings.metadata_max_age_ms,
            "max.poll.interval.ms": settings.max_poll_interval_ms,
            "socket.timeout.ms": settings.request_timeout_ms,
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 50,
            "retry.backoff.ms": 50,
            "debug": "cgrp",
        } | self._protocol_settings()
        return {key: value for key, value in options.items() if value is not None}

    def _protocol_settings(self) -> dict[str, Any]:
        return {
            "session.timeout.ms": self.settings.session_timeout_ms,
            "heartbeat.interval.ms": self.settings.heartbeat_interval_ms,
            "partition.assignment.strategy": self.settings.assignor or "range",
        }

    def _pattern(self, pattern: str) -> str:
        return pattern if pattern.startswith("^") else f"^{pattern}"

    def _on_assign(self, _consumer: Any, partitions: Any) -> None:
        self.listener.assigned(_places(partitions), self._generation())

    def _on_revoke(self, _consumer: Any, partitions: Any) -> None:
        self.listener.revoked(_places(partitions))

    def _on_lost(self, _consumer: Any, partitions: Any) -> None:
        self.listener.lost(_places(partitions))

    def _generation(self) -> int | None:
        return self._generations.generation

    def poll(self, limit_s: float, records_max: int = 100) -> None:
        message = self._consumer.poll(limit_s)
        while message is not None:
            if error := message.error():
                raise ClientError(error.code(), error.str())
            self.listener.received(message.topic(), _received(message), self._generation())
            records_max -= 1
            message = self._consumer.poll(0) if records_max > 0 else None

    def assignment(self) -> set[TopicPartition]:
        return set(_places(self._consumer.assignment()))

    def commit(self, offsets: Mapping[TopicPartition, Position] | None = None) -> None:
        self._commit(offsets, asynchronous=False)

    def commit_async(self, offsets: Mapping[TopicPartition, Position] | None = None) -> None:
        self._commit(offsets, asynchronous=True)

    def _commit(self, offsets: Mapping[TopicPartition, Position] | None, *, asynchronous: bool) -> None:
        named = None if offsets is None else [_to_commit(place, offsets[place]) for place in offsets]
        named_only = {} if named is None else {"offsets": named}
        try:
            answered = self._consumer.commit(asynchronous=asynchronous, **named_only)
        except ck.KafkaException as refused:
            raise ClientError(refused.args[0].code(), refused.args[0].str()) from None
        for one in answered or ():
            if one.error:
                raise ClientError(one.error.code(), one.error.str())

    def committed(self, partition: TopicPartition) -> Position | None:
        (found,) = self._consumer.committed([ck.TopicPartition(*partition)], timeout=LIMIT_S)
        return None if found.offset < 0 else Position(found.offset, found.metadata or "")

    def seek(self, partition: TopicPartition, offset: int) -> None:
        # A partition that was just assigned is not yet fetched from, and cannot be sought.
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                self._consumer.seek(ck.TopicPartition(*partition, offset))
                return
            except ck.KafkaException as refused:
                if refused.args[0].code() != ck.KafkaError._STATE or time.monotonic() > deadline:
                    raise
                self.poll(0.05)

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        asked = [ck.TopicPartition(*partition, timestamp_ms)]
        return int(self._consumer.offsets_for_times(asked, timeout=LIMIT_S)[0].offset)

    def close(self) -> None:
        self._consumer.close()


class ConfluentNewConsumer(ConfluentConsumer):
    """The broker decides on the assignment, on the session and on the heartbeats."""

    name = "confluent-kafka, KIP-848"
    protocol = CONSUMER
    assignors = ("uniform", "range")

    def _protocol_settings(self) -> dict[str, Any]:
        return {"group.protocol": CONSUMER, "group.remote.assignor": self.settings.assignor}

    def _generation(self) -> int | None:
        return None


def _to_commit(place: TopicPartition, position: Position) -> Any:
    metadata = {"metadata": position.metadata} if position.metadata else {}
    return ck.TopicPartition(place.topic, place.partition, position.offset, **metadata)


def _received(message: Any) -> Received:
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
