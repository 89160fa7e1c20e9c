"""`replay`: records of an archive back into a topic, with their keys, timestamps and headers.

Each partition of the archive is one task, which writes its records in their order. They go to the partition they came
from when the topic has as many partitions as were archived. Otherwise, or with --by-key, they go to the partition of
their key (murmur2, as every client has it). Those without a key go to the number they had, modulo the count. Either way
the records of a key keep their order.

`read_committed` readers see each record exactly once. A task writes in transactions. Each also commits the offset up to
which the archive is replayed, to a group of the replay's name and partition. A run that is killed and started again
with the same options goes on from there; its transactional id fences what is left of the first. A replay that is
complete writes nothing when it is run again: --name makes it another one. The brokers forget where a replay was when it
has stood still for `offsets.retention.minutes`.

Times choose records by their own timestamps, each for itself; offsets are those of the archived topic.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.errors import TidemillError
from tidemill.protocol.compression import CompressionType
from tidemill.spark.pipelines import PipelineError, Summary
from tidemill.spark.pipelines.connecting import connection_options, ensure_topic, open_cluster
from tidemill.spark.pipelines.reporting import Progress
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tidemill.client.producing.transactional import Encoded, TransactionalProducer
    from tidemill.spark.access import BrokerAccess
    from tidemill.spark.source.archive import Archive, ArchiveWork, Manifest

logger = logging.getLogger("tidemill.spark")

NAME = "replay"
SUMMARY = "an archive back into a topic, by offsets or time, with the original keys, timestamps and headers"
EXAMPLES = """
tidemill pipeline run replay --archive /data/archive --topic orders --to-topic orders-again
tidemill pipeline run replay --archive /data/archive --topic orders --to-topic orders-again --from-time 2026-03-01
tidemill pipeline run replay --archive /data/archive --topic orders --to-topic orders-again --name second-try
"""

COLUMNS = ("key", "value", "offset", "timestamp", "headers")
# How much one transaction holds. Readers wait for its end.
TRANSACTION_BYTES = 16 << 20
TRANSACTION_S_MAX = 20.0
_MESSAGE_BYTES_MAX = 1048588


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--archive", metavar="ROOT", required=True, help="as given to the archive pipeline")
    parser.add_argument("--topic", metavar="TOPIC", required=True, help="the archived topic")
    parser.add_argument(
        "--to-topic",
        metavar="TOPIC",
        required=True,
        help="where the records go; created when it does not exist, with as many partitions as were archived",
    )
    parser.add_argument(
        "--starting-offsets", metavar="OFFSETS", default="earliest", help='earliest or {"TOPIC":{"0":12}}'
    )
    parser.add_argument(
        "--ending-offsets",
        metavar="OFFSETS",
        default="latest",
        help='latest or {"TOPIC":{"0":99}}, not included',
    )
    parser.add_argument(
        "--from-time",
        metavar="TIME",
        type=_time_ms,
        help="2026-03-01, 2026-03-01T12:30:00 (UTC) or milliseconds",
    )
    parser.add_argument("--to-time", metavar="TIME", type=_time_ms, help="the same; not included")
    parser.add_argument("--by-key", action="store_true", help="choose partitions by key, not as they were")
    parser.add_argument(
        "--name", help="what a run that goes on is recognised by (default: made of the options)"
    )
    parser.add_argument(
        "--compression",
        choices=[each.name.lower() for each in CompressionType],
        default="none",
        help="of what is written (default none)",
    )


def check(options: argparse.Namespace) -> None:
    if options.name is not None and not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", options.name):
        raise PipelineError(
            f"--name {options.name!r}: letters, digits, '.', '_' and '-' are allowed, 100 at most"
        )


@dataclass(frozen=True)
class Replaying:
    """The settings that every task of a replay needs."""

    access: BrokerAccess
    name: str
    to_topic: str
    partition_count: int
    is_by_key: bool
    batch_bytes_max: int
    codec: int
    from_ms: int | None
    to_ms: int | None


def run(spark: SparkSession, options: argparse.Namespace, report: Progress) -> Summary:
    from tidemill.spark.source.archive import Archive

    archive = Archive(options.archive)
    partitions = archive.partitions(options.topic)
    if not partitions:
        held = ", ".join(archive.topics()) or "nothing"
        raise PipelineError(f"the archive {options.archive} holds no topic {options.topic}; it holds {held}")
    source_count = partitions[-1].partition + 1
    with open_cluster(options) as cluster:
        if ensure_topic(cluster, options.to_topic, partition_count=source_count):
            report.note(f"created topic {options.to_topic}")
        options.archive = archive.root
        replaying = _replaying(options, cluster, source_count, report)
    shares = _shares(archive, options, partitions)
    with report.jobs(spark, NAME):
        numbers = spark.sparkContext.parallelize(range(len(shares)), max(1, len(shares)))
        done = numbers.mapPartitions(partial(_replay_numbered, replaying, shares)).collect()
    return _summary(options, replaying, shares, dict(done), report)


def _replaying(
    options: argparse.Namespace, cluster: Cluster, source_count: int, report: Progress
) -> Replaying:
    from tidemill.spark.source.options import SourceOptions

    admin = Admin(cluster)
    count = len(cluster.partitions_of(options.to_topic))
    if count != source_count and not options.by_key:
        report.note(
            f"topic {options.to_topic} has {count} partitions and {source_count} were archived: records go to the partition "
            "of their key, not to the one they came from"
        )
    if (
        admin.topic_values([options.to_topic], "message.timestamp.type").get(options.to_topic)
        == "LogAppendTime"
    ):
        report.note(
            f"topic {options.to_topic} has message.timestamp.type=LogAppendTime: records get the time of their replay"
        )
    size = admin.topic_values([options.to_topic], "max.message.bytes").get(options.to_topic)
    source = SourceOptions.parse({**connection_options(options), "subscribe": options.to_topic})
    return Replaying(
        source.access,
        options.name or _default_name(options),
        options.to_topic,
        count,
        options.by_key or count != source_count,
        int(size) if size else _MESSAGE_BYTES_MAX,
        CompressionType[options.compression.upper()],
        options.from_time,
        options.to_time,
    )


def _default_name(options: argparse.Namespace) -> str:
    """Returns a name that depends on the options alone: a run continues where an equal one was stopped."""
    said = (
        options.archive,
        options.topic,
        options.to_topic,
        options.starting_offsets,
        options.ending_offsets,
        options.from_time,
        options.to_time,
        options.by_key,
    )
    return f"{options.topic[:60]}-{hashlib.sha256(repr(said).encode()).hexdigest()[:12]}"


def _shares(
    archive: Archive, options: argparse.Namespace, partitions: Sequence[TopicPartition]
) -> list[list[ArchiveWork]]:
    from tidemill.spark.source.table import archive_works

    shares = []
    for partition in partitions:
        manifest = archive.manifest(partition)
        if manifest is None or not manifest.chunks:
            continue
        start, end = _range(options, manifest)
        if start < end:
            shares.append(archive_works(archive, manifest, start, end, fail_on_data_loss=False))
    return shares


def _range(options: argparse.Namespace, manifest: Manifest) -> tuple[int, int]:
    from tidemill.spark.source.offsets import AtOffsets, parse_offsets

    places = []
    for text, option, otherwise in (
        (options.starting_offsets, "--starting-offsets", manifest.first_offset),
        (options.ending_offsets, "--ending-offsets", manifest.end_offset),
    ):
        position = parse_offsets(text, option)
        if isinstance(position, AtOffsets):
            offset = position.offsets.get(manifest.partition)
            if offset is None:
                raise PipelineError(
                    f"{option} does not name {manifest.partition}; it should name every partition"
                )
            otherwise = otherwise if offset < 0 else offset
        places.append(min(max(otherwise, manifest.first_offset), manifest.end_offset))
    return places[0], places[1]


def _summary(
    options: argparse.Namespace,
    replaying: Replaying,
    shares: Sequence[Sequence[ArchiveWork]],
    done: Mapping[int, tuple[int, int]],
    report: Progress,
) -> Summary:
    rows = sum(count for count, _ in done.values())
    resumed = sum(start > shares[number][0].start_offset for number, (_, start) in done.items())
    if not rows and resumed:
        report.note(
            f"everything was replayed before under the name {replaying.name}; another --name replays it again"
        )
    summary = Summary()
    summary.add("archive", options.archive)
    summary.add("from", options.topic)
    summary.add("to", options.to_topic)
    summary.add("records replayed", rows)
    summary.add("partitions chosen", "by key" if replaying.is_by_key else "as they were")
    summary.add("name", replaying.name)
    summary.add_table(
        "partitions",
        ["partition", "from offset", "end offset", "records"],
        [
            [works[0].partition.partition, done[number][1], works[-1].end_offset, done[number][0]]
            for number, works in enumerate(shares)
        ],
    )
    return summary


# --- in tasks ---


def _replay_numbered(
    replaying: Replaying, shares: Sequence[Sequence[ArchiveWork]], numbers: Iterable[int]
) -> Iterator[tuple[int, tuple[int, int]]]:
    for number in numbers:
        yield number, replay_share(replaying, shares[number])


def replay_share(replaying: Replaying, works: Sequence[ArchiveWork]) -> tuple[int, int]:
    """Writes what is left of these works, which follow each other: how many records, and from which offset on."""
    from tidemill.client.producing.transactional import Fenced, TransactionalProducer, stable_offsets

    partition = works[0].partition
    group_id = f"replay-{replaying.name}-{partition.partition}"
    marker = TopicPartition(replaying.to_topic, 0)
    with (
        replaying.access.cluster() as cluster,
        TransactionalProducer(cluster, group_id, codec=replaying.codec) as producer,
    ):
        # Fence first, then read: from here on no other replay can move the marker.
        producer.init()
        found = stable_offsets(cluster, group_id).get(marker)
        start = works[0].start_offset if found is None else max(works[0].start_offset, found.offset)
        stream = _Transactions(producer, group_id, marker)
        try:
            for batch in _rows(replaying, works, start):
                stream.write(_routed(replaying, partition, batch), batch)
            if start < works[-1].end_offset:
                stream.end(works[-1].end_offset)
        except Fenced:
            raise
        except BaseException:
            stream.abandon()
            raise
        return stream.rows, start


class _Transactions:
    """The records of one partition in transactions of a bounded size, each with how far it goes."""

    def __init__(self, producer: TransactionalProducer, group_id: str, marker: TopicPartition) -> None:
        self._producer = producer
        self._group_id = group_id
        self._marker = marker
        self._is_open = False
        self._size = 0
        self._begun_at = 0.0
        self.rows = 0

    def write(self, batches: Iterable[tuple[TopicPartition, Encoded]], rows: pa.RecordBatch) -> None:
        self._open()
        self._producer.produce(batches)
        self.rows += rows.num_rows
        self._size += rows.nbytes
        is_old = time.monotonic() - self._begun_at > TRANSACTION_S_MAX
        if self._size >= TRANSACTION_BYTES or is_old:
            self.end(rows.column("offset")[-1].as_py() + 1)

    def _open(self) -> None:
        if not self._is_open:
            self._producer.begin()
            self._is_open, self._size, self._begun_at = True, 0, time.monotonic()

    def end(self, next_offset: int) -> None:
        from tidemill.client.producing.transactional import CommittedOffset

        self._open()
        self._producer.flush()
        self._producer.send_offsets(self._group_id, {self._marker: CommittedOffset(next_offset, "")})
        self._producer.commit()
        self._is_open = False

    def abandon(self) -> None:
        """Abandons the transaction after a failure, which the caller raises."""
        if self._is_open:
            try:
                self._producer.abort()
            except TidemillError as failure:
                logger.warning(
                    "%s: its transaction stays open until it times out: %s", self._group_id, failure
                )


def _rows(replaying: Replaying, works: Sequence[ArchiveWork], start: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc

    for work in works:
        if work.end_offset <= start:
            continue
        rest = copy.copy(work)
        rest.start_offset = max(start, work.start_offset)
        for batch in rest.read(COLUMNS):
            times_us = batch.column("timestamp").cast(pa.int64())
            if replaying.from_ms is not None:
                kept = pc.greater_equal(times_us, replaying.from_ms * 1000)
                batch, times_us = batch.filter(kept), times_us.filter(kept)
            if replaying.to_ms is not None:
                batch = batch.filter(pc.less(times_us, replaying.to_ms * 1000))
            if batch.num_rows:
                yield batch


def _routed(
    replaying: Replaying, source: TopicPartition, rows: pa.RecordBatch
) -> Iterator[tuple[TopicPartition, Encoded]]:
    import numpy as np
    import pyarrow as pa

    from tidemill.protocol.records import HEADER_SIZE
    from tidemill.spark.arrow.encode import encode
    from tidemill.spark.sink.murmur2 import partitions_of

    count = replaying.partition_count
    if replaying.is_by_key:
        places = np.array(partitions_of(rows.column("key"), count))
        places[places < 0] = source.partition % count
    else:
        places = np.full(rows.num_rows, source.partition, dtype=np.int32)
    # A column without a value costs as much to encode as headers that are there.
    has_headers = rows.column("headers").null_count < rows.num_rows
    records = rows.select(["key", "value", "timestamp", *(["headers"] if has_headers else [])])
    for place in np.unique(places):
        chosen = places == place
        of_place = records if chosen.all() else records.filter(pa.array(chosen))
        for batch in encode(of_place, wall_ms=0, batch_bytes_max=replaying.batch_bytes_max - HEADER_SIZE):
            yield TopicPartition(replaying.to_topic, int(place)), batch


def _time_ms(text: str) -> int:
    if text.strip().isdecimal():
        return int(text)
    try:
        time_utc = datetime.fromisoformat(text.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: it should be like 2026-03-01T12:30:00 or milliseconds since 1970"
        ) from None
    if time_utc.tzinfo is None:
        time_utc = time_utc.replace(tzinfo=UTC)
    return round(time_utc.timestamp() * 1000)
