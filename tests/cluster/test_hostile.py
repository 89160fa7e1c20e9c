"""Three brokers under hostile input: an innocent client is served all the while, and the cluster stays as it is.

The same input that `tests/wire` tries on one broker. The watchdog looks at exits, logs, memory and the round trips of the
innocent client, whose times are printed. No broker may be fenced and no controller or leader lost over it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import pytest

from tests.brokers import RunningBroker
from tests.cluster.clusters import METADATA_TOPIC, Cluster
from tests.conftest import BOOTSTRAP
from tests.poisoned import CLAIMED_MS, T0, poisoned
from tests.wire import messages
from tests.wire.batches import NOW_MS
from tests.wire.connection import Connection, ConnectionClosedError
from tests.wire.fuzz.watchdog import INNOCENT_TOPIC, Watchdog, target_of_cluster
from tests.wire.test_bad_batches import REFUSED, REFUSED_SOMEHOW
from tests.wire.test_node_apis import CLAIMS
from tests.wire.test_record_bombs import HALF_AN_HOUR_MS, bomb

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        bool(BOOTSTRAP), reason="starts a cluster of its own; TIDEMILL_INTEROP_BOOTSTRAP names another's"
    ),
]

# The bound of the innocent client's p99 in any ten seconds, on a machine that does nothing else.
P99_MS = float(os.environ["TIDEMILL_HOSTILE_P99_MS"]) if "TIDEMILL_HOSTILE_P99_MS" in os.environ else None
# Shorter than by default, so that a heartbeat that waits behind clients would be missed.
SETTINGS = {
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "10000",
}
PARTITIONS = 3
SATURATED_S = 30.0
HOGS = 12
PIPELINED = 200
ANSWER_LIMIT_S = 120.0


@dataclass(frozen=True)
class Shape:
    """The controller and the leaders. Any fencing, election or lost controller changes it for good."""

    controller: tuple[int, int]
    # By partition of the innocent client's topic: leader, its epoch, ISR.
    partitions: tuple[tuple[int, int, tuple[int, ...]], ...]
    fenced: tuple[int, ...]


def shape(cluster: Cluster) -> Shape:
    asked = [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
    with Connection(cluster.nodes[1], ANSWER_LIMIT_S) as connection:
        (quorum,) = connection.request("describe_quorum", 1, topics=asked).topics[0].partitions
        brokers = connection.request("describe_cluster", 2, include_fenced_brokers=True).brokers
        parts = connection.metadata(INNOCENT_TOPIC).partitions
    return Shape(
        (quorum.leader_id, quorum.leader_epoch),
        tuple((part.leader_id, part.leader_epoch, tuple(sorted(part.isr_nodes))) for part in parts),
        tuple(sorted(each.broker_id for each in brokers if each.is_fenced)),
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(3, tmp_path_factory.mktemp("hostile"), settings=SETTINGS) as cluster:
        yield cluster


@contextlib.contextmanager
def steady(cluster: Cluster) -> Iterator[None]:
    """The cluster is afterwards what it was before, and nothing that the watchdog watches for has happened."""
    with Watchdog(target_of_cluster(cluster), p99_ms_max=P99_MS) as watchdog:
        cluster.await_in_sync(INNOCENT_TOPIC, PARTITIONS)
        before = shape(cluster)
        yield
        after = shape(cluster)
    print(watchdog.report())
    assert not watchdog.findings, "\n\n".join(map(str, watchdog.findings))
    assert after == before
    assert after.fenced == ()


def _leader(cluster: Cluster, topic: str, partition: int = 0) -> RunningBroker:
    return cluster.nodes[cluster.leader_of(topic, partition)]


def _poisoned_batches(cluster: Cluster, topic: str) -> None:
    """Accepted, because header and checksum are right; then a search by time looks inside."""
    for partition in range(PARTITIONS):
        with Connection(_leader(cluster, topic, partition), ANSWER_LIMIT_S) as connection:
            for batch in poisoned(NOW_MS).values():
                connection.produce(topic, batch, partition=partition)
                connection.list_offset(topic, NOW_MS + (CLAIMED_MS - T0) // 2, partition)


def _record_bombs(cluster: Cluster, topic: str) -> None:
    for partition in range(PARTITIONS):
        with Connection(_leader(cluster, topic, partition), ANSWER_LIMIT_S) as connection:
            connection.produce(topic, bomb(8_000_000), partition=partition)
            for _ in range(3):
                connection.produce(topic, bomb(100_000, NOW_MS + HALF_AN_HOUR_MS), partition=partition)
                connection.list_offset(topic, NOW_MS + 1, partition)


def _bad_batches(cluster: Cluster, topic: str) -> None:
    with Connection(_leader(cluster, topic), ANSWER_LIMIT_S) as connection:
        for batch in [*(batch for batch, _ in REFUSED.values()), *REFUSED_SOMEHOW.values()]:
            assert connection.produce(topic, batch).error_code != 0


def _claims_of_nodes(cluster: Cluster, topic: str) -> None:
    """To the clients' listeners, where they are not served."""
    for node in cluster.brokers:
        for node_id in (1, 2, 3, 77):
            for claim in CLAIMS.values():
                api, version, fields = claim(node_id)
                with Connection(node, ANSWER_LIMIT_S) as connection:
                    connection.send(messages.request(api, version, **fields))
                    connection.answer_or_close()


