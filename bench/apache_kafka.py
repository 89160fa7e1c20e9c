"""Starts Apache Kafka beside Tidemill, to measure against and to compare answers with.

The jars come from Maven Central through `bench/kafka/pom.xml`, once, into `bench/kafka/target/jars`. A cluster of
`nodes` processes runs in KRaft combined mode (each node broker and controller). It has Kafka's defaults, and the heap
and collector of Kafka's own start script. One machine forces only a few settings on it: listeners, directories,
internal topics replicated no further than there are nodes. Ports are chosen here, because a controller's port is
written into the storage directory before its process starts.

    reason = ApacheKafka.available()          # None, or one line that says what is missing
    with ApacheKafka(data_dir, overrides={"num.partitions": "3"}) as kafka:
        kafka.bootstrap, kafka.pid, kafka.started_seconds

`python -m bench.apache_kafka run` prints the bootstrap address and waits for Ctrl-C.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from bench import maven
from bench.processes import stop_processes

HERE = Path(__file__).resolve().parent / "kafka"
JARS = HERE / "target" / "jars"
JAVA_VERSION_MIN = 17
HEAP = ("-Xmx1G", "-Xms1G")
COLLECTOR = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 30.0
LOG_TAIL_LINES = 30


class KafkaUnavailableError(RuntimeError):
    """Apache Kafka cannot run here; the message says what to install."""


class KafkaFailedError(RuntimeError):
    """Apache Kafka could run but did not come up; the message ends with the tail of its log."""


@dataclass
class Node:
    node_id: int
    host: str
    client_port: int
    controller_port: int
    data_dir: Path
    process: subprocess.Popen[bytes] | None = None
    directory_id: str = field(default_factory=lambda: _uuid_text())

    @property
    def address(self) -> str:
        return f"{self.host}:{self.client_port}"

    @property
    def config_path(self) -> Path:
        return self.data_dir / "server.properties"

    @property
    def log_path(self) -> Path:
        return self.data_dir / "server.log"

    def log_tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []
        return "\n".join(lines[-LOG_TAIL_LINES:])


class ApacheKafka:
    """One cluster of Apache Kafka, alive inside its `with` block."""

    def __init__(self, data_dir: str | Path, overrides: Mapping[str, str] | None = None, *, nodes: int = 1):
        self.data_dir = Path(data_dir)
        self.overrides = dict(overrides or {})
        self.cluster_id = _uuid_text()
        self.started_seconds = 0.0
        ports = free_ports(2 * nodes)
        self.nodes = [
            Node(i + 1, "127.0.0.1", ports[2 * i], ports[2 * i + 1], self.data_dir / f"node-{i + 1}")
            for i in range(nodes)
        ]

    @staticmethod
    def available() -> str | None:
        """None when Apache Kafka can run here and its jars are there; else one line: what is missing."""
        try:
            _require_java()
            _require_jars()
        except KafkaUnavailableError as missing:
            return str(missing)
        return None

    @staticmethod
    def version() -> str:
        return maven.property_of(HERE, "kafka.version")

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes)

    @property
    def pid(self) -> int:
        return self.pids[0]

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(node.process.pid for node in self.nodes if node.process is not None)

    def __enter__(self) -> ApacheKafka:
        _require_java()
        _require_jars()
        for node in self.nodes:
            self.format_node(node)
        started = time.monotonic()
        with ExitStack() as on_failure:
            on_failure.callback(self.stop)
            for node in self.nodes:
                self.start_node(node)
            for node in self.nodes:
                self._await(node, started + START_SECONDS_MAX)
            on_failure.pop_all()
        self.started_seconds = time.monotonic() - started
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_node(self, node: Node) -> None:
        with node.log_path.open("ab") as log:
            node.process = subprocess.Popen(
                _java(*HEAP, *COLLECTOR, main="kafka.Kafka", args=[str(node.config_path)]),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def stop(self) -> None:
        """A clean stop of every node; what does not stop in time is killed."""
        running = [node.process for node in self.nodes if node.process is not None]
        stop_processes(running, STOP_SECONDS_MAX)
        for node in self.nodes:
            node.process = None

    def properties(self, node: Node) -> dict[str, str]:
        """The settings of one node: Kafka's defaults but for what one machine and this many nodes force."""
        replicas = str(min(3, len(self.nodes)))
        in_sync_min = str(min(2, len(self.nodes)))
        listeners = f"PLAINTEXT://{node.address},CONTROLLER://{node.host}:{node.controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": str(node.node_id),
            "listeners": listeners,
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.bootstrap.servers": ",".join(
                f"{n.host}:{n.controller_port}" for n in self.nodes
            ),
            "log.dirs": str(node.data_dir / "log"),
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync_min,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync_min,
        } | self.overrides

    def format_node(self, node: Node) -> None:
        node.data_dir.mkdir(parents=True, exist_ok=True)
        lines = [f"{key}={value}\n" for key, value in self.properties(node).items()]
        node.config_path.write_text("".join(lines))
        voters = ",".join(f"{n.node_id}@{n.host}:{n.controller_port}:{n.directory_id}" for n in self.nodes)
        quorum = ["--standalone"] if len(self.nodes) == 1 else ["--initial-controllers", voters]
        args = ["format", "--ignore-formatted", "-t", self.cluster_id, "-c", str(node.config_path), *quorum]
        done = subprocess.run(
            _java("-Xmx256M", "-XX:TieredStopAtLevel=1", main="kafka.tools.StorageTool", args=args),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            raise KafkaFailedError(f"formatting {node.data_dir} failed:\n{done.stdout}")

    def _await(self, node: Node, deadline: float) -> None:
        """Return once the node answers a Metadata request that lists every broker."""
        while True:
            assert node.process is not None
            if node.process.poll() is not None:
                reason = f"Apache Kafka node {node.node_id} ended with status {node.process.returncode}"
                raise KafkaFailedError(f"{reason}:\n{node.log_tail()}")
            with suppress(OSError, struct.error):
                if _brokers_known(node.host, node.client_port) >= len(self.nodes):
                    return
            if time.monotonic() > deadline:
                raise KafkaFailedError(
                    f"Apache Kafka node {node.node_id} did not answer within {START_SECONDS_MAX:.0f} s:\n"
                    f"{node.log_tail()}"
                )
            time.sleep(0.02)


def _java(*options: str, main: str, args: list[str]) -> list[str]:
    log4j = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
    return [_java_path() or "java", *options, log4j, "-cp", f"{JARS}/*", main, *args]


def _java_path() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


def _require_java() -> None:
    java = _java_path()
    if java is None:
        raise KafkaUnavailableError(f"Apache Kafka needs Java {JAVA_VERSION_MIN} or newer: install a JRE")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True).stderr
    match = re.search(r'version "(\d+)', shown)
    if match is None or int(match.group(1)) < JAVA_VERSION_MIN:
        first_line = shown.splitlines()[0] if shown else "no version"
        raise KafkaUnavailableError(
            f"Apache Kafka needs Java {JAVA_VERSION_MIN} or newer, found {first_line}"
        )


