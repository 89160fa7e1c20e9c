"""`kafka-acls`, `kafka-configs` and `kafka-console-*` against a cluster that `tidemill security init` made."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.brokers import LISTENS, Broker, RunningBroker, command, read_banner, spawn
from tests.cli.conftest import Run, run_command
from tests.conftest import BOOTSTRAP
from tests.interop import kafka_tools
from tests.interop.kafka_tools import ACLS, CONFIGS, CONSOLE_CONSUMER, CONSOLE_PRODUCER, run_tool
from tidemill.testing.ports import HOST, HeldPort

_MISSING = kafka_tools.missing()
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(BOOTSTRAP), reason="starts a broker of its own"),
    pytest.mark.skipif(_MISSING is not None, reason=_MISSING or ""),
]
TOPIC, GROUP = "app.orders", "app.readers"


class Safe(NamedTuple):
    folder: Path
    address: str
    run: Run

    def config_of(self, user: str) -> str:
        return str(self.folder / f"clients/{user}.properties")

    def tool(self, main: str, *arguments: str) -> str:
        return run_tool(
            main, "--bootstrap-server", self.address, "--command-config", self.config_of("admin"), *arguments
        )


@pytest.fixture(scope="module")
def safe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Safe]:
    folder = tmp_path_factory.mktemp("tools") / "safe"
    port = HeldPort()
    address = f"{HOST}:{port.number}"
    made = run_command(RunningBroker(HOST, 1), "security", "init", str(folder), "--host", address, "--json")
    (start,) = made.json["start"]
    log = folder / "stderr"
    process = spawn([*command(), *shlex.split(start)[1:]], log)
    printed = read_banner(process)
    with Broker(HOST, port.number, process, folder / "node-1/data", log, printed) as broker:
        assert LISTENS.findall(printed), log.read_text()
        yield Safe(folder, address, functools.partial(run_command, broker))
    port.release()
    assert "Traceback" not in log.read_text()


def test_kafkas_tools_administer_a_cluster_of_security_init(safe: Safe) -> None:
    """One course, as each call costs a Java virtual machine: a user, its rights, its records, its quota."""
    password = (safe.folder / "clients/app.password").read_text().strip()
    user = ("--entity-type", "users", "--entity-name", "app")
    scram = f"SCRAM-SHA-512=[iterations=8192,password={password}]"
    assert "Completed updating config" in safe.tool(CONFIGS, "--alter", *user, "--add-config", scram)
    assert "SCRAM-SHA-512=iterations=8192" in safe.tool(CONFIGS, "--describe", *user)

    rights = ("--allow-principal", "User:app", "--resource-pattern-type", "prefixed", "--topic", "app.")
    added = safe.tool(ACLS, "--add", *rights, "--producer")
    assert "operation=WRITE, permissionType=ALLOW" in added
    safe.tool(ACLS, "--add", *rights, "--consumer", "--group", "app.")
    listed = safe.tool(ACLS, "--list", "--principal", "User:app")
    assert "name=app., patternType=PREFIXED" in listed
    assert "operation=READ, permissionType=ALLOW" in listed
    safe.run("topics", "create", TOPIC, "--command-config", safe.config_of("admin"))

    at = ("--bootstrap-server", safe.address, "--topic", TOPIC)
    app = ("--command-config", safe.config_of("app"))
    run_tool(CONSOLE_PRODUCER, *at, *app, stdin=b"one\ntwo\n")
    limits = ("--from-beginning", "--max-messages", "2", "--timeout-ms", "60000", "--group", GROUP)
    assert run_tool(CONSOLE_CONSUMER, *at, *app, *limits).split() == ["one", "two"]

    rate = "producer_byte_rate=1048576"
    safe.tool(CONFIGS, "--alter", *user, "--add-config", rate)
    assert "producer_byte_rate=1048576" in safe.tool(CONFIGS, "--describe", *user)
    safe.tool(CONFIGS, "--alter", *user, "--delete-config", "producer_byte_rate")
    assert "producer_byte_rate" not in safe.tool(CONFIGS, "--describe", *user)

    removed = safe.tool(ACLS, "--remove", "--force", *rights, "--producer")
    assert "operation=WRITE" not in removed.rpartition("Current ACLs")[2]
