"""What strangers send to listeners with TLS and SASL: one connection and one log line each, and others are served."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.brokers import Broker, RunningBroker, eventually, raise_descriptor_limit, readable
from tests.certificates import Authority
from tests.secured import PASSWORD, USER, Issuer, sasl_settings, start_secured
from tests.wire import messages
from tests.wire.connection import Connection, ConnectionClosedError
from tests.wire.transactional import Producer, fetch, kinds, until_stable
from tidemill.errors import ErrorCode

HALF_HANDSHAKES = 10_000
# Long enough for what a test does within a session on a busy machine.
SESSION_MS = 5_000
# How a ClientHello begins: a record of 512 bytes, of which no more comes.
HALF_HELLO = bytes.fromhex("16030102000100")


class Secured(NamedTuple):
    broker: Broker
    addresses: dict[str, str]
    authority: Authority
    stranger: Authority
    certificate: Path
    users: Path
    log_start: int = 0

    def log(self) -> str:
        """What the broker has logged since the test began."""
        return self.broker.log()[self.log_start :]

    def at(self, listener: str, context: ssl.SSLContext | None = None) -> RunningBroker:
        host, _, port = self.addresses[listener].rpartition(":")
        return Door(host, int(port), context)

    def context(self, *, certificate: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.path))
        if certificate is not None:
            context.load_cert_chain(str(certificate))
        return context

    def told(self, text: str, count: int = 1) -> None:
        """The log has the text in that many lines, and no traceback."""
        eventually(lambda: self.log().count(text) >= count, f"a log line: {text}")
        assert self.log().count(text) == count, self.log()
        assert "Traceback" not in self.log()


@dataclass
class Door(RunningBroker):
    context: ssl.SSLContext | None = None

    def connect(self, timeout_s: float = 30.0) -> socket.socket:
        plain = super().connect(timeout_s)
        if self.context is None:
            return plain
        try:
            return self.context.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    tmp_path = tmp_path_factory.mktemp("secured")
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    certificate = authority.issue("broker")
    users = tmp_path / "users.properties"
    users.write_text("bob=first\n")
    names = ("PLAINTEXT", "SSL", "MUTUAL", "SASL_PLAINTEXT")
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in names),
        "listener.security.protocol.map": "MUTUAL:SSL,"
        + ",".join(f"{n}:{n}" for n in names if n != "MUTUAL"),
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.location": str(certificate),
        "ssl.truststore.location": str(authority.path),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.sasl_plaintext.plain.connections.max.reauth.ms": str(SESSION_MS),
        "connection.failed.authentication.delay.ms": "1",
        "tidemill.plain.users.file": str(users),
        **sasl_settings(Issuer(tmp_path), ("SASL_PLAINTEXT",)),
    }
    broker, addresses = start_secured(tmp_path / "broker", settings)
    with broker:
        yield Secured(broker, addresses, authority, stranger, certificate, users)


@pytest.fixture
def secured(started: Secured) -> Secured:
    return started._replace(log_start=len(started.broker.log()))


def is_served(door: RunningBroker) -> bool:
    with Connection(door) as connection:
        return bool(connection.request("api_versions", 2).api_keys)


def plain_token(user: str, password: str) -> bytes:
    return f"\0{user}\0{password}".encode()


def log_in(connection: Connection, user: str = USER, password: str = PASSWORD) -> int:
    """The error code of the login."""
    assert connection.request("sasl_handshake", 1, mechanism="PLAIN").error_code == 0
    answer = connection.request("sasl_authenticate", 2, auth_bytes=plain_token(user, password))
    return int(answer.error_code)


# -- TLS ---------------------------------------------------------------------------------------------------------


def test_plaintext_on_a_tls_listener_is_logged_by_name(secured: Secured) -> None:
    with Connection(secured.at("SSL")) as connection:
        connection.start("api_versions", 2)
        assert connection.is_closed()
    secured.told("it speaks plaintext on a listener with TLS")
    assert is_served(secured.at("SSL", secured.context()))


def test_tls_on_a_plaintext_listener_is_logged_by_name(secured: Secured) -> None:
    with pytest.raises(OSError):
        secured.at("PLAINTEXT", secured.context()).connect()
    secured.told("it speaks TLS on a listener without TLS")
    assert is_served(secured.at("PLAINTEXT"))


def test_old_version_of_tls_is_refused(secured: Secured) -> None:
    context = secured.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(OSError):
        secured.at("SSL", context).connect()
    secured.told("versions of TLS that are not enabled here")


def test_client_without_a_certificate_is_refused_where_one_is_required(secured: Secured) -> None:
    with pytest.raises((OSError, ConnectionClosedError)):
        is_served(secured.at("MUTUAL", secured.context()))
    secured.told("it shows no certificate")
    certificate = secured.authority.issue("client")
    assert is_served(secured.at("MUTUAL", secured.context(certificate=certificate)))


def test_expired_certificate_of_a_client_is_refused(secured: Secured) -> None:
    certificate = secured.authority.issue("late", is_expired=True)
    with pytest.raises((OSError, ConnectionClosedError)):
        is_served(secured.at("MUTUAL", secured.context(certificate=certificate)))
    secured.told("its certificate is not trusted: certificate has expired")


def test_certificate_of_an_unknown_authority_is_refused(secured: Secured) -> None:
    certificate = secured.stranger.issue("stranger's client")
    with pytest.raises((OSError, ConnectionClosedError)):
        is_served(secured.at("MUTUAL", secured.context(certificate=certificate)))
    secured.told("its certificate is not trusted: ")


def test_client_that_does_not_trust_the_broker_is_logged(secured: Secured) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        secured.at("SSL", ssl.create_default_context(cafile=str(secured.stranger.path))).connect()
    secured.told("it does not trust the authority of this broker's certificate")


def test_certificate_of_another_host_is_refused_by_the_client_and_costs_one_connection(
    secured: Secured,
) -> None:
    door = secured.at("SSL")
    with (
        pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"),
        door.connect() as plain,
    ):
        secured.context().wrap_socket(plain, server_hostname="elsewhere.example")
    assert is_served(secured.at("SSL", secured.context()))
    assert "Traceback" not in secured.log()


@pytest.mark.parametrize("listener", ["SSL", "SASL_PLAINTEXT"])
@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\xff" * 100, b"\0\0\0\x10" + b"\x7f" * 16]
)
def test_garbage_of_a_stranger_costs_one_connection(secured: Secured, listener: str, garbage: bytes) -> None:
    with Connection(secured.at(listener)) as connection:
        connection.send(garbage)
        assert connection.is_closed()
    assert "Traceback" not in secured.log()
    assert secured.log().count("\n") <= 1
    assert is_served(secured.at("SSL", secured.context()))


def half_login() -> bytes:
    """A SaslHandshake, and the size of a SaslAuthenticate that does not come."""
    return messages.request("sasl_handshake", 1, 1, mechanism="PLAIN") + struct.pack(">i", 200)


@pytest.mark.parametrize(
    ("listener", "half"), [("SSL", HALF_HELLO), ("SASL_PLAINTEXT", half_login())], ids=["tls", "sasl"]
)
def test_thousands_of_half_handshakes_leave_others_served(
    secured: Secured, listener: str, half: bytes
) -> None:
    count = min(HALF_HANDSHAKES, raise_descriptor_limit(2 * HALF_HANDSHAKES) - 500)
    host, _, port = secured.addresses[listener].rpartition(":")
    strangers: list[socket.socket] = []

    def assert_others_are_served() -> None:
        assert is_served(secured.at("SSL", secured.context()))
        with Connection(secured.at("SASL_PLAINTEXT")) as connection:
            assert log_in(connection) == 0

    try:
        for number in range(count):
            strangers.append(socket.create_connection((host, int(port)), 30))
            if number % 2:
                with contextlib.suppress(ConnectionError):
                    strangers[-1].send(half)
            if number % 1000 == 0:
                assert_others_are_served()
        assert_others_are_served()
        assert is_served(secured.at("PLAINTEXT"))
        open_files = secured.broker.open_files()
        assert open_files is None or open_files < 2_000
    finally:
        for stranger in strangers:
            stranger.close()
    # They are counted together: not a line for each.
    assert secured.log().count("\n") < 100


def serial(connection: socket.socket) -> object:
    assert isinstance(connection, ssl.SSLSocket)
    certificate = connection.getpeercert()
    assert certificate is not None
    return certificate["serialNumber"]


def test_failure_44_new_certificate_is_used_without_a_restart_and_open_connections_live_on(
    secured: Secured,
) -> None:
    door = secured.at("SSL", secured.context())
    with Connection(door) as old:
        before = serial(old.socket)
        fresh = secured.authority.issue("fresh")
        shutil.move(fresh, secured.certificate)

        def is_new() -> bool:
            with Connection(door) as connection:
                return serial(connection.socket) != before

        eventually(is_new, "the new certificate")
        assert old.request("api_versions", 2).api_keys
        secured.certificate.write_text("no certificate at all")
        secured.told("listener SSL keeps its old certificates")
        assert is_served(door)
    shutil.copy(secured.authority.issue("again"), secured.certificate)


def test_failure_44_expired_certificate_is_served_only_until_it_is_replaced(secured: Secured) -> None:
    door = secured.at("SSL", secured.context())

    def is_refused() -> bool:
        try:
            return not is_served(door)
        except ssl.SSLCertVerificationError as error:
            return error.verify_message == "certificate has expired"

    with Connection(door) as old:
        shutil.move(secured.authority.issue("expired", is_expired=True), secured.certificate)
        eventually(is_refused, "the expired certificate, which clients refuse")
        assert old.request("api_versions", 2).api_keys
        shutil.move(secured.authority.issue("renewed"), secured.certificate)
        eventually(lambda: not is_refused(), "the certificate that replaces it")
        assert old.request("api_versions", 2).api_keys
        with Connection(door) as new:
            assert serial(new.socket) != serial(old.socket)


# -- SASL --------------------------------------------------------------------------------------------------------


def test_request_before_the_login_closes_the_connection(secured: Secured) -> None:
    with Connection(secured.at("SASL_PLAINTEXT")) as connection:
        assert connection.request("api_versions", 2).api_keys
        connection.start("metadata", 12, topics=[])
        assert connection.is_closed()
    secured.told("it sent API key 3 (Metadata) before it had logged in")


def test_large_frame_before_the_login_closes_the_connection(secured: Secured) -> None:
    with Connection(secured.at("SASL_PLAINTEXT")) as connection:
        connection.send(struct.pack(">i", 600_000))
        assert connection.is_closed()
    secured.told("a frame of 600000 bytes; the limit is 524288")


def test_login_lets_requests_in_and_wrong_password_is_refused(secured: Secured) -> None:
    with Connection(secured.at("SASL_PLAINTEXT")) as connection:
        assert log_in(connection) == 0
        assert connection.request("metadata", 12, topics=[]).brokers
    with Connection(secured.at("SASL_PLAINTEXT")) as connection:
        assert log_in(connection, password="wrong") == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert connection.is_closed()
    secured.told("its login failed: Authentication failed: Invalid username or password")


def test_mechanism_that_is_not_enabled_is_refused_with_those_that_are(secured: Secured) -> None:
    with Connection(secured.at("SASL_PLAINTEXT")) as connection:
        answer = connection.request("sasl_handshake", 1, mechanism="GSSAPI")
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert "SCRAM-SHA-512" in answer.mechanisms
        assert connection.is_closed()


def test_tokens_after_a_handshake_of_version_0_have_no_header(secured: Secured) -> None:
    with Connection(secured.at("SASL_PLAINTEXT")) as connection:
        assert connection.request("sasl_handshake", 0, mechanism="PLAIN").error_code == 0
        token = plain_token(USER, PASSWORD)
        connection.send(struct.pack(">i", len(token)) + token)
        assert connection._receive(4) == b"\0\0\0\0"
        assert connection.request("metadata", 12, topics=[]).brokers


def test_tokens_behind_one_that_failed_are_not_looked_at(secured: Secured) -> None:
    token = plain_token(USER, "wrong")
    with Connection(secured.at("SASL_PLAINTEXT")) as connection:
        assert connection.request("sasl_handshake", 0, mechanism="PLAIN").error_code == 0
        connection.send((struct.pack(">i", len(token)) + token) * 1_000)
        assert connection.is_closed()
    secured.told("its login failed: Authentication failed: Invalid username or password")


def test_user_name_cannot_write_a_line_into_the_log(secured: Secured) -> None:
    with Connection(secured.at("SASL_PLAINTEXT")) as connection:
        answer = connection.request("sasl_handshake", 1, mechanism='PLAIN"\n2026 CRITICAL all is lost')
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert connection.is_closed()
    secured.told("its login failed")
    assert not any(line.startswith("2026 CRITICAL") for line in secured.log().splitlines())


def test_session_that_expired_is_closed_at_the_next_request(secured: Secured) -> None:
    with Connection(secured.at("SASL_PLAINTEXT")) as connection:
        assert connection.request("sasl_handshake", 1, mechanism="PLAIN").error_code == 0
        answer = connection.request("sasl_authenticate", 2, auth_bytes=plain_token(USER, PASSWORD))
        assert answer.session_lifetime == timedelta(milliseconds=SESSION_MS)
        with pytest.raises(ConnectionClosedError):
            eventually(lambda: connection.request("metadata", 12, topics=[]) is None, "the session's end")
    secured.told("its session has expired")


def test_transaction_outlives_the_session_that_expired_in_its_middle(secured: Secured) -> None:
    with Connection(secured.at("PLAINTEXT")) as admin:
        admin.create_topic("expiring")
    with Connection(secured.at("SASL_PLAINTEXT")) as connection:
        assert log_in(connection) == 0
        producer = Producer(connection, "expiring")
        producer.init()
        assert producer.send("expiring", b"before") == 0
        with pytest.raises(ConnectionClosedError):
            eventually(lambda: connection.request("metadata", 12, topics=[]) is None, "the session's end")
    with Connection(secured.at("SASL_PLAINTEXT")) as connection:
        assert log_in(connection) == 0
        producer.connection = connection
        assert producer.send("expiring", b"after") == 0
        assert producer.end(commit=True) == 0
    with Connection(secured.at("PLAINTEXT")) as reader:
        until_stable(reader, "expiring", 3)
        assert kinds(fetch(reader, "expiring")) == ["before", "after", "commit"]


def test_session_is_renewed_by_another_login(secured: Secured) -> None:
    with Connection(secured.at("SASL_PLAINTEXT")) as connection:
        assert log_in(connection) == 0
        began = time.monotonic()

        def is_renewed() -> bool:
            return bool(connection.request("sasl_handshake", 1, mechanism="PLAIN").error_code == 0)

        eventually(is_renewed, "another handshake, which is allowed once a second")
        token = plain_token(USER, PASSWORD)
        assert connection.request("sasl_authenticate", 2, auth_bytes=token).error_code == 0
        eventually(lambda: time.monotonic() - began > SESSION_MS / 1000 + 0.1, "the end of the first session")
        assert connection.request("metadata", 12, topics=[]).brokers


def test_a_thousand_wrong_passwords_leave_others_served_and_the_log_short(secured: Secured) -> None:
    for _ in range(20):
        guesses = [Connection(secured.at("SASL_PLAINTEXT")) for _ in range(50)]
        for guess in guesses:
            guess.start("sasl_handshake", 1, mechanism="PLAIN")
            guess.start("sasl_authenticate", 2, auth_bytes=plain_token(USER, "guess"))
        with Connection(secured.at("SASL_PLAINTEXT")) as innocent:
            assert log_in(innocent) == 0
        for guess in guesses:
            assert readable([guess.socket], 30)
            guess.close()
    assert secured.log().count("its login failed") < 500


def test_users_of_a_file_come_and_go_without_a_restart(secured: Secured) -> None:
    door = secured.at("SASL_PLAINTEXT")

    def may_log_in(user: str, password: str) -> bool:
        with Connection(door) as connection:
            return log_in(connection, user, password) == 0

    assert may_log_in("bob", "first")
    with Connection(door) as open_connection:
        assert log_in(open_connection, "bob", "first") == 0
        secured.users.write_text("carol=second\n")
        eventually(lambda: may_log_in("carol", "second"), "the login of a new user")
        assert not may_log_in("bob", "first")
        assert may_log_in(USER, PASSWORD)
        assert open_connection.request("metadata", 12, topics=[]).brokers
    secured.users.write_text("dave")
    secured.told("keeps its old PLAIN users")
    assert may_log_in("carol", "second")
    secured.users.write_text("bob=first\n")
    eventually(lambda: may_log_in("bob", "first"), "the login of the first user")


def test_no_secret_is_in_described_configs_or_the_log(secured: Secured) -> None:
    resources = [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}]
    with Connection(secured.at("PLAINTEXT")) as connection:
        answer = connection.request(
            "describe_configs", 4, resources=resources, include_synonyms=True, include_documentation=False
        )
    configs = {each.name: each for each in answer.results[0].configs}
    login = configs["listener.name.sasl_plaintext.plain.sasl.jaas.config"]
    assert login.is_sensitive
    assert login.value is None
    assert "and = signs" in PASSWORD
    assert "and = signs" not in repr(answer)
    assert "and = signs" not in secured.broker.log()
