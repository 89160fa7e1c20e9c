"""Failover: the leader of a partition is killed with `kill -9`, again and again, under a steady producer.

Two things are timed from the kill: until a leader takes a write with acks=all from a probe that tries every 20 ms, which
is the time without a writable leader; and until the producer hears the first ack of a message that it sent after the
kill (and that also from the last ack before), which is what an application sees. The killed broker is started again,
and when all replicas are in sync the next round begins. In the end everything is read back: each acknowledged message
has to be there, once, in order.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Thread

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench import frames
from bench.cases import FreshCase, Scale
from bench.cluster.metadata import (
    await_partitions,
    create_replicated,
    describe,
    is_fully_in_sync,
)
from bench.cluster.nodes import Cluster, ClusterTarget, with_cluster_target
from bench.connection import Connection, RequestFailedError
from bench.processes import Metrics
from bench.stats import percentile

TOPIC = "failover"
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
    """When each numbered message was sent and, in the order of the reports, when it was acknowledged."""

    sent_s: list[float] = field(default_factory=list)
    acks: list[tuple[int, float]] = field(default_factory=list)

    def first_ack_after(self, moment_s: float) -> float | None:
        """When the first message that was sent after `moment_s` was acknowledged; older ones may be so later."""
        if not self.acks or self.sent_s[self.acks[-1][0]] <= moment_s:
            return None
        return next(at for number, at in self.acks if self.sent_s[number] > moment_s)

    def last_ack_before(self, moment_s: float) -> float:
        return max(at for _, at in self.acks if at <= moment_s)

    def compared_with(self, found: Sequence[int]) -> tuple[int, int]:
        """How many acknowledged messages were not found, and how many were found again or out of order."""
        seen = set(found)
        lost = sum(number not in seen for number, _ in self.acks)
        return lost, sum(later <= earlier for earlier, later in itertools.pairwise(found))


class SteadyProducer:
    """Numbered messages at a steady rate to partition 0 until it is closed."""

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
            self._producer.produce(TOPIC, value, partition=0, on_delivery=partial(self._reported, number))
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
    """One round, in seconds."""

    kill_to_writable_s: float
    kill_to_ack_s: float
    ack_to_ack_s: float


def _failover(rounds: int, settings: Mapping[str, str], target: ClusterTarget, data_dir: Path) -> Metrics:
    with target.start_with(data_dir, settings) as cluster:
        create_replicated([node.address for node in cluster.nodes], [TOPIC], 1)
        producer = SteadyProducer(cluster.bootstrap)
        try:
            failovers = [_kill_leader(cluster, producer) for _ in range(rounds)]
        finally:
            producer.close()
        if producer.errors:
            raise RequestFailedError(f"{len(producer.errors)} messages failed: {producer.errors[:1]}")
        lost, repeated = producer.history.compared_with(_read_back(cluster.bootstrap))
    metrics: Metrics = {}
    for name in ("kill_to_writable", "kill_to_ack", "ack_to_ack"):
        seconds = sorted(getattr(failover, f"{name}_s") for failover in failovers)
        metrics |= {f"{name}_p50_s": percentile(seconds, 50), f"{name}_max_s": seconds[-1]}
    return metrics | {"messages": len(producer.history.acks), "lost": lost, "repeated": repeated}


def _kill_leader(cluster: Cluster, producer: SteadyProducer) -> Failover:
    _await_ack(producer, time.monotonic())
    time.sleep(SETTLE_S)
    (partition,) = describe(cluster.running[0].address, [TOPIC]).partitions
    node = cluster.node(partition.leader)
    killed_s = time.monotonic()
    cluster.kill_node(node)
    writable_s = _await_writable(cluster.running[0].address, node.node_id)
    first_ack_s = _await_ack(producer, killed_s)
    last_ack_s = producer.history.last_ack_before(killed_s)
    cluster.start_node(node)
    cluster.await_node(node)
    await_partitions(lambda: [n.address for n in cluster.nodes], [TOPIC], 1, is_fully_in_sync)
    return Failover(writable_s - killed_s, first_ack_s - killed_s, first_ack_s - last_ack_s)


def _await_writable(survivor: str, killed_id: int) -> float:
    probe = frames.produce_request(TOPIC, {0: frames.record_batch([PROBE])}, acks=-1)
    deadline_s = time.monotonic() + FAILOVER_TIMEOUT_S
    while time.monotonic() < deadline_s:
        description = describe(survivor, [TOPIC])
        (partition,) = description.partitions
        leader = description.brokers.get(partition.leader)
        if leader is not None and partition.leader != killed_id:
            with Connection(leader) as connection:
                if not frames.produce_errors(connection.call(probe)):
                    return time.monotonic()
        time.sleep(PROBE_INTERVAL_S)
    raise RequestFailedError(f"no writable leader within {FAILOVER_TIMEOUT_S:.0f} s")


def _await_ack(producer: SteadyProducer, since_s: float) -> float:
    deadline_s = time.monotonic() + FAILOVER_TIMEOUT_S
    while (first_s := producer.history.first_ack_after(since_s)) is None:
        if producer.errors or time.monotonic() > deadline_s:
            raise RequestFailedError(
                f"no ack within {FAILOVER_TIMEOUT_S:.0f} s, errors {producer.errors[:1]}"
            )
        time.sleep(0.005)
    return first_s


def _read_back(bootstrap: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "failover", "enable.auto.commit": False})
    try:
        _, end_offset = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=30)
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
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
