"""Several quorums in one process: virtual time, a network in memory, simulated disks.

Everything below `Network` and `Files` is the production code. A node that is killed keeps its disk (`kill -9`) or keeps
only what was synced (a power failure); frames to and from it are lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from tidemill.broker.clock import Clock
from tidemill.broker.disk.syncer import Syncer
from tidemill.broker.net.channel import Channels
from tidemill.broker.net.network import Address, Link
from tidemill.broker.platform import Platform
from tidemill.broker.quorum.quorum import Quorum
from tidemill.broker.requests.calls import Call
from tidemill.config import BrokerConfig, load_broker_config
from tidemill.protocol import api as apis
from tidemill.protocol.api.brokers import Listener
from tidemill.protocol.api.cluster import ApiVersionsResponse
from tidemill.protocol.api.data import FetchRequest
from tidemill.protocol.api.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from tidemill.protocol.frames import (
    API_VERSIONS_KEY,
    LENGTH_BYTES,
    has_flexible_response_header,
    parse_request_header,
    response_frame,
)
from tidemill.protocol.schema import Request, Response, decode
from tidemill.sim.platform.disk import SimulatedDisk

WALL_MS = 1_700_000_000_000
DELAY_S = 0.001


class MemoryLink:
    def __init__(self, world: World, sender: TestNode, to: Address, on_frame: Any, on_close: Any) -> None:
        self.world = world
        self.sender = sender
        self.to = to
        self.on_frame = on_frame
        self.on_close = on_close
        self.is_closed = False
        world.links.append(self)
        if world.listening.get(to) is None:
            asyncio.get_running_loop().call_later(DELAY_S, self.fail, "refused")

    def fail(self, reason: str) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.on_close(reason)

    def send(self, frame: bytes | bytearray) -> None:
        content = bytes(frame)[LENGTH_BYTES:]
        asyncio.get_running_loop().call_later(DELAY_S, self._arrive, content)

    def _arrive(self, content: bytes) -> None:
        receiver = self.world.listening.get(self.to)
        if receiver is not None and not self.is_closed and self.world.is_connected(self.sender, receiver):
            receiver.receive(self, content)

    def answer(self, receiver: TestNode, frame: bytes) -> None:
        if self.world.tamper is not None:
            frame = self.world.tamper(self.sender, frame)

        def arrive() -> None:
            is_connected = receiver.is_up and self.world.is_connected(receiver, self.sender)
            if not self.is_closed and self.sender.is_up and is_connected:
                self.on_frame(memoryview(bytearray(frame[LENGTH_BYTES:])))

        asyncio.get_running_loop().call_later(DELAY_S, arrive)

    def close(self) -> None:
        self.is_closed = True


class Recorder:
    """A listener that believes everything and forgets nothing."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.offsets: list[int] = []
        self.end_offset = 0
        self.events: list[str] = []
        self.active_epoch: int | None = None
        self.leader_id: int | None = None
        self.on_activated: Callable[[], None] | None = None

    def restart_from(self, records: Iterable[bytes], end_offset: int, epoch: int) -> None:
        self.values = list(records)
        self.offsets = []
        self.end_offset = end_offset
        self.events.append(f"restart {end_offset}")

    def committed(self, records: Sequence[tuple[int, bytes]], end_offset: int) -> None:
        assert end_offset > self.end_offset
        for offset, value in records:
            assert self.end_offset <= offset < end_offset
            assert not self.offsets or offset > self.offsets[-1]
            self.offsets.append(offset)
            self.values.append(value)
        self.end_offset = end_offset

    def activated(self, epoch: int) -> None:
        assert self.active_epoch is None
        self.active_epoch = epoch
        self.events.append(f"activated {epoch}")
        if self.on_activated is not None:
            self.on_activated()

    def resigned(self, epoch: int) -> None:
        assert self.active_epoch == epoch
        self.active_epoch = None
        self.events.append(f"resigned {epoch}")

    def leader_changed(self, epoch: int, leader_id: int | None) -> None:
        self.leader_id = leader_id


