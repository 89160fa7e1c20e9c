"""The records of the metadata log: Kafka's own KRaft messages, and a whole image written as such records.

`encode_record` and `decode_record` frame one record as the value of a log record. `image_records` is what a
snapshot holds: replayed over an empty image, its records give the image again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized

from tidemill.controller.image import (
    BrokerImage,
    ControllerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tidemill.controller.security_image import security_records
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.metadata import (
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    ControllerEndpoint,
    ControllerFeature,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    decode_record,
    encode_record,
)
from tidemill.protocol.schema import DataMessage
from tidemill.types import TopicId

__all__ = [
    "Record",
    "broker_record",
    "check_record_count",
    "controller_record",
    "decode_record",
    "encode_record",
    "image_records",
    "partition_record",
]

Record = DataMessage

# As in Kafka: the records that one operation of a client may write.
RECORDS_PER_OPERATION_MAX = 10_000


def check_record_count(records: Sized) -> None:
    """Raise `ApiError` when an operation of a client would write too many records. Nothing of it is carried out."""
    if len(records) > RECORDS_PER_OPERATION_MAX:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            "Unable to perform excessively large batch operation."
            f" It would write {len(records)} records; {RECORDS_PER_OPERATION_MAX} are the most",
        )


def image_records(image: MetadataImage) -> Iterator[Record]:
    if image.cluster_id:
        yield NoOpRecord(cluster_id=image.cluster_id)
    for name, level in image.features.items():
        yield FeatureLevelRecord(name=name, feature_level=level)
    for controller in image.controllers.values():
        yield controller_record(controller)
    for broker in image.brokers.values():
        yield broker_record(broker)
    for topic in image.topics_by_id.values():
        yield from topic_records(topic)
    for resource, configs in image.configs.items():
        for name, value in configs.items():
            yield ConfigRecord(
                resource_type=resource.type, resource_name=resource.name, name=name, value=value
            )
    if image.next_producer_id:
        yield ProducerIdsRecord(next_producer_id=image.next_producer_id)
    yield from security_records(image.security)


def topic_records(topic: TopicImage) -> Iterator[Record]:
    yield TopicRecord(name=topic.name, topic_id=topic.id)
    for index, partition in enumerate(topic.partitions):
        yield partition_record(topic.id, index, partition)


def partition_record(topic_id: TopicId, index: int, partition: PartitionImage) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.elr) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )


def broker_record(broker: BrokerImage) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            BrokerEndpoint(
                name=name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security_protocol,
            )
            for name, endpoint in broker.endpoints.items()
        ],
        features=[
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in broker.features.items()
        ],
        rack=broker.rack,
        fenced=broker.is_fenced,
        in_controlled_shutdown=broker.is_in_controlled_shutdown,
        log_dirs=list(broker.log_dirs),
    )


def controller_record(controller: ControllerImage) -> RegisterControllerRecord:
    return RegisterControllerRecord(
        controller_id=controller.id,
        incarnation_id=controller.incarnation_id,
        end_points=[
            ControllerEndpoint(
                name=name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security_protocol,
            )
            for name, endpoint in controller.endpoints.items()
        ],
        features=[
            ControllerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in controller.features.items()
        ],
    )
