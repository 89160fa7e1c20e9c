"""`RawConnection`: a caller of the gateway that sends what it likes, when it likes."""

from __future__ import annotations

import json
import socket
import threading

from tests.gateway.conftest import HTTP_TIMEOUT_S, Gateway


class RawConnection:
    """A caller that sends what it likes, when it likes."""

    def __init__(self, gateway: Gateway) -> None:
        self._socket = socket.create_connection((gateway.host, gateway.port), HTTP_TIMEOUT_S)
        # Every piece is sent at once, however small it is.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._host = f"{gateway.host}:{gateway.port}"

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def begin(self, path: str, *headers: str) -> None:
        lines = [f"POST {path} HTTP/1.1", f"Host: {self._host}", "Content-Type: application/json", *headers]
        self.send("\r\n".join([*lines, "", ""]).encode())

    def drip(self, piece: bytes, every_s: float) -> threading.Event:
        """Sends the piece again and again until it is stopped, or until the peer takes no more."""
        stop = threading.Event()

        def send() -> None:
            while not stop.wait(every_s):
                try:
                    self.send(piece)
                except OSError:
                    return

        threading.Thread(target=send, daemon=True).start()
        return stop

    def response(self) -> tuple[int, dict[str, object]]:
        """The status, and the body of an answer whose connection may stay open."""
        received = b""
        while b"\r\n\r\n" not in received:
            received += self.more()
        head, _, body = received.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        while len(body) < length:
            body += self.more()
        return int(head.split()[1]), json.loads(body)

    def more(self) -> bytes:
        data = self._socket.recv(65536)
        assert data, "the connection was closed without an answer"
        return data

    def is_closed_by_the_gateway(self) -> bool:
        try:
            return self._socket.recv(65536) == b""
        except ConnectionResetError:
            return True

    def rest(self) -> bytes:
        """All that comes until the gateway closes the connection."""
        received = b""
        while True:
            try:
                data = self._socket.recv(65536)
            except ConnectionResetError:
                return received
            if not data:
                return received
            received += data
