"""Batch and stream writers of `format("tidemill")`: Arrow batches become batches of records, committed by the driver.

What holds. A streaming query writes every row exactly once for `read_committed` readers, whatever fails: a row of the
upstream, tasks, executors, the driver, brokers. The query may be stopped or killed, and rows may go to other tasks when
a batch is repeated. A batch write is there as a whole or not at all. A task writes its rows in a transaction that it
leaves open, because it cannot know that its input was complete. Spark ends the input of a task whose upstream failed
like that of any other. The driver knows, and commits the transactions of all tasks by one decision (`two_phase`).

What ends it. With the checkpoint Spark forgets the query's id: a new query begins without decisions and writes
everything that it reads. An older copy of the checkpoint fails, because its batches have numbers that are committed. A
job that is run again writes again, unless it has the options `queryName` and `batchId`, as in `foreachBatch`. Then a
batch that was committed is not committed again.

A transaction is open from a task's first row until the driver commits: `kafka.transaction.timeout.ms` has to cover
the batch.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidemill.claims.large_payloads import LargePayloads
from tidemill.client.cluster import Cluster
from tidemill.client.producing.transactional import (
    BatchProducer,
    Encoded,
    Fenced,
    RecordTooLarge,
    TransactionalProducer,
)
from tidemill.errors import ConfigError, TidemillError
from tidemill.protocol.records import HEADER_SIZE
from tidemill.spark import freeze_imports
from tidemill.spark.arrow.encode import encode
from tidemill.spark.claims import stored
from tidemill.spark.sink.commits import Transaction
from tidemill.spark.sink.options import COLUMNS, SinkOptions, check_schema
from tidemill.spark.sink.routing import Router
from tidemill.spark.sink.two_phase import (
    commit_batch,
    forget_decision,
    open_transaction,
    queries_marked,
    settle,
    task_prefix,
)
from tidemill.spark.versions import DataSourceStreamArrowWriter
from tidemill.types import TopicPartition

logger = logging.getLogger(__name__)

# Rows are gathered to about this much before they are cut by partition. The columns of a chunk cost about a millisecond
# however few rows they have. Spark's batches of 10,000 rows of 1 KB pass as they are.
CHUNK_BYTES = 8 << 20
# A failed query ends with its own error, not with a long wait for the broker that may have caused it.
_ABORT_TIMEOUT_S = 5.0
_SETTLE_PAUSES_S = (0.0, 0.2, 0.5, 1.0)
_SLOTS = 16
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class Task(NamedTuple):
    """One attempt at one task. Attempts have names of their own, so that none disturbs another that Spark may take.

    Names come again, since brokers remember each for days. Of two attempts of the same number, one is left over from a
    stage that Spark has given up. The ids that Spark gives them distinguish the two, as far as `_SLOTS` goes.
    """

    query_id: str
    batch_id: int
    partition_id: int
    attempt_number: int = 0
    attempt_id: int = 0
    # Of the checkpoint, in streams.
    mark: str = ""

    @property
    def transactional_id(self) -> str:
        slot = f"{self.attempt_number}.{self.attempt_id % _SLOTS}"
        return f"{task_prefix(self.query_id)}{self.mark}/{self.partition_id}-{slot}"

    def __str__(self) -> str:
        return f"task {self.partition_id} of batch {self.batch_id} of query {self.query_id}"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The result of a task. `transaction` is what it has written and left open; None when there is none."""

    query_id: str
    rows: int = 0
    transaction: Transaction | None = None


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool = False) -> None:
        freeze_imports()
        self._options = SinkOptions.parse(options)
        check_schema(schema, self._options)
        if overwrite:
            raise ConfigError(
                "a topic cannot be overwritten, records are only added to it: use mode('append')"
            )
        # Without a name of its own a job is one of a kind.
        self._query_id = self._options.job or f"batch-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _task(_context(), self._query_id, self._options.batch_id or 0)
        return write_rows(self._options, task, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        freeze_imports()
        written = _transactions(messages)
        if not self._options.exactly_once or not (written or self._options.job):
            return
        with self._options.access.reached() as cluster:
            commit_batch(cluster, self._query_id, self._options.batch_id or 0, written, drops_earlier=True)
            if self._options.job is None:
                # No later run has this name, so none will read it.
                forget_decision(cluster, self._query_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.exactly_once:
            _settle_after_failure(self._options, self._query_id, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool = False) -> None:
        # In the output mode complete `overwrite` is set; every result is written then, as by Spark's Kafka sink.
        del overwrite
        self._options = SinkOptions.parse(options)
        check_schema(schema, self._options)
        if self._options.batch_id is not None:
            raise ConfigError("batchId is for batch writes, as in foreachBatch: a stream has its own")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query_id is None or batch_id is None:
            raise TidemillError(f"Spark does not tell {_QUERY_ID} and {_BATCH_ID} to this task")
        task = _task(context, query_id, int(batch_id), self._options.mark)
        return write_rows(self._options, task, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        query_id = _query_id(messages)
        if query_id is None or not self._options.exactly_once:
            return
        with self._options.access.reached() as cluster:
            commit_batch(cluster, query_id, batchId, _transactions(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        del batchId
        if self._options.exactly_once:
            query_id = _query_id(messages) or query_of_checkpoint(self._options.checkpoint)
            _settle_after_failure(self._options, query_id, messages)


def _task(context: TaskContext, query_id: str, batch_id: int, mark: str = "") -> Task:
    return Task(
        query_id, batch_id, context.partitionId(), context.attemptNumber(), context.taskAttemptId(), mark
    )


def _settle_after_failure(
    options: SinkOptions, query_id: str | None, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Ends the transactions of a failed batch.

    Without a finished task and a readable checkpoint, the query is found by the mark in the names of its tasks.

    It is done again after a moment: a task whose upstream failed takes what it got for everything, and is still writing it.
    """
    try:
        with options.access.cluster() as cluster:
            cluster.timeout_s = min(cluster.timeout_s, _ABORT_TIMEOUT_S)
            for pause_s in _SETTLE_PAUSES_S:
                time.sleep(pause_s)
                for each in [query_id] if query_id else queries_marked(cluster, options.mark):
                    settle(cluster, each, _transactions(messages))
    except TidemillError as failure:
        logger.warning(
            "transactions of the failed batch stay open until they time out or the query is started again, and those that "
            "the driver had taken over for the commit until it is started again, or `tidemill transactions end ID "
            "--as-decided` ends them: %s",
            failure,
        )


def query_of_checkpoint(location: str | None) -> str | None:
    """The id that Spark keeps in the checkpoint, if this process can read it: a path, or a URL of a file."""
    url = urlsplit(location or "")
    if not location or url.scheme not in ("", "file"):
        return None
    folder = Path(unquote(url.path) if url.scheme else location)
    try:
        told = json.loads((folder / "metadata").read_text(encoding="utf-8"))
        return str(told["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


# --- one task ---


def write_rows(options: SinkOptions, task: Task, batches: Iterable[pa.RecordBatch]) -> Written:
    """Everything that a task does. It sends no request when there are no rows."""
    freeze_imports()
    chunks = _chunks(batches, options)
    first = next(chunks, None)
    if first is None:
        return Written(task.query_id)
    rows = _Rows(first, chunks)
    with options.access.reached() as cluster:
        router = Router(cluster, options.topic, task.partition_id)
        if options.exactly_once:
            return _write_once(cluster, options, task, rows, router)
        with BatchProducer(
            cluster, codec=options.codec, delivery_timeout_s=options.delivery_timeout_s
        ) as producer:
            _produce(producer, options, rows, router)
            producer.flush()
        return Written(task.query_id, rows.count)


def _write_once(cluster: Cluster, options: SinkOptions, task: Task, rows: _Rows, router: Router) -> Written:
    with TransactionalProducer(
        cluster,
        task.transactional_id,
        transaction_timeout_ms=options.transaction_timeout_ms,
        codec=options.codec,
        delivery_timeout_s=options.delivery_timeout_s,
    ) as producer:
        if open_transaction(cluster, producer, task.transactional_id, task.query_id, task.batch_id):
            logger.warning("%s is committed already and not written again", task)
            return Written(task.query_id)
        producer.begin()
        try:
            _produce(producer, options, rows, router)
            writer = producer.prepare()
        except Fenced:
            raise
        except BaseException:
            _abort(producer, task)
            raise
        return Written(task.query_id, rows.count, Transaction(task.transactional_id, *writer))


def _abort(producer: TransactionalProducer, task: Task) -> None:
    try:
        producer.abort()
    except TidemillError as failure:
        logger.warning("%s: its transaction stays open until it times out: %s", task, failure)


def _produce(producer: BatchProducer, options: SinkOptions, rows: _Rows, router: Router) -> None:
    store = options.large_payloads and LargePayloads(
        options.large_payloads, threshold_bytes=options.large_payloads_threshold
    )

    def encoded(chunk: pa.RecordBatch) -> Iterator[tuple[TopicPartition, Encoded]]:
        for topic, records, partitions, starts in router.route(chunk):
            if store:
                records = stored(records, topic, store)
            bytes_max = min(router.bytes_max(topic), options.batch_bytes_max)
            records_bytes = min(bytes_max, options.batch_bytes) - HEADER_SIZE
            for batch in encode(records, wall_ms=_wall_ms(), batch_bytes_max=records_bytes, starts=starts):
                partition = TopicPartition(topic, partitions[batch.part])
                _check_size(partition, batch, bytes_max, options)
                yield partition, batch

    for chunk in rows:
        producer.produce(encoded(chunk))


def _check_size(partition: TopicPartition, batch: Encoded, bytes_max: int, options: SinkOptions) -> None:
    size = len(batch.records) + HEADER_SIZE
    # What compression makes of it, the broker judges.
    if size > bytes_max and batch.record_count == 1 and not options.codec:
        raise RecordTooLarge(
            f"{partition}: a record makes a batch of {size:,} bytes, and {bytes_max:,} are allowed by the topic's "
            f"max.message.bytes and the option kafka.max.request.size: raise them or write smaller records"
        )


class _Rows:
    """The rows of a task, once through, counted."""

    def __init__(self, first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> None:
        self._first: pa.RecordBatch | None = first
        self._others = others
        self.count = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        first, self._first = self._first, None
        if first is not None:
            yield self._counted(first)
        for chunk in self._others:
            yield self._counted(chunk)

    def _counted(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        self.count += len(chunk)
        return chunk


def _chunks(batches: Iterable[pa.RecordBatch], options: SinkOptions) -> Iterator[pa.RecordBatch]:
    """The rows in chunks of about `CHUNK_BYTES`, with no column but those of the sink."""
    gathered: list[pa.RecordBatch] = []
    gathered_bytes = 0
    for batch in batches:
        if not len(batch):
            continue
        names = [name for name in COLUMNS if name in batch.schema.names]
        if not options.writes_headers and "headers" in names:
            names.remove("headers")
        rows = batch.select(names)
        if not gathered and rows.nbytes > 2 * CHUNK_BYTES:
            yield from _cut(rows)
            continue
        gathered.append(rows)
        gathered_bytes += rows.nbytes
        if gathered_bytes >= CHUNK_BYTES:
            yield _joined(gathered)
            gathered, gathered_bytes = [], 0
    if gathered:
        yield _joined(gathered)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    # Arrow copies even one.
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _cut(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    step = max(1, len(rows) * CHUNK_BYTES // rows.nbytes)
    for start in range(0, len(rows), step):
        yield rows.slice(start, step)


def _transactions(messages: Sequence[WriterCommitMessage | None]) -> list[Transaction]:
    told = (each.transaction for each in messages if isinstance(each, Written))
    return [each for each in told if each is not None]


def _query_id(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    return next((each.query_id for each in messages if isinstance(each, Written)), None)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise TidemillError("rows are written by Spark's tasks only")
    return context


def _wall_ms() -> int:
    return int(time.time() * 1000)
