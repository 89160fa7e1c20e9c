"""Which listener the gateway of a broker dials, with what, and where it may listen itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.certificates import Authority
from tidemill.cli.serving.gateway_access import gateway_access, has_login
from tidemill.cli.serving.http_listeners import check_exposure, http_listener, refuse_unknown_keys
from tidemill.config import load_broker_config
from tidemill.errors import ConfigError

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required username=n password=p;"
TLS = {"ssl.keystore.location": "node.pem", "ssl.truststore.location": "ca.pem"}
SASL = {
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
    "sasl.jaas.config": SCRAM,
}


def access(
    listeners: str, given: dict[str, str] | None = None, **settings: str
) -> tuple[str, dict[str, str]]:
    properties = {
        "log.dirs": "data",
        "listeners": listeners,
        **{k.replace("_", "."): v for k, v in settings.items()},
    }
    names = [each.partition(":")[0] for each in listeners.split(",")]
    properties.setdefault("inter.broker.listener.name", names[-1])
    config, _ = load_broker_config({**properties, **TLS, **SASL})
    listener, client = gateway_access(config, given)
    return listener.name, client


def test_plain_broker_is_dialled_without_anything() -> None:
    name, client = access("PLAINTEXT://:9092")
    assert (name, client) == ("PLAINTEXT", {"security.protocol": "PLAINTEXT"})
    assert not has_login(client)


def test_listener_with_sasl_is_dialled_before_a_plain_one() -> None:
    name, client = access("PLAINTEXT://:9092,SASL_SSL://:9093,SASL_PLAINTEXT://:9094")
    assert name == "SASL_SSL"
    assert client == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "ca.pem",
    }
    assert has_login(client)


def test_listener_of_the_nodes_is_the_last_resort() -> None:
    protocols = "NODES:SASL_SSL,CLIENTS:SASL_SSL"
    name, _ = access(
        "NODES://:9092,CLIENTS://:9093",
        listener_security_protocol_map=protocols,
        inter_broker_listener_name="NODES",
    )
    assert name == "CLIENTS"


def test_file_of_the_operator_decides_where_it_is_given() -> None:
    given = {"security.protocol": "PLAINTEXT"}
    assert access("SASL_SSL://:9093,PLAINTEXT://:9092", given) == ("PLAINTEXT", given)
    with pytest.raises(ConfigError, match="no listener for clients"):
        access("PLAINTEXT://:9092", {"security.protocol": "SSL"})


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"ssl.client.auth": "required"}, "wants a certificate of its clients"),
        ({"ssl.truststore.location": ""}, "ssl.truststore.location names no PEM file"),
        ({"ssl.truststore.type": "PKCS12"}, "ssl.truststore.location names no PEM file"),
    ],
)
def test_listener_that_cannot_be_dialled_is_refused_with_what_to_set(
    settings: dict[str, str], why: str
) -> None:
    properties = {"log.dirs": "data", "listeners": "SSL://:9093", "security.inter.broker.protocol": "SSL"}
    config, _ = load_broker_config({**properties, **TLS, **settings})
    with pytest.raises(ConfigError, match=f"{why}; set tidemill.gateway.client.config to a file"):
        gateway_access(config, None)


# --- where a gateway listens ---


@pytest.mark.parametrize(
    ("text", "has_login_there", "has_auth", "words"),
    [
        ("0.0.0.0:8080", False, False, "whoever reaches it could read and change everything"),
        (":8080", False, False, "would listen on every interface"),
        ("gateway.example.com:8080", False, False, "--insecure"),
        ("0.0.0.0:8080", True, False, "without TLS"),
        ("127.0.0.1:8080", False, False, None),
        ("[::1]:8080", False, False, None),
        ("localhost:8080", True, False, None),
        ("0.0.0.0:8080", False, True, None),
    ],
)
def test_gateway_is_kept_from_the_network_unless_it_is_protected(
    text: str, has_login_there: bool, has_auth: bool, words: str | None
) -> None:
    listener = http_listener("--gateway", text, {}, "")
    if words is None:
        check_exposure(listener, option="--gateway", has_login=has_login_there, has_auth=has_auth)
        return
    with pytest.raises(ConfigError, match=words):
        check_exposure(listener, option="--gateway", has_login=has_login_there, has_auth=has_auth)


def test_login_behind_a_proxy_or_with_tls_may_listen_anywhere(tmp_path: Path) -> None:
    certificate = str(Authority(tmp_path).issue("node"))
    plain = http_listener("--gateway", "0.0.0.0:8080", {}, "")
    check_exposure(plain, option="--gateway", has_login=True, has_auth=False, is_proxied=True)
    secured = http_listener("--gateway", "https://0.0.0.0:8443", {"ssl.keystore.location": certificate}, "x.")
    assert secured.scheme == "https://"
    check_exposure(secured, option="--gateway", has_login=True, has_auth=False)
    with pytest.raises(ConfigError, match="read and change everything"):
        check_exposure(secured, option="--gateway", has_login=False, has_auth=False)


def test_certificate_is_the_listeners_own_or_that_of_all(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    general, own = (str(authority.issue(name)) for name in ("general", "own"))
    properties = {
        "ssl.keystore.location": general,
        "ssl.client.auth": "required",
        "tidemill.gateway.ssl.keystore.location": own,
    }
    status = http_listener("s", "https://127.0.0.1:0", properties, "tidemill.status.")
    gateway = http_listener("g", "https://127.0.0.1:0", properties, "tidemill.gateway.")
    assert status.tls is not None
    assert gateway.tls is not None
    assert [each.key_store.location for each in (status.tls, gateway.tls) if each.key_store] == [general, own]
    assert gateway.tls.client_auth == "none", "browsers have no certificate"


@pytest.mark.parametrize(
    ("text", "properties", "words"),
    [
        ("https://127.0.0.1:0", {}, "needs a certificate"),
        ("https://127.0.0.1:0", {"ssl.keystore.location": "/no/file"}, "cannot be used"),
        ("127.0.0.1:0", {"tidemill.gateway.ssl.keystore.location": "x"}, "write https://HOST:PORT"),
        ("https://nowhere", {}, "g"),
    ],
)
def test_listener_that_cannot_be_secured_is_refused(
    text: str, properties: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        http_listener("g", text, properties, "tidemill.gateway.")


def test_misspelt_key_is_refused() -> None:
    refuse_unknown_keys({"tidemill.gateway.insecure": "true", "log.dirs": "data"})
    with pytest.raises(ConfigError, match=r"tidemill\.gateway\.ssl\.keystroe\.location is not known"):
        refuse_unknown_keys({"tidemill.gateway.ssl.keystroe.location": "x"})
