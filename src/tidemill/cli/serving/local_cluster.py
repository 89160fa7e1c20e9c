"""`tidemill cluster start`: runs a cluster on this machine, in the foreground, one process for each broker.

Every node is a broker and a voter. The first start writes `DIR/broker-N/server.properties`; later starts use the file
as it is and continue the cluster. The output of each node is prefixed with its name. A node that dies is reported and
not restarted, since the other brokers continue. `tidemill serve --config` starts it by hand.

With --status each node has a status listener, on consecutive ports. With --gateway one gateway serves the whole
cluster. This process starts it when the cluster is up and restarts it when it dies.

The nodes may have TLS and log-ins: a directory that `tidemill security init` made holds a cluster as well. The gateway then
reaches the brokers by the listener that `gateway_access` chooses, and its callers log in. Whether such a cluster is up is
read from what its nodes print, since this process has no user.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemill.cli.failures import CommandError
from tidemill.cli.options import natural, positive, properties_file
from tidemill.cli.serving.addresses import check_free, listen_address
from tidemill.cli.serving.gateway_access import gateway_access, has_login, reached
from tidemill.cli.serving.gateway_child import INSTALL_HINT, GatewayChild, missing_packages
from tidemill.cli.serving.http_listeners import (
    CLIENT_CONFIG_KEY,
    HttpListener,
    check_exposure,
    http_listener,
)
from tidemill.cli.serving.http_listeners import KEYS as HTTP_KEYS
from tidemill.cli.table import plural
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import Address
from tidemill.config import load_broker_config, parse_properties
from tidemill.errors import ConfigError, TidemillError
from tidemill.log.files import FOLDER_MODE
from tidemill.objects.opening import open_store

_HOST = "127.0.0.1"
_DEFAULT_BASE_PORT = 9092
_DEFAULT_DATA_DIR = "cluster-data"
# As this module and `tidemill security init` name them.
_NODE_FOLDERS = ("broker-*", "node-*")
_PROBE_S = 0.2
_STOP_LIMIT_S = 30.0
# A log line may contain a long record or a traceback.
_LINE_BYTES_MAX = 1 << 20
# The line that a node prints once its status listener serves.
_METRICS_LINE = re.compile(rb"Metrics at (https?://\S+)/metrics")
# The line that a node prints for each of its listeners once it serves.
_LISTENS_LINE = re.compile(rb"Tidemill \S+ listens on ")


@dataclass(frozen=True)
class LocalNode:
    """One node of the cluster: its id, addresses and configuration file."""

    id: int
    config_path: Path
    port: int
    # Where clients on this machine reach it, and the properties that they need.
    address: str
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    # Why a gateway cannot reach it; empty when it can.
    problem: str = ""

    @property
    def name(self) -> str:
        return self.config_path.parent.name

    @property
    def is_open(self) -> bool:
        """Whether clients need neither TLS nor a log-in."""
        return self.client.get("security.protocol", "PLAINTEXT") == "PLAINTEXT"


def add_verb_start(verbs: Any) -> None:
    parser: argparse.ArgumentParser = verbs.add_parser(
        "start",
        help="run a cluster on this machine until Ctrl-C",
        description="Run a cluster on this machine until Ctrl-C, one process for each broker.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(
            "examples:\n"
            "  tidemill cluster start --brokers 3\n"
            "  tidemill cluster start --gateway 127.0.0.1:8080 --status 127.0.0.1:9404\n"
            "  tidemill cluster start --brokers 3 --data-dir /var/tmp/three --base-port 19092\n"
            "  tidemill cluster start --data-dir safe --gateway https://127.0.0.1:8080    (made by `security init`)"
        ),
    )
    parser.set_defaults(run_verb=_start, program=parser.prog)
    parser.add_argument(
        "--brokers", metavar="N", type=positive, help="how many (default 3, or as many as there are)"
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        default=_DEFAULT_DATA_DIR,
        help="default ./cluster-data; one that `tidemill security init` made is a cluster, too",
    )
    parser.add_argument(
        "--base-port",
        metavar="PORT",
        type=natural,
        help=f"of the first broker, the others follow, then the controllers; 0 lets the kernel choose "
        f"(default {_DEFAULT_BASE_PORT})",
    )
    parser.add_argument(
        "--status",
        metavar="HOST:PORT",
        help="serve /metrics, /healthz, /readyz and /rebalances of the first broker here; the others' ports follow",
    )
    parser.add_argument(
        "--gateway",
        metavar="[https://]HOST:PORT",
        help="run a REST gateway with the web console of the cluster here; callers log in where the brokers have SASL",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="let the gateway listen beyond this machine without a log-in"
    )
    parser.add_argument(
        "--large-payloads",
        metavar="STORE",
        help="a folder, or a URL such as s3://bucket/prefix: where the gateway keeps large payloads",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set one configuration key of all nodes for this run; repeatable",
    )
    parser.add_argument("--log-level", default="warning", choices=("debug", "info", "warning", "error"))


def _start(arguments: argparse.Namespace) -> int:
    if arguments.gateway is not None and (missing := missing_packages()):
        raise CommandError(f"--gateway needs {', '.join(missing)}: {INSTALL_HINT}")
    gateway_options: list[str] = []
    if arguments.large_payloads is not None:
        if arguments.gateway is None:
            raise CommandError("--large-payloads is the store of a gateway: give --gateway HOST:PORT too")
        open_store(arguments.large_payloads)
        gateway_options = ["--large-payloads", arguments.large_payloads]
    data_dir = Path(arguments.data_dir)
    existing = _node_files(data_dir)
    # A new cluster is not written before what was asked for is known to be possible.
    gateway = None if existing else _gateway_listener(arguments, {}, {})
    nodes = prepare(data_dir, arguments.brokers, arguments.base_port)
    if existing and arguments.gateway is not None:
        for node in nodes:
            if node.problem:
                raise CommandError(f"{node.config_path}: {node.problem}")
        # Its certificate, where it has TLS, is the first node's.
        gateway = _gateway_listener(arguments, _properties_of(nodes[0].config_path), nodes[0].client)
    status = listen_address("--status", arguments.status) if arguments.status else None
    if status is None and gateway is not None and importlib.util.find_spec("prometheus_client") is not None:
        # Used by the gateway alone, for throughput and rebalances.
        status = Address(_HOST, 0)
    options = [word for setting in arguments.set for word in ("--set", setting)]
    options += ["--log-level", arguments.log_level]
    return asyncio.run(_Runner(nodes, options, status, gateway, gateway_options).run())


def _gateway_listener(
    arguments: argparse.Namespace, properties: Mapping[str, str], client: Mapping[str, str]
) -> HttpListener | None:
    """The gateway's address. `client` are the properties with which a node is reached."""
    if arguments.gateway is None:
        return None
    listener = http_listener("--gateway", arguments.gateway, properties, "")
    if not arguments.insecure:
        check_exposure(listener, option="--gateway", has_login=has_login(client), has_auth=False)
    if listener.address.port:
        check_free(listener.address, "--gateway")
    return listener


