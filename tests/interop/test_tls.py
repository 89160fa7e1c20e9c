"""TLS: a real broker behind a proxy that speaks it, with certificates made for the occasion."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.brokers import Broker, readable
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import BrokerUnreachable
from tidemill.client.connections.sasl import AuthenticationFailed
from tidemill.client.connections.security import SecurityOptions
from tidemill.client.fetch import fetch_range
from tidemill.errors import ConfigError
from tidemill.protocol.records import iterate_records
from tidemill.types import TopicPartition

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
KEY_PASSWORD = "open sesame"


class Certificates:
    """An authority, a broker's certificate for 127.0.0.1 and another for a host elsewhere, and a client's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._openssl("req", "-x509", *self._new_key("ca"), "-out", self.path("ca.pem"), "-days", "2")
        self._openssl(
            "req", "-x509", *self._new_key("stranger"), "-out", self.path("stranger.pem"), "-days", "2"
        )
        self._sign("broker", "subjectAltName=IP:127.0.0.1")
        self._sign("elsewhere", "subjectAltName=DNS:elsewhere.example")
        self._sign("client", "extendedKeyUsage=clientAuth")
        self._openssl(
            *("pkcs8", "-topk8", "-in", self.path("client.key"), "-out", self.path("locked.key")),
            *("-passout", f"pass:{KEY_PASSWORD}"),
        )

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def _new_key(self, name: str) -> tuple[str, ...]:
        key = self.path(f"{name}.key")
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        return (*curve, "-keyout", key, "-subj", f"/CN={name}")

    def _sign(self, name: str, extension: str) -> None:
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(extension)
        self._openssl("req", *self._new_key(name), "-out", self.path(f"{name}.csr"))
        self._openssl(
            *(
                "x509",
                "-req",
                "-in",
                self.path(f"{name}.csr"),
                "-out",
                self.path(f"{name}.pem"),
                "-days",
                "2",
            ),
            *("-CA", self.path("ca.pem"), "-CAkey", self.path("ca.key"), "-CAcreateserial"),
            *("-extfile", str(extensions)),
        )

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)

    def of_server(self, name: str, *, asks_clients: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path(f"{name}.pem"), self.path(f"{name}.key"))
        if asks_clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.path("ca.pem"))
        return context


