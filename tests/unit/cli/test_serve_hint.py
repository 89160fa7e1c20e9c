"""What `tidemill serve` says to try: a command that reaches this broker."""

from __future__ import annotations

import pytest

from tidemill.cli.serving.serve import _announce
from tidemill.config import load_broker_config


@pytest.mark.parametrize(
    ("listener", "port", "hint"),
    [
        ("127.0.0.1:9092", 9092, "tidemill topics create orders  "),
        (":9092", 9092, "tidemill topics create orders  "),
        ("127.0.0.1:9192", 9192, "tidemill topics create orders --bootstrap 127.0.0.1:9192  "),
        ("0.0.0.0:0", 40_000, "tidemill topics create orders --bootstrap 127.0.0.1:40000  "),
        ("[::1]:9092", 9092, "tidemill topics create orders --bootstrap [::1]:9092  "),
    ],
)
def test_the_hint_reaches_the_broker(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    listener: str,
    port: int,
    hint: str,
) -> None:
    monkeypatch.delenv("TIDEMILL_BOOTSTRAP", raising=False)
    config, _ = load_broker_config({"listeners": f"PLAINTEXT://{listener}"})
    _announce(config, [(config.network.listeners[0], port)], "", "client.properties")
    assert f"Try:  {hint}" in capsys.readouterr().out


def test_the_hint_needs_no_address_that_the_environment_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_BOOTSTRAP", "127.0.0.1:9192")
    config, _ = load_broker_config({"listeners": "PLAINTEXT://127.0.0.1:9192"})
    _announce(config, [(config.network.listeners[0], 9192)], "", "client.properties")
    assert "--bootstrap" not in capsys.readouterr().out


def test_the_hint_for_a_secured_listener_has_its_name_and_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEMILL_BOOTSTRAP", raising=False)
    settings = {
        "listeners": "SSL://0.0.0.0:9093",
        "advertised.listeners": "SSL://mq1.example.com:9093",
        "security.inter.broker.protocol": "SSL",
        "ssl.keystore.location": "node.pem",
    }
    config, _ = load_broker_config(settings)
    _announce(config, [(config.network.listeners[0], 9093)], "", "clients/admin.properties")
    hint = "orders --bootstrap mq1.example.com:9093 --command-config clients/admin.properties  "
    assert hint in capsys.readouterr().out
