"""Fetch (1): returns whole batches as slices of segment files, at once or when there are enough bytes.

A fetch that finds less than `min_bytes` is delayed (`delayed_fetch.py`): each of its partitions reports how much became
visible. It responds when that adds up to enough, or when `max_wait_ms` is over.

Partitions share `max_bytes` in the order of the session; those that returned data go to its end. The first batch of
a response is returned whole even when it is larger than every limit.

Consumers read from the leader, from version 11 on also from a follower, and always below the high watermark; those that
read committed transactions only below the last stable offset, with the list of aborted transactions that overlap what they
get. With a `replica.selector.class` that knows racks, the leader sends a consumer to an in-sync replica in its rack
(KIP-392). A fetch by a follower goes to `replica_fetch.py`, one of the metadata log to the quorum.

Versions: 7 adds sessions; 9 leader epochs; 11 racks; 12 is flexible and carries the diverging epoch; 13 names topics by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.net.request_order import Order
from tidemill.broker.partitions.delayed_operations import Grew, WireKey
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.requests.access import Access
from tidemill.broker.requests.delayed_fetch import Answer, respond_or_delay
from tidemill.broker.requests.dispatch import Call, Scope, serves_raw
from tidemill.broker.requests.fetch_sessions import (
    INITIAL_EPOCH,
    TOPIC_IDS_SINCE,
    CachedPartition,
    FetchSession,
    ReplicaSession,
    is_replica,
    replica_of,
)
from tidemill.broker.requests.node_proof import hosts_of_replica
from tidemill.broker.requests.quotas import RequestUsage
from tidemill.broker.requests.replica_fetch import ReplicaFetch, by_topic, leader_endpoints
from tidemill.errors import ErrorCode, StorageError
from tidemill.log.files import FileSlice
from tidemill.protocol.api.data import FetchPartition, FetchRequest
from tidemill.protocol.fetch import Fetched, pack_fetched
from tidemill.protocol.schema import decode
from tidemill.security.acls import Operation
from tidemill.types import BrokerId

if TYPE_CHECKING:
    from tidemill.broker.requests.context import Broker

_READ_COMMITTED = 1
_NO_EPOCH = -1
_FOLLOWERS_SERVE_SINCE = 11
_TOP_LEVEL_ERROR_SINCE = 7
_METADATA_TOPIC = "__cluster_metadata"
_METADATA_TOPIC_ID = bytes(15) + b"\1"
_RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@serves_raw(FetchRequest, order=Order.FETCH, scope=Scope.BOTH)
def fetch(broker: Broker, call: Call) -> None:
    request = decode(FetchRequest, call.version, call.frame, call.header.body_position)
    call.expect_reply()
    if broker.authorizer is not None and _is_refused(broker, call, request):
        return
    if _is_of_metadata(request):
        _claim_lane(broker, call, request)
        broker.quorum.fetch(call, request)
        return
    session = broker.fetch_sessions.resolve(request, call.version, broker.clock.now_ms())
    if isinstance(session, ErrorCode):
        call.respond(pack_fetched((), call.version, error_code=session))
        return
    if is_replica(request):
        _claim_lane(broker, call, request)
        if session is None:
            session = ReplicaSession(0, uses_ids=call.version >= TOPIC_IDS_SINCE)
            session.update(request)
        assert isinstance(session, ReplicaSession)
        broker.replicas.heard_from_follower(replica_of(request)[0])
        respond_or_delay(broker.loop, call, request, ReplicaFetch(broker, call, request, session))
    else:
        respond_or_delay(broker.loop, call, request, ConsumerFetch(broker, call, request, session))


def _is_refused(broker: Broker, call: Call, request: FetchRequest) -> bool:
    """Replicas need ClusterAction; as in Kafka, a refused one reads it at each partition. Consumers are checked later."""
    is_of_metadata = _is_of_metadata(request)
    if not (is_of_metadata or is_replica(request)):
        return False
    if Access(broker, call.connection).cluster(Operation.CLUSTER_ACTION):
        return False
    if is_of_metadata and call.version >= _TOP_LEVEL_ERROR_SINCE:
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        call.respond(pack_fetched((), call.version, error_code=code))
        return True
    answers: list[Answer] = [
        (
            (topic.topic_id if call.version >= TOPIC_IDS_SINCE else topic.topic, wanted.partition),
            Fetched(wanted.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            None,
        )
        for topic in request.topics
        for wanted in topic.partitions
    ]
    call.respond(pack_fetched(by_topic(answers), call.version))
    return True


def _claim_lane(broker: Broker, call: Call, request: FetchRequest) -> None:
    broker.lanes.claim(broker, call.connection, lambda: hosts_of_replica(broker, replica_of(request)[0]))


def _is_of_metadata(request: FetchRequest) -> bool:
    if len(request.topics) != 1:
        return False
    topic = request.topics[0]
    return topic.topic == _METADATA_TOPIC or topic.topic_id == _METADATA_TOPIC_ID


class ConsumerFetch:
    __slots__ = (
        "_access",
        "_broker",
        "_call",
        "_has_errors",
        "_reads_committed",
        "_request",
        "_session",
        "_waiting_on",
        "_wanted",
    )

    def __init__(
        self, broker: Broker, call: Call, request: FetchRequest, session: FetchSession | None
    ) -> None:
        self._broker = broker
        self._call = call
        self._request = request
        self._access = None if broker.authorizer is None else Access(broker, call.connection)
        self._session = session
        self._reads_committed = request.isolation_level == _READ_COMMITTED
        self._wanted: list[tuple[WireKey, FetchPartition, CachedPartition | None]]
        if session is not None:
            self._wanted = [(key, cached.wanted, cached) for key, cached in session.partitions.items()]
        else:
            by_id = call.version >= TOPIC_IDS_SINCE
            self._wanted = [
                ((topic.topic_id if by_id else topic.topic, wanted.partition), wanted, None)
                for topic in request.topics
                for wanted in topic.partitions
            ]
        self._has_errors = False
        self._waiting_on: list[Partition] = []

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self) -> tuple[list[Answer], int, bool]:
        """What every partition has now, how many bytes of records that is, and whether it cannot wait."""
        left = min(self._request.max_bytes, self._broker.config.fetch.fetch_max_bytes)
        if self._call.usage is not None:
            left = min(left, self._call.usage.fetch_bytes_max())
        found_bytes = 0
        is_urgent = False
        can_grow = False
        answers: list[Answer] = []
        access = self._access
        for key, wanted, _ in self._wanted:
            if access is not None and not access.wire_topic(Operation.READ, key[0]):
                is_urgent = self._has_errors = True
                answers.append((key, Fetched(wanted.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED), None))
                continue
            partition, error = self._broker.replicas.find(key)
            if partition is None:
                fetched = Fetched(wanted.partition, error, aborted=[])
                if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    self._has_errors = True
                    fetched = fetched._replace(current_leader=self._broker.replicas.leader_of(key))
                answers.append((key, fetched, None))
                continue
            can_grow = True
            fetched, records = self._read_partition(partition, wanted, left, at_least_one=found_bytes == 0)
            if records is not None:
                found_bytes += records.length
                left = max(0, left - records.length)
            if fetched.error_code:
                is_urgent = self._has_errors = True
                partition.counts.failed_fetch_requests += 1
            elif fetched.diverging is not None or fetched.preferred_read_replica >= 0:
                is_urgent = True
            answers.append((key, fetched, records))
        return answers, found_bytes, is_urgent or not can_grow

    def _read_partition(
        self, partition: Partition, wanted: FetchPartition, left: int, *, at_least_one: bool
    ) -> tuple[Fetched, FileSlice | None]:
        index, reader = wanted.partition, partition.reader
        partition.counts.fetch_requests += 1
        if reader.log is not None:
            is_leader = partition.leadership.machine is not None
            epoch = wanted.current_leader_epoch
            is_usual = is_leader and epoch in (_NO_EPOCH, partition.leader_epoch)
            error = ErrorCode.NONE if is_usual else self._check_leader(partition, epoch, is_leader)
            if error is ErrorCode.UNKNOWN_LEADER_EPOCH:
                return Fetched(index, error), None  # the client knows more than this broker
            if error:
                leader = (partition.leader_id, partition.leader_epoch)
                return Fetched(index, error, current_leader=leader), None
            if self._request.rack_id and is_leader:
                closest = self._closest_replica(partition, wanted.fetch_offset)
                if closest >= 0:
                    redirected = reader.without_records(index, reads_committed=self._reads_committed)
                    return redirected._replace(preferred_read_replica=closest), None
        max_bytes = min(wanted.partition_max_bytes, left)
        try:
            return reader.fetch(
                wanted, max_bytes, reads_committed=self._reads_committed, at_least_one=at_least_one
            )
        except StorageError as failure:
            self._broker.replicas.report_damage(partition, str(failure))
            return Fetched(index, ErrorCode.KAFKA_STORAGE_ERROR), None

    def _check_leader(self, partition: Partition, epoch: int, is_leader: bool) -> ErrorCode:
        error = partition.check_leader_epoch(epoch)
        if not error and not is_leader and self._call.version < _FOLLOWERS_SERVE_SINCE:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        # A leader ignores a negative epoch, which assumes none.
        return error if epoch >= 0 or not is_leader else ErrorCode.NONE

    def _closest_replica(self, partition: Partition, fetch_offset: int) -> int:
        """The in-sync replica in the consumer's rack that has the most of what it wants; -1 for the leader."""
        broker = self._broker
        leader = partition.leader
        if broker.config.replication.selector_class != _RACK_AWARE_SELECTOR or leader is None:
            return -1
        rack, brokers = self._request.rack_id, broker.image.brokers
        if broker.config.rack == rack:
            return -1
        candidates = [
            state
            for state in leader.followers.values()
            if state.broker_id in leader.isr
            and state.log_start_offset <= fetch_offset <= state.log_end_offset
            and (known := brokers.get(BrokerId(state.broker_id))) is not None
            and known.rack == rack
            and not known.is_fenced
        ]
        if not candidates:
            return -1
        return max(candidates, key=lambda s: (s.log_end_offset, s.caught_up_ms, -s.broker_id)).broker_id

    # -- waiting ---------------------------------------------------------------------------------------------

    def listen(self, grew: Grew) -> None:
        for key, _, _ in self._wanted:
            partition, _ = self._broker.replicas.find(key)
            if partition is not None:
                partition.reader.wait(grew, for_stable=self._reads_committed)
                self._waiting_on.append(partition)

    def stop_listening(self, grew: Grew) -> None:
        for partition in self._waiting_on:
            partition.reader.stop_waiting(grew)
        self._waiting_on = []

    def abandon(self) -> None:
        """A consumer's session outlives its connection."""

    # -- responding ------------------------------------------------------------------------------------------

    def respond(self, answers: list[Answer]) -> None:
        session = self._session
        session_id = 0
        if session is not None:
            session_id = session.id
            cached_of = session.partitions.get
            if self._request.session_epoch != INITIAL_EPOCH:
                answers = [
                    answer
                    for answer in answers
                    if (cached := cached_of(answer[0])) is None or cached.must_include(*answer[1:])
                ]
        if self._call.usage is not None and self._is_throttled(self._call.usage, answers):
            return
        for key, _, records in answers:
            if records is not None:
                partition, _ = self._broker.replicas.find(key)
                assert partition is not None, "it was read in this turn of the loop"
                partition.counts.bytes_out += records.length
        if session is not None:
            session.rotate([key for key, _, records in answers if records is not None and records.length])
            for key, fetched, _ in answers:
                cached = cached_of(key)
                if cached is not None:
                    cached.remember_sent(fetched)
        endpoints = leader_endpoints(self._broker, self._call, answers) if self._has_errors else ()
        self._call.respond(
            pack_fetched(
                by_topic(answers), self._call.version, session_id=session_id, node_endpoints=endpoints
            )
        )

    def _is_throttled(self, usage: RequestUsage, answers: list[Answer]) -> bool:
        """Whether the client is over its quota. It is answered then, without records (KIP-219)."""
        version, session = self._call.version, self._session
        parts = pack_fetched(by_topic(answers), version)
        throttle_ms = usage.fetched(
            sum(part.length if isinstance(part, FileSlice) else len(part) for part in parts)
        )
        if not throttle_ms:
            return False
        session_id = 0
        if session is not None and self._request.session_epoch == INITIAL_EPOCH:
            # The client begins again: an empty response to a full fetch opens no session.
            self._broker.fetch_sessions.close(session.id)
        elif session is not None:
            session_id = session.id
        self._call.respond(pack_fetched((), version, session_id=session_id, throttle_time_ms=throttle_ms))
        return True
