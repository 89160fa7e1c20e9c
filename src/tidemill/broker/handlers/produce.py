"""Produce (0): the hot path.

The request is walked in place; each partition's batch goes to `Partition.append` as a view of the frame. When every
partition succeeded without waiting, the response is packed directly, otherwise it is built as a message.

Versions: 3 is the first with record batches v2; 5 adds log_start_offset; 7 allows zstd; 8 adds record errors; 9 is flexible;
10 adds the current leader; 13 names topics by id. ApiVersions says 0–13, because librdkafka takes a missing 0–2 for
a broker without any codec support, as Kafka does.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tidemill.broker.dispatch import Call, serves_raw
from tidemill.broker.partition import Partition
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidemill.protocol.produce import ProduceResult, ProduceWalk, pack_produced, walk_produce
from tidemill.protocol.schema import encode

if TYPE_CHECKING:
    from tidemill.broker.context import Broker


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
    unsynced: list[_Unsynced] = []
    all_good = True
    for wire_name, partitions in walk.topics:
        hosted = topics.get(wire_name)
        topic_results: list[ProduceResult] = []
        for index, start, end in partitions:
            partition = hosted.get(index) if hosted is not None else None
            if partition is None:
                result = ProduceResult(index, _missing(version, hosted is None))
            elif start < 0:
                result = ProduceResult(index, ErrorCode.INVALID_RECORD, message="no records were sent")
            else:
                result = partition.append(frame[start:end], acks, now_ms, allows_zstd=version >= 7)
                if result.sync_to is not None:
                    unsynced.append(_Unsynced(partition, topic_results, len(topic_results), end - start))
            if result.error:
                all_good = False
                if result.error is ErrorCode.INVALID_TXN_STATE and not walk.is_transactional:
                    # As Kafka: without a transactional id nobody may write into a transaction.
                    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                    result = ProduceResult(index, code, message=code.message)
            topic_results.append(result)
        if topic_results:
            results.append((wire_name, topic_results))
    if unsynced:
        _Parked(broker, call, acks, results, unsynced, walk.timeout_ms)
    else:
        _answer(call, acks, results, all_good)


def _missing(version: int, is_topic: bool) -> ErrorCode:
    if version >= 13 and is_topic:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class _Unsynced(NamedTuple):
    """A result that holds once the partition's log is synced: where it stands, and how much it will show."""

    partition: Partition
    results: list[ProduceResult]
    position: int
    size: int


class _Parked:
    """A produce that is answered when the logs it wrote to are synced."""

    __slots__ = ("_acks", "_call", "_results", "_timer", "_unsynced")

    def __init__(
        self,
        broker: Broker,
        call: Call,
        acks: int,
        results: Results,
        unsynced: list[_Unsynced],
        timeout_ms: int,
    ) -> None:
        self._call = call
        self._acks = acks
        self._results = results
        self._unsynced = dict(enumerate(unsynced))
        self._timer = broker.loop.call_later(max(0, timeout_ms) / 1000, self._timed_out) if acks else None
        for number, each in self._unsynced.items():
            end_offset = each.results[each.position].sync_to
            assert each.partition.log is not None
            assert end_offset is not None
            broker.syncer.sync(each.partition.log, partial(self._synced, number, end_offset))

    def _synced(self, number: int, end_offset: int, error: OSError | None) -> None:
        each = self._unsynced.pop(number)
        partition = each.partition
        if error is None:
            partition.advance_high_watermark(end_offset, each.size)
        else:
            reason = f"cannot sync {partition.name}: {error.strerror or error}"
            partition.fence(reason)
            each.results[each.position] = ProduceResult(
                partition.index, ErrorCode.KAFKA_STORAGE_ERROR, message=reason
            )
        if not self._unsynced:
            self._finish()

    def _timed_out(self) -> None:
        for partition, results, position, _ in self._unsynced.values():
            results[position] = ProduceResult(
                partition.index, ErrorCode.REQUEST_TIMED_OUT, message="the disk did not sync in time"
            )
        self._finish()

    def _finish(self) -> None:
        if self._timer is None and self._acks:
            return  # the client has heard of the time-out already
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._call.is_wanted:
            all_good = not any(result.error for _, results in self._results for result in results)
            _answer(self._call, self._acks, self._results, all_good)


def _answer(call: Call, acks: int, results: Results, all_good: bool) -> None:
    if acks == 0:
        if not all_good:
            # The only way to tell a client that asked for no answer.
            call.connection.close("a produce request with acks=0 failed")
        return
    if all_good:
        call.respond((pack_produced(results, call.version),))
    else:
        call.respond((encode(_message(results, call.version), call.version),))


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
