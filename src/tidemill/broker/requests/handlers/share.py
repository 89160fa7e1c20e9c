"""ShareFetch (78) and ShareAcknowledge (79): records under locks, and what members say of them (KIP-932, 1206, 1222).

A ShareFetch may carry acknowledgements. They are announced before it fetches, and its response waits for both. Any
member id may open a session, as in Kafka: the group coordinator is not asked. A response has entries for partitions
with records, with an error, or with acknowledgements.

Versions, and what each one changed. Both acquire modes acquire at most `max_records` here.

    ShareFetch (78), from 1 (KIP-932)
       2  acquire mode (KIP-1206), renewals (KIP-1222)
    ShareAcknowledge (79), from 1 (KIP-932)
       2  renewals (KIP-1222)
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence

from tidemill.broker.net.network import Part
from tidemill.broker.net.request_order import Order
from tidemill.broker.requests.api_table import serves, serves_raw
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.fetching.replica_fetch import node_endpoints
from tidemill.broker.requests.security.access import Access, access_of
from tidemill.broker.share.fetching import DelayedShareFetch, SharedRecords, Wanted
from tidemill.broker.share.led_partition import LedSharePartition
from tidemill.broker.share.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    SessionKey,
    ShareSession,
    TopicIdPartition,
)
from tidemill.errors import ApiError, ErrorCode
from tidemill.log.files import FileSlice
from tidemill.protocol.api.share import (
    AcknowledgementBatch,
    AcknowledgeTopic,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    ShareAcknowledgePartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchRequest,
)
from tidemill.protocol.error_responses import error_response
from tidemill.protocol.schema import decode, encode
from tidemill.protocol.share_fetch import ShareFetched, pack_share_fetched
from tidemill.replication.share_messages import AcknowledgedBatch, AcknowledgeType
from tidemill.security.acls import Operation
from tidemill.types import TopicId

_RENEW_SINCE = 2
_MEMBER_ID_CHARACTERS_MAX = 36
_ELSEWHERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

# What became of a partition's acknowledgements; None when they are durable.
Outcomes = dict[TopicIdPartition, ApiError | None]


@serves_raw(
    ShareFetchRequest,
    order=Order.FETCH,
    gaps=[
        "A member over `consumer_byte_rate` gets its records and then waits; Kafka responds without records."
    ],
)
def share_fetch(broker: Broker, call: Call) -> None:
    request = decode(ShareFetchRequest, call.version, call.frame, call.header.body_position)
    call.expect_reply()
    try:
        key = _check(broker, call, request)
        _check_renewal(request)
        session = _session(broker, call, request, key)
    except ApiError as error:
        if error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            # As Kafka: a member that gets no session does not ask again at once.
            broker.loop.call_later(request.max_wait_ms / 1000, _refuse, call, request, error)
        else:
            _refuse(call, request, error)
        return
    broker.share.spawn(_ShareFetch(broker, call, request, key, session).serve())


def _refuse(call: Call, request: ShareFetchRequest, error: ApiError) -> None:
    if call.is_wanted:
        response = error_response(request, call.version, error.code, error.message)
        assert response is not None
        call.respond((encode(response, call.version),))


def _check(broker: Broker, call: Call, request: ShareFetchRequest | ShareAcknowledgeRequest) -> SessionKey:
    """Whose session it is, if the request may be made at all."""
    if request.group_id is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The request names no group.")
    access = access_of(broker, call.connection)
    if access is not None and not access.group(Operation.READ, request.group_id):
        raise ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not request.member_id or len(request.member_id) > _MEMBER_ID_CHARACTERS_MAX:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The member id is empty or too long.")
    return SessionKey(request.group_id, request.member_id)


def _check_renewal(request: ShareFetchRequest) -> None:
    """KIP-1222: a request that renews locks fetches nothing."""
    limits = (request.max_bytes, request.min_bytes, request.max_records, request.max_wait_ms)
    if request.is_renew_ack and any(limits):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "A request that renews locks must have no limits of a fetch."
        )


def _session(broker: Broker, call: Call, request: ShareFetchRequest, key: SessionKey) -> ShareSession | None:
    """The session after this request; None for the last one of a session, which fetches nothing."""
    sessions = broker.share.sessions
    partitions = [
        (TopicId(bytes(topic.topic_id)), each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    ]
    if request.share_session_epoch == FINAL_EPOCH:
        sessions.get(key)
        return None
    if request.share_session_epoch == INITIAL_EPOCH:
        if _has_acknowledgements(request):
            raise ApiError(ErrorCode.INVALID_REQUEST, "The first request of a session holds no locks.")
        return sessions.open(key, call.connection, partitions)
    session = sessions.go_on(key, request.share_session_epoch)
    session.partitions.update(dict.fromkeys(partitions))
    for topic in request.forgotten_topics_data:
        for index in topic.partitions:
            session.partitions.pop((TopicId(bytes(topic.topic_id)), index), None)
    return session


def _has_acknowledgements(request: ShareFetchRequest) -> bool:
    return any(each.acknowledgement_batches for topic in request.topics for each in topic.partitions)


class _ShareFetch:
    """One ShareFetch under way."""

    def __init__(
        self,
        broker: Broker,
        call: Call,
        request: ShareFetchRequest,
        key: SessionKey,
        session: ShareSession | None,
    ) -> None:
        self._broker = broker
        self._call = call
        self._request = request
        self._key = key
        self._session = session
        self._access = access_of(broker, call.connection)
        self._settings = broker.share.settings_of(key.group_id)
        self._errors: dict[TopicIdPartition, ApiError] = {}

    async def serve(self) -> None:
        request = self._request
        acknowledging: Awaitable[Outcomes] | None = None
        if _has_acknowledgements(request):
            acknowledging = _acknowledge(
                self._broker, self._access, self._key, request.topics, self._renews()
            )
        fetch = self._fetch()
        outcomes = await acknowledging if acknowledging is not None else {}
        records = [] if fetch is None else await fetch.result
        if request.share_session_epoch == FINAL_EPOCH:
            self._broker.share.sessions.end(self._key)
        if self._call.is_wanted:
            if fetch is not None:
                self._call.connection.close_callbacks.remove(fetch.abandon)
            self._respond(records, outcomes)

    def _renews(self) -> bool | None:
        return self._request.is_renew_ack if self._call.version >= _RENEW_SINCE else None

    def _fetch(self) -> DelayedShareFetch | None:
        request, broker = self._request, self._broker
        if self._session is None or request.is_renew_ack:
            return None
        sources: list[LedSharePartition] = []
        for partition in self._session.rotated():
            try:
                sources.append(self._source(partition))
            except ApiError as error:
                self._errors[partition] = error
        max_bytes = min(request.max_bytes, broker.config.fetch.fetch_max_bytes)
        if self._call.usage is not None:
            max_bytes = min(max_bytes, self._call.usage.fetch_bytes_max())
        wanted = Wanted(
            self._key.member_id,
            min(request.min_bytes, max_bytes),
            max_bytes,
            request.max_records,
            max(1, request.batch_size),
            # An error is answered at once.
            0 if self._errors else request.max_wait_ms,
        )
        if not sources:
            return None
        fetch = DelayedShareFetch(sources, wanted)
        self._call.connection.close_callbacks.append(fetch.abandon)
        fetch.start()
        return fetch

    def _source(self, partition: TopicIdPartition) -> LedSharePartition:
        topic_id, index = partition
        if topic_id not in self._broker.image.topics_by_id:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        if self._access is not None and not self._access.wire_topic(Operation.READ, topic_id):
            raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        share, group_id = self._broker.share, self._key.group_id
        known = share.find(group_id, topic_id, index)
        led = share.get(group_id, topic_id, index, self._settings)
        if led is known and self._request.share_session_epoch == INITIAL_EPOCH:
            led.session_began()
        return led

    # -- responding ------------------------------------------------------------------------------------------

    def _respond(self, records: Sequence[SharedRecords], outcomes: Outcomes) -> None:
        broker, call = self._broker, self._call
        entries: dict[TopicIdPartition, tuple[ShareFetched, Sequence[FileSlice | bytearray]]] = {}
        for found in records:
            key = found.source.key
            where = (key.topic_id, key.partition)
            if found.error is not None:
                self._errors[where] = found.error
                continue
            acquired = [
                (each.first_offset, each.end_offset - 1, each.delivery_count) for each in found.acquired
            ]
            entries[where] = ShareFetched(key.partition, acquired=acquired), found.parts
            found.source.partition.counts.bytes_out += sum(_length(part) for part in found.parts)
        leaders: dict[int, None] = {}
        for where, error in self._errors.items():
            fetched = ShareFetched(where[1], error.code, error.message)
            if error.code in _ELSEWHERE:
                fetched = fetched._replace(current_leader=broker.replicas.leader_of(where))
                leaders[fetched.current_leader[0]] = None
            entries[where] = fetched, ()
        for where, outcome in outcomes.items():
            fetched, parts = entries.get(where, (ShareFetched(where[1]), ()))
            if outcome is not None:
                fetched = fetched._replace(
                    acknowledge_error_code=outcome.code, acknowledge_error_message=outcome.message
                )
            entries[where] = fetched, parts
        size = sum(_length(part) for _, parts in entries.values() for part in parts)
        throttle_ms = 0 if call.usage is None else call.usage.shared(size)
        body: Sequence[Part] = pack_share_fetched(
            _by_topic(entries),
            call.version,
            acquisition_lock_timeout_ms=self._settings.limits.lock_duration_ms,
            throttle_time_ms=throttle_ms,
            node_endpoints=_endpoints(broker, call, leaders),
        )
        call.respond(body)


def _length(part: FileSlice | bytearray) -> int:
    return part.length if isinstance(part, FileSlice) else len(part)


def _by_topic(
    entries: Mapping[TopicIdPartition, tuple[ShareFetched, Sequence[FileSlice | bytearray]]],
) -> list[tuple[bytes, list[tuple[ShareFetched, Sequence[FileSlice | bytearray]]]]]:
    topics: dict[bytes, list[tuple[ShareFetched, Sequence[FileSlice | bytearray]]]] = {}
    for (topic_id, _), entry in entries.items():
        topics.setdefault(topic_id, []).append(entry)
    return list(topics.items())


def _endpoints(broker: Broker, call: Call, leaders: Mapping[int, None]) -> list[NodeEndpoint]:
    return [
        NodeEndpoint(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
        for each in (node_endpoints(broker, call, leaders) if leaders else ())
    ]


# -- acknowledging -------------------------------------------------------------------------------------------


@serves(ShareAcknowledgeRequest)
async def share_acknowledge(
    broker: Broker, call: Call, request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse:
    key = _check(broker, call, request)
    epoch, sessions = request.share_session_epoch, broker.share.sessions
    if epoch == INITIAL_EPOCH:
        raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    if epoch == FINAL_EPOCH:
        sessions.get(key)
    else:
        sessions.go_on(key, epoch)
    renews = request.is_renew_ack if call.version >= _RENEW_SINCE else None
    access = access_of(broker, call.connection)
    outcomes = await _acknowledge(broker, access, key, request.topics, renews)
    if epoch == FINAL_EPOCH:
        sessions.end(key)
    topics: dict[bytes, list[ShareAcknowledgePartitionData]] = {}
    leaders: dict[int, None] = {}
    for where, outcome in outcomes.items():
        entry = ShareAcknowledgePartitionData(partition_index=where[1])
        if outcome is not None:
            entry.error_code, entry.error_message = outcome.code, outcome.message
            if outcome.code in _ELSEWHERE:
                leader_id, leader_epoch = broker.replicas.leader_of(where)
                entry.current_leader = LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch)
                leaders[leader_id] = None
        topics.setdefault(where[0], []).append(entry)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=broker.share.settings_of(key.group_id).limits.lock_duration_ms,
        responses=[
            ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
        node_endpoints=_endpoints(broker, call, leaders),
    )


def _acknowledge(
    broker: Broker,
    access: Access | None,
    key: SessionKey,
    topics: Sequence[FetchTopic] | Sequence[AcknowledgeTopic],
    renews: bool | None,
) -> Awaitable[Outcomes]:
    """Announce the acknowledgements now; the outcomes come when they are durable.

    `renews` says whether locks may be renewed by this request; None where the version knows no renewals.
    """
    outcomes: Outcomes = {}
    pending: dict[TopicIdPartition, Awaitable[None]] = {}
    for topic in topics:
        topic_id = TopicId(bytes(topic.topic_id))
        for each in topic.partitions:
            where = (topic_id, each.partition_index)
            try:
                written = _announce(broker, access, key, where, each.acknowledgement_batches, renews)
            except ApiError as error:
                outcomes[where] = error
                continue
            outcomes[where] = None
            if written is not None:
                pending[where] = written
    return _settled(outcomes, pending)


async def _settled(outcomes: Outcomes, pending: Mapping[TopicIdPartition, Awaitable[None]]) -> Outcomes:
    for where, written in pending.items():
        try:
            await written
        except ApiError as error:
            outcomes[where] = error
    return outcomes


def _announce(
    broker: Broker,
    access: Access | None,
    key: SessionKey,
    where: TopicIdPartition,
    batches: Sequence[AcknowledgementBatch],
    renews: bool | None,
) -> Awaitable[None] | None:
    topic_id, index = where
    topic = broker.image.topics_by_id.get(topic_id)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
    _check_batches(batches, renews)
    if access is not None and not access.topic(Operation.READ, topic.name):
        raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if not 0 <= index < len(broker.image.partitions_of(topic)):
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not batches:
        return None
    led = broker.share.find(key.group_id, topic_id, index)
    if led is None:
        partition, _, _ = broker.replicas.find_readable(where)
        is_led = partition is not None and partition.is_leader
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_led else ErrorCode.NOT_LEADER_OR_FOLLOWER)
    acknowledged = [
        AcknowledgedBatch(each.first_offset, each.last_offset, each.acknowledge_types) for each in batches
    ]
    return led.acknowledge(key.member_id, acknowledged)


def _check_batches(batches: Sequence[AcknowledgementBatch], renews: bool | None) -> None:
    """As Kafka: the batches of a partition are in order, and each has one type, or one for each offset."""
    largest = AcknowledgeType.REJECT if renews is None else AcknowledgeType.RENEW
    last_offset = -1
    for batch in batches:
        types = batch.acknowledge_types
        if batch.first_offset > batch.last_offset or batch.first_offset < last_offset:
            raise ApiError(ErrorCode.INVALID_REQUEST, "The batches are not in the order of offsets.")
        if not types or (len(types) > 1 and len(types) != batch.last_offset - batch.first_offset + 1):
            raise ApiError(ErrorCode.INVALID_REQUEST, "A batch has one type, or one for each of its offsets.")
        if not all(0 <= each <= largest for each in types):
            raise ApiError(ErrorCode.INVALID_REQUEST, "There is no such type of acknowledgement.")
        if AcknowledgeType.RENEW in types and not renews:
            raise ApiError(ErrorCode.INVALID_REQUEST, "The request does not say that it renews locks.")
        last_offset = batch.last_offset
