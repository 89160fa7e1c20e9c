"""What a broker pays to decrypt a record of TLS, by its size and by the version of OpenSSL that Python is linked with.

A client may write a record for each message, so that the cost of a record counts more than that of its bytes. Both ends are
in this process, and no kernel is between them. What is timed is the broker's own receive path.
"""

from __future__ import annotations

import argparse
import contextlib
import ssl
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from tidemill.broker.net.tls_socket import TlsSocket
from tidemill.tls.certificates import broker_certificate, new_authority

RECORD_BYTES = (110, 1_024, 16_384)
ROUND_BYTES = 4 << 20
ROUNDS = 9


class _Wire:
    """Where a socket would be: gives what the client has written."""

    def __init__(self) -> None:
        self.arrived = b""
        self._position = 0
        self.sent = bytearray()

    def refill(self, ciphertext: bytes) -> None:
        self.arrived, self._position = ciphertext, 0

    def recv(self, size: int) -> bytes:
        piece = self.arrived[self._position : self._position + size]
        if not piece:
            raise BlockingIOError
        self._position += len(piece)
        return piece

    def send(self, data: memoryview) -> int:
        self.sent += data
        return len(data)


class _Client:
    def __init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(self.incoming, self.outgoing)


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "broker.pem"
        path.write_text(broker_certificate(new_authority(1), "broker", ["localhost"], 1))
        context.load_cert_chain(path)
    return context


def _connected() -> tuple[_Client, TlsSocket, _Wire]:
    client, wire = _Client(), _Wire()
    server = TlsSocket(_server_context(), cast(Any, wire), server_side=True)
    for _ in range(4):
        for step in (client.object.do_handshake, server.do_handshake):
            with contextlib.suppress(ssl.SSLWantReadError):
                step()
        wire.refill(client.outgoing.read())
        with contextlib.suppress(ssl.SSLWantReadError):
            server.exchange(receives=True)
        client.incoming.write(bytes(wire.sent))
        wire.sent.clear()
    return client, server, wire


def measure(size: int) -> float:
    """Seconds of processor time for each record, the median of some rounds."""
    client, server, wire = _connected()
    view = memoryview(bytearray(256 << 10))
    records = max(1, ROUND_BYTES // size)
    taken = []
    for _ in range(ROUNDS):
        for _ in range(records):
            client.object.write(b"x" * size)
        wire.refill(client.outgoing.read())
        received, began = 0, time.thread_time()
        while received < records * size:
            received += server.recv_into(view)
        taken.append(time.thread_time() - began)
    return statistics.median(taken) / records


def main() -> None:
    argparse.ArgumentParser(prog="python -m bench.micro.tls_records", description=__doc__).parse_args()
    print(ssl.OPENSSL_VERSION)
    for size in RECORD_BYTES:
        record_s = measure(size)
        print(f"{size:6,} bytes: {record_s * 1e6:5.2f} µs a record, {size / record_s / 1e9:5.2f} GB/s")


if __name__ == "__main__":
    main()