def _incredible_epochs(cluster: Cluster, topic: str) -> None:
    """To the controllers' listeners, in the name of a node that does not vote."""
    for node in cluster.nodes.values():
        for claim in CLAIMS.values():
            api, version, fields = claim(77)
            with Connection(RunningBroker(node.host, node.controller_port), ANSWER_LIMIT_S) as connection:
                connection.send(messages.request(api, version, **fields))
                connection.answer_or_close()


def _bad_frames(cluster: Cluster, topic: str) -> None:
    rng = Random(7)
    lengths = [struct.pack(">i", length) for length in (-1, 0, 3, 104_857_600, 2**31 - 1)]
    for node in cluster.nodes.values():
        for port in (node.port, node.controller_port):
            for head in lengths:
                with Connection(RunningBroker(node.host, port)) as connection:
                    connection.send(head + rng.randbytes(10))
            for _ in range(30):
                with Connection(RunningBroker(node.host, port), ANSWER_LIMIT_S) as connection:
                    connection.send(messages.frame(rng.randbytes(rng.randrange(1, 200))))
                    connection.answer_or_close()


def _pipelining(cluster: Cluster, topic: str) -> None:
    """More small requests at once than may wait for their answers."""
    requests = messages.request("api_versions", 0) * 20_000
    for node in cluster.brokers:
        with Connection(node, ANSWER_LIMIT_S) as connection:
            sender = threading.Thread(target=connection.send, args=(requests,))
            sender.start()
            for _ in range(20_000):
                connection.receive_frame()
            sender.join()


CASES: dict[str, Callable[[Cluster, str], None]] = {
    "poisoned batches": _poisoned_batches,
    "record bombs": _record_bombs,
    "bad batches": _bad_batches,
    "claims of nodes": _claims_of_nodes,
    "incredible epochs": _incredible_epochs,
    "bad frames": _bad_frames,
    "pipelining": _pipelining,
}


@pytest.mark.parametrize("case", CASES)
def test_three_brokers_serve_on_and_stay_as_they_are(cluster: Cluster, case: str) -> None:
    topic = f"hostile-{case.replace(' ', '-')}"
    cluster.create_topic(topic, PARTITIONS)
    with steady(cluster):
        CASES[case](cluster, topic)


class _Hog:
    """Pipelines expensive requests for as long as it may, and takes the answers."""

    def __init__(self, broker: RunningBroker, node_id: int, is_over: threading.Event) -> None:
        self._connection = Connection(broker, ANSWER_LIMIT_S)
        resources = [{"resource_type": 4, "resource_name": str(node_id)}]
        asked = messages.request("describe_configs", 4, resources=resources, include_synonyms=True)
        self._requests = asked * PIPELINED
        self._is_over = is_over
        self.answers = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(ConnectionClosedError):
            while not self._is_over.is_set():
                self._connection.send(self._requests)
                for _ in range(PIPELINED):
                    self._connection.receive_frame()
                    self.answers += 1

    def join(self) -> None:
        self._thread.join()
        self._connection.close()


def test_brokers_saturated_by_clients_stay_unfenced_and_keep_their_controller(cluster: Cluster) -> None:
    """For several sessions of a broker. Heartbeats, quorum and followers do not wait behind the clients."""
    is_over = threading.Event()
    with steady(cluster):
        hogs = [_Hog(node, node.id, is_over) for node in cluster.brokers for _ in range(HOGS)]
        shapes = set()
        ends_s = time.monotonic() + SATURATED_S
        try:
            while time.monotonic() < ends_s:
                shapes.add(shape(cluster))
        finally:
            is_over.set()
            for hog in hogs:
                hog.join()
    print(f"{sum(hog.answers for hog in hogs)} answers to {len(hogs)} hogs")
    assert all(hog.answers for hog in hogs)
    # Not even for a moment: each look saw the same controller, leaders and ISR.
    assert len(shapes) == 1
