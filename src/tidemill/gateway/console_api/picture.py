"""One picture of a cluster: what its brokers said, put together, and what follows from it.

Everything here is a value: nothing is changed once it is made, so that any number of requests may read a picture while
the next one is taken. `cluster_view` decides when to refresh; this module knows no broker and no clock.

A picture is made of facts that have different ages, because some are dearer than others. What was not learned is None,
never zero: a size that no broker reported is not an empty partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from tidemill.client.admin.cluster import Quorum
from tidemill.client.admin.health import (
    OFFLINE,
    OK,
    UNDER_REPLICATED,
    BrokerFact,
    BrokerState,
    Health,
    Severity,
    counted,
    examples,
    judge,
    quorum_symptoms,
    state_of,
)
from tidemill.client.admin.lag import lag_of, partitions_to_read
from tidemill.client.admin.share_groups import deliveries_text
from tidemill.gateway.cluster.facts import ByPartition, GroupFact, Topology
from tidemill.protocol.api.cluster import MetadataResponsePartition, MetadataResponseTopic
from tidemill.types import TopicPartition

Row = dict[str, Any]

STATES = (OK, UNDER_REPLICATED, OFFLINE)


class Traffic(NamedTuple):
    """Bytes since the brokers started, over all brokers that report them."""

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
    severity: Severity
    text: str


@dataclass(frozen=True)
class Picture:
    as_of_ms: int
    topology: Topology
    end_offsets: ByPartition = field(default_factory=dict)
    start_offsets: ByPartition = field(default_factory=dict)
    # By broker, then as above; a broker that did not answer is missing.
    sizes: Mapping[int, ByPartition] = field(default_factory=dict)
    # Brokers that do not answer, and why; `min.insync.replicas` of the topics.
    silent: Mapping[int, str] = field(default_factory=dict)
    minima: Mapping[str, int] = field(default_factory=dict)
    quorum: Quorum | None = None
    groups: Mapping[str, GroupFact] = field(default_factory=dict)
    rates: Rates = field(default_factory=Rates)
    topic_rates: Mapping[str, float] = field(default_factory=dict)
    # Beyond what the facts show: what did not answer, what got worse.
    findings: tuple[ProblemText, ...] = ()
    # Grow whenever something of it changed.
    topics_version: int = 0
    groups_version: int = 0

    @cached_property
    def health(self) -> Health:
        return judge(self.topology.brokers, self.topology.topics.values(), self.minima, self.silent)

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
        states = self.health.brokers
        gone = [
            BrokerFact(each, "", -1, None, True)
            for each, state in states.items()
            if state is BrokerState.GONE
        ]
        return tuple(
            {
                "id": broker.id,
                "host": broker.host,
                "port": broker.port,
                "rack": broker.rack,
                "is_controller": broker.id == self.controller_id,
                "is_up": states[broker.id] is BrokerState.UP,
                "state": states[broker.id],
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
        in_flight = [each.in_flight.acquired for each in (group.shares or {}).values() if each.in_flight]
        return {
            "group_id": group.group_id,
            "state": group.state,
            "protocol": group.protocol,
            "members": len(group.members),
            "coordinator": group.coordinator,
            "lag": self.lag_of(group),
            "topics": sorted(topics_of(group)),
            "is_queue": group.shares is not None,
            "in_flight": sum(in_flight) if in_flight else None,
            "deliveries": deliveries_text(group.by_deliveries),
        }

    def share_rows(self, group: GroupFact) -> list[Row]:
        """Returns the rows of a share group, by partition."""
        sharing = Counter(each for member in group.members for each in member.assignment)
        rows = []
        for partition, each in sorted((group.shares or {}).items()):
            found = each.in_flight
            rows.append(
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "start": each.start_offset,
                    "end": self.end_of(partition),
                    "lag": each.lag,
                    "members": sharing[partition],
                    "in_flight": found.acquired if found else None,
                    "waiting": found.waiting if found else None,
                    "deliveries": deliveries_text(found.by_deliveries) if found else None,
                }
            )
        return rows

    def offset_rows(self, group: GroupFact) -> list[Row]:
        owners = {each: member for member in group.members for each in member.assignment}
        rows = []
        for partition in self._read_by(group):
            committed, end = group.committed.get(partition), self.end_of(partition)
            if committed is not None and end is not None:
                # End offsets and commits are requested at different moments.
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
        """The size on the leader's disk, or on another replica's while the leader is unknown."""
        for broker_id in (partition.leader_id, *partition.replica_nodes):
            size = self.sizes.get(broker_id, {}).get(topic, {}).get(partition.partition_index)
            if size is not None:
                return size
        return None

    def start_of(self, partition: TopicPartition) -> int | None:
        return self.start_offsets.get(partition.topic, {}).get(partition.partition)

    def lag_of(self, group: GroupFact) -> int | None:
        """The sum over the partitions that the group reads; None where nothing is known of any."""
        if group.shares is not None:
            return sum_known(each.lag for each in group.shares.values()) if group.shares else None
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

    @property
    def controller_id(self) -> int:
        """The quorum's leader. A KRaft broker names any broker in Metadata; only without a quorum that is the controller."""
        return self.topology.controller_id if self.quorum is None else self.quorum.leader_id

    @cached_property
    def overview(self) -> Row:
        rows = self.topic_rows
        return {
            "cluster_id": self.topology.cluster_id,
            "controller_id": self.controller_id if self.controller_id >= 0 else None,
            "totals": {
                "brokers": sum(state is BrokerState.UP for state in self.health.brokers.values()),
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
        symptoms = [*self.health.symptoms, *([] if self.quorum is None else quorum_symptoms(self.quorum))]
        found = [*self.findings, *(ProblemText(each.severity, f"{each.text}.") for each in symptoms)]
        dead = [group.group_id for group in self.groups.values() if group.state == "Dead"]
        if dead:
            found.append(ProblemText(Severity.WARNING, f"{counted(dead, 'group')} dead: {examples(dead)}."))
        return sorted(found, key=lambda each: each.severity is not Severity.CRITICAL)


def topics_of(group: GroupFact) -> set[str]:
    """Returns the topics that a group reads or has read."""
    assigned = (each for member in group.members for each in member.assignment)
    return {each.topic for each in (*group.committed, *(group.shares or ()), *assigned)}


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


def stuck_group_problem(names: list[str]) -> ProblemText:
    return ProblemText(
        Severity.WARNING,
        f"{counted(names, 'group')} without members while the lag grows: {examples(names)}.",
    )


def sum_known(numbers: Iterable[int | None]) -> int | None:
    """Adds up the numbers that are known; None when none is, and there are some."""
    listed = list(numbers)
    known = [each for each in listed if each is not None]
    return sum(known) if known or not listed else None
