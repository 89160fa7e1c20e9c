"""Stock clients at work on a topic while a cluster is mistreated, and the judgement of what they saw.

Producers write to every partition with `acks=all` and idempotence, by confluent-kafka and by aiokafka; members of a
group, processes of their own, read and commit. At the end the logs are read from their leaders, the replicas' files are
compared, and the whole history goes to `tidemill.sim.checks.checker`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import aiokafka

from tests.brokers import eventually
from tests.cluster.clusters import Cluster, ClusterNode
from tests.cluster.member_process import MemberProcess
from tests.cluster.producing import PAUSE_S, Producing, read_log
from tests.interop.aiokafka_group import AiokafkaConsumer
from tests.interop.confluent_group import ConfluentConsumer
from tests.interop.group_consumers import GroupConsumer, MemberSettings
from tests.wire.batches import Batch, parse_batch
from tidemill.sim.checks import checker
from tidemill.sim.checks.checker import MessageId
from tidemill.types import TopicPartition

LIMIT_S = 60.0
GIVE_UP_S = 2.0
# How much clients have to get done to show that the cluster works.
PROGRESS = 50
CONFLUENT_SETTINGS = {
    # Nothing is given up during a test.
    "message.timeout.ms": 120_000,
    # A broker that went silent is left within seconds.
    "request.timeout.ms": 4_000,
    "socket.timeout.ms": 6_000,
    "socket.connection.setup.timeout.ms": 2_000,
    "topic.metadata.refresh.interval.ms": 1_000,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 50,
}
AIOKAFKA_SETTINGS = {"request_timeout_ms": 60_000, "metadata_max_age_ms": 1_000, "retry_backoff_ms": 50}


class AiokafkaProducing:
    """As `Producing`, with aiokafka on an event loop in a thread."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.events: list[checker.Event] = []
        self.failures: list[str] = []
        self.unplaced: list[tuple[MessageId, TopicPartition]] = []
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._is_stopping = threading.Event()
        self._is_given_up = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "aiokafka does not get its messages out"
        assert self.failures == []

    def give_up(self) -> None:
        """Without waiting for acks."""
        self._is_given_up = True
        self._is_stopping.set()
        self._thread.join(LIMIT_S)

    def acked(self) -> set[MessageId]:
        placed = {event.message for event in list(self.events) if isinstance(event, checker.Acked)}
        return placed | {message for message, _place in list(self.unplaced)}

    async def _run(self) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self._bootstrap, acks="all", enable_idempotence=True, **AIOKAFKA_SETTINGS
        )
        try:
            await producer.start()
            await self._produce(producer)
        except Exception as failure:
            self.failures.append(repr(failure))
        finally:
            # It would wait for acks.
            async with asyncio.timeout(GIVE_UP_S if self._is_given_up else None):
                await producer.stop()

    async def _produce(self, producer: Any) -> None:
        waiting: list[asyncio.Task[None]] = []
        number = 0
        while not self._is_stopping.is_set():
            for partition in range(self._partitions):
                message = MessageId(f"a{partition}", number)
                self.events.append(checker.Sent(time.monotonic(), message, is_idempotent=True))
                sent = await producer.send(self._topic, str(message).encode(), partition=partition)
                waiting.append(asyncio.create_task(self._report(message, sent)))
            number += 1
            await asyncio.sleep(PAUSE_S)
        if not self._is_given_up:
            await asyncio.gather(*waiting)

    async def _report(self, message: MessageId, sent: Any) -> None:
        try:
            stored = await sent
        except Exception as failure:
            self.failures.append(f"{message}: {failure!r}")
            return
        place = TopicPartition(stored.topic, stored.partition)
        if stored.offset < 0:
            self.unplaced.append((message, place))
        else:
            self.events.append(checker.Acked(time.monotonic(), message, place, stored.offset))


