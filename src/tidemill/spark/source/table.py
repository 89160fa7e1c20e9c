"""One read over archive, segments and the live log: which offsets come from where.

A range of offsets is cut at most twice. What the archive covers comes from there; what is left is the log's. With
`scan=segments` its sealed segments are read as files (rules in `segments`), and the rest is fetched from the broker.
The pieces share their borders, so there is no gap and no overlap, and nothing depends on what each holds: offsets alone
decide.

`startingOffsets=earliest` with an archive means the archive's first offset, and a timestamp is looked for in the
archive first. What neither has, because retention was faster than the archiver, is lost: an error that names the
offsets, or with `failOnDataLoss=false` the same line in the log.

Without `kafka.bootstrap.servers` (`plan_files`) a read ends where the sealed segments do, or the archive if there
is no `scan=segments`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.cluster import Cluster, PartitionAnswer
from tidemill.client.connections.connection import Connection
from tidemill.errors import ApiError, ConfigError, StorageError
from tidemill.protocol.api.data import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidemill.spark.source.archive import Archive, ArchiveWork, Chunk, Manifest, OffsetsNotArchived
from tidemill.spark.source.offsets import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Earliest,
    OffsetRange,
    Position,
    Subscription,
    split,
)
from tidemill.spark.source.options import SourceOptions
from tidemill.spark.source.segments import (
    SPLIT_BYTES,
    Leader,
    Replica,
    SegmentFolders,
    SegmentPart,
    SegmentWork,
)
from tidemill.spark.source.work import BrokerWork, Work, report_loss
from tidemill.types import TopicPartition, uuid_text

logger = logging.getLogger("tidemill.spark")


def plan(options: SourceOptions, cluster: Cluster, ranges: Sequence[OffsetRange]) -> list[Work]:
    """The tasks of a read, each partition's in order of their offsets."""
    return _Planner(options, cluster, sorted({each.partition for each in ranges})).plan(ranges)


def plan_files(options: SourceOptions) -> list[Work]:
    """As `plan`, without a broker, over the content of the files."""
    folders = SegmentFolders(options.segments_path) if options.segments_path else None
    archive = Archive(options.archive) if options.archive else None
    held = {each for topic in archive.topics() for each in archive.partitions(topic)} if archive else set()
    held.update(each for of_topic in (folders.topics() if folders else {}).values() for each in of_topic)
    partitions = sorted(each for each in held if _is_subscribed(options.subscription, each))
    if not partitions:
        raise ConfigError(
            f"the files hold no topic {options.subscription}; is this the right segmentsPath or archive?"
        )
    planner = _Planner(options, None, partitions, folders)
    return planner.plan([planner.held_range(each) for each in partitions])


def _topics_that_hide(cluster: Cluster, names: set[str]) -> set[str]:
    """Returns the topics whose files may hold delayed records that wait. Only the broker leaves these out."""
    # The module loads all definitions of settings, which few queries need.
    from tidemill.config import DELAYS_ENABLE

    admin = Admin(cluster)
    values = admin.topic_values(sorted(names), DELAYS_ENABLE)
    hiding = {name for name, value in values.items() if value == "true"}
    for name in names - values.keys():
        # A broker without this key has no delayed records; one that does not show it may have.
        try:
            admin.describe_configs(ResourceType.TOPIC, name)
        except ApiError:
            hiding.add(name)
    return hiding