# --- files ---


def prepare(data_dir: Path, brokers: int | None, base_port: int | None) -> list[LocalNode]:
    """The nodes in the directory. An empty directory gets new ones."""
    existing = _node_files(data_dir)
    if existing:
        return _existing(data_dir, existing, brokers, base_port)
    count = brokers or 3
    try:
        written = _written(data_dir, count, _ports(2 * count, base_port))
    except OSError as error:
        raise CommandError(f"cannot write to {data_dir}: {error}") from None
    return [_read_node(node.config_path) for node in written]


def _node_files(data_dir: Path) -> list[Path]:
    found = (path for name in _NODE_FOLDERS for path in data_dir.glob(f"{name}/server.properties"))
    return sorted(found, key=lambda path: _number(path.parent))


def _existing(
    data_dir: Path, paths: list[Path], brokers: int | None, base_port: int | None
) -> list[LocalNode]:
    if brokers is not None and brokers != len(paths):
        raise CommandError(
            f"{data_dir} holds a cluster of {plural(len(paths), 'broker')}, not {brokers}; leave --brokers out to "
            "continue it, or name another --data-dir"
        )
    nodes = [_read_node(path) for path in paths]
    if base_port and base_port != nodes[0].port:
        raise CommandError(
            f"the cluster in {data_dir} begins at port {nodes[0].port}, not {base_port}; leave --base-port out to "
            "continue it, or change the ports in its server.properties files"
        )
    return nodes


