"""`archive`: topics to Parquet, exactly once, in the layout of `tidemill.spark.source.archive`.

A run claims the manifest of every partition, which stops any other archiver of the same root, and removes the files
that a killed one left. Then it works in rounds. For each partition that has more committed records than the archive,
one task reads from the archive's end on and writes chunks, about `--round-bytes` of them. When all tasks are done the
manifests are replaced, and what they name counts from then on. A kill at any point leaves at most files that no
manifest names. Ranges are archived up to the last stable offset, so no record of an open transaction is passed over.

What is archived is shown as the committed offsets of a consumer group: its lag is what waits to be archived. Where
retention was faster, the run ends and names the offsets; with --skip-lost the manifest says that they are lost, and
so will every reader.

--delete-archived-after deletes (DeleteRecords) what is archived and older than that, chunk by chunk, after each
time the archive has caught up. Retention then waits for the archive if the topic's own retention is switched off; a
warning says when it is not.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.protocol.isolation import READ_COMMITTED
from tidemill.spark.pipelines import Bytes, PipelineError, Summary
from tidemill.spark.pipelines.connecting import connection_options, open_cluster, require_topics
from tidemill.spark.pipelines.reporting import Progress
from tidemill.spark.pipelines.topic_report.findings import parse_duration_ms, parse_size
from tidemill.types import TopicPartition, uuid_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tidemill.spark.source.archive import Archive, Chunk, Manifest
    from tidemill.spark.source.work import Work

NAME = "archive"
SUMMARY = "topics to Parquet by topic and date, exactly once; read it with option archive, or replay it"
EXAMPLES = """
tidemill pipeline run archive --topic orders --archive /data/archive
tidemill pipeline run archive --topic orders --topic clicks --archive s3://bucket/archive --continuous
tidemill pipeline run archive --topic orders --archive /data/archive --delete-archived-after 7d
"""

DEFAULT_INTERVAL = "5m"
DEFAULT_CHUNK_BYTES = 128 << 20
DEFAULT_ROUND_BYTES = 512 << 20
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_WAIT_STEP_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", metavar="TOPIC", action="append", required=True, help="repeatable")
    parser.add_argument(
        "--archive",
        metavar="ROOT",
        required=True,
        help="a folder that all executors see, or a URI such as s3://bucket/archive",
    )
    parser.add_argument(
        "--continuous", "--follow", action="store_true", help="go on until Ctrl-C, every --interval"
    )
    parser.add_argument(
        "--interval",
        metavar="TIME",
        type=_duration_ms,
        default=_duration_ms(DEFAULT_INTERVAL),
        help=f"with --continuous, the time from one look at the topics to the next (default {DEFAULT_INTERVAL}); "
        "each writes at least one file for every partition with new records",
    )
    parser.add_argument(
        "--starting-offsets",
        choices=("earliest", "latest"),
        default="earliest",
        help="where a partition that is not archived yet begins (default earliest)",
    )
    parser.add_argument(
        "--delete-archived-after",
        metavar="TIME",
        type=_duration_ms,
        help="delete records from the topic that are archived and older than this, such as 7d",
    )
    parser.add_argument(
        "--skip-lost",
        action="store_true",
        help="go on where offsets were deleted before they were archived; the manifest says which",
    )
    parser.add_argument(
        "--segments-path",
        metavar="DIRS",
        help="brokers' data directories, comma separated: sealed segments are read from there",
    )
    parser.add_argument(
        "--group", metavar="ID", help="the consumer group that shows the lag (default archive-ROOT)"
    )
    parser.add_argument(
        "--chunk-bytes", metavar="SIZE", type=_size, default=DEFAULT_CHUNK_BYTES,
        help="how much of a partition goes into a file at most, before compression (default 128MB)",
    )  # fmt: skip
    parser.add_argument(
        "--round-bytes", metavar="SIZE", type=_size, default=DEFAULT_ROUND_BYTES,
        help="how much of a partition is archived between two commits (default 512MB)",
    )  # fmt: skip


def check(options: argparse.Namespace) -> None:
    with open_cluster(options) as cluster:
        require_topics(cluster, options.topic)
        if options.delete_archived_after is not None:
            policies = Admin(cluster).topic_values(options.topic, "cleanup.policy")
            for topic, policy in policies.items():
                if policy and "delete" not in policy:
                    raise PipelineError(
                        f"--delete-archived-after: topic {topic} has cleanup.policy={policy}, and records are deleted "
                        "only from topics with delete; leave the option out"
                    )


def run(spark: SparkSession, options: argparse.Namespace, report: Progress) -> Summary:
    with open_cluster(options) as cluster:
        archiver = _Archiver(spark, options, report, cluster)
        try:
            archiver.run()
        except KeyboardInterrupt:
            report.is_interrupted = True
        return archiver.summary()


class _Archiver:
    def __init__(
        self, spark: SparkSession, options: argparse.Namespace, report: Progress, cluster: Cluster
    ) -> None:
        from tidemill.spark.source.archive import Archive
        from tidemill.spark.source.options import Query, SourceOptions

        self._spark = spark
        self._options = options
        self._report = report
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._archive: Archive = Archive(options.archive)
        self._name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._group = options.group or f"archive-{os.path.basename(self._archive.root.rstrip('/')) or 'root'}"
        source = {"subscribe": ",".join(options.topic), "kafka.isolation.level": "read_committed"}
        if options.segments_path:
            source |= {"scan": "segments", "segmentsPath": options.segments_path}
        self._source = SourceOptions.parse({**connection_options(options), **source}, Query.BATCH)
        self._manifests: dict[TopicPartition, Manifest] = {}
        self._ends: Mapping[TopicPartition, int] = {}
        self._deleted: dict[TopicPartition, int] = {}
        self._rows = self._bytes = self._files = self._rounds = 0
        self._removed = 0
        self._started_at = time.monotonic()

    def run(self) -> None:
        self._warn_of_retention()
        while True:
            self._claim_new()
            # Up to here, however fast the topics grow meanwhile.
            self._ends = self._admin.end_offsets(sorted(self._manifests), READ_COMMITTED)
            while self._round():
                pass
            if self._options.delete_archived_after is not None:
                self._delete_old()
            if not self._options.continuous:
                return
            self._wait()

    def _wait(self) -> None:
        until = time.monotonic() + self._options.interval / 1000
        while (left := until - time.monotonic()) > 0:
            self._show(f"archive: next in {left:.0f} s")
            time.sleep(min(left, _WAIT_STEP_S))

    # --- what there is ---

    def _claim_new(self) -> None:
        """Partitions of the topics that are not claimed yet: all at the start, and those that were added since."""
        self._cluster.forget()
        claimed = []
        for topic in self._options.topic:
            topic_id = uuid_text(self._cluster.retrying(partial(self._cluster.topic, topic)).topic_id)
            for partition in self._cluster.partitions_of(topic):
                if partition not in self._manifests:
                    claimed.append(self._archive.claim(partition, topic_id, self._name))
        self._manifests.update({manifest.partition: manifest for manifest in claimed})
        self._removed += self._archive.remove_unnamed(claimed)

    def _warn_of_retention(self) -> None:
        if self._options.delete_archived_after is None:
            return
        for key in ("retention.ms", "retention.bytes"):
            for topic, value in self._admin.topic_values(self._options.topic, key).items():
                if value not in (None, "-1"):
                    self._report.note(
                        f"topic {topic} has {key}={value}, which deletes records whether they are archived or not; "
                        f"`tidemill configs set topic {topic} {key}=-1` lets retention wait for the archive"
                    )

    # --- rounds ---

    def _round(self) -> bool:
        """Archives a part of what is new; whether there was anything."""
        shares = self._plan()
        if not shares:
            return False
        found: dict[int, list[Chunk]] = {}
        self._show("archive: writing")
        for number, chunk in self._write([works for _, works in shares]):
            found.setdefault(number, []).append(chunk)
        committed = {}
        for number, (lost, _) in enumerate(shares):
            chunks = sorted([*lost, *found.get(number, [])])
            partition = shares[number][1][0].partition
            self._manifests[partition] = self._archive.commit(self._manifests[partition], chunks)
            committed[partition] = self._manifests[partition].end_offset
            self._rows += sum(chunk.rows for chunk in chunks)
            self._bytes += sum(chunk.size_bytes for chunk in chunks)
            self._files += sum(len(chunk.files) for chunk in chunks)
        self._rounds += 1
        GroupAdmin(self._cluster).commit(self._group, committed)
        self._show("archive")
        return True

    def _plan(self) -> list[tuple[list[Chunk], list[Work]]]:
        """For each partition with something new: what is lost before it, and where to read it."""
        from tidemill.spark.source.offsets import OffsetRange
        from tidemill.spark.source.table import plan

        partitions = sorted(self._manifests)
        starts = self._admin.start_offsets(partitions)
        lost: dict[TopicPartition, list[Chunk]] = {}
        ranges = []
        for partition in partitions:
            start = self._manifests[partition].end_offset
            if start < 0:
                is_late = self._options.starting_offsets == "latest"
                start = self._ends[partition] if is_late else starts[partition]
            lost[partition] = self._lost(partition, start, starts[partition])
            ranges.append(OffsetRange(partition, max(start, starts[partition]), self._ends[partition]))
        works: dict[TopicPartition, list[Work]] = {}
        for work in plan(self._source, self._cluster, [each for each in ranges if each.size > 0]):
            works.setdefault(work.partition, []).append(work)
        return [(lost[partition], of_partition) for partition, of_partition in works.items()]

    def _lost(self, partition: TopicPartition, start: int, log_start: int) -> list[Chunk]:
        from tidemill.spark.source.archive import Chunk

        if start >= log_start:
            return []
        line = f"{partition}: offsets {start} to {log_start - 1} were deleted before they were archived"
        if not self._options.skip_lost:
            raise PipelineError(
                f"{line}; --skip-lost goes on at {log_start} (to keep this from happening, archive more often or set "
                "retention.ms=-1 and use --delete-archived-after)"
            )
        self._report.note(line)
        return [Chunk(start, log_start, (), is_lost=True)]

    def _write(self, shares: list[list[Work]]) -> Iterator[tuple[int, Chunk]]:
        """One task for each share."""
        from tidemill.spark.source.archive import parse_chunk

        task = partial(
            _write_numbered,
            self._archive.root,
            shares,
            self._options.chunk_bytes,
            self._options.round_bytes,
        )
        count = len(shares)
        numbers = self._spark.sparkContext.parallelize(range(count), count)
        for number, told in numbers.mapPartitions(task).collect():
            yield number, parse_chunk(json.loads(told))

    # --- what may go ---

    def _delete_old(self) -> None:
        """DeleteRecords up to the first chunk that is not old enough."""
        oldest_kept_ms = time.time() * 1000 - self._options.delete_archived_after
        starts = self._admin.start_offsets(list(self._manifests))
        before = {}
        for partition, manifest in self._manifests.items():
            end = -1
            for chunk in manifest.chunks:
                if chunk.max_timestamp_ms >= oldest_kept_ms:
                    break
                end = chunk.end_offset
            if end > starts[partition]:
                before[partition] = end
        if before:
            for partition, start in self._admin.delete_records(before).items():
                self._deleted[partition] = self._deleted.get(partition, 0) + start - starts[partition]

    # --- the report ---

    def _lag(self) -> int:
        return sum(
            max(0, end - max(0, self._manifests[partition].end_offset))
            for partition, end in self._ends.items()
        )

    def _show(self, phase: str) -> None:
        seconds = time.monotonic() - self._started_at
        self._report.show(phase, rows=self._rows, rows_per_s=self._rows / seconds, lag=self._lag())

    def summary(self) -> Summary:
        summary = Summary()
        summary.add("archive", self._archive.root)
        summary.add("records archived", self._rows)
        summary.add("files written", self._files)
        summary.add("bytes written", Bytes(self._bytes))
        summary.add("commits", self._rounds)
        if self._removed:
            summary.add("leftover files removed", self._removed)
        if self._deleted:
            summary.add("offsets deleted from topics", sum(self._deleted.values()))
        summary.add("seconds", round(time.monotonic() - self._started_at, 1))
        summary.add("consumer group", self._group)
        summary.add_table(
            "partitions",
            ["topic", "partition", "first offset", "end offset", "lag"],
            [
                [
                    *partition,
                    manifest.first_offset,
                    manifest.end_offset,
                    self._ends.get(partition, 0) - manifest.end_offset,
                ]
                for partition, manifest in sorted(self._manifests.items())
                if manifest.chunks
            ],
        )
        return summary


# --- in tasks ---


def _write_numbered(
    root: str, shares: Sequence[Sequence[Work]], chunk_bytes: int, round_bytes: int, numbers: Iterable[int]
) -> Iterator[tuple[int, str]]:
    """Archives the shares of these numbers, and yields each chunk as JSON."""
    from tidemill.spark.source.archive import Archive, chunk_values

    archive = Archive(root)
    for number in numbers:
        for chunk in write_share(archive, shares[number], chunk_bytes, round_bytes):
            yield number, json.dumps(chunk_values(chunk))


def write_share(
    archive: Archive, works: Sequence[Work], chunk_bytes: int, round_bytes: int
) -> Iterator[Chunk]:
    """The records of these works, which follow each other, as chunks; no more than about `round_bytes`."""
    partition, first = works[0].partition, works[0].start_offset
    batches: list[pa.RecordBatch] = []
    size = written = 0
    for work in works:
        for batch in _pieces(work.read(COLUMNS), chunk_bytes):
            batches.append(batch)
            size += batch.nbytes
            if size >= chunk_bytes:
                end = batch.column("offset")[-1].as_py() + 1
                yield archive.write_chunk(partition, first, end, batches)
                first, batches, size, written = end, [], 0, written + size
                if written >= round_bytes:
                    return
    if first < works[-1].end_offset:
        yield archive.write_chunk(partition, first, works[-1].end_offset, batches)


def _pieces(batches: Iterable[pa.RecordBatch], size_max: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = max(1, batch.num_rows * size_max // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _duration_ms(text: str) -> int:
    try:
        return 0 if text.strip() in ("0", "0s") else parse_duration_ms(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: it should be like 30s, 5m, 2h or 7d"
        ) from None


def _size(text: str) -> int:
    try:
        return int(parse_size(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size: it should be like 500KB or 128MB"
        ) from None
