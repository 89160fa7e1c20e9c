"""The part of the metrics that grows with the cluster, as text: a row for each topic, replica, and group's partition.

A node may have thousands of partitions, which is tens of thousands of lines. They are written here, straight from what
the loop knows and in turns with it. Both other ways cost its clients more. A thread would compete for the interpreter
for a good part of a second, and a snapshot for a later text is as long as the text. Everything else, which does not
grow, is in `exposition.py`.

A list of what to visit is taken at the beginning; what comes or goes between two turns is in the next text. Between looking
at a partition and writing its row there is no turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.broker.metrics import names
from tidemill.broker.status.lag import lags_of
from tidemill.coordinator.consumer_groups.machine import ConsumerGroup
from tidemill.coordinator.groups.classic import ClassicGroup
from tidemill.replication.share_messages import AcknowledgeType
from tidemill.security.quotas import CLIENT_ID, USER
from tidemill.types import NO_BROKER

if TYPE_CHECKING:
    from tidemill.broker.partitions.partition import Partition
    from tidemill.broker.requests.context import Broker
    from tidemill.coordinator.groups.group import Group
    from tidemill.coordinator.groups.machine import Groups
    from tidemill.protocol.share_state import SharePartitionKey

# Rows written in one turn of the loop: about a millisecond.
_TURN_ROWS = 100
# For partitions that only have to be counted.
_TURN_COUNTED = 5_000
# Rows of one metric in one part of the text: about a quarter of a megabyte.
_PART_ROWS = 4_000
# A gap is no record.
_SHOWN_ACKNOWLEDGEMENTS = [each for each in AcknowledgeType if each is not AcknowledgeType.GAP]


@dataclass(slots=True)
class Totals:
    """The totals that are counted while the rows are written."""

    partition_count: int = 0
    leader_count: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    offline_replicas: int = 0
    global_partition_count: int = 0
    offline_partitions: int = 0
    not_preferred: int = 0
    pending_delays: int = 0
    decommissioned: int = 0
    group_states: dict[str, int] = field(default_factory=dict)
    group_types: dict[str, int] = field(default_factory=dict)


class _Families:
    """Rows of several metrics with the same labels."""

    def __init__(self, metrics: Sequence[names.MetricName], kind: str) -> None:
        self._metrics = metrics
        self._kind = kind
        self._suffix = "_total" if kind == "counter" else ""
        self._rows: list[list[str]] = [[] for _ in metrics]

    def add(self, labels: str, values: Sequence[object]) -> None:
        """`labels` in their braces; None is a value that is not known."""
        suffix = self._suffix
        for metric, rows, value in zip(self._metrics, self._rows, values, strict=True):
            if value is not None:
                rows.append(f"{metric.name}{suffix}{labels} {value}\n")

    async def text(self) -> list[bytes]:
        parts = []
        for metric, rows in zip(self._metrics, self._rows, strict=True):
            name = metric.name + self._suffix
            parts.append(f"# HELP {name} {metric.help}\n# TYPE {name} {self._kind}\n".encode())
            for start in range(0, len(rows), _PART_ROWS):
                parts.append("".join(rows[start : start + _PART_ROWS]).encode())
                await asyncio.sleep(0)
        return parts


async def write_rows(broker: Broker, totals: Totals) -> list[bytes]:
    """The text, in parts; fills `totals`."""
    await _count_cluster(broker, totals)
    return [
        *await _topics(broker),
        *await _partitions(broker, totals),
        *await _groups(broker, totals),
        *await share_partition_rows(broker),
        *await _client_quotas(broker),
        *await _ip_quotas(broker),
    ]


async def _count_cluster(broker: Broker, totals: Totals) -> None:
    seen = 0
    for topic in list(broker.image.topics_by_name.values()):
        for state in topic.partitions:
            totals.offline_partitions += state.leader == NO_BROKER
            totals.not_preferred += state.leader != state.replicas[0]
        totals.global_partition_count += len(topic.partitions)
        seen += len(topic.partitions)
        if seen > _TURN_COUNTED:
            seen = 0
            await asyncio.sleep(0)


async def _topics(broker: Broker) -> list[bytes]:
    tables = (names.TOPIC_COUNTERS, names.VIEW_COUNTERS, names.DELAY_COUNTERS, names.SHRINK_COUNTERS)
    families = [(_Families(table, "counter"), [metric.source for metric in table]) for table in tables]
    for number, (name, counts) in enumerate(list(broker.metrics.topics.items()), 1):
        for family, sources in families:
            values = [getattr(counts, source) for source in sources]
            # Few topics are views or have delayed records: the others have no rows of these.
            if family is families[0][0] or any(values):
                family.add(f'{{topic="{name}"}}', values)
        if number % _TURN_ROWS == 0:
            await asyncio.sleep(0)
    return [part for family, _ in families for part in await family.text()]


async def _partitions(broker: Broker, totals: Totals) -> list[bytes]:
    led = _Families(names.PARTITION_GAUGES, "gauge")
    replicas = _Families(names.REPLICA_GAUGES, "gauge")
    topics = _Families((names.TOPIC_PARTITIONS,), "gauge")
    delays = _Families(names.DELAY_GAUGES, "gauge")
    for number, partition in enumerate(list(broker.replicas.partitions()), 1):
        totals.partition_count += 1
        if partition.log is None:
            totals.offline_replicas += 1
            continue
        labels = f'{{topic="{partition.name.topic}",partition="{partition.index}"}}'
        replicas.add(labels, (partition.log.size,))
        if partition.is_leader and partition.image is not None:
            led.add(labels, _led_values(partition, totals))
            totals.decommissioned += partition.appender.is_decommissioned
            if partition.config.tidemill_delays_enable:
                delays.add(labels, _delay_values(partition, totals))
            if partition.index == 0:
                topic = broker.image.topics_by_name.get(partition.name.topic)
                known = len(topic.partitions) if topic is not None else None
                topics.add(f'{{topic="{partition.name.topic}"}}', (known,))
        if number % _TURN_ROWS == 0:
            await asyncio.sleep(0)
    return [*await led.text(), *await replicas.text(), *await topics.text(), *await delays.text()]


def _delay_values(partition: Partition, totals: Totals) -> tuple[object, ...]:
    """In the order of `DELAY_GAUGES`."""
    pending_count, next_due_ms = partition.delivery.pending_count, partition.delivery.next_due_ms
    totals.pending_delays += pending_count
    return pending_count, None if next_due_ms is None else next_due_ms / 1000


def _led_values(partition: Partition, totals: Totals) -> tuple[int, ...]:
    """In the order of `PARTITION_GAUGES`."""
    log, image = partition.log, partition.image
    assert log is not None
    assert image is not None
    replicas, in_sync, least = len(image.replicas), len(image.isr), partition.config.min_insync_replicas
    is_under = int(in_sync < replicas)
    # Kafka calls a partition with fewer replicas than the minimum under it, too.
    is_under_min, is_at_min = int(in_sync < least), int(in_sync == least)
    totals.leader_count += 1
    totals.under_replicated += is_under
    totals.under_min_isr += is_under_min
    totals.at_min_isr += is_at_min
    return (
        partition.high_watermark,
        log.log_start_offset,
        image.leader,
        int(image.leader == image.replicas[0]),
        replicas,
        in_sync,
        is_under,
        replicas,
        in_sync,
        is_under,
        is_under_min,
        is_at_min,
    )


async def _groups(broker: Broker, totals: Totals) -> list[bytes]:
    partitions = _Families(names.GROUP_PARTITION_GAUGES, "gauge")
    topics = _Families(names.GROUP_TOPIC_GAUGES, "gauge")
    members = _Families((names.GROUP_MEMBERS,), "gauge")
    listed = [
        (machine, group) for machine in broker.groups.runtime.machines() for group in machine.groups.values()
    ]
    written = 0
    for machine, group in listed:
        totals.group_states[group.state] = totals.group_states.get(group.state, 0) + 1
        totals.group_types[group.type.value] = totals.group_types.get(group.type.value, 0) + 1
        written += 1 + _add_group(broker, machine, group, (partitions, topics, members))
        if written > _TURN_ROWS:
            written = 0
            await asyncio.sleep(0)
    return [*await partitions.text(), *await topics.text(), *await members.text()]


def _add_group(
    broker: Broker, machine: Groups, group: Group, families: tuple[_Families, _Families, _Families]
) -> int:
    """Returns how many rows it has by partition."""
    partitions, topics, members = families
    label = f'consumergroup="{_escaped(group.group_id)}"'
    if isinstance(group, ClassicGroup | ConsumerGroup):
        members.add(f"{{{label}}}", (len(group.members),))
    sums: dict[str, list[int]] = {}
    rows = 0
    for row in lags_of(machine, group, broker.replicas):
        rows += 1
        values = (row.committed_offset, row.lag)
        partitions.add(f'{{{label},topic="{row.topic}",partition="{row.partition}"}}', values)
        summed = sums.setdefault(row.topic, [0, 0])
        summed[0] += row.committed_offset or 0
        summed[1] += row.lag or 0
    for topic, totals in sums.items():
        topics.add(f'{{{label},topic="{topic}"}}', totals)
    return rows


async def share_partition_rows(broker: Broker) -> list[bytes]:
    gauges = _Families(names.SHARE_PARTITION_GAUGES, "gauge")
    for led in broker.share.led():
        machine, topic = led.machine, broker.image.topics_by_id.get(led.key.topic_id)
        if machine is not None and topic is not None:
            found = machine.in_flight_counts()
            available = found.waiting + max(0, led.visible_end - machine.end_offset)
            gauges.add(
                f"{{{_share_label(led.key, topic.name)}}}",
                (machine.open_count, found.acquired, available, found.owed, len(found.by_deliveries)),
            )
            await asyncio.sleep(0)
    counters = _Families(names.SHARE_PARTITION_COUNTERS, "counter")
    acknowledgements = _Families((names.SHARE_ACKNOWLEDGEMENTS,), "counter")
    for number, (key, counts) in enumerate(broker.share.counted(), 1):
        topic = broker.image.topics_by_id.get(key.topic_id)
        if topic is not None:
            label = _share_label(key, topic.name)
            counters.add(
                f"{{{label}}}", [getattr(counts, each.source) for each in names.SHARE_PARTITION_COUNTERS]
            )
            for kind in _SHOWN_ACKNOWLEDGEMENTS:
                acknowledgements.add(f'{{{label},type="{kind.name.lower()}"}}', (counts.acknowledged[kind],))
        if number % _TURN_ROWS == 0:
            await asyncio.sleep(0)
    return [*await gauges.text(), *await counters.text(), *await acknowledgements.text()]


def _share_label(key: SharePartitionKey, topic: str) -> str:
    return f'group="{_escaped(key.group_id)}",topic="{topic}",partition="{key.partition}"'


async def _client_quotas(broker: Broker) -> list[bytes]:
    """A row for each entity that is measured; a label of a part that it does not have is empty, as in Kafka."""
    families = {pair[0].source: _Families(pair, "gauge") for pair in names.QUOTA_GAUGES}
    sensors = [] if broker.quotas is None else broker.quotas.sensors()
    for number, (kind, entity, sensor) in enumerate(sensors, 1):
        parts = dict(entity.parts)
        user, client_id = (_escaped(parts.get(each) or "") for each in (USER, CLIENT_ID))
        steady_ms = broker.clock.steady_ms()
        families[kind].add(
            f'{{user="{user}",client_id="{client_id}"}}',
            (sensor.rate.per_second(steady_ms), sensor.average_throttle_ms(steady_ms)),
        )
        if number % _TURN_ROWS == 0:
            await asyncio.sleep(0)
    return [part for each in families.values() for part in await each.text()]


async def _ip_quotas(broker: Broker) -> list[bytes]:
    """A row for each address with a quota."""
    family = _Families(names.IP_QUOTA_GAUGES, "gauge")
    for number, (address, sensor) in enumerate(broker.connection_rates.sensors(), 1):
        steady_ms = broker.clock.steady_ms()
        family.add(
            f'{{ip="{_escaped(address)}"}}',
            (sensor.rate.per_second(steady_ms), sensor.average_throttle_ms(steady_ms)),
        )
        if number % _TURN_ROWS == 0:
            await asyncio.sleep(0)
    return await family.text()


def client_rows(series: Sequence[tuple[Mapping[str, str], str, str, float]]) -> bytes:
    """Returns the rows of metrics that clients pushed. Runs in a thread: they may be many."""
    metric = names.CLIENT_METRIC
    lines = [f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} gauge\n"]
    for facts, name, attributes, value in series:
        shown = (name, attributes, *(facts[each] for each in names.CLIENT_METRIC_LABELS[2:]))
        labels = ",".join(
            f'{label}="{_escaped(text)}"'
            for label, text in zip(names.CLIENT_METRIC_LABELS, shown, strict=True)
        )
        lines.append(f"{metric.name}{{{labels}}} {value!r}\n")
    return "".join(lines).encode()


def _escaped(text: str) -> str:
    """Group ids may be anything; names of topics need no escape."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
