"""Decisions about brokers: registration, heartbeats, leaving, producer ids.

A broker registers with a new incarnation each time it starts and gets a broker epoch, the offset of its
registration record. Requests with another epoch are stale. A newly registered broker is fenced: it leads
nothing and is in no ISR until a heartbeat shows that it has caught up with its own registration.

A registration carries the broker epoch that the last clean shutdown saved. If it is the epoch of the last
registration, the broker's logs are whole. Otherwise the broker first leaves every ISR and ELR (KIP-966). Replicas
in log directories that the registration does not list count as lost, even after a clean shutdown.

A controlled shutdown moves every leadership away. The broker may stop when all other brokers have the new metadata.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.controller.image import BrokerImage, ControllerImage, Endpoint, MetadataImage
from tidemill.controller.partitions.replication import Replication
from tidemill.controller.records import Record, controller_record
from tidemill.controller.sessions import Session, Sessions
from tidemill.errors import ApiError, ErrorCode
from tidemill.machine import Decision
from tidemill.protocol.api.brokers import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)
from tidemill.protocol.api.metadata import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from tidemill.protocol.api.replicas import UnregisterBrokerRequest, UnregisterBrokerResponse
from tidemill.types import BrokerId

PRODUCER_ID_BLOCK_LENGTH = 1000

_FENCED = 1
_UNFENCED = -1


def register_broker(
    replication: Replication, request: BrokerRegistrationRequest, next_offset: int, *, is_taken: bool
) -> Decision[Record, BrokerRegistrationResponse]:
    """Register a broker. `is_taken` means that another incarnation of it is alive."""
    image = replication.image
    _check_registration(image, request)
    registered = image.brokers.get(BrokerId(request.broker_id))
    if registered is not None and registered.incarnation_id == request.incarnation_id:
        return Decision([], BrokerRegistrationResponse(broker_epoch=registered.epoch))
    if registered is not None and is_taken:
        raise ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, f"Broker {registered.id} is alive")
    records = _take_leave(replication, request, registered)
    epoch = next_offset + len(records)
    records.append(_registration_record(request, epoch))
    return Decision(records, BrokerRegistrationResponse(broker_epoch=epoch))


def _check_registration(image: MetadataImage, request: BrokerRegistrationRequest) -> None:
    if request.cluster_id != image.cluster_id:
        raise ApiError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Broker {request.broker_id} belongs to cluster {request.cluster_id}, not to {image.cluster_id}",
        )
    if not request.listeners:
        raise ApiError(ErrorCode.INVALID_REGISTRATION, f"Broker {request.broker_id} has no listener")
    for feature in request.features:
        level = image.features.get(feature.name)
        if level is not None and not feature.min_supported_version <= level <= feature.max_supported_version:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Broker {request.broker_id} does not support {feature.name} {level}, only "
                f"{feature.min_supported_version} to {feature.max_supported_version}",
            )


def _take_leave(
    replication: Replication, request: BrokerRegistrationRequest, registered: BrokerImage | None
) -> list[Record]:
    """Returns the records that remove the broker's previous incarnation from ISRs and leaderships."""
    broker_id = BrokerId(request.broker_id)
    if registered is None:
        return replication.after_loss(broker_id, request.log_dirs)
    if request.previous_broker_epoch != registered.epoch:
        return replication.after_unclean_stop(broker_id, request.log_dirs)
    lost = replication.after_loss(broker_id, request.log_dirs)
    if registered.is_fenced:
        return lost
    # It was not fenced since it stopped. One call covers both changes: a decision must not change a partition twice.
    return (
        replication.after_unclean_stop(broker_id, request.log_dirs)
        if lost
        else replication.without(broker_id)
    )


