"""Judges the health of a cluster: the one judgement that `tidemill doctor`, `tidemill cluster status` and the console
show.

`judge` is a function of what brokers said: which brokers there are, which of them do not answer (`probes`), the partitions
and their `min.insync.replicas`, the quorum. `examine` requests all of that once. Callers that have the facts already (the
console) judge them themselves. A symptom has one sentence and one remedy, wherever it is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tidemill.client.admin.cluster import Quorum
from tidemill.client.admin.probes import ANSWER_S_MAX, Probes
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import Address
from tidemill.protocol.api.cluster import MetadataResponsePartition, MetadataResponseTopic
from tidemill.types import TopicPartition

MIN_ISR = "min.insync.replicas"
OK, UNDER_REPLICATED, OFFLINE = "ok", "under_replicated", "offline"
# So many names are given as examples of a symptom.
_EXAMPLES_MAX = 3
_CAUGHT_UP_MS_MAX = 10_000


class Severity(StrEnum):
    CRITICAL = "critical"
    WARNING = "warning"


class BrokerState(StrEnum):
    UP = "up"
    # The controller counts on it, and it does not answer.
    SILENT = "silent"
    FENCED = "fenced"
    # It holds replicas and is not registered.
    GONE = "gone"


class BrokerFact(NamedTuple):
    id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)


class PartitionFact(NamedTuple):
    """`min_in_sync` is None while the topic's setting is not known."""

    topic: str
    partition: int
    leader: int | None
    replicas: list[int]
    in_sync: list[int]
    min_in_sync: int | None

    @property
    def name(self) -> str:
        return str(TopicPartition(self.topic, self.partition))


class Symptom(NamedTuple):
    severity: Severity
    # What it is about: brokers, partitions or quorum.
    about: str
    text: str
    remedy: str

    @property
    def sentence(self) -> str:
        return f"{self.text}. {self.remedy[0].upper()}{self.remedy[1:]}."


@dataclass(frozen=True)
class Health:
    """`brokers` are the states by id, `silent` the reasons. A partition that lacks something may be in several lists."""

    brokers: Mapping[int, BrokerState]
    silent: Mapping[int, str]
    partition_count: int = 0
    offline: list[PartitionFact] = field(default_factory=list)
    led_by_silent: list[PartitionFact] = field(default_factory=list)
    under_min_isr: list[PartitionFact] = field(default_factory=list)
    under_replicated: list[PartitionFact] = field(default_factory=list)

    @property
    def symptoms(self) -> list[Symptom]:
        """The critical ones first."""
        found = [*_broker_symptoms(self), *_partition_symptoms(self)]
        return sorted(found, key=lambda each: each.severity is not Severity.CRITICAL)


def state_of(partition: MetadataResponsePartition) -> str:
    if partition.leader_id < 0:
        return OFFLINE
    return UNDER_REPLICATED if len(partition.isr_nodes) < len(partition.replica_nodes) else OK


def judge(
    brokers: Iterable[BrokerFact],
    topics: Iterable[MetadataResponseTopic],
    minima: Mapping[str, int],
    silent: Mapping[int, str],
) -> Health:
    states = {each.id: BrokerState.FENCED if each.is_fenced else BrokerState.UP for each in brokers}
    states |= {each: BrokerState.SILENT for each in silent if states.get(each) is BrokerState.UP}
    holders: set[int] = set()
    count = 0
    offline, led_by_silent, under_min_isr, under_replicated = [], [], [], []
    for topic in topics:
        minimum = minima.get(topic.name or "")
        count += len(topic.partitions)
        for each in topic.partitions:
            holders.update(each.replica_nodes)
            is_silent = states.get(each.leader_id) is BrokerState.SILENT
            state = state_of(each)
            if state == OK and not is_silent:
                continue
            fact = _fact(topic.name or "", each, minimum)
            if state == OFFLINE:
                offline.append(fact)
            elif is_silent:
                led_by_silent.append(fact)
            if fact.min_in_sync is not None and len(fact.in_sync) < fact.min_in_sync:
                under_min_isr.append(fact)
            if len(fact.in_sync) < len(fact.replicas):
                under_replicated.append(fact)
    states |= dict.fromkeys(sorted(holders - set(states)), BrokerState.GONE)
    silent = {each: why for each, why in silent.items() if states.get(each) is BrokerState.SILENT}
    return Health(states, silent, count, offline, led_by_silent, under_min_isr, under_replicated)


def _fact(topic: str, partition: MetadataResponsePartition, minimum: int | None) -> PartitionFact:
    return PartitionFact(
        topic,
        partition.partition_index,
        partition.leader_id if partition.leader_id >= 0 else None,
        partition.replica_nodes,
        partition.isr_nodes,
        # As the leader counts: more than there are replicas is never asked for.
        None if minimum is None else min(minimum, len(partition.replica_nodes)),
    )


