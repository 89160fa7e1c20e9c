"""Produce (0): the hot path.

The request is walked in place; each partition's batch goes to `Appender.append` as a view of the frame. When every
partition succeeded without waiting, the response is packed directly, otherwise it is built as a message. With `acks=all`
the response waits until the high watermark has passed the batch, or fails when this broker stops leading.

A batch whose many records must be inspected is appended a little later (`Appender.append_later`). Later batches of its
partition are appended behind it. With `acks=0`, too, the request has its place in the queue until then, and fills it with
nothing: what comes behind it on the connection sees its records.

A transactional producer's batches continue a transaction that is open in their partitions, or wait until its coordinator
has verified it (KIP-890). Produce requests of a connection do not wait for each other's responses: later batches of the
same producer for the same partition wait behind.

Versions, and what each one changed. ApiVersions lists 0–13, as Kafka does: librdkafka takes a broker without 0–2 for one
without compression.

    Produce (0), from 3 (KIP-98)
       4  the error KAFKA_STORAGE_ERROR (KIP-112)
       5  log start offset
       6  a throttled client waits by itself (KIP-219)
       7  zstd (KIP-110)
       8  record errors (KIP-467)
       9  flexible (KIP-482)
      10  current leader and its endpoint (KIP-951)
      11  the error TRANSACTION_ABORTABLE (KIP-890)
      12  the broker adds partitions to the transaction (KIP-890)
      13  topic ids (KIP-516)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from tidemill.broker.net.request_order import Order
from tidemill.broker.partitions.appending.former_partition import FormerPartition
from tidemill.broker.partitions.appending.guards import Guard
from tidemill.broker.partitions.delayed_operations import Waiter
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.requests.api_table import serves_raw
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.fetching.replica_fetch import node_endpoints
from tidemill.broker.requests.node_proof import is_authenticated_node
from tidemill.broker.requests.security.access import Access
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidemill.protocol.produce import ProduceResult, ProduceWalk, pack_produced, walk_produce
from tidemill.protocol.records import HEADER_SIZE, BatchHeader, header_at
from tidemill.protocol.schema import encode
from tidemill.protocol.steps import NotAtOnce
from tidemill.security.acls import Operation
from tidemill.types import TopicPartition

_ZSTD_SINCE = 7
_NAMES_LEADERS_SINCE = 10
# Clients of these versions know TRANSACTION_ABORTABLE, and leave it to the broker to add their partitions (KIP-890).
_ABORTABLE_SINCE = 11
_ADDS_PARTITIONS_SINCE = 12
_TOPIC_IDS_SINCE = 13
_COORDINATOR_AWAY = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
_NOT_YET = ProduceResult(-1, ErrorCode.REQUEST_TIMED_OUT)

Results = list[tuple[bytes, list[ProduceResult]]]


@serves_raw(ProduceRequest, order=Order.PRODUCE, advertised=(0, 13))
def produce(broker: Broker, call: Call) -> None:
    walk = walk_produce(call.frame, call.header.body_position, call.version)
    acks = walk.acks
    if acks not in (-1, 0, 1):
        call.expect_reply()
        _refuse_all(call, walk, ErrorCode.INVALID_REQUIRED_ACKS)
        return
    if acks:
        call.expect_reply()
    if call.usage is not None:
        call.usage.produced(len(call.frame))
    results: Results = []
    if broker.authorizer is not None:
        if not _may_use_transaction(broker, call, walk):
            _refuse_all(call, walk, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            return
        walk, results = _without_denied(broker, call, walk)
    if walk.transactional_id is not None:
        if not acks:
            call.expect_reply()
        TransactionalProduce(broker, call, walk, walk.transactional_id, results).start()
        return
    frame, version = call.frame, call.version
    topics = broker.replicas.by_wire_id if version >= _TOPIC_IDS_SINCE else broker.replicas.by_wire_name
    wall_ms = broker.clock.wall_ms()
    unsettled: list[Unsettled] = []
    later: list[tuple[Unsettled, memoryview]] = []
    all_good = not results
    for wire_name, partitions in walk.topics:
        hosted = topics.get(wire_name)
        topic_results: list[ProduceResult] = []
        for index, start, end in partitions:
            partition = hosted.get(index) if hosted is not None else None
            former = _former(broker, version, wire_name, index) if partition is None and start >= 0 else None
            if former is not None:
                result = _NOT_YET._replace(partition=index)
                place = Unsettled(former, topic_results, len(topic_results))
                later.append((place, memoryview(bytearray(frame[start:end]))))
            elif partition is None or start < 0:
                batch = frame[start:end] if start >= 0 else None
                result = _unappendable(broker, version, (wire_name, index), partition, batch)
            else:
                try:
                    result = partition.appender.append(
                        frame[start:end], acks, wall_ms, allows_zstd=version >= _ZSTD_SINCE
                    )
                except NotAtOnce:
                    result = _NOT_YET._replace(partition=index)
                    place = Unsettled(partition, topic_results, len(topic_results))
                    # The frame is overwritten by what arrives next.
                    later.append((place, memoryview(bytearray(frame[start:end]))))
                if result.sync_to is not None or result.commit_to is not None:
                    unsettled.append(Unsettled(partition, topic_results, len(topic_results)))
            if result.error:
                all_good = False
            topic_results.append(result)
        if topic_results:
            results.append((wire_name, topic_results))
        if hosted is not None:
            hosted.counts.produce_requests += len(partitions)
    if unsettled or later:
        if not acks:
            call.expect_reply()
        DelayedProduce(broker, call, acks, results, unsettled, walk.timeout_ms, later)
    else:
        _answer(broker, call, acks, results, all_good)


def _may_use_transaction(broker: Broker, call: Call, walk: ProduceWalk) -> bool:
    """As Kafka: transactional batches need a transactional id with Write; an id alone needs nothing."""
    frame = call.frame
    is_transactional = any(
        start >= 0 and _has_transactional_flag(frame[start:end])
        for _, partitions in walk.topics
        for _, start, end in partitions
    )
    if not is_transactional:
        return True
    if walk.transactional_id is None:
        return False
    return Access(broker, call.connection).transactional_id(Operation.WRITE, walk.transactional_id)


def _has_transactional_flag(batch: memoryview) -> bool:
    return len(batch) >= HEADER_SIZE and header_at(batch).is_transactional


def _without_denied(broker: Broker, call: Call, walk: ProduceWalk) -> tuple[ProduceWalk, Results]:
    """Returns the topics that the client may write to, and the results of those that it may not."""
    access = Access(broker, call.connection)
    allowed = []
    denied: Results = []
    for topic in walk.topics:
        wire_name, partitions = topic
        key = bytes(wire_name) if call.version >= _TOPIC_IDS_SINCE else wire_name.decode(errors="replace")
        if access.wire_topic(Operation.WRITE, key):
            allowed.append(topic)
        elif partitions:
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            denied.append((wire_name, [ProduceResult(index, code) for index, _, _ in partitions]))
    return walk._replace(topics=allowed), denied


def _former(broker: Broker, version: int, wire_name: bytes, index: int) -> FormerPartition | None:
    return broker.replicas.former_partition(wire_name, index, is_id=version >= _TOPIC_IDS_SINCE)


def _unappendable(
    broker: Broker,
    version: int,
    wire_key: tuple[bytes, int],
    partition: object | None,
    batch: memoryview | None,
) -> ProduceResult:
    if partition is None:
        name, index = wire_key
        view = broker.replicas.views.get(name if version >= _TOPIC_IDS_SINCE else name.decode())
        if view is not None:
            text = f"'{view.name}' is a view of '{view.source}' and has no records of its own: produce to '{view.source}'"
            return ProduceResult(index, ErrorCode.INVALID_TOPIC_EXCEPTION, message=text)
        return ProduceResult(index, _missing(broker, version, wire_key, batch))
    return ProduceResult(wire_key[1], ErrorCode.INVALID_RECORD, message="no records were sent")


def _missing(
    broker: Broker, version: int, wire_key: tuple[bytes, int], batch: memoryview | None
) -> ErrorCode:
    """The error for a partition that is not hosted here. If it is opened soon, it takes over the refusal."""
    name, index = wire_key
    key = (name if version >= _TOPIC_IDS_SINCE else name.decode(), index)
    code = broker.replicas.find(key)[1]
    if batch is not None:
        broker.replicas.early_refusals.note(key, batch, code, broker.replicas.steady_ms())
    return code


class Unsettled(NamedTuple):
    """The place of a result that is not final yet."""

    partition: Partition | FormerPartition
    results: list[ProduceResult]
    position: int


class DelayedProduce:
    """A produce that waits until its batches are committed or synced, as `acks` and the topics require."""

    __slots__ = ("_acks", "_broker", "_call", "_results", "_timer", "_unsettled", "_waiters")

    def __init__(
        self,
        broker: Broker,
        call: Call,
        acks: int,
        results: Results,
        unsettled: list[Unsettled],
        timeout_ms: int,
        later: Sequence[tuple[Unsettled, memoryview]] = (),
    ) -> None:
        """`later` are batches whose records are inspected before they are appended."""
        self._broker = broker
        self._call = call
        self._acks = acks
        self._results = results
        self._unsettled = dict(enumerate([*(place for place, _ in later), *unsettled]))
        self._waiters: list[Waiter] = []
        self._timer = broker.loop.call_later(max(0, timeout_ms) / 1000, self._timed_out) if acks else None
        for number, (place, batch) in enumerate(later):
            call.connection.add_kept_bytes(len(batch))
            place.partition.appender.append_later(
                batch,
                acks,
                partial(self._appended, number, len(batch)),
                allows_zstd=call.version >= _ZSTD_SINCE,
                is_passed_on=_may_pass_on(broker, call),
                owner=call.connection,
            )
        for number in range(len(later), len(self._unsettled)):
            self._wait_for(number)

    def _appended(self, number: int, size: int, result: ProduceResult) -> None:
        self._call.connection.add_kept_bytes(-size)
        each = self._unsettled.get(number)
        if each is not None:
            each.results[each.position] = result
            self._wait_for(number)

    def _wait_for(self, number: int) -> None:
        each = self._unsettled[number]
        result = each.results[each.position]
        if result.sync_to is not None:
            assert isinstance(each.partition, Partition)
            self._waiters.append(
                each.partition.flush.when_synced(result.sync_to, partial(self._synced, number))
            )
        else:
            self._synced(number, ErrorCode.NONE)

    def _synced(self, number: int, code: ErrorCode) -> None:
        each = self._unsettled[number]
        result = each.results[each.position]
        if code or result.commit_to is None:
            self._settled(number, code)
        else:
            assert isinstance(each.partition, Partition)
            self._waiters.append(
                each.partition.leadership.when_committed(result.commit_to, partial(self._settled, number))
            )

    def _settled(self, number: int, code: ErrorCode) -> None:
        each = self._unsettled.pop(number)
        if code:
            each.results[each.position] = ProduceResult(each.partition.index, code, message=code.message)
        if not self._unsettled:
            self._finish()

    def _timed_out(self) -> None:
        for partition, results, position in self._unsettled.values():
            results[position] = ProduceResult(
                partition.index,
                ErrorCode.REQUEST_TIMED_OUT,
                message="the disk or the other replicas did not confirm in time",
            )
        self._finish()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for waiter in self._waiters:
            waiter.cancel()
        self._unsettled.clear()
        if self._call.is_wanted:
            all_good = not any(result.error for _, results in self._results for result in results)
            _answer(self._broker, self._call, self._acks, self._results, all_good)


class TransactionalProduce:
    """A produce with a transactional id.

    Each batch whose transaction is not open in its partition waits until the transaction coordinator has verified the
    transaction (KIP-890), and later batches wait behind it. Then it is handled like any other produce.
    """

    __slots__ = (
        "_adds",
        "_broker",
        "_call",
        "_results",
        "_transactional_id",
        "_unsettled",
        "_waiting",
        "_walk",
    )

    def __init__(
        self, broker: Broker, call: Call, walk: ProduceWalk, transactional_id: str, results: Results
    ) -> None:
        """`results` are those of topics that are refused already."""
        self._broker = broker
        self._call = call
        self._walk = walk
        self._transactional_id = transactional_id
        self._adds = call.version >= _ADDS_PARTITIONS_SINCE
        self._results = results
        self._unsettled: list[Unsettled] = []
        # Batches that are not appended or refused yet, and `start` as long as it runs.
        self._waiting = 1

    def start(self) -> None:
        frame, version = self._call.frame, self._call.version
        producers: dict[tuple[int, int], None] = {}
        asked: dict[TopicPartition, Guard] = {}
        for _, partitions in self._walk.topics:
            for _, start, end in partitions:
                header = _transactional_header(frame[start:end]) if start >= 0 else None
                if header is not None:
                    producers[header.producer_id, header.producer_epoch] = None
        if len(producers) > 1:
            _refuse_all(self._call, self._walk, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            return
        topics = (
            self._broker.replicas.by_wire_id
            if version >= _TOPIC_IDS_SINCE
            else self._broker.replicas.by_wire_name
        )
        for wire_name, partitions in self._walk.topics:
            hosted = topics.get(wire_name)
            results: list[ProduceResult] = []
            for index, start, end in partitions:
                partition: Partition | FormerPartition | None = (
                    hosted.get(index) if hosted is not None else None
                )
                batch = frame[start:end] if start >= 0 else None
                if partition is None and batch is not None:
                    partition = _former(self._broker, version, wire_name, index)
                if partition is None or batch is None:
                    key = (wire_name, index)
                    results.append(_unappendable(self._broker, version, key, partition, batch))
                    continue
                results.append(_NOT_YET._replace(partition=index))
                self._take(Unsettled(partition, results, len(results) - 1), batch, asked)
            if results:
                self._results.append((wire_name, results))
            if hosted is not None:
                hosted.counts.produce_requests += len(partitions)
        if asked:
            (producer,) = producers
            self._broker.verification.ask(
                self._transactional_id, *producer, list(asked), partial(_pass_on, asked), adds=self._adds
            )
        self._settle_one()

    def _take(self, place: Unsettled, batch: memoryview, asked: dict[TopicPartition, Guard]) -> None:
        """Append a batch now, or let it wait for the verification of its transaction."""
        header = _transactional_header(batch)
        appender = place.partition.appender
        # The partition that stores the batch is added to the transaction, not the one that passes it on.
        is_added_elsewhere = self._adds and appender.is_decommissioned
        guard = None
        if header is not None and not is_added_elsewhere:
            guard = appender.guards.guard_for(header, adds=self._adds)
        if header is None or guard is None:
            self._append(place, batch, None)
            return
        if guard.waiting is None:
            guard.waiting = []
            asked[place.partition.name] = guard
        # The frame is overwritten by what arrives next.
        kept = memoryview(bytearray(batch))
        self._waiting += 1
        self._call.connection.add_kept_bytes(len(kept))
        guard.waiting.append(partial(self._answered, place, kept, header, guard))

    def _answered(
        self, place: Unsettled, batch: memoryview, header: BatchHeader, guard: Guard, code: ErrorCode
    ) -> None:
        self._call.connection.add_kept_bytes(-len(batch))
        if code:
            told, reason = _as_told(code, self._call.version)
            place.results[place.position] = place.partition.appender.refuse_unverified(header, told, reason)
        else:
            self._append(place, batch, guard)
        self._settle_one()

    def _append(self, place: Unsettled, batch: memoryview, guard: Guard | None) -> None:
        acks, allows_zstd = self._walk.acks, self._call.version >= _ZSTD_SINCE
        try:
            result = place.partition.appender.append(
                batch,
                acks,
                self._broker.clock.wall_ms(),
                allows_zstd=allows_zstd,
                allows_transactions=True,
                guard=guard,
            )
        except NotAtOnce:
            self._waiting += 1
            self._call.connection.add_kept_bytes(len(batch))
            place.partition.appender.append_later(
                memoryview(bytearray(batch)),
                acks,
                partial(self._appended_later, place, len(batch)),
                allows_zstd=allows_zstd,
                allows_transactions=True,
                guard=guard,
                transactional_id=self._transactional_id,
                is_passed_on=_may_pass_on(self._broker, self._call),
                owner=self._call.connection,
            )
            return
        self._appended(place, result)

    def _appended_later(self, place: Unsettled, size: int, result: ProduceResult) -> None:
        self._call.connection.add_kept_bytes(-size)
        self._appended(place, result)
        self._settle_one()

    def _appended(self, place: Unsettled, result: ProduceResult) -> None:
        place.results[place.position] = result
        if result.sync_to is not None or result.commit_to is not None:
            self._unsettled.append(place)

    def _settle_one(self) -> None:
        self._waiting -= 1
        if self._waiting or not self._call.is_wanted:
            return
        acks = self._walk.acks
        if self._unsettled:
            DelayedProduce(
                self._broker, self._call, acks, self._results, self._unsettled, self._walk.timeout_ms
            )
        else:
            all_good = not any(result.error for _, results in self._results for result in results)
            _answer(self._broker, self._call, acks, self._results, all_good)


def _may_pass_on(broker: Broker, call: Call) -> bool:
    """Whether the connection may be that of a node, which passes batches of other partitions on.

    On a listener without logins no peer can prove it. A client there may write what it likes anyway.
    """
    return is_authenticated_node(broker.config.security, call.connection) is not False


def _transactional_header(batch: memoryview) -> BatchHeader | None:
    """The unchecked header of a transactional batch; None for other batches."""
    if len(batch) < HEADER_SIZE:
        return None
    header = header_at(batch)
    return header if header.is_transactional and header.producer_id >= 0 else None


def _pass_on(asked: Mapping[TopicPartition, Guard], codes: Mapping[TopicPartition, ErrorCode]) -> None:
    for tp, guard in asked.items():
        guard.answered(codes[tp])


def _as_told(code: ErrorCode, version: int) -> tuple[ErrorCode, str]:
    """The error for a batch that the coordinator did not verify. Old clients retry only errors of a partition."""
    told = code
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        told = ErrorCode.INVALID_TXN_STATE
    elif code in _COORDINATOR_AWAY or (
        code is ErrorCode.CONCURRENT_TRANSACTIONS and version < _ADDS_PARTITIONS_SINCE
    ):
        told = ErrorCode.NOT_ENOUGH_REPLICAS
    if told is code:
        return code, code.message
    return told, f"Partition was not added to the transaction: its coordinator answered {code.name}"


def _answer(broker: Broker, call: Call, acks: int, results: Results, all_good: bool) -> None:
    if acks == 0:
        if not all_good:
            # Closing is the only way to report an error to a client that expects no response.
            call.connection.close("a produce request with acks=0 failed")
        call.finish_silently()
        return
    throttle_ms = 0 if call.usage is None else call.usage.completed()
    if all_good:
        call.respond((pack_produced(results, call.version, throttle_ms),))
    else:
        message = _message(results, call.version)
        message.throttle_time_ms = throttle_ms
        _name_leaders(broker, call, message)
        call.respond((encode(message, call.version),))


def _name_leaders(broker: Broker, call: Call, message: ProduceResponse) -> None:
    """Name the leaders in errors for requests that went to the wrong broker (KIP-951)."""
    if call.version < _NAMES_LEADERS_SINCE:
        return
    leaders: dict[int, None] = {}
    for topic in message.responses:
        for answer in topic.partition_responses:
            if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                name = topic.topic_id if call.version >= _TOPIC_IDS_SINCE else topic.name
                leader, epoch = broker.replicas.leader_of((name, answer.index))
                answer.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
                leaders[leader] = None
    if leaders:
        message.node_endpoints = node_endpoints(broker, call, leaders)


def _message(results: Results, version: int) -> ProduceResponse:
    responses = []
    for wire_name, partitions in results:
        topic = TopicProduceResponse()
        if version >= _TOPIC_IDS_SINCE:
            topic.topic_id = wire_name
        else:
            topic.name = wire_name.decode()
        topic.partition_responses = [
            PartitionProduceResponse(
                index=result.partition,
                error_code=result.error,
                base_offset=result.base_offset,
                log_append_time_ms=result.log_append_time_ms,
                log_start_offset=result.log_start_offset,
                record_errors=[
                    BatchIndexAndErrorMessage(batch_index=number, batch_index_error_message=text)
                    for number, text in result.record_errors
                ],
                error_message=result.message or (result.error.message if result.error else None),
            )
            for result in partitions
        ]
        responses.append(topic)
    return ProduceResponse(responses=responses)


def _refuse_all(call: Call, walk: ProduceWalk, code: ErrorCode) -> None:
    if walk.acks == 0:
        call.connection.close(f"a produce request with acks=0 was refused: {code.name}")
        return
    results = [
        (name, [ProduceResult(index, code) for index, _, _ in partitions])
        for name, partitions in walk.topics
        if partitions
    ]
    call.respond((encode(_message(results, call.version), call.version),))
