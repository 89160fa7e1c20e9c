"""Clusters of real processes, each node started as its user starts it: a `server.properties` file and one command.

`Cluster(3, folder)` writes three files as one writes them for KRaft, starts the processes, and kills, stops, pauses and
starts them again by their id. What it knows of the cluster it asks over the wire. When a test fails inside its `with`
block, the ends of the nodes' logs are printed.

Ports have to be in the files before a broker listens, so they are chosen here: at a loopback address that belongs to
this process alone. No other process takes them meanwhile.

With `TIDEMILL_CLUSTER_OF=apache-kafka` the same files start Apache Kafka. That is how the tests are proved. With
`TIDEMILL_CLUSTER_SECURED=1` (`make cluster SECURED=1`) nodes reach each other over TLS with SCRAM; clients, which are the
tests', keep their listener.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

import pytest
from bench.apache_kafka import HERE as KAFKA_FILES
from bench.apache_kafka import JARS, ApacheKafka

from tests.brokers import RunningBroker, command, eventually
from tests.certificates import Authority
from tests.secured import SCRAM_LOGIN, credentials
from tests.wire.connection import Connection, ConnectionClosedError

IS_SECURED = os.environ.get("TIDEMILL_CLUSTER_SECURED", "") not in ("", "0")
IS_APACHE_KAFKA = os.environ.get("TIDEMILL_CLUSTER_OF") == "apache-kafka"
START_LIMIT_S = 180.0
STOP_LIMIT_S = 45.0
ASK_LIMIT_S = 5.0
LOG_TAIL_LINES = 60
METADATA_TOPIC = "__cluster_metadata"

# What a test should not wait for; nothing here is about replication.
DEFAULTS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
}
# A dead broker is noticed in two seconds instead of nine.
QUICK_FENCING = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "250"}

Answer = TypeVar("Answer")
_folders = itertools.count(1)


class Program(Protocol):
    """A program that runs a `server.properties` file."""

    def prepare(self, config: Path) -> None: ...
    def serve(self, config: Path) -> list[str]: ...


class Tidemill:
    def prepare(self, config: Path) -> None:
        """There is no format step."""

    def serve(self, config: Path) -> list[str]:
        return [*command(), "serve", "--config", str(config)]


class Kafka:
    def __init__(self) -> None:
        missing = ApacheKafka.available()
        if missing:
            pytest.skip(missing)
        self._cluster_id = "AAAA" + uuid.uuid4().hex[:18]

    def prepare(self, config: Path) -> None:
        arguments = ["format", "--ignore-formatted", "-t", self._cluster_id, "-c", str(config)]
        done = subprocess.run(
            self._java("-Xmx128M", "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", *arguments),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def serve(self, config: Path) -> list[str]:
        return self._java("-Xmx512M", "-Xms512M", "-XX:TieredStopAtLevel=1", "kafka.Kafka", str(config))

    def _java(self, *arguments: str) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={KAFKA_FILES / 'log4j2.properties'}"
        return [shutil.which("java") or "java", log4j, "-cp", f"{JARS}/*", *arguments]


@dataclass
class ClusterNode(RunningBroker):
    """`host` and `port` are those of its listener for clients."""

    id: int
    roles: str
    controller_port: int
    folder: Path
    data_dir: Path
    wrapper: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = None
    is_paused: bool = False

    @property
    def is_broker(self) -> bool:
        return "broker" in self.roles

    @property
    def is_running(self) -> bool:
        return self.process is not None and not self.is_paused

    @property
    def config_path(self) -> Path:
        return self.folder / "server.properties"

    @property
    def log_path(self) -> Path:
        return self.folder / "server.log"

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""


@dataclass(frozen=True)
class Place:
    """The address of a node, and the beginning of its command line (to run it in a network namespace, say)."""

    host: str
    port: int
    controller_port: int
    wrapper: Sequence[str] = field(default=())


class NodeSecurity:
    """TLS and SCRAM between nodes, brokers and controllers alike, on listeners of their own beside the clients'."""

    USER, PASSWORD = "node", "the nodes' own secret"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._authority = Authority(folder)

    def secured(
        self, properties: Mapping[str, str], node: ClusterNode, password: str = PASSWORD
    ) -> dict[str, str]:
        certificate = self._authority.issue(f"node-{node.id}", hosts=(node.host,))
        login = f"{SCRAM_LOGIN} {credentials(self.USER, password)};"
        between_brokers = {
            "listeners": f"{properties['listeners']},NODES://{node.host}:0",
            "inter.broker.listener.name": "NODES",
            "listener.name.nodes.scram-sha-512.sasl.jaas.config": login,
        }
        return {
            **properties,
            **(between_brokers if node.is_broker else {}),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_SSL,NODES:SASL_SSL",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "sasl.mechanism.controller.protocol": "SCRAM-SHA-512",
            "listener.name.controller.scram-sha-512.sasl.jaas.config": login,
            "ssl.keystore.location": str(certificate),
            "ssl.truststore.location": str(self._authority.path),
        }