class Workload:
    """Use as a context manager; `finish` judges. Leaving it early ends the clients without a judgement."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partitions: int = 3,
        *,
        members: Sequence[type[GroupConsumer]] = (ConfluentConsumer, AiokafkaConsumer),
        with_aiokafka: bool = True,
    ) -> None:
        self._cluster, self.topic, self.partitions = cluster, topic, partitions
        self._group = f"group-of-{topic}"
        self._confluent = Producing(cluster.bootstrap, topic, partitions, settings=CONFLUENT_SETTINGS)
        self._aiokafka = AiokafkaProducing(cluster.bootstrap, topic, partitions) if with_aiokafka else None
        self._kinds = members
        self.members: list[MemberProcess] = []

    def __enter__(self) -> Workload:
        self._cluster.create_topic(self.topic, self.partitions)
        self._confluent.start()
        if self._aiokafka is not None:
            self._aiokafka.start()
        settings = MemberSettings(
            self._group,
            topics=(self.topic,),
            assignor="range",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
            metadata_max_age_ms=1_000,
            request_timeout_ms=6_000,
        )
        for number, kind in enumerate(self._kinds):
            self.members.append(MemberProcess(f"m{number}", kind, self._cluster.bootstrap, settings))
        try:
            self._await_shares()
            self.await_progress()
        except BaseException:
            self._end(is_failed=True)
            raise
        return self

    def _await_shares(self) -> None:
        """A client that is not connected yet gives up when it finds no broker."""

        def have_shares() -> bool:
            for member in self.members:
                member.assert_alive()
            return all(member.owned() for member in self.members)

        eventually(have_shares, "a share of the partitions for every member", LIMIT_S)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(is_failed=kind is not None)

    def _end(self, *, is_failed: bool) -> None:
        for member in self.members:
            member.end()
        if is_failed:
            self._confluent.give_up()
            if self._aiokafka is not None:
                self._aiokafka.give_up()

    @property
    def _producers(self) -> list[Producing | AiokafkaProducing]:
        return [self._confluent] if self._aiokafka is None else [self._confluent, self._aiokafka]

    def acked(self, place: TopicPartition | None = None) -> int:
        return sum(
            isinstance(event, checker.Acked) and (place is None or event.partition == place)
            for producer in self._producers
            for event in list(producer.events)
        )

    def delivered(self) -> int:
        for member in self.members:
            member.assert_alive()
        return sum(member.delivered() for member in self.members)

    def await_progress(self) -> None:
        """Every partition takes writes again, of every producer, and the group reads on."""
        self.await_acks()
        wanted = self.delivered() + PROGRESS
        eventually(lambda: self.delivered() >= wanted, f"deliveries beyond {wanted}", LIMIT_S)

    def await_acks(self, partitions: Iterable[int] | None = None) -> None:
        for producer in self._producers:
            for partition in range(self.partitions) if partitions is None else partitions:
                self._await_acks(producer, TopicPartition(self.topic, partition))

    def _await_acks(self, producer: Producing | AiokafkaProducing, place: TopicPartition) -> None:
        began_s = time.monotonic()

        def has_acked() -> bool:
            assert producer.failures == []
            news = (
                event
                for event in reversed(list(producer.events))
                if isinstance(event, checker.Acked) and event.partition == place and event.at_s > began_s
            )
            return next(news, None) is not None

        eventually(has_acked, f"acks of {place} to {type(producer).__name__}", LIMIT_S)

    def finish(self) -> None:
        """Stop the clients when all is written and read, and hold it against the rules."""
        for producer in self._producers:
            producer.stop()
        acked = set().union(*(producer.acked() for producer in self._producers))
        eventually(lambda: acked <= self._got(), "everything delivered", LIMIT_S)
        for member in self.members:
            member.leave()
        self._cluster.await_in_sync(self.topic, self.partitions)
        history = [event for producer in self._producers for event in producer.events]
        history += [event for member in self.members for event in member.events]
        for partition in range(self.partitions):
            leader = self._cluster.nodes[self._cluster.leader_of(self.topic, partition)]
            history += read_log(leader, self.topic, [partition])
        history += self._placed_by_the_log(history)
        history.append(checker.Drained(time.monotonic(), self._group))
        history.sort(key=lambda event: event.at_s)
        violations = checker.check(history)
        assert not violations, "\n".join(map(str, violations[:20]))
        self._compare_replicas()

    def _placed_by_the_log(self, history: Sequence[checker.Event]) -> list[checker.Event]:
        """Returns the places of messages that were acked without an offset; each must be in the log."""
        found = {
            (event.message, event.partition): event.offset
            for event in history
            if isinstance(event, checker.Found)
        }
        unplaced = [each for producer in self._producers for each in producer.unplaced]
        lost = [message for message, place in unplaced if (message, place) not in found]
        assert not lost, f"acked without an offset and lost: {lost[:10]}"
        now_s = time.monotonic()
        return [checker.Acked(now_s, message, place, found[message, place]) for message, place in unplaced]

    def _got(self) -> set[MessageId]:
        return {
            event.message
            for member in self.members
            for event in list(member.events)
            if isinstance(event, checker.Delivered)
        }

    def _compare_replicas(self) -> None:
        for partition in range(self.partitions):
            state = self._cluster.state(self.topic, partition)
            assert state is not None
            nodes = [self._cluster.nodes[replica] for replica in state.replicas]
            first, *rest = [stored(node, self.topic, partition) for node in nodes]
            for other in rest:
                assert first == other, f"the replicas of {self.topic}-{partition} differ"


def stored(node: ClusterNode, topic: str, partition: int) -> list[Batch]:
    """Returns the records of a partition in a node's files."""
    batches: list[Batch] = []
    for path in sorted((node.data_dir / f"{topic}-{partition}").glob("*.log")):
        data = path.read_bytes()
        at = 0
        while at < len(data):
            batches.append(parse_batch(data, at))
            at += batches[-1].size
    return batches
