"""A scripted peer of a channel: it answers ApiVersions itself, and other requests as the test decides."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import uvloop

from tidemill.broker.net.network import Address
from tidemill.protocol.api.cluster import ApiVersion, ApiVersionsResponse
from tidemill.protocol.frames import RequestHeader, parse_request_header, response_frame
from tidemill.protocol.schema import Response

LIMIT_S = 30.0
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
API_VERSIONS_KEY = 18


def run_in(loop_name: str, scenario: Coroutine[Any, Any, None], limit_s: float = LIMIT_S) -> None:
    """To its end, on a loop of that kind. Exceptions that reach only the loop fail the test too."""
    unhandled: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
        async with asyncio.timeout(limit_s):
            await scenario

    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        runner.run(main())
    assert not unhandled


@dataclass(frozen=True, slots=True)
class Asked:
    header: RequestHeader
    writer: asyncio.StreamWriter

    def answer(self, response: Response) -> None:
        self.send(response_frame(response, self.header.api_version, self.header.correlation_id))

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    def hang_up(self) -> None:
        self.writer.close()


class ScriptedPeer:
    """`asked` has the requests as they come. `versions` is what ApiVersions lists; None leaves it unanswered."""

    def __init__(
        self, versions: Mapping[int, tuple[int, int]] | None = None, *, is_silent: bool = False
    ) -> None:
        self.versions = versions or {}
        self.is_silent = is_silent
        self.asked: asyncio.Queue[Asked] = asyncio.Queue()
        self.connections = 0
        self.handshakes: list[RequestHeader] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> ScriptedPeer:
        await self.listen(0)
        return self

    async def listen(self, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.address = Address("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        for writer in self._writers:
            with contextlib.suppress(ConnectionError):  # the client was faster
                await writer.wait_closed()
        await self._server.wait_closed()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        while True:
            try:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()
                return
            asked = Asked(parse_request_header(frame), writer)
            if asked.header.api_key != API_VERSIONS_KEY:
                self.asked.put_nowait(asked)
                continue
            self.handshakes.append(asked.header)
            if not self.is_silent:
                listed = [
                    ApiVersion(api_key=key, min_version=low, max_version=high)
                    for key, (low, high) in self.versions.items()
                ]
                asked.answer(ApiVersionsResponse(api_keys=listed))
