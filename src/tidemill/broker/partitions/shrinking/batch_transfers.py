"""Produces batches of decommissioned partitions to the leaders of the partitions that store them, and asks what they store.

This broker may lead them itself. Batch and question take the same way then, over its own listener.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidemill.broker.metrics.registry import Metrics
from tidemill.broker.net.channel import Channels
from tidemill.broker.net.network import Address
from tidemill.broker.partitions.shrinking.passing_on import Settle
from tidemill.broker.partitions.shrinking.stored_elsewhere import (
    Answered,
    Question,
    from_described,
    to_request,
)
from tidemill.controller.image import MetadataImage, TopicImage
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.protocol.api.transactions import DescribeProducersResponse
from tidemill.protocol.produce import ProduceResult
from tidemill.protocol.schema import decode
from tidemill.types import NO_BROKER, TopicPartition

_TIMEOUT_S = 30.0
_NO_ACKS, _LEADER_ACKS = 0, 1


class TransferHost(Protocol):
    """The part of the broker that transfers use."""

    metrics: Metrics

    @property
    def image(self) -> MetadataImage | None: ...
    def address_of(self, broker_id: int) -> Address | None: ...


class BatchTransfers:
    def __init__(
        self,
        channels: Channels,
        host: TransferHost,
        call_soon: Callable[..., object],
    ) -> None:
        self._channels = channels
        self._host = host
        self._call_soon = call_soon

    def pass_on(
        self,
        target: TopicPartition,
        batch: memoryview,
        acks: int,
        transactional_id: str | None,
        settle: Settle,
    ) -> None:
        """Produce a batch to the leader of `target`. `settle` is called once, later."""
        topic, index = target
        known, address = self._leader_of(target)

        def fail(reason: str) -> None:
            message = f"its records are stored in {target}, whose leader did not answer: {reason}"
            settle(ProduceResult(index, ErrorCode.NOT_ENOUGH_REPLICAS, message=message))

        if address is None or known is None:
            self._call_soon(fail, "it has none")
            return

        def on_body(version: int, body: memoryview) -> None:
            result = _result(decode(ProduceResponse, version, bytes(body)), index)
            self._host.metrics.topic(topic).batches_passed_on += not result.error
            settle(result)

        request = ProduceRequest(
            transactional_id=transactional_id,
            # An answer is needed in any case: the next batch waits for it.
            acks=_LEADER_ACKS if acks == _NO_ACKS else acks,
            timeout_ms=int(_TIMEOUT_S * 1000),
            topic_data=[
                TopicProduceData(
                    name=topic,
                    topic_id=known.id,
                    partition_data=[PartitionProduceData(index=index, records=batch)],
                )
            ],
        )
        self._channels.to(address, "passing-on").call(request, on_body, fail, timeout_s=_TIMEOUT_S)

    def ask_stored(self, storing: TopicPartition, named: int, answered: Answered) -> None:
        """Ask the leader of `storing` what it stores for the partition `named`, by metadata not older than this broker's.

        `answered` is called once, later; with None when there is no answer.
        """
        topic, index = storing
        image = self._host.image
        _, address = self._leader_of(storing)
        if address is None or image is None:
            self._call_soon(answered, None)
            return

        def on_body(version: int, body: memoryview) -> None:
            response = decode(DescribeProducersResponse, version, bytes(body))
            answers = [each for topic in response.topics for each in topic.partitions]
            is_answer = len(answers) == 1 and not answers[0].error_code
            answered(from_described(answers[0].active_producers) if is_answer else None)

        def fail(_reason: str) -> None:
            answered(None)

        request = to_request(topic, Question(index, named, image.end_offset))
        self._channels.to(address, "passing-on").call(request, on_body, fail, timeout_s=_TIMEOUT_S)

    def _leader_of(self, tp: TopicPartition) -> tuple[TopicImage | None, Address | None]:
        image = self._host.image
        topic = None if image is None else image.topics_by_name.get(tp.topic)
        has_it = topic is not None and tp.partition < len(topic.partitions)
        leader = topic.partitions[tp.partition].leader if topic is not None and has_it else NO_BROKER
        return topic, None if leader == NO_BROKER else self._host.address_of(leader)


def _result(response: ProduceResponse, index: int) -> ProduceResult:
    answers = [each for topic in response.responses for each in topic.partition_responses]
    if len(answers) != 1:
        return ProduceResult(index, ErrorCode.UNKNOWN_SERVER_ERROR, message="an answer without a result")
    return _taken(answers[0])


def _taken(answer: PartitionProduceResponse) -> ProduceResult:
    return ProduceResult(
        answer.index,
        ErrorCode(answer.error_code),
        answer.base_offset,
        answer.log_append_time_ms,
        answer.log_start_offset,
        answer.error_message,
        [(each.batch_index, each.batch_index_error_message or "") for each in answer.record_errors],
    )
