"""The addresses that a command listens on."""

from __future__ import annotations

import errno
import os
import socket
import time

from tidemill.client.connections.connection import Address
from tidemill.config.broker.listeners import parse_listeners
from tidemill.errors import ConfigError

# A gateway whose broker was killed holds its address for a few seconds until it has ended.
_PREDECESSOR_S_MAX = 3.0
_RETRY_S = 0.2
_LOOPBACKS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def listen_address(key: str, text: str) -> Address:
    """Parse `HOST:PORT`. An empty host means every interface, and port 0 any free port. Errors name `key`."""
    (listener,) = parse_listeners(key, (f"HTTP://{text}",), {"HTTP": "PLAINTEXT"})
    return Address(listener.host, listener.port)


def dialled(address: Address) -> Address:
    """The address at which a process on this machine reaches a listener: a wildcard becomes a loopback address."""
    return Address(_LOOPBACKS.get(address.host, address.host), address.port)


def bind_reason(error: OSError) -> str:
    """Returns the reason for which an address cannot be bound, without the address, which Python adds to strerror."""
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)


def bound(address: Address, option: str, backlog: int = 128) -> socket.socket:
    """A socket that listens on the address. `ConfigError` names the option that sets another address."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=backlog)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address}: {bind_reason(error)}; {option} HOST:PORT names another address"
        ) from error


def check_free(address: Address, option: str) -> None:
    """Raise `ConfigError` when the address cannot be bound, even after a previous process had time to end."""
    deadline_s = time.monotonic() + _PREDECESSOR_S_MAX
    while True:
        try:
            bound(address, option).close()
            return
        except ConfigError as failure:
            is_taken = isinstance(failure.__cause__, OSError) and failure.__cause__.errno == errno.EADDRINUSE
            if not is_taken or time.monotonic() >= deadline_s:
                raise
        time.sleep(_RETRY_S)
