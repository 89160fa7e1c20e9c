"""Ports for brokers that are told them before they listen, and that keep them over a restart.

A socket that is bound and never listens holds the port: the kernel gives it to nobody who asks for any port, while the
broker, which asks for this one and allows the address to be reused, gets it. Where the system does not allow that (it is
Linux's rule), the port is only chosen here, and let go.
"""

from __future__ import annotations

import socket
import sys

HOST = "127.0.0.1"
_MAY_HOLD = sys.platform.startswith("linux")


class HeldPort:
    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((HOST, 0))
        self.number: int = self._socket.getsockname()[1]
        if not _MAY_HOLD:
            self._socket.close()

    def release(self) -> None:
        self._socket.close()
