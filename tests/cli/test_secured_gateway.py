"""`tidemill serve` of a secured node with TLS for gateway and status listener: what it prints works, and holds no secret."""

from __future__ import annotations

import re
import shlex
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.brokers import Broker, RunningBroker, command, eventually, read_banner, spawn
from tests.cli.clusters import start_cluster
from tests.cli.conftest import run_command
from tests.cli.gateways import console_address, gateway_pids
from tests.conftest import BOOTSTRAP
from tidemill.testing.ports import HOST, HeldPort

pytest.importorskip("uvicorn", reason="needs tidemill[gateway]")
pytestmark = pytest.mark.skipif(bool(BOOTSTRAP), reason="starts a broker of its own")


class Safe(NamedTuple):
    folder: Path
    broker: Broker
    gateway: httpx.Client
    trusted: ssl.SSLContext

    @property
    def password(self) -> str:
        text = (self.folder / "clients/admin.properties").read_text()
        return text.partition('password="')[2].partition('"')[0]


@pytest.fixture(scope="module")
def safe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Safe]:
    folder = tmp_path_factory.mktemp("init") / "safe"
    port = HeldPort()
    nowhere = RunningBroker(HOST, 1)
    run_command(nowhere, "security", "init", str(folder), "--host", f"{HOST}:{port.number}").check()
    log = folder / "stderr"
    words = ["serve", "--config", str(folder / "node-1/server.properties")]
    words += ["--gateway", f"https://{HOST}:0", "--status", f"https://{HOST}:0"]
    process = spawn([*command(), *words], log)
    with Broker(HOST, port.number, process, folder / "node-1/data", log, read_banner(process)) as broker:
        trusted = ssl.create_default_context(cafile=str(folder / "clients/ca.pem"))
        url = f"https://{console_address(broker)}"
        with httpx.Client(base_url=url, verify=trusted, timeout=30) as client:
            yield Safe(folder, broker, client, trusted)
    port.release()


def test_printed_command_works_as_it_stands(safe: Safe) -> None:
    found = re.search(r"Try:  tidemill (.*?)   ", safe.broker.printed)
    assert found is not None, safe.broker.printed
    assert "--command-config" in found[1]
    run_command(safe.broker, *shlex.split(found[1])).check()
    assert safe.gateway.get("/topics", auth=("admin", safe.password)).json() == ["orders"]


def test_gateway_lets_in_users_of_the_cluster_alone(safe: Safe) -> None:
    assert safe.gateway.get("/topics").status_code == 401
    assert safe.gateway.get("/topics", auth=("admin", "wrong")).status_code == 401
    assert safe.gateway.get("/topics", auth=("admin", safe.password)).status_code == 200


def test_status_listener_speaks_tls_and_the_gateway_reads_it(safe: Safe) -> None:
    found = re.search(r"Metrics at (https://\S+)/metrics", safe.broker.printed)
    assert found is not None, safe.broker.printed
    with httpx.Client(verify=safe.trusted) as client:
        assert "kafka_server_brokertopicmetrics" in client.get(f"{found[1]}/metrics").text
        assert client.get(f"{found[1]}/healthz").status_code == 200
    with pytest.raises(httpx.HTTPError), httpx.Client() as plain:
        plain.get(f"{found[1].replace('https', 'http')}/metrics")
    line = eventually(
        lambda: [each for each in safe.broker.log().splitlines() if "speaks plain HTTP" in each],
        "it is logged",
    )
    assert len(line) == 1
    assert "the status listener" in line[0]
    causes = safe.gateway.get("/console/api/rebalances", auth=("admin", safe.password)).json()
    assert causes["is_known"] is True


def test_rebalances_of_groups_that_a_user_may_not_see_are_left_out(safe: Safe) -> None:
    admin = ("--command-config", str(safe.folder / "clients/admin.properties"))
    password = safe.folder / "clients/app.password"
    run_command(safe.broker, "users", "add", "app", "--password-file", str(password), *admin).check()
    run_command(safe.broker, "topics", "create", "grouped", *admin).check()
    run_command(safe.broker, "produce", "grouped", "hello", *admin).check()
    words = ("grouped", "--group", "watched", "--from", "beginning", "--max", "1")
    run_command(safe.broker, "consume", *words, *admin).check()

    def groups(*who: str) -> set[str]:
        answer = safe.gateway.get("/console/api/rebalances", auth=httpx.BasicAuth(*who)).json()
        assert answer["is_known"] is True
        return {each["group_id"] for each in answer["items"]}

    eventually(lambda: "watched" in groups("admin", safe.password), "the rebalance is known")
    assert groups("app", password.read_text().strip()) == set()


