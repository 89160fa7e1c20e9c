"""`tidemill consume --group`: a member of a consumer group, through confluent-kafka.

An offset is stored when its record was printed and the output flushed, so a record is committed only after it was seen. The
commands without a group need no other package; this one says how to get it.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from tidemill.cli.failures import CommandError
from tidemill.cli.options import security_options
from tidemill.cli.record_format import Writer
from tidemill.client.consumer import Consumed
from tidemill.protocol.records import Header, Record
from tidemill.types import NO_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Consumer as GroupConsumer

_POLL_S = 0.5
_BATCH_MAX = 500


def consume_group(arguments: argparse.Namespace, write: Writer, follow: bool) -> int:
    try:
        from confluent_kafka import Consumer as GroupConsumer
    except ImportError:
        raise CommandError(
            "--group needs the package confluent-kafka; install it with: pip install 'tidemill[client]'"
        ) from None
    consumer = GroupConsumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": arguments.group,
            "client.id": "tidemill-cli",
            "isolation.level": arguments.isolation_level,
            "auto.offset.reset": "latest" if arguments.start in ("end", "latest") else "earliest",
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "log_level": 0,
            **security_options(arguments).librdkafka_options(),
        }
    )
    try:
        consumer.subscribe([arguments.topic])
        _run(consumer, write, follow, arguments.max or sys.maxsize)
    finally:
        # Leaves the group at once, and commits what was stored.
        consumer.close()
    return 0


def _run(consumer: GroupConsumer, write: Writer, follow: bool, left: int) -> None:
    from confluent_kafka import KafkaError

    ended: set[tuple[str | None, int | None]] = set()
    while left:
        messages = consumer.consume(min(left, _BATCH_MAX), timeout=_POLL_S)
        printed = []
        for message in messages:
            place = message.topic(), message.partition()
            error = message.error()
            if error is None:
                ended.discard(place)
                sys.stdout.buffer.write(write(_consumed(message)))
                printed.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(place)
            elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                raise CommandError(error.str())
        sys.stdout.buffer.flush()
        for message in printed:
            consumer.store_offsets(message)
        left -= len(printed)
        assigned = {(each.topic, each.partition) for each in consumer.assignment()}
        if not follow and assigned and assigned <= ended:
            return


def _consumed(message: Any) -> Consumed:
    kind, timestamp_ms = message.timestamp()
    headers = [Header(key, value) for key, value in message.headers() or ()]
    record = Record(
        message.offset(), timestamp_ms if kind else NO_TIMESTAMP, message.key(), message.value(), headers
    )
    return Consumed(TopicPartition(message.topic(), message.partition()), record)