def _read_node(path: Path) -> LocalNode:
    properties = _properties_of(path)
    try:
        config, _ = load_broker_config(
            {name: value for name, value in properties.items() if name not in HTTP_KEYS}
        )
        if not config.network.listeners:
            raise ConfigError("it describes no broker; `tidemill cluster start` runs nodes that are brokers")
    except ConfigError as error:
        raise CommandError(f"{path}: {error}") from None
    first = config.network.listeners[0]
    file = properties.get(CLIENT_CONFIG_KEY)
    try:
        listener, client = gateway_access(config, properties_file(Path(file)) if file else None)
    except ConfigError as error:
        # Only a gateway needs it.
        client = {"security.protocol": first.security_protocol}
        return LocalNode(
            config.node_id, path, first.port, str(reached(config, first, first.port)), client, str(error)
        )
    return LocalNode(config.node_id, path, first.port, str(reached(config, listener, listener.port)), client)


def _properties_of(path: Path) -> dict[str, str]:
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise CommandError(f"{path}: {error}") from None


def _written(data_dir: Path, count: int, ports: list[int]) -> list[LocalNode]:
    voters = ",".join(f"{index + 1}@{_HOST}:{ports[count + index]}" for index in range(count))
    nodes = []
    for index in range(count):
        home = (data_dir / f"broker-{index + 1}").resolve()
        data_dir.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        home.mkdir(mode=FOLDER_MODE, exist_ok=True)
        node = LocalNode(index + 1, home / "server.properties", ports[index], f"{_HOST}:{ports[index]}")
        node.config_path.write_text(
            _properties_text(node, ports[count + index], voters, count), encoding="utf-8"
        )
        nodes.append(node)
    return nodes


def _properties_text(node: LocalNode, controller_port: int, voters: str, count: int) -> str:
    copies = min(3, count)
    settings = {
        "node.id": node.id,
        "process.roles": "broker,controller",
        "listeners": f"PLAINTEXT://{node.address},CONTROLLER://{_HOST}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": voters,
        "log.dirs": node.config_path.parent / "data",
        "default.replication.factor": copies,
        "min.insync.replicas": max(1, copies - 1),
        "offsets.topic.replication.factor": copies,
    }
    lines = [f"{key}={value}".replace("\\", "\\\\") for key, value in settings.items()]
    return "\n".join(["# Written once by `tidemill cluster start`; changes made here stay.", *lines, ""])


