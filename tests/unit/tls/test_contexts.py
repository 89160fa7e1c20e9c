"""Key stores, trust stores and the contexts made of them."""

from __future__ import annotations

import os
import ssl
import sys
from pathlib import Path

import pytest

from tests.certificates import Authority, blocks
from tidemill.errors import ConfigError
from tidemill.tls.contexts import TlsContexts, client_context, server_context
from tidemill.tls.settings import KeyStore, Password, TlsSettings, TrustStore

SECRET = "open sesame"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def shakes_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """The version that both sides agree on, over memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    dialling = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    pending = [dialling, serving]
    for _ in range(10):
        for side in list(pending):
            try:
                side.do_handshake()
                pending.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not pending
    return str(serving.version())


def trusting(authority: Authority) -> TlsSettings:
    return TlsSettings(trust_store=TrustStore(str(authority.path)))


@pytest.mark.parametrize(
    "form", ["one file", "two files", "text", "text in one line", "PKCS12", "encrypted key"]
)
def test_a_key_store_in_each_form_serves(authority: Authority, form: str) -> None:
    path = authority.issue("broker", password=SECRET if form == "encrypted key" else None)
    chain, key = blocks(path, "CERTIFICATE"), blocks(path, "PRIVATE KEY")
    if form in ("one file", "encrypted key"):
        store = KeyStore(location=str(path), key_password=Password(SECRET))
    elif form == "two files":
        (authority.folder / "chain.pem").write_text(chain)
        (authority.folder / "key.pem").write_text(key)
        folder = str(authority.folder)
        store = KeyStore(location=f"{folder}/chain.pem", key_location=f"{folder}/key.pem")
    elif form == "PKCS12":
        store = KeyStore(location=str(authority.issue_pkcs12("store", SECRET)), password=Password(SECRET))
    else:
        if form == "text in one line":
            chain, key = chain.replace("\n", " "), key.replace("\n", " ")
        store = KeyStore(certificate_chain=Password(chain), key=Password(key))
    server = server_context(TlsSettings(key_store=store))
    assert shakes_hands(server, client_context(trusting(authority))) == "TLSv1.3"


def test_a_java_key_store_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    store = tmp_path / "broker.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    with pytest.raises(ConfigError, match=r"keytool -importkeystore .*-deststoretype PKCS12"):
        server_context(TlsSettings(key_store=KeyStore(location=str(store))))


def test_pkcs12_without_the_package_says_what_to_install(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = authority.issue_pkcs12("store", SECRET)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    with pytest.raises(ConfigError, match=r"pip install 'tidemill\[security\]'"):
        server_context(TlsSettings(key_store=KeyStore(location=str(store), password=Password(SECRET))))


@pytest.mark.parametrize("kind", ["pem", "p12"])
def test_a_wrong_password_is_refused_and_not_shown(authority: Authority, kind: str) -> None:
    wrong = Password("guess")
    if kind == "pem":
        store = KeyStore(location=str(authority.issue("broker", password=SECRET)), key_password=wrong)
    else:
        store = KeyStore(location=str(authority.issue_pkcs12("store", SECRET)), password=wrong)
    with pytest.raises(ConfigError) as refused:
        server_context(TlsSettings(key_store=store))
    assert "password right?" in str(refused.value)
    assert "guess" not in str(refused.value) + repr(store)


def test_versions_and_suites_limit_what_is_spoken(authority: Authority) -> None:
    store = KeyStore(location=str(authority.issue("broker")))
    client = client_context(trusting(authority))
    older = TlsSettings(key_store=store, versions=("TLSv1.2",))
    assert shakes_hands(server_context(older), client) == "TLSv1.2"
    suites = ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256")
    context = server_context(TlsSettings(key_store=store, cipher_suites=suites))
    assert shakes_hands(context, client) == "TLSv1.2"
    names = {each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"}
    assert names == {"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"}
    with pytest.raises(ConfigError, match="all of them or none"):
        server_context(TlsSettings(key_store=store, cipher_suites=("TLS_AES_128_GCM_SHA256",)))
    with pytest.raises(ConfigError, match="has none of TLS_MADE_UP"):
        server_context(TlsSettings(key_store=store, cipher_suites=("TLS_MADE_UP",)))


def test_client_certificates_need_to_know_whom_to_trust(authority: Authority) -> None:
    store = KeyStore(location=str(authority.issue("broker")))
    with pytest.raises(ConfigError, match=r"ssl.client.auth=required needs .*ssl.truststore.location"):
        server_context(TlsSettings(key_store=store, client_auth="required"))


def test_contexts_are_made_anew_when_a_file_is_another_one(authority: Authority) -> None:
    path = authority.issue("broker")
    contexts = TlsContexts(TlsSettings(key_store=KeyStore(location=str(path))), serves=True, dials=False)
    before = contexts.server
    assert not contexts.reload_if_changed()
    os.replace(authority.issue("fresh"), path)
    assert contexts.reload_if_changed()
    renewed = contexts.server
    assert renewed is not before
    path.write_text("-----BEGIN NOTHING-----")
    with pytest.raises(ConfigError):
        contexts.reload_if_changed()
    assert contexts.server is renewed
    assert not contexts.reload_if_changed()
