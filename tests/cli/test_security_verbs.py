"""`tidemill users`, `acls` and `quotas` against a broker with an authorizer, whose super user is everybody's name here."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import eventually, start_broker
from tests.cli.conftest import Run, run_command
from tests.conftest import BOOTSTRAP

pytestmark = pytest.mark.skipif(bool(BOOTSTRAP), reason="starts a broker of its own")

SECRET = "not to be seen"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with start_broker(tmp_path_factory.mktemp("security") / "data", settings=settings) as broker:
        yield functools.partial(run_command, broker)


def test_user_is_added_listed_and_removed(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    added = run("users", "add", "alice", "--password-file", str(file))
    assert added.ok == "alice can log in with SCRAM-SHA-512\n"
    both = ["--mechanism", "SCRAM-SHA-256", "--mechanism", "SCRAM-SHA-512"]
    run("users", "add", "bob", *both, "--iterations", "8192", stdin=SECRET.encode()).check()
    listed = run("users", "list", "--json").json
    assert {"user": "alice", "mechanisms": {"SCRAM-SHA-512": 4096}} in listed
    assert {"user": "bob", "mechanisms": {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}} in listed
    assert SECRET not in added.out + added.err
    run("users", "remove", "bob", "--mechanism", "SCRAM-SHA-256").check()
    run("users", "remove", "alice").check()
    assert run("users", "list").ok.split() == [
        "USER",
        "MECHANISM",
        "ITERATIONS",
        "bob",
        "SCRAM-SHA-512",
        "8192",
    ]
    assert "tidemill users list" in run("users", "remove", "alice").error


def test_password_that_is_empty_is_refused(run: Run) -> None:
    assert "the password is empty" in run("users", "add", "carol", stdin=b"\n").error
    assert "cannot read the password" in run("users", "add", "carol", "--password-file", "/no/file").error


def test_acls_are_added_explained_listed_and_removed(run: Run) -> None:
    who = ("--principal", "User:alice", "--topic", "orders")
    asked = ("acls", "explain", *who, "--operation", "write", "--json")
    assert run(*asked).json["allowed"] is False
    assert run("acls", "add", *who, "--producer").ok.startswith("added 3 ACLs\n")
    answer = run(*asked).json
    assert answer["allowed"] is True
    assert "ALLOW User:alice from * to WRITE TOPIC:LITERAL:orders" in answer["decision"]
    run("acls", "add", *who, "--deny", "--operation", "write", "--host", "10.0.0.0/8").check()
    assert run(*asked, "--host", "10.9.9.9").json["allowed"] is False
    listed = run("acls", "list", "--principal", "User:alice", "--deny", "--json").json
    assert listed == [
        {
            "resource_type": "topic",
            "resource_name": "orders",
            "pattern_type": "literal",
            "principal": "User:alice",
            "host": "10.0.0.0/8",
            "operation": "write",
            "permission": "deny",
        }
    ]
    assert "removed 3 ACLs" in run("acls", "remove", *who, "--producer").ok
    run("acls", "remove", *who).check()
    assert run("acls", "list", "--json").json == []
    assert "tidemill acls list" in run("acls", "remove", *who).error
    assert run("acls", "remove").code == 2


def test_names_in_rules_do_not_control_the_terminal(run: Run) -> None:
    rule = ("--principal", "User:\x1b[2Jmallory", "--topic", "logs")
    run("acls", "add", *rule, "--operation", "read").check()
    shown = run("acls", "explain", *rule, "--operation", "read").ok + run("acls", "list").ok
    assert "mallory" in shown
    assert "\x1b[2J" not in shown
    run("acls", "remove", *rule).check()


def test_explanation_knows_the_super_users_of_the_brokers(run: Run) -> None:
    answer = run(
        "acls", "explain", "--principal", "User:ANONYMOUS", "--operation", "alter", "--cluster", "--json"
    ).json
    assert answer == {"allowed": True, "decision": "ALLOWED by SuperUser", "rules": [], "notes": []}


def test_acls_without_an_authorizer_say_which_keys_are_missing(cli: Run) -> None:
    assert "set authorizer.class.name=" in cli("acls", "list").error
    added = cli("acls", "add", "--principal", "User:a", "--operation", "read", "--topic", "t")
    assert "set authorizer.class.name=" in added.error


def test_quotas_are_set_listed_and_removed(run: Run) -> None:
    user = ("--user", "alice", "--client-defaults")
    run("quotas", "set", *user, "producer_byte_rate=1048576", "request_percentage=12.5").check()
    run("quotas", "set", "--ip-defaults", "connection_creation_rate=20").check()
    assert run("quotas", "list").ok.splitlines()[1:] == [
        "ip=(default)                    connection_creation_rate       20",
        "user=alice client-id=(default)  producer_byte_rate        1048576",
        "user=alice client-id=(default)  request_percentage           12.5",
    ]
    run("quotas", "remove", *user, "producer_byte_rate").check()
    assert run("quotas", "list", "--user", "alice", "--json").json == [
        {"entity": {"client-id": None, "user": "alice"}, "quotas": {"request_percentage": 12.5}}
    ]
    run("quotas", "remove", *user).check()
    run("quotas", "remove", "--ip-defaults").check()
    eventually(lambda: run("quotas", "list", "--json").json == [], "no quotas")
    assert "tidemill quotas list" in run("quotas", "remove", *user).error


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("producer_byte_rate=1",), "name an entity"),
        (("--user", "a", "--ip", "10.0.0.1", "producer_byte_rate=1"), "an address has quotas of its own"),
        (("--user", "a", "connection_creation_rate=1"), "it is one of consumer_byte_rate"),
        (("--user", "a", "producer_byte_rate=much"), "is not a number"),
        (("--user", "a"), "at least one KEY=VALUE"),
    ],
)
def test_quota_that_cannot_be_set_says_why(run: Run, words: tuple[str, ...], remedy: str) -> None:
    result = run("quotas", "set", *words)
    assert result.code == 2
    assert remedy in result.err
