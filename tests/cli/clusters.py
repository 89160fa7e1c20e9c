"""Starts clusters for the commands under test with the command for it: `tidemill cluster start`.

`RunningCluster` is a cluster that was started elsewhere. With
`TIDEMILL_CLUSTER_BOOTSTRAP=host:port,host:port,host:port`, the tests that only speak the protocol run against that one.
So their expectations are proved against Apache Kafka.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.brokers import STOP_LIMIT_S, command, eventually
from tests.processes import living_processes
from tidemill.config import load_broker_config, parse_properties

CLUSTER_BOOTSTRAP = os.environ.get("TIDEMILL_CLUSTER_BOOTSTRAP")
START_LIMIT_S = 60.0
_IS_UP = re.compile(r"^A cluster of .* is up at (?P<bootstrap>\S+)$", re.MULTILINE)
# A dead broker is noticed soon, but not so soon that a busy machine loses a live one.
_SETTINGS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


@dataclass
class RunningCluster:
    bootstrap: str


@dataclass
class LocalCluster(RunningCluster):
    process: subprocess.Popen[bytes]
    data_dir: Path
    log_path: Path

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def stop(self) -> int:
        """As Ctrl-C does; what does not stop is killed, and the test fails."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(2 * STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            for pid in self.node_pids().values():
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the cluster did not stop\n{self.log()}") from None

    def node_pids(self) -> dict[int, int]:
        """The nodes' processes by node id: children of the command, distinguished by their configuration file."""
        pids = {}
        for process in living_processes():
            found = re.search(r"/broker-(\d+)/server\.properties", process.arguments)
            if process.parent_pid == self.process.pid and found:
                pids[int(found[1])] = process.pid
        return pids

    def config_path(self, node_id: int) -> Path:
        return self.data_dir / f"broker-{node_id}" / "server.properties"

    def address(self, node_id: int) -> str:
        config, _ = load_broker_config(parse_properties(self.config_path(node_id).read_text()))
        return f"127.0.0.1:{config.network.listeners[0].port}"


def start_cluster(data_dir: Path, *options: str) -> LocalCluster:
    """Returns when the command has said that all brokers are up."""
    log_path = data_dir.with_name(data_dir.name + ".log")
    settings = [word for key, value in _SETTINGS.items() for word in ("--set", f"{key}={value}")]
    arguments = [*command(), "cluster", "start", "--data-dir", str(data_dir), *settings, *options]
    already_read = log_path.stat().st_size if log_path.exists() else 0
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=os.environ
        )
    cluster = LocalCluster("", process, data_dir, log_path)

    def announced() -> re.Match[str] | None:
        if process.poll() is not None:
            raise AssertionError(f"the cluster ended with {process.returncode}\n{cluster.log()}")
        return _IS_UP.search(cluster.log()[already_read:])

    try:
        found = eventually(announced, "the cluster is up", START_LIMIT_S)
    except AssertionError as error:
        cluster.stop()
        raise AssertionError(f"{error}\n{cluster.log()}") from None
    cluster.bootstrap = found["bootstrap"]
    return cluster


def serve_by_hand(cluster: LocalCluster, node_id: int) -> subprocess.Popen[bytes]:
    settings = [word for key, value in _SETTINGS.items() for word in ("--set", f"{key}={value}")]
    with cluster.log_path.open("ab") as log:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tidemill",
                "serve",
                "--config",
                str(cluster.config_path(node_id)),
                *settings,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
