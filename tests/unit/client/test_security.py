"""Kafka's security options, and SASL against a server that computes its side by itself."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import RunningBroker
from tidemill.client.connections.connection import Address, Connection
from tidemill.client.connections.sasl import AuthenticationFailed
from tidemill.client.connections.security import SecurityOptions
from tidemill.errors import ConfigError
from tidemill.protocol import frames
from tidemill.protocol.api.cluster import (
    ApiVersion,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from tidemill.protocol.api.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tidemill.protocol.schema import Response, decode_exact

USER, SECRET = "alice, of =wonderland", 'rabbit "hole"\\7'
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


# --- options ---


def test_no_options_mean_plaintext() -> None:
    assert SecurityOptions.parse({}) == SecurityOptions()
    assert not SecurityOptions().has_tls


@pytest.mark.parametrize(
    "options",
    [
        {"ssl.ca.location": "/ca.pem", "ssl.certificate.location": "/me.pem", "ssl.key.location": "/me.key"},
        {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca.pem",
            "ssl.keystore.type": "pem",
            "ssl.keystore.location": "/me.pem",
            "ssl.key.location": "/me.key",
        },
    ],
)
def test_both_families_of_names_mean_the_same(options: dict[str, str]) -> None:
    parsed = SecurityOptions.parse({"security.protocol": "ssl", "ssl.key.password": SECRET, **options})
    assert parsed == SecurityOptions(
        protocol="SSL",
        ca_location="/ca.pem",
        certificate_location="/me.pem",
        key_location="/me.key",
        key_password=SECRET,
    )


@pytest.mark.parametrize(("algorithm", "expected"), [("https", True), ("", False), ("none", False)])
def test_whether_the_host_is_checked(algorithm: str, expected: bool) -> None:
    options = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": algorithm}
    assert SecurityOptions.parse(options).checks_hostname is expected


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(
    "login",
    [
        {"sasl.username": USER, "sasl.password": SECRET},
        {"sasl.jaas.config": '{module} required username="{user}" password="{secret}";'},
        {"sasl.jaas.config": ' {module}\n  required\n password = "{secret}"\n username="{user}" ; '},
    ],
)
def test_logins(mechanism: str, login: dict[str, str]) -> None:
    escaped = SECRET.replace("\\", "\\\\").replace('"', '\\"')
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    filled = {
        name: value.replace("{module}", module).replace("{user}", USER).replace("{secret}", escaped)
        for name, value in login.items()
    }
    parsed = SecurityOptions.parse(
        {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism.lower(), **filled}
    )
    assert (parsed.mechanism, parsed.username, parsed.password) == (mechanism, USER, SECRET)


def test_a_login_without_quotes() -> None:
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "PLAIN",
        "sasl.jaas.config": f"{PLAIN_MODULE} required username=alice password=secret;",
    }
    parsed = SecurityOptions.parse(options)
    assert (parsed.username, parsed.password) == ("alice", "secret")


SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
LOGIN = {"sasl.username": "alice", "sasl.password": SECRET}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS is not known.*SASL_SSL"),
        ({"ssl.truststore.type": "JKS", "ssl.truststore.location": "/x"}, "ssl.truststore.type=JKS.*PEM"),
        ({"ssl.keystore.type": "PKCS12"}, "ssl.keystore.type=PKCS12 is not supported; only PEM.*openssl"),
        ({"ssl.truststore.password": SECRET}, "ssl.truststore.password is not supported.*PEM"),
        ({"ssl.keystore.password": SECRET}, "ssl.keystore.password is not supported.*ssl.key.password"),
        ({"ssl.cipher.suites": "x"}, "ssl.cipher.suites is not supported"),
        ({"ssl.engine.factory.class": "x"}, "ssl.engine.factory.class is not supported"),
        ({"ssl.no.such.thing": SECRET}, "ssl.no.such.thing is not a known security option"),
        ({"ssl.ca.location": "/a", "ssl.truststore.location": "/b"}, "ssl.ca.location and ssl.truststore"),
        ({"ssl.ca.location": "/a", "ssl.ca.pem": "x"}, "as a file and as text"),
        ({"ssl.key.location": "/a"}, "a key is given without its certificate"),
        ({"ssl.keystore.certificate.chain": "x"}, "without its key: set ssl.keystore.key"),
        ({"ssl.endpoint.identification.algorithm": "LDAPS"}, "algorithm=LDAPS is not known"),
        (LOGIN, "sasl.username is given, but security.protocol=PLAINTEXT logs nobody in"),
        ({"security.protocol": "SASL_SSL"}, "needs sasl.mechanism"),
        (SASL | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI is not supported; use PLAIN"),
        (SASL | {"sasl.mechanism": "OAUTHBEARER"}, "OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url"),
        (SASL | {"sasl.kerberos.service.name": "kafka"}, "sasl.kerberos.service.name is not supported: Ker"),
        (
            SASL | {"sasl.oauthbearer.jwks.endpoint.url": "x"},
            "a token comes from sasl.oauthbearer.token.endpoint",
        ),
        (
            SASL
            | {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "http://far/token"},
            "file:///PATH or https",
        ),
        (
            SASL
            | {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://a/token"},
            "client.credentials.client.id",
        ),
        (SASL | {"sasl.login.class": "x"}, "sasl.login.class is not supported.*sasl.username"),
        (SASL, "needs sasl.username and sasl.password, or sasl.jaas.config"),
        (SASL | LOGIN | {"sasl.jaas.config": "x"}, "sasl.jaas.config and sasl.username say the same"),
        (SASL | {"sasl.jaas.config": f"{SCRAM_MODULE} {SECRET}"}, "sasl.jaas.config cannot be read"),
        (SASL | {"sasl.jaas.config": f"{PLAIN_MODULE} required;"}, "it is .*ScramLoginModule"),
        (
            SASL | {"sasl.jaas.config": f"{SCRAM_MODULE} required password={SECRET};"},
            "options should be NAME",
        ),
        (SASL | {"sasl.jaas.config": f'{SCRAM_MODULE} required tokenauth="true";'}, "the option tokenauth"),
        (SASL | {"sasl.jaas.config": f'{SCRAM_MODULE} required username="a";'}, "needs sasl.username and"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        SecurityOptions.parse(options)
    assert "rabbit" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_java_store_is_recognised(tmp_path: Path) -> None:
    store = tmp_path / "store.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    with pytest.raises(ConfigError, match=r"ssl.truststore.location=.*store.jks is a Java store; only PEM"):
        SecurityOptions.parse({"security.protocol": "SSL", "ssl.truststore.location": str(store)})


def test_secrets_are_not_shown_but_travel() -> None:
    options = SecurityOptions.parse(
        SASL
        | LOGIN
        | {
            "ssl.keystore.certificate.chain": "rabbit",
            "ssl.keystore.key": "rabbit",
            "ssl.key.password": SECRET,
        }
    )
    assert "rabbit" not in repr(options)
    assert "alice" in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


# --- logging in ---


class SaslServer:
    """Lets in who proves the password, and answers one Metadata request."""

    def __init__(self, mechanisms: Mapping[str, str], password: str = SECRET) -> None:
        self._mechanisms = mechanisms
        self._password = password.encode()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self.let_in: list[str] = []
        self._challenge: Callable[[bytes], bytes | None] = self._plain
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def stop(self) -> None:
        self._listener.close()
        self._thread.join(30)

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection, connection.makefile("rb") as stream:
            while prefix := stream.read(4):
                frame = stream.read(struct.unpack(">i", prefix)[0])
                header = frames.parse_request_header(frame)
                answer = self._answer(header, frame[header.body_position :])
                connection.sendall(frames.response_frame(answer, header.api_version, header.correlation_id))

    def _answer(self, header: frames.RequestHeader, body: bytes) -> Response:
        match header.api_key:
            case 18:
                offered = {3: 5, 17: 1, 18: 3, 36: 2}
                return ApiVersionsResponse(
                    api_keys=[ApiVersion(api_key=key, max_version=offered[key]) for key in offered]
                )
            case 17:
                wanted = decode_exact(SaslHandshakeRequest, header.api_version, body).mechanism
                code = 0 if wanted in self._mechanisms else 33
                self._challenge = (
                    self._plain if wanted == "PLAIN" else self._scram(self._mechanisms.get(wanted))
                )
                return SaslHandshakeResponse(error_code=code, mechanisms=list(self._mechanisms))
            case 36:
                said = decode_exact(SaslAuthenticateRequest, header.api_version, body).auth_bytes
                answer = self._challenge(said)
                if answer is None:
                    return SaslAuthenticateResponse(error_code=58, error_message="Authentication failed")
                return SaslAuthenticateResponse(auth_bytes=answer)
        assert self.let_in, "asked before the login was over"
        return MetadataResponse(cluster_id="behind the door")

    def _plain(self, said: bytes) -> bytes | None:
        _, username, password = said.split(b"\0")
        if password != self._password:
            return None
        self.let_in.append(username.decode())
        return b""

    def _scram(self, hash_name: str | None) -> Callable[[bytes], bytes | None]:
        """The server's side as RFC 5802 section 3 has it: it holds StoredKey and ServerKey, never the password."""
        salt = b"a grain of salt"
        said: list[bytes] = []

        def h(key: bytes, text: bytes) -> bytes:
            return hmac.new(key, text, hash_name or "").digest()

        def respond(message: bytes) -> bytes | None:
            said.append(message)
            if len(said) == 1:
                nonce = message.split(b",r=")[1]
                said.append(b"r=" + nonce + b"server,s=" + base64.b64encode(salt) + b",i=5000")
                return said[-1]
            salted = hashlib.pbkdf2_hmac(hash_name or "", self._password, salt, 5000)
            stored_key = hashlib.new(hash_name or "", h(salted, b"Client Key")).digest()
            without_proof, proof = message.rsplit(b",p=", 1)
            signed = b",".join((said[0].removeprefix(b"n,,"), said[1], without_proof))
            signature = h(stored_key, signed)
            client_key = (
                int.from_bytes(base64.b64decode(proof), "big") ^ int.from_bytes(signature, "big")
            ).to_bytes(len(signature), "big")
            if hashlib.new(hash_name or "", client_key).digest() != stored_key:
                return None
            escaped = said[0].split(b"n=", 1)[1].split(b",")[0].decode()
            self.let_in.append(escaped.replace("=2C", ",").replace("=3D", "="))
            return b"v=" + base64.b64encode(h(h(salted, b"Server Key"), signed))

        return respond


