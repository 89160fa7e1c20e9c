"""Batch and stream writers of `format("tidemill")`: Arrow batches become batches of records, one transaction a task.

What holds. A streaming query writes every row exactly once for `read_committed` readers, whatever fails: tasks, executors,
the driver, brokers. Two things together see to it. A task's transactional id is that of its query and partition: an
attempt begins by taking it over, which aborts what an earlier attempt left open and fences that attempt, so a zombie cannot
commit. And the transaction commits a marker along with the records (`markers`): an attempt that finds one for its batch
writes nothing. Either alone duplicates. An attempt takes the id over once; when it is fenced it fails, and Spark decides
what comes next: else two attempts would fence each other for ever.

What it takes. Spark repeats a batch with the same input, and a task's marker stands for the rows that this task had. So when
a batch that was written in part is repeated, rows must fall to the same tasks: the plan is deterministic and cut into as
many partitions as before. Spark tells a Python writer neither the number of tasks beforehand nor where a row was before, so
this is checked rather than prevented: a repeated task compares the number of its rows with the marker's, and the driver
compares the number of tasks (`MovedRows`). A batch that every task had written is not written again however it is cut.
Rows of equal number and other content are logged only, since a function such as `uuid()` has that effect.

What ends it. With the checkpoint Spark forgets the query's id: a new query begins without markers and writes everything
that it reads. Markers go with the topic that holds them, and after `offsets.retention.minutes` (7 days) without a batch: a
query that was stopped in the middle of one and is started later than that writes the batch again. The driver logs when
there is no marker of an earlier batch.

A batch write has the same transactions and markers under an id of its own, which covers tasks that Spark repeats within the
job; the groups of its markers are deleted when it is over. A job that is run again writes again.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tidemill.client.cluster import Cluster
from tidemill.client.group_admin import GroupAdmin
from tidemill.client.transactional import (
    BatchProducer,
    Encoded,
    Fenced,
    RecordTooLarge,
    TransactionalProducer,
)
from tidemill.errors import ConfigError, TidemillError
from tidemill.protocol.records import HEADER_SIZE
from tidemill.spark.encode import encode
from tidemill.spark.markers import (
    NO_MARKER,
    Marker,
    group_of,
    marker_offsets,
    read_marker,
    write_query_marker,
)
from tidemill.spark.routing import Router
from tidemill.spark.sink_options import COLUMNS, SinkOptions, check_schema
from tidemill.types import TopicPartition

logger = logging.getLogger(__name__)

# Rows are gathered to about this much before they are cut by partition.
CHUNK_BYTES = 4 << 20
# A failed query ends with its own error, not with a long wait for the broker that may have caused it.
_ABORT_TIMEOUT_S = 5.0
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class MovedRows(TidemillError):
    """A batch that was written in part is repeated with other rows in its tasks."""


class Task(NamedTuple):
    query_id: str
    batch_id: int
    partition_id: int

    def __str__(self) -> str:
        return f"task {self.partition_id} of batch {self.batch_id} of query {self.query_id}"


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver. `topic` is one that it wrote to; None when it had no rows."""

    query_id: str
    partition_id: int
    rows: int = 0
    topic: str | None = None
    is_repeated: bool = False


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool = False) -> None:
        self._options = SinkOptions.parse(options)
        check_schema(schema, self._options)
        if overwrite:
            raise ConfigError(
                "a topic cannot be overwritten, records are only added to it: use mode('append')"
            )
        self._query_id = f"batch-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_rows(self._options, Task(self._query_id, 0, _context().partitionId()), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._forget(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._forget(messages)

    def _forget(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The markers have done their work when no task can be repeated any more."""
        written = [each for each in _written(messages) if each.topic is not None]
        if not written or not self._options.exactly_once:
            return
        with self._options.access.cluster() as cluster:
            groups = GroupAdmin(cluster)
            for each in written:
                group_id = group_of(each.query_id, each.partition_id)
                try:
                    groups.delete(group_id)
                except TidemillError as failure:
                    logger.warning("group %s stays until its offsets expire: %s", group_id, failure)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool = False) -> None:
        # In the output mode complete `overwrite` is set; every result is written then, as by Spark's Kafka sink.
        del overwrite
        self._options = SinkOptions.parse(options)
        check_schema(schema, self._options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query_id is None or batch_id is None:
            raise TidemillError(f"Spark does not tell {_QUERY_ID} and {_BATCH_ID} to this task")
        return write_rows(self._options, Task(query_id, int(batch_id), context.partitionId()), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = [each for each in _written(messages) if each.topic is not None]
        if not written or not self._options.exactly_once:
            return
        query_id, topic = written[0].query_id, written[0].topic
        assert topic is not None
        with self._options.access.reached() as cluster:
            before = read_marker(cluster, group_of(query_id), self._options.topic)
            if before == NO_MARKER and batchId > 0:
                logger.warning(
                    "query %s had no marker before batch %d: it is the first with rows, or its markers expired. In the "
                    "latter case what an earlier attempt at this batch had written is there twice",
                    query_id,
                    batchId,
                )
            if before.next_batch_id == batchId and before.partitions not in (-1, len(messages)):
                _report_moved(
                    self._options,
                    f"batch {batchId} of query {query_id} was cut into {before.partitions} tasks when it was written in "
                    f"part, and into {len(messages)} now: records may be missing or twice in topic {topic}. Keep the "
                    f"number of partitions while a batch is unfinished",
                )
            total = sum(each.rows for each in written)
            write_query_marker(cluster, query_id, topic, Marker(batchId + 1, rows=total))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = [each for each in _written(messages) if each.topic is not None]
        if not written or not self._options.exactly_once:
            return
        query_id, topic = written[0].query_id, written[0].topic
        assert topic is not None
        try:
            with self._options.access.cluster() as cluster:
                cluster.timeout_s = min(cluster.timeout_s, _ABORT_TIMEOUT_S)
                before = read_marker(cluster, group_of(query_id), self._options.topic)
                # The first attempt's number of tasks is the one that counts.
                is_noted = before.next_batch_id == batchId and before.partitions >= 0
                if before.next_batch_id <= batchId and not is_noted:
                    write_query_marker(cluster, query_id, topic, Marker(batchId, partitions=len(messages)))
        except TidemillError as failure:
            logger.warning("batch %d of query %s failed, which is not noted: %s", batchId, query_id, failure)


# --- one task ---


def write_rows(options: SinkOptions, task: Task, batches: Iterable[pa.RecordBatch]) -> Written:
    """Everything that a task does. It asks nothing of a broker when there are no rows."""
    chunks = _chunks(batches, options)
    first = next(chunks, None)
    if first is None:
        return Written(task.query_id, task.partition_id)
    rows = _Rows(first, chunks)
    with options.access.reached() as cluster:
        router = Router(cluster, options.topic, task.partition_id)
        if options.exactly_once:
            return _write_once(cluster, options, task, rows, router)
        with BatchProducer(
            cluster, codec=options.codec, delivery_timeout_s=options.delivery_timeout_s
        ) as producer:
            topic = _produce(producer, options, rows, router)
            producer.flush()
        return Written(task.query_id, task.partition_id, rows.count, topic)


def _write_once(cluster: Cluster, options: SinkOptions, task: Task, rows: _Rows, router: Router) -> Written:
    group_id = group_of(task.query_id, task.partition_id)
    with TransactionalProducer(
        cluster,
        group_id,
        transaction_timeout_ms=options.transaction_timeout_ms,
        codec=options.codec,
        delivery_timeout_s=options.delivery_timeout_s,
    ) as producer:
        # Fence first, look second: from here on nobody else can write the marker that is looked for.
        producer.init()
        done = _marker_of(cluster, options, task, rows)
        if done is not None:
            logger.warning("%s is written already and not written again", task)
            return Written(task.query_id, task.partition_id, 0, done.topic, is_repeated=True)
        producer.begin()
        try:
            topic = _produce(producer, options, rows, router)
            producer.flush()
            marker = Marker(task.batch_id + 1, rows=rows.count, checksum=rows.checksum)
            producer.send_offsets(group_id, marker_offsets(topic, marker))
            producer.commit()
        except Fenced:
            raise
        except BaseException:
            _abort(producer, task)
            raise
        return Written(task.query_id, task.partition_id, rows.count, topic)


def _marker_of(cluster: Cluster, options: SinkOptions, task: Task, rows: _Rows) -> Marker | None:
    """What an earlier attempt says that has written this batch; None when there was none."""
    whole = read_marker(cluster, group_of(task.query_id), options.topic)
    if whole.next_batch_id > task.batch_id:
        return whole
    if whole.next_batch_id == task.batch_id and 0 <= whole.partitions <= task.partition_id:
        _report_moved(
            options,
            f"{task}: the batch was cut into {whole.partitions} tasks when it was written in part, and into more now: "
            f"its rows moved to other tasks. Keep the number of partitions while a batch is unfinished",
        )
    marker = read_marker(cluster, group_of(task.query_id, task.partition_id), options.topic)
    if marker.next_batch_id <= task.batch_id:
        return None
    if marker.next_batch_id == task.batch_id + 1 and marker.rows >= 0:
        _compare(options, task, rows, marker)
    return marker


def _compare(options: SinkOptions, task: Task, rows: _Rows, marker: Marker) -> None:
    for _ in rows:
        pass
    if rows.count != marker.rows:
        _report_moved(
            options,
            f"{task} has written {marker.rows} rows and has {rows.count} now that it is repeated: its rows moved to "
            f"other tasks, so records may be missing or twice in topic {marker.topic}. Keep the number of partitions "
            f"and a deterministic plan while a batch is unfinished",
        )
    elif rows.checksum != marker.checksum:
        logger.warning("%s has %d rows as when it wrote them, but not the same ones", task, rows.count)


def _abort(producer: TransactionalProducer, task: Task) -> None:
    try:
        producer.abort()
    except TidemillError as failure:
        logger.warning("%s: its transaction stays open until it times out: %s", task, failure)


def _produce(producer: BatchProducer, options: SinkOptions, rows: _Rows, router: Router) -> str:
    """The first topic that was written to."""
    topics: dict[str, None] = {}

    def encoded(chunk: pa.RecordBatch) -> Iterator[tuple[TopicPartition, Encoded]]:
        for partition, records in router.route(chunk):
            topics[partition.topic] = None
            bytes_max = min(router.bytes_max(partition.topic), options.batch_bytes_max)
            for batch in encode(records, now_ms=_now_ms(), batch_bytes_max=bytes_max - HEADER_SIZE):
                _check_size(partition, batch, bytes_max, options)
                yield partition, batch

    for chunk in rows:
        producer.produce(encoded(chunk))
    return next(iter(topics))


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
        # Of all values in their order, wherever batches of rows begin and end.
        self.checksum = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        first, self._first = self._first, None
        if first is not None:
            yield self._counted(first)
        for chunk in self._others:
            yield self._counted(chunk)

    def _counted(self, chunk: pa.RecordBatch) -> pa.RecordBatch:
        self.count += len(chunk)
        values = chunk.column("value").cast(pa.binary())
        _, offsets, data = values.buffers()
        if data is not None:
            ends = np.frombuffer(offsets, np.int32)[[values.offset, values.offset + len(values)]]
            self.checksum = crc32c(memoryview(data)[ends[0] : ends[1]], self.checksum)
        return chunk


def _chunks(batches: Iterable[pa.RecordBatch], options: SinkOptions) -> Iterator[pa.RecordBatch]:
    """The rows in batches of at least about `CHUNK_BYTES`, with no column but those of the sink."""
    gathered: list[pa.RecordBatch] = []
    gathered_bytes = 0
    for batch in batches:
        if not len(batch):
            continue
        names = [name for name in COLUMNS if name in batch.schema.names]
        if not options.writes_headers and "headers" in names:
            names.remove("headers")
        gathered.append(batch.select(names))
        gathered_bytes += gathered[-1].nbytes
        if gathered_bytes >= CHUNK_BYTES:
            yield pa.concat_batches(gathered)
            gathered, gathered_bytes = [], 0
    if gathered:
        yield pa.concat_batches(gathered)


def _report_moved(options: SinkOptions, text: str) -> None:
    if options.fail_on_moved_rows:
        raise MovedRows(f"{text}; failOnMovedRows=false goes on")
    logger.warning(text)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [each for each in messages if isinstance(each, Written)]


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise TidemillError("rows are written by Spark's tasks only")
    return context


def _now_ms() -> int:
    return int(time.time() * 1000)
