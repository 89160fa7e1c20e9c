"""Share groups: throughput, the time of an acknowledgement, and how evenly members share the records."""

from __future__ import annotations

import itertools
from functools import partial

from bench.brokers import Broker
from bench.cases import KB, LiveCase, Scale, size_text, topic
from bench.load import measure
from bench.processes import Metrics
from bench.share_loads import AcknowledgeLatency, ConfluentThroughput, Fairness, RawThroughput

FAMILY = "shares"
PARTITIONS = 3
MEMBERS = 6
# A share of what a plain fetch moves in the same time: each record is locked, acknowledged and written down.
THROUGHPUT_PART = 8
ACKNOWLEDGE_PART = 5
FAIRNESS_BATCH = 1_000
WORK_S = 0.0005
JOIN_S = 12.0
_group_numbers = itertools.count(1)


def cases(scale: Scale) -> list[LiveCase]:
    size = scale.throughput_bytes // THROUGHPUT_PART
    raw = [
        LiveCase(
            FAMILY,
            f"{size_text(value)} messages, {members} raw member{'s' if members > 1 else ''}",
            partial(_raw, size // value // (1 if value >= KB else 2), value, members),
            written_bytes=size,
        )
        for value in (KB, 100)
        for members in (1, MEMBERS)
    ]
    librdkafka = LiveCase(
        FAMILY,
        f"{size_text(KB)} messages, confluent-kafka",
        partial(_confluent, size // KB, KB),
        written_bytes=size,
    )
    acknowledge = LiveCase(
        FAMILY,
        "acknowledge one record a request",
        partial(_acknowledge, scale.small_requests // ACKNOWLEDGE_PART),
    )
    batches = 2 if scale.is_quick else 4
    fairness = [
        LiveCase(
            FAMILY,
            f"{MEMBERS} members over {PARTITIONS} partitions, {client}",
            partial(_fairness, batches * PARTITIONS * FAIRNESS_BATCH, client == "confluent-kafka"),
        )
        for client in ("tidemill", "confluent-kafka")
    ]
    return [*raw, librdkafka, acknowledge, *fairness]


def _group() -> str:
    return f"bench-shares-{next(_group_numbers)}"


def _raw(messages: int, value_bytes: int, members: int, broker: Broker) -> Metrics:
    with topic(broker, PARTITIONS) as name:
        return measure(
            RawThroughput(
                broker.bootstrap,
                broker.pids,
                topic=name,
                group=_group(),
                partitions=PARTITIONS,
                members=members,
                messages=messages,
                value_bytes=value_bytes,
            )
        )


def _confluent(messages: int, value_bytes: int, broker: Broker) -> Metrics:
    with topic(broker, PARTITIONS) as name:
        return measure(
            ConfluentThroughput(
                broker.bootstrap,
                broker.pids,
                topic=name,
                group=_group(),
                partitions=PARTITIONS,
                messages=messages,
                value_bytes=value_bytes,
            )
        )


def _acknowledge(requests: int, broker: Broker) -> Metrics:
    with topic(broker) as name:
        return measure(
            AcknowledgeLatency(broker.bootstrap, broker.pids, topic=name, group=_group(), requests=requests)
        )


def _fairness(messages: int, is_confluent: bool, broker: Broker) -> Metrics:
    with topic(broker, PARTITIONS) as name:
        return measure(
            Fairness(
                broker.bootstrap,
                broker.pids,
                topic=name,
                group=_group(),
                partitions=PARTITIONS,
                members=MEMBERS,
                messages=messages,
                per_batch=FAIRNESS_BATCH,
                is_confluent=is_confluent,
                work_s=WORK_S,
                join_s=JOIN_S,
            )
        )
