"""`tidemill doctor`: every mistake that it knows is made here, and has to be found and explained."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.brokers import Broker, command
from tests.cli.conftest import LIMIT_S, Run
from tests.interop.test_tls import Certificates, TlsProxy
from tidemill.testing import InProcessBroker, InProcessCluster

NOWHERE = "no-such-host.invalid:9092"


class Report(NamedTuple):
    code: int
    checks: list[dict[str, Any]]

    def one(self, check: str, verdict: str | None = None) -> dict[str, Any]:
        found = [
            each for each in self.checks if each["check"] == check and verdict in (None, each["verdict"])
        ]
        assert len(found) == 1, self
        return found[0]

    @property
    def problems(self) -> list[dict[str, Any]]:
        return [each for each in self.checks if each["verdict"] == "problem"]

    @property
    def only_problem(self) -> str:
        (found,) = self.problems
        assert found["remedy"], "a problem says how to mend it"
        assert self.code == 1
        return f"{found['check']}: {found['text']} -> {found['remedy']}"


def doctor(*words: str) -> Report:
    done = subprocess.run(
        [*command(), "doctor", "--json", *words], capture_output=True, timeout=LIMIT_S, check=False
    )
    assert done.stderr == b"", done.stderr.decode()
    return Report(done.returncode, json.loads(done.stdout)["checks"])


@pytest.fixture
def http_port() -> Iterator[int]:
    """Something that answers as a web server does."""
    import http.server
    import threading

    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_healthy_broker_has_no_problems(start: Callable[..., Broker]) -> None:
    broker = start()
    report = doctor("--bootstrap", broker.bootstrap, "--data-dir", str(broker.data_dir))
    # The machine's own disk and memory may be short, which is no fault of the broker.
    assert {each["check"] for each in report.problems} <= {"disk of broker 1", "space", "inodes"}
    assert report.one("advertised address of broker 1")["text"] == f"{broker.bootstrap} leads to it"
    assert report.one("lock")["text"] == f"in use by the broker with pid {broker.pid}"
    assert report.one("clock")["verdict"] == "ok"


def test_text_names_what_to_do_and_ends_with_a_count(cli: Run) -> None:
    result = cli("doctor", "--bootstrap", NOWHERE)
    assert result.code == 1
    assert result.err == ""
    assert (
        "problem  broker at no-such-host.invalid:9092: the name no-such-host.invalid does not resolve"
        in result.out
    )
    assert "  -> check the spelling" in result.out
    assert result.out.splitlines()[-1].endswith(" 1 problem, 0 warnings") or "warning" in result.out


def test_connecting_without_listener_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    assert (
        f"broker at {address}: connection refused -> start a broker"
        in doctor("--bootstrap", address).only_problem
    )


def test_a_web_server_is_no_broker(http_port: int) -> None:
    assert (
        "it speaks HTTP, not Kafka"
        in doctor("--bootstrap", f"127.0.0.1:{http_port}", "--timeout", "1").only_problem
    )


def test_something_silent_is_no_broker() -> None:
    """It takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        report = doctor("--bootstrap", address, "--timeout", "0.3")
    assert "something listens there that does not speak Kafka" in report.only_problem
    assert f"(pid {os.getpid()})" in report.only_problem or not Path("/proc").exists()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
def test_tls_where_there_should_be_none_and_the_other_way_round(
    tidemill_broker: InProcessBroker, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    options = tmp_path / "client.properties"
    options.write_text(f"security.protocol=SSL\nssl.ca.location={certificates.path('ca.pem')}\nacks=all\n")
    proxy = TlsProxy()
    proxy.behind = (tidemill_broker.host, tidemill_broker.port)
    port = proxy.listen(certificates.of_server("broker", asks_clients=False))
    try:
        secured = f"127.0.0.1:{port}"
        assert "it speaks TLS, and we do not" in doctor("--bootstrap", secured).only_problem
        report = doctor("--bootstrap", secured, "--command-config", str(options))
    finally:
        proxy.stop()
    assert report.one(f"broker at {secured}")["verdict"] == "ok"
    report = doctor("--bootstrap", tidemill_broker.bootstrap, "--command-config", str(options))
    assert "it speaks Kafka without TLS, and we use TLS" in report.only_problem


def test_an_advertised_address_that_leads_nowhere(start: Callable[..., Broker]) -> None:
    broker = start(settings={"advertised.listeners": "PLAINTEXT://no-such-host.invalid:9092"})
    (found, *_) = doctor("--bootstrap", broker.bootstrap, "--timeout", "2").problems
    assert found["check"] == "advertised address of broker 1"
    assert "the name no-such-host.invalid does not resolve" in found["text"]
    assert "set advertised.listeners" in found["remedy"]


def test_doctor_reports_advertised_address_of_another_broker(
    start: Callable[..., Broker], tidemill_broker: InProcessBroker
) -> None:
    broker = start(settings={"advertised.listeners": f"PLAINTEXT://{tidemill_broker.bootstrap}"})
    (found, *_) = doctor("--bootstrap", broker.bootstrap).problems
    assert "where another process responds: a broker of cluster" in found["text"]


def test_two_clusters_in_one_bootstrap(tidemill_broker: InProcessBroker) -> None:
    with InProcessBroker() as other:
        report = doctor("--bootstrap", f"{tidemill_broker.bootstrap},{other.bootstrap}")
    assert "they lead to different clusters" in report.one("bootstrap addresses")["text"]
    assert report.code == 1


def test_a_clock_that_is_ahead(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.clock.advance(seconds=300)
    text = doctor("--bootstrap", tidemill_broker.bootstrap).only_problem
    assert text.startswith(("clock: controller 1 is 300.", "clock: controller 1 is 299."))
    assert "ahead of this machine" in text


def test_replicas_that_are_missing(tidemill_cluster: InProcessCluster) -> None:
    tidemill_cluster.create_topic("orders", partitions=3, replication_factor=3)
    tidemill_cluster.broker(3).crash()
    report = doctor("--bootstrap", tidemill_cluster.bootstrap, "--timeout", "5")
    assert "under-replicated, out of sync on broker 3" in report.one("partitions", "warning")["text"]
    assert report.one("brokers", "problem")["text"] == "Broker 3 is down or fenced"


def test_a_data_directory_of_another_cluster(
    start: Callable[..., Broker], tidemill_broker: InProcessBroker
) -> None:
    broker = start()
    report = doctor("--bootstrap", tidemill_broker.bootstrap, "--data-dir", str(broker.data_dir))
    assert "and --bootstrap leads to cluster" in report.one("identity", "problem")["text"]


def test_a_data_directory_after_a_kill(start: Callable[..., Broker]) -> None:
    broker = start()
    broker.kill()
    report = doctor("--offline", "--data-dir", str(broker.data_dir))
    assert "was not stopped cleanly" in report.one("lock", "warning")["text"]
    (broker.data_dir / "meta.properties").write_text("version=1\n")
    assert (
        "meta.properties is damaged" in doctor("--offline", "--data-dir", str(broker.data_dir)).only_problem
    )


def test_a_configuration_with_mistakes(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config.write_text(
            f"listeners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={tmp_path}/data\ntidemill.gateway.listener=:0\n"
        )
        report = doctor("--offline", "--config", str(config))
    assert "address already in use: " in report.only_problem
    assert f"(pid {os.getpid()})" in report.only_problem or not Path("/proc").exists()
    assert "makes it at its first start" in report.one("access")["text"]
    config.write_text("listeners=nonsense\n")
    assert "listeners" in doctor("--offline", "--config", str(config)).only_problem
