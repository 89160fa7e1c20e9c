"""A network of one broker that answers from a script, and a clock that only moves during sleeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import Address, BrokerUnreachable, Connection
from tidemill.errors import TidemillError
from tidemill.protocol import frames
from tidemill.protocol.api.cluster import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidemill.protocol.schema import NO_UUID, Request, Response

Answer = Response | TidemillError | Callable[[Request], Response]


class ScriptedNetwork:
    """Metadata is answered from `leaders`; every other request takes the next answer of its type."""

    def __init__(self, leaders: dict[str, list[int]]) -> None:
        self.leaders = leaders
        self.topic_ids: dict[str, bytes] = {}
        self.connections: list[ScriptedConnection] = []
        self.answers: dict[type[Request], list[Answer]] = {}
        self.asked: list[tuple[int, Request]] = []
        self.refused: set[int] = set()
        self.now_s = 0.0

    def cluster(self, timeout_s: float = 10.0) -> Cluster:
        return Cluster(
            "seed:1", timeout_s=timeout_s, connect=self.connect, clock=lambda: self.now_s, sleep=self._sleep
        )

    def _sleep(self, duration_s: float) -> None:
        self.now_s += duration_s

    def connect(self, address: Address) -> Connection:
        if address.port in self.refused:
            raise BrokerUnreachable(f"{address}: connection refused")
        self.connections.append(ScriptedConnection(self, address))
        return self.connections[-1]

    def asked_of(self, request_type: type[Request]) -> list[int]:
        """The brokers that got such a request, in order."""
        return [port for port, request in self.asked if isinstance(request, request_type)]

    def answer(self, port: int, request: Request) -> Response:
        self.asked.append((port, request))
        if isinstance(request, MetadataRequest):
            return self._metadata(request)
        answer = self.answers[type(request)].pop(0)
        if isinstance(answer, TidemillError):
            raise answer
        return answer if isinstance(answer, Response) else answer(request)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        names = list(self.leaders) if request.topics is None else [each.name or "" for each in request.topics]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=each, host="b", port=each) for each in (1, 2)],
            controller_id=1,
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        if name not in self.leaders:
            return MetadataResponseTopic(name=name, error_code=3)
        partitions = [
            MetadataResponsePartition(partition_index=index, leader_id=leader)
            for index, leader in enumerate(self.leaders[name])
        ]
        return MetadataResponseTopic(
            name=name, topic_id=self.topic_ids.get(name, NO_UUID), partitions=partitions
        )


class ScriptedConnection(Connection):
    def __init__(self, network: ScriptedNetwork, address: Address) -> None:
        self.address = address
        self.is_closed = False
        self._network = network
        self.fetches: list[tuple[Request, int]] = []

    def version_of(self, message: type[Request], max_version: int | None = None) -> int:
        return message.versions.max if max_version is None else max_version

    def post(self, message: Request, version: int) -> int:
        self.fetches.append((message, version))
        return len(self.fetches)

    def take(
        self, correlation_id: int, *, wait_s: float = 0.0, allocate: Callable[[int], bytearray] = bytearray
    ) -> memoryview:
        message, version = self.fetches[correlation_id - 1]
        answer = self._network.answer(self.address.port, message)
        frame = frames.response_frame(answer, version, correlation_id)[frames.LENGTH_BYTES :]
        buffer = allocate(len(frame))
        buffer[: len(frame)] = frame
        return memoryview(buffer)[: len(frame)]

    def request(self, message: Request, response_type: type[Any], **_: Any) -> Any:
        return self._network.answer(self.address.port, message)

    def send(self, message: Request) -> None:
        self._network.answer(self.address.port, message)

    def is_usable(self) -> bool:
        return not self.is_closed

    def close(self) -> None:
        self.is_closed = True