class _Planner:
    def __init__(
        self,
        options: SourceOptions,
        cluster: Cluster | None,
        partitions: list[TopicPartition],
        folders: SegmentFolders | None = None,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._partitions = partitions
        self._archive = Archive(options.archive) if options.archive else None
        self._manifests = dict(self._open_manifests(self._archive)) if self._archive else {}
        if cluster is not None and options.scan == "segments" and partitions:
            folders = SegmentFolders(options.segments_path or _data_dirs(cluster))
            hiding = _topics_that_hide(cluster, {each.topic for each in partitions})
            self._partitions = [each for each in partitions if each.topic not in hiding]
        self._replicas = dict(self._open_replicas(folders)) if folders else {}
        # Only a read that leaves a range to the archive needs to know where the log begins.
        self._log_starts = (
            Admin(cluster).start_offsets(list(self._manifests))
            if cluster is not None and self._manifests
            else {each: replica.first_offset for each, replica in self._replicas.items()}
        )

    def plan(self, ranges: Iterable[OffsetRange]) -> list[Work]:
        works: list[Work] = []
        for each in sorted(ranges):
            works += self._works(each)
        live = [each for each in works if isinstance(each, BrokerWork)]
        parts = split(
            [OffsetRange(each.partition, each.start_offset, each.end_offset) for each in live],
            partition_count_min=self._options.partition_count_min - (len(works) - len(live)),
            records_max=self._options.records_per_partition_max,
        )
        others = [each for each in works if not isinstance(each, BrokerWork)]
        return sorted(
            [*others, *(self._broker_work(*part[:3]) for part in parts)],
            key=lambda each: (each.partition, each.start_offset),
        )

    def held_range(self, partition: TopicPartition) -> OffsetRange:
        """Returns the range that a query without brokers reads of a partition."""
        manifest, replica = self._manifests.get(partition), self._replicas.get(partition)
        holders = [each for each in (manifest, replica) if each is not None]
        first = min((each.first_offset for each in holders), default=0)
        end = max((each.end_offset for each in holders), default=0)
        return OffsetRange(
            partition,
            _offset_of(self._options.starting, partition, first, self._options.starting_option),
            _offset_of(self._options.ending, partition, end, self._options.ending_option),
            isinstance(self._options.starting, Earliest),
        )

    def _works(self, wanted: OffsetRange) -> Iterator[Work]:
        manifest = self._manifests.get(wanted.partition)
        start, end = wanted.start_offset, wanted.end_offset
        if manifest is None or self._archive is None:
            yield from self._log_works(wanted.partition, start, end)
            return
        start = self._first_offset(wanted, self._archive, manifest)
        end = self._end_offset(wanted, self._archive, manifest)
        archive_start, archive_end = max(start, manifest.first_offset), min(end, manifest.end_offset)
        if archive_start >= archive_end:
            yield from self._log_works(wanted.partition, self._kept(wanted.partition, start, end), end)
            return
        if start < archive_start:
            kept = self._kept(wanted.partition, start, archive_start)
            yield from self._log_works(wanted.partition, kept, archive_start)
        yield from archive_works(
            self._archive,
            manifest,
            archive_start,
            archive_end,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        if archive_end < end:
            kept = self._kept(wanted.partition, archive_end, end)
            yield from self._log_works(wanted.partition, kept, end)

    def _first_offset(self, wanted: OffsetRange, archive: Archive, manifest: Manifest) -> int:
        if wanted.is_from_earliest:
            return min(wanted.start_offset, manifest.first_offset)
        timestamp_ms = _timestamp_of(self._options.starting, wanted.partition)
        found = None if timestamp_ms is None else archive.offset_at(manifest, timestamp_ms)
        return wanted.start_offset if found is None else min(wanted.start_offset, found)

    def _end_offset(self, wanted: OffsetRange, archive: Archive, manifest: Manifest) -> int:
        timestamp_ms = _timestamp_of(self._options.ending, wanted.partition)
        found = None if timestamp_ms is None else archive.offset_at(manifest, timestamp_ms)
        return wanted.end_offset if found is None else min(wanted.end_offset, found)

    def _kept(self, partition: TopicPartition, start: int, end: int) -> int:
        """Returns the offset at which the log can go on; reports the records before it as lost."""
        log_start = self._log_starts.get(partition, start)
        if start >= log_start or start >= end:
            return start
        report_loss(
            f"{partition}: offsets {start} to {min(log_start, end) - 1} are neither in the archive {self._options.archive} "
            f"nor in the log, which begins at offset {log_start}: they were deleted before they were archived",
            is_error=self._options.fail_on_data_loss,
        )
        return min(log_start, end)

    # --- the log ---

    def _log_works(self, partition: TopicPartition, start: int, end: int) -> Iterator[Work]:
        replica = self._replicas.get(partition)
        if replica is not None and start < end:
            file_start, file_end = max(start, replica.first_offset), min(end, replica.end_offset)
            works = self._segment_works(replica, file_start, file_end) if file_start < file_end else []
            if works:
                if start < file_start:
                    yield self._broker_work(partition, start, file_start)
                yield from works
                start = file_end
        if start < end:
            yield self._broker_work(partition, start, end)

    def _broker_work(self, partition: TopicPartition, start: int, end: int) -> BrokerWork:
        if self._cluster is None:
            raise OffsetsNotArchived(
                f"{partition}: offsets {start} to {end - 1} are in no archive and no sealed segment; "
                "set kafka.bootstrap.servers to read them from the live log"
            )
        return BrokerWork(
            partition, start, end, self._options.access, fail_on_data_loss=self._options.fail_on_data_loss
        )

    def _segment_works(self, replica: Replica, start: int, end: int) -> list[SegmentWork]:
        def fallback(start: int, end: int) -> BrokerWork | None:
            return None if self._cluster is None else self._broker_work(replica.partition, start, end)

        try:
            return segment_works(replica, start, end, self._options.access.isolation_level, fallback)
        except FileNotFoundError as gone:
            logger.warning("%s: %s was removed just now; the broker is asked", replica.partition, gone)
        except StorageError as damage:
            logger.warning("%s: %s; the broker is asked", replica.partition, damage)
        return []

    # --- what there is ---

    def _open_manifests(self, archive: Archive) -> Iterator[tuple[TopicPartition, Manifest]]:
        for partition in self._partitions:
            manifest = archive.manifest(partition)
            if manifest is None or not manifest.chunks:
                continue
            if self._cluster is not None:
                topic_id = _topic_id(self._cluster, partition.topic)
                if manifest.topic_id != topic_id:
                    raise StorageError(
                        f"{partition}: the archive {archive.root} is of a topic with id {manifest.topic_id}, the "
                        f"cluster's has id {topic_id}: it was deleted and created again (read the two one by one)"
                    )
            yield partition, manifest

    def _open_replicas(self, folders: SegmentFolders) -> Iterator[tuple[TopicPartition, Replica]]:
        isolation_level = self._options.access.isolation_level
        ends = Admin(self._cluster).end_offsets(self._partitions, isolation_level) if self._cluster else {}
        for partition in self._partitions:
            leader = None
            if self._cluster is not None:
                topic_id = _topic_id(self._cluster, partition.topic)
                leader = Leader(topic_id, ends[partition], _epoch_ends(self._cluster, partition))
            replica = folders.replica(partition, isolation_level, leader)
            if replica is not None:
                yield partition, replica


def _topic_id(cluster: Cluster, topic: str) -> str:
    return uuid_text(cluster.retrying(lambda: cluster.topic(topic)).topic_id)


def _epoch_ends(cluster: Cluster, partition: TopicPartition) -> Callable[[int], tuple[int, int]]:
    """Asks the leader where an epoch ended."""

    def ask(epoch: int) -> tuple[int, int]:
        wanted = OffsetForLeaderPartition(partition=partition.partition, leader_epoch=epoch)
        message = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic=partition.topic, partitions=[wanted])]
        )

        def answers(connection: Connection, _: object) -> Iterator[PartitionAnswer[tuple[int, int]]]:
            for topic in connection.request(message, OffsetForLeaderEpochResponse).topics:
                for each in topic.partitions:
                    yield PartitionAnswer(partition, each.error_code, (each.leader_epoch, each.end_offset))

        return cluster.per_leader([partition], answers)[partition]

    return ask


