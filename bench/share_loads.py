"""Members of share groups under load: raw requests that throw the records away, the SDK's consumer, and confluent-kafka's.

A raw member has one session and one request under way. The acknowledgements of what it got ride on the next ShareFetch, as
Java's and librdkafka's consumers send them. All members of a load are threads of one process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.connection import Connection as BenchConnection
from bench.connection import RequestFailedError
from bench.frames import produce_request, record_batch
from bench.load import Load
from bench.processes import Meter, Metrics
from bench.raw_loads import send_pipelined
from bench.stats import percentile
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import Address, Connection
from tidemill.client.share.consumer import ShareConsumer
from tidemill.client.share.membership import ShareMembership
from tidemill.client.share.session import Acknowledge
from tidemill.protocol.api.share import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    FetchPartition,
    FetchTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatResponse,
)
from tidemill.types import uuid_text

MAX_RECORDS = 500
FETCH_BYTES_MAX = 50 << 20
WAIT_MS = 50
JOIN_TIMEOUT_S = 60.0
HEARTBEAT_S = 3.0
RECORD_LIMIT = 1
# A member that gets nothing for so long has lost something.
SILENCE_S = 30.0


def begin_earliest(bootstrap: str, group: str) -> None:
    """Have a new group begin with the first record of each partition."""
    cluster = Cluster(bootstrap)
    try:
        changes = {"share.auto.offset.reset": "earliest"}
        Admin(cluster).alter_configs(ResourceType.GROUP, group, changes=changes)
    finally:
        cluster.close()


def fill(
    bootstrap: str, topic: str, partitions: int, messages: int, value_bytes: int, per_batch: int
) -> None:
    """Write `messages` to the partitions in turn, a batch each."""
    value = bytes(value_bytes)

    def requests() -> list[bytearray]:
        return [
            produce_request(
                topic,
                {number % partitions: record_batch([value] * min(per_batch, messages - number * per_batch))},
                acks=1,
            )
            for number in range(-(-messages // per_batch))
        ]

    with BenchConnection(bootstrap) as connection:
        send_pipelined(connection, requests(), in_flight_max=5)


class RawMember:
    """One member: heartbeats in a thread of their own, and a session with the only broker."""

    def __init__(self, bootstrap: str, group: str, topic: str, number: int) -> None:
        self._group = group
        self._member_id = uuid_text(number.to_bytes(16, "big"))
        self._membership = ShareMembership(group, self._member_id, [topic])
        self._cluster = Cluster(bootstrap)
        self._is_over = threading.Event()
        deadline_s = time.monotonic() + JOIN_TIMEOUT_S
        while not self._membership.assignment:
            if time.monotonic() > deadline_s:
                raise RequestFailedError("the member got no partitions")
            self._beat()
            self._is_over.wait(0.1)
        self._beats = threading.Thread(target=self._beat_on, daemon=True)
        self._beats.start()
        self._connection = self._open()
        self._epoch = 0

    def _open(self) -> Connection:
        broker = self._cluster.load_metadata([]).brokers[0]
        return self._cluster.open(Address(broker.host, broker.port), 30.0)

    def _beat(self) -> None:
        def attempt() -> ShareGroupHeartbeatResponse:
            connection = self._cluster.coordinator(self._group)
            return connection.request(self._membership.heartbeat(), ShareGroupHeartbeatResponse)

        self._membership.answered(self._cluster.retrying(attempt))

    def _beat_on(self) -> None:
        while not self._is_over.wait(HEARTBEAT_S):
            self._beat()

    def fetch(
        self, acquired: dict[tuple[bytes, int], list[tuple[int, int]]], max_records: int, mode: int = 0
    ) -> dict[tuple[bytes, int], list[tuple[int, int]]]:
        """Accept what was acquired before, and acquire more; ranges of offsets by partition."""
        assert self._membership.assignment is not None
        # An acknowledgement does not wait for further records.
        wait_ms = 0 if acquired else WAIT_MS
        places = set(acquired) if self._epoch else set(self._membership.assignment)
        topics: dict[bytes, list[FetchPartition]] = {}
        for topic_id, partition in sorted(places):
            entry = FetchPartition(
                partition_index=partition,
                acknowledgement_batches=_accepted(acquired.get((topic_id, partition), ())),
            )
            topics.setdefault(topic_id, []).append(entry)
        response = self._connection.request(
            ShareFetchRequest(
                group_id=self._group,
                member_id=self._member_id,
                share_session_epoch=self._epoch,
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=FETCH_BYTES_MAX,
                max_records=max_records,
                batch_size=max_records,
                share_acquire_mode=mode,
                topics=[FetchTopic(topic_id=each, partitions=of) for each, of in topics.items()],
            ),
            ShareFetchResponse,
            wait_s=wait_ms / 1000,
        )
        self._epoch += 1
        _check(response.error_code)
        found: dict[tuple[bytes, int], list[tuple[int, int]]] = {}
        for topic in response.responses:
            for each in topic.partitions:
                _check(each.error_code or each.acknowledge_error_code)
                if each.acquired_records:
                    found[topic.topic_id, each.partition_index] = [
                        (ranged.first_offset, ranged.last_offset) for ranged in each.acquired_records
                    ]
        return found

    def acknowledge(self, acquired: dict[tuple[bytes, int], list[tuple[int, int]]]) -> None:
        topics: dict[bytes, list[AcknowledgePartition]] = {}
        for (topic_id, partition), ranges in acquired.items():
            entry = AcknowledgePartition(partition_index=partition, acknowledgement_batches=_accepted(ranges))
            topics.setdefault(topic_id, []).append(entry)
        response = self._connection.request(
            ShareAcknowledgeRequest(
                group_id=self._group,
                member_id=self._member_id,
                share_session_epoch=self._epoch,
                topics=[AcknowledgeTopic(topic_id=each, partitions=of) for each, of in topics.items()],
            ),
            ShareAcknowledgeResponse,
        )
        self._epoch += 1
        _check(response.error_code)
        for topic in response.responses:
            for each in topic.partitions:
                _check(each.error_code)

    def close(self) -> None:
        self._is_over.set()
        self._beats.join()
        self._connection.close()
        self._cluster.coordinator(self._group).request(self._membership.leave(), ShareGroupHeartbeatResponse)
        self._cluster.close()


def _accepted(ranges: list[tuple[int, int]] | tuple[()]) -> list[AcknowledgementBatch]:
    return [
        AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[Acknowledge.ACCEPT])
        for first, last in ranges
    ]


def _count(acquired: dict[tuple[bytes, int], list[tuple[int, int]]]) -> int:
    return sum(last - first + 1 for ranges in acquired.values() for first, last in ranges)


def _check(error_code: int) -> None:
    if error_code:
        raise RequestFailedError(f"error code {error_code}")


class Tally:
    """How many records each member has done, and when all are."""

    def __init__(self, members: int, messages: int) -> None:
        self.counts = [0] * members
        self.failures: list[str] = []
        self._messages = messages
        self._last_s = time.monotonic()

    def add(self, member: int, count: int) -> None:
        # One thread writes each entry.
        self.counts[member] += count
        if count:
            self._last_s = time.monotonic()

    @property
    def is_done(self) -> bool:
        if time.monotonic() - self._last_s > SILENCE_S:
            self.failures.append(f"nothing for {SILENCE_S:.0f} s")
        return bool(self.failures) or sum(self.counts) >= self._messages

    def run(self, work: Callable[[int], None]) -> None:
        """Run the members' work in threads, to the end."""

        def guarded(number: int) -> None:
            try:
                work(number)
            except Exception as failure:
                self.failures.append(repr(failure))

        threads = [
            threading.Thread(target=guarded, args=(number,), daemon=True)
            for number in range(len(self.counts))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failures:
            raise RequestFailedError(self.failures[0])


@dataclass(frozen=True)
class RawThroughput(Load):
    """Members take a full topic and accept everything, as fast as the broker hands it out."""

    topic: str
    group: str
    partitions: int
    members: int
    messages: int
    value_bytes: int

    def run(self) -> Metrics:
        begin_earliest(self.bootstrap, self.group)
        per_batch = max(1, (16 << 10) // self.value_bytes)
        fill(self.bootstrap, self.topic, self.partitions, self.messages, self.value_bytes, per_batch)
        members = [
            RawMember(self.bootstrap, self.group, self.topic, number + 1) for number in range(self.members)
        ]
        tally = Tally(self.members, self.messages)

        def work(number: int) -> None:
            acquired: dict[tuple[bytes, int], list[tuple[int, int]]] = {}
            while not tally.is_done:
                before = _count(acquired)
                acquired = members[number].fetch(acquired, MAX_RECORDS)
                tally.add(number, before)

        with Meter(self.broker_pids) as meter:
            tally.run(work)
        for member in members:
            member.close()
        return meter.throughput(self.messages, self.messages * self.value_bytes)


@dataclass(frozen=True)
class ConfluentThroughput(Load):
    """One `ShareConsumer` of confluent-kafka, which accepts a batch with the next poll."""

    topic: str
    group: str
    partitions: int
    messages: int
    value_bytes: int

    def run(self) -> Metrics:
        from confluent_kafka import ShareConsumer

        begin_earliest(self.bootstrap, self.group)
        fill(self.bootstrap, self.topic, self.partitions, self.messages, self.value_bytes, 16)
        consumer = ShareConsumer({"bootstrap.servers": self.bootstrap, "group.id": self.group})
        consumer.subscribe([self.topic])
        tally = Tally(1, self.messages)
        first = _poll(consumer, JOIN_TIMEOUT_S)
        with Meter(self.broker_pids) as meter:
            tally.add(0, first)
            tally.run(lambda number: _poll_on(consumer, tally, number))
        consumer.close()
        counted = self.messages - first
        return meter.throughput(counted, counted * self.value_bytes)


def _poll(consumer: object, timeout_s: float) -> int:
    """How many messages came, waiting for the first at most so long."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        messages = consumer.poll(0.2)  # type: ignore[attr-defined]
        for message in messages:
            if message.error() is not None:
                raise RequestFailedError(str(message.error()))
        if messages or time.monotonic() > deadline_s:
            return len(messages)


def _poll_on(consumer: object, tally: Tally, number: int, work_s: float = 0.0) -> None:
    while not tally.is_done:
        count = _poll(consumer, 0.0)
        if count and work_s:
            time.sleep(count * work_s)
        tally.add(number, count)


@dataclass(frozen=True)
class AcknowledgeLatency(Load):
    """One member acknowledges one record in each request, one after the other."""

    topic: str
    group: str
    requests: int

    def run(self) -> Metrics:
        begin_earliest(self.bootstrap, self.group)
        fill(self.bootstrap, self.topic, 1, self.requests, 100, 100)
        member = RawMember(self.bootstrap, self.group, self.topic, 1)
        seconds: list[float] = []
        with Meter(self.broker_pids) as meter:
            while len(seconds) < self.requests:
                acquired = member.fetch({}, 100, RECORD_LIMIT)
                for place, ranges in acquired.items():
                    for offset in (each for first, last in ranges for each in range(first, last + 1)):
                        began_s = time.perf_counter()
                        member.acknowledge({place: [(offset, offset)]})
                        seconds.append(time.perf_counter() - began_s)
        member.close()
        times = sorted(each * 1e3 for each in seconds)
        return {
            "p50_ms": percentile(times, 50),
            "p99_ms": percentile(times, 99),
            "requests_per_s": len(seconds) / meter.wall_s,
            "broker_us_per_request": meter.broker_cpu_s * 1e6 / len(seconds),
        }


@dataclass(frozen=True)
class Fairness(Load):
    """Members share the records of a few partitions, and each record takes a moment of work."""

    topic: str
    group: str
    partitions: int
    members: int
    messages: int
    # The producer's batches.
    per_batch: int
    is_confluent: bool
    work_s: float
    join_s: float

    def run(self) -> Metrics:
        begin_earliest(self.bootstrap, self.group)
        tally = Tally(self.members, self.messages)
        # What a member has not acknowledged when it leaves goes to those that still fetch, and would be counted twice.
        leaving = threading.Barrier(self.members)
        work = self._confluent if self.is_confluent else self._sdk

        def fill_later() -> None:
            # Every member has its partitions by then: two heartbeats.
            time.sleep(self.join_s)
            fill(self.bootstrap, self.topic, self.partitions, self.messages, 100, self.per_batch)

        filling = threading.Thread(target=fill_later, daemon=True)
        filling.start()
        tally.run(lambda number: work(tally, number, leaving))
        filling.join()
        if sum(tally.counts) != self.messages:
            raise RequestFailedError(f"{sum(tally.counts)} deliveries of {self.messages} records")
        return {
            "fewest": min(tally.counts),
            "most": max(tally.counts),
            "without_work": tally.counts.count(0),
        }

    def _sdk(self, tally: Tally, number: int, leaving: threading.Barrier) -> None:
        consumer = ShareConsumer(Cluster(self.bootstrap), self.group, [self.topic], capacity=10)
        while not tally.is_done:
            delivery = consumer.take(0.2)
            if delivery is None:
                continue
            time.sleep(self.work_s)
            consumer.acknowledge(delivery, Acknowledge.ACCEPT)
            tally.add(number, 1)
        leaving.wait(SILENCE_S)
        consumer.close()

    def _confluent(self, tally: Tally, number: int, leaving: threading.Barrier) -> None:
        from confluent_kafka import ShareConsumer as Confluent

        consumer = Confluent({"bootstrap.servers": self.bootstrap, "group.id": self.group})
        consumer.subscribe([self.topic])
        _poll_on(consumer, tally, number, self.work_s)
        leaving.wait(SILENCE_S)
        consumer.close()
