"""server.properties: accepted settings, refusals with their messages, and warnings."""

from __future__ import annotations

import pytest

from tidemill.config import Listener, load_broker_config
from tidemill.errors import ConfigError


def test_no_properties_at_all() -> None:
    config, warnings = load_broker_config({})
    assert warnings == []
    assert config.node_id == 1
    assert config.process_roles == ("broker", "controller")
    assert config.network.listeners == (Listener("PLAINTEXT", "", 9092, "PLAINTEXT"),)
    assert config.network.advertised_listeners == ()
    assert config.topics.num_partitions == 1
    assert config.topics.auto_create_topics_enable is True
    assert config.topics.defaults.retention_ms == 7 * 24 * 3_600_000
    assert config.network.socket_request_max_bytes == 100 * 1024 * 1024


def test_kafkas_stock_file_is_accepted() -> None:
    config, warnings = load_broker_config(
        {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": "localhost:9093",
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "inter.broker.listener.name": "PLAINTEXT",
            "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
            "num.network.threads": "3",
            "num.io.threads": "8",
            "socket.send.buffer.bytes": "102400",
            "log.dirs": "/tmp/kraft-combined-logs",
            "num.partitions": "1",
            "log.retention.hours": "168",
            "log.segment.bytes": "1073741824",
            "log.retention.check.interval.ms": "300000",
        }
    )
    assert config.network.listeners == (Listener("PLAINTEXT", "", 9092, "PLAINTEXT"),)
    assert config.network.controller_listeners == (Listener("CONTROLLER", "", 9093, "PLAINTEXT"),)
    assert config.network.advertised_listeners == (Listener("PLAINTEXT", "localhost", 9092, "PLAINTEXT"),)
    assert config.network.inter_broker_listener_name == "PLAINTEXT"
    assert config.network.advertised_controller_listeners == (
        Listener("CONTROLLER", "localhost", 9093, "PLAINTEXT"),
    )
    assert config.quorum.bootstrap_servers == (("localhost", 9093),)
    assert warnings == []


def test_unknown_and_idle_keys_are_named_in_different_warnings() -> None:
    _, warnings = load_broker_config({"foo.bar": "1", "num.io.threads": "9", "num.network.threads": "3"})
    assert len(warnings) == 2
    assert "foo.bar" in warnings[0]
    assert "Unknown" in warnings[0]
    assert "num.io.threads" in warnings[1]
    assert "no effect" in warnings[1]


@pytest.mark.parametrize(
    ("name", "text", "asked"),
    [
        ("ssl.engine.factory.class", "com.example.Engines", "a TLS engine of Java"),
        ("sasl.kerberos.service.name", "kafka", "Kerberos"),
        ("sasl.login.class", "org.example.Login", "a class of Java"),
        (
            "listener.name.external.plain.sasl.server.callback.handler.class",
            "org.example.H",
            "a class of Java",
        ),
        ("delegation.token.secret.key", "hunter2", "delegation tokens"),
        ("ssl.keystroe.location", "/etc/kafka/broker.pem", "protection by a key that is not known"),
        ("listener.name.external.sasl.enabled.mechanism", "PLAIN", "protection by a key that is not known"),
    ],
)
def test_key_that_requests_protection_prevents_start(name: str, text: str, asked: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_broker_config({name: text})
    assert name in str(refused.value)
    assert f"for {asked}" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("authorizer.class.name", ""),
        ("ssl.client.auth", "none"),
        ("ssl.keystore.location", ""),
        ("ssl.keystore.type", "PKCS12"),
        ("ssl.endpoint.identification.algorithm", ""),
        ("ssl.enabled.protocols", "TLSv1.3"),
        ("listener.name.external.ssl.client.auth", "none"),
        ("sasl.enabled.mechanisms", "GSSAPI"),
        ("sasl.enabled.mechanisms", ""),
        ("sasl.kerberos.kinit.cmd", "/opt/bin/kinit"),
        ("sasl.login.refresh.window.factor", "0.5"),
        ("connections.max.reauth.ms", "0"),
        ("listener.name.ssl.connections.max.idle.ms", "5"),
        ("super.users", "User:admin"),
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    ],
)
def test_key_without_protection_does_not_prevent_start(name: str, text: str) -> None:
    load_broker_config({name: text})


def test_authorizer_is_kafkas_standard_one_or_none() -> None:
    config, _ = load_broker_config({})
    assert not config.authorization.is_enabled
    name = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    config, warnings = load_broker_config({"authorizer.class.name": name, "super.users": "User:a;User:b"})
    assert config.authorization.is_enabled
    assert config.authorization.super_users == "User:a;User:b"
    assert warnings == []
    with pytest.raises(ConfigError, match=r"authorizer\.class\.name"):
        load_broker_config({"authorizer.class.name": "com.example.Authorizer"})


def test_a_key_that_secures_no_listener_is_warned_about() -> None:
    _, warnings = load_broker_config({"ssl.client.auth": "required"})
    assert warnings == ["Configuration ssl.client.auth has no effect: no listener of this broker uses it"]


def test_raw_properties_are_kept_with_both_names_of_the_node() -> None:
    config, _ = load_broker_config({"node.id": "7", "foo.bar": "1"})
    assert config.properties["foo.bar"] == "1"
    assert config.properties["node.id"] == config.properties["broker.id"] == "7"


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"node.id": "3"}, 3),
        ({"broker.id": "4"}, 4),
        ({"node.id": "5", "broker.id": "5"}, 5),
        ({"broker.id": "-1"}, 1),
    ],
)
def test_node_id(properties: dict[str, str], expected: int) -> None:
    assert load_broker_config(properties)[0].node_id == expected


