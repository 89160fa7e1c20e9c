"""Stock clients over SSL, SASL_PLAINTEXT and SASL_SSL, with each mechanism: what they write they read again."""

from __future__ import annotations

import asyncio
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.abc import AbstractTokenProvider as AioTokens
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.net.sasl.oauth import AbstractTokenProvider as PythonTokens

from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition
from tests.brokers import Broker
from tests.certificates import Authority
from tests.interop import kafka_tools
from tests.interop.kafka_tools import CONSOLE_CONSUMER, CONSOLE_PRODUCER, run_tool
from tests.secured import (
    MECHANISMS,
    PASSWORD,
    PLAIN_LOGIN,
    SCRAM_LOGIN,
    USER,
    Issuer,
    credentials,
    properties_text,
    sasl_settings,
    start_secured,
)
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.connections.security import SecurityOptions
from tidemill.client.fetch import fetch_range
from tidemill.client.producing.producer import Producer as TidemillProducer
from tidemill.protocol.records import iterate_records
from tidemill.types import TopicPartition as TidemillPartition

LIMIT_S = 30.0
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
OAUTH_LOGIN = f"{_OAUTH}.OAuthBearerLoginModule required"
# librdkafka, https://github.com/confluentinc/librdkafka/pull/4895
SCRAM_SINCE = (2, 6, 1)
OAUTH_HANDLER = f"{_OAUTH}.OAuthBearerLoginCallbackHandler"
# The second takes more than one record of TLS, and more than one chunk of a file.
VALUES = [b"one", b"two" * 300_000, b"three"]


class Secured(NamedTuple):
    broker: Broker
    addresses: dict[str, str]
    authority: Authority
    issuer: Issuer


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority, issuer = Authority(folder), Issuer(folder)
    settings = {
        "listeners": "SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "inter.broker.listener.name": "SSL",
        "ssl.keystore.location": str(authority.issue("broker")),
        "ssl.truststore.location": str(authority.path),
        **sasl_settings(issuer, ("SASL_PLAINTEXT", "SASL_SSL")),
    }
    broker, addresses = start_secured(folder / "broker", settings)
    with broker:
        yield Secured(broker, addresses, authority, issuer)
    assert PASSWORD not in broker.log()
    assert "ERROR" not in broker.log()


WAYS = [("SSL", None), *((p, m) for p in ("SASL_PLAINTEXT", "SASL_SSL") for m in MECHANISMS)]


