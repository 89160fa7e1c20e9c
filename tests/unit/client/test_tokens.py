"""Bearer tokens: from a file, and from an authorisation server, which here is a real one on loopback."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from tidemill.client.connections import tokens
from tidemill.client.connections.security import SecurityOptions
from tidemill.client.connections.tokens import TokenSource, TokenUnavailable, expiry_of
from tidemill.errors import ConfigError

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


class AuthorizationServer(HTTPServer):
    """Gives a token for each request, and keeps the requests."""

    answer: bytes = b"{}"
    status = 200

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, list[str]]]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/token"

    def gives(self, **answer: Any) -> None:
        self.answer = json.dumps(answer).encode()


class _Handler(BaseHTTPRequestHandler):
    server: AuthorizationServer

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        credentials = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        self.server.requests.append((credentials, form))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[AuthorizationServer]:
    monkeypatch.setattr(tokens, "_kept", {})
    with AuthorizationServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def options(server: AuthorizationServer, **more: str) -> SecurityOptions:
    return SecurityOptions.parse(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": server.url,
            **more,
        }
    )


def test_token_of_a_server_is_kept_until_most_of_its_life_is_over(
    server: AuthorizationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {
        "sasl.oauthbearer.client.credentials.client.id": "app",
        "sasl.oauthbearer.client.credentials.client.secret": "hush: a secret",
        "sasl.oauthbearer.scope": "queue",
    }
    source = options(server, **named).token_source
    assert source is not None
    server.gives(access_token="first", expires_in=100)
    assert [source.token().value for _ in range(3)] == ["first"] * 3
    assert server.requests == [
        ("app:hush: a secret", {"grant_type": ["client_credentials"], "scope": ["queue"]})
    ]
    later_s = tokens._steady_s() + 81
    monkeypatch.setattr(tokens, "_steady_s", lambda: later_s)
    server.gives(access_token="second", expires_in=100)
    assert source.token().value == "second"


def test_names_of_older_clients_in_the_jaas_config_mean_the_same(server: AuthorizationServer) -> None:
    jaas = f'{MODULE} required clientId="app" clientSecret="hush" scope="queue";'
    found = options(server, **{"sasl.jaas.config": jaas})
    assert found.token_source == TokenSource(server.url, "app", "hush", "queue")


@pytest.mark.parametrize(("status", "answer"), [(401, b"{}"), (200, b"no JSON"), (200, b"{}"), (200, b"[1]")])
def test_server_without_a_token_is_named_and_no_secret_is_shown(
    server: AuthorizationServer, status: int, answer: bytes
) -> None:
    server.status, server.answer = status, answer
    source = TokenSource(server.url, "app", "hush")
    with pytest.raises(TokenUnavailable, match="gives no token") as failed:
        source.token()
    assert "hush" not in f"{failed.value!r} {source!r}"


def test_file_is_read_for_each_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    source = TokenSource(path.as_uri())
    for value in ("one", "two"):
        path.write_text(f"{value}\n")
        assert source.token().value == value
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        source.token()


def test_expiry_is_the_claim_of_the_token() -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": 1_800_000_000}).encode()).rstrip(b"=").decode()
    assert expiry_of(f"e30.{claims}.c2ln") == 1_800_000_000
    assert expiry_of("opaque") > time.time()


def test_token_is_in_no_repr() -> None:
    assert "hush" not in repr(tokens.Token("hush", 1.0))
