"""`tidemill consume --group`: a member of a consumer group, through confluent-kafka.

An offset is stored after its record was printed and the output flushed, so a record is committed only after it was
seen. Ctrl-C and SIGTERM finish both for the current records; a second signal ends at once. At the end of a partition
the end offset is stored, past transaction markers and aborted records, as in the Java consumer. So a group that has
read everything has no lag. Only this command needs the extra package; without it, the error says how to install it.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from tidemill.cli.failures import CommandError
from tidemill.cli.options import security_options
from tidemill.cli.records.record_format import Writer
from tidemill.cli.stop import Stop
from tidemill.client.consumer import Consumed
from tidemill.protocol.records import Header, Record
from tidemill.types import NO_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Consumer as GroupConsumer

Place = tuple[str, int]

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
        with Stop() as stop:
            _run(consumer, write, follow, arguments.max or sys.maxsize, stop)
    finally:
        # Leaves the group at once and commits the stored offsets.
        consumer.close()
    return 0


def _run(consumer: GroupConsumer, write: Writer, follow: bool, left: int, stop: Stop) -> None:
    from confluent_kafka import KafkaError

    ended: set[Place] = set()
    while left:
        messages = consumer.consume(min(left, _BATCH_MAX), timeout=_POLL_S)
        printed = 0
        positions: dict[Place, int] = {}
        for message in messages:
            place = str(message.topic()), int(message.partition() or 0)
            error = message.error()
            if error is None:
                ended.discard(place)
                sys.stdout.buffer.write(write(_consumed(message)))
                printed += 1
                positions[place] = int(message.offset() or 0) + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(place)
                # The end offset, past markers and aborted records.
                positions[place] = int(message.offset() or 0)
            elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                raise CommandError(error.str())
        sys.stdout.buffer.flush()
        _store(consumer, positions)
        stop.check()
        left -= printed
        assigned = {(each.topic, each.partition) for each in consumer.assignment()}
        if not follow and assigned and assigned <= ended:
            return


def _store(consumer: GroupConsumer, positions: dict[Place, int]) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka import TopicPartition as Position

    for (topic, partition), offset in positions.items():
        try:
            consumer.store_offsets(offsets=[Position(topic, partition, offset)])
        except KafkaException as failure:
            # A rebalance has revoked the partition: its next owner prints these records again.
            if failure.args[0].code() != KafkaError._STATE:
                raise CommandError(failure.args[0].str()) from None


def _consumed(message: Any) -> Consumed:
    kind, timestamp_ms = message.timestamp()
    headers = [Header(key, value) for key, value in message.headers() or ()]
    record = Record(
        message.offset(), timestamp_ms if kind else NO_TIMESTAMP, message.key(), message.value(), headers
    )
    return Consumed(TopicPartition(message.topic(), message.partition()), record)
