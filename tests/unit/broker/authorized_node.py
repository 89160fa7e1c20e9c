"""A node with an authorizer, and requests of any principal to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.unit.broker.node_client import group_config
from tidemill.broker.net.network import Part, Reply
from tidemill.broker.node import Node
from tidemill.broker.requests.api_table import TABLE, Scope
from tidemill.broker.requests.dispatch import Dispatcher
from tidemill.log.files import FileSlice
from tidemill.protocol import api as apis
from tidemill.protocol.api import admin, security
from tidemill.protocol.frames import LENGTH_BYTES, parse_response, request_frame
from tidemill.protocol.schema import Request
from tidemill.security.principals import Principal

ADMIN, ALICE, MALLORY = Principal.user("admin"), Principal.user("alice"), Principal.user("mallory")
SECRET, PUBLIC = "secret", "public"
LISTENER, CONTROLLER = "PLAINTEXT", "CONTROLLER"
LIMIT_S = 30.0
READ, WRITE, CREATE, DESCRIBE, CLUSTER_ACTION = 3, 4, 5, 8, 9
TOPIC, GROUP, CLUSTER_TYPE, TRANSACTIONAL_ID = 2, 3, 4, 5


class _Reply:
    def __init__(self) -> None:
        self.sent: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def send(self, parts: Sequence[Part]) -> None:
        self.sent.set_result(
            b"".join(
                part.file.read(part.length, part.position) if isinstance(part, FileSlice) else part
                for part in parts
            )
        )


class _Peer:
    """A connection that has proven who it is."""

    peer = "10.0.0.9:5000"
    local_address = ("127.0.0.1", 9092)
    received_s = 0.0

    def __init__(self, principal: Principal, listener_name: str = LISTENER) -> None:
        self.principal = principal
        self.listener_name = listener_name
        self.closed_because: str | None = None
        self.close_callbacks: list[Callable[[], None]] = []
        self.replies: list[_Reply] = []

    @property
    def is_closed(self) -> bool:
        return self.closed_because is not None

    def mark_as_node(self) -> None: ...
    def mark_as_authenticated(self) -> None: ...
    def mute_for(self, throttle_ms: int) -> None: ...

    def add_kept_bytes(self, count: int) -> None: ...

    def expect_reply(self) -> Reply:
        self.replies.append(_Reply())
        return self.replies[-1]

    def close(self, reason: str | None) -> None:
        self.closed_because = reason or "closed"
        for reply in self.replies:
            if not reply.sent.done():
                reply.sent.set_result(b"")


class Authorized:
    """A node with an authorizer, and requests of any principal to it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._dispatcher = Dispatcher(node.broker, {LISTENER: Scope.BOTH, CONTROLLER: Scope.CONTROLLER})

    async def ask(
        self, principal: Principal, request: Request, version: int | None = None, *, listener: str = LISTENER
    ) -> Any:
        """The response; None when the connection was closed instead."""
        number = TABLE[request.api_key].versions.max if version is None else version
        peer = _Peer(principal, listener)
        frame = request_frame(request, number, 7, "client")
        self._dispatcher.dispatch(peer, memoryview(bytearray(frame[LENGTH_BYTES:])))
        if peer.is_closed:
            return None
        async with asyncio.timeout(LIMIT_S):
            raw = await peer.replies[0].sent
        if not raw:
            return None
        return parse_response(apis.RESPONSES[request.api_key], number, memoryview(raw)[LENGTH_BYTES:])[1]

    async def allow(
        self, operation: int, kind: int, name: str, principal: str = "User:alice", **more: Any
    ) -> None:
        fields: dict[str, Any] = {
            "resource_type": kind,
            "resource_name": name,
            "principal": principal,
            "host": "*",
            "operation": operation,
            "permission_type": 3,
        }
        creation = security.AclCreation(**(fields | more))
        response = await self.ask(ADMIN, security.CreateAclsRequest(creations=[creation]))
        assert [result.error_code for result in response.results] == [0]

    def topic_id(self, name: str) -> bytes:
        return self.node.broker.image.topics_by_name[name].id


@asynccontextmanager
async def authorized_node(tmp_path: Path) -> AsyncIterator[Authorized]:
    config = group_config(
        tmp_path,
        listeners="PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        controller_listener_names=CONTROLLER,
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:admin",
    )
    node = Node(config)
    await node.start()
    try:
        served = Authorized(node)
        topics = [
            admin.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            for name in (SECRET, PUBLIC)
        ]
        created = await served.ask(ADMIN, admin.CreateTopicsRequest(topics=topics, timeout_ms=10_000))
        assert [topic.error_code for topic in created.topics] == [0, 0]
        yield served
    finally:
        await node.stop()