def test_doctor_recognises_the_gateway_behind_tls(safe: Safe) -> None:
    address = f"{safe.gateway.base_url.host}:{safe.gateway.base_url.port}"
    admin = str(safe.folder / "clients/admin.properties")
    for words in ((), ("--command-config", admin)):
        done = run_command(safe.broker, "doctor", "--bootstrap", address, *words)
        assert "it speaks HTTPS, not Kafka: perhaps the gateway or a status listener" in done.out


def test_no_secret_is_in_the_log_or_in_a_command_line(safe: Safe) -> None:
    assert safe.gateway.get("/topics", auth=("admin", safe.password)).status_code == 200
    (pid,) = gateway_pids(safe.broker)
    for place in (Path(f"/proc/{pid}/cmdline"), Path(f"/proc/{pid}/environ"), safe.broker.log_path):
        text = place.read_text(errors="replace")
        assert safe.password not in text
        assert "PRIVATE KEY" not in text


def test_cluster_start_runs_what_security_init_made_with_a_gateway_that_requires_a_login(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "safe"
    port = HeldPort()
    address = f"{HOST}:{port.number}"
    run_command(RunningBroker(HOST, 1), "security", "init", str(folder), "--host", address).check()
    refused = run_command(
        RunningBroker(HOST, 1), "cluster", "start", "--data-dir", str(folder), "--gateway", "0.0.0.0:0"
    )
    assert "passwords could be read on their way" in refused.error
    with start_cluster(folder, "--gateway", f"https://{HOST}:0") as cluster:
        assert cluster.bootstrap == address
        found = eventually(
            lambda: re.search(r"^Console at (https://\S+)/$", cluster.log(), re.MULTILINE), "the console", 60
        )
        trusted = ssl.create_default_context(cafile=str(folder / "clients/ca.pem"))
        text = (folder / "clients/admin.properties").read_text()
        password = text.partition('password="')[2].partition('"')[0]
        with httpx.Client(base_url=found[1], verify=trusted, timeout=30) as client:
            assert client.get("/v3/clusters").status_code == 401
            answer = client.get("/console/api/brokers", auth=("admin", password))
            assert [broker["is_up"] for broker in answer.json()["items"]] == [True]
        assert password not in cluster.log()
    port.release()


def test_tls_client_at_a_plain_status_listener_is_one_log_line(tmp_path: Path) -> None:
    log = tmp_path / "stderr"
    words = ["serve", "--data-dir", str(tmp_path / "data"), "--listen", f"{HOST}:0", "--status", f"{HOST}:0"]
    process = spawn([*command(), *words], log)
    with Broker(HOST, 0, process, tmp_path / "data", log, read_banner(process)) as broker:
        found = re.search(r"Metrics at http://(\S+):(\d+)/", broker.printed)
        assert found is not None
        context = ssl.create_default_context()
        with socket.create_connection((found[1], int(found[2]))) as plain, pytest.raises(OSError):
            context.wrap_socket(plain, server_hostname=HOST)
        (line,) = eventually(
            lambda: [each for each in broker.log().splitlines() if "refused" in each], "it is logged"
        )
        assert "speaks TLS on a port without" in line


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("gateway", "--listen", "0.0.0.0:0"), "whoever reaches it could read and change everything"),
        (("gateway", "--listen", "https://127.0.0.1:0"), "needs a certificate"),
        (("serve", "--gateway", "0.0.0.0:0"), "--gateway 127.0.0.1:PORT; --insecure allows it"),
        (("serve", "--set", "tidemill.gateway.listener=0.0.0.0:0"), "could read and change everything"),
        (("serve", "--status", "https://127.0.0.1:0"), "needs a certificate"),
        (("serve", "--set", "tidemill.gateway.secure=yes"), "tidemill.gateway.secure is not known"),
        (("cluster", "start", "--gateway", "0.0.0.0:0"), "could read and change everything"),
    ],
)
def test_unsafe_options_are_refused_with_a_sentence(
    tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    more = () if words[0] == "gateway" else ("--data-dir", str(tmp_path / "data"))
    failed = run_command(RunningBroker(HOST, 1), *words, *more)
    assert sentence in failed.error
    assert not (tmp_path / "data").exists()


def test_gateway_refuses_to_take_passwords_over_a_plain_network(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
    words = ("gateway", "--listen", "0.0.0.0:0", "--command-config", str(file))
    assert "passwords could be read on their way" in run_command(RunningBroker(HOST, 1), *words).error


def test_shared_login_needs_a_user(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
    words = ("gateway", "--listen", "127.0.0.1:0", "--command-config", str(file), "--shared-login")
    assert "needs sasl.username and sasl.password" in run_command(RunningBroker(HOST, 1), *words).error
