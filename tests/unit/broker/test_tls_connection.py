"""Connections over TLS: frames in, replies and file slices out, whatever the sizes of records and buffers."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority
from tidemill.broker.clock import Clock
from tidemill.broker.net.channel import Channel
from tidemill.broker.net.link_security import LinkSecurity
from tidemill.broker.net.network import Address, Dispatch, Entrance, Peer, ServerLimits
from tidemill.broker.net.server import Server
from tidemill.broker.net.sockets import SocketNetwork
from tidemill.broker.net.tls_socket import KernelTlsSocket, TlsSocket
from tidemill.broker.requests.security.sasl import SaslGate, server_settings
from tidemill.config import Login, SaslSettings
from tidemill.log.files import DiskFiles, FileSlice
from tidemill.protocol.api.cluster import (
    ApiVersion,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from tidemill.protocol.frames import parse_request_header, response_frame
from tidemill.security.principals import ANONYMOUS, Principal, PrincipalMapping
from tidemill.security.scram import ScramClient, ScramMechanism
from tidemill.tls.contexts import TlsContexts
from tidemill.tls.settings import KeyStore, Password, TlsSettings, TrustStore

LIMITS = ServerLimits(
    frame_bytes_max=1 << 24, connections_max=100, connections_per_ip_max=100, idle_ms_max=60_000
)
LIMIT_S = 30.0


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(params=[TlsSocket, KernelTlsSocket], autouse=True)
def kind_of_socket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds of sockets: OpenSSL between memory and kernel, and OpenSSL on the descriptor."""
    on_descriptor = request.param is KernelTlsSocket
    monkeypatch.setattr("tidemill.broker.net.tls.enables_kernel_tls", lambda _context: on_descriptor)


def contexts(authority: Authority, *, client_auth: str = "none", version: str = "TLSv1.3") -> TlsContexts:
    settings = TlsSettings(
        key_store=KeyStore(location=str(authority.issue("broker"))),
        trust_store=TrustStore(str(authority.path)),
        versions=(version,),
        client_auth=client_auth,
    )
    return TlsContexts(settings, serves=True, dials=True)


@asynccontextmanager
async def serving(dispatch: Dispatch, entrance: Entrance) -> AsyncIterator[int]:
    server = Server(asyncio.get_running_loop(), dispatch, LIMITS)
    port = server.bind("SSL", "127.0.0.1", 0, entrance)
    server.start_accepting("SSL")
    try:
        yield port
    finally:
        server.close()


def run(case: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(case(), LIMIT_S))


