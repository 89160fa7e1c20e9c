"""Addresses that a command listens on, as people write them, and how one's own process dials them."""

from __future__ import annotations

import os

from tidemill.client.connection import Address
from tidemill.config.listeners import parse_listeners

_LOOPBACKS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def listen_address(key: str, text: str) -> Address:
    """`HOST:PORT`; no host means every interface, port 0 any free port. `key` is what errors call it."""
    (listener,) = parse_listeners(key, (f"HTTP://{text}",), {"HTTP": "PLAINTEXT"})
    return Address(listener.host, listener.port)


def dialled(address: Address) -> Address:
    """Where a process on this machine reaches who listens there: a wildcard cannot be dialled everywhere."""
    return Address(_LOOPBACKS.get(address.host, address.host), address.port)


def bind_reason(error: OSError) -> str:
    """Why an address cannot be listened on. Python adds the address to strerror, in words of its own."""
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
