"""The records of the metadata log, in the formats of Kafka's own KRaft log.

A record's value is framed with three unsigned varints, frame version 1, API key and version, followed by
the message. `encode_record` and `decode_record` do that. A change of state that is null, -1 or -2 by
default means "unchanged"; each field says which.
"""

from __future__ import annotations

from typing import Annotated

from tidemill.errors import ProtocolError
from tidemill.protocol.schema import (
    NO_UUID,
    Bool,
    Bytes,
    DataMessage,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Since,
    String,
    Struct,
    Tag,
    UInt16,
    Uuid,
    decode_exact,
    encode_into,
    field,
)
from tidemill.protocol.wire import Buffer, read_uvarint, write_uvarint


class BrokerEndpoint(Struct):
    name: String = ""
    host: String = ""
    port: UInt16 = 0
    security_protocol: Int16 = 0


class BrokerFeature(Struct):
    name: String = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


class RegisterBrokerRecord(DataMessage, api_key=0, versions=(0, 4), flexible=0):
    broker_id: Int32 = 0
    is_migrating_zk_broker: Annotated[Bool, Since(2)] = False
    incarnation_id: Uuid = NO_UUID
    # The offset of this record in the metadata log.
    broker_epoch: Int64 = 0
    end_points: list[BrokerEndpoint] = field(default_factory=list)
    features: list[BrokerFeature] = field(default_factory=list)
    rack: String | None = None
    fenced: Bool = True
    in_controlled_shutdown: Annotated[Bool, Since(1)] = False
    log_dirs: Annotated[list[Uuid], Since(3), Tag(0)] = field(default_factory=list)
    cordoned_log_dirs: Annotated[list[Uuid] | None, Since(4), Tag(1)] = None


class UnregisterBrokerRecord(DataMessage, api_key=1, versions=(0, 0), flexible=0):
    broker_id: Int32 = 0
    broker_epoch: Int64 = 0


class BrokerRegistrationChangeRecord(DataMessage, api_key=17, versions=(0, 3), flexible=0):
    broker_id: Int32 = 0
    broker_epoch: Int64 = 0
    # -1 unfenced, 0 unchanged, 1 fenced.
    fenced: Annotated[Int8, Tag(0)] = 0
    # 0 unchanged, 1 shutting down.
    in_controlled_shutdown: Annotated[Int8, Since(1), Tag(1)] = 0
    log_dirs: Annotated[list[Uuid], Since(2), Tag(2)] = field(default_factory=list)
    cordoned_log_dirs: Annotated[list[Uuid] | None, Since(3), Tag(3)] = None


class FenceBrokerRecord(DataMessage, api_key=7, versions=(0, 0), flexible=0):
    id: Int32 = 0
    epoch: Int64 = 0


class UnfenceBrokerRecord(DataMessage, api_key=8, versions=(0, 0), flexible=0):
    id: Int32 = 0
    epoch: Int64 = 0


class ControllerEndpoint(Struct):
    name: String = ""
    host: String = ""
    port: UInt16 = 0
    security_protocol: Int16 = 0


class ControllerFeature(Struct):
    name: String = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


class RegisterControllerRecord(DataMessage, api_key=27, versions=(0, 0), flexible=0):
    controller_id: Int32 = 0
    incarnation_id: Uuid = NO_UUID
    zk_migration_ready: Bool = False
    end_points: list[ControllerEndpoint] = field(default_factory=list)
    features: list[ControllerFeature] = field(default_factory=list)


class TopicRecord(DataMessage, api_key=2, versions=(0, 0), flexible=0):
    name: String = ""
    topic_id: Uuid = NO_UUID


class RemoveTopicRecord(DataMessage, api_key=9, versions=(0, 0), flexible=0):
    topic_id: Uuid = NO_UUID


class PartitionRecord(DataMessage, api_key=3, versions=(0, 2), flexible=0):
    partition_id: Int32 = -1
    topic_id: Uuid = NO_UUID
    replicas: list[Int32] = field(default_factory=list)
    isr: list[Int32] = field(default_factory=list)
    removing_replicas: list[Int32] = field(default_factory=list)
    adding_replicas: list[Int32] = field(default_factory=list)
    leader: Int32 = -1
    leader_recovery_state: Annotated[Int8, Tag(0)] = 0
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: Annotated[list[Uuid], Since(1)] = field(default_factory=list)
    eligible_leader_replicas: Annotated[list[Int32] | None, Since(2), Tag(1)] = None
    last_known_elr: Annotated[list[Int32] | None, Since(2), Tag(2)] = None


class PartitionChangeRecord(DataMessage, api_key=5, versions=(0, 2), flexible=0):
    partition_id: Int32 = -1
    topic_id: Uuid = NO_UUID
    # Null, here and below: unchanged.
    isr: Annotated[list[Int32] | None, Tag(0)] = None
    # -2: unchanged.
    leader: Annotated[Int32, Tag(1)] = -2
    replicas: Annotated[list[Int32] | None, Tag(2)] = None
    removing_replicas: Annotated[list[Int32] | None, Tag(3)] = None
    adding_replicas: Annotated[list[Int32] | None, Tag(4)] = None
    # -1: unchanged.
    leader_recovery_state: Annotated[Int8, Tag(5)] = -1
    directories: Annotated[list[Uuid] | None, Since(1), Tag(8)] = None
    eligible_leader_replicas: Annotated[list[Int32] | None, Since(2), Tag(6)] = None
    last_known_elr: Annotated[list[Int32] | None, Since(2), Tag(7)] = None


