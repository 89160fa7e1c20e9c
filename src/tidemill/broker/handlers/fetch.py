"""Fetch (1): whole batches as slices of segment files, now or when there is enough.

A fetch that finds less than `min_bytes` is parked: it hears from each of its partitions how much became visible, and
answers when that adds up, or when `max_wait_ms` is over. It answers by reading again, so whatever happened in between
(a deletion, a new epoch) is seen.

Partitions share `max_bytes` in the order of the session; those that returned data go to its end. The first batch of
a response is returned whole even when it is larger than every limit.

Consumers read from the leader, from version 11 on also from a follower, and always below the high watermark. With a
`replica.selector.class` that knows racks, the leader sends a consumer to an in-sync replica in its rack (KIP-392). A fetch
by a follower goes to `replica_fetch.py`, one of the metadata log to the quorum.

Versions: 7 adds sessions; 9 leader epochs; 11 racks; 12 is flexible and carries the diverging epoch; 13 names topics by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.dispatch import Call, Scope, serves_raw
from tidemill.broker.partition import Partition
from tidemill.broker.replica_fetch import Answer, ReplicaFetch, by_topic, is_news, leader_endpoints
from tidemill.broker.sessions import CachedPartition, FetchSession, ReplicaSession, is_replica
from tidemill.broker.waiters import WireKey
from tidemill.errors import ErrorCode, StorageError
from tidemill.log.files import FileSlice
from tidemill.log.log import OffsetOutOfRange
from tidemill.protocol.api.data import FetchPartition, FetchRequest
from tidemill.protocol.fetch import Fetched, pack_fetched
from tidemill.protocol.schema import decode
from tidemill.types import BrokerId

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from tidemill.broker.context import Broker

_READ_COMMITTED = 1
_FOLLOWERS_SERVE_SINCE = 11
_METADATA_TOPIC = "__cluster_metadata"
_METADATA_TOPIC_ID = bytes(15) + b"\1"
_RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@serves_raw(FetchRequest, scope=Scope.BOTH)
def fetch(broker: Broker, call: Call) -> None:
    request = decode(FetchRequest, call.version, call.frame, call.header.body_position)
    call.expect_reply()
    if _is_of_metadata(request):
        broker.quorum.fetch(call, request)
        return
    session = broker.fetch_sessions.resolve(request, call.version, broker.clock.now_ms())
    if isinstance(session, ErrorCode):
        call.respond(pack_fetched((), call.version, error_code=session))
        return
    if is_replica(request):
        if session is None:
            session = ReplicaSession(0, uses_ids=call.version >= 13)
            session.update(request)
        assert isinstance(session, ReplicaSession)
        ReplicaFetch(broker, call, request, session).start()
    else:
        _Fetch(broker, call, request, session).start()


def _is_of_metadata(request: FetchRequest) -> bool:
    if len(request.topics) != 1:
        return False
    topic = request.topics[0]
    return topic.topic == _METADATA_TOPIC or topic.topic_id == _METADATA_TOPIC_ID


class _Fetch:
    __slots__ = (
        "_broker",
        "_call",
        "_has_errors",
        "_is_woken",
        "_missing_bytes",
        "_request",
        "_session",
        "_timer",
        "_waiting_on",
        "_wanted",
    )

    def __init__(
        self, broker: Broker, call: Call, request: FetchRequest, session: FetchSession | None
    ) -> None:
        self._broker = broker
        self._call = call
        self._request = request
        self._session = session
        self._wanted: list[tuple[WireKey, FetchPartition, CachedPartition | None]]
        if session is not None:
            self._wanted = [(key, cached.wanted, cached) for key, cached in session.partitions.items()]
        else:
            by_id = call.version >= 13
            self._wanted = [
                ((topic.topic_id if by_id else topic.topic, wanted.partition), wanted, None)
                for topic in request.topics
                for wanted in topic.partitions
            ]
        self._missing_bytes = 0
        self._has_errors = False
        self._is_woken = False
        self._timer: TimerHandle | None = None
        self._waiting_on: list[Partition] = []

    def start(self) -> None:
        answers, found_bytes, is_urgent = self._read()
        request = self._request
        if is_urgent or found_bytes >= request.min_bytes or request.max_wait_ms <= 0:
            self._answer(answers)
        else:
            self._park(request.min_bytes - found_bytes)

    # -- reading ---------------------------------------------------------------------------------------------

    def _read(self) -> tuple[list[Answer], int, bool]:
        """What every partition has now, how much that is, and whether it cannot wait."""
        left = min(self._request.max_bytes, self._broker.config.fetch.fetch_max_bytes)
        found_bytes = 0
        is_urgent = False
        can_grow = False
        answers: list[Answer] = []
        for key, wanted, _ in self._wanted:
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
            elif fetched.diverging is not None or fetched.preferred_read_replica >= 0:
                is_urgent = True
            answers.append((key, fetched, records))
        return answers, found_bytes, is_urgent or not can_grow

    def _read_partition(
        self, partition: Partition, wanted: FetchPartition, left: int, *, at_least_one: bool
    ) -> tuple[Fetched, FileSlice | None]:
        index, log = wanted.partition, partition.log
        if log is None:
            return Fetched(index, ErrorCode.KAFKA_STORAGE_ERROR), None
        error = partition.check_leader_epoch(wanted.current_leader_epoch)
        if not error and not partition.is_leader and self._call.version < _FOLLOWERS_SERVE_SINCE:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if error and (wanted.current_leader_epoch >= 0 or not partition.is_leader):
            if error is ErrorCode.UNKNOWN_LEADER_EPOCH:
                return Fetched(index, error), None  # the client knows more than this broker
            return Fetched(index, error, current_leader=(partition.leader_id, partition.leader_epoch)), None
        end_offset = partition.high_watermark
        fetched = Fetched(
            index,
            0,
            partition.high_watermark,
            end_offset,
            log.log_start_offset,
            [] if self._request.isolation_level == _READ_COMMITTED else None,
        )
        if self._request.rack_id and partition.is_leader:
            closest = self._closest_replica(partition, wanted.fetch_offset)
            if closest >= 0:
                return fetched._replace(preferred_read_replica=closest), None
        if wanted.last_fetched_epoch >= 0:
            epoch, epoch_end = log.epochs.end_offset_of(wanted.last_fetched_epoch, log.log_end_offset)
            if epoch < 0:
                return Fetched(index, ErrorCode.OFFSET_OUT_OF_RANGE), None
            if epoch < wanted.last_fetched_epoch or epoch_end < wanted.fetch_offset:
                return fetched._replace(diverging=(epoch, epoch_end)), None
        max_bytes = min(wanted.partition_max_bytes, left)
        try:
            records = log.read(wanted.fetch_offset, max_bytes, end_offset, at_least_one=at_least_one)
        except OffsetOutOfRange:
            return Fetched(index, ErrorCode.OFFSET_OUT_OF_RANGE), None
        except StorageError as failure:
            self._broker.replicas.report_damage(partition, str(failure))
            return Fetched(index, ErrorCode.KAFKA_STORAGE_ERROR), None
        return fetched, records

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

    def _park(self, missing_bytes: int) -> None:
        self._missing_bytes = missing_bytes
        for key, _, _ in self._wanted:
            partition, _ = self._broker.replicas.find(key)
            if partition is not None:
                partition.wait(self._grew)
                self._waiting_on.append(partition)
        self._timer = self._broker.loop.call_later(self._request.max_wait_ms / 1000, self._complete)
        self._call.connection.close_callbacks.append(self._unpark)

    def _grew(self, added_bytes: int) -> None:
        self._missing_bytes -= added_bytes
        if self._missing_bytes <= 0 and not self._is_woken:
            self._is_woken = True
            # Not at once: the producer's ack goes first, and what else arrives in this turn comes along.
            self._broker.loop.call_soon(self._complete)

    def _unpark(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._waiting_on:
            partition.stop_waiting(self._grew)
        self._waiting_on = []

    def _complete(self) -> None:
        if self._timer is None:
            return
        self._unpark()
        if self._call.is_wanted:
            self._call.connection.close_callbacks.remove(self._unpark)
            self._answer(self._read()[0])

    # -- answering -------------------------------------------------------------------------------------------

    def _answer(self, answers: list[Answer]) -> None:
        session = self._session
        session_id = 0
        if session is not None:
            session_id = session.id
            is_full = self._request.session_epoch == 0
            session.rotate([key for key, _, records in answers if records is not None and records.length])
            news = [answer for answer in answers if is_news(session.partitions.get(answer[0]), answer)]
            answers = answers if is_full else news
        endpoints = leader_endpoints(self._broker, self._call, answers) if self._has_errors else ()
        self._call.respond(
            pack_fetched(
                by_topic(answers), self._call.version, session_id=session_id, node_endpoints=endpoints
            )
        )
