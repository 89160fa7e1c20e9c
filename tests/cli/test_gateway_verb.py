"""`tidemill gateway`, and `tidemill serve --gateway`: the broker survives its death, and it does not outlive its broker."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from tests.brokers import Broker, eventually
from tests.cli.conftest import Run
from tests.cli.gateways import (
    answers,
    console_address,
    gateway_pids,
    start_with_gateway,
    wait_for_end,
)
from tests.processes import is_alive
from tidemill.claims.large_payloads import LargePayloads
from tidemill.cli.serving import addresses
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import Address
from tidemill.client.producing import producer
from tidemill.protocol.records import Header

pytest.importorskip("uvicorn", reason="needs tidemill[gateway]")


@pytest.fixture
def with_gateway(tmp_path: Path) -> Iterator[Broker]:
    with start_with_gateway(tmp_path / "data") as broker:
        yield broker


class _Load:
    """A producer that writes all the time, from its beginning to `stop`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acked = 0
        self.errors: list[str] = []
        self._topic = topic
        self._is_over = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 1, "retries": 0, "error_cb": self._fail}
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(20) == 0

    def _run(self) -> None:
        while not self._is_over.wait(0.002):
            self._producer.produce(self._topic, b"x", on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acked += 1
        else:
            self.errors.append(str(error))

    def _fail(self, error: KafkaError) -> None:
        self.errors.append(str(error))


def test_a_killed_gateway_comes_back_and_producers_notice_nothing(with_gateway: Broker) -> None:
    address = console_address(with_gateway)
    with Cluster(with_gateway.bootstrap) as cluster:
        Admin(cluster).create_topic("orders")
    load = _Load(with_gateway.bootstrap, "orders")
    try:
        (first,) = gateway_pids(with_gateway)
        os.kill(first, signal.SIGKILL)
        wait_for_end(first)
        before = load.acked
        eventually(lambda: load.acked > before + 10, "the producer goes on without a gateway")
        # The kernel chose the port at first; the address stays good nevertheless.
        eventually(lambda: answers(address), "the gateway answers again", 60)
    finally:
        load.stop()
    assert load.errors == []
    assert gateway_pids(with_gateway) != [first]
    assert with_gateway.log().count("the gateway ended (signal SIGKILL)") == 1


def test_the_gateway_ends_with_a_broker_that_is_stopped(with_gateway: Broker) -> None:
    address = console_address(with_gateway)
    (pid,) = gateway_pids(with_gateway)
    assert with_gateway.stop() == 0
    assert not is_alive(pid)
    assert not answers(address)


def test_the_gateway_ends_with_a_broker_that_is_killed(with_gateway: Broker) -> None:
    console_address(with_gateway)
    (pid,) = gateway_pids(with_gateway)
    with_gateway.kill()
    wait_for_end(pid)


def test_a_broker_stops_while_its_gateway_still_starts(tmp_path: Path) -> None:
    with start_with_gateway(tmp_path / "data") as broker:
        (pid,) = eventually(lambda: gateway_pids(broker), "the gateway is started")
        assert broker.stop() == 0
    assert not is_alive(pid)


def test_a_status_port_that_is_taken_does_not_stop_the_broker(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status = f"127.0.0.1:{taken.getsockname()[1]}"
        with start_with_gateway(tmp_path / "data", **{"tidemill.status.listener": status}) as broker:
            with Cluster(broker.bootstrap) as cluster:
                Admin(cluster).create_topic("orders")
            lines = broker.log().splitlines()
    (line,) = (each for each in lines if status in each)
    assert "give --status another address" in line


@pytest.mark.parametrize(
    "command", [("serve", "--listen", "127.0.0.1:0"), ("cluster", "start", "--base-port", "0")]
)
def test_a_gateway_port_that_is_taken_stops_the_start(
    cli: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    data_dir = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gateway = f"127.0.0.1:{taken.getsockname()[1]}"
        failed = cli(*command, "--data-dir", str(data_dir), "--gateway", gateway)
    assert failed.error == (
        f"tidemill {' '.join(command[: 1 + (command[0] == 'cluster')])}: cannot listen on {gateway}: address already "
        "in use; --gateway HOST:PORT names another address"
    )
    assert not data_dir.exists()


def test_the_gateway_of_a_broker_has_the_store_of_large_payloads(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    settings = {
        "tidemill.gateway.large.payloads": str(store),
        "tidemill.gateway.large.payload.bytes": "100",
        "tidemill.gateway.store.alias": "file:///mounted/elsewhere",
    }
    with start_with_gateway(tmp_path / "data", **settings) as broker:
        with Cluster(broker.bootstrap) as cluster:
            Admin(cluster).create_topic("scans")
            claim = LargePayloads(str(store)).put("scans", b"another")
            elsewhere = replace(
                claim, uri=claim.uri.replace(store.as_uri(), settings["tidemill.gateway.store.alias"])
            )
            sender = producer.Producer(cluster)
            sender.add("scans", b"", headers=[Header(*each) for each in elsewhere.headers()])
            sender.flush()
        connection = http.client.HTTPConnection(console_address(broker), timeout=30)
        connection.request("POST", "/v1/topics/scans/produce", b"x" * 1000, {"content-type": "text/plain"})
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (200, True)
        connection.request("GET", "/v1/topics/scans/records?limit=1")
        answer = connection.getresponse()
        assert (answer.status, b'"another"' in answer.read()) == (200, True)
        connection.close()
    stored = {path.read_bytes() for path in store.rglob("*") if path.is_file()}
    assert stored == {b"x" * 1000, b"another"}


@pytest.mark.parametrize("command", [("serve",), ("cluster", "start")])
def test_a_store_of_large_payloads_that_cannot_be_stops_the_start(
    cli: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    start = (*command, "--data-dir", str(tmp_path / "data"), "--large-payloads")
    assert "give --gateway HOST:PORT too" in cli(*start, str(tmp_path)).error
    assert "object store ftp://host" in cli(*start, "ftp://host", "--gateway", "127.0.0.1:0").error
    assert not (tmp_path / "data").exists()


def test_a_broker_waits_for_the_gateway_of_its_predecessor_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    address = Address("127.0.0.1", taken.getsockname()[1])
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        taken.close()

    monkeypatch.setattr("time.sleep", pause)
    addresses.check_free(address, "--gateway")
    assert len(pauses) == 1


def test_without_the_extra_a_broker_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Run
) -> None:
    # A module that is None cannot be imported, as if it were not installed.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['starlette'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with start_with_gateway(tmp_path / "data") as broker:
        (line,) = eventually(
            lambda: [each for each in broker.log().splitlines() if "gateway" in each], "the broker says so"
        )
        assert "starlette: pip install 'tidemill[gateway]'" in line
        assert gateway_pids(broker) == []
    failure = cli("gateway", "--listen", "127.0.0.1:0").error
    assert failure == "tidemill gateway: the gateway needs starlette: pip install 'tidemill[gateway]'"


def test_gateway_runs_until_sigterm(spawn: Callable[..., subprocess.Popen[bytes]]) -> None:
    gateway = spawn("gateway", "--listen", "127.0.0.1:0", stdout=subprocess.PIPE)
    assert gateway.stdout is not None
    line = gateway.stdout.readline().decode()
    address = line.removeprefix("Console at http://").removesuffix("/\n")
    assert answers(address)
    gateway.send_signal(signal.SIGTERM)
    assert gateway.wait(30) == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--listen", "nowhere"), "--listen"),
        (("--bootstrap", ":"), "is not an address"),
        (("--auth", "no_such_module:check"), "no_such_module:check cannot be loaded"),
        (("--command-config", "/no/such/file"), "cannot read /no/such/file"),
        (("--allow-origin", "example"), "'example' is not an origin"),
    ],
)
def test_refuses_what_it_cannot_use(cli: Run, words: tuple[str, ...], reason: str) -> None:
    assert reason in cli("gateway", "--listen", "127.0.0.1:0", *words).error
