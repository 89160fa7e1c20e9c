"""The offsets that a query reads: places named by a user become ranges of offsets, and ranges become shares of tasks.

Offsets travel as Spark's Kafka source has them, `{"topic":{"0":12}}`, where 12 is the next offset to read. In what a user
writes, -2 stands for the earliest offset and -1 for the latest. Who names offsets or timestamps names every partition of
the query, no more and no less: a partition that was forgotten would otherwise be read from somewhere by surprise.

`Log` is what a cluster holds for one query: which partitions belong to it and where they begin and end. An end is the high
watermark, or the last stable offset when only committed records are read.

Nothing here knows of options, tasks or Spark.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster, check, known_code
from tidemill.client.retry import UnknownTopic
from tidemill.errors import ConfigError, ErrorCode
from tidemill.protocol.isolation import READ_UNCOMMITTED
from tidemill.spark.source.java_regex import finder
from tidemill.types import TopicPartition

Offsets: TypeAlias = dict[TopicPartition, int]
# What Spark writes into its offset log and hands back.
OffsetsJson: TypeAlias = dict[str, dict[str, int]]

LATEST = -1
EARLIEST = -2

_OFFSETS_FORM = '{"topic":{"0":12,"1":-2}}, where -2 is the earliest offset and -1 the latest'
_TIMESTAMPS_FORM = '{"topic":{"0":1767225600000}}, in milliseconds since 1970'
_ASSIGN_FORM = '{"topic":[0,1]}'


class OffsetRange(NamedTuple):
    """The range of one partition that one query reads: [start_offset, end_offset)."""

    partition: TopicPartition
    start_offset: int
    end_offset: int
    # The user asked for everything from the first record on, wherever older records than the log's may lie.
    is_from_earliest: bool = False

    @property
    def size(self) -> int:
        return self.end_offset - self.start_offset


# --- which partitions ---


@dataclass(frozen=True)
class Subscription:
    """Exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def topic_names(self) -> tuple[str, ...]:
        """None for a pattern: whatever matches is there."""
        return self.topics or tuple(dict.fromkeys(each.topic for each in self.partitions))

    def has_topic(self, name: str) -> bool:
        """Whether any partition of this topic may be read."""
        return finder(self.pattern)(name) if self.pattern else name in self.topic_names

    def __repr__(self) -> str:
        """As Spark's Kafka source shows it."""
        kind = "Subscribe" if self.topics else "SubscribePattern" if self.pattern else "Assign"
        return f"{kind}[{self}]"

    def __str__(self) -> str:
        return ",".join(self.topics) or self.pattern or ",".join(map(str, self.partitions))


# --- which place in each ---


@dataclass(frozen=True)
class Earliest:
    pass


@dataclass(frozen=True)
class Latest:
    pass