class TestNode:
    __test__ = False

    def __init__(self, world: World, node_id: int, settings: dict[str, str], directory_id: bytes) -> None:
        self.world = world
        self.id = node_id
        self.address = Address(f"host-{node_id}", 9093)
        self.disk = SimulatedDisk()
        self.disk.make_folder("/data")
        self.disk.sync_folder("/")
        self.settings = settings
        self.directory_id = directory_id
        self.cluster_id: str | None = None
        self.is_up = False
        self.failure: str | None = None
        self.wall_offset_ms = 0
        self.quorum: Quorum
        self.listener: Recorder

    def config(self) -> BrokerConfig:
        properties = {
            "node.id": str(self.id),
            "process.roles": "controller",
            "listeners": f"CONTROLLER://{self.address.host}:{self.address.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": "/data",
            **self.settings,
        }
        if properties["process.roles"] == "broker":
            properties["listeners"] = f"PLAINTEXT://{self.address.host}:{self.address.port}"
        return load_broker_config(properties)[0]

    async def start(self) -> None:
        loop = asyncio.get_running_loop()

        async def run_blocking(function: Callable[[], Any]) -> Any:
            await asyncio.sleep(DELAY_S)
            return function() if self.is_up else None

        def start_blocking(function: Callable[[], Any]) -> Awaitable[Any]:
            return loop.create_task(run_blocking(function))

        wall = SimpleNamespace(wall_ms=lambda: WALL_MS + self.wall_offset_ms + int(loop.time() * 1000))
        clock = Clock(wall, loop.time)
        platform = SimpleNamespace(
            files=self.disk,
            clock=clock,
            rng=random.Random(f"{self.world.seed}-{self.id}"),
            run_blocking=start_blocking,
        )
        self.is_up = True
        self.world.listening[self.address] = self
        self.listener = Recorder()
        self.channels = Channels(cast(Any, self), loop, client_id=str(self.id), frame_bytes_max=1 << 27)
        config = self.config()
        name = (config.network.controller_listeners or config.network.listeners)[0].name
        self.quorum = Quorum(
            config,
            cast(Platform, platform),
            Syncer(start_blocking, clock.wall_ms),
            self.channels,
            self.listener,
            directory_id=self.directory_id,
            cluster_id=self.cluster_id,
            endpoints=[Listener(name=name, host=self.address.host, port=self.address.port)],
            on_fatal=self._fail,
        )
        await self.quorum.start()

    def _fail(self, reason: str) -> None:
        self.failure = reason

    @property
    def log_path(self) -> str:
        return self.quorum.log.log.active.path_of("log")

    async def describe(self) -> DescribeQuorumResponse:
        response = await self.quorum.answer(DescribeQuorumRequest())
        assert isinstance(response, DescribeQuorumResponse)
        return response

    # -- a Network -------------------------------------------------------------------------------------------

    def connect(
        self,
        address: Address,
        on_frame: Callable[[memoryview], None],
        on_close: Callable[[str], None],
        *,
        frame_bytes_max: int,
        tls: object = None,
    ) -> Link:
        return MemoryLink(self.world, self, address, on_frame, on_close)

    def receive(self, link: MemoryLink, content: bytes) -> None:
        header = parse_request_header(content)

        def respond(response: Response) -> None:
            link.answer(self, response_frame(response, header.api_version, header.correlation_id))

        if header.api_key == API_VERSIONS_KEY:
            respond(ApiVersionsResponse())
            return
        request_type = apis.REQUESTS[header.api_key]
        request: Request = decode(request_type, header.api_version, content, header.body_position)
        self.world.seen.append((self.id, type(request).__name__))
        if isinstance(request, FetchRequest):
            self._fetch(link, header, request)
            return
        self.world.spawn(self._answer(request, respond))

    async def _answer(self, request: Request, respond: Callable[[Response], None]) -> None:
        respond(await self.quorum.answer(request))

    def _fetch(self, link: MemoryLink, header: Any, request: FetchRequest) -> None:
        def send(parts: Sequence[bytes]) -> None:
            link.answer(self, b"".join(bytes(part) for part in parts))

        reply = SimpleNamespace(send=send)
        peer = SimpleNamespace(
            is_closed=False,
            close_callbacks=[],
            expect_reply=lambda: reply,
            close=lambda _reason: None,
        )
        is_flexible = has_flexible_response_header(header.api_key, header.api_version)
        call = Call(cast(Any, peer), header, memoryview(b""), is_flexible)
        call.expect_reply()
        self.quorum.fetch(call, request, is_proven=True)

    # -- the end ---------------------------------------------------------------------------------------------

    def _detach(self) -> None:
        self.is_up = False
        self.world.listening.pop(self.address, None)
        self.channels.close()
        for link in self.world.links:
            if link.to == self.address:
                link.fail("the other side is gone")

    def kill(self, *, power: bool = False) -> None:
        """`kill -9`, or a power failure that loses all that was not synced."""
        self._detach()
        self.quorum._dismiss()
        if self.quorum._replica is not None:
            self.quorum._replica.stop()
        self.quorum.log.release()
        self.disk = self.disk.crash(random.Random(1), keep="nothing") if power else self.disk.kill()

    async def stop(self) -> None:
        await self.quorum.resign()
        assert await self.quorum.close() == (self.failure is None)
        self._detach()
        self.disk = self.disk.kill()


