"""Read, transform, write, exactly once: with aiokafka.

    python examples/consume_transform_produce_aiokafka.py --input orders --output shouted --name one

Each transaction holds the records that were written *and* the offset that was read, so both happen or neither does.
Kill it at any moment and start it again: no record is skipped, none is written twice for readers with
`isolation_level="read_committed"`. For more throughput start more of them with other names; they share the
partitions as members of one group.

This client does not tell the broker under which membership records were read (KIP-447). So nothing would stop a member that
has lost a partition without knowing, unless each *partition* has a producer of its own, as one did before that KIP:

- `transactional_id` is the name of the input partition. The process that gets the partition starts that producer, which
  ends what the last owner left open and fences it. Only then it fetches the committed offset, and reads from there.
- Partitions change hands in a task of the client's, at any `await`. A lock keeps that out of transactions.
- Offsets are never committed by the consumer, only by `send_offsets_to_transaction`.
- The answer for every record is awaited before the commit: this client would commit without a record that was refused.
- After an abort the consumer goes back to what is committed. Without that, the aborted records would be skipped.
- A producer that is fenced has lost its partition to another process. That and whatever else cannot be dealt with ends the
  process, and its supervisor starts a new one.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

POLL_MS = 100
RECORDS_MAX = 500


def transform(value: bytes) -> bytes:
    return value.upper()


class Transformer(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.is_stopping = False
        # This client may retry without end. The broker has aborted the transaction by then.
        self.limit_s = options.transaction_timeout_ms / 1000 + 5
        # Of the partitions that are ours. What is read of any other is not written.
        self.producers: dict[TopicPartition, AIOKafkaProducer] = {}
        self.lock = asyncio.Lock()
        self.rebalances = 0
        self.failure: Exception | None = None
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=options.bootstrap,
            group_id=options.group,
            client_id=options.name,
            session_timeout_ms=options.session_timeout_ms,
            heartbeat_interval_ms=options.session_timeout_ms // 5,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            # What other transactions have aborted is not input.
            isolation_level="read_committed",
        )

    async def run(self) -> None:
        await self.consumer.start()
        self.consumer.subscribe([self.options.input], listener=self)
        print("started", flush=True)
        while not self.is_stopping:
            batch = await self.consumer.getmany(timeout_ms=POLL_MS, max_records=RECORDS_MAX)
            rebalances = self.rebalances
            async with self.lock:
                for place, records in batch.items():
                    # What was read before a rebalance is read again after it, here or elsewhere.
                    if rebalances == self.rebalances and place in self.producers:
                        async with asyncio.timeout(self.limit_s):
                            await self.write(place, records)
            if self.failure is not None:
                raise self.failure
        await self.consumer.stop()
        await self.stop_producers()

    def stop(self) -> None:
        self.is_stopping = True

    async def write(self, place: TopicPartition, records: list[Any]) -> None:
        """Every record with the offset that was read for it; or neither."""
        producer = self.producers[place]
        try:
            async with producer.transaction():
                sent = [
                    await producer.send(self.options.output, transform(record.value or b""), record.key)
                    for record in records
                ]
                await asyncio.gather(*sent)
                read = {place: records[-1].offset + 1}
                await producer.send_offsets_to_transaction(read, self.options.group)
        except ProducerFenced:
            raise
        except KafkaError as failure:
            # Whether the producer is still of use, the client does not say. A new one is, and ends what is open.
            print(f"aborts: {failure!r}", file=sys.stderr, flush=True)
            await self.producers.pop(place).stop()
            await self.start_producer(place)

    async def go_back(self, place: TopicPartition) -> None:
        """Read again from what is committed."""
        offset = await self.consumer.committed(place)
        if offset is None:
            await self.consumer.seek_to_beginning(place)
        else:
            self.consumer.seek(place, offset)

    # Rebalances come in a task of the client's, which only logs what goes wrong here.

    async def on_partitions_revoked(self, _revoked: list[TopicPartition]) -> None:
        async with self.lock:
            self.rebalances += 1
            await self.stop_producers()

    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        async with self.lock:
            try:
                await asyncio.gather(*(self.start_producer(place) for place in assigned))
            except Exception as failure:
                self.failure = failure
            self.rebalances += 1

    async def start_producer(self, place: TopicPartition) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.options.bootstrap,
            transactional_id=f"{self.options.group}-{place.topic}-{place.partition}",
            # How long an open transaction may keep readers waiting when no process takes the partition over.
            transaction_timeout_ms=self.options.transaction_timeout_ms,
        )
        # From here on the last owner is fenced, and what it had open is decided.
        await producer.start()
        await self.go_back(place)
        self.producers[place] = producer

    async def stop_producers(self) -> None:
        producers = list(self.producers.values())
        self.producers.clear()
        await asyncio.gather(*(producer.stop() for producer in producers))


async def transform_until_stopped(options: argparse.Namespace) -> None:
    transformer = Transformer(options)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, transformer.stop)
    await transformer.run()


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
        asyncio.run(transform_until_stopped(parser.parse_args()))
    except (KafkaError, TimeoutError) as failure:
        print(f"ends: {failure!r}; start it again to go on", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
