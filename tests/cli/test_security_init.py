"""`tidemill security`: a broker from its files is safe, its users work as the printed steps say, certificates renew."""

from __future__ import annotations

import functools
import shlex
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.brokers import LISTENS, Broker, RunningBroker, command, eventually, read_banner, spawn
from tests.cli.conftest import Run, run_command
from tests.conftest import BOOTSTRAP
from tidemill.testing.ports import HOST, HeldPort

pytestmark = pytest.mark.skipif(bool(BOOTSTRAP), reason="starts a broker of its own")

LIMIT_S = 30.0


def run_alone(*words: str) -> Any:
    return run_command(RunningBroker(HOST, 1), *words)


class Safe(NamedTuple):
    """A running broker that `security init` made, and its files."""

    folder: Path
    address: str
    run: Run
    steps: dict[str, Any]

    def as_admin(self, *words: str, stdin: bytes = b"") -> Any:
        return self.run(
            *words, "--command-config", str(self.folder / "clients/admin.properties"), stdin=stdin
        )

    def client(self, user: str, password: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self.folder / "clients/ca.pem"),
            "log_level": 0,
        }

    @property
    def app(self) -> dict[str, Any]:
        return self.client("app", (self.folder / "clients/app.password").read_text().strip())


@pytest.fixture(scope="module")
def safe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Safe]:
    folder = tmp_path_factory.mktemp("init") / "safe"
    port = HeldPort()
    address = f"{HOST}:{port.number}"
    steps = run_alone("security", "init", str(folder), "--host", address, "--json").json
    (start,) = steps["start"]
    log = folder / "stderr"
    process = spawn([*command(), *shlex.split(start)[1:]], log)
    printed = read_banner(process)
    with Broker(HOST, port.number, process, folder / "node-1/data", log, printed) as broker:
        assert LISTENS.findall(printed), log.read_text()
        yield Safe(folder, address, functools.partial(run_command, broker), steps)
    port.release()
    written = log.read_text()
    for path in (folder / "clients").glob("*.properties"):
        password = path.read_text().partition('password="')[2].partition('"')[0]
        assert password
        assert password not in written


def delivery_error(client: dict[str, Any], topic: str) -> KafkaError | None:
    results: list[KafkaError | None] = []
    producer = Producer(client | {"message.timeout.ms": int(LIMIT_S * 1000)})
    producer.produce(topic, b"one", on_delivery=lambda error, _: results.append(error))
    assert producer.flush(LIMIT_S) == 0
    return results[0]


def is_logged_in(client: dict[str, Any]) -> bool:
    failures: list[KafkaError] = []
    admin = AdminClient(client | {"error_cb": failures.append})

    def outcome() -> str | None:
        try:
            admin.list_topics(timeout=0.5)
        except KafkaException:
            admin.poll(0)
            is_refused = any(each.code() == KafkaError._AUTHENTICATION for each in failures)
            return "refused" if is_refused else None
        return "logged in"

    return eventually(outcome, f"a login or its refusal, not only {failures}", LIMIT_S) == "logged in"


def test_user_is_refused_until_the_printed_steps_give_it_rights(safe: Safe) -> None:
    add_user, *add_rules = (shlex.split(line)[1:] for line in safe.steps["next"])
    assert not is_logged_in(safe.app)
    safe.run(*add_user).check()
    safe.as_admin("topics", "create", "app.orders").check()
    refused = delivery_error(safe.app, "app.orders")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    for words in add_rules:
        safe.run(*words).check()
    assert delivery_error(safe.app, "app.orders") is None
    consumer = Consumer(safe.app | {"group.id": "app.readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["app.orders"])
    message = consumer.poll(LIMIT_S)
    assert message is not None
    assert message.error() is None
    assert message.value() == b"one"
    consumer.commit(message=message, asynchronous=False)
    assert consumer.committed([TopicPartition("app.orders", 0)], timeout=LIMIT_S)[0].offset == 1
    consumer.close()


def test_added_user_logs_in_and_removed_user_does_not(safe: Safe) -> None:
    client = safe.client("bob", "bob's own")
    safe.as_admin("users", "add", "bob", stdin=b"bob's own\n").check()
    assert is_logged_in(client)
    assert not is_logged_in(safe.client("bob", "a guess"))
    safe.as_admin("users", "remove", "bob").check()
    assert not is_logged_in(client)


def served_certificate(address: str, trusted: Path) -> bytes:
    """Returns the certificate that the broker shows to a client that trusts only these authorities."""
    host, port = address.rsplit(":", 1)
    context = ssl.create_default_context(cafile=str(trusted))
    with (
        socket.create_connection((host, int(port)), LIMIT_S) as connection,
        context.wrap_socket(connection, server_hostname=host) as wrapped,
    ):
        return wrapped.getpeercert(binary_form=True) or b""


def test_renewed_certificate_of_a_new_ca_is_served_without_a_restart(safe: Safe) -> None:
    trusted, old, new = (safe.folder / name for name in ("clients/ca.pem", "old.crt", "new.crt"))
    old.write_text(trusted.read_text())
    before = served_certificate(safe.address, old)
    run_alone("security", "new-ca", str(safe.folder)).check()
    run_alone("security", "renew", str(safe.folder)).check()
    new.write_text(trusted.read_text().removesuffix(old.read_text()))
    eventually(lambda: served_certificate(safe.address, trusted) != before, "the new certificate", LIMIT_S)
    assert served_certificate(safe.address, new) != before
    with pytest.raises(ssl.SSLCertVerificationError):
        served_certificate(safe.address, old)
    safe.as_admin("topics", "list").check()


def test_files_with_secrets_are_the_owners_only(safe: Safe) -> None:
    files = [path for place in ("ca", "clients", "node-1") for path in (safe.folder / place).glob("*.*")]
    readable = {path.name for path in files if path.stat().st_mode & 0o077}
    assert readable == {"ca.pem"}
    assert len(files) == 9


def test_init_overwrites_nothing(safe: Safe) -> None:
    assert "is not empty" in run_alone("security", "init", str(safe.folder)).error


def test_init_prints_no_password(tmp_path: Path) -> None:
    words = ("--nodes", "3", "--host", "localhost")
    printed = run_alone("security", "init", str(tmp_path / "three"), *words).ok
    password = (tmp_path / "three/clients/app.password").read_text().strip()
    assert len(password) >= 32
    assert password not in printed
    assert printed.count("tidemill serve --config") == 3


def test_hosts_are_one_or_one_for_each_node(tmp_path: Path) -> None:
    result = run_alone("security", "init", str(tmp_path / "x"), "--nodes", "3", "--host", "a", "--host", "b")
    assert result.code == 2
    assert "once for each of the 3 nodes" in result.err


def test_adding_the_nodes_own_login_says_that_it_has_no_effect(safe: Safe) -> None:
    added = safe.as_admin("users", "add", "admin", stdin=b"another")
    assert "node 1 has a login of this name in its own sasl.jaas.config" in added.err
    safe.as_admin("topics", "list").check()
    safe.as_admin("users", "remove", "admin").check()
    assert safe.as_admin("users", "add", "other", stdin=b"another").err == ""
    safe.as_admin("users", "remove", "other").check()
