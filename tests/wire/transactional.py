"""A transactional producer by hand, and what consumers of committed records read."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from tests.brokers import eventually
from tests.wire.batches import CONTROL, TRANSACTIONAL, Batch, Header, encode, parse_fetched
from tests.wire.connection import Connection, fetch_fields, produce_fields

CONCURRENT_TRANSACTIONS = 51
NOT_READY = (14, 15, 16, CONCURRENT_TRANSACTIONS)
TRANSACTION = 1
ABORT, COMMIT = 0, 1


@dataclass
class Producer:
    """A transactional producer, one step at a time."""

    connection: Connection
    transactional_id: str
    produce_version: int = 11
    producer_id: int = -1
    epoch: int = -1
    sequence: int = 0

    @property
    def is_new(self) -> bool:
        return self.produce_version >= 12

    def init(self) -> None:
        def found() -> bool:
            answer = self.connection.request(
                "find_coordinator", 4, key_type=TRANSACTION, coordinator_keys=(self.transactional_id,)
            )
            return bool(answer.coordinators[0].error_code == 0)

        eventually(found, "a transaction coordinator")

        def initialised() -> bool:
            answer = self.connection.request(
                "init_producer_id",
                5,
                transactional_id=self.transactional_id,
                transaction_timeout=60_000,
                producer_id=-1,
                producer_epoch=-1,
            )
            if answer.error_code in NOT_READY:
                return False
            assert answer.error_code == 0, answer
            self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
            return True

        eventually(initialised, "a producer id")

    def add(self, topic: str, partition: int = 0) -> int:
        answer = self.connection.request(
            "add_partitions_to_txn",
            3,
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[{"name": topic, "partitions": (partition,)}],
        )
        return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def batch(self, *values: bytes, sequence: int | None = None, epoch: int | None = None) -> bytes:
        header = Header(
            attributes=TRANSACTIONAL,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=self.sequence if sequence is None else sequence,
        )
        return encode(values, header)

    def start(self, topic: str, batch: bytes, partition: int = 0) -> int:
        fields = produce_fields(topic, batch, partition)
        return self.connection.start(
            "produce", self.produce_version, transactional_id=self.transactional_id, **fields
        )

    def finish(self, correlation_id: int) -> Any:
        body = self.connection.finish("produce", self.produce_version, correlation_id)
        return body.responses[0].partition_responses[0]

    def send_batch(self, topic: str, batch: bytes, partition: int = 0) -> Any:
        return self.finish(self.start(topic, batch, partition))

    def send(self, topic: str, *values: bytes, partition: int = 0) -> int:
        """Sends the next batch, adding its partition where that is the client's part; the error."""
        if not self.is_new:
            # The markers of the transaction before may still be under way.
            eventually(lambda: self.add(topic, partition) == 0, "a partition in the transaction")
        answer = self.send_batch(topic, self.batch(*values), partition)
        if answer.error_code == 0:
            self.sequence += len(values)
        return int(answer.error_code)

    def end(self, *, commit: bool) -> int:
        answer = self.connection.request(
            "end_txn",
            5 if self.is_new else 4,
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        if self.is_new and answer.error_code == 0:
            self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        return int(answer.error_code)


def fetch(
    connection: Connection, topic: str, offset: int = 0, *, committed: bool = True, **options: Any
) -> Any:
    fields = fetch_fields(topic, offset, **options) | {"isolation_level": int(committed)}
    return connection.request("fetch", 12, **fields).responses[0].partitions[0]


def stable(connection: Connection, topic: str) -> int:
    return int(fetch(connection, topic).last_stable_offset)


def until_stable(connection: Connection, topic: str, offset: int) -> None:
    """Markers follow the answer to EndTxn."""
    eventually(lambda: stable(connection, topic) == offset, f"a last stable offset of {offset}")


def batches(part: Any) -> list[Batch]:
    return parse_fetched(bytes(part.records or b""))


def kinds(part: Any) -> list[str]:
    """What each batch is: its values, or what its marker says."""
    found = []
    for batch in batches(part):
        if batch.attributes & CONTROL:
            (record,) = batch.records()
            found.append({ABORT: "abort", COMMIT: "commit"}[struct.unpack(">hh", record.key or b"")[1]])
        else:
            found.append(b",".join(value or b"" for value in batch.values()).decode())
    return found
