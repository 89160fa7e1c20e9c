"""Ports for brokers that must know them before they listen, and that keep them over a restart.

A socket that is bound and never listens reserves the port. The kernel does not hand it out as an ephemeral port, while
the broker, which binds it with address reuse, gets it. Only Linux allows that; elsewhere the port is chosen here and
released.
"""

from __future__ import annotations

import socket
import sys

HOST = "127.0.0.1"
_MAY_HOLD = sys.platform.startswith("linux")


class HeldPort:
    """A reserved port."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((HOST, 0))
        self.number: int = self._socket.getsockname()[1]
        if not _MAY_HOLD:
            self._socket.close()

    def release(self) -> None:
        self._socket.close()
