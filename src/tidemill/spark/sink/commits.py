"""The decisions of queries: one record for each query, in a topic of its own.

A batch is committed by its record here; the transactions that it names are ended after that. The topic
`_tidemill_spark_commits` is compacted: the last record of a query is the one that counts. A record says

    {"batch": 7, "transactions": [["spark-…/0-0.0", 4011, 12], …]}     transactional id, and who wrote the transaction

A driver that decides, or ends what may be decided, first calls `fence`. That sends InitProducerId of the query's own
transactional id, writes the barrier (a record without meaning in a transaction of that id), and reads up to there.
Decisions are written in that very transaction, so no driver that called `fence` earlier can decide after that. The read
has everything that was decided before, because a replaced leader that does not know of it cannot acknowledge the
barrier. The read waits for transactions of other queries that are open before it; they last milliseconds or, when their
driver died, until they time out.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from dataclasses import dataclass
from typing import NamedTuple, Self
from urllib.parse import quote

from crc32c import crc32c

from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.fetch import fetch_range
from tidemill.client.producing.transaction_coordinator import Fenced, Identity
from tidemill.client.producing.transactional import RecordTooLarge, TransactionalProducer
from tidemill.client.retry import UnknownTopic
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.internal_topics import SPARK_COMMITS_TOPIC
from tidemill.protocol.compression import CompressionType
from tidemill.protocol.isolation import READ_COMMITTED
from tidemill.protocol.records import HEADER_SIZE, Record, build_batch, iterate_records
from tidemill.types import TopicPartition

TOPIC = SPARK_COMMITS_TOPIC
# A query's partition follows from its id and this number, so it must never change.
PARTITION_COUNT = 16
_REPLICAS_MAX = 3
# The key of records that only mark a place. Compaction keeps the last of them.
_BARRIER = b""
# Enough for a failover between the record and its commit; so long others may have to wait for a driver that died.
_TIMEOUT_MS = 30_000
# How often, and how far apart, a query's processes fence each other before one gives up.
_FENCES_MAX = 20
_FENCED_PAUSE_S_MAX = 0.5


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
        self._producer = self._new_producer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Aborts what is not decided. A producer that has fenced this one did so already."""
        with contextlib.suppress(TidemillError):
            if self._producer.is_open:
                self._producer.abort()
        self._producer.close()

    def fence(self) -> Decision | None:
        """Returns the query's last decision. From now on only this driver can make the next one.

        Tasks that begin together, each behind a transaction of a driver that died, fence each other here. Then it is done
        anew, each after a pause of its own.
        """
        self._ensure_topic()
        for _ in range(_FENCES_MAX - 1):
            try:
                return self._fence_once()
            except Fenced:
                self._producer.close()
                self._producer = self._new_producer()
                time.sleep(random.uniform(0.0, _FENCED_PAUSE_S_MAX))
        return self._fence_once()

    def _new_producer(self) -> TransactionalProducer:
        transactional_id = transactional_id_of(self._query_id)
        return TransactionalProducer(
            self._cluster, transactional_id, transaction_timeout_ms=_TIMEOUT_MS, codec=CompressionType.GZIP
        )

    def _fence_once(self) -> Decision | None:
        self._producer.init()
        self._producer.begin()
        self._write(_BARRIER, b"")
        return self._last_before(self._producer.acknowledged_at[self._partition])

    def decide(self, decision: Decision) -> None:
        """Raises `Fenced` when another driver called `fence` since. After any failure the decision may have been made."""
        told = {"batch": decision.batch_id, "transactions": decision.transactions}
        try:
            self._write(self._query_id.encode(), json.dumps(told, separators=(",", ":")).encode())
        except RecordTooLarge as failure:
            raise TidemillError(
                f"the decision about {len(decision.transactions):,} tasks is too large: write with fewer tasks, as "
                f"DataFrame.coalesce makes of many ({failure})"
            ) from failure
        self._producer.commit()

    def forget(self) -> None:
        """There is nothing left to do about the last decision, and there will be no other."""
        self._write(self._query_id.encode(), None)
        self._producer.commit()

    def _write(self, key: bytes, value: bytes | None) -> None:
        wall_ms = int(time.time() * 1000)
        batch = build_batch([Record(0, wall_ms, key, value)])
        self._producer.produce([(self._partition, _Encoded(memoryview(batch)[HEADER_SIZE:], wall_ms))])
        self._producer.flush()

    # --- the topic ---

    def _last_before(self, barrier: int) -> Decision | None:
        if barrier < 0:
            # It was written, but the answer that told where was lost.
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"no broker told where {self._partition} stands")
        admin = Admin(self._cluster)
        self._await_stable(admin, barrier)
        start_offset = admin.start_offsets([self._partition])[self._partition]
        found: bytes | None = None
        key = self._query_id.encode()
        for answer in fetch_range(
            self._cluster, self._partition, start_offset, barrier, isolation_level=READ_COMMITTED
        ):
            for header, batch in answer.batches:
                for record in iterate_records(batch, header):
                    if record.key == key and record.offset < barrier:
                        found = record.value
        return None if found is None else _parse(found)

    def _await_stable(self, admin: Admin, barrier: int) -> None:
        """Returns when every transaction before the barrier has ended."""
        retries = self._cluster.retries(max(self._cluster.timeout_s, 3 * _TIMEOUT_MS / 1000))
        while admin.end_offsets([self._partition], READ_COMMITTED)[self._partition] < barrier:
            if not retries.wait():
                raise TidemillError(
                    f"a transaction in {self._partition} does not end: `tidemill transactions list --hanging "
                    f"--topic {TOPIC}` shows whose it is"
                )

    def _ensure_topic(self) -> None:
        try:
            partition_count = len(self._cluster.partitions_of(TOPIC))
        except UnknownTopic:
            self._create_topic()
            return
        if partition_count < PARTITION_COUNT:
            # One that brokers made by themselves is not compacted either: decisions would be deleted after a week.
            raise TidemillError(
                f"the topic {TOPIC} has {partition_count} partitions and needs {PARTITION_COUNT}: it was not made by this "
                f"sink. Delete it, and the sink makes it anew"
            )

    def _create_topic(self) -> None:
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
            # The broker that was asked had not heard of it yet.
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            self._cluster.forget()


def _parse(value: bytes) -> Decision:
    told = json.loads(value)
    return Decision(int(told["batch"]), tuple(Transaction(*each) for each in told["transactions"]))
