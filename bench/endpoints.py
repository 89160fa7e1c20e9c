"""Where a load connects to: `HOST:PORT`, or `tls://HOST:PORT#FILE` with the file of the authority to trust."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack
from typing import NamedTuple

_TLS = "tls://"


class Endpoint(NamedTuple):
    address: str
    # None without TLS.
    authority: str | None = None

    def __str__(self) -> str:
        return self.address if self.authority is None else f"{_TLS}{self.address}#{self.authority}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        if not text.startswith(_TLS):
            return cls(text)
        address, _, authority = text.removeprefix(_TLS).partition("#")
        return cls(address, authority)

    def connect(self, timeout_s: float) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        with ExitStack() as on_failure:
            connected = socket.create_connection((host, int(port)), timeout=timeout_s)
            on_failure.callback(connected.close)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.authority is not None:
                context = ssl.create_default_context(cafile=self.authority)
                connected = context.wrap_socket(connected, server_hostname=host)
            on_failure.pop_all()
        return connected


def librdkafka_settings(bootstrap: str) -> dict[str, str]:
    endpoint = Endpoint.parse(bootstrap)
    settings = {"bootstrap.servers": endpoint.address}
    if endpoint.authority is not None:
        settings |= {"security.protocol": "ssl", "ssl.ca.location": endpoint.authority}
    return settings


def has_buffered(connected: socket.socket) -> bool:
    """Whether bytes have been received that `select` no longer sees."""
    return isinstance(connected, ssl.SSLSocket) and connected.pending() > 0
