"""Transaction markers that coordinators and administrators send, and the producers of a partition.

Versions, and what each one changed:

    WriteTxnMarkers (27), from 1 (KIP-98)
       2  transaction version (KIP-1228)
    DescribeProducers (61), from 0 (KIP-664)
"""

from __future__ import annotations

from tidemill.broker.partitions.partition import Partition
from tidemill.broker.partitions.shrinking.stored_elsewhere import Question, question_in, to_described
from tidemill.broker.requests.api_table import serves
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.pieces import Entries
from tidemill.controller.topics.topic_names import check_topic_name
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


@serves(WriteTxnMarkersRequest, independent_since=WriteTxnMarkersRequest.versions.min)
async def write_txn_markers(
    broker: Broker, call: Call, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    return await broker.marker_writer.write(request)


@serves(DescribeProducersRequest, entries=Entries("topics", "topics", key=lambda topic: topic.name))
def describe_producers(
    broker: Broker, call: Call, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    if len(request.topics) == 1:
        question = question_in(request.topics[0].partition_indexes)
        if question is not None:
            return _stored_for(broker, request.topics[0].name, question)
    # Each partition once, however often it is named.
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return DescribeProducersResponse(
        topics=[
            TopicResponse(name=name, partitions=[_producers_of(broker, name, index) for index in indexes])
            for name, indexes in wanted.items()
        ]
    )


def _stored_for(broker: Broker, topic: str, question: Question) -> DescribeProducersResponse:
    """Say what a partition stores for another one, if that is final (decision 18)."""
    partition, error = broker.replicas.find((topic, question.storing))
    response = PartitionResponse(partition_index=question.storing, error_code=error)
    if partition is not None:
        stored = broker.replicas.stored_finally(partition, question.named, question.metadata_end)
        if stored is None:
            response.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            response.active_producers = to_described(stored)
    return DescribeProducersResponse(topics=[TopicResponse(name=topic, partitions=[response])])


def _producers_of(broker: Broker, topic: str, index: int) -> PartitionResponse:
    partition, error = broker.replicas.find((topic, index))
    if partition is None and topic not in broker.image.topics_by_name:
        message = error.message
        try:
            check_topic_name(topic)
        except ApiError as invalid:
            error, message = invalid.code, invalid.message
        return PartitionResponse(partition_index=index, error_code=error, error_message=message)
    if partition is None:
        return PartitionResponse(partition_index=index, error_code=error)
    if partition.log is None:
        return PartitionResponse(partition_index=index, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    return PartitionResponse(partition_index=index, active_producers=_active_producers(partition))


def _active_producers(partition: Partition) -> list[ProducerState]:
    assert partition.log is not None
    return [
        ProducerState(
            producer_id=state.producer_id,
            producer_epoch=state.epoch,
            last_sequence=state.last_sequence,
            last_timestamp=state.last_timestamp,
            coordinator_epoch=state.coordinator_epoch,
            current_txn_start_offset=state.txn_first_offset,
        )
        for state in partition.log.producers.states()
    ]
