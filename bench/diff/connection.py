"""One socket to one broker: frames out, frames in, and what happened instead of a frame.

A broker that closes the connection or stays silent has answered too, so both are values here, not errors.
"""

from __future__ import annotations

import enum
import socket
import struct
from types import TracebackType

FRAME_BYTES_MAX = 200 << 20


class Silence(enum.Enum):
    """What a broker did in place of a response."""

    CLOSED = "connection closed"
    NO_REPLY = "no reply"


class Connection:
    def __init__(self, host: str, port: int, timeout_seconds: float, *, from_host: str = ""):
        """`from_host` is the own address, where it matters which one the broker sees."""
        own = (from_host, 0) if from_host else None
        self._socket = socket.create_connection((host, port), timeout=timeout_seconds, source_address=own)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_open = True

    def send(self, payload: bytes) -> None:
        """Send one frame; a connection that is already gone shows when the answer is read."""
        self.send_raw(struct.pack(">i", len(payload)) + payload)

    def send_raw(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self.is_open = False

    def receive(self, timeout_seconds: float) -> bytes | Silence:
        self._socket.settimeout(timeout_seconds)
        try:
            prefix = self._exactly(4)
            payload = None if prefix is None else self._exactly(self._length(prefix))
        except TimeoutError:
            self.close()
            return Silence.NO_REPLY
        except ConnectionResetError:
            payload = None
        if payload is None:
            self.close()
            return Silence.CLOSED
        return payload

    def close(self) -> None:
        self.is_open = False
        self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            chunk = self._socket.recv(min(count - len(data), 1 << 20))
            if not chunk:
                return None
            data += chunk
        return bytes(data)

    @staticmethod
    def _length(prefix: bytes) -> int:
        length: int = struct.unpack(">i", prefix)[0]
        if not 4 <= length <= FRAME_BYTES_MAX:
            raise ConnectionResetError(f"a frame of {length} bytes")
        return length
