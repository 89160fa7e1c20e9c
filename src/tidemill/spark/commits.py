"""What a query has decided: one record for each query, in a topic of its own.

A batch is committed by its record here; the transactions that it names are ended after that. The topic
`_tidemill_spark_commits` is compacted: the last record of a query is the one that counts. A record says

    {"batch": 7, "transactions": [["spark-…/0-0.0", 4011, 12], …]}     transactional id, and who wrote the transaction

Whoever decides, or ends what may be decided, first calls `fence`: InitProducerId of the query's own transactional id,
then a read to the end. Decisions are written in transactions of that id, so that nobody who called it earlier can
decide after that. The read waits for transactions of other queries that are open there; they last milliseconds or,
when their driver died, until they time out.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import NamedTuple, Self
from urllib.parse import quote

from crc32c import crc32c

from tidemill.client.admin import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.fetch import fetch_range
from tidemill.client.retry import UnknownTopic
from tidemill.client.transaction_coordinator import Identity
from tidemill.client.transactional import TransactionalProducer
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.protocol.isolation import READ_COMMITTED
from tidemill.protocol.records import HEADER_SIZE, Record, build_batch, iterate_records
from tidemill.types import TopicPartition

TOPIC = "_tidemill_spark_commits"
# A query's partition follows from its id and this number, so it must never change.
PARTITION_COUNT = 16
_REPLICAS_MAX = 3
# Enough for a failover between the record and its commit; so long others may have to wait for a driver that died.
_TIMEOUT_MS = 15_000


class Transaction(NamedTuple):
    """One that a task has written and left open."""

    transactional_id: str
    producer_id: int
    producer_epoch: int

    @property
    def writer(self) -> Identity:
        return Identity(self.producer_id, self.producer_epoch)


class Decision(NamedTuple):
    batch_id: int
    transactions: tuple[Transaction, ...]


def transactional_id_of(query_id: str) -> str:
    """Under which a query decides."""
    return f"spark-{quote(query_id, safe='')}"


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A record as it stands in a batch."""

    records: memoryview
    base_timestamp: int
    record_count: int = 1

    @property
    def max_timestamp(self) -> int:
        return self.base_timestamp


class Commits:
    """The decisions of one query. `fence` comes first, also before each `decide`."""

    def __init__(self, cluster: Cluster, query_id: str) -> None:
        self._cluster = cluster
        self._query_id = query_id
        self._partition = TopicPartition(TOPIC, crc32c(query_id.encode()) % PARTITION_COUNT)
        self._producer = TransactionalProducer(
            cluster, transactional_id_of(query_id), transaction_timeout_ms=_TIMEOUT_MS
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.close()

    def fence(self) -> Decision | None:
        """The query's last decision. From now on nobody but us makes the next one."""
        self._producer.init()
        try:
            return self._last()
        except UnknownTopic:
            return None

    def decide(self, decision: Decision) -> None:
        """`Fenced` when somebody else has called `fence` since. After any failure the decision may have been made."""
        self._ensure_topic()
        told = {"batch": decision.batch_id, "transactions": decision.transactions}
        self._write(json.dumps(told, separators=(",", ":")).encode())

    def forget(self) -> None:
        """There is nothing left to do about the last decision, and there will be no other."""
        self._write(None)

    def _write(self, value: bytes | None) -> None:
        now_ms = int(time.time() * 1000)
        batch = build_batch([Record(0, now_ms, self._query_id.encode(), value)])
        self._producer.begin()
        self._producer.produce([(self._partition, _Encoded(memoryview(batch)[HEADER_SIZE:], now_ms))])
        self._producer.commit()

    # --- the topic ---

    def _last(self) -> Decision | None:
        admin = Admin(self._cluster)
        start_offset = admin.start_offsets([self._partition])[self._partition]
        end_offset = self._stable_end(admin)
        found: bytes | None = None
        key = self._query_id.encode()
        for answer in fetch_range(
            self._cluster, self._partition, start_offset, end_offset, isolation_level=READ_COMMITTED
        ):
            for header, batch in answer.batches:
                for record in iterate_records(batch, header):
                    if record.key == key and record.offset < end_offset:
                        found = record.value
        return None if found is None else _parse(found)

    def _stable_end(self, admin: Admin) -> int:
        """Where the partition ends, when every transaction before that has ended."""
        end_offset = admin.end_offsets([self._partition])[self._partition]
        retries = self._cluster.retries(max(self._cluster.timeout_s, 3 * _TIMEOUT_MS / 1000))
        while admin.end_offsets([self._partition], READ_COMMITTED)[self._partition] < end_offset:
            if not retries.wait():
                raise TidemillError(
                    f"a transaction in {self._partition} does not end: `tidemill transactions list --hanging "
                    f"--topic {TOPIC}` shows whose it is"
                )
        return end_offset

    def _ensure_topic(self) -> None:
        try:
            self._cluster.partitions_of(TOPIC)
            return
        except UnknownTopic:
            pass
        replicas = min(_REPLICAS_MAX, len(self._cluster.retrying(self._cluster.broker_ids)))
        configs = {
            "cleanup.policy": "compact",
            # Everything is read, again and again: old decisions go soon.
            "segment.bytes": str(1 << 20),
            "min.cleanable.dirty.ratio": "0.1",
            "min.insync.replicas": str(max(1, replicas - 1)),
        }
        try:
            Admin(self._cluster).create_topic(
                TOPIC, partition_count=PARTITION_COUNT, replication_factor=replicas, configs=configs
            )
        except ApiError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise


def _parse(value: bytes) -> Decision:
    told = json.loads(value)
    return Decision(int(told["batch"]), tuple(Transaction(*each) for each in told["transactions"]))
