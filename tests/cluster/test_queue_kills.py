"""A queue on three brokers while brokers and workers are killed: each job is done, and none that is done comes again.

Workers are processes that use the SDK's queue; a producer writes jobs all the time. After each `kill -9` every partition
has to get on. At the end the queue is drained, and the rules of share groups judge what the workers saw.
`TIDEMILL_QUEUE_KILLS` sets the number of kills of the long run, `TIDEMILL_QUEUE_SEED` its seed.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.brokers import eventually
from tests.cluster.clusters import Cluster
from tests.cluster.producing import Producing
from tests.cluster.queue_worker import WorkerProcess
from tests.cluster.workload import CONFLUENT_SETTINGS
from tidemill.client.admin.share_groups import ShareGroupAdmin
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.cluster import Cluster as ClientCluster
from tidemill.errors import TidemillError
from tidemill.internal_topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from tidemill.sim.checks import checker, shares
from tidemill.sim.checks.shares import Acknowledge, Acknowledged, AcknowledgeSent, Produced, ShareEvent

KILLS = int(os.environ.get("TIDEMILL_QUEUE_KILLS", "50"))
SEED = int(os.environ.get("TIDEMILL_QUEUE_SEED", "1"))
TOPIC, GROUP, PARTITIONS = "jobs", "workers", 3
WORKERS = 3
JOBS_PAUSE_S = 0.05
LIMIT_S = 90.0
SETTINGS = {
    # A dead broker is noticed soon, but a busy machine does not lose the living.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "1000",
    "offsets.topic.replication.factor": "3",
    "share.coordinator.state.topic.num.partitions": str(PARTITIONS),
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "share.coordinator.snapshot.update.records.per.snapshot": "50",
    "share.coordinator.state.topic.prune.interval.ms": "5000",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "1000",
}
# The rules that need nothing of the requests on the wire, which the SDK does not show.
RULES: tuple[shares.ShareRule, ...] = (
    shares.a_record_is_done_once,
    shares.what_is_done_is_not_delivered,
    shares.a_lock_is_exclusive,
    shares.a_release_counts,
    shares.deliveries_are_of_the_log,
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(3, tmp_path, settings=SETTINGS) as cluster:
        yield cluster


class Workload:
    """Use as a context manager; `finish` judges. Leaving it early ends everybody without a judgement."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.kills: list[str] = []
        self._cluster, self._rng = cluster, random.Random(seed)
        self._names = (f"worker-{number}" for number in itertools.count(1))
        self._workers: list[WorkerProcess] = []
        self._gone: list[WorkerProcess] = []
        self._client = ClientCluster(cluster.bootstrap, timeout_s=5.0)
        self._producing = Producing(
            cluster.bootstrap, TOPIC, PARTITIONS, 1, CONFLUENT_SETTINGS, pause_s=JOBS_PAUSE_S
        )
        self._is_finished = False

    def __enter__(self) -> Workload:
        self._cluster.create_topic(TOPIC, PARTITIONS)
        # A job that is in flight at several kills in a row is not given up.
        Admin(self._client).alter_configs(
            ResourceType.GROUP, GROUP, changes={"share.delivery.count.limit": "10"}
        )
        self._producing.start()
        try:
            for _ in range(WORKERS):
                self._add_worker()
            self._await_progress()
            self._await_replicas()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        for worker in self._workers:
            worker.end()
        if not self._is_finished:
            self._producing.give_up()
        self._client.close()

    def _add_worker(self) -> None:
        name, seed = next(self._names), self._rng.randrange(1 << 30)
        self._workers.append(WorkerProcess(name, self._cluster.bootstrap, TOPIC, GROUP, seed))

    # -- kills -----------------------------------------------------------------------------------------------

    def kill_worker(self) -> None:
        victim = self._workers.pop(self._rng.randrange(len(self._workers)))
        self.kills.append(victim.name)
        victim.kill()
        self._gone.append(victim)
        self._add_worker()

    def kill_broker(self) -> None:
        node_id = self._rng.choice([node.id for node in self._cluster.running()])
        is_long = self._rng.random() < 0.6
        self.kills.append(f"broker {node_id}{' for long' if is_long else ''}")
        self._cluster.kill(node_id)
        if is_long:
            # Others lead its partitions meanwhile.
            self._await_progress()
            if self._rng.random() < 0.3:
                self.kill_worker()
        self._cluster.start(node_id)

    def strike(self) -> None:
        """One kill or two, and the group gets on."""
        if self._rng.random() < 0.5:
            self.kill_worker()
        else:
            self.kill_broker()
            self._cluster.await_up()
            # Two brokers that are down at once would leave no broker to take acknowledgements.
            self._await_replicas()
        self._await_progress()

    def _await_replicas(self) -> None:
        for topic in (TOPIC, SHARE_STATE_TOPIC, OFFSETS_TOPIC):
            self._cluster.await_in_sync(topic, PARTITIONS)

    def _await_progress(self) -> None:
        """A job of every partition is accepted that was taken from now on."""
        began_s = time.monotonic()

        def has_progress() -> bool:
            for worker in self._workers:
                worker.assert_alive()
            accepted = {
                event.sent.partition
                for worker in self._workers
                for event in list(worker.events)
                if isinstance(event, Acknowledged) and event.sent.acquired_s > began_s
            }
            return len(accepted) == PARTITIONS

        eventually(has_progress, f"jobs of every partition done after {self.kills}", LIMIT_S)

    # -- the end ---------------------------------------------------------------------------------------------

    def finish(self) -> None:
        self._producing.stop()
        self._is_finished = True
        self._drain()
        for worker in self._workers:
            worker.stop()
        history = self._history()
        violations = [f"{rule.__name__}: {text}" for rule in RULES for text in rule(history)]
        assert not violations, f"after {self.kills}\n" + "\n".join(violations[:20])
        accepted = {
            event.place
            for event in history
            if isinstance(event, AcknowledgeSent) and event.kind is Acknowledge.ACCEPT
        }
        lost = [
            event
            for event in history
            if isinstance(event, Produced) and (event.partition, event.offset) not in accepted
        ]
        assert not lost, f"jobs that no worker did, after {self.kills}: {lost[:10]}"

    def _drain(self) -> None:
        """Wait as long as jobs get fewer: a busy machine leaves many behind."""
        left = self._jobs_left()
        while left:
            eventually(partial(self._has_fewer, left), f"fewer than {left} jobs after {self.kills}", LIMIT_S)
            left = self._jobs_left()

    def _has_fewer(self, count: int) -> bool:
        return self._jobs_left() < count

    def _jobs_left(self) -> int:
        try:
            positions = ShareGroupAdmin(self._client).positions(GROUP)
        except TidemillError:
            return sys.maxsize
        is_known = len(positions) == PARTITIONS and all(each.lag is not None for each in positions)
        return sum(each.lag or 0 for each in positions) if is_known else sys.maxsize

    def _history(self) -> list[ShareEvent]:
        produced = [
            Produced(event.at_s, event.partition, event.offset, event.message)
            for event in self._producing.events
            if isinstance(event, checker.Acked)
        ]
        seen = [event for worker in (*self._gone, *self._workers) for event in worker.events]
        return sorted([*produced, *seen], key=lambda event: event.at_s)


def _run(cluster: Cluster, seed: int, kills: int) -> None:
    with Workload(cluster, seed) as workload:
        while len(workload.kills) < kills:
            workload.strike()
        workload.finish()
        print(f"seed {seed}: {workload.kills}")


@pytest.mark.long
def test_every_job_is_done_and_no_accepted_job_comes_again_through_many_kills(cluster: Cluster) -> None:
    _run(cluster, SEED, KILLS)
