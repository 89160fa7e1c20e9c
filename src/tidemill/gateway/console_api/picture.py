"""One picture of a cluster: what its brokers said, put together, and what follows from it.

Everything here is a value: nothing is changed once it is made, so that any number of requests may read a picture while
the next one is taken. `cluster_view` asks and decides when; this module knows no broker and no clock.

A picture is made of facts that have different ages, because some are dearer than others. What was not learned is None,
never zero: a size that no broker told is not an empty partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from tidemill.client.cluster_admin import Quorum
from tidemill.client.group_admin import GroupMember
from tidemill.client.lag import lag_of, partitions_to_read
from tidemill.protocol.api.cluster import MetadataResponsePartition, MetadataResponseTopic
from tidemill.types import TopicPartition

Row = dict[str, Any]
# By topic, then by partition.
ByPartition = Mapping[str, Mapping[int, int]]

CRITICAL, WARNING = "critical", "warning"
OK, UNDER_REPLICATED, OFFLINE = "ok", "under_replicated", "offline"
STATES = (OK, UNDER_REPLICATED, OFFLINE)
# So many names are given as examples of a problem.
_EXAMPLES_MAX = 3


class BrokerFact(NamedTuple):
    id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool


@dataclass(frozen=True)
class Topology:
    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerFact, ...]
    topics: Mapping[str, MetadataResponseTopic]

    @property
    def live_ids(self) -> list[int]:
        return [broker.id for broker in self.brokers if not broker.is_fenced]

    @cached_property
    def led(self) -> dict[int, dict[str, list[int]]]:
        """The partitions by leader and topic."""
        led: dict[int, dict[str, list[int]]] = {}
        for name, topic in self.topics.items():
            for each in topic.partitions:
                if each.leader_id >= 0:
                    led.setdefault(each.leader_id, {}).setdefault(name, []).append(each.partition_index)
        return led


class GroupFact(NamedTuple):
    """A group as its coordinator describes it, with what it has committed."""

    group_id: str
    state: str
    # The assignor, or the type of a group that has agreed on none.
    protocol: str
    coordinator: int
    members: tuple[GroupMember, ...]
    committed: Mapping[TopicPartition, int]


class Traffic(NamedTuple):
    """Bytes since the brokers started, over all brokers that tell."""

    bytes_in: int
    bytes_out: int


class Rates(NamedTuple):
    """Per second; None where there is nothing to count by."""

    records_in: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None

    def row(self) -> Row:
        return {
            "records_in_per_s": self.records_in,
            "bytes_in_per_s": self.bytes_in,
            "bytes_out_per_s": self.bytes_out,
        }


class ProblemText(NamedTuple):
    severity: str
    text: str


def state_of(partition: MetadataResponsePartition) -> str:
    if partition.leader_id < 0:
        return OFFLINE
    return UNDER_REPLICATED if len(partition.isr_nodes) < len(partition.replica_nodes) else OK


@dataclass(frozen=True)
class Picture:
    as_of_ms: int
    topology: Topology
    end_offsets: ByPartition = field(default_factory=dict)
    start_offsets: ByPartition = field(default_factory=dict)
    # By broker, then as above; a broker that did not tell is not there.
    sizes: Mapping[int, ByPartition] = field(default_factory=dict)
    quorum: Quorum | None = None
    groups: Mapping[str, GroupFact] = field(default_factory=dict)
    rates: Rates = field(default_factory=Rates)
    topic_rates: Mapping[str, float] = field(default_factory=dict)
    # Beyond what the facts show: what did not answer, what got worse.
    findings: tuple[ProblemText, ...] = ()
    # Grow whenever something of it changed.
    topics_version: int = 0
    groups_version: int = 0

    # --- rows ---

    @cached_property
    def topic_rows(self) -> tuple[Row, ...]:
        return tuple(self.topic_row(topic) for topic in self.topology.topics.values())

    def topic_row(self, topic: MetadataResponseTopic) -> Row:
        name = topic.name or ""
        states = Counter(map(state_of, topic.partitions))
        records = [self.record_count(name, each.partition_index) for each in topic.partitions]
        sizes = [self.size_of(name, each) for each in topic.partitions]
        return {
            "name": name,
            "is_internal": topic.is_internal,
            "partitions": len(topic.partitions),
            "replication_factor": max((len(each.replica_nodes) for each in topic.partitions), default=0),
            "records": sum_known(records),
            "bytes": sum_known(sizes),
            "under_replicated": states[UNDER_REPLICATED],
            "offline": states[OFFLINE],
            "records_in_per_s": self.topic_rates.get(name),
        }

    def partition_row(self, topic: str, partition: MetadataResponsePartition) -> Row:
        index = partition.partition_index
        return {
            "partition": index,
            "leader": partition.leader_id if partition.leader_id >= 0 else None,
            "leader_epoch": partition.leader_epoch,
            "replicas": partition.replica_nodes,
            "isr": partition.isr_nodes,
            "start_offset": self.start_offsets.get(topic, {}).get(index),
            "end_offset": self.end_offsets.get(topic, {}).get(index),
            "bytes": self.size_of(topic, partition),
            "state": state_of(partition),
        }

    @cached_property
    def broker_rows(self) -> tuple[Row, ...]:
        leaders: Counter[int] = Counter()
        replicas: Counter[int] = Counter()
        in_sync: Counter[int] = Counter()
        for topic in self.topology.topics.values():
            for each in topic.partitions:
                leaders[each.leader_id] += 1
                replicas.update(each.replica_nodes)
                in_sync.update(each.isr_nodes)
        known = {broker.id for broker in self.topology.brokers}
        gone = [BrokerFact(each, "", -1, None, True) for each in sorted(set(replicas) - known)]
        return tuple(
            {
                "id": broker.id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "is_controller": broker.id == self.topology.controller_id,
                "is_up": not broker.is_fenced,
                "leaders": leaders[broker.id],
                "replicas": replicas[broker.id],
                "out_of_sync": replicas[broker.id] - in_sync[broker.id],
                "bytes": self.broker_bytes.get(broker.id),
            }
            for broker in [*self.topology.brokers, *gone]
        )

    @cached_property
    def group_rows(self) -> tuple[Row, ...]:
        return tuple(self.group_row(group) for group in self.groups.values())

    def group_row(self, group: GroupFact) -> Row:
        topics = {each.topic for each in group.committed}
        topics.update(each.topic for member in group.members for each in member.assignment)
        return {
            "group_id": group.group_id,
            "state": group.state,
            "protocol": group.protocol,
            "members": len(group.members),
            "coordinator": group.coordinator,
            "lag": self.lag_of(group),
            "topics": sorted(topics),
        }

    def offset_rows(self, group: GroupFact) -> list[Row]:
        owners = {each: member for member in group.members for each in member.assignment}
        rows = []
        for partition in self._read_by(group):
            committed, end = group.committed.get(partition), self.end_of(partition)
            if committed is not None and end is not None:
                # Ends and commits are asked for at different moments.
                end = max(end, committed)
            owner = owners.get(partition)
            rows.append(
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "committed": committed,
                    "end": end,
                    "lag": lag_of(committed, self.start_of(partition), end),
                    "member_id": owner.member_id if owner else None,
                }
            )
        return rows

    # --- numbers ---

    def end_of(self, partition: TopicPartition) -> int | None:
        return self.end_offsets.get(partition.topic, {}).get(partition.partition)

    def record_count(self, topic: str, index: int) -> int | None:
        """Offsets that the partition spans: compaction and transactions make it less than that in records."""
        start = self.start_offsets.get(topic, {}).get(index)
        end = self.end_offsets.get(topic, {}).get(index)
        return None if start is None or end is None else max(0, end - start)

    def size_of(self, topic: str, partition: MetadataResponsePartition) -> int | None:
        """On the leader's disk; on any other that tells while there is no leader, or it does not."""
        for broker_id in (partition.leader_id, *partition.replica_nodes):
            size = self.sizes.get(broker_id, {}).get(topic, {}).get(partition.partition_index)
            if size is not None:
                return size
        return None

    def start_of(self, partition: TopicPartition) -> int | None:
        return self.start_offsets.get(partition.topic, {}).get(partition.partition)

    def lag_of(self, group: GroupFact) -> int | None:
        """The sum over the partitions that the group reads; None where nothing is known of any."""
        lags = [
            lag_of(group.committed.get(each), self.start_of(each), self.end_of(each))
            for each in self._read_by(group)
        ]
        return sum_known(lags) if lags else None

    def _read_by(self, group: GroupFact) -> list[TopicPartition]:
        assigned = (each for member in group.members for each in member.assignment)
        known = {*group.committed, *assigned}
        topics = self.topology.topics
        counts = {each.topic: len(topics[each.topic].partitions) for each in known if each.topic in topics}
        return partitions_to_read(known, counts)

    @cached_property
    def broker_bytes(self) -> dict[int, int]:
        return {
            broker_id: sum(sum(partitions.values()) for partitions in topics.values())
            for broker_id, topics in self.sizes.items()
        }

    # --- the whole ---

    @cached_property
    def overview(self) -> Row:
        rows = self.topic_rows
        return {
            "cluster_id": self.topology.cluster_id,
            "controller_id": self.topology.controller_id if self.topology.controller_id >= 0 else None,
            "totals": {
                "brokers": len(self.topology.live_ids),
                "topics": len(rows),
                "partitions": sum(row["partitions"] for row in rows),
                "under_replicated": sum(row["under_replicated"] for row in rows),
                "offline": sum(row["offline"] for row in rows),
                "groups": len(self.groups),
                "bytes": sum(self.broker_bytes.values()) if self.sizes else None,
            },
            "rates": self.rates.row(),
            "quorum": None if self.quorum is None else quorum_row(self.quorum),
            "problems": [each._asdict() for each in self.problems],
            "as_of_ms": self.as_of_ms,
        }

    @cached_property
    def problems(self) -> list[ProblemText]:
        found = [*self.findings, *_broker_problems(self), *_partition_problems(self)]
        if self.quorum is not None and self.quorum.leader_id < 0:
            found.append(
                ProblemText(
                    CRITICAL,
                    "The controller quorum has no leader: topics cannot be changed and no partition gets a new "
                    "leader. Start more than half of its voters.",
                )
            )
        dead = [group.group_id for group in self.groups.values() if group.state == "Dead"]
        if dead:
            found.append(ProblemText(WARNING, f"{_counted(dead, 'group')} dead: {_examples(dead)}."))
        return sorted(found, key=lambda each: each.severity != CRITICAL)


