"""`TlsSocket` against another one, over a pair of sockets."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority
from tidemill.broker.net.tls_socket import TlsSocket
from tidemill.tls.contexts import TlsContexts
from tidemill.tls.settings import KeyStore, TlsSettings, TrustStore

Pair = tuple[TlsSocket, TlsSocket, socket.socket]


@pytest.fixture(params=["TLSv1.2", "TLSv1.3"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """A client, a server that trust each other, and the client's raw socket."""
    authority = Authority(tmp_path)
    settings = TlsSettings(
        key_store=KeyStore(location=str(authority.issue("localhost"))),
        trust_store=TrustStore(str(authority.path)),
        versions=(request.param,),
    )
    contexts = TlsContexts(settings, serves=True, dials=True)
    assert contexts.server is not None
    assert contexts.client is not None
    raw, served = socket.socketpair()
    raw.setblocking(False)
    served.setblocking(False)
    client = TlsSocket(contexts.client, raw, server_hostname="localhost")
    server = TlsSocket(contexts.server, served, server_side=True)
    shake_hands(client, server)
    yield client, server, raw
    client.close()
    server.close()


def shake_hands(*sides: TlsSocket) -> None:
    waiting = list(sides)
    while waiting:
        for side in list(waiting):
            receives = False
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                receives = True
            with contextlib.suppress(ssl.SSLWantReadError):
                side.exchange(receives=receives)


def received(sock: TlsSocket, room: int = 1 << 20) -> bytes:
    """Everything that is there, by reads of `room` bytes."""
    data = b""
    view = memoryview(bytearray(room))
    while True:
        try:
            count = sock.recv_into(view)
        except ssl.SSLWantReadError:
            return data
        if not count:
            return data
        data += view[:count]


def waits(call: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


@pytest.mark.parametrize("room", [1, 100, 1 << 20])
def test_many_small_records_arrive_in_order(pair: Pair, room: int) -> None:
    client, server, _ = pair
    messages = [bytes([number % 256]) * (number % 90) for number in range(100)]
    for message in messages:
        if message:
            client.send(message)
    assert received(server, room) == b"".join(messages)


def test_one_read_decrypts_all_records_that_have_arrived(pair: Pair) -> None:
    client, server, _ = pair
    for _ in range(50):
        client.send(b"x" * 100)
    assert server.recv_into(memoryview(bytearray(1 << 20))) == 5000
    assert not server.has_more


def test_bytes_that_do_not_fit_are_pending(pair: Pair) -> None:
    client, server, _ = pair
    client.send(b"a" * 100)
    client.send(b"b" * 100)
    view = memoryview(bytearray(150))
    assert server.recv_into(view) == 150
    assert server.pending()
    assert received(server) == b"b" * 50
    assert not server.pending()


def test_full_socket_takes_the_same_bytes_once(pair: Pair) -> None:
    client, server, _ = pair
    data = memoryview(bytes(range(256)) * 16384)
    sent, got, blocked = 0, b"", 0
    while sent < len(data):
        try:
            sent += client.send(data[sent:])
        except ssl.SSLWantWriteError:
            blocked += 1
            got += received(server)
    got += received(server)
    assert blocked, "the socket was never full"
    assert got == data


def test_error_behind_good_bytes_comes_after_them(pair: Pair) -> None:
    client, server, raw = pair
    client.send(b"good")
    raw.send(b"\x17\x03\x03\x00\x20" + b"?" * 32)
    view = memoryview(bytearray(1000))
    assert server.recv_into(view) == 4
    for _ in range(2):
        waits(lambda: server.recv_into(view), ssl.SSLError)


def test_stream_ends_after_its_last_bytes_with_close_notify_and_without(pair: Pair) -> None:
    client, server, raw = pair
    client.send(b"from the client")
    server.send(b"from the server")
    server.unwrap()
    view = memoryview(bytearray(1000))
    assert client.recv_into(view) == 15
    assert client.recv_into(view) == 0
    raw.shutdown(socket.SHUT_WR)
    assert server.recv_into(view) == 15
    assert server.recv_into(view) == 0


def test_nothing_and_a_part_of_a_record_wait_for_more(pair: Pair) -> None:
    client, server, raw = pair
    view = memoryview(bytearray(1000))
    waits(lambda: server.recv_into(view), ssl.SSLWantReadError)
    raw.send(b"\x17\x03\x03")
    waits(lambda: server.recv_into(view), ssl.SSLWantReadError)
    assert client.fileno() == raw.fileno()
