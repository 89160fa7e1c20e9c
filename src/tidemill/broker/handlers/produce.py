"""Produce (0): the hot path.

The request is walked in place; each partition's batch goes to `Partition.append` as a view of the frame. When every
partition succeeded without waiting, the response is packed directly, otherwise it is built as a message. With `acks=all`
the answer waits until the high watermark has passed the batch; a broker that stops to lead meanwhile says so.

Versions: 3 is the first with record batches v2; 5 adds log_start_offset; 7 allows zstd; 8 adds record errors; 9 is flexible;
10 adds the current leader; 13 names topics by id. ApiVersions says 0–13, because librdkafka takes a missing 0–2 for
a broker without any codec support, as Kafka does.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tidemill.broker.dispatch import Call, serves_raw
from tidemill.broker.partition import Partition
from tidemill.broker.replica_fetch import node_endpoints
from tidemill.broker.waiters import Waiter
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
from tidemill.protocol.schema import encode

if TYPE_CHECKING:
    from tidemill.broker.context import Broker


_NAMES_LEADERS_SINCE = 10

Results = list[tuple[bytes, list[ProduceResult]]]


@serves_raw(
    ProduceRequest,
    advertised=(0, 13),
    gaps=("Transactional batches are refused until transactions are served.",),
)
def produce(broker: Broker, call: Call) -> None:
    walk = walk_produce(call.frame, call.header.body_position, call.version)
    acks = walk.acks
    if acks not in (-1, 0, 1):
        call.expect_reply()
        call.respond((encode(_refusal(walk, call.version, ErrorCode.INVALID_REQUIRED_ACKS), call.version),))
        return
    if acks:
        call.expect_reply()
    frame, version = call.frame, call.version
    topics = broker.replicas.by_wire_id if version >= 13 else broker.replicas.by_wire_name
    now_ms = broker.clock.now_ms()
    results: Results = []
    unsettled: list[_Unsettled] = []
    all_good = True
    for wire_name, partitions in walk.topics:
        hosted = topics.get(wire_name)
        topic_results: list[ProduceResult] = []
        for index, start, end in partitions:
            partition = hosted.get(index) if hosted is not None else None
            if partition is None:
                batch = frame[start:end] if start >= 0 else None
                result = ProduceResult(index, _missing(broker, version, (wire_name, index), batch))
            elif start < 0:
                result = ProduceResult(index, ErrorCode.INVALID_RECORD, message="no records were sent")
            else:
                result = partition.append(frame[start:end], acks, now_ms, allows_zstd=version >= 7)
                if result.sync_to is not None or result.commit_to is not None:
                    unsettled.append(_Unsettled(partition, topic_results, len(topic_results)))
            if result.error:
                all_good = False
                if result.error is ErrorCode.INVALID_TXN_STATE and not walk.is_transactional:
                    # As Kafka: without a transactional id nobody may write into a transaction.
                    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                    result = ProduceResult(index, code, message=code.message)
            topic_results.append(result)
        if topic_results:
            results.append((wire_name, topic_results))
    if unsettled:
        _Parked(broker, call, acks, results, unsettled, walk.timeout_ms)
    else:
        _answer(broker, call, acks, results, all_good)


def _missing(
    broker: Broker, version: int, wire_key: tuple[bytes, int], batch: memoryview | None
) -> ErrorCode:
    """Why a partition is not hosted here. It may be in a moment, and then knows what its producers were told."""
    name, index = wire_key
    key = (name if version >= 13 else name.decode(), index)
    code = broker.replicas.find(key)[1]
    if batch is not None:
        broker.replicas.early_refusals.note(key, batch, code, broker.replicas.steady_ms())
    return code


class _Unsettled(NamedTuple):
    """A result that does not hold yet, and where it stands."""

    partition: Partition
    results: list[ProduceResult]
    position: int


class _Parked:
    """A produce that is answered when what it wrote is as safe as its `acks` and its topics ask for."""

    __slots__ = ("_acks", "_broker", "_call", "_results", "_timer", "_unsettled", "_waiters")

    def __init__(
        self,
        broker: Broker,
        call: Call,
        acks: int,
        results: Results,
        unsettled: list[_Unsettled],
        timeout_ms: int,
    ) -> None:
        self._broker = broker
        self._call = call
        self._acks = acks
        self._results = results
        self._unsettled = dict(enumerate(unsettled))
        self._waiters: list[Waiter] = []
        self._timer = broker.loop.call_later(max(0, timeout_ms) / 1000, self._timed_out) if acks else None
        for number, each in enumerate(unsettled):
            result = each.results[each.position]
            if result.sync_to is not None:
                self._waiters.append(
                    each.partition.when_synced(result.sync_to, partial(self._synced, number))
                )
            else:
                self._synced(number, ErrorCode.NONE)

    def _synced(self, number: int, code: ErrorCode) -> None:
        each = self._unsettled[number]
        result = each.results[each.position]
        if code or result.commit_to is None:
            self._settled(number, code)
        else:
            self._waiters.append(
                each.partition.when_committed(result.commit_to, partial(self._settled, number))
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
        if self._call.is_wanted:
            all_good = not any(result.error for _, results in self._results for result in results)
            _answer(self._broker, self._call, self._acks, self._results, all_good)


def _answer(broker: Broker, call: Call, acks: int, results: Results, all_good: bool) -> None:
    if acks == 0:
        if not all_good:
            # The only way to tell a client that asked for no answer.
            call.connection.close("a produce request with acks=0 failed")
        return
    if all_good:
        call.respond((pack_produced(results, call.version),))
    else:
        message = _message(results, call.version)
        _name_leaders(broker, call, message)
        call.respond((encode(message, call.version),))


def _name_leaders(broker: Broker, call: Call, message: ProduceResponse) -> None:
    """KIP-951: a producer that asked the wrong broker hears which one is right."""
    if call.version < _NAMES_LEADERS_SINCE:
        return
    leaders: dict[int, None] = {}
    for topic in message.responses:
        for answer in topic.partition_responses:
            if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                name = topic.topic_id if call.version >= 13 else topic.name
                leader, epoch = broker.replicas.leader_of((name, answer.index))
                answer.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
                leaders[leader] = None
    if leaders:
        message.node_endpoints = node_endpoints(broker, call, leaders)


def _message(results: Results, version: int) -> ProduceResponse:
    responses = []
    for wire_name, partitions in results:
        topic = TopicProduceResponse()
        if version >= 13:
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


def _refusal(walk: ProduceWalk, version: int, code: ErrorCode) -> ProduceResponse:
    results = [
        (name, [ProduceResult(index, code) for index, _, _ in partitions])
        for name, partitions in walk.topics
        if partitions
    ]
    return _message(results, version)