def quorum_row(quorum: Quorum) -> Row:
    leader_end = next(
        (each.log_end_offset for each in quorum.voters if each.replica_id == quorum.leader_id),
        quorum.high_watermark,
    )

    def replica(each: Any) -> Row:
        is_known = each.log_end_offset >= 0
        return {
            "id": each.replica_id,
            "log_end_offset": each.log_end_offset if is_known else None,
            "lag": max(0, leader_end - each.log_end_offset) if is_known else None,
            "last_caught_up_ms": each.last_caught_up_timestamp
            if each.last_caught_up_timestamp >= 0
            else None,
            "is_leader": each.replica_id == quorum.leader_id,
        }

    return {
        "leader_id": quorum.leader_id if quorum.leader_id >= 0 else None,
        "leader_epoch": quorum.epoch,
        "high_watermark": quorum.high_watermark,
        "voters": [replica(each) for each in quorum.voters],
        "observers": [replica(each) for each in quorum.observers],
    }


def _broker_problems(picture: Picture) -> list[ProblemText]:
    down = [row["id"] for row in picture.broker_rows if not row["is_up"]]
    if not down:
        return []
    names = ", ".join(map(str, down))
    what = f"Broker {names} is" if len(down) == 1 else f"Brokers {names} are"
    return [ProblemText(CRITICAL, f"{what} down or fenced: start it again, or unregister it for good.")]