class ClearElrRecord(DataMessage, api_key=28, versions=(0, 0), flexible=0):
    topic_name: String = ""


class ConfigRecord(DataMessage, api_key=4, versions=(0, 0), flexible=0):
    resource_type: Int8 = 0
    resource_name: String = ""
    name: String = ""
    # Null removes the key.
    value: String | None = None


class FeatureLevelRecord(DataMessage, api_key=12, versions=(0, 0), flexible=0):
    name: String = ""
    # 0 removes the feature.
    feature_level: Int16 = 0


class ProducerIdsRecord(DataMessage, api_key=15, versions=(0, 0), flexible=0):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    # The first id that is not handed out yet.
    next_producer_id: Int64 = 0


class EntityData(Struct):
    entity_type: String = ""
    entity_name: String | None = None


class ClientQuotaRecord(DataMessage, api_key=14, versions=(0, 0), flexible=0):
    entity: list[EntityData] = field(default_factory=list)
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


class AccessControlEntryRecord(DataMessage, api_key=18, versions=(0, 0), flexible=0):
    id: Uuid = NO_UUID
    resource_type: Int8 = 0
    resource_name: String = ""
    pattern_type: Int8 = 0
    principal: String = ""
    host: String = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class RemoveAccessControlEntryRecord(DataMessage, api_key=19, versions=(0, 0), flexible=0):
    id: Uuid = NO_UUID


class UserScramCredentialRecord(DataMessage, api_key=11, versions=(0, 0), flexible=0):
    name: String = ""
    mechanism: Int8 = 0
    salt: Bytes = b""
    stored_key: Bytes = b""
    server_key: Bytes = b""
    iterations: Int32 = 0


class RemoveUserScramCredentialRecord(DataMessage, api_key=22, versions=(0, 0), flexible=0):
    name: String = ""
    mechanism: Int8 = 0


class DelegationTokenRecord(DataMessage, api_key=10, versions=(0, 0), flexible=0):
    owner: String = ""
    requester: String = ""
    renewers: list[String] = field(default_factory=list)
    issue_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    expiration_timestamp: Int64 = 0
    token_id: String = ""


class RemoveDelegationTokenRecord(DataMessage, api_key=26, versions=(0, 0), flexible=0):
    token_id: String = ""


class BeginTransactionRecord(DataMessage, api_key=23, versions=(0, 0), flexible=0):
    name: Annotated[String | None, Tag(0)] = None


class EndTransactionRecord(DataMessage, api_key=24, versions=(0, 0), flexible=0):
    pass


class AbortTransactionRecord(DataMessage, api_key=25, versions=(0, 0), flexible=0):
    reason: Annotated[String | None, Tag(0)] = None


class NoOpRecord(DataMessage, api_key=20, versions=(0, 0), flexible=0):
    """Kafka's record that changes nothing. As the first record of a cluster it has the cluster's id.

    No disk is formatted with an id, the quorum agrees on it. Kafka's tools skip a tagged field that they do not know.
    """

    cluster_id: Annotated[String | None, Tag(20_000)] = None


class ClusterIdRecord(DataMessage, api_key=20_000, versions=(0, 0), flexible=0):
    """A former record of the cluster id: read from old logs and snapshots, never written. Kafka's tools reject it."""

    cluster_id: String = ""


_FRAME_VERSION = 1

# A tuple, not a search through subclasses: what the log may hold is part of the format.
_RECORD_TYPES: tuple[type[DataMessage], ...] = (
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
    BrokerRegistrationChangeRecord,
    FenceBrokerRecord,
    UnfenceBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    RemoveTopicRecord,
    PartitionRecord,
    PartitionChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
    ClientQuotaRecord,
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    UserScramCredentialRecord,
    RemoveUserScramCredentialRecord,
    DelegationTokenRecord,
    RemoveDelegationTokenRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    AbortTransactionRecord,
    NoOpRecord,
    ClusterIdRecord,
)
RECORDS: dict[int, type[DataMessage]] = {record_type.api_key: record_type for record_type in _RECORD_TYPES}


def encode_record(record: DataMessage, version: int | None = None) -> bytes:
    """Returns the framed record, in its newest version by default."""
    if version is None:
        version = record.versions.max
    out = bytearray()
    for number in (_FRAME_VERSION, record.api_key, version):
        write_uvarint(out, number)
    encode_into(record, version, out)
    return bytes(out)


def decode_record(value: Buffer) -> DataMessage:
    frame_version, position = read_uvarint(value, 0)
    if frame_version != _FRAME_VERSION:
        raise ProtocolError(
            f"metadata record in frame version {frame_version}, only {_FRAME_VERSION} is known"
        )
    api_key, position = read_uvarint(value, position)
    version, position = read_uvarint(value, position)
    record_type = RECORDS.get(api_key)
    if record_type is None:
        raise ProtocolError(f"metadata record of unknown type {api_key}")
    return decode_exact(record_type, version, value, position)
