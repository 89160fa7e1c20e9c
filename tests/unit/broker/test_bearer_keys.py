"""The keys of OAUTHBEARER tokens: from a file, from a URL, and while neither can be had."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.secured import Issuer
from tidemill.broker.requests.security.bearer_keys import BearerKeys
from tidemill.config import OAuthSettings
from tidemill.errors import ConfigError
from tidemill.security.conversations import SaslFailure

LIMIT_S = 30.0


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


@pytest.fixture
def url(issuer: Issuer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = issuer.jwks.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/keys"
    server.shutdown()
    thread.join(LIMIT_S)
    server.server_close()


def in_thread(function: Callable[[], Any]) -> Awaitable[Any]:
    return asyncio.get_running_loop().run_in_executor(None, function)


def user_of(keys: BearerKeys, token: str) -> str:
    return keys.validate(token, int(time.time() * 1000)).principal_name


def test_keys_of_a_file_are_there_at_once(issuer: Issuer) -> None:
    keys = BearerKeys(OAuthSettings(f"file://{issuer.jwks}", audiences=frozenset({"tidemill"})), in_thread)
    assert user_of(keys, issuer.token("bob")) == "bob"
    with pytest.raises(SaslFailure, match="another audience"):
        user_of(keys, issuer.token("bob", audience="elsewhere"))


def test_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sasl.oauthbearer.jwks.endpoint.url=file:///.*cannot be read"):
        BearerKeys(OAuthSettings(f"file://{tmp_path}/none.json"), in_thread)


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"",
    ],
)
def test_bad_answer_of_a_url_is_an_error_that_names_it(issuer: Issuer, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        keys = BearerKeys(OAuthSettings(f"http://127.0.0.1:{listener.getsockname()[1]}/keys"), in_thread)
        with pytest.raises(ConfigError):
            keys._read()
        thread.join(LIMIT_S)


def test_keys_are_read_again_after_any_failure(
    issuer: Issuer, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[Exception] = [RuntimeError("a bug"), ConfigError("no answer"), TypeError()]
    monkeypatch.setattr("tidemill.broker.requests.security.bearer_keys._RETRY_S", 0.01)

    def in_thread_that_fails(function: Callable[[], Any]) -> Awaitable[Any]:
        if failures:
            raise failures.pop()
        return in_thread(function)

    async def case() -> None:
        keys = BearerKeys(OAuthSettings(url), in_thread_that_fails)
        keys.start()
        async with asyncio.timeout(LIMIT_S):
            while keys._validator is None:  # noqa: ASYNC110 - the keys tell no one
                await asyncio.sleep(0.01)
        keys.close()
        assert user_of(keys, issuer.token("bob")) == "bob"

    asyncio.run(case())
    assert sum("trying again" in each for each in caplog.messages) == 3


def test_tokens_are_refused_until_the_keys_of_a_url_were_read(issuer: Issuer, url: str) -> None:
    async def case() -> None:
        keys = BearerKeys(OAuthSettings(url), in_thread)
        with pytest.raises(SaslFailure, match="could not be read yet"):
            user_of(keys, issuer.token())
        keys.start()
        try:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    await asyncio.sleep(0.01)
                    try:
                        assert user_of(keys, issuer.token("carol")) == "carol"
                        return
                    except SaslFailure:
                        continue
        finally:
            keys.close()

    asyncio.run(case())