def _ports(count: int, base_port: int | None) -> list[int]:
    if base_port != 0:
        first = base_port or _DEFAULT_BASE_PORT
        if first + count > 65_536:
            raise CommandError(f"--base-port {first} leaves no room for {count} ports")
        return list(range(first, first + count))
    held = [socket.socket() for _ in range(count)]
    try:
        # Reserved together, so that they differ.
        for each in held:
            each.bind((_HOST, 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


def _number(home: Path) -> int:
    text = home.name.rpartition("-")[2]
    return int(text) if text.isdecimal() else 0


# --- processes ---


class _Runner:
    """Runs the processes of all nodes and prints their output."""

    def __init__(
        self,
        nodes: list[LocalNode],
        options: list[str],
        status: Address | None,
        gateway: HttpListener | None,
        gateway_options: list[str],
    ) -> None:
        self._nodes = nodes
        self._options = options
        self._status = status
        self._status_urls: dict[str, str] = {}
        # The names of nodes that said that they serve.
        self._serving: set[str] = set()
        self._gateway_listener = gateway
        self._gateway_options = gateway_options
        self._gateway: GatewayChild | None = None
        self._processes: dict[str, Process] = {}
        self._stop_signals = 0
        self._stopping = asyncio.Event()
        self._is_failed = False

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._request_stop)
        lives = [loop.create_task(self._live(node)) for node in self._nodes]
        announcing = loop.create_task(self._announce())
        stopping = loop.create_task(self._stopping.wait())
        try:
            everyone = asyncio.gather(*lives)
            await asyncio.wait((everyone, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not everyone.done():
                await self._stop(everyone)
        finally:
            for task in (announcing, stopping):
                task.cancel()
            await asyncio.gather(announcing, stopping, return_exceptions=True)
            if self._gateway is not None:
                await self._gateway.stop()
        return 1 if self._is_failed else 0

    def _request_stop(self) -> None:
        self._stop_signals += 1
        self._stopping.set()
        if self._stop_signals > 1:
            self._signal(signal.SIGKILL)

    async def _live(self, node: LocalNode) -> None:
        """Run a node's process from start to end, and print its output."""
        command = [
            sys.executable,
            "-m",
            "tidemill",
            "serve",
            "--config",
            str(node.config_path),
            *self._status_option(node),
            *self._options,
        ]
        # In a session of its own: Ctrl-C at the terminal goes to this process, which stops the nodes.
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
            limit=_LINE_BYTES_MAX,
        )
        self._processes[node.name] = process
        if self._stopping.is_set():
            process.terminate()
        assert process.stdout is not None
        async for line in process.stdout:
            if served := _METRICS_LINE.match(line):
                self._status_urls[node.name] = served[1].decode()
            if _LISTENS_LINE.match(line):
                self._serving.add(node.name)
            # A node's own hint says that Ctrl-C stops that node, which is wrong here.
            if not line.startswith(b"Try:"):
                self._say(node.name, line.decode(errors="replace").rstrip("\n"))
        code = await process.wait()
        if code or not self._stopping.is_set():
            self._is_failed = True
            self._say(
                node.name,
                f"ended with {_end_text(code)}; it is not started again ({self._restart_hint(node)})",
            )

    def _status_option(self, node: LocalNode) -> list[str]:
        if self._status is None:
            return []
        port = self._status.port and self._status.port + self._nodes.index(node)
        return ["--status", str(self._status._replace(port=port))]

    def _restart_hint(self, node: LocalNode) -> str:
        return f"tidemill serve --config {node.config_path} starts it"

    async def _announce(self) -> None:
        """Wait until all brokers are up, and print that once."""
        bootstrap = ",".join(node.address for node in self._nodes)
        while not await self._is_up(bootstrap):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _PROBE_S)
                return
        print(f"A cluster of {plural(len(self._nodes), 'broker')} is up at {bootstrap}")
        option = "" if self._nodes[0].is_open else " --command-config client.properties"
        print(
            f"Try:  tidemill cluster status --bootstrap {self._nodes[0].address}{option}      "
            "(Ctrl-C stops the cluster)",
            flush=True,
        )
        if self._gateway_listener is not None:
            # Where it may listen was decided before.
            options = ["--bootstrap", bootstrap, "--insecure", *self._gateway_options]
            options += [word for url in self._status_urls.values() for word in ("--status-url", url)]
            self._gateway = GatewayChild(
                self._gateway_listener,
                options,
                lambda line: print(line, flush=True),
                client=self._nodes[0].client,
            )
            self._gateway.start()

    async def _is_up(self, bootstrap: str) -> bool:
        if all(node.is_open for node in self._nodes):
            return await asyncio.to_thread(_is_up, bootstrap, len(self._nodes))
        return len(self._serving) == len(self._nodes)

    async def _stop(self, everyone: asyncio.Future[list[None]]) -> None:
        self._signal(signal.SIGTERM)
        done, _ = await asyncio.wait((everyone,), timeout=_STOP_LIMIT_S)
        if not done:
            self._say("cluster", f"nodes that did not stop within {_STOP_LIMIT_S:g} s are killed")
            self._signal(signal.SIGKILL)
        await everyone

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running():
            process.send_signal(number)

    def _running(self) -> Iterable[Process]:
        return [process for process in self._processes.values() if process.returncode is None]

    def _say(self, name: str, text: str) -> None:
        print(f"{name} | {text}", flush=True)


def _is_up(bootstrap: str, count: int) -> bool:
    try:
        with Cluster(bootstrap, client_id="tidemill-cli", timeout_s=2.0) as cluster:
            cluster.load_metadata([])
            brokers = Admin(cluster).describe_cluster().brokers
    except TidemillError:
        return False
    return sum(not broker.is_fenced for broker in brokers) >= count


def _end_text(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