@pytest.mark.parametrize(
    ("properties", "key", "value"),
    [
        ({"num.partitions": "0"}, "num.partitions", "0"),
        ({"num.partitions": "many"}, "num.partitions", "many"),
        ({"node.id": "-1"}, "node.id", "-1"),
        ({"node.id": "1", "broker.id": "2"}, "broker.id", "2"),
        ({"process.roles": ""}, "process.roles", ""),
        ({"process.roles": "zookeeper"}, "process.roles", "zookeeper"),
        ({"log.dirs": ""}, "log.dirs", ""),
        ({"log.dirs": "/a,/a"}, "log.dirs", "/a,/a"),
        ({"log.segment.bytes": "1"}, "log.segment.bytes", "1"),
        ({"socket.request.max.bytes": "0"}, "socket.request.max.bytes", "0"),
        ({"queued.max.requests": "0"}, "queued.max.requests", "0"),
        ({"message.max.bytes": "-1"}, "message.max.bytes", "-1"),
        ({"log.retention.ms": "0"}, "log.retention.ms", "0"),
        ({"log.retention.hours": "0"}, "log.retention.hours", "0"),
        ({"log.roll.ms": "0"}, "log.roll.ms", "0"),
        ({"max.connections.per.ip.overrides": "zzz"}, "max.connections.per.ip.overrides", "zzz"),
        ({"compression.type": "brotli"}, "compression.type", "brotli"),
        ({"auto.create.topics.enable": "yes"}, "auto.create.topics.enable", "yes"),
        ({"listeners": ""}, "listeners", ""),
        ({"listeners": "PLAINTEXT://localhost"}, "listeners", "PLAINTEXT://localhost"),
        ({"listeners": "localhost:9092"}, "listeners", "localhost:9092"),
        ({"listeners": "PLAINTEXT://h:99999"}, "listeners", "PLAINTEXT://h:99999"),
        ({"listeners": "PLAINTEXT://::1:9092"}, "listeners", "PLAINTEXT://::1:9092"),
        ({"listeners": "FOO://h:1"}, "listeners", "FOO://h:1"),
        ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "listeners", "PLAINTEXT://h:1,PLAINTEXT://h:2"),
        ({"listeners": "PLAINTEXT://h:1,SSL://h:1"}, "listeners", "PLAINTEXT://h:1,SSL://h:1"),
        ({"listeners": "PLAINTEXT://:1,SSL://[::]:1"}, "listeners", "PLAINTEXT://:1,SSL://[::]:1"),
        ({"listeners": "C://h:1", "controller.listener.names": "C"}, "listeners", "C://h:1"),
        (
            {"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"},
            "advertised.listeners",
            "PLAINTEXT://0.0.0.0:9092",
        ),
        ({"advertised.listeners": "PLAINTEXT://:9092"}, "advertised.listeners", "PLAINTEXT://:9092"),
        ({"advertised.listeners": "SSL://h:9092"}, "advertised.listeners", "SSL://h:9092"),
        ({"advertised.listeners": "PLAINTEXT://[::]:1"}, "advertised.listeners", "PLAINTEXT://[::]:1"),
        (
            {"listener.security.protocol.map": "PLAINTEXT:NOPE"},
            "listener.security.protocol.map",
            "PLAINTEXT:NOPE",
        ),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "listener.security.protocol.map", "PLAINTEXT"),
        ({"listener.security.protocol.map": "A:SSL,a:SSL"}, "listener.security.protocol.map", "A:SSL,a:SSL"),
        ({"inter.broker.listener.name": "NOPE"}, "inter.broker.listener.name", "NOPE"),
    ],
)
def test_bad_value_is_an_error_with_key_value_and_what_is_allowed(
    properties: dict[str, str], key: str, value: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_broker_config(properties)
    assert str(caught.value).startswith(f"Invalid value {value} for configuration {key}: must be ")


def test_ipv6_kernel_chosen_ports_and_dual_stack() -> None:
    config, _ = load_broker_config(
        {
            "listeners": "PLAINTEXT://127.0.0.1:9092,EXT://[::1]:9092,A://h:0,B://h:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXT:SSL,A:SASL_SSL,B:PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        }
    )
    assert config.network.listeners == (
        Listener("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT"),
        Listener("EXT", "::1", 9092, "SSL"),
        Listener("A", "h", 0, "SASL_SSL"),
        Listener("B", "h", 0, "PLAINTEXT"),
    )
    assert str(config.network.listeners[1]) == "EXT://[::1]:9092"


def test_listener_names_do_not_depend_on_case() -> None:
    config, _ = load_broker_config({"listeners": "plaintext://h:1"})
    assert config.network.listeners[0].name == "PLAINTEXT"


@pytest.mark.parametrize(
    ("properties", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-2"}, -1),
        ({"log.retention.ms": "-5"}, -1),
    ],
)
def test_finer_units_win(properties: dict[str, str], retention_ms: int) -> None:
    assert load_broker_config(properties)[0].topics.defaults.retention_ms == retention_ms


def test_log_dirs_win_over_log_dir() -> None:
    assert load_broker_config({"log.dir": "/c"})[0].storage.log_dirs == ("/c",)
    both = load_broker_config({"log.dir": "/c", "log.dirs": "/a, /b"})[0].storage
    assert both.log_dirs == ("/a", "/b")
    assert both.metadata_log_dir == "/a"
    assert load_broker_config({"metadata.log.dir": "/m"})[0].storage.metadata_log_dir == "/m"


def test_connection_overrides() -> None:
    config, _ = load_broker_config({"max.connections.per.ip.overrides": "127.0.0.1:5, host:6"})
    assert config.network.connection_limits.max_connections_per_ip_overrides == {"127.0.0.1": 5, "host": 6}
