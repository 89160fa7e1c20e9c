"""A controller in hand: brokers joined, decisions replayed, ids counted instead of drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from tidemill.config import load_broker_config
from tidemill.controller.controller import BeginCluster, Controller, ControllerCall
from tidemill.controller.image import MetadataImage, PartitionImage
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
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponsePartitionData,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerState,
    Listener,
)
from tidemill.protocol.schema import Request
from tidemill.runtime import NO_TOKEN
from tidemill.types import BrokerId

CLUSTER_ID = "tidemill-test-cluster0"
CONTROLLER_ID = 100


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


def directory(broker_id: int, disk: int = 0) -> bytes:
    return bytes([disk]) + b"directory " + str(broker_id).rjust(5).encode()


class Cluster:
    """A controller with its log, for tests. Its node has no broker unless `node_id` is given."""

    def __init__(
        self,
        brokers: int = 1,
        racks: Sequence[str | None] = (),
        node_id: int = CONTROLLER_ID,
        **properties: str,
    ) -> None:
        texts = {key.replace("_", "."): value for key, value in properties.items()}
        self.config, _ = load_broker_config({"node.id": str(node_id), **texts})
        self.steady_ms = 0
        self.log: list[Record] = []
        self._ids = count(1000)
        self.activate(MetadataImage())
        self.begin(CLUSTER_ID)
        for broker_id in range(1, brokers + 1):
            self.join(broker_id, racks[broker_id - 1] if racks else None)

    def activate(self, image: MetadataImage | None = None) -> None:
        """A new controller takes over."""
        self.controller = Controller(
            self.config, self.image if image is None else image, lambda: self.new_uuid()
        )
        self.controller.on_loaded(self.steady_ms)

    def begin(self, cluster_id: str) -> Sequence[Record]:
        """The records that a new controller writes first."""
        records = self.controller.decide(BeginCluster(cluster_id), NO_TOKEN, self.steady_ms).records
        self.write(records)
        return records

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    def write(self, records: Sequence[Record]) -> None:
        for record in records:
            self.controller.replay(record)
            self.log.append(record)
        self.controller.check_invariants()

    def ask(self, request: Request, version: int | None = None) -> Any:
        """The controller's answer, its records replayed."""
        version = type(request).versions.max if version is None else version
        call = ControllerCall(request, version, len(self.log))
        decision = self.controller.decide(call, NO_TOKEN, self.steady_ms)
        self.write(decision.records)
        return decision.reply

    def due_now(self) -> Decision[Record, Any]:
        """The next thing that is due, not written yet."""
        decision = self.controller.expire(self.steady_ms)
        assert decision is not None
        return decision

    def tick(self) -> list[Record]:
        """Everything that is due now."""
        written: list[Record] = []
        for _ in range(100):
            decision = self.controller.expire(self.steady_ms)
            if decision is None:
                break
            self.write(decision.records)
            written += decision.records
        deadline_ms = self.controller.deadline_ms
        assert deadline_ms is None or deadline_ms > self.steady_ms
        return written

    def pass_time(self, elapsed_ms: int, *, beating: Iterable[int] = ()) -> list[Record]:
        """The brokers that beat live through it."""
        self.steady_ms += elapsed_ms
        for broker_id in beating:
            self.beat(broker_id)
        return self.tick()

    def new_uuid(self) -> bytes:
        return next(self._ids).to_bytes(16, "big")

    # -- brokers ---------------------------------------------------------------------------------------------

    def registration(self, broker_id: int, **fields: Any) -> BrokerRegistrationRequest:
        request = BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id=CLUSTER_ID,
            incarnation_id=self.new_uuid(),
            listeners=[Listener(name="PLAINTEXT", host=f"host{broker_id}", port=9092)],
            log_dirs=[directory(broker_id)],
        )
        for name, value in fields.items():
            setattr(request, name, value)
        return request

    def register(self, broker_id: int, **fields: Any) -> int:
        """Register a broker as after a crash, unless `previous_broker_epoch` is given."""
        reply = self.ask(self.registration(broker_id, **fields))
        assert reply.error_code == ErrorCode.NONE
        epoch: int = reply.broker_epoch
        return epoch

    def beat(self, broker_id: int, **fields: Any) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=self.image.brokers[BrokerId(broker_id)].epoch,
            current_metadata_offset=len(self.log) - 1,
        )
        for name, value in fields.items():
            setattr(request, name, value)
        reply = self.ask(request)
        assert isinstance(reply, BrokerHeartbeatResponse)
        return reply

    def join(self, broker_id: int, rack: str | None = None, **fields: Any) -> None:
        self.register(broker_id, rack=rack, **fields)
        assert not self.beat(broker_id).is_fenced

    def fence(self, broker_id: int) -> None:
        assert self.beat(broker_id, want_fence=True).is_fenced

    def stop(self, broker_id: int) -> int:
        """A controlled shutdown; the epoch that proves it."""
        for _ in range(5):
            if self.beat(broker_id, want_shut_down=True).should_shut_down:
                return self.image.brokers[BrokerId(broker_id)].epoch
            for broker in self.image.brokers.values():
                if broker.is_active:
                    self.beat(broker.id)
        raise AssertionError(f"broker {broker_id} may not stop")

    # -- partitions ------------------------------------------------------------------------------------------

    def create(self, *topics: CreatableTopic, validate_only: bool = False) -> list[CreatableTopicResult]:
        reply = self.ask(CreateTopicsRequest(topics=list(topics), validate_only=validate_only))
        results: list[CreatableTopicResult] = reply.topics
        return results

    def partition(self, topic: str = "t", index: int = 0) -> PartitionImage:
        found = self.image.partition(topic, index)
        assert found is not None
        return found

    def state(self, topic: str = "t", index: int = 0) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Leader, ISR, ELR."""
        partition = self.partition(topic, index)
        return partition.leader, partition.isr, partition.elr

    def propose(
        self, isr: Sequence[int], topic: str = "t", index: int = 0, version: int = 3, **fields: Any
    ) -> AlterPartitionResponsePartitionData:
        """Send the leader's AlterPartition with the current epochs. `fields` override its values."""
        partition = self.partition(topic, index)
        broker_id = fields.pop("broker_id", partition.leader)
        data = AlterPartitionRequestPartitionData(
            partition_index=index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
        )
        if version < 3:
            data.new_isr = list(isr)
        else:
            brokers = self.image.brokers
            data.new_isr_with_epochs = [
                BrokerState(
                    broker_id=each,
                    broker_epoch=brokers[BrokerId(each)].epoch if BrokerId(each) in brokers else 0,
                )
                for each in isr
            ]
        for name, value in fields.items():
            setattr(data, name, value)
        topic_data = AlterPartitionRequestTopicData(
            topic_id=self.image.topics_by_name[topic].id, partitions=[data]
        )
        request = AlterPartitionRequest(
            broker_id=broker_id, broker_epoch=self.image.brokers[broker_id].epoch, topics=[topic_data]
        )
        reply = self.ask(request, version)
        assert reply.error_code == ErrorCode.NONE
        (result,) = reply.topics[0].partitions
        assert isinstance(result, AlterPartitionResponsePartitionData)
        return result