def examine(cluster: Cluster) -> Health:
    """Examines the cluster and each of its brokers. It waits for none of them longer than a probe does."""
    admin = Admin(cluster)
    brokers = [
        BrokerFact(each.broker_id, each.host, each.port, each.rack, each.is_fenced)
        for each in admin.describe_cluster().brokers
    ]
    probes = Probes(cluster.open, min(ANSWER_S_MAX, cluster.timeout_s))
    try:
        silent = probes.silent({each.id: each.address for each in brokers if not each.is_fenced})
    finally:
        probes.close()
    topics = admin.topics()
    return judge(brokers, topics, minima(admin, [topic.name for topic in topics if topic.name]), silent)


def minima(admin: Admin, topics: Sequence[str]) -> dict[str, int]:
    """`min.insync.replicas` of each of the topics that exist."""
    values = admin.topic_values(topics, MIN_ISR) if topics else {}
    return {topic: int(text) for topic, text in values.items() if text}


# --- symptoms ---


def _broker_symptoms(health: Health) -> list[Symptom]:
    found = []
    for broker_id, reason in health.silent.items():
        found.append(
            Symptom(
                Severity.CRITICAL,
                "brokers",
                f"Broker {broker_id} does not answer ({reason})",
                "look whether it runs, and into its log; the controller gives its partitions to others when its "
                "session ends",
            )
        )
    down = [each for each, state in health.brokers.items() if state in (BrokerState.FENCED, BrokerState.GONE)]
    if down:
        what = "Broker {} is" if len(down) == 1 else "Brokers {} are"
        found.append(
            Symptom(
                Severity.CRITICAL,
                "brokers",
                f"{what.format(', '.join(map(str, down)))} down or fenced",
                "start it again, or unregister it for good",
            )
        )
    return found


def _partition_symptoms(health: Health) -> list[Symptom]:
    found = []
    for rows, what, remedy in (
        (
            health.offline,
            "offline and can neither be written nor read",
            "start a broker that has an in-sync replica; `tidemill topics elect --unclean` is the last resort",
        ),
        (
            health.led_by_silent,
            "led by a broker that does not answer and can neither be written nor read",
            "another replica that is in sync leads when the session of that broker ends",
        ),
        (
            health.under_min_isr,
            f"below {MIN_ISR}, so that acks=all is refused",
            "start the missing brokers, or move the replicas with `tidemill reassign`",
        ),
    ):
        if rows:
            names = [row.name for row in rows]
            text = f"{counted(names, 'partition')} {what}: {examples(names)}"
            found.append(Symptom(Severity.CRITICAL, "partitions", text, remedy))
    if health.under_replicated:
        rows = health.under_replicated
        missing = Counter(each for row in rows for each in row.replicas if each not in row.in_sync)
        brokers = ", ".join(str(broker) for broker, _ in missing.most_common(_EXAMPLES_MAX))
        names = [row.name for row in rows]
        found.append(
            Symptom(
                Severity.WARNING,
                "partitions",
                f"{counted(names, 'partition')} under-replicated, out of sync on broker {brokers}: {examples(names)}",
                "start the missing brokers, or wait until they have caught up; `tidemill cluster status` lists them",
            )
        )
    return found


def quorum_symptoms(quorum: Quorum) -> list[Symptom]:
    """A quorum without a leader, and voters that do not follow."""
    leader = next((each for each in quorum.voters if each.replica_id == quorum.leader_id), None)
    if leader is None:
        text = (
            "The controller quorum has no leader: topics cannot be changed and no partition gets a new leader"
        )
        return [Symptom(Severity.CRITICAL, "quorum", text, "start more than half of its voters")]
    # The leader is caught up with itself at any time, so this is its clock. Before version 1 nothing has a time.
    leader_wall_ms = leader.last_caught_up_timestamp
    late = []
    for voter in quorum.voters:
        caught_up_ms = voter.last_caught_up_timestamp
        if leader_wall_ms > 0 and (caught_up_ms <= 0 or leader_wall_ms - caught_up_ms > _CAUGHT_UP_MS_MAX):
            behind = leader.log_end_offset - voter.log_end_offset
            lag = "it never fetched" if voter.log_end_offset < 0 else f"{behind} behind"
            late.append(f"{voter.replica_id} ({lag})")
    if not late:
        return []
    spare = max(0, (len(quorum.voters) - 1) // 2 - len(late))
    text = (
        f"{len(late)} of {len(quorum.voters)} voters of the controller quorum do not follow: {', '.join(late)}; it "
        f"survives {spare} more failure{'' if spare == 1 else 's'}"
    )
    return [Symptom(Severity.WARNING, "quorum", text, "start them again, or look into their logs")]


def counted(names: Sequence[str], noun: str) -> str:
    return f"1 {noun} is" if len(names) == 1 else f"{len(names)} {noun}s are"


def examples(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_EXAMPLES_MAX])
    return shown if len(names) <= _EXAMPLES_MAX else f"{shown} and {len(names) - _EXAMPLES_MAX} more"