async def connect(
    port: int, authority: Authority, certificate: Path | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context(cafile=str(authority.path))
    if certificate is not None:
        context.load_cert_chain(str(certificate))
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


# API key and version of a request that waits for no other, and whose answer nothing waits for.
HEAD = struct.pack(">hh", 18, 0)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_many_small_frames_in_few_records_are_all_answered(authority: Authority, version: str) -> None:
    def echo(peer: Peer, request: memoryview) -> None:
        peer.expect_reply().send((frame(bytes(request[4:])),))

    async def case() -> None:
        async with serving(echo, Entrance(tls=contexts(authority, version=version))) as port:
            reader, writer = await connect(port, authority)
            numbers = [struct.pack(">i", number) * 3 for number in range(20_000)]
            writer.write(b"".join(frame(HEAD + number) for number in numbers))
            for number in numbers:
                assert await reader.readexactly(16) == frame(number)
            writer.close()

    run(case)


def test_large_frame_is_received_whole(authority: Authority) -> None:
    def length(peer: Peer, request: memoryview) -> None:
        peer.expect_reply().send((frame(struct.pack(">iB", len(request), request[-1])),))

    async def case() -> None:
        async with serving(length, Entrance(tls=contexts(authority))) as port:
            reader, writer = await connect(port, authority)
            body = HEAD + bytes(5_000_001) + b"\7"
            writer.write(frame(body) + frame(HEAD + b"\1"))
            assert await reader.readexactly(9) == frame(struct.pack(">iB", len(body), 7))
            assert await reader.readexactly(9) == frame(struct.pack(">iB", 5, 1))
            writer.close()

    run(case)


def test_file_slices_reach_a_reader_that_is_slow(authority: Authority, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    path = tmp_path / "segment"
    path.write_bytes(content)

    async def case() -> None:
        file = DiskFiles().open(str(path))

        def slices(peer: Peer, request: memoryview) -> None:
            head = struct.pack(">i", len(content))
            middle = len(content) // 3
            peer.expect_reply().send(
                (head, FileSlice(file, 0, middle), FileSlice(file, middle, len(content) - middle))
            )

        async with serving(slices, Entrance(tls=contexts(authority))) as port:
            reader, writer = await connect(port, authority)
            # Ten answers of ten megabytes wait before the first byte is read.
            writer.write(frame(HEAD) * 10)
            await writer.drain()
            for _ in range(10):
                assert await reader.readexactly(4) == struct.pack(">i", len(content))
                assert await reader.readexactly(len(content)) == content
            writer.close()

    run(case)


def test_principal_is_the_certificates_name_by_the_rules(authority: Authority) -> None:
    seen: list[Principal] = []

    def note(peer: Peer, _request: memoryview) -> None:
        seen.append(peer.principal)
        peer.expect_reply().send((frame(b"ok"),))

    async def case() -> None:
        rules = PrincipalMapping("RULE:^CN=(.*?),OU=shop.*$/$1/L,DEFAULT")
        entrance = Entrance(tls=contexts(authority, client_auth="requested"), principal_of=rules.principal)
        async with serving(note, entrance) as port:
            mapped = authority.issue("mapped", subject="CN=Web,OU=shop,O=Acme")
            for certificate in (mapped, authority.issue("other", subject="CN=other"), None):
                reader, writer = await connect(port, authority, certificate)
                writer.write(frame(HEAD))
                assert await reader.readexactly(6) == frame(b"ok")
                writer.close()

    run(case)
    assert seen == [Principal.user("web"), Principal.user("CN=other"), ANONYMOUS]


def test_certificate_that_no_rule_names_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def case() -> None:
        entrance = Entrance(
            tls=contexts(authority, client_auth="required"),
            principal_of=PrincipalMapping("RULE:^CN=node-.*$/node/").principal,
        )
        async with serving(lambda _peer, _frame: None, entrance) as port:
            reader, writer = await connect(port, authority, authority.issue("stranger"))
            with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.close()

    run(case)
    assert "no rule of ssl.principal.mapping.rules applies to 'CN=stranger'" in caplog.text


class _Wall:
    def wall_ms(self) -> int:
        return 1_700_000_000_000


def test_channel_logs_in_over_tls_and_again_before_its_session_ends(authority: Authority) -> None:
    principals: list[str] = []
    connections: set[Peer] = set()

    def answer(peer: Peer, request: memoryview) -> None:
        header = parse_request_header(request)
        connections.add(peer)
        principals.append(str(peer.principal))
        apis = [ApiVersion(api_key=key, min_version=0, max_version=12) for key in (3, 18)]
        response = ApiVersionsResponse(api_keys=apis) if header.api_key == 18 else MetadataResponse()
        peer.expect_reply().send((response_frame(response, header.api_version, header.correlation_id),))

    async def case() -> None:
        loop = asyncio.get_running_loop()
        login = Login("SCRAM-SHA-512", "node", Password("secret"))
        sasl = SaslSettings(
            ("SCRAM-SHA-512",), {}, None, {login.mechanism: login}, {login.mechanism: 1500}, 1000, None
        )
        nonces = iter(f"nonce-{number}" for number in range(1000))
        handshakes: list[str] = []

        def new_nonce() -> str:
            handshakes.append(next(nonces))
            return handshakes[-1]

        settings = server_settings(sasl, lambda _mechanism, _user: None, None, None, b"decoy")
        gate = SaslGate(settings, answer, loop, Clock(_Wall(), loop.time), new_nonce, 1)
        tls = contexts(authority)
        entrance = Entrance(tls=tls, login_bytes_max=1000, dispatch=gate.dispatch)
        async with serving(answer, entrance) as port:
            security = LinkSecurity(
                lambda function: loop.run_in_executor(None, function), lambda: "client", tls, login
            )
            network = SocketNetwork(loop)
            channel = Channel(
                network,
                loop,
                Address("127.0.0.1", port),
                client_id="node-1",
                frame_bytes_max=1 << 20,
                security=security,
            )
            while len(handshakes) < 3:
                await channel.request(MetadataRequest(topics=[]), MetadataResponse, timeout_s=10)
                await asyncio.sleep(0.01)
            channel.close()
            network.close()

    run(case)
    assert len(connections) == 1
    assert set(principals) == {"User:ANONYMOUS", "User:node"}
    assert principals.count("User:ANONYMOUS") == 1


def test_connection_that_is_given_up_before_its_handshake_begins_is_closed_and_not_counted(
    authority: Authority,
) -> None:
    async def case() -> None:
        server = Server(asyncio.get_running_loop(), lambda *_: None, LIMITS)
        port = server.bind("SSL", "127.0.0.1", 0, Entrance(tls=contexts(authority)))
        client = socket.create_connection(("127.0.0.1", port))
        (listener,) = server._listeners
        server._accept(listener)
        server.close()
        client.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
        assert not server._quotas.total
        client.close()

    run(case)


def test_salt_of_a_nodes_own_login_is_the_one_that_an_unknown_user_of_that_name_would_get() -> None:
    login = Login("SCRAM-SHA-512", "node", Password("secret"))
    sasl = SaslSettings(("SCRAM-SHA-512",), {}, None, {login.mechanism: login}, {}, 1000, None)
    first = ScramClient(ScramMechanism.SHA_512, "node", "secret", nonce="c").first()
    challenges = []
    for own in (sasl, replace(sasl, own_logins={})):
        settings = server_settings(own, lambda _mechanism, _user: None, None, None, b"decoy")
        challenges.append(settings.mechanisms[login.mechanism]("s").respond(first, 0))
    assert challenges[0] == challenges[1]
