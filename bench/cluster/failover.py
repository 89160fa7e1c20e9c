"""Failover: a leader is killed with `kill -9`, one broker after the other, under a steady producer.

A topic has a partition for each broker, which leads it when its turn comes (a preferred leader election sees to that).
So about every third kill also hits the active controller, the worst case. Two things are timed from the kill. The first
is the time without a writable leader: until a leader takes a write with acks=all from a probe that tries every 20 ms.
The second is what an application sees: until the producer gets the first ack of a message that it sent after the kill.
That is also timed from the last ack before. The killed broker is started again, and when all replicas are in sync the
next round begins. In the end everything is read back: each acknowledged message has to be there, once, in order.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Thread

from confluent_kafka import Consumer, ElectionType, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench import frames
from bench.apache_kafka import Node
from bench.cases import FreshCase, Scale
from bench.cluster.metadata import (
    await_partitions,
    create_replicated,
    describe,
    is_fully_in_sync,
    quorum_leader,
)
from bench.cluster.nodes import NODES, Cluster, ClusterTarget, with_cluster_target
from bench.connection import Connection, RequestFailedError
from bench.processes import Metrics
from bench.stats import percentile

TOPIC = "failover"
PARTITIONS = NODES
ROUNDS, QUICK_ROUNDS = 20, 5
RATE_PER_S = 200
VALUE_BYTES = 100
FAILOVER_TIMEOUT_S = 90.0
SETTLE_S = 2.0
PROBE = b"probe"
PROBE_INTERVAL_S = 0.02
FAST_SETTINGS = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
PRODUCER_SETTINGS = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    "message.timeout.ms": 180_000,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 50,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 50,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "log_level": 0,
}


def cases(scale: Scale) -> list[FreshCase]:
    rounds = QUICK_ROUNDS if scale.is_quick else ROUNDS
    kinds: list[tuple[str, Mapping[str, str]]] = [
        ("default settings", {}),
        ("broker.session.timeout.ms=2000", FAST_SETTINGS),
    ]
    return [
        FreshCase(
            "failover",
            f"{name}, {rounds} kills",
            with_cluster_target(partial(_failover, rounds, settings)),
        )
        for name, settings in kinds
    ]


@dataclass
class History:
    """The send time of each numbered message and, in the order of the reports, its acknowledgement time."""

    sent_s: list[float] = field(default_factory=list)
    acks: list[tuple[int, float]] = field(default_factory=list)

    def first_ack_after(self, moment_s: float, partition: int) -> float | None:
        """The acknowledgement time of the first message sent after `moment_s`."""
        first = bisect_right(self.sent_s, moment_s)
        acked_s = [
            at
            for number, at in itertools.takewhile(lambda ack: ack[1] > moment_s, reversed(self.acks))
            if number >= first and number % PARTITIONS == partition
        ]
        return min(acked_s, default=None)

    def last_ack_before(self, moment_s: float, partition: int) -> float:
        return next(
            at for number, at in reversed(self.acks) if at <= moment_s and number % PARTITIONS == partition
        )

    def compared_with(self, found: Sequence[Sequence[int]]) -> tuple[int, int]:
        """The number of acknowledged messages that are missing, and of those found twice or out of order."""
        seen = {number for partition in found for number in partition}
        lost = sum(number not in seen for number, _ in self.acks)
        repeated = sum(
            later <= earlier for partition in found for earlier, later in itertools.pairwise(partition)
        )
        return lost, repeated


class SteadyProducer:
    """Numbered messages at a steady rate, to the partitions in turn, until it is closed."""

    def __init__(self, bootstrap: str) -> None:
        self.history = History()
        self.errors: list[KafkaError] = []
        settings = {"bootstrap.servers": bootstrap, "error_cb": lambda _: None}
        self._producer = Producer(PRODUCER_SETTINGS | settings)
        self._is_closing = Event()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._is_closing.set()
        self._thread.join()

    def _run(self) -> None:
        sent_s, due_s = self.history.sent_s, time.monotonic()
        while not self._is_closing.is_set():
            number = len(sent_s)
            sent_s.append(time.monotonic())
            value = str(number).encode().ljust(VALUE_BYTES)
            report = partial(self._reported, number)
            self._producer.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=report)
            due_s += 1 / RATE_PER_S
            self._producer.poll(0)
            while (pause_s := due_s - time.monotonic()) > 0:
                self._producer.poll(pause_s)
        self._producer.flush(FAILOVER_TIMEOUT_S)

    def _reported(self, number: int, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.history.acks.append((number, time.monotonic()))
        else:
            self.errors.append(error)


@dataclass(frozen=True)
class Failover:
    """One round of killing a leader."""

    kill_to_writable_s: float
    kill_to_ack_s: float
    ack_to_ack_s: float
    is_of_controller: bool


def _failover(rounds: int, settings: Mapping[str, str], target: ClusterTarget, data_dir: Path) -> Metrics:
    with target.start_with(data_dir, settings) as cluster:
        create_replicated([node.address for node in cluster.nodes], [TOPIC], PARTITIONS)
        producer = SteadyProducer(cluster.bootstrap)
        try:
            failovers = [
                _kill_leader(cluster, cluster.nodes[number % len(cluster.nodes)], producer)
                for number in range(rounds)
            ]
        finally:
            producer.close()
        if producer.errors:
            raise RequestFailedError(f"{len(producer.errors)} messages failed: {producer.errors[:1]}")
        found = [_read_back(cluster.bootstrap, partition) for partition in range(PARTITIONS)]
        lost, repeated = producer.history.compared_with(found)
    metrics: Metrics = {}
    for name in ("kill_to_writable", "kill_to_ack", "ack_to_ack"):
        seconds = sorted(getattr(failover, f"{name}_s") for failover in failovers)
        metrics |= {f"{name}_p50_s": percentile(seconds, 50), f"{name}_max_s": seconds[-1]}
    controllers = sum(failover.is_of_controller for failover in failovers)
    messages = len(producer.history.acks)
    return metrics | {
        "controllers": controllers,
        "messages": messages,
        "lost": lost,
        "repeated": repeated,
    }


def _kill_leader(cluster: Cluster, node: Node, producer: SteadyProducer) -> Failover:
    partition = _lead(cluster, node)
    _await_ack(producer, time.monotonic(), partition)
    time.sleep(SETTLE_S)
    is_controller = quorum_leader(node.address) == node.node_id
    killed_s = time.monotonic()
    cluster.kill_node(node)
    writable_s = _await_writable(cluster.running[0].address, node.node_id, partition)
    first_ack_s = _await_ack(producer, killed_s, partition)
    last_ack_s = producer.history.last_ack_before(killed_s, partition)
    cluster.start_node(node)
    cluster.await_node(node)
    addresses = [each.address for each in cluster.nodes]
    await_partitions(lambda: addresses, [TOPIC], PARTITIONS, is_fully_in_sync)
    return Failover(writable_s - killed_s, first_ack_s - killed_s, first_ack_s - last_ack_s, is_controller)


def _lead(cluster: Cluster, node: Node) -> int:
    """Make the node lead the partition that prefers it, and return its number."""
    partitions = describe(node.address, [TOPIC]).partitions
    partition = next(each for each in partitions if each.replicas[0] == node.node_id)
    if partition.leader != node.node_id:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        moved = [TopicPartition(TOPIC, partition.index)]
        admin.elect_leaders(ElectionType.PREFERRED, moved, request_timeout=60).result()
        await_partitions(
            lambda: [node.address],
            [TOPIC],
            1,
            lambda found: found.index == partition.index and found.leader == node.node_id,
        )
    return partition.index


def _await_writable(survivor: str, killed_id: int, index: int) -> float:
    probe = frames.produce_request(TOPIC, {index: frames.record_batch([PROBE])}, acks=-1)
    deadline_s = time.monotonic() + FAILOVER_TIMEOUT_S
    while time.monotonic() < deadline_s:
        description = describe(survivor, [TOPIC])
        partition = next(each for each in description.partitions if each.index == index)
        leader = description.brokers.get(partition.leader)
        if leader is not None and partition.leader != killed_id:
            with Connection(leader) as connection:
                if not frames.produce_errors(connection.call(probe)):
                    return time.monotonic()
        time.sleep(PROBE_INTERVAL_S)
    raise RequestFailedError(f"no writable leader within {FAILOVER_TIMEOUT_S:.0f} s")


def _await_ack(producer: SteadyProducer, since_s: float, partition: int) -> float:
    deadline_s = time.monotonic() + FAILOVER_TIMEOUT_S
    while (first_s := producer.history.first_ack_after(since_s, partition)) is None:
        if producer.errors or time.monotonic() > deadline_s:
            raise RequestFailedError(
                f"no ack within {FAILOVER_TIMEOUT_S:.0f} s, errors {producer.errors[:1]}"
            )
        time.sleep(0.005)
    return first_s


def _read_back(bootstrap: str, partition: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "failover", "enable.auto.commit": False})
    try:
        _, end_offset = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=30)
        consumer.assign([TopicPartition(TOPIC, partition, 0)])
        found: list[int] = []
        position = 0
        while position < end_offset:
            batch = consumer.consume(num_messages=1_000, timeout=10)
            if not batch:
                raise RequestFailedError(f"nothing for 10 s at offset {position} of {end_offset}")
            for message in batch:
                if (error := message.error()) is not None:
                    raise RequestFailedError(str(error))
                value = message.value() or b""
                if value != PROBE:
                    found.append(int(value))
                position = (message.offset() or 0) + 1
        return found
    finally:
        consumer.close()
