"""Fetch (1): returns whole batches as slices of segment files, at once or when there are enough bytes.

A fetch that finds less than `min_bytes` is delayed (`delayed_fetch.py`): each of its partitions reports how much became
visible. It responds when that adds up to enough, or when `max_wait_ms` is over.

Partitions share `max_bytes` in the order of the session; those that returned data go to its end. The first batch of
a response is returned whole even when it is larger than every limit.

Consumers read from the leader, from version 11 on also from a follower, and always below the high watermark. Those that
read committed transactions read below the last stable offset, and get the list of aborted transactions that overlap the
records. With a `replica.selector.class` that knows racks, the leader sends a consumer to an in-sync replica in its rack
(KIP-392). A fetch by a follower goes to `replica_fetch.py`, one of the metadata log to the quorum.

Versions, and what each one changed:

    Fetch (1), from 4 (KIP-98)
       5  log start offset (KIP-107)
       6  the error KAFKA_STORAGE_ERROR (KIP-112)
       7  sessions (KIP-227)
       8  a throttled client waits by itself (KIP-219)
       9  leader epochs (KIP-320)
      10  zstd (KIP-110)
      11  rack id and preferred read replica (KIP-392)
      12  flexible (KIP-482), last fetched epoch and diverging epoch (KIP-595)
      13  topic ids (KIP-516)
      14  the error OFFSET_MOVED_TO_TIERED_STORAGE (KIP-405)
      15  broker epoch of a follower (KIP-903)
      16  endpoints of current leaders (KIP-951)
      17  directory id of a follower (KIP-853)
      18  high watermark of a follower (KIP-1166)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

from tidemill.broker.net.network import Part
from tidemill.broker.net.request_order import Order
from tidemill.broker.partitions.delayed_operations import Grew, WireKey
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.partitions.views import View
from tidemill.broker.requests.api_table import Scope, serves_raw
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.fetch_sessions import (
    INITIAL_EPOCH,
    TOPIC_IDS_SINCE,
    CachedPartition,
    FetchSession,
    ReplicaSession,
    is_replica,
    replica_of,
)
from tidemill.broker.requests.fetching.delayed_fetch import Answer, respond_or_delay
from tidemill.broker.requests.fetching.filtered_fetch import FilteredFetch, flattened
from tidemill.broker.requests.fetching.replica_fetch import (
    ReplicaFetch,
    by_topic,
    leader_endpoints,
)
from tidemill.broker.requests.handlers.nodes import fetches_as_replica
from tidemill.broker.requests.quotas import RequestUsage
from tidemill.broker.requests.security.access import Access
from tidemill.broker.requests.security.node_hosts import hosts_of_replica
from tidemill.errors import ErrorCode, StorageError
from tidemill.internal_topics import METADATA_TOPIC, METADATA_TOPIC_ID
from tidemill.log.files import FileSlice
from tidemill.log.filtered_read import Filtered, FilteredRead, KnownRun, Restate, Select, Skipping, both
from tidemill.log.hidden_records import restate_recurring, run_without_waiting, select_shown, select_waiting
from tidemill.log.log import Log
from tidemill.protocol.api.data import FetchPartition, FetchRequest
from tidemill.protocol.fetch import Fetched, pack_fetched
from tidemill.protocol.isolation import READ_COMMITTED, READ_HIDDEN, READ_WAITING
from tidemill.protocol.schema import decode
from tidemill.protocol.steps import Steps
from tidemill.security.acls import Operation
from tidemill.types import BrokerId

_NO_EPOCH = -1
_FOLLOWERS_SERVE_SINCE = 11
_TOP_LEVEL_ERROR_SINCE = 7
_RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

Records = FileSlice | Filtered


@serves_raw(FetchRequest, order=Order.FETCH, scope=Scope.BOTH)
def fetch(broker: Broker, call: Call) -> None:
    request = decode(FetchRequest, call.version, call.frame, call.header.body_position)
    call.expect_reply()
    if broker.authorizer is not None and _is_refused(broker, call, request):
        return
    if _is_of_metadata(request):
        _claim_lane(broker, call, request)
        _fetch_metadata(broker, call, request)
        return
    session = broker.fetch_sessions.resolve(request, call.version, broker.replicas.steady_ms())
    if isinstance(session, ErrorCode):
        call.respond(pack_fetched((), call.version, error_code=session))
        return
    if is_replica(request):
        _claim_lane(broker, call, request)
        if session is None:
            session = ReplicaSession(
                0,
                uses_ids=call.version >= TOPIC_IDS_SINCE,
                used_ms=broker.replicas.steady_ms(),
                replica_id=replica_of(request)[0],
            )
            session.update(request)
        assert isinstance(session, ReplicaSession)
        respond_or_delay(broker.loop, call, request, ReplicaFetch(broker, call, request, session))
        return
    consumer = ConsumerFetch(broker, call, request, session)
    if broker.replicas.leaves_out_records and consumer.is_filtered():
        FilteredFetch(broker, call, request, consumer).start()
    else:
        respond_or_delay(broker.loop, call, request, consumer)


def _fetch_metadata(broker: Broker, call: Call, request: FetchRequest) -> None:
    """Serve a fetch of the metadata, as soon as it is known whether the connection is that of the replica it names."""
    proof = fetches_as_replica(broker, call.connection, replica_of(request)[0])
    if isinstance(proof, bool):
        broker.quorum.fetch(call, request, is_proven=proof)
        return

    def looked_up(lookup: asyncio.Task[bool]) -> None:
        if call.is_wanted and not lookup.cancelled():
            is_proven = lookup.exception() is None and lookup.result()
            broker.quorum.fetch(call, request, is_proven=is_proven)

    proof.add_done_callback(looked_up)


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
    answers: list[Answer[FileSlice]] = [
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
    broker.lanes.claim(call.connection, lambda: hosts_of_replica(broker, replica_of(request)[0]))


def _is_of_metadata(request: FetchRequest) -> bool:
    if len(request.topics) != 1:
        return False
    topic = request.topics[0]
    return topic.topic == METADATA_TOPIC or topic.topic_id == METADATA_TOPIC_ID


class ConsumerFetch:
    __slots__ = (
        "_access",
        "_broker",
        "_call",
        "_filtered",
        "_has_errors",
        "_reads_committed",
        "_request",
        "_sees_hidden",
        "_sees_waiting",
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
        self._reads_committed = request.isolation_level & ~(READ_HIDDEN | READ_WAITING) == READ_COMMITTED
        self._sees_hidden = request.isolation_level & ~READ_COMMITTED == READ_HIDDEN
        self._sees_waiting = request.isolation_level & ~READ_COMMITTED == READ_WAITING
        self._wanted: list[tuple[WireKey, FetchPartition, CachedPartition | None]]
        if session is not None:
            self._wanted = [(key, cached.wanted, cached) for key, cached in session.partitions.items()]
        else:
            by_id = call.version >= TOPIC_IDS_SINCE
            # As in Kafka, a partition is read once however often it is named, and the last position counts.
            named = {
                (topic.topic_id if by_id else topic.topic, wanted.partition): wanted
                for topic in request.topics
                for wanted in topic.partitions
            }
            self._wanted = [(key, wanted, None) for key, wanted in named.items()]
        self._has_errors = False
        # What was found in the partitions of views.
        self._filtered: dict[WireKey, FilteredRead] = {}
        self._waiting_on: list[Partition] = []

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self) -> tuple[list[Answer[Records]], int, bool]:
        """Reads every partition. Returns the answers, their bytes of records, and whether the response cannot wait."""
        left = self._response_bytes_max()
        found_bytes = 0
        is_urgent = False
        can_grow = False
        answers: list[Answer[Records]] = []
        access = self._access
        delaying = () if self._sees_hidden else self._broker.replicas.delaying
        for key, wanted, _ in self._wanted:
            if access is not None and not self._may_read(access, key[0]):
                is_urgent = self._has_errors = True
                answers.append((key, Fetched(wanted.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED), None))
                continue
            partition, error = self._broker.replicas.find(key)
            # A topic may be created while the fetch waits: what waits in it must not be shown either.
            is_filtered = delaying and key[0] in delaying
            if is_filtered or (error and error is ErrorCode.INVALID_TOPIC_EXCEPTION):
                is_filtered = True
                partition, _, error = self._broker.replicas.find_readable(key)
            if partition is None:
                fetched = Fetched(wanted.partition, error, aborted=[])
                if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    self._has_errors = True
                    fetched = fetched._replace(current_leader=self._broker.replicas.leader_of(key))
                answers.append((key, fetched, None))
                continue
            can_grow = True
            records: Records | None
            is_first = found_bytes == 0
            if is_filtered:
                fetched, records, found = self._read_filtered(partition, key, wanted, left, is_first=is_first)
            else:
                fetched, records = self._read_partition(partition, wanted, left, at_least_one=is_first)
                found = records.length if records is not None else 0
            found_bytes += found
            left = max(0, left - found)
            if fetched.error_code:
                is_urgent = self._has_errors = True
                partition.counts.failed_fetch_requests += 1
            elif fetched.diverging is not None or fetched.preferred_read_replica >= 0:
                is_urgent = True
            answers.append((key, fetched, records))
        return answers, found_bytes, is_urgent or not can_grow

    def _response_bytes_max(self) -> int:
        """Returns the bytes of records that all partitions share. One batch may exceed it, when it is the first."""
        bytes_max = min(self._request.max_bytes, self._broker.config.fetch.fetch_max_bytes)
        if self._call.usage is not None:
            bytes_max = min(bytes_max, self._call.usage.fetch_bytes_max())
        return bytes_max

    def _read_partition(
        self, partition: Partition, wanted: FetchPartition, left: int, *, at_least_one: bool
    ) -> tuple[Fetched, FileSlice | None]:
        index, reader = wanted.partition, partition.reader
        partition.counts.fetch_requests += 1
        if reader.log is not None:
            is_leader = partition.leadership.machine is not None
            epoch = wanted.current_leader_epoch
            if not is_leader or self._request.rack_id or epoch not in (_NO_EPOCH, partition.leader_epoch):
                turned_away = self._turned_away(partition, wanted, is_leader)
                if turned_away is not None:
                    return turned_away, None
        max_bytes = min(wanted.partition_max_bytes, left)
        try:
            return reader.fetch(
                wanted, max_bytes, reads_committed=self._reads_committed, at_least_one=at_least_one
            )
        except StorageError as failure:
            self._broker.replicas.report_damage(partition, str(failure))
            return Fetched(index, ErrorCode.KAFKA_STORAGE_ERROR), None

    def _turned_away(self, partition: Partition, wanted: FetchPartition, is_leader: bool) -> Fetched | None:
        """The answer for a client that has to ask another broker or has the wrong leader epoch."""
        index = wanted.partition
        error = self._check_leader(partition, wanted.current_leader_epoch, is_leader)
        if error is ErrorCode.UNKNOWN_LEADER_EPOCH:
            return Fetched(index, error)  # the client knows more than this broker
        if error:
            return Fetched(index, error, current_leader=(partition.leader_id, partition.leader_epoch))
        if self._request.rack_id and is_leader:
            closest = self._closest_replica(partition, wanted.fetch_offset)
            if closest >= 0:
                redirected = partition.reader.without_records(index, reads_committed=self._reads_committed)
                return redirected._replace(preferred_read_replica=closest)
        return None

    def _may_read(self, access: Access, topic: str | bytes) -> bool:
        sees_more = self._sees_hidden or self._sees_waiting
        if sees_more and not access.wire_topic(Operation.ALTER_CONFIGS, topic):
            return False
        return access.wire_topic(Operation.READ, topic)

    # -- views and delayed records ---------------------------------------------------------------------------

    def is_filtered(self) -> bool:
        replicas = self._broker.replicas
        delaying = () if self._sees_hidden else replicas.delaying
        return any(key[0] in replicas.views or key[0] in delaying for key, _, _ in self._wanted)

    def _select(self, view: View | None, partition: Partition, log: Log) -> Select | None:
        """Returns the filter of the partition's batches; None when all are shown, or when the delays are not known yet."""
        if self._sees_hidden or not partition.config.tidemill_delays_enable:
            return None if view is None else view.select
        shown: Select = select_shown
        if self._sees_waiting:
            state = partition.delivery.state_of(log)
            if state is None:
                return None
            shown = select_waiting(state)
        return shown if view is None else both(shown, view.select)

    def _restate(self, partition: Partition, log: Log) -> Restate | None:
        state = partition.delivery.state_of(log) if self._sees_waiting else None
        return None if state is None else restate_recurring(state)

    def _known_run(self, partition: Partition, log: Log) -> Callable[[int], KnownRun]:
        state = partition.delivery.state_of(log) if self._sees_waiting else None
        if state is not None:
            return partial(run_without_waiting, state)
        return partial(partition.delivery.known_run, log)

    def _read_filtered(
        self, partition: Partition, key: WireKey, wanted: FetchPartition, left: int, *, is_first: bool
    ) -> tuple[Fetched, Filtered | None, int]:
        """The answer, and how many bytes of records it has besides the empty batch at its end."""
        if partition.reader.log is not None:
            turned_away = self._turned_away(partition, wanted, partition.is_leader)
            if turned_away is not None:
                return turned_away, None, 0
        log = partition.reader.log
        if self._sees_waiting and log is not None and partition.delivery.state_of(log) is None:
            # A follower does not know what waits, nor does a leader that has not replayed its log yet.
            is_leader = partition.is_leader
            error = ErrorCode.LEADER_NOT_AVAILABLE if is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
            return Fetched(wanted.partition, error), None, 0
        read = self._filtered.get(key)
        if read is not None and read.has_failed:
            return Fetched(wanted.partition, ErrorCode.KAFKA_STORAGE_ERROR), None, 0
        if read is not None and read.length > left and not is_first:
            # Plain partitions before it need the room. It comes before them in the next fetch.
            read = None
        fetched, records = partition.reader.fetch_filtered(
            wanted, read, reads_committed=self._reads_committed
        )
        return fetched, records, read.length if read is not None and records is not None else 0

    def look_further(self, scan_bytes_max: int) -> Steps[tuple[int, bool]]:
        """Look through more of the views' sources. Returns the bytes, and whether there is still more."""
        scanned_bytes, has_more = 0, False
        bytes_max = self._response_bytes_max()
        found_bytes = sum(each.length for each in self._filtered.values())
        for key, wanted, _ in self._wanted:
            partition, view, _ = self._broker.replicas.find_readable(key)
            log = partition.log if partition is not None else None
            if partition is None or log is None:
                continue
            read = self._continued_read(key, wanted, partition, view, log)
            if read is None:
                continue
            others_bytes = found_bytes - read.length
            left = bytes_max - others_bytes
            if left <= 0 < others_bytes:
                continue
            read.limit(min(wanted.partition_max_bytes, left), takes_any_first=not others_bytes)
            records_before = read.scanned_records, read.shown_records
            try:
                scanned = yield from read.advance(self._end_offset(partition), scan_bytes_max - scanned_bytes)
                scanned_bytes += scanned
                if view is not None:
                    view.counts.view_bytes_scanned += scanned
                    view.counts.view_records_scanned += read.scanned_records - records_before[0]
                    view.counts.view_records_shown += read.shown_records - records_before[1]
            except StorageError as failure:
                read.has_failed = True
                self._broker.replicas.report_damage(partition, str(failure))
            else:
                has_more = has_more or read.has_more(self._end_offset(partition))
            found_bytes = others_bytes + read.length
        return scanned_bytes, has_more

    def _continued_read(
        self, key: WireKey, wanted: FetchPartition, partition: Partition, view: View | None, log: Log
    ) -> FilteredRead | None:
        """Returns the read of a partition so far, or a new one; None without a filter or with an offset out of range."""
        select = self._select(view, partition, log)
        if select is None or not log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset:
            return None
        read = self._filtered.get(key)
        if read is None or read.log is not log:
            (partition if view is None else view).counts.fetch_requests += 1
            tag_indexes = self._broker.replicas.tag_indexes
            read = self._filtered[key] = FilteredRead(
                log,
                wanted.fetch_offset,
                select,
                wanted.partition_max_bytes,
                partial(self._broker.replicas.report_undecodable, partition),
                None if view is None else Skipping(view.probe, tag_indexes, select is view.select),
                self._known_run(partition, log) if view is None else None,
                self._restate(partition, log),
            )
        return read

    def _end_offset(self, partition: Partition) -> int:
        end_offset = partition.last_stable_offset if self._reads_committed else partition.high_watermark
        if self._sees_waiting and partition.log is not None:
            state = partition.delivery.state_of(partition.log)
            # What waits is known up to there. It follows the log in a moment.
            end_offset = end_offset if state is None else min(end_offset, state.end_offset)
        return end_offset

    # -- leaders ---------------------------------------------------------------------------------------------

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
            partition, _, _ = self._broker.replicas.find_readable(key)
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

    def respond(self, answers: list[Answer[Records]]) -> None:
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
        if self._call.usage is not None:
            throttle_ms = self._charge(self._call.usage, answers)
            if throttle_ms:
                self._respond_throttled(throttle_ms)
                return
        for key, _, records in answers:
            if records is not None:
                partition, view, _ = self._broker.replicas.find_readable(key)
                assert partition is not None, "it was read in this turn of the loop"
                (partition if view is None else view).counts.bytes_out += records.length
        if session is not None:
            session.rotate([key for key, _, records in answers if records is not None and records.length])
            for key, fetched, _ in answers:
                cached = cached_of(key)
                if cached is not None:
                    cached.remember_sent(fetched)
        endpoints = leader_endpoints(self._broker, self._call, answers) if self._has_errors else ()
        parts = pack_fetched(
            by_topic(answers), self._call.version, session_id=session_id, node_endpoints=endpoints
        )
        self._call.respond(flattened(parts) if self._filtered else cast(list[Part], parts))

    def _charge(self, usage: RequestUsage, answers: list[Answer[Records]]) -> int:
        """Charges the response to the client's quota. Returns the throttle time, 0 within the quota."""
        parts = pack_fetched(by_topic(answers), self._call.version)
        return usage.fetched(sum(len(part) if isinstance(part, bytearray) else part.length for part in parts))

    def _respond_throttled(self, throttle_ms: int) -> None:
        """Responds without records to a client that is over its quota (KIP-219)."""
        session, session_id = self._session, 0
        if session is not None and self._request.session_epoch == INITIAL_EPOCH:
            # The client begins again: an empty response to a full fetch opens no session.
            self._broker.fetch_sessions.close(session.id)
        elif session is not None:
            session_id = session.id
        self._call.respond(
            pack_fetched((), self._call.version, session_id=session_id, throttle_time_ms=throttle_ms)
        )
