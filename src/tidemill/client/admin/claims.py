"""Claims of a cluster from outside: which records have one, and the sweep of objects that no record refers to.

A scan reads topics as they are: uncommitted records, aborted ones and hidden ones count, because each may be read or is in
the log. It reads no view, since the view's source has all of it. When anything cannot be read the scan fails, so that the
sweep never takes a partial answer for a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tidemill.claims.claim import CLAIM_HEADERS, Place
from tidemill.claims.sweep import OWNER_KEY, Standing, Sweep
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.fetch import OffsetsLost, decoded, fetch_range
from tidemill.config import DELAYS_ENABLE, VIEW_SOURCE
from tidemill.errors import TidemillError
from tidemill.objects.store import ObjectInfo, ObjectNotFound, ObjectStore
from tidemill.protocol.isolation import READ_HIDDEN, READ_UNCOMMITTED
from tidemill.protocol.records import Record
from tidemill.types import TopicPartition

# Every topic has it, so a topic without it is one whose settings this client may not see.
_COMMON_KEY = "cleanup.policy"
_MARK = b"tidemill-claim-"

# Gets how many offsets are read, and of how many.
ShowProgress = Callable[[int, int], None]


def show_nothing(done: int, total: int) -> None:
    """For callers without a place to show progress."""


class SweepRefused(TidemillError):
    """The sweep cannot prove that objects are of no more use."""


class ClaimRecord(NamedTuple):
    """A record with headers of a claim."""

    place: Place
    record: Record


class ClaimScan:
    """Finds the records of topics that have headers of claims."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin = Admin(cluster)

    def topics(self) -> dict[str, bytes]:
        """The ids of all topics that hold records of users: no views, no internal topics."""
        ids = {
            each.name: each.topic_id for each in self._admin.topics() if each.name and not each.is_internal
        }
        views = self._admin.topic_values(list(ids), VIEW_SOURCE) if ids else {}
        return {name: topic_id for name, topic_id in ids.items() if not views.get(name)}

    def ends(self, topics: Iterable[str]) -> dict[TopicPartition, int]:
        partitions = [each for topic in topics for each in self._cluster.partitions_of(topic)]
        return self._admin.end_offsets(partitions) if partitions else {}

    def starts(self, topics: Iterable[str]) -> dict[TopicPartition, int]:
        partitions = [each for topic in topics for each in self._cluster.partitions_of(topic)]
        return self._admin.start_offsets(partitions) if partitions else {}

    def records(
        self,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        show: ShowProgress = show_nothing,
    ) -> Iterator[ClaimRecord]:
        """The records with claim headers between these offsets. What retention removes meanwhile is passed over."""
        levels = self._isolation_levels(sorted({each.topic for each in ends}))
        total = sum(max(0, end - starts.get(each, 0)) for each, end in ends.items())
        done = 0
        for partition, end in ends.items():
            position = start = starts.get(partition, 0)
            while position < end:
                try:
                    for answer in fetch_range(
                        self._cluster, partition, position, end, isolation_level=levels[partition.topic]
                    ):
                        for header, batch in answer.batches:
                            # Most batches have no claim: a search is much cheaper than decoding.
                            if header.codec or _MARK in bytes(batch):
                                for record in decoded(partition, header, batch):
                                    if start <= record.offset < end and _has_claim_header(record):
                                        yield ClaimRecord(Place(*partition, record.offset), record)
                        position = answer.next_offset
                        show(done + position - start, total)
                except OffsetsLost as lost:
                    position = lost.end_offset
            done += max(0, end - start)
        show(total, total)

    def _isolation_levels(self, topics: Sequence[str]) -> dict[str, int]:
        if not topics:
            return {}
        common = self._admin.topic_values(topics, _COMMON_KEY)
        for topic in topics:
            if topic not in common:
                raise SweepRefused(
                    f"the settings of topic {topic} cannot be read, so hidden records may be missed; "
                    "the user needs DescribeConfigs on it"
                )
        delays = self._admin.topic_values(topics, DELAYS_ENABLE)
        return {
            topic: READ_UNCOMMITTED | READ_HIDDEN if delays.get(topic) == "true" else READ_UNCOMMITTED
            for topic in topics
        }


class Swept(NamedTuple):
    """The objects that a sweep has found and may remove, with counts."""

    removable: list[ObjectInfo]
    # How many objects of each standing there are.
    standings: dict[Standing, int]
    claim_count: int


class Sweeper:
    """Carries out a sweep: `examine` decides, `remove` does."""

    def __init__(
        self, cluster: Cluster, store: ObjectStore, wall_ms: int, grace_ms: int, deleted_topics: bool
    ) -> None:
        self._scan = ClaimScan(cluster)
        self._store = store
        self._cluster_id = Admin(cluster).describe_cluster().cluster_id
        self._topics = self._scan.topics()
        self._sweep = Sweep(
            topics=frozenset(self._topics), wall_ms=wall_ms, grace_ms=grace_ms, deleted_topics=deleted_topics
        )
        self._read_up_to: dict[TopicPartition, int] = {}

    def examine(self, show: ShowProgress = show_nothing) -> Swept:
        """List the objects, then read every record. The other way round would miss records of objects that came between."""
        self._check_owner()
        standings = dict.fromkeys(Standing, 0)
        for found in self._store.list():
            if found.key != OWNER_KEY:
                standings[self._sweep.consider(found)] += 1
        claim_count = 0
        if standings[Standing.CANDIDATE]:
            claim_count = self._refer(self._scan.starts(self._topics), show)
        return Swept(self._sweep.removable, standings, claim_count)

    def _refer(self, starts: Mapping[TopicPartition, int], show: ShowProgress) -> int:
        count = 0
        ends = self._scan.ends(self._topics)
        for found in self._scan.records(starts, ends, show):
            self._sweep.refer(found.record.headers)
            count += 1
        self._read_up_to = ends
        return count

    def remove(self, show: ShowProgress = show_nothing) -> list[ObjectInfo]:
        """Remove what no record refers to, also not one that came since. Returns what was removed."""
        self._store.put_if_absent(OWNER_KEY, [self._cluster_id.encode()])
        self._check_owner()
        # Topics that came since are read from their beginning, also those that have the name of one that was read.
        before, self._topics = self._topics, self._scan.topics()
        known = {
            each: offset
            for each, offset in self._read_up_to.items()
            if before[each.topic] == self._topics.get(each.topic)
        }
        self._refer({**self._scan.starts(self._topics), **known}, show_nothing)
        removable = self._sweep.removable
        for number, found in enumerate(removable, 1):
            self._store.delete(found.key)
            show(number, len(removable))
        return removable

    def _check_owner(self) -> None:
        """The first cluster that sweeps a store is the only one that may."""
        try:
            with self._store.open(OWNER_KEY) as found:
                owner = b"".join(found.chunks).decode(errors="replace")[:100]
        except ObjectNotFound:
            return
        if owner != self._cluster_id:
            raise SweepRefused(
                f"{self._store.uri} is swept by the cluster {owner}, and this is {self._cluster_id}; records of the other "
                f"one may need the objects. If it does not exist any more, delete the object {OWNER_KEY}"
            )


def _has_claim_header(record: Record) -> bool:
    return any(header.key in CLAIM_HEADERS for header in record.headers)