MECHANISMS = {"PLAIN": "", "SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


@contextlib.contextmanager
def server(**settings: Any) -> Iterator[SaslServer]:
    running = SaslServer(**{"mechanisms": MECHANISMS, **settings})
    try:
        yield running
    finally:
        running.stop()


def login(mechanism: str) -> SecurityOptions:
    return SecurityOptions(protocol="SASL_PLAINTEXT", mechanism=mechanism, username=USER, password=SECRET)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login_comes_before_everything_else(mechanism: str) -> None:
    with server() as running, Connection(running.address, security=login(mechanism)) as connection:
        assert running.let_in == [USER]
        assert connection.request(MetadataRequest(), MetadataResponse).cluster_id == "behind the door"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password(mechanism: str) -> None:
    with (
        server(password="another") as running,
        pytest.raises(AuthenticationFailed, match=f"user alice.* is refused .{mechanism}.: Auth") as caught,
    ):
        Connection(running.address, security=login(mechanism))
    assert str(caught.value).startswith(str(running.address))
    assert "rabbit" not in str(caught.value)
    assert running.let_in == []


def test_a_mechanism_that_is_not_enabled() -> None:
    with (
        server(mechanisms={"SCRAM-SHA-512": "sha512"}) as running,
        pytest.raises(AuthenticationFailed, match="PLAIN is not enabled; enabled are: SCRAM-SHA-512"),
    ):
        Connection(running.address, security=login("PLAIN"))


def test_a_broker_without_sasl(target: RunningBroker) -> None:
    with pytest.raises(
        AuthenticationFailed, match=r"knows no SASL.*set security.protocol to PLAINTEXT or SSL"
    ):
        Connection(Address(target.host, target.port), security=login("PLAIN"))


def test_server_without_proof_is_refused() -> None:
    class Impostor(SaslServer):
        def _scram(self, hash_name: str | None) -> Callable[[bytes], bytes | None]:
            respond = super()._scram(hash_name)

            def lie(message: bytes) -> bytes | None:
                return respond(message) or b"v=" + base64.b64encode(b"x" * 32)

            return lie

    running = Impostor(MECHANISMS, password="guessed")
    try:
        with pytest.raises(AuthenticationFailed, match="the server does not know the password"):
            Connection(running.address, security=login("SCRAM-SHA-256"))
    finally:
        running.stop()
