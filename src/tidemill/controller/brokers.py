"""Decisions about brokers: registration, heartbeats, fencing, and the leaders that change with them.

A broker registers with a new incarnation each time it starts and gets a broker epoch, the offset of its
registration record; requests with another epoch are from the past. A new registration is fenced: it leads
nothing and is in no ISR until a heartbeat shows that it has caught up. A fenced broker leaves every ISR that
has another member, and what it led is led by an in-sync replica, or by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tidemill.controller.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from tidemill.controller.records import Record
from tidemill.errors import ApiError, ErrorCode
from tidemill.machine import Decision
from tidemill.protocol.api.brokers import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from tidemill.protocol.api.metadata import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
)
from tidemill.types import NO_BROKER, BrokerId

PRODUCER_ID_BLOCK_LENGTH = 1000

_FENCED = 1
_UNFENCED = -1


def register_broker(
    image: MetadataImage, request: BrokerRegistrationRequest, *, has_live_session: bool
) -> Decision[Record, BrokerRegistrationResponse]:
    try:
        return _register_broker(image, request, has_live_session=has_live_session)
    except ApiError as error:
        return Decision([], BrokerRegistrationResponse(error_code=error.code))


def _register_broker(
    image: MetadataImage, request: BrokerRegistrationRequest, *, has_live_session: bool
) -> Decision[Record, BrokerRegistrationResponse]:
    if request.cluster_id != image.cluster_id:
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Broker {request.broker_id} belongs to cluster {request.cluster_id}, not to {image.cluster_id}",
        )
    if not request.listeners:
        raise ApiError(ErrorCode.INVALID_REGISTRATION, f"Broker {request.broker_id} has no listener")
    records: list[Record] = []
    registered = image.brokers.get(BrokerId(request.broker_id))
    if registered is not None:
        if registered.incarnation_id == request.incarnation_id:
            return Decision([], BrokerRegistrationResponse(broker_epoch=registered.epoch))
        if has_live_session and not registered.is_fenced:
            raise ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, f"Broker {registered.id} is alive")
        if not registered.is_fenced:
            records += _fence(image, registered)
    epoch = image.end_offset + len(records)
    records.append(
        RegisterBrokerRecord(
            broker_id=request.broker_id,
            incarnation_id=request.incarnation_id,
            broker_epoch=epoch,
            end_points=[
                BrokerEndpoint(
                    name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol
                )
                for each in request.listeners
            ],
            features=[
                BrokerFeature(
                    name=each.name,
                    min_supported_version=each.min_supported_version,
                    max_supported_version=each.max_supported_version,
                )
                for each in request.features
            ],
            rack=request.rack,
            fenced=True,
            log_dirs=list(request.log_dirs),
        )
    )
    return Decision(records, BrokerRegistrationResponse(broker_epoch=epoch))


def heartbeat(
    image: MetadataImage, request: BrokerHeartbeatRequest
) -> Decision[Record, BrokerHeartbeatResponse]:
    try:
        broker = check_broker_epoch(image, request.broker_id, request.broker_epoch)
    except ApiError as error:
        return Decision([], BrokerHeartbeatResponse(error_code=error.code))
    is_caught_up = request.current_metadata_offset >= broker.epoch
    if broker.is_fenced:
        if request.want_shut_down:
            return Decision([], _state(is_caught_up, is_fenced=True, should_shut_down=True))
        if request.want_fence or not is_caught_up:
            return Decision([], _state(is_caught_up, is_fenced=True))
        return Decision(_unfence(image, broker), _state(is_caught_up, is_fenced=False))
    if request.want_shut_down:
        return _controlled_shutdown(image, broker, is_caught_up=is_caught_up)
    if request.want_fence:
        return Decision(_fence(image, broker), _state(is_caught_up, is_fenced=True))
    return Decision([], _state(is_caught_up, is_fenced=False))


def _state(is_caught_up: bool, *, is_fenced: bool, should_shut_down: bool = False) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(
        is_caught_up=is_caught_up, is_fenced=is_fenced, should_shut_down=should_shut_down
    )


def _controlled_shutdown(
    image: MetadataImage, broker: BrokerImage, *, is_caught_up: bool
) -> Decision[Record, BrokerHeartbeatResponse]:
    """First its leaderships move; a later heartbeat, when none is left, lets it go."""
    if any(partition.leader == broker.id for _, _, partition in _partitions(image)):
        records = _without(image, broker)
        if not broker.is_in_controlled_shutdown:
            records.append(
                BrokerRegistrationChangeRecord(
                    broker_id=broker.id, broker_epoch=broker.epoch, in_controlled_shutdown=1
                )
            )
        return Decision(records, _state(is_caught_up, is_fenced=False))
    return Decision(_fence(image, broker), _state(is_caught_up, is_fenced=True, should_shut_down=True))


def check_broker_epoch(image: MetadataImage, broker_id: int, epoch: int) -> BrokerImage:
    broker = image.brokers.get(BrokerId(broker_id))
    if broker is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {broker_id} is not registered")
    if broker.epoch != epoch:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} has epoch {broker.epoch}, not {epoch}"
        )
    return broker


def fence_broker(image: MetadataImage, broker_id: BrokerId) -> list[Record]:
    """The records that fence a broker; none when it is fenced or gone."""
    broker = image.brokers.get(broker_id)
    return [] if broker is None or broker.is_fenced else _fence(image, broker)


def _fence(image: MetadataImage, broker: BrokerImage) -> list[Record]:
    return [
        *_without(image, broker),
        BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=_FENCED),
    ]


def _unfence(image: MetadataImage, broker: BrokerImage) -> list[Record]:
    """Also gives it the partitions that have no leader and in whose ISR it still is."""
    return [
        BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=_UNFENCED),
        *(
            PartitionChangeRecord(topic_id=topic.id, partition_id=index, leader=broker.id)
            for topic, index, partition in _partitions(image)
            if not partition.has_leader and broker.id in partition.isr
        ),
    ]


def _without(image: MetadataImage, broker: BrokerImage) -> list[Record]:
    """What changes when the broker may no longer lead or be in sync."""

    def may_lead(replica: BrokerId) -> bool:
        return replica != broker.id and replica in image.brokers and image.brokers[replica].is_active

    return [
        _change_without(topic, index, partition, broker.id, may_lead)
        for topic, index, partition in _partitions(image)
        if partition.leader == broker.id or (broker.id in partition.isr and len(partition.isr) > 1)
    ]


def _change_without(
    topic: TopicImage,
    index: int,
    partition: PartitionImage,
    broker_id: BrokerId,
    may_lead: Callable[[BrokerId], bool],
) -> PartitionChangeRecord:
    # The last member stays in the ISR: it alone is known to have every committed record.
    isr = [replica for replica in partition.isr if replica != broker_id] or list(partition.isr)
    record = PartitionChangeRecord(topic_id=topic.id, partition_id=index)
    if tuple(isr) != partition.isr:
        record.isr = [*isr]
    if partition.leader == broker_id:
        record.leader = next(
            (replica for replica in partition.replicas if replica in isr and may_lead(replica)), NO_BROKER
        )
    return record


def _partitions(image: MetadataImage) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    for topic in image.topics_by_id.values():
        for index, partition in enumerate(topic.partitions):
            yield topic, index, partition


def allocate_producer_ids(
    image: MetadataImage, request: AllocateProducerIdsRequest
) -> Decision[Record, AllocateProducerIdsResponse]:
    """A block of ids that nobody else gets."""
    try:
        broker = check_broker_epoch(image, request.broker_id, request.broker_epoch)
    except ApiError as error:
        return Decision([], AllocateProducerIdsResponse(error_code=error.code))
    start = image.next_producer_id
    record = ProducerIdsRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, next_producer_id=start + PRODUCER_ID_BLOCK_LENGTH
    )
    reply = AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=PRODUCER_ID_BLOCK_LENGTH)
    return Decision([record], reply)
