"""The exactly-once workload: the loops of `examples/`, at work on a cluster while brokers and they themselves are killed.

A producer writes numbered records to an input topic, transformers (the example of one client, several processes) make an
output topic of it. `Workload.strike` kills somebody: a transformer, a broker, or the broker that coordinates the
transformers' transactions or their group. Transformers that were killed or that ended by themselves, as they
do when they are fenced, are started again. `Workload.finish` waits until the input is used up, reads all logs and lets
`tidemill.sim.checks.exactly_once` judge them.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import confluent_kafka

from tests.brokers import eventually
from tests.cluster.clusters import Cluster
from tests.cluster.workload import CONFLUENT_SETTINGS
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.cluster import Cluster as ClientCluster
from tidemill.errors import TidemillError
from tidemill.sim.checks import exactly_once
from tidemill.sim.checks.checker import Found
from tidemill.sim.clients.fetching import message_of
from tidemill.types import TopicPartition

ck: Any = confluent_kafka
REPO = Path(__file__).resolve().parents[2]
LIMIT_S = 90.0
STOP_LIMIT_S = 30.0
PARTITIONS = 3
KEYS = 12
NAMES = ("one", "two")
PAUSE_S = 0.02
RECORDS_PER_PAUSE = 4
# How much has to be transformed between two strikes.
PROGRESS = 100
# Longer than it takes to replace a dead coordinator, or the living lose their membership with every one.
SESSION_TIMEOUT_MS = 10_000
TRANSACTION_TIMEOUT_MS = 10_000
COMPLAINTS_MAX = 3_000
GROUP_COORDINATOR, TRANSACTION_COORDINATOR = 0, 1
# Who is struck, in an order that each seed shuffles anew.
TARGETS = ("transaction coordinator", "transformer", "group coordinator", "transformer for long", "broker")


class Filling:
    """Writes `key/number` to the input, each key to one partition, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.failures: list[str] = []
        self._topic = topic
        self._is_stopping = threading.Event()
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        self._producer = ck.Producer(settings | CONFLUENT_SETTINGS)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_stopping.wait(PAUSE_S):
            for _ in range(RECORDS_PER_PAUSE):
                key = number % KEYS
                value = f"k{key}/{number // KEYS}".encode()
                self._producer.produce(
                    self._topic, value, f"k{key}".encode(), key % PARTITIONS, on_delivery=self._report
                )
                number += 1
            self._producer.poll(0)

    def _report(self, error: Any, _sent: Any) -> None:
        if error is not None:
            self.failures.append(str(error))

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join()
        assert self._producer.flush(LIMIT_S) == 0, "the input cannot be written"
        assert self.failures == []

    def give_up(self) -> None:
        self._is_stopping.set()
        self._thread.join()
        self._producer.purge()


@dataclass
class Transformer:
    """One name's processes, one after the other."""

    arguments: list[str]
    log_path: Path
    process: subprocess.Popen[bytes] | None = None
    ends: int = 0

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=REPO
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_LIMIT_S)
            self.process = None

    def restart_if_ended(self) -> None:
        if self.process is not None and self.process.poll() is not None:
            self.ends += 1
            self.start()

    def stop(self) -> None:
        """One that ignores it, because it is about to begin again, is killed."""
        assert self.process is not None
        self.process.terminate()
        try:
            self.ends += self.process.wait(STOP_LIMIT_S) != 0
            self.process = None
        except subprocess.TimeoutExpired:
            self.ends += 1
            self.kill()

    def complaints(self) -> str:
        return self.log_path.read_text(errors="replace")[-COMPLAINTS_MAX:]


@dataclass
class Summary:
    client: str
    seed: int
    strikes: Counter[str] = field(default_factory=Counter)
    input_records: int = 0
    committed_records: int = 0
    aborted_records: int = 0
    ended_by_themselves: int = 0

    def __str__(self) -> str:
        struck = ", ".join(f"{count} {target}" for target, count in sorted(self.strikes.items()))
        return (
            f"{self.client}, seed {self.seed}: {self.strikes.total()} faults ({struck}); "
            f"{self.input_records} records in, {self.committed_records} committed, "
            f"{self.aborted_records} aborted; transformers ended by themselves {self.ended_by_themselves} times"
        )


