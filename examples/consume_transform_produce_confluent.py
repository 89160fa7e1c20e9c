"""Read, transform, write, exactly once: with confluent-kafka.

    python examples/consume_transform_produce_confluent.py --input orders --output shouted --name one

Each transaction holds the records that were written *and* the offsets that were read, so both happen or neither does.
Kill it at any moment and start it again with the same name: no record is skipped, none is written twice for readers
with `isolation.level=read_committed`. For more throughput start more of them with other names; they share the
partitions as members of one group.

What makes it safe:

- `transactional.id` is this instance's name. `init_transactions` ends what an earlier process of that name left open,
  and fences that process should it still run.
- Offsets are never committed by the consumer, only by `send_offsets_to_transaction`, with the membership under which the
  records were read: a member that has lost its partitions without knowing is refused.
- A transaction stays open over many polls and is finished in `on_revoke`, while the partitions are still this member's.
- After an abort the consumer goes back to what is committed. Without that, the aborted records would be skipped.
- A transaction that takes longer than it may ends the process, by SIGALRM.
- Errors come in three kinds. Retriable: call again. Requires an abort: abort and go back. Everything else is fatal for this
  producer, fencing above all: the process ends, and its supervisor starts a new one.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

TRANSACTION_S = 0.1
RECORDS_MAX = 1_000


def transform(value: bytes) -> bytes:
    return value.upper()


def persist(call: Callable[..., Any], *arguments: Any) -> Any:
    """Calls until it succeeds or fails for good: a retriable error leaves the call to be made again."""
    while True:
        try:
            return call(*arguments)
        except KafkaException as failure:
            if not failure.args[0].retriable():
                raise


class Transformer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.input, self.output = options.input, options.output
        self.is_stopping = False
        self.failure: KafkaError | None = None
        self.limit_s = options.transaction_timeout_ms // 1000 + 5
        # What the open transaction has read: the next offset by partition. Empty when none is open.
        self.offsets: dict[tuple[str, int], int] = {}
        self.record_count = 0
        self.due_s = 0.0
        self.membership: Any = None
        self.consumer = Consumer(
            {
                "bootstrap.servers": options.bootstrap,
                "group.id": options.group,
                "session.timeout.ms": options.session_timeout_ms,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                # What other transactions have aborted is not input, and an offset counts when its transaction has ended.
                "isolation.level": "read_committed",
                "error_cb": self.on_error,
            }
        )
        self.producer = Producer(
            {
                "bootstrap.servers": options.bootstrap,
                "transactional.id": f"{options.group}-{options.name}",
                # How long an open transaction may keep readers waiting when this process dies for good.
                "transaction.timeout.ms": options.transaction_timeout_ms,
            }
        )

    def run(self) -> None:
        persist(self.producer.init_transactions)
        self.consumer.subscribe(
            [self.input], on_assign=self.on_assign, on_revoke=self.on_revoke, on_lost=self.on_lost
        )
        print("started", flush=True)
        while not self.is_stopping:
            record = self.consumer.poll(TRANSACTION_S / 2)
            if self.failure is not None:
                raise KafkaException(self.failure)
            if record is not None:
                self.take(record)
            if self.offsets and (time.monotonic() >= self.due_s or self.record_count >= RECORDS_MAX):
                self.commit()
        if self.offsets:
            self.commit()
        self.consumer.close()

    def stop(self, *_: object) -> None:
        self.is_stopping = True

    def take(self, record: Any) -> None:
        if record.error() is not None:
            # Brokers that come and go: the client deals with that itself. What it cannot deal with goes to `on_error`.
            return
        if not self.offsets:
            self.begin()
        place = (record.topic(), record.partition())
        self.offsets.setdefault(place, record.offset())
        try:
            self.producer.produce(self.output, transform(record.value() or b""), record.key())
        except KafkaException:
            # An earlier record of this transaction has failed. If that was fatal, so is the abort.
            self.abort()
            return
        self.offsets[place] = record.offset() + 1
        self.record_count += 1

    def begin(self) -> None:
        self.producer.begin_transaction()
        self.due_s, self.record_count = time.monotonic() + TRANSACTION_S, 0
        # The client may wait without end for a broker that is gone. The transaction is aborted by then.
        signal.alarm(self.limit_s)

    def end(self) -> None:
        signal.alarm(0)
        self.offsets.clear()

    def commit(self) -> None:
        """Every record of the transaction with the offsets that were read for it; or neither."""
        read = [TopicPartition(*place, offset) for place, offset in self.offsets.items()]
        try:
            persist(self.producer.send_offsets_to_transaction, read, self.membership)
            persist(self.producer.commit_transaction)
            self.end()
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
            print(f"aborts: {failure.args[0]}", file=sys.stderr, flush=True)
            self.abort()

    def abort(self) -> None:
        persist(self.producer.abort_transaction)
        self.end()
        self.go_back()

    def go_back(self) -> None:
        """Read again from what is committed."""
        waiting = self.consumer.assignment()
        while waiting:
            for place in persist(self.consumer.committed, waiting):
                if place.error is None:
                    waiting.remove(TopicPartition(place.topic, place.partition))
                    offset = place.offset if place.offset >= 0 else OFFSET_BEGINNING
                    self.consumer.seek(TopicPartition(place.topic, place.partition, offset))

    def on_error(self, error: KafkaError) -> None:
        """What the client cannot recover from."""
        if error.fatal():
            self.failure = error

    # Rebalances come while `poll` runs, in this thread.

    def on_assign(self, consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self.membership = consumer.consumer_group_metadata()

    def on_revoke(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        if self.offsets:
            self.commit()

    def on_lost(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        """Somebody else has them already."""
        if self.offsets:
            persist(self.producer.abort_transaction)
            self.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--input", default="orders", metavar="TOPIC")
    parser.add_argument("--output", default="shouted", metavar="TOPIC")
    parser.add_argument("--group", default="shouting")
    parser.add_argument("--name", default="one", help="of this instance; each running one needs its own")
    parser.add_argument("--session-timeout-ms", type=int, default=10_000)
    parser.add_argument("--transaction-timeout-ms", type=int, default=10_000)
    transformer = Transformer(parser.parse_args())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, transformer.stop)
    try:
        transformer.run()
    except KafkaException as failure:
        print(f"ends: {failure.args[0]}; start it again to go on", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