def _require_jars() -> None:
    try:
        maven.jars(HERE, "Apache Kafka")
    except maven.JarsMissingError as missing:
        raise KafkaUnavailableError(str(missing)) from None


def free_ports(count: int) -> list[int]:
    """Ports that the kernel chose, all held at once so that they differ."""
    held = [socket.socket() for _ in range(count)]
    try:
        for sock in held:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in held]
    finally:
        for sock in held:
            sock.close()


def _brokers_known(host: str, port: int) -> int:
    """How many brokers the node lists: Metadata v1 with no topics, written by hand to depend on nothing."""
    body = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 0)
    with socket.create_connection((host, port), timeout=5) as sock:
        sock.sendall(struct.pack(">i", len(body)) + body)
        reply = sock.recv(12, socket.MSG_WAITALL)
    return int(struct.unpack(">iii", reply)[2])


def _uuid_text() -> str:
    """A uuid as Kafka writes it: 22 characters of URL-safe base64. A leading dash would read as an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def _run(data_dir: str | None, nodes: int, overrides: Mapping[str, str]) -> int:
    missing = ApacheKafka.available()
    if missing:
        print(missing, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="apache-kafka-") as scratch:
        kafka = ApacheKafka(data_dir or scratch, overrides, nodes=nodes)
        with suppress(KeyboardInterrupt), kafka:
            print(f"Apache Kafka {kafka.version()} listens on {kafka.bootstrap}", flush=True)
            signal.pause()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.apache_kafka", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="start a cluster, print its address, wait for Ctrl-C")
    run.add_argument("--data-dir", help="default: a temporary directory, removed at the end")
    run.add_argument("--nodes", type=int, default=1)
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a broker setting")
    options = parser.parse_args()
    overrides = dict(pair.split("=", 1) for pair in options.set)
    return _run(options.data_dir, options.nodes, overrides)


if __name__ == "__main__":
    sys.exit(main())
