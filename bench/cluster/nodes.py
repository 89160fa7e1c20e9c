"""A cluster of three combined nodes (broker and controller each), of either broker, whose nodes can be killed.

Either gets the properties file that a Kafka user writes for a KRaft cluster; ports are chosen here because every
node's file names all of them. Inside its `with` block all nodes are up and each knows all three; entering it again
starts it on the data that it left. `kill_node` is `kill -9`, `stop_node` a clean stop; `start_node` brings one back
and waits for nothing.
"""

from __future__ import annotations

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.apache_kafka import ApacheKafka, Node, free_ports
from bench.brokers import Broker, BrokerFailedError, Target, Tidemill
from bench.cluster.metadata import describe
from bench.connection import RequestFailedError
from bench.processes import Metrics, stop_processes

NODES = 3
START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 60.0
# Apache Kafka's last two nodes wait for minutes for a quorum that stopped with them.
STOP_ALL_SECONDS_MAX = 10.0
POLL_S = 0.01


class Cluster(ABC):
    """Three nodes, with the interface of one broker: an address, and processes to meter."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.started_seconds = 0.0
        self._is_prepared = False

    @abstractmethod
    def start_node(self, node: Node) -> None: ...

    @abstractmethod
    def prepare(self) -> None:
        """Write the files that must exist before the first start."""

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes)

    @property
    def pid(self) -> int:
        return self.pids[0]

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(node.process.pid for node in self.nodes if node.process is not None)

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes if node.process is not None]

    def node(self, node_id: int) -> Node:
        return next(node for node in self.nodes if node.node_id == node_id)

    def __enter__(self) -> Self:
        if not self._is_prepared:
            self.prepare()
            self._is_prepared = True
        started_s = time.monotonic()
        with ExitStack() as on_failure:
            on_failure.callback(self.stop)
            for node in self.nodes:
                self.start_node(node)
            for node in self.nodes:
                self.await_node(node)
            on_failure.pop_all()
        self.started_seconds = time.monotonic() - started_s
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def require_up(self) -> None:
        for node in self.nodes:
            if node.process is None or node.process.poll() is not None:
                raise BrokerFailedError(f"node {node.node_id} has ended:\n{node.log_tail()}")

    def await_node(self, node: Node) -> None:
        """Return once the node answers a Metadata request that lists every broker."""
        deadline_s = time.monotonic() + START_SECONDS_MAX
        while True:
            if node.process is None or node.process.poll() is not None or time.monotonic() > deadline_s:
                raise BrokerFailedError(f"node {node.node_id} did not come up:\n{node.log_tail()}")
            with suppress(OSError):
                if len(describe(node.address, []).brokers) == len(self.nodes):
                    return
            time.sleep(POLL_S)

    def kill_node(self, node: Node) -> None:
        process, node.process = node.process, None
        assert process is not None
        process.kill()
        process.wait()

    def stop_node(self, node: Node) -> None:
        self._end([node], STOP_SECONDS_MAX)

    def stop(self) -> None:
        """A clean stop of all at once; what does not stop in time is killed."""
        self._end(self.running, STOP_ALL_SECONDS_MAX)

    def _end(self, nodes: Sequence[Node], seconds_max: float) -> None:
        stop_processes([node.process for node in nodes if node.process is not None], seconds_max)
        for node in nodes:
            node.process = None


class TidemillCluster(Cluster):
    """`tidemill serve --config FILE`, three times."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str]) -> None:
        ports = free_ports(2 * NODES)
        super().__init__(
            [
                Node(i + 1, "127.0.0.1", ports[2 * i], ports[2 * i + 1], data_dir / f"node-{i + 1}")
                for i in range(NODES)
            ]
        )
        self._settings = settings

    def start_node(self, node: Node) -> None:
        with node.log_path.open("ab") as log:
            node.process = subprocess.Popen(
                [Tidemill.command(), "serve", "--config", str(node.config_path)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def prepare(self) -> None:
        voters = ",".join(f"{n.node_id}@{n.host}:{n.controller_port}" for n in self.nodes)
        for node in self.nodes:
            listeners = f"PLAINTEXT://{node.address},CONTROLLER://{node.host}:{node.controller_port}"
            properties = {
                "process.roles": "broker,controller",
                "node.id": str(node.node_id),
                "controller.quorum.voters": voters,
                "listeners": listeners,
                "inter.broker.listener.name": "PLAINTEXT",
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "log.dirs": str(node.data_dir / "log"),
            } | dict(self._settings)
            node.data_dir.mkdir(parents=True, exist_ok=True)
            node.config_path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


class KafkaCluster(Cluster):
    """Apache Kafka with three nodes; the disks are formatted first."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str]) -> None:
        self._kafka = ApacheKafka(data_dir, settings, nodes=NODES)
        super().__init__(self._kafka.nodes)

    def start_node(self, node: Node) -> None:
        self._kafka.start_node(node)

    def prepare(self) -> None:
        for node in self.nodes:
            self._kafka.format_node(node)


@dataclass(frozen=True)
class ClusterTarget(Target):
    start_with: Callable[[Path, Mapping[str, str]], Cluster]


def tidemill_cluster_target() -> ClusterTarget:
    return ClusterTarget(
        "tidemill", Tidemill.version(), lambda data_dir: TidemillCluster(data_dir, {}), TidemillCluster
    )


def kafka_cluster_target() -> ClusterTarget:
    return ClusterTarget(
        "kafka", ApacheKafka.version(), lambda data_dir: KafkaCluster(data_dir, {}), KafkaCluster
    )


def on_cluster(run: Callable[[Cluster], Metrics]) -> Callable[[Broker], Metrics]:
    """A live case's function, which is given whatever the target started, from one that needs a cluster."""

    def checked(broker: Broker) -> Metrics:
        if not isinstance(broker, Cluster):
            raise RequestFailedError("this case needs a cluster")
        broker.require_up()
        return run(broker)

    return checked


def with_cluster_target(
    run: Callable[[ClusterTarget, Path], Metrics],
) -> Callable[[Target, Path], Metrics]:
    """The same for a fresh case."""

    def checked(target: Target, data_dir: Path) -> Metrics:
        if not isinstance(target, ClusterTarget):
            raise RequestFailedError("this case needs a cluster")
        return run(target, data_dir)

    return checked