def _registration_record(request: BrokerRegistrationRequest, epoch: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
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


def heartbeat(
    replication: Replication,
    sessions: Sessions,
    broker: BrokerImage,
    session: Session,
    request: BrokerHeartbeatRequest,
    next_offset: int,
) -> Decision[Record, BrokerHeartbeatResponse]:
    is_caught_up = request.current_metadata_offset >= broker.epoch
    wants_fence = request.want_fence or _has_no_directory(broker, request.offline_log_dirs)
    records: list[Record] = []
    is_fenced, should_shut_down = broker.is_fenced, False
    if broker.is_fenced:
        should_shut_down = request.want_shut_down
        # A broker that was allowed to stop does not return under the same registration; such a heartbeat is late.
        is_leaving = request.want_shut_down or broker.is_in_controlled_shutdown
        if not is_leaving and not wants_fence and is_caught_up:
            records, is_fenced = _unfence(replication, broker), False
    elif broker.is_in_controlled_shutdown or (request.want_shut_down and not wants_fence):
        records = _continue_shutdown(replication, broker, session, next_offset)
        if not records and _may_stop(replication.image, sessions, session, broker):
            records, is_fenced, should_shut_down = _let_go(replication, broker), True, True
    elif wants_fence:
        records, is_fenced, should_shut_down = _fence(replication, broker), True, request.want_shut_down
    records += _offline_directories(replication, broker, request.offline_log_dirs, records)
    reply = BrokerHeartbeatResponse(
        is_caught_up=is_caught_up, is_fenced=is_fenced, should_shut_down=should_shut_down
    )
    return Decision(records, reply)


def _continue_shutdown(
    replication: Replication, broker: BrokerImage, session: Session, next_offset: int
) -> list[Record]:
    """Returns the records that move the broker's leaderships away; none when no leadership is left."""
    records = replication.without(broker.id)
    leads = any(partition.leader == broker.id for _, _, partition in replication.partitions())
    if broker.is_in_controlled_shutdown:
        if session.shutdown_offset is None:
            session.shutdown_offset = next_offset - 1
    elif not leads:
        return []
    else:
        change = BrokerRegistrationChangeRecord(
            broker_id=broker.id, broker_epoch=broker.epoch, in_controlled_shutdown=1
        )
        records = [change, *records]
    if records:
        session.shutdown_offset = next_offset + len(records) - 1
    return records


def _may_stop(image: MetadataImage, sessions: Sessions, session: Session, broker: BrokerImage) -> bool:
    """Whether the other brokers have the metadata that moves the leaderships to them. A broker that led nothing may stop
    at once.
    """
    if not broker.is_in_controlled_shutdown or session.shutdown_offset is None:
        return True
    lowest = sessions.lowest_active_offset(image)
    return lowest is None or session.shutdown_offset <= lowest


def _has_no_directory(broker: BrokerImage, offline: Sequence[bytes]) -> bool:
    return bool(broker.log_dirs) and all(each in offline for each in broker.log_dirs)


def _offline_directories(
    replication: Replication, broker: BrokerImage, offline: Sequence[bytes], decided: Sequence[Record]
) -> list[Record]:
    failed = [each for each in broker.log_dirs if each in offline]
    # The changes of one decision may not build on each other. The next heartbeat names the directories again.
    if not failed or decided or broker.is_fenced:
        return []
    return [
        *replication.without_directories(broker, failed),
        BrokerRegistrationChangeRecord(
            broker_id=broker.id,
            broker_epoch=broker.epoch,
            log_dirs=[each for each in broker.log_dirs if each not in failed],
        ),
    ]


def fence_broker(replication: Replication, broker: BrokerImage) -> list[Record]:
    """The records that fence a broker; none when it is fenced."""
    return [] if broker.is_fenced else _fence(replication, broker)


def _fence(replication: Replication, broker: BrokerImage) -> list[Record]:
    return [
        *replication.without(broker.id),
        BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=_FENCED),
    ]


def _let_go(replication: Replication, broker: BrokerImage) -> list[Record]:
    return [
        *replication.without(broker.id),
        BrokerRegistrationChangeRecord(
            broker_id=broker.id, broker_epoch=broker.epoch, fenced=_FENCED, in_controlled_shutdown=1
        ),
    ]


def _unfence(replication: Replication, broker: BrokerImage) -> list[Record]:
    return [
        BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=_UNFENCED),
        *replication.with_unfenced(broker.id),
    ]


def unregister_broker(
    replication: Replication, request: UnregisterBrokerRequest
) -> Decision[Record, UnregisterBrokerResponse]:
    """Remove a broker for good. It leaves every ISR and ELR.

    Kafka also unregisters a broker that is alive, which then serves partitions that it no longer leads. Here that is
    refused.
    """
    broker = replication.image.brokers.get(BrokerId(request.broker_id))
    if broker is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {request.broker_id} is not registered")
    if not broker.is_fenced:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Broker {request.broker_id} is alive; stop it, and unregister it when it is fenced",
        )
    records = replication.after_unclean_stop(broker.id, ())
    records.append(UnregisterBrokerRecord(broker_id=broker.id, broker_epoch=broker.epoch))
    return Decision(records, UnregisterBrokerResponse())


def allocate_producer_ids(
    image: MetadataImage, request: AllocateProducerIdsRequest
) -> Decision[Record, AllocateProducerIdsResponse]:
    """Allocate a block of producer ids to one broker."""
    broker = image.broker_in_epoch(request.broker_id, request.broker_epoch)
    start = image.next_producer_id
    record = ProducerIdsRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, next_producer_id=start + PRODUCER_ID_BLOCK_LENGTH
    )
    reply = AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=PRODUCER_ID_BLOCK_LENGTH)
    return Decision([record], reply)


def register_controller(
    image: MetadataImage, request: ControllerRegistrationRequest
) -> Decision[Record, ControllerRegistrationResponse]:
    """Record where a controller listens (KIP-919). Only descriptions of the cluster use it."""
    controller = ControllerImage(
        id=request.controller_id,
        incarnation_id=request.incarnation_id,
        endpoints={
            each.name: Endpoint(each.host, each.port, each.security_protocol) for each in request.listeners
        },
        features={
            each.name: (each.min_supported_version, each.max_supported_version) for each in request.features
        },
    )
    is_known = image.controllers.get(controller.id) == controller
    records: list[Record] = [] if is_known else [controller_record(controller)]
    return Decision(records, ControllerRegistrationResponse())
