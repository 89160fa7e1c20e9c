"""Two scripted brokers that check sequences as a log does, for producers that send ahead."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import Address, Connection, ConnectionLost
from tidemill.errors import ErrorCode, TidemillError
from tidemill.protocol import frames
from tidemill.protocol.api.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    Coordinator,
    FinalizedFeatureKey,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidemill.protocol.api.data import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidemill.protocol.api.transactions import InitProducerIdRequest, InitProducerIdResponse
from tidemill.protocol.records import header_at, iterate_records
from tidemill.protocol.schema import Request, Response, decode_exact
from tidemill.protocol.wire import Buffer
from tidemill.types import TopicPartition

TOPIC_ID = bytes(range(16))
REMEMBERED = 5
# What may become of a produce request: its connection is lost before or after it took effect, or it gets an error.
LOST_BEFORE, LOST_AFTER = "lost before", "lost after"
Fault = str | ErrorCode | None


class Log:
    """A partition as an idempotent producer meets it."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self._epoch = -1
        self._next_sequence = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)

    def append(self, data: bytes) -> ErrorCode:
        header = header_at(data)
        if header.producer_epoch != self._epoch:
            self._epoch, self._next_sequence = header.producer_epoch, 0
            self._recent.clear()
        if (header.base_sequence, header.last_sequence) in self._recent:
            return ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        if header.base_sequence != self._next_sequence:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self._recent.append((header.base_sequence, header.last_sequence))
        self._next_sequence = header.last_sequence + 1
        self.values += [record.value or b"" for record in iterate_records(memoryview(data))]
        return ErrorCode.NONE


class ProducingNetwork:
    def __init__(self, partition_count: int = 3, *, transaction_version: int = 2) -> None:
        self.logs = {TopicPartition("orders", index): Log() for index in range(partition_count)}
        self.leaders = {partition: 1 + partition.partition % 2 for partition in self.logs}
        self.transaction_version = transaction_version
        self.faults: Callable[[TopicPartition], Fault] = lambda _: None
        self.answers: dict[type[Request], list[Response | TidemillError]] = {}
        self.asked: list[Request] = []
        self.in_flight_max = 0
        self.now_s = 0.0

    def cluster(self) -> Cluster:
        return Cluster(
            "seed:1", timeout_s=10.0, connect=self.connect, clock=lambda: self.now_s, sleep=self._sleep
        )

    def connect(self, address: Address) -> Connection:
        return ProducingConnection(self, address)

    def asked_of(self, request_type: type[Any]) -> list[Any]:
        return [request for request in self.asked if isinstance(request, request_type)]

    def move_leaders(self, source: random.Random) -> None:
        for partition in self.leaders:
            self.leaders[partition] = source.choice((1, 2))

    def _sleep(self, duration_s: float) -> None:
        self.now_s += duration_s

    def answer(self, request: Request) -> Response:
        self.asked.append(request)
        scripted = self.answers.get(type(request))
        if scripted:
            answer = scripted.pop(0)
            if isinstance(answer, TidemillError):
                raise answer
            return answer
        match request:
            case MetadataRequest():
                return self._metadata()
            case FindCoordinatorRequest():
                return FindCoordinatorResponse(coordinators=[Coordinator(node_id=1, host="b", port=1)])
            case InitProducerIdRequest():
                count = len(self.asked_of(InitProducerIdRequest))
                return InitProducerIdResponse(producer_id=7, producer_epoch=count - 1)
            case ApiVersionsRequest():
                feature = FinalizedFeatureKey(
                    name="transaction.version", max_version_level=self.transaction_version
                )
                return ApiVersionsResponse(finalized_features=[feature])
        raise AssertionError(f"the script has no answer to {request}")

    def _metadata(self) -> MetadataResponse:
        partitions = [
            MetadataResponsePartition(partition_index=partition.partition, leader_id=leader)
            for partition, leader in self.leaders.items()
        ]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=each, host="b", port=each) for each in (1, 2)],
            controller_id=1,
            topics=[MetadataResponseTopic(name="orders", topic_id=TOPIC_ID, partitions=partitions)],
        )

    def produced(self, broker_id: int, request: ProduceRequest) -> ProduceResponse:
        """`ConnectionLost` when the answer does not arrive."""
        self.asked.append(request)
        (topic,) = request.topic_data
        is_lost = False
        answers = []
        for data in topic.partition_data:
            partition = TopicPartition("orders", data.index)
            fault = self.faults(partition)
            if fault == LOST_BEFORE:
                raise ConnectionLost("reset")
            is_lost |= fault == LOST_AFTER
            code = fault if isinstance(fault, ErrorCode) else self._append(broker_id, partition, data)
            answers.append(PartitionProduceResponse(index=data.index, error_code=code))
        if is_lost:
            raise ConnectionLost("reset")
        return ProduceResponse(
            responses=[TopicProduceResponse(name="orders", topic_id=TOPIC_ID, partition_responses=answers)]
        )

    def _append(self, broker_id: int, partition: TopicPartition, data: PartitionProduceData) -> ErrorCode:
        if self.leaders[partition] != broker_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return self.logs[partition].append(bytes(data.records or b""))


class ProducingConnection(Connection):
    """Requests take effect when they are posted; answers wait until they are taken."""

    def __init__(self, network: ProducingNetwork, address: Address) -> None:
        self.address = address
        self.is_closed = False
        self._network = network
        self._count = 0
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._is_lost = False

    def version_of(self, message: type[Request], max_version: int | None = None) -> int:
        return message.versions.max if max_version is None else max_version

    def request(self, message: Request, response_type: type[Any], **_: Any) -> Any:
        return self._network.answer(message)

    def post_body(self, api: type[Request], version: int, body: Sequence[Buffer]) -> int:
        assert api is ProduceRequest
        message = decode_exact(ProduceRequest, version, b"".join(body))
        self._count += 1
        if self.is_closed:
            raise ConnectionLost("closed")
        if not self._is_lost:
            try:
                response = self._network.produced(self.address.port, message)
            except ConnectionLost:
                self._is_lost = True
            else:
                frame = frames.response_frame(response, version, self._count)[frames.LENGTH_BYTES :]
                self._waiting.append((self._count, frame))
        self._network.in_flight_max = max(self._network.in_flight_max, len(self._waiting))
        return self._count

    def take(self, correlation_id: int, **_: Any) -> memoryview:
        if not self._waiting:
            self.is_closed = True
            raise ConnectionLost("reset")
        answered_id, frame = self._waiting.popleft()
        assert answered_id == correlation_id
        return memoryview(frame)

    def is_usable(self) -> bool:
        return not self.is_closed

    def close(self) -> None:
        self.is_closed = True