def _is_subscribed(subscription: Subscription, partition: TopicPartition) -> bool:
    if subscription.partitions:
        return partition in subscription.partitions
    return subscription.has_topic(partition.topic)


def _offset_of(position: Position, partition: TopicPartition, otherwise: int, option: str) -> int:
    """An offset as a user named it; timestamps are looked for later, in the archive."""
    if isinstance(position, AtOffsets):
        if partition not in position.offsets:
            raise ConfigError(
                f"{option} does not name {partition}; it should name every partition of the query"
            )
        offset = position.offsets[partition]
        return otherwise if offset < 0 else offset
    return otherwise


def segment_works(
    replica: Replica,
    start_offset: int,
    end_offset: int,
    isolation_level: int,
    fallback: Callable[[int, int], BrokerWork | None],
) -> list[SegmentWork]:
    """Shares of about `SPLIT_BYTES`: small segments are read together, large ones apart."""
    aborted = replica.aborted(start_offset, end_offset) if isolation_level else []
    works: list[SegmentWork] = []
    for parts in _grouped(replica.parts(start_offset, end_offset)):
        start, end = parts[0].start_offset, parts[-1].end_offset
        overlapping = [each for each in aborted if each.first_offset < end and each.last_offset >= start]
        works.append(SegmentWork(replica.partition, parts, replica.files, overlapping, fallback(start, end)))
    return works


def archive_works(
    archive: Archive, manifest: Manifest, start_offset: int, end_offset: int, *, fail_on_data_loss: bool
) -> list[ArchiveWork]:
    """Shares of about `SPLIT_BYTES` of files. Chunks that were lost are an error, or a line in the log."""
    works: list[ArchiveWork] = []
    chunks: list[Chunk] = []
    size = 0

    def close() -> None:
        if chunks:
            start, end = max(start_offset, chunks[0].first_offset), min(end_offset, chunks[-1].end_offset)
            works.append(ArchiveWork(manifest.partition, start, end, archive.root, chunks))

    for chunk in manifest.between(start_offset, end_offset):
        if chunk.is_lost:
            report_loss(
                f"{manifest.partition}: offsets {max(start_offset, chunk.first_offset)} to "
                f"{min(end_offset, chunk.end_offset) - 1} were deleted before they were archived in {archive.root}",
                is_error=fail_on_data_loss,
            )
        if chunks and size + chunk.size_bytes > SPLIT_BYTES:
            close()
            chunks, size = [], 0
        chunks.append(chunk)
        size += chunk.size_bytes
    close()
    return works


def _grouped(parts: Iterable[SegmentPart]) -> Iterator[list[SegmentPart]]:
    group: list[SegmentPart] = []
    size = 0
    for part in parts:
        length = part.end_position - part.position
        if group and size + length > SPLIT_BYTES:
            yield group
            group, size = [], 0
        group.append(part)
        size += length
    if group:
        yield group


def _timestamp_of(position: Position, partition: TopicPartition) -> int | None:
    match position:
        case AtTimestamp(timestamp_ms):
            return timestamp_ms
        case AtTimestamps(timestamps_ms):
            return timestamps_ms.get(partition)
    return None


def _data_dirs(cluster: Cluster) -> str:
    """Returns the data directories that the brokers report, for processes that have those files, too."""
    admin = Admin(cluster)
    paths = [found.log_dir for broker_id in cluster.broker_ids() for found in admin.log_dirs(broker_id)]
    if not paths:
        raise ConfigError("scan=segments: the brokers tell no data directory; set segmentsPath")
    return ",".join(dict.fromkeys(paths))
