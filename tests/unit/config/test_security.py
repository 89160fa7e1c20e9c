"""The security of listeners: which settings are in force for which, and which are refused."""

from __future__ import annotations

import pytest

from tidemill.config import BrokerConfig, load_broker_config
from tidemill.errors import ConfigError
from tidemill.jaas import parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
THREE = {
    "listeners": "INTERNAL://h:1,EXTERNAL://h:2,CONTROLLER://h:3",
    "listener.security.protocol.map": "INTERNAL:SASL_SSL,EXTERNAL:SSL,CONTROLLER:SASL_PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "h:3",
    "ssl.keystore.location": "/all.pem",
    "ssl.client.auth": "required",
    "listener.name.external.ssl.keystore.location": "/external.pem",
    "listener.name.internal.ssl.client.auth": "none",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "listener.name.internal.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    "sasl.mechanism.controller.protocol": "SCRAM-SHA-512",
    "listener.name.internal.plain.sasl.jaas.config": f'{PLAIN} required user_alice="hunter1" user_bob="a b";',
    "listener.name.internal.scram-sha-256.sasl.jaas.config": f'{SCRAM} required username="n" password="hunter2";',
    "listener.name.controller.scram-sha-512.sasl.jaas.config": f'{SCRAM} required username="c" password="hunter3";',
    "listener.name.internal.plain.connections.max.reauth.ms": "5000",
}


def load(properties: dict[str, str]) -> BrokerConfig:
    config, warnings = load_broker_config(properties)
    assert warnings == []
    return config


def test_the_most_specific_key_of_a_listener_is_in_force() -> None:
    listeners = load(THREE).security.listeners
    internal, external = listeners["INTERNAL"], listeners["EXTERNAL"]
    assert internal.tls is not None
    assert external.tls is not None
    assert internal.tls.key_store is not None
    assert external.tls.key_store is not None
    assert (internal.tls.key_store.location, internal.tls.client_auth) == ("/all.pem", "none")
    assert (external.tls.key_store.location, external.tls.client_auth) == ("/external.pem", "required")
    assert listeners["CONTROLLER"].tls is None
    assert external.sasl is None


def test_only_the_listeners_own_key_requires_client_certificates_beside_a_login() -> None:
    general = {key: value for key, value in THREE.items() if key != "listener.name.internal.ssl.client.auth"}
    for properties, expected in (
        (general, "none"),
        ({**general, "listener.name.internal.ssl.client.auth": "required"}, "required"),
    ):
        tls = load(properties).security.listeners["INTERNAL"].tls
        assert tls is not None
        assert tls.client_auth == expected


def test_users_and_logins_come_from_the_jaas_texts_of_each_mechanism() -> None:
    listeners = load(THREE).security.listeners
    internal, controller = listeners["INTERNAL"], listeners["CONTROLLER"]
    assert internal.sasl is not None
    assert {user: password.value for user, password in internal.sasl.plain_users.items()} == {
        "alice": "hunter1",
        "bob": "a b",
    }
    assert internal.sasl.max_reauth_ms == {"PLAIN": 5000, "SCRAM-SHA-256": 0}
    assert internal.login is not None
    assert controller.login is not None
    assert (internal.login.mechanism, internal.login.username) == ("SCRAM-SHA-256", "n")
    assert (controller.login.mechanism, controller.login.password.value) == ("SCRAM-SHA-512", "hunter3")


def test_plain_users_may_be_in_a_file_of_one_listener_or_of_all() -> None:
    own = "listener.name.internal.tidemill.plain.users.file"
    config, warnings = load_broker_config(
        {**THREE, own: "/etc/users", "tidemill.plain.users.file": "/etc/all"}
    )
    internal = config.security.listeners["INTERNAL"].sasl
    controller = config.security.listeners["CONTROLLER"].sasl
    assert internal is not None
    assert controller is not None
    assert (internal.plain_users_file, controller.plain_users_file) == ("/etc/users", None)
    assert not [each for each in warnings if "plain.users" in each]
    jaas = "listener.name.internal.plain.sasl.jaas.config"
    without = {key: value for key, value in THREE.items() if key != jaas}
    internal = load({**without, "tidemill.plain.users.file": "/etc/all"}).security.listeners["INTERNAL"].sasl
    assert internal is not None
    assert (internal.plain_users, internal.plain_users_file) == ({}, "/etc/all")


def test_no_secret_is_in_the_text_of_a_configuration() -> None:
    config = load({**THREE, "ssl.key.password": "hunter4"})
    for shown in (repr(config), str(config), repr(config.layers), repr(config.security)):
        assert "hunter" not in shown


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ssl.enabled.protocols": "TLSv1.1"}, "older versions of TLS"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "Kerberos is not supported"),
        (
            {"sasl.enabled.mechanisms": "PLAIN"},
            "no user: set listener.name.controller.plain.sasl.jaas.config",
        ),
        ({"sasl.mechanism.controller.protocol": "GSSAPI"}, "sasl.mechanism.controller.protocol"),
        ({"listener.name.internal.scram-sha-256.sasl.jaas.config": "what?"}, "cannot be read"),
        (
            {"listener.name.internal.scram-sha-256.sasl.jaas.config": f'{PLAIN} required username="u";'},
            "it is org.apache.kafka.common.security.scram.ScramLoginModule",
        ),
        (
            {"listener.name.controller.sasl.enabled.mechanisms": "OAUTHBEARER"},
            "sasl.oauthbearer.jwks.endpoint.url",
        ),
        ({"ssl.keystore.key": "hunter2"}, "are given together"),
    ],
)
def test_a_setting_that_cannot_work_stops_the_start(changed: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_broker_config({**THREE, **changed})
    assert said in str(refused.value)
    assert "hunter" not in str(refused.value)


def test_a_jaas_text_may_quote_what_it_likes() -> None:
    entry = parse_jaas(f'{SCRAM} required username="a\\"b" password="c;d=\\\\" ;', "SCRAM-SHA-256")
    assert entry.options == {"username": 'a"b', "password": "c;d=\\"}
    assert "c;d" not in repr(entry)
