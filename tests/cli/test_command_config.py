"""`--command-config`: every command reaches a cluster that wants TLS, by the properties of Kafka's own tools."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.brokers import Broker
from tests.cli.conftest import run_command
from tests.interop.test_tls import Certificates, TlsProxy

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


@pytest.fixture
def secured(start: Callable[..., Broker], tmp_path: Path) -> Iterator[tuple[Broker, Path]]:
    """A broker that is reached through TLS only, and the properties that it takes."""
    certificates = Certificates(tmp_path)
    proxy = TlsProxy()
    port = proxy.listen(certificates.of_server("broker", asks_clients=True))
    broker = start(
        settings={
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "group.initial.rebalance.delay.ms": "0",
        }
    )
    proxy.behind = (broker.host, broker.port)
    file = tmp_path / "client.properties"
    file.write_text(
        # As the Java client has it, and with an option that is not about security.
        "security.protocol=SSL\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={certificates.path('ca.pem')}\n"
        f"ssl.certificate.location={certificates.path('client.pem')}\n"
        f"ssl.key.location={certificates.path('client.key')}\n"
        "request.timeout.ms=10000\n"
    )
    broker.port = port
    yield broker, file
    proxy.stop()


def test_commands_reach_a_cluster_with_tls(secured: tuple[Broker, Path]) -> None:
    broker, file = secured
    option = ("--command-config", str(file))
    run_command(broker, "topics", "create", "orders", *option).check()
    run_command(broker, "produce", "orders", "hello", *option).check()
    assert run_command(broker, "consume", "orders", *option).ok == "hello\n"
    # Through confluent-kafka, which knows none of the Java client's names.
    assert run_command(broker, "consume", "orders", "--group", "billing", *option).ok == "hello\n"
    refused = run_command(broker, "topics", "list", "--timeout", "3")
    assert "security.protocol" in refused.error


def test_options_that_cannot_be_used_are_named(secured: tuple[Broker, Path]) -> None:
    broker, file = secured
    file.write_text(
        "security.protocol=SSL\nssl.truststore.location=/no/such/store.jks\nssl.truststore.type=JKS\n"
    )
    assert (
        "only PEM is supported" in run_command(broker, "topics", "list", "--command-config", str(file)).error
    )
    assert (
        "cannot read /no/file" in run_command(broker, "topics", "list", "--command-config", "/no/file").error
    )