@dataclass(frozen=True)
class PartitionState:
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class Cluster:
    """Brokers 1 to `brokers`. `controllers` names the voters, by default all of them; other ids are controllers only."""

    def __init__(
        self,
        brokers: int,
        folder: Path,
        *,
        controllers: Sequence[int] = (),
        settings: Mapping[str, str] | None = None,
        places: Mapping[int, Place] | None = None,
        data_dirs: Mapping[int, Path] | None = None,
    ) -> None:
        self._program: Program = Kafka() if IS_APACHE_KAFKA else Tidemill()
        self._settings = DEFAULTS | dict(settings or {})
        voters = tuple(controllers) or tuple(range(1, brokers + 1))
        ids = sorted({*range(1, brokers + 1), *voters})
        places = places or _places(ids)
        self.folder = folder / f"cluster-{next(_folders)}"
        self._data_dirs = data_dirs or {}
        self._security = NodeSecurity(self.folder) if IS_SECURED else None
        self.nodes: dict[int, ClusterNode] = {}
        for node_id in ids:
            roles = [
                role
                for role, is_played in (("broker", node_id <= brokers), ("controller", node_id in voters))
                if is_played
            ]
            self._add(node_id, ",".join(roles), places[node_id])

    def _add(self, node_id: int, roles: str, place: Place) -> None:
        own_folder = self.folder / f"node-{node_id}"
        self.nodes[node_id] = ClusterNode(
            host=place.host,
            port=place.port,
            id=node_id,
            roles=roles,
            controller_port=place.controller_port,
            folder=own_folder,
            data_dir=self._data_dirs.get(node_id, own_folder / "data"),
            wrapper=place.wrapper,
        )

    def join(self, node_id: int) -> None:
        """A broker with no data joins; `await_up` waits for it."""
        self._add(node_id, "broker", _places([node_id])[node_id])
        self._write(self.nodes[node_id])
        self.start(node_id)

    # -- files -----------------------------------------------------------------------------------------------

    def properties(self, node: ClusterNode) -> dict[str, str]:
        listeners = []
        if node.is_broker:
            listeners.append(f"PLAINTEXT://{node.bootstrap}")
        if "controller" in node.roles:
            listeners.append(f"CONTROLLER://{node.host}:{node.controller_port}")
        voters = [each for each in self.nodes.values() if "controller" in each.roles]
        properties = {
            "node.id": str(node.id),
            "process.roles": node.roles,
            "listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.quorum.voters": ",".join(
                f"{each.id}@{each.host}:{each.controller_port}" for each in voters
            ),
            "log.dirs": str(node.data_dir),
        }
        if node.is_broker:
            properties["inter.broker.listener.name"] = "PLAINTEXT"
        if self._security is not None:
            properties = self._security.secured(properties, node)
        return properties | self._settings

    def _write(self, node: ClusterNode) -> None:
        node.folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{key}={value}\n" for key, value in self.properties(node).items()]
        node.config_path.write_text("".join(lines))
        self._program.prepare(node.config_path)

    # -- processes -------------------------------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        try:
            for node in self.nodes.values():
                self._write(node)
            for node_id in self.nodes:
                self.start(node_id)
            self.await_up()
        except BaseException:
            self._end(is_failed=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(is_failed=kind is not None)

    def _end(self, *, is_failed: bool) -> None:
        if is_failed:
            print(self.report())
        for node in self.nodes.values():
            if node.process is not None:
                self.kill(node.id)

    def start(self, node_id: int) -> None:
        """Returns at once; `await_up` waits."""
        node = self.nodes[node_id]
        assert node.process is None, f"node {node_id} runs"
        with node.log_path.open("ab") as log:
            node.process = subprocess.Popen(
                [*node.wrapper, *self._program.serve(node.config_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self, node_id: int) -> None:
        """`kill -9`."""
        node = self.nodes[node_id]
        assert node.process is not None, f"node {node_id} does not run"
        node.process.kill()
        node.process.wait(STOP_LIMIT_S)
        node.process, node.is_paused = None, False

    def stop(self, node_id: int) -> None:
        """SIGTERM, and a clean end."""
        node = self.nodes[node_id]
        assert node.process is not None, f"node {node_id} does not run"
        node.process.terminate()
        code = node.process.wait(STOP_LIMIT_S)
        node.process = None
        assert code == (128 + signal.SIGTERM if IS_APACHE_KAFKA else 0), (
            f"node {node_id} ended with {code}\n{node.log()[-4000:]}"
        )

    def restart_if_ended(self, node_id: int) -> None:
        node = self.nodes[node_id]
        if node.process is not None and node.process.poll() is not None:
            node.process = None
            self.start(node_id)

    def pause(self, node_id: int) -> None:
        self._signal(node_id, signal.SIGSTOP)
        self.nodes[node_id].is_paused = True

    def resume(self, node_id: int) -> None:
        self._signal(node_id, signal.SIGCONT)
        self.nodes[node_id].is_paused = False

    def _signal(self, node_id: int, number: signal.Signals) -> None:
        process = self.nodes[node_id].process
        assert process is not None, f"node {node_id} does not run"
        process.send_signal(number)

    def report(self) -> str:
        """The ends of all logs, for the report of a failed test."""
        parts = []
        for node in self.nodes.values():
            state = "down" if node.process is None else "paused" if node.is_paused else "up"
            if node.process is not None and (code := node.process.poll()) is not None:
                state = f"ended with {code}"
            tail = "\n".join(node.log().splitlines()[-LOG_TAIL_LINES:])
            parts.append(f"---- node {node.id} ({node.roles}, {node.bootstrap}, {state})\n{tail}")
        return "\n".join(parts)

    # -- asking ----------------------------------------------------------------------------------------------

    @property
    def brokers(self) -> list[ClusterNode]:
        return [node for node in self.nodes.values() if node.is_broker]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.brokers)

    def running(self) -> list[ClusterNode]:
        return [node for node in self.brokers if node.is_running]

    def others(self, node_id: int) -> list[ClusterNode]:
        return [node for node in self.running() if node.id != node_id]

    def await_up(self, nodes: Sequence[ClusterNode] | None = None) -> None:
        """Waits until each of the running brokers lists all of them."""
        nodes = self.running() if nodes is None else nodes
        wanted = {node.id for node in nodes}

        def is_known(node: ClusterNode) -> bool:
            ended = [
                each.id for each in self.nodes.values() if each.process and each.process.poll() is not None
            ]
            assert not ended, f"nodes {ended} ended by themselves"
            answer = self.ask(lambda connection: connection.request("metadata", 12, topics=[]), node)
            return answer is not None and wanted <= {broker.node_id for broker in answer.brokers}

        for node in nodes:
            eventually(
                functools.partial(is_known, node), f"node {node.id} lists {sorted(wanted)}", START_LIMIT_S
            )

    def ask(self, question: Callable[[Connection], Answer], node: ClusterNode) -> Answer | None:
        """None when the node does not answer."""
        if not node.is_running:
            return None
        with contextlib.suppress(OSError, ConnectionClosedError):
            node_now = RunningBroker(node.host, node.port)
            with Connection(node_now, ASK_LIMIT_S) as connection:
                return question(connection)
        return None

    def state(
        self, topic: str, partition: int, nodes: Sequence[ClusterNode] | None = None
    ) -> PartitionState | None:
        """Returns the newest state of a partition that any node knows; None while it has no leader."""
        found: list[PartitionState] = []
        for node in self.running() if nodes is None else nodes:
            described = self.ask(lambda connection: connection.metadata(topic), node)
            for each in described.partitions if described else ():
                if each.partition_index == partition:
                    found.append(
                        PartitionState(
                            each.leader_id,
                            each.leader_epoch,
                            tuple(each.replica_nodes),
                            tuple(each.isr_nodes),
                        )
                    )
        known = max(found, key=lambda state: state.leader_epoch, default=None)
        return known if known is not None and known.leader >= 0 else None

    def leader_of(self, topic: str, partition: int = 0, nodes: Sequence[ClusterNode] | None = None) -> int:
        state = eventually(
            lambda: self.state(topic, partition, nodes), f"a leader of {topic}-{partition}", START_LIMIT_S
        )
        return state.leader

    def await_other_leader(self, topic: str, partition: int, than: int) -> int:
        """Waits until the rest of the cluster has moved the leadership away from a node; returns the new leader."""

        def other() -> int | None:
            state = self.state(topic, partition, self.others(than))
            return state.leader if state is not None and state.leader != than else None

        return eventually(other, f"another leader of {topic}-{partition} than {than}", START_LIMIT_S)

    def await_in_sync(self, topic: str, partitions: int) -> None:
        """Waits until all running brokers report every replica of every partition as in sync."""

        def is_in_sync(partition: int) -> bool:
            states = [self.state(topic, partition, [node]) for node in self.running()]
            return all(state is not None and set(state.isr) == set(state.replicas) for state in states)

        for partition in range(partitions):
            eventually(
                functools.partial(is_in_sync, partition),
                f"all replicas of {topic}-{partition} in sync: {self.state(topic, partition)}",
                START_LIMIT_S,
            )

    def active_controller(self, nodes: Sequence[ClusterNode] | None = None) -> int:
        """As these nodes see it."""

        def leader() -> int | None:
            asked = [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
            for node in self.running() if nodes is None else nodes:
                answer = self.ask(
                    lambda connection: connection.request("describe_quorum", 1, topics=asked), node
                )
                if answer is not None and answer.error_code == 0:
                    (described,) = answer.topics[0].partitions
                    if described.error_code == 0 and described.leader_id >= 0:
                        return int(described.leader_id)
            return None

        return eventually(leader, "an active controller", START_LIMIT_S)

    def create_topic(self, topic: str, partitions: int) -> None:
        """Creates it and waits until all replicas are in sync."""
        assert self.try_to_create_topic(topic, self.running(), partitions)
        self.await_in_sync(topic, partitions)

    def try_to_create_topic(
        self, topic: str, nodes: Sequence[ClusterNode], partitions: int = 1, limit_ms: int = 20_000
    ) -> bool | None:
        """Whether it was created, asking one of these nodes; None when it does not answer."""
        new = {"name": topic, "num_partitions": partitions, "replication_factor": min(3, len(self.brokers))}

        def created(connection: Connection) -> Any:
            return connection.request("create_topics", 7, topics=[new], timeout=limit_ms).topics[0]

        answer = self.ask(created, nodes[0])
        return None if answer is None else answer.error_code == 0


def _places(ids: Sequence[int]) -> dict[int, Place]:
    """Ports that the kernel chose, all held at once so that they differ."""
    with contextlib.ExitStack() as stack:
        ports = iter([_free_port(stack, _own_host()) for _ in range(2 * len(ids))])
        return {node_id: Place(_own_host(), next(ports), next(ports)) for node_id in ids}


def _free_port(stack: contextlib.ExitStack, host: str) -> int:
    sock = stack.enter_context(socket.socket())
    sock.bind((host, 0))
    port: int = sock.getsockname()[1]
    return port


def _own_host() -> str:
    """A loopback address that no other process is likely to use; the usual one where the system has only that."""
    host = f"127.{1 + os.getpid() // 250 % 250}.{1 + os.getpid() % 250}.1"
    with socket.socket() as sock:
        try:
            sock.bind((host, 0))
        except OSError:
            return "127.0.0.1"
    return host
