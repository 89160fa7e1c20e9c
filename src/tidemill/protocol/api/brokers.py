"""The messages between brokers and the active controller: registration, heartbeats, ISR changes, Envelope."""

from __future__ import annotations

from typing import Annotated

from tidemill.protocol.schema import (
    NO_UUID,
    Bool,
    Bytes,
    DataMessage,
    Int8,
    Int16,
    Int32,
    Int64,
    Request,
    Response,
    Since,
    String,
    Struct,
    Tag,
    UInt16,
    Until,
    Uuid,
    field,
)


class Listener(Struct):
    name: String = ""
    host: String = ""
    port: UInt16 = 0
    security_protocol: Int16 = 0


class Feature(Struct):
    name: String = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


class BrokerRegistrationRequest(Request, api_key=62, versions=(0, 4), flexible=0):
    broker_id: Int32 = 0
    cluster_id: String = ""
    incarnation_id: Uuid = NO_UUID
    listeners: list[Listener] = field(default_factory=list)
    features: list[Feature] = field(default_factory=list)
    rack: String | None = None
    is_migrating_zk_broker: Annotated[Bool, Since(1)] = False
    log_dirs: Annotated[list[Uuid], Since(2)] = field(default_factory=list)
    # After a clean shutdown; tells the controller that the replica kept its data (KIP-966).
    previous_broker_epoch: Annotated[Int64, Since(3)] = -1


class BrokerRegistrationResponse(Response, api_key=62, versions=(0, 4), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    broker_epoch: Int64 = -1


class BrokerHeartbeatRequest(Request, api_key=63, versions=(0, 2), flexible=0):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    current_metadata_offset: Int64 = 0
    want_fence: Bool = False
    want_shut_down: Bool = False
    offline_log_dirs: Annotated[list[Uuid], Since(1), Tag(0)] = field(default_factory=list)
    cordoned_log_dirs: Annotated[list[Uuid] | None, Since(2), Tag(1)] = None


class BrokerHeartbeatResponse(Response, api_key=63, versions=(0, 2), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    is_caught_up: Bool = False
    is_fenced: Bool = True
    should_shut_down: Bool = False


class ControllerRegistrationRequest(Request, api_key=70, versions=(0, 0), flexible=0):
    controller_id: Int32 = 0
    incarnation_id: Uuid = NO_UUID
    zk_migration_ready: Bool = False
    listeners: list[Listener] = field(default_factory=list)
    features: list[Feature] = field(default_factory=list)


class ControllerRegistrationResponse(Response, api_key=70, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class UnregisterControllerRequest(Request, api_key=94, versions=(0, 0), flexible=0):
    controller_id: Int32 = 0


class UnregisterControllerResponse(Response, api_key=94, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class BrokerState(Struct):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1


class AlterPartitionRequestPartitionData(Struct):
    partition_index: Int32 = 0
    leader_epoch: Int32 = 0
    new_isr: Annotated[list[Int32], Until(2)] = field(default_factory=list)
    new_isr_with_epochs: Annotated[list[BrokerState], Since(3)] = field(default_factory=list)
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32 = 0


class AlterPartitionRequestTopicData(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[AlterPartitionRequestPartitionData] = field(default_factory=list)


class AlterPartitionRequest(Request, api_key=56, versions=(2, 3), flexible=0):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    topics: list[AlterPartitionRequestTopicData] = field(default_factory=list)


class AlterPartitionResponsePartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    isr: list[Int32] = field(default_factory=list)
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32 = 0


class AlterPartitionResponseTopicData(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[AlterPartitionResponsePartitionData] = field(default_factory=list)


class AlterPartitionResponse(Response, api_key=56, versions=(2, 3), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: list[AlterPartitionResponseTopicData] = field(default_factory=list)


class AssignReplicasToDirsRequestPartitionData(Struct):
    partition_index: Int32 = 0


class AssignReplicasToDirsRequestTopicData(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[AssignReplicasToDirsRequestPartitionData] = field(default_factory=list)


class AssignReplicasToDirsRequestDirectoryData(Struct):
    id: Uuid = NO_UUID
    topics: list[AssignReplicasToDirsRequestTopicData] = field(default_factory=list)


class AssignReplicasToDirsRequest(Request, api_key=73, versions=(0, 0), flexible=0):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    directories: list[AssignReplicasToDirsRequestDirectoryData] = field(default_factory=list)


class AssignReplicasToDirsResponsePartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class AssignReplicasToDirsResponseTopicData(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[AssignReplicasToDirsResponsePartitionData] = field(default_factory=list)


class AssignReplicasToDirsResponseDirectoryData(Struct):
    id: Uuid = NO_UUID
    topics: list[AssignReplicasToDirsResponseTopicData] = field(default_factory=list)


class AssignReplicasToDirsResponse(Response, api_key=73, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    directories: list[AssignReplicasToDirsResponseDirectoryData] = field(default_factory=list)


class AllocateProducerIdsRequest(Request, api_key=67, versions=(0, 0), flexible=0):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1


class AllocateProducerIdsResponse(Response, api_key=67, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id_start: Int64 = 0
    producer_id_len: Int32 = 0


class EnvelopeRequest(Request, api_key=58, versions=(0, 0), flexible=0):
    request_data: Bytes = b""
    request_principal: Bytes | None = None
    client_host_address: Bytes = b""


class EnvelopeResponse(Response, api_key=58, versions=(0, 0), flexible=0):
    response_data: Bytes | None = None
    error_code: Int16 = 0


class DefaultPrincipalData(DataMessage, versions=(0, 0), flexible=0):
    type: String = ""
    name: String = ""
    token_authenticated: Bool = False