class Workload:
    """Use as a context manager; `finish` judges. Leaving it early ends everybody without a judgement."""

    def __init__(self, cluster: Cluster, client: str, seed: int, folder: Path) -> None:
        self.summary = Summary(client, seed)
        self._cluster, self._rng = cluster, random.Random(seed)
        self._input, self._output, self._group = (f"{client}-{what}" for what in ("input", "output", "group"))
        self._targets: list[str] = []
        self._silence = ""
        self._client = ClientCluster(cluster.bootstrap, timeout_s=5.0)
        self._transformers = {
            name: Transformer(self._arguments(client, name), folder / f"{client}-{name}.log")
            for name in NAMES
        }

    def _arguments(self, client: str, name: str) -> list[str]:
        options = {
            "bootstrap": self._cluster.bootstrap,
            "input": self._input,
            "output": self._output,
            "group": self._group,
            "name": name,
            "session-timeout-ms": str(SESSION_TIMEOUT_MS),
            "transaction-timeout-ms": str(TRANSACTION_TIMEOUT_MS),
        }
        words = [word for option, value in options.items() for word in (f"--{option}", value)]
        return [sys.executable, f"examples/consume_transform_produce_{client}.py", *words]

    def __enter__(self) -> Workload:
        for topic in (self._input, self._output):
            self._cluster.create_topic(topic, PARTITIONS)
        self._filling = Filling(self._cluster.bootstrap, self._input)
        try:
            for transformer in self._transformers.values():
                transformer.start()
            self.await_progress()
        except BaseException:
            self._end(is_failed=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(is_failed=kind is not None)

    def _end(self, *, is_failed: bool) -> None:
        for name, transformer in self._transformers.items():
            transformer.kill()
            if is_failed:
                print(f"---- {self.summary.client} {name}\n{transformer.complaints()}")
        if is_failed:
            print(self.summary)
            self._filling.give_up()
            # The next workload wants a whole cluster.
            for node in self._cluster.nodes.values():
                if node.process is None:
                    self._cluster.start(node.id)
            self._cluster.await_up()
        self._client.close()

    # -- progress --------------------------------------------------------------------------------------------

    def transformed(self) -> int | None:
        """By the group's offsets; None when no broker answers."""
        for transformer in self._transformers.values():
            transformer.restart_if_ended()
        try:
            return sum(GroupAdmin(self._client).committed(self._group).values())
        except TidemillError as failure:
            self._silence = str(failure)
            return None

    def await_progress(self) -> None:
        def count() -> tuple[int] | None:
            """A tuple is true also when nothing is transformed yet."""
            transformed = self.transformed()
            return None if transformed is None else (transformed,)

        try:
            (before,) = eventually(count, "the group's offsets", LIMIT_S)
        except AssertionError as late:
            raise AssertionError(f"{late}: {self._silence}") from None

        def is_beyond() -> bool:
            return (self.transformed() or 0) >= before + PROGRESS

        eventually(is_beyond, f"{PROGRESS} records more than {before}, after {self.summary}", LIMIT_S)

    # -- strikes ---------------------------------------------------------------------------------------------

    def strike(self) -> None:
        """Kills a process in the middle of its work, and waits until the work goes on."""
        if not self._targets:
            self._targets = self._rng.sample(TARGETS, len(TARGETS))
        target = self._targets.pop()
        self.summary.strikes[target] += 1
        time.sleep(self._rng.uniform(0.0, 0.3))
        if target.startswith("transformer"):
            self._strike_transformer(is_away_for_long=target.endswith("for long"))
        else:
            self._strike_broker(target)

    def _strike_transformer(self, *, is_away_for_long: bool) -> None:
        transformer = self._transformers[self._rng.choice(NAMES)]
        transformer.kill()
        if is_away_for_long:
            # Until its session is over and the other one has all partitions; else it joins beside its dead self.
            eventually(self._is_all_owned_by_one, "all partitions with the one that is left", LIMIT_S)
        transformer.start()
        self.await_progress()

    def _is_all_owned_by_one(self) -> bool:
        for transformer in self._transformers.values():
            transformer.restart_if_ended()
        try:
            members = GroupAdmin(self._client).describe(self._group).members
        except TidemillError:
            return False
        return [len(member.assignment) for member in members] == [PARTITIONS]

    def _strike_broker(self, target: str) -> None:
        kinds = {"transaction coordinator": TRANSACTION_COORDINATOR, "group coordinator": GROUP_COORDINATOR}
        if target in kinds:
            node_id = self._coordinator(kinds[target])
        else:
            node_id = self._rng.choice(self._cluster.brokers).id
        self._cluster.kill(node_id)
        # Now and then it comes back before anybody has noticed.
        if self._rng.random() < 0.7:
            self.await_progress()
        self._cluster.start(node_id)
        self._cluster.await_up()
        for topic in (self._input, self._output, "__consumer_offsets", "__transaction_state"):
            self._cluster.await_in_sync(topic, PARTITIONS)
        self.await_progress()

    def _coordinator(self, kind: int) -> int:
        key = self._group if kind == GROUP_COORDINATOR else self._transactional_id()

        def found() -> int | None:
            asked = {"key_type": kind, "coordinator_keys": [key]}
            node = self._rng.choice(self._cluster.running())
            answer = self._cluster.ask(lambda each: each.request("find_coordinator", 4, **asked), node)
            if answer is None or answer.coordinators[0].error_code:
                return None
            return int(answer.coordinators[0].node_id)

        return eventually(found, f"the coordinator of {key}", LIMIT_S)

    def _transactional_id(self) -> str:
        if self.summary.client == "aiokafka":
            return f"{self._group}-{self._input}-{self._rng.randrange(PARTITIONS)}"
        return f"{self._group}-{self._rng.choice(NAMES)}"

    # -- judgement -------------------------------------------------------------------------------------------

    def finish(self) -> Summary:
        self._filling.stop()
        given, ends = read_topic(self._cluster.bootstrap, self._input, "read_uncommitted")
        offsets: dict[TopicPartition, int] = {}

        def is_used_up() -> bool:
            if self.transformed() is None:
                return False
            offsets.update(GroupAdmin(self._client).committed(self._group))
            return all(offsets.get(place, 0) >= end for place, end in ends.items())

        eventually(is_used_up, f"the input used up; its ends are {ends}, committed is {offsets}", LIMIT_S)
        for transformer in self._transformers.values():
            transformer.stop()
        assert offsets == ends
        self.summary.ended_by_themselves = sum(each.ends for each in self._transformers.values())
        judge(self._cluster.bootstrap, self._output, given, self.summary)
        return self.summary


def judge(
    bootstrap: str, output: str, given: list[Found], summary: Summary, limit_s: float = LIMIT_S
) -> None:
    """Completes the summary, and fails with it unless every input given is in the output exactly once."""

    def settled() -> exactly_once.Logs | None:
        """Returns the output as both kinds of readers see it; None while a transaction is open."""
        committed, stable_ends = read_topic(bootstrap, output, "read_committed")
        uncommitted, log_ends = read_topic(bootstrap, output, "read_uncommitted")
        return exactly_once.Logs(given, committed, uncommitted) if stable_ends == log_ends else None

    logs = eventually(settled, "every transaction ended", limit_s)
    summary.input_records, summary.committed_records = len(given), len(logs.committed)
    summary.aborted_records = len(logs.aborted())
    violations = exactly_once.check(logs)
    assert not violations, f"{summary}\n" + "\n".join(map(str, violations))


def await_no_lag(
    committed: Callable[[], Mapping[TopicPartition, int] | None],
    ends: Mapping[TopicPartition, int],
    limit_s: float,
) -> None:
    """Fails when the offsets have not moved for `limit_s`: a group on a busy machine may be far behind."""
    before = committed()
    while before != ends:

        def moved(
            than: Mapping[TopicPartition, int] | None = before,
        ) -> tuple[Mapping[TopicPartition, int]] | None:
            now = committed()
            return None if now is None or now == than else (now,)

        (before,) = eventually(moved, f"less lag than at {before}; the ends are {ends}", limit_s)


def read_topic(bootstrap: str, topic: str, isolation: str) -> tuple[list[Found], dict[TopicPartition, int]]:
    """Its records as a stock consumer of that isolation sees them, partition after partition, and where each ended."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reads-{topic}",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            # How long it takes to be told that a partition ends.
            "fetch.wait.max.ms": 10,
        }
    )
    found: dict[TopicPartition, list[Found]] = {
        TopicPartition(topic, partition): [] for partition in range(PARTITIONS)
    }
    ends: dict[TopicPartition, int] = {}
    try:
        consumer.assign([ck.TopicPartition(*place, ck.OFFSET_BEGINNING) for place in found])
        while len(ends) < PARTITIONS:
            record = consumer.poll(LIMIT_S)
            assert record is not None, f"{topic} cannot be read to its end, only {sorted(ends)}"
            place = TopicPartition(topic, record.partition())
            if record.error() is None:
                message = message_of(record.value().lower())
                found[place].append(Found(time.monotonic(), place, record.offset(), message))
            elif record.error().code() == ck.KafkaError._PARTITION_EOF:
                ends[place] = record.offset()
    finally:
        consumer.close()
    return [each for place in found.values() for each in place], ends