class TlsProxy:
    """Takes TLS off and passes everything on to `behind`, each connection in a thread of its own."""

    def __init__(self) -> None:
        self.behind = ("", 0)
        self._is_stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def listen(self, context: ssl.SSLContext) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        self._run(self._accept, listener, context)
        return int(listener.getsockname()[1])

    def stop(self) -> None:
        self._is_stopped.set()
        for thread in self._threads:
            thread.join(30)

    def _run(self, target: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments))
        self._threads[-1].start()

    def _accept(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        with listener:
            while not self._is_stopped.is_set():
                if readable([listener], 0.1):
                    self._run(self._serve, listener.accept()[0], context)

    def _serve(self, accepted: socket.socket, context: ssl.SSLContext) -> None:
        # A client that goes away, or is not let in, is not the proxy's failure.
        with (
            accepted,
            contextlib.suppress(OSError),
            context.wrap_socket(accepted, server_side=True) as front,
            socket.create_connection(self.behind) as back,
        ):
            self._pass(front, back)

    def _pass(self, front: ssl.SSLSocket, back: socket.socket) -> None:
        while not self._is_stopped.is_set():
            for source in [front] if front.pending() else readable([front, back], 0.1):
                data = source.recv(1 << 18)
                if not data:
                    return
                (back if source is front else front).sendall(data)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def proxy() -> Iterator[TlsProxy]:
    proxy = TlsProxy()
    yield proxy
    proxy.stop()


@pytest.fixture
def secured(start: Callable[..., Broker], proxy: TlsProxy, certificates: Certificates) -> tuple[Broker, str]:
    """A broker, and the address of its TLS listener, which it names to clients."""
    port = proxy.listen(certificates.of_server("broker", asks_clients=True))
    broker = start({"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"})
    proxy.behind = (broker.host, broker.port)
    return broker, f"127.0.0.1:{port}"


def options(**given: str) -> SecurityOptions:
    named = {name.replace("_", "."): value for name, value in given.items()}
    return SecurityOptions.parse({"security.protocol": "SSL", **named})


def test_a_range_over_tls_with_the_clients_certificate(
    secured: tuple[Broker, str], certificates: Certificates, topic: str
) -> None:
    _, bootstrap = secured
    files = {
        "ssl.ca.location": certificates.path("ca.pem"),
        "ssl.certificate.location": certificates.path("client.pem"),
        "ssl.key.location": certificates.path("locked.key"),
        "ssl.key.password": KEY_PASSWORD,
    }
    values = [b"%d " % each * 100 for each in range(5000)]
    producer = Producer({"bootstrap.servers": bootstrap, "security.protocol": "SSL", **files})
    security = SecurityOptions.parse({"security.protocol": "SSL", **files})
    with Cluster(bootstrap, security=security) as cluster:
        Admin(cluster).create_topic(topic, partition_count=1)
        for value in values:
            producer.produce(topic, value, partition=0)
            producer.poll(0)
        assert producer.flush(30) == 0
        partition = TopicPartition(topic, 0)
        read = [
            record.value
            for answer in fetch_range(cluster, partition, 0, len(values), fetch_bytes=500_000)
            for header, view in answer.batches
            for record in iterate_records(view, header)
        ]
    assert read == values


def test_certificates_and_keys_as_text_in_one_line(
    secured: tuple[Broker, str], certificates: Certificates
) -> None:
    security = options(
        ssl_truststore_type="PEM",
        ssl_truststore_certificates=certificates.text("ca.pem").replace("\n", " "),
        ssl_keystore_type="PEM",
        ssl_keystore_certificate_chain=certificates.text("client.pem").replace("\n", " "),
        ssl_keystore_key=certificates.text("locked.key").replace("\n", " "),
        ssl_key_password=KEY_PASSWORD,
    )
    with Cluster(secured[1], security=security) as cluster:
        assert cluster.broker_ids()


def test_a_key_and_its_certificate_in_one_file(
    secured: tuple[Broker, str], certificates: Certificates, tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_text(certificates.text("client.key") + certificates.text("client.pem"))
    security = options(ssl_truststore_location=certificates.path("ca.pem"), ssl_keystore_location=str(both))
    with Cluster(secured[1], security=security) as cluster:
        assert cluster.broker_ids()


@pytest.mark.parametrize(
    ("password", "key"), [("wrong", "locked.key"), (None, "locked.key"), (None, "ca.key")]
)
def test_a_key_that_cannot_be_used(
    secured: tuple[Broker, str], certificates: Certificates, password: str | None, key: str
) -> None:
    given = {"ssl_key_password": password} if password else {}
    security = options(
        ssl_ca_location=certificates.path("ca.pem"),
        ssl_certificate_location=certificates.path("client.pem"),
        ssl_key_location=certificates.path(key),
        **given,
    )
    with pytest.raises(ConfigError, match=r"certificate or key cannot be used: .*ssl.key.password"):
        Cluster(secured[1], security=security).broker_ids()


def test_an_authority_that_is_not_there(secured: tuple[Broker, str]) -> None:
    with pytest.raises(ConfigError, match=r"/no/such.pem cannot be used .*no such file"):
        Cluster(secured[1], security=options(ssl_ca_location="/no/such.pem")).broker_ids()


def test_untrusted_certificates_are_rejected(proxy: TlsProxy, certificates: Certificates) -> None:
    here = f"127.0.0.1:{proxy.listen(certificates.of_server('broker', asks_clients=False))}"
    elsewhere = f"127.0.0.1:{proxy.listen(certificates.of_server('elsewhere', asks_clients=False))}"
    stranger = options(ssl_ca_location=certificates.path("stranger.pem"))
    with pytest.raises(
        AuthenticationFailed, match=f"^{here}: the broker's certificate is not trusted: unable to"
    ):
        Cluster(here, security=stranger).broker_ids()
    with pytest.raises(
        AuthenticationFailed, match=f"^{here}: .* self-signed certificate in certificate chain|unable"
    ):
        Cluster(here, security=options()).broker_ids()
    authority = certificates.path("ca.pem")
    with pytest.raises(AuthenticationFailed, match=f"^{elsewhere}: .*IP address mismatch"):
        Cluster(elsewhere, security=options(ssl_ca_location=authority)).broker_ids()


def test_a_host_that_is_not_checked(
    start: Callable[..., Broker], proxy: TlsProxy, certificates: Certificates
) -> None:
    broker = start()
    proxy.behind = (broker.host, broker.port)
    port = proxy.listen(certificates.of_server("elsewhere", asks_clients=False))
    security = options(ssl_ca_location=certificates.path("ca.pem"), ssl_endpoint_identification_algorithm="")
    with Cluster(f"127.0.0.1:{port}", security=security) as cluster:
        assert cluster.broker_ids()


def test_tls_where_there_is_none_and_none_where_there_is(
    secured: tuple[Broker, str], certificates: Certificates
) -> None:
    broker, bootstrap = secured
    security = options(ssl_ca_location=certificates.path("ca.pem"))
    with pytest.raises(BrokerUnreachable, match=r"TLS failed: .*is it a listener with TLS"):
        Cluster(broker.bootstrap, security=security, timeout_s=5).broker_ids()
    with pytest.raises(BrokerUnreachable, match=r"TLS.*set security.protocol to SSL or SASL_SSL"):
        Cluster(bootstrap, timeout_s=5).broker_ids()


def test_a_client_without_the_certificate_that_the_broker_wants(
    secured: tuple[Broker, str], certificates: Certificates
) -> None:
    with pytest.raises(BrokerUnreachable, match=r"wants a certificate.*set ssl.certificate.location"):
        Cluster(secured[1], security=options(ssl_ca_location=certificates.path("ca.pem"))).broker_ids()
