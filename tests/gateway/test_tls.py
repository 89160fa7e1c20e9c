"""The gateway with TLS: what it serves, how its certificate is renewed, and what wrong clients cost."""

from __future__ import annotations

import logging
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.brokers import eventually
from tests.certificates import Authority
from tests.gateway.conftest import Gateway, start_gateway
from tidemill.gateway.settings import Settings
from tidemill.tls.settings import KeyStore, TlsSettings

NO_CLUSTER = "127.0.0.1:1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Path:
    return authority.issue("gateway")


@pytest.fixture(scope="module")
def gateway(authority: Authority, certificate: Path) -> Iterator[Gateway]:
    settings = Settings(bootstrap=NO_CLUSTER, tls=TlsSettings(KeyStore(str(certificate))))
    with start_gateway(settings, authority=authority.path) as started:
        yield started


def _serial(gateway: Gateway) -> object:
    assert isinstance(gateway.trusted, ssl.SSLContext)
    with (
        socket.create_connection((gateway.host, gateway.port)) as plain,
        gateway.trusted.wrap_socket(plain, server_hostname=gateway.host) as secured,
    ):
        certificate = secured.getpeercert()
        assert certificate
        return certificate["serialNumber"]


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]


def test_https_is_served_and_plain_http_is_one_log_line(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    assert gateway.client.get("/healthz").json()["status"] == "ok"
    with pytest.raises(httpx.HTTPError), httpx.Client() as plain:
        plain.get(f"http://{gateway.host}:{gateway.port}/healthz")
    (line,) = eventually(lambda: _lines(caplog), "the log has it")
    assert "speaks plain HTTP on a port with TLS" in line


def test_tls_on_a_plain_port_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with start_gateway(Settings(bootstrap=NO_CLUSTER)) as gateway:
        with pytest.raises(httpx.HTTPError), httpx.Client() as secured:
            secured.get(f"https://{gateway.host}:{gateway.port}/healthz")
        (line,) = eventually(lambda: _lines(caplog), "the log has it")
        assert "speaks TLS on a port without" in line
        assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


def test_garbage_costs_one_log_line_and_many_of_it_no_flood(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        with socket.create_connection((gateway.host, gateway.port)) as garbage:
            garbage.sendall(b"\0" * 64)
            garbage.settimeout(20)
            while garbage.recv(4096):
                pass
    assert 1 <= len(_lines(caplog)) <= 30
    assert gateway.client.get("/healthz").status_code == 200


def test_silent_handshakes_do_not_block_other_connections(gateway: Gateway) -> None:
    silent = [socket.create_connection((gateway.host, gateway.port)) for _ in range(400)]
    try:
        assert _serial(gateway)
    finally:
        for each in silent:
            each.close()


def test_older_versions_of_tls_are_refused(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    # Security level 0 lets OpenSSL offer it at all.
    context.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection((gateway.host, gateway.port)) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain)
    assert eventually(lambda: _lines(caplog), "the log has it")


def test_replaced_certificate_is_served_without_a_restart(
    gateway: Gateway, authority: Authority, certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = _serial(gateway)
    with httpx.Client(base_url=gateway.url, verify=gateway.trusted) as kept:
        kept.get("/healthz")
        shutil.copyfile(authority.issue("renewed"), certificate)
        after = eventually(lambda: (found := _serial(gateway)) != before and found, "the new one is served")
        assert kept.get("/healthz").status_code == 200
        certificate.write_text("no certificate")
        assert eventually(
            lambda: [each for each in caplog.records if each.levelno == logging.ERROR], "the log says so"
        )
        assert _serial(gateway) == after, "the old one stays in force"
