"""A gateway for tests: the real application under uvicorn in a thread, on a port of the kernel's choice.

`gateway` is shared by a module's tests and stands before a broker of its own: they use topics of their own (`topic`).
Tests that need other settings, or that break something, start their own with `start_gateway(Settings(...))`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tidemill.gateway.app import Server, create_app, uvicorn_config
from tidemill.gateway.settings import Settings
from tidemill.testing import InProcessBroker

HTTP_TIMEOUT_S = 30.0


class Gateway:
    def __init__(
        self,
        settings: Settings,
        address: tuple[str, int],
        broker: InProcessBroker | None,
        authority: Path | None,
    ) -> None:
        self.settings = settings
        self.host, self.port = address
        self.url = f"{'http' if settings.tls is None else 'https'}://{self.host}:{self.port}"
        self.trusted: ssl.SSLContext | bool = True
        if authority is not None:
            self.trusted = ssl.create_default_context(cafile=str(authority))
        self.client = httpx.Client(base_url=self.url, timeout=HTTP_TIMEOUT_S, verify=self.trusted)
        self._broker = broker

    @property
    def broker(self) -> InProcessBroker:
        assert self._broker is not None, "this gateway was not given a broker"
        return self._broker

    @property
    def cluster_id(self) -> str:
        found: str = self.client.get("/v3/clusters").json()["data"][0]["cluster_id"]
        return found

    @property
    def v3(self) -> str:
        """The path that v3's resources are under."""
        return f"/v3/clusters/{self.cluster_id}"


@contextlib.contextmanager
def start_gateway(
    settings: Settings, broker: InProcessBroker | None = None, authority: Path | None = None
) -> Iterator[Gateway]:
    """Ends with the block, as a signal would end it: drained. `authority` has signed its certificate."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    address = listener.getsockname()
    settings = replace(settings, listen_host=address[0], listen_port=address[1])
    server = Server(uvicorn_config(create_app(settings), settings))
    thread = threading.Thread(target=server.run, args=([listener],), name="gateway")
    thread.start()
    gateway = Gateway(settings, address, broker, authority)
    try:
        # The listener takes it before the server does, so this waits for the start and not for luck.
        gateway.client.get("/healthz")
        yield gateway
    finally:
        gateway.client.close()
        server.should_exit = True
        thread.join(HTTP_TIMEOUT_S)
        assert not thread.is_alive(), "the gateway does not stop"
        listener.close()


@pytest.fixture(scope="module")
def gateway_broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def gateway(gateway_broker: InProcessBroker) -> Iterator[Gateway]:
    """A gateway with default settings, shared by the module's tests."""
    with start_gateway(Settings(bootstrap=gateway_broker.bootstrap), gateway_broker) as started:
        yield started


@pytest.fixture
def client(gateway: Gateway) -> httpx.Client:
    return gateway.client
