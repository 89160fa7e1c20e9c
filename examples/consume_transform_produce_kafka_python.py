"""Read, transform, write, exactly once: with kafka-python.

    python examples/consume_transform_produce_kafka_python.py --input orders --output shouted --name one

Each transaction holds the records that were written *and* the offsets that were read, so both happen or neither does.
Kill it at any moment and start it again with the same name: no record is skipped, none is written twice for readers
with `isolation_level="read_committed"`. For more throughput start more of them with other names; they share the
partitions as members of one group.

What makes it safe:

- `transactional_id` is this instance's name. `init_transactions` ends what an earlier process of that name left open,
  and fences that process should it still run.
- Offsets are never committed by the consumer, only by `send_offsets_to_transaction`, with the membership under which the
  records were read: a member that has lost its partitions without knowing is refused.
- One poll is one transaction. Partitions change hands only while `poll` runs, so never inside of a transaction.
- The answer for every record is looked at before the commit: this client may commit a transaction of which a record
  was given up after its time was over.
- After an abort the consumer goes back to what is committed. Without that, the aborted records would be skipped.
- A transaction that takes longer than it may ends the process, by SIGALRM.
- What cannot be aborted is fatal for this producer, fencing above all: the process ends, and its supervisor
  starts a new one.
"""

from __future__ import annotations

import argparse
import signal
import sys
from typing import Any

from kafka.errors import KafkaError, ProducerFencedError

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition

POLL_MS = 100
RECORDS_MAX = 500
ANSWER_LIMIT_S = 60.0


def transform(value: bytes) -> bytes:
    return value.upper()


class Membership(ConsumerRebalanceListener):  # type: ignore[misc]
    """The group metadata of the consumer, as of the last assignment."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self.consumer = consumer
        self.metadata: Any = None

    def on_partitions_assigned(self, _assigned: list[TopicPartition]) -> None:
        self.metadata = self.consumer.group_metadata()

    def on_partitions_revoked(self, _revoked: list[TopicPartition]) -> None:
        """No transaction is open while `poll` runs: there is nothing to finish."""


class Transformer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.input, self.output = options.input, options.output
        self.is_stopping = False
        self.limit_s = options.transaction_timeout_ms // 1000 + 5
        self.consumer = KafkaConsumer(
            bootstrap_servers=options.bootstrap,
            group_id=options.group,
            session_timeout_ms=options.session_timeout_ms,
            heartbeat_interval_ms=options.session_timeout_ms // 5,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            # What other transactions have aborted is not input, and an offset counts when its transaction has ended.
            isolation_level="read_committed",
        )
        self.membership = Membership(self.consumer)
        self.producer = KafkaProducer(
            bootstrap_servers=options.bootstrap,
            transactional_id=f"{options.group}-{options.name}",
            # How long an open transaction may keep readers waiting when this process dies for good.
            transaction_timeout_ms=options.transaction_timeout_ms,
        )

    def run(self) -> None:
        self.producer.init_transactions()
        self.consumer.subscribe([self.input], listener=self.membership)
        print("started", flush=True)
        while not self.is_stopping:
            batch = self.consumer.poll(timeout_ms=POLL_MS, max_records=RECORDS_MAX)
            if batch:
                # This client may wait for an answer without end. The broker has aborted the transaction by then.
                signal.alarm(self.limit_s)
                self.write(batch)
                signal.alarm(0)
        self.consumer.close()
        self.producer.close()

    def stop(self, *_: object) -> None:
        self.is_stopping = True

    def write(self, batch: dict[TopicPartition, list[Any]]) -> None:
        """Every record of the batch with the offsets that were read for it; or neither."""
        self.producer.begin_transaction()
        try:
            sent = [
                self.producer.send(self.output, key=record.key, value=transform(record.value or b""))
                for records in batch.values()
                for record in records
            ]
            self.producer.flush()
            for each in sent:
                each.get(ANSWER_LIMIT_S)
            read = {
                place: OffsetAndMetadata(records[-1].offset + 1, "", -1) for place, records in batch.items()
            }
            self.producer.send_offsets_to_transaction(read, self.membership.metadata)
            self.producer.commit_transaction()
        except ProducerFencedError:
            raise
        except KafkaError as failure:
            print(f"aborts: {failure!r}", file=sys.stderr, flush=True)
            # After a fatal error this raises it again.
            self.producer.abort_transaction()
            self.go_back()

    def go_back(self) -> None:
        """Read again from what is committed."""
        for place in self.consumer.assignment():
            offset = self.consumer.committed(place)
            if offset is None:
                self.consumer.seek_to_beginning(place)
            else:
                self.consumer.seek(place, offset)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--input", default="orders", metavar="TOPIC")
    parser.add_argument("--output", default="shouted", metavar="TOPIC")
    parser.add_argument("--group", default="shouting")
    parser.add_argument("--name", default="one", help="of this instance; each running one needs its own")
    parser.add_argument("--session-timeout-ms", type=int, default=10_000)
    parser.add_argument("--transaction-timeout-ms", type=int, default=10_000)
    try:
        transformer = Transformer(parser.parse_args())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, transformer.stop)
        transformer.run()
    except KafkaError as failure:
        print(f"ends: {failure!r}; start it again to go on", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