def confluent(secured: Secured, protocol: str, mechanism: str | None, topic: str) -> list[bytes]:
    options: dict[str, Any] = {
        "bootstrap.servers": secured.addresses[protocol],
        "security.protocol": protocol,
        "ssl.ca.location": str(secured.authority.path),
    }
    if mechanism is not None:
        options["sasl.mechanism"] = mechanism
    if mechanism == "OAUTHBEARER":
        options["oauth_cb"] = lambda _config: (secured.issuer.token(), time.time() + 600)
    elif mechanism is not None:
        options |= {"sasl.username": USER, "sasl.password": PASSWORD}
    producer = Producer(options)
    for value in VALUES:
        producer.produce(topic, value, partition=0)
    assert producer.flush(LIMIT_S) == 0
    consumer = Consumer({**options, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    read: list[bytes] = []
    deadline = time.monotonic() + LIMIT_S
    while len(read) < len(VALUES) and time.monotonic() < deadline:
        read += [message.value() or b"" for message in consumer.consume(10, 0.2) if message.error() is None]
    consumer.close()
    return read


def client_context(secured: Secured) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(secured.authority.path))


def kafka_python(secured: Secured, protocol: str, mechanism: str | None, topic: str) -> list[bytes]:
    class Tokens(PythonTokens):  # type: ignore[misc]
        def token(self) -> str:
            return secured.issuer.token()

    options: dict[str, Any] = {
        "bootstrap_servers": secured.addresses[protocol],
        "security_protocol": protocol,
        "ssl_context": client_context(secured) if protocol.endswith("SSL") else None,
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        options["sasl_oauth_token_provider"] = Tokens()
    elif mechanism is not None:
        options |= {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    producer = KafkaProducer(**options)
    for value in VALUES:
        producer.send(topic, value, partition=0).get(LIMIT_S)
    producer.close()
    consumer = KafkaConsumer(**options, consumer_timeout_ms=int(LIMIT_S * 1000))
    consumer.assign([PythonPartition(topic, 0)])
    consumer.seek(PythonPartition(topic, 0), 0)
    read = [next(consumer).value for _ in VALUES]
    consumer.close()
    return read


def aio(secured: Secured, protocol: str, mechanism: str | None, topic: str) -> list[bytes]:
    class Tokens(AioTokens):  # type: ignore[misc]
        async def token(self) -> str:
            return secured.issuer.token()

    options: dict[str, Any] = {
        "bootstrap_servers": secured.addresses[protocol],
        "security_protocol": protocol,
        "ssl_context": client_context(secured) if protocol.endswith("SSL") else None,
    }
    if mechanism is not None:
        options["sasl_mechanism"] = mechanism

    async def write_and_read() -> list[bytes]:
        if mechanism == "OAUTHBEARER":
            options["sasl_oauth_token_provider"] = Tokens()
        elif mechanism is not None:
            options.update(sasl_plain_username=USER, sasl_plain_password=PASSWORD)
        async with AIOKafkaProducer(**options) as producer:
            for value in VALUES:
                await producer.send_and_wait(topic, value, partition=0)
        async with AIOKafkaConsumer(**options) as consumer:
            consumer.assign([AioPartition(topic, 0)])
            consumer.seek(AioPartition(topic, 0), 0)
            return [(await consumer.getone()).value for _ in VALUES]

    return asyncio.run(asyncio.wait_for(write_and_read(), LIMIT_S))


def own(secured: Secured, protocol: str, mechanism: str | None, topic: str) -> list[bytes]:
    """The client of the command line and of Spark, by the properties of Kafka's Java client."""
    options = {"security.protocol": protocol}
    if protocol.endswith("SSL"):
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(secured.authority.path)}
    if mechanism is not None:
        options["sasl.mechanism"] = mechanism
    if mechanism == "OAUTHBEARER":
        token = secured.authority.folder / "token"
        token.write_text(secured.issuer.token())
        options["sasl.oauthbearer.token.endpoint.url"] = f"file://{token}"
    elif mechanism is not None:
        module = PLAIN_LOGIN if mechanism == "PLAIN" else SCRAM_LOGIN
        options["sasl.jaas.config"] = f"{module} {credentials()};"
    partition = TidemillPartition(topic, 0)
    with Cluster(secured.addresses[protocol], security=SecurityOptions.parse(options)) as cluster:
        Admin(cluster).create_topic(topic, partition_count=1)
        producer = TidemillProducer(cluster)
        for value in VALUES:
            producer.add(topic, value, partition=0)
        producer.flush()
        return [
            record.value or b""
            for answer in fetch_range(cluster, partition, 0, len(VALUES))
            for header, view in answer.batches
            for record in iterate_records(view, header)
        ]


def java(secured: Secured, protocol: str, mechanism: str | None, topic: str) -> list[bytes]:
    """Kafka's own client, through its console tools."""
    options = {"security.protocol": protocol, "max.partition.fetch.bytes": "10000000"}
    if protocol.endswith("SSL"):
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(secured.authority.path)}
    virtual_machine: tuple[str, ...] = ()
    if mechanism is not None:
        options["sasl.mechanism"] = mechanism
    if mechanism == "OAUTHBEARER":
        token = secured.authority.folder / "java-token"
        token.write_text(secured.issuer.token())
        options |= {
            "sasl.oauthbearer.token.endpoint.url": f"file://{token}",
            "sasl.login.callback.handler.class": OAUTH_HANDLER,
            "sasl.jaas.config": f"{OAUTH_LOGIN};",
        }
        virtual_machine = (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{token}",)
        virtual_machine += (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={token}",)
    elif mechanism is not None:
        module = PLAIN_LOGIN if mechanism == "PLAIN" else SCRAM_LOGIN
        options["sasl.jaas.config"] = f"{module} {credentials()};"
    config = secured.authority.folder / "java.properties"
    config.write_text(properties_text(options))
    at = (
        "--bootstrap-server",
        secured.addresses[protocol],
        "--topic",
        topic,
        "--command-config",
        str(config),
    )
    run_tool(CONSOLE_PRODUCER, *at, "--sync", stdin=b"\n".join(VALUES) + b"\n", java=virtual_machine)
    count = ("--from-beginning", "--max-messages", str(len(VALUES)), "--timeout-ms", "60000")
    return run_tool(CONSOLE_CONSUMER, *at, *count, java=virtual_machine).encode().splitlines()


def _librdkafka_of_kcat() -> tuple[int, ...]:
    shown = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", shown)
    return tuple(map(int, found.groups())) if found else (0,)


def kcat(secured: Secured, protocol: str, mechanism: str | None, topic: str) -> list[bytes]:
    if mechanism == "OAUTHBEARER":
        pytest.skip("kcat takes no token from its caller; confluent-kafka is the same library and does")
    options = {"security.protocol": protocol, "ssl.ca.location": str(secured.authority.path)}
    if mechanism is not None:
        if mechanism.startswith("SCRAM") and _librdkafka_of_kcat() < SCRAM_SINCE:
            pytest.skip(
                "the librdkafka of this kcat sends a wrong nonce, which Kafka 4 refuses, too; 2.6.1 does not"
            )
        options |= {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
    given = [word for name, value in options.items() for word in ("-X", f"{name}={value}")]
    command = ["kcat", "-b", secured.addresses[protocol], "-t", topic, "-p", "0", *given]
    written = b"\n".join(VALUES) + b"\n"
    subprocess.run([*command, "-P"], input=written, check=True, timeout=LIMIT_S)
    reading = [*command, "-C", "-o", "beginning", "-c", str(len(VALUES)), "-q"]
    return subprocess.run(reading, capture_output=True, check=True, timeout=LIMIT_S).stdout.splitlines()


_NO_JAVA = kafka_tools.missing()
_OPTIONAL = [
    # Each way takes two Java virtual machines.
    pytest.param(
        java, marks=[pytest.mark.long, pytest.mark.skipif(_NO_JAVA is not None, reason=_NO_JAVA or "")]
    ),
    pytest.param(
        kcat, marks=pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
    ),
]


@pytest.mark.parametrize(
    "client", [confluent, kafka_python, aio, own, *_OPTIONAL], ids=lambda each: str(each.__name__)
)
@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_client_reads_what_it_wrote(
    secured: Secured, protocol: str, mechanism: str | None, client: Callable[..., list[bytes]]
) -> None:
    topic = f"{protocol}-{mechanism}-{client.__name__}"
    assert client(secured, protocol, mechanism, topic) == VALUES


def test_wrong_password_is_refused_by_name(secured: Secured, tmp_path: Path) -> None:
    errors: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": secured.addresses["SASL_SSL"],
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(secured.authority.path),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": "wrong",
            "error_cb": lambda error: errors.append(str(error)),
        }
    )
    deadline = time.monotonic() + LIMIT_S
    while not any("_AUTHENTICATION" in error for error in errors) and time.monotonic() < deadline:
        producer.poll(0.1)
    assert any("_AUTHENTICATION" in error for error in errors), errors