@dataclass(frozen=True)
class AtOffsets:
    """Each partition at its own offset, LATEST and EARLIEST among them."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class AtTimestamps:
    """Each partition at the first record that is not older than its timestamp."""

    timestamps_ms: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class AtTimestamp:
    timestamp_ms: int


Position: TypeAlias = Earliest | Latest | AtOffsets | AtTimestamps | AtTimestamp


class Place(NamedTuple):
    """An offset, and whether it would be another one a moment later."""

    offset: int
    is_latest: bool = False
    is_earliest: bool = False


# --- JSON ---


def to_json(offsets: Mapping[TopicPartition, int]) -> OffsetsJson:
    """Always in the same order: Spark takes two offsets for equal when their texts are."""
    told: OffsetsJson = {}
    for partition in sorted(offsets):
        told.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return told


def from_json(told: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        TopicPartition(topic, int(index)): offset
        for topic, of_topic in told.items()
        for index, offset in of_topic.items()
    }


def parse_offsets(text: str, option: str) -> Position:
    """`earliest`, `latest`, or JSON."""
    match text.strip().lower():
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
    offsets = _parse_numbers(text, option, f"earliest, latest or {_OFFSETS_FORM}")
    for partition, offset in offsets.items():
        if offset < EARLIEST:
            raise ConfigError(
                f"{option}: {offset} is not an offset of {partition}; it should be {_OFFSETS_FORM}"
            )
    return AtOffsets(offsets)


def parse_timestamps(text: str, option: str) -> AtTimestamps:
    timestamps_ms = _parse_numbers(text, option, _TIMESTAMPS_FORM)
    for partition, timestamp_ms in timestamps_ms.items():
        if timestamp_ms < 0:
            raise ConfigError(
                f"{option}: {timestamp_ms} is not a time of {partition}; it should be {_TIMESTAMPS_FORM}"
            )
    return AtTimestamps(timestamps_ms)


def parse_partitions(text: str, option: str) -> tuple[TopicPartition, ...]:
    refusal = ConfigError(f"{option}: {text!r} does not name partitions; it should be like {_ASSIGN_FORM}")
    told = _parse_object(text, refusal)
    partitions: set[TopicPartition] = set()
    for topic, indexes in told.items():
        if not isinstance(indexes, list) or not all(type(each) is int and each >= 0 for each in indexes):
            raise refusal
        partitions.update(TopicPartition(topic, index) for index in indexes)
    if not partitions:
        raise refusal
    return tuple(sorted(partitions))


def _parse_numbers(text: str, option: str, form: str) -> Offsets:
    refusal = ConfigError(f"{option}: {text!r} is not understood; it should be {form}")
    told = _parse_object(text, refusal)
    numbers: Offsets = {}
    for topic, of_topic in told.items():
        if not isinstance(of_topic, dict):
            raise refusal
        for index, number in of_topic.items():
            if not index.isdecimal() or type(number) is not int:
                raise refusal
            numbers[TopicPartition(topic, int(index))] = number
    if not numbers:
        raise refusal
    return numbers


def _parse_object(text: str, refusal: ConfigError) -> dict[str, object]:
    try:
        told = json.loads(text)
    except ValueError:
        raise refusal from None
    if not isinstance(told, dict):
        raise refusal
    return told


# --- what the cluster holds ---


class Log:
    """The partitions of one query, as the cluster has them now."""

    def __init__(
        self, cluster: Cluster, subscription: Subscription, isolation_level: int = READ_UNCOMMITTED
    ) -> None:
        self.cluster = cluster
        self._admin = Admin(cluster)
        self._subscription = subscription
        self._isolation_level = isolation_level

    def partitions(self, gone: Collection[str] = ()) -> list[TopicPartition]:
        """All that exist now. A topic that was named and does not exist is an error, unless it may be `gone`."""
        wanted = self._subscription
        if wanted.pattern:
            return self._matching()
        found = self._existing(wanted.topic_names, gone)
        existing = {each for name, indexes in found.items() for each in _named(name, indexes)}
        if wanted.topics:
            return sorted(existing)
        for partition in wanted.partitions:
            if partition not in existing and partition.topic not in gone:
                raise UnknownTopic(f"there is no partition {partition}; assign names partitions that exist")
        return sorted(existing.intersection(wanted.partitions))

    def _matching(self) -> list[TopicPartition]:
        return sorted(
            partition
            for topic in self._admin.topics()
            if topic.name and not topic.is_internal and self._subscription.has_topic(topic.name)
            for partition in _named(topic.name, (each.partition_index for each in topic.partitions))
        )

    def _existing(self, names: Sequence[str], gone: Collection[str]) -> dict[str, list[int]]:
        response = self.cluster.retrying(lambda: self.cluster.load_metadata(names))
        found: dict[str, list[int]] = {}
        for topic in response.topics:
            name = topic.name or ""
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                if name in gone:
                    continue
                raise UnknownTopic(
                    f"there is no topic {name}; create it, or correct the option that names it"
                )
            check(topic.error_code, f"topic {name}: {known_code(topic.error_code).message}")
            found[name] = [each.partition_index for each in topic.partitions]
        return found

    def was_retired(self, partition: TopicPartition) -> bool:
        """Whether a partition that is gone was empty when its topic got fewer partitions."""
        from tidemill.config import PARTITIONS_FORMER

        return partition.partition < int(self._setting_of_source(partition.topic, PARTITIONS_FORMER) or 0)

    def first_offset(self, partition: TopicPartition) -> int:
        """The offset that a partition began with: where the one that had its number before ended, or 0."""
        from tidemill.config import PARTITIONS_ENDS

        ends = self._setting_of_source(partition.topic, PARTITIONS_ENDS)
        pairs = (each.split(":") for each in ends.split(",") if each)
        return {int(index): int(end) for index, end in pairs}.get(partition.partition, 0)

    def _setting_of_source(self, topic: str, name: str) -> str:
        """A setting of a topic, or of the source of a view; empty where it cannot be seen."""
        # The module loads all definitions of settings, which few queries need.
        from tidemill.config import VIEW_SOURCE

        source = self._admin.topic_values([topic], VIEW_SOURCE).get(topic) or topic
        return self._admin.topic_values([source], name).get(source) or ""

    def starts(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self._admin.start_offsets(list(partitions)) if partitions else {}

    def ends(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self._admin.end_offsets(list(partitions), self._isolation_level) if partitions else {}

    def find(
        self,
        partitions: Sequence[TopicPartition],
        position: Position,
        *,
        option: str,
        no_match_is_error: bool,
    ) -> dict[TopicPartition, Place]:
        """The offset of each partition; `no_match_is_error` where no record is as young as the timestamp."""
        match position:
            case Earliest():
                return self._find_offsets(dict.fromkeys(partitions, EARLIEST))
            case Latest():
                return self._find_offsets(dict.fromkeys(partitions, LATEST))
            case AtOffsets(offsets):
                check_complete(offsets, partitions, option)
                return self._find_offsets({each: offsets[each] for each in partitions})
            case AtTimestamps(timestamps_ms):
                check_complete(timestamps_ms, partitions, option)
                wanted_ms = {each: timestamps_ms[each] for each in partitions}
            case AtTimestamp(timestamp_ms):
                wanted_ms = dict.fromkeys(partitions, timestamp_ms)
        return self._find_timestamps(wanted_ms, option, no_match_is_error)

    def _find_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, Place]:
        starts = self.starts([each for each, offset in wanted.items() if offset == EARLIEST])
        ends = self.ends([each for each, offset in wanted.items() if offset == LATEST])
        places = {}
        for partition, offset in wanted.items():
            is_earliest, is_latest = partition in starts, partition in ends
            found = starts.get(partition, ends.get(partition, offset))
            places[partition] = Place(found, is_latest, is_earliest)
        return places

    def _find_timestamps(
        self, wanted_ms: Mapping[TopicPartition, int], option: str, no_match_is_error: bool
    ) -> dict[TopicPartition, Place]:
        found = self._admin.list_offsets(wanted_ms, self._isolation_level)
        too_old = [partition for partition, each in found.items() if each.offset < 0]
        if too_old and no_match_is_error:
            raise ConfigError(
                f"{option}: {too_old[0]} has no record as young as {wanted_ms[too_old[0]]} ms; choose an earlier time, "
                "or set startingOffsetsByTimestampStrategy=latest"
            )
        ends = self.ends(too_old)
        return {
            partition: Place(ends[partition], is_latest=True) if each.offset < 0 else Place(each.offset)
            for partition, each in found.items()
        }


def _named(topic: str, indexes: Iterable[int]) -> Iterable[TopicPartition]:
    return (TopicPartition(topic, index) for index in indexes)


def check_complete(
    named: Collection[TopicPartition], partitions: Collection[TopicPartition], option: str
) -> None:
    for problem, difference in (
        ("does not name", set(partitions) - set(named)),
        ("names, but the query does not read,", set(named) - set(partitions)),
    ):
        if difference:
            names = ", ".join(map(str, sorted(difference)))
            raise ConfigError(f"{option} {problem} {names}; it should name every partition of the query")


# --- how much at once ---


def limited(start: Offsets, ends: Offsets, limit: int) -> Offsets:
    """The ends of a share of about `limit` offsets, each partition's as large as its part of all that waits.

    As in Spark's source a partition with little gets at least one offset, so that it is never starved.
    """
    backlog = {each: ends[each] - start[each] for each in ends if ends[each] > start[each]}
    total = sum(backlog.values())
    if total <= limit:
        return dict(ends)
    shares = {each: max(1, limit * size // total) for each, size in backlog.items()}
    return {
        each: min(end, start[each] + shares[each]) if each in shares else end for each, end in ends.items()
    }


def split(
    ranges: Iterable[OffsetRange], *, partition_count_min: int = 0, records_max: int = 0
) -> list[OffsetRange]:
    """The non-empty ranges, cut where there should be more tasks than ranges; 0 sets no such bound.

    Large ranges are cut, small ones stay whole. With enough offsets there are at least `partition_count_min` parts.
    """
    whole = [each for each in ranges if each.size > 0]
    if records_max:
        whole = [part for each in whole for part in _cut(each, -(-each.size // records_max))]
    if len(whole) >= partition_count_min:
        return whole
    total = sum(each.size for each in whole)
    large = [each for each in whole if each.size * partition_count_min > total]
    counts = dict(zip(large, _shares(large, partition_count_min - len(whole) + len(large)), strict=True))
    return [part for each in whole for part in _cut(each, counts.get(each, 1))]


def _shares(ranges: Sequence[OffsetRange], count: int) -> list[int]:
    """`count` parts, or more where a range would get none, in proportion to the sizes: the largest remainders are
    rounded up."""
    total = sum(each.size for each in ranges)
    shares = [each.size * count // total for each in ranges]
    remainders = sorted(range(len(ranges)), key=lambda index: -(ranges[index].size * count % total))
    for index in remainders[: count - sum(shares)]:
        shares[index] += 1
    return [max(1, share) for share in shares]


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    count = min(count, whole.size)
    bounds = [whole.start_offset + whole.size * index // count for index in range(count + 1)]
    return [
        OffsetRange(whole.partition, bounds[index], bounds[index + 1], whole.is_from_earliest and not index)
        for index in range(count)
    ]
