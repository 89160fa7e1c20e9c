"""The files of `tidemill security init` configure brokers and clients that can work with each other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidemill.cli.main import make_parser
from tidemill.cli.security import layout, setup
from tidemill.cli.security.layout import NodeAddress, Passwords
from tidemill.client.connections.security import SecurityOptions
from tidemill.config import load_broker_config, parse_properties
from tidemill.errors import ConfigError

PASSWORDS = Passwords("admin-secret", "node-secret", "app-secret", "decoy-secret")
FOLDER = Path("/etc/tidemill")
THREE = layout.node_addresses([(f"mq{index}.example.com", 9092) for index in (1, 2, 3)], 3)


def settings(node: NodeAddress, nodes: list[NodeAddress]) -> dict[str, str]:
    """As a broker reads them from the file."""
    properties = layout.server_properties(node, nodes, FOLDER, PASSWORDS)
    read = parse_properties(layout.properties_text(properties))
    assert read == properties
    return read


def test_all_nodes_make_salts_of_unknown_users_from_one_secret() -> None:
    secrets = {load_broker_config(settings(node, THREE))[0].security.decoy_secret for node in THREE}
    (secret,) = secrets
    assert secret is not None
    assert secret.value == PASSWORDS.decoy
    assert PASSWORDS.decoy not in repr(secret)


def test_lone_node_has_one_secured_listener_where_the_admin_logs_in() -> None:
    (node,) = layout.node_addresses([("127.0.0.1", 9092)], 1)
    config, _ = load_broker_config(settings(node, [node]))
    assert set(config.security.listeners) == {"CLIENTS"}
    clients = config.security.listeners["CLIENTS"]
    assert clients.protocol == "SASL_SSL"
    assert clients.sasl is not None
    assert clients.sasl.own_logins["SCRAM-SHA-512"].username == "admin"
    assert config.authorization.super_users == "User:admin"


def test_nodes_of_a_cluster_log_in_apart_from_the_admin() -> None:
    for node in THREE:
        config, _ = load_broker_config(settings(node, THREE))
        listeners = config.security.listeners
        assert {name: each.protocol for name, each in listeners.items()} == {
            "CLIENTS": "SASL_SSL",
            "NODES": "SASL_SSL",
            "CONTROLLER": "SASL_SSL",
        }
        for name in ("NODES", "CONTROLLER"):
            login = listeners[name].login
            assert login is not None
            assert login.username == "node"
        clients = listeners["CLIENTS"].sasl
        assert clients is not None
        assert [each.username for each in clients.own_logins.values()] == ["admin"]
        assert config.authorization.super_users == "User:admin;User:node"


def test_every_login_is_repeated_within_an_hour() -> None:
    for node in THREE:
        config, _ = load_broker_config(settings(node, THREE))
        for listener in config.security.listeners.values():
            assert listener.sasl is not None
            assert listener.sasl.max_reauth_ms == {"SCRAM-SHA-512": 3_600_000}


def test_client_properties_are_read_as_the_login_of_the_user() -> None:
    properties = layout.client_properties(THREE, "app", PASSWORDS.app, FOLDER / "ca.pem")
    assert (
        properties.pop("bootstrap.servers")
        == "mq1.example.com:9092,mq2.example.com:9092,mq3.example.com:9092"
    )
    options = SecurityOptions.parse(properties)
    assert (options.protocol, options.mechanism) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (options.username, options.password) == ("app", "app-secret")
    assert options.ca_location == "/etc/tidemill/ca.pem"
    assert options.checks_hostname


def test_nodes_on_one_host_get_ports_of_their_own() -> None:
    nodes = layout.node_addresses([("localhost", 9092)], 3)
    assert [node.port for node in nodes] == [9092, 9192, 9292]


def test_only_loopback_is_bound_by_name() -> None:
    assert NodeAddress(1, "localhost", 9092).bind_host == "localhost"
    assert NodeAddress(1, "mq1.example.com", 9092).bind_host == "0.0.0.0"
    assert NodeAddress(1, "10.0.0.1", 9092).bind_host == "0.0.0.0"
    assert NodeAddress(1, "mq1.example.com", 9092).certificate_hosts() == ["mq1.example.com"]


def test_node_with_an_address_of_ipv6_listens_on_ipv6() -> None:
    (node,) = layout.node_addresses([("2001:db8::1", 9092)], 1)
    config, _ = load_broker_config(settings(node, [node]))
    (listener,) = config.network.listeners
    assert (listener.host, listener.port) == ("::", 9092)
    assert settings(node, [node])["advertised.listeners"] == "CLIENTS://[2001:db8::1]:9092"
    assert NodeAddress(1, "::1", 9092).bind_host == "::1"


@pytest.mark.parametrize("text", [repr(PASSWORDS), str(PASSWORDS)])
def test_passwords_are_not_shown(text: str) -> None:
    assert "secret" not in text


def test_init_without_its_extra_names_it_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "tidemill.tls.certificates", raising=False)
    monkeypatch.delattr("tidemill.tls.certificates", raising=False)
    words = ["security", "init", str(tmp_path / "safe")]
    with pytest.raises(ConfigError, match=r"pip install 'tidemill\[security\]'"):
        setup.run(make_parser(words).parse_args(words))
    assert not (tmp_path / "safe").exists()