def _partition_problems(picture: Picture) -> list[ProblemText]:
    offline, behind = [], []
    missing: Counter[int] = Counter()
    for name, topic in picture.topology.topics.items():
        for each in topic.partitions:
            state = state_of(each)
            if state == OFFLINE:
                offline.append(f"{name}-{each.partition_index}")
            elif state == UNDER_REPLICATED:
                behind.append(f"{name}-{each.partition_index}")
                missing.update(set(each.replica_nodes) - set(each.isr_nodes))
    found = []
    if offline:
        text = (
            f"{_counted(offline, 'partition')} offline, nobody can write or read: {_examples(offline)}. "
            "Start a broker that has an in-sync replica."
        )
        found.append(ProblemText(CRITICAL, text))
    if behind:
        brokers = ", ".join(str(broker) for broker, _ in missing.most_common(_EXAMPLES_MAX))
        text = (
            f"{_counted(behind, 'partition')} under-replicated, out of sync on broker {brokers}: "
            f"{_examples(behind)}."
        )
        found.append(ProblemText(WARNING, text))
    return found


def stuck_group_problem(names: list[str]) -> ProblemText:
    return ProblemText(
        WARNING,
        f"{_counted(names, 'group')} without members while the lag grows: {_examples(names)}. "
        "Start a consumer, or delete the group.",
    )


def _counted(names: list[str], noun: str) -> str:
    return f"1 {noun} is" if len(names) == 1 else f"{len(names)} {noun}s are"


def _examples(names: list[str]) -> str:
    shown = ", ".join(names[:_EXAMPLES_MAX])
    return shown if len(names) <= _EXAMPLES_MAX else f"{shown} and {len(names) - _EXAMPLES_MAX} more"


def sum_known(numbers: Iterable[int | None]) -> int | None:
    """Of those that are known; None when none is, and there are some."""
    listed = list(numbers)
    known = [each for each in listed if each is not None]
    return sum(known) if known or not listed else None
