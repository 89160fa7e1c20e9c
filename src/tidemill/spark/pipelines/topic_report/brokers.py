"""Gets from the brokers what a report shows: offsets, sizes on disk, settings, and the lag of groups.

Nothing here reads a record. A broker that does not tell its sizes is no failure: the report says so and does without.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.errors import TidemillError
from tidemill.spark.pipelines import PipelineError
from tidemill.spark.pipelines.connecting import require_topics
from tidemill.spark.pipelines.topic_report.findings import Lag
from tidemill.types import TopicPartition

GROWTH_DAYS_MAX = 90
_NO_LIMIT = -1


@dataclass
class Log:
    """The brokers' facts about the chosen topics."""

    partition_counts: dict[str, int]
    replica_counts: dict[str, int]
    ranges: dict[TopicPartition, tuple[int, int]]
    record_spans: dict[str, int]
    """Offsets of the whole log by topic, also of what --last leaves out."""
    settings: dict[str, dict[str, str | None]]
    dirs: list[LogDir] = field(default_factory=list)
    is_disk_known: bool = True
    remarks: list[str] = field(default_factory=list)

    @property
    def record_count(self) -> int:
        """The number of offsets, those of compacted records and of transaction markers included."""
        return sum(end - start for start, end in self.ranges.values())

    def setting(self, topic: str, key: str) -> int | None:
        """Returns a limit of a topic; None when it has none."""
        text = self.settings[key].get(topic)
        return None if text is None or int(text) == _NO_LIMIT else int(text)


@dataclass
class LogDir:
    name: str
    usable_bytes: int
    sizes: dict[TopicPartition, int]


def ask_brokers(cluster: Cluster, chosen: Sequence[str] | None, last_ms: int | None, wall_ms: int) -> Log:
    """Reads the log of the chosen topics, or of all but internal ones, from the brokers."""
    admin = Admin(cluster)
    if chosen:
        names = list(dict.fromkeys(chosen))
        require_topics(cluster, names)
    else:
        names = [topic.name for topic in admin.topics() if topic.name and not topic.is_internal]
    topics = [admin.topic(name) for name in names]
    partitions = [
        TopicPartition(name, each.partition_index)
        for name, topic in zip(names, topics, strict=True)
        for each in topic.partitions
    ]
    if not partitions:
        raise PipelineError("there are no topics to report on; `tidemill topics create` makes one")
    starts, ends = admin.start_offsets(partitions), admin.end_offsets(partitions)
    firsts = admin.offsets_at(partitions, wall_ms - last_ms) if last_ms else starts
    spans: dict[str, int] = defaultdict(int)
    for partition in partitions:
        spans[partition.topic] += ends[partition] - starts[partition]
    log = Log(
        {name: len(topic.partitions) for name, topic in zip(names, topics, strict=True)},
        {
            name: max(len(each.replica_nodes) for each in topic.partitions)
            for name, topic in zip(names, topics, strict=True)
        },
        {each: (max(starts[each], firsts[each]), ends[each]) for each in partitions},
        spans,
        {
            key: admin.topic_values(names, key)
            for key in ("cleanup.policy", "retention.ms", "retention.bytes")
        },
    )
    _ask_disks(admin, log, partitions)
    return log


def _ask_disks(admin: Admin, log: Log, partitions: list[TopicPartition]) -> None:
    wanted = set(partitions)
    try:
        for broker_id in admin.cluster.broker_ids():
            for each in admin.log_dirs(broker_id, partitions):
                sizes = {
                    TopicPartition(topic.name, found.partition_index): found.partition_size
                    for topic in each.topics
                    for found in topic.partitions
                }
                known = {partition: size for partition, size in sizes.items() if partition in wanted}
                log.dirs.append(LogDir(f"broker {broker_id}, {each.log_dir}", each.usable_bytes, known))
    except TidemillError as error:
        log.dirs.clear()
        log.is_disk_known = False
        log.remarks.append(
            f"Sizes on disk are not known ({error}); those of keys and values stand in for them."
        )


def lags(cluster: Cluster, log: Log) -> list[Lag]:
    """Returns the lag of every group in the partitions of these topics that it has committed or is assigned."""
    admin = GroupAdmin(cluster)
    found: list[Lag] = []
    for listed in admin.groups():
        if listed.group_type.lower() not in ("classic", "consumer", ""):
            continue
        group = admin.describe(listed.group_id)
        found += [
            Lag(
                group.group_id, *each.partition, each.committed_offset, each.end_offset, each.lag, group.state
            )
            for each in admin.lags(group)
            if each.partition.topic in log.partition_counts
        ]
    return found
