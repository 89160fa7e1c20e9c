"""A controller in hand: brokers joined, decisions replayed, ids counted instead of drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import TypeVar

from tidemill.config import load_broker_config
from tidemill.controller.controller import Controller
from tidemill.controller.image import MetadataImage
from tidemill.controller.records import Record
from tidemill.errors import ErrorCode
from tidemill.machine import Decision
from tidemill.protocol.api.admin import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from tidemill.protocol.api.brokers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    Listener,
)
from tidemill.types import BrokerId

CLUSTER_ID = "tidemill-test-cluster0"
Reply = TypeVar("Reply")


def creatable(
    name: str,
    partitions: int = -1,
    factor: int = -1,
    assignments: Iterable[tuple[int, list[int]]] = (),
    configs: Mapping[str, str | None] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[CreatableReplicaAssignment(partition_index=i, broker_ids=ids) for i, ids in assignments],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )


class Cluster:
    def __init__(self, brokers: int = 1, racks: Sequence[str | None] = (), **properties: str) -> None:
        config, _ = load_broker_config({key.replace("_", "."): value for key, value in properties.items()})
        self.controller = Controller(CLUSTER_ID, config)
        self.log: list[Record] = []
        self.now_ms = 0
        self._ids = count(1000)
        for broker_id in range(1, brokers + 1):
            self.join(broker_id, racks[broker_id - 1] if racks else None)

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    def commit(self, decision: Decision[Record, Reply]) -> Reply:
        for record in decision.records:
            self.log.append(record)
            self.controller.replay(record)
        self.controller.check_invariants()
        return decision.reply

    def new_uuid(self) -> bytes:
        return next(self._ids).to_bytes(16, "big")

    def register(self, broker_id: int, rack: str | None = None, incarnation: bytes = b"") -> int:
        request = BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=incarnation or self.new_uuid(),
            listeners=[Listener(name="PLAINTEXT", host=f"host{broker_id}", port=9092)],
            rack=rack,
        )
        reply = self.commit(self.controller.register_broker(request, self.now_ms))
        assert reply.error_code == ErrorCode.NONE
        return reply.broker_epoch

    def beat(
        self, broker_id: int, *, want_fence: bool = False, want_shut_down: bool = False
    ) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=self.image.brokers[BrokerId(broker_id)].epoch,
            current_metadata_offset=self.image.end_offset,
            want_fence=want_fence,
            want_shut_down=want_shut_down,
        )
        return self.commit(self.controller.heartbeat(request, self.now_ms))

    def join(self, broker_id: int, rack: str | None = None) -> None:
        self.register(broker_id, rack)
        assert not self.beat(broker_id).is_fenced

    def create(self, *topics: CreatableTopic, validate_only: bool = False) -> list[CreatableTopicResult]:
        request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
        return self.commit(self.controller.create_topics(request, self.new_uuid)).topics
