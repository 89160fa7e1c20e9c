"""The SDK logs in with bearer tokens, from a function and from a file, and goes on when a token ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.secured import Issuer
from tidemill import AsyncClient, Client, ClientError
from tidemill.client.cluster import Cluster
from tidemill.client.connections.security import SecurityOptions
from tidemill.sdk.errors import InvalidSetting
from tidemill.testing import InProcessBroker


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def broker(issuer: Issuer) -> Iterator[InProcessBroker]:
    (issuer.folder / "node").write_text(issuer.token("node"))
    settings = {
        "sasl.oauthbearer.token.endpoint.url": (issuer.folder / "node").as_uri(),
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{issuer.jwks}",
        "sasl.oauthbearer.expected.audience": "tidemill",
        "sasl.oauthbearer.expected.issuer": "tests",
        "sasl.oauthbearer.clock.skew.seconds": "0",
    }
    with InProcessBroker(settings) as broker:
        yield broker


def test_client_with_a_function_outlives_its_tokens(broker: InProcessBroker, issuer: Issuer) -> None:
    """Each token lives for two seconds, in which librdkafka has to get another and to log in again."""
    given = threading.Semaphore(0)

    def token() -> str:
        given.release()
        return issuer.token(lifetime_s=2)

    with Client(broker.bootstrap, token=token, security_protocol="SASL_PLAINTEXT") as client:
        client.create_topic("orders", exist_ok=True)
        # The producer and the administrator ask for one each; the fourth is a renewal.
        for number in range(4):
            assert given.acquire(timeout=30)
            client.publish("orders", str(number)).result()


def test_async_client_reads_the_token_of_a_file(
    broker: InProcessBroker, issuer: Issuer, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(issuer.token())

    async def publish() -> None:
        async with AsyncClient(broker.bootstrap, token=path, security_protocol="SASL_PLAINTEXT") as client:
            await client.create_topic("payments", exist_ok=True)
            assert (await client.publish("payments", "paid")).offset == 0

    asyncio.run(publish())


def test_refused_token_fails_in_time_and_is_not_shown(broker: InProcessBroker, issuer: Issuer) -> None:
    wrong = issuer.token(audience="another")
    with (
        pytest.raises(ClientError) as failed,
        Client(
            broker.bootstrap, timeout_s=3, token=lambda: wrong, security_protocol="SASL_PLAINTEXT"
        ) as client,
    ):
        client.create_topic("refused")
    assert wrong not in str(failed.value)


def test_own_client_logs_in_with_the_same_token(
    broker: InProcessBroker, issuer: Issuer, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(issuer.token())
    security = SecurityOptions.parse(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
        }
    )
    with Cluster(broker.bootstrap, security=security) as cluster:
        assert cluster.load_metadata(None).brokers


def test_token_beside_another_mechanism_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="OAUTHBEARER"):
        Client("127.0.0.1:9092", token=lambda: "x", sasl_mechanism="PLAIN")