class World:
    def __init__(self, ids: Iterable[int], settings: dict[str, str] | None = None, *, seed: int = 1) -> None:
        self.seed = seed
        ids = list(ids)
        self.listening: dict[Address, TestNode] = {}
        self.links: list[MemoryLink] = []
        self.cut: set[tuple[int, int]] = set()
        self.seen: list[tuple[int, str]] = []
        # Changes the responses that a node gets.
        self.tamper: Callable[[TestNode, bytes], bytes] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        voters = ",".join(f"{i}@host-{i}:9093" for i in ids)
        settings = {"controller.quorum.voters": voters} if settings is None else settings
        self.nodes = {i: TestNode(self, i, dict(settings), bytes([i]) * 16) for i in ids}

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    def is_connected(self, sender: TestNode, receiver: TestNode) -> bool:
        return (sender.id, receiver.id) not in self.cut

    def isolate(self, node_id: int) -> None:
        others = [other for other in self.nodes if other != node_id]
        self.cut |= {(node_id, other) for other in others} | {(other, node_id) for other in others}

    async def start(self) -> None:
        for node in self.nodes.values():
            await node.start()

    async def stop(self) -> None:
        for node in self.nodes.values():
            if node.is_up:
                await node.stop()

    async def until(self, condition: Callable[[], bool], limit_s: float = 60) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + limit_s
        while not condition():
            assert loop.time() < end, "it did not happen"
            await asyncio.sleep(0.005)

    @property
    def up(self) -> list[TestNode]:
        return [node for node in self.nodes.values() if node.is_up]

    def active(self) -> TestNode | None:
        found = [node for node in self.up if node.quorum.is_active and node.listener.active_epoch is not None]
        return max(found, key=lambda node: node.quorum.epoch) if found else None

    async def leader(self) -> TestNode:
        await self.until(lambda: self.active() is not None)
        found = self.active()
        assert found is not None
        return found

    async def commit(self, *values: bytes) -> int:
        """Append through the current leader; returns when it is committed there."""
        node = await self.leader()
        end_offset = node.quorum.append(values)
        await self.until(lambda: node.listener.end_offset >= end_offset)
        return end_offset

    async def agree(self, *values: bytes) -> None:
        """Until every node that is up has exactly these records."""
        await self.until(lambda: all(node.listener.values == list(values) for node in self.up))
