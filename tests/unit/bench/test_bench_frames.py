"""The hand-built frames against kio: what we build it decodes, what it builds we read."""

from __future__ import annotations

import io
import struct
from datetime import timedelta
from typing import Any

import pytest
from bench import frames
from kio.records.readers import read_batch
from kio.schema.create_topics.v4.request import CreateTopicsRequest
from kio.schema.create_topics.v4.response import CreatableTopicResult, CreateTopicsResponse
from kio.schema.delete_topics.v3.request import DeleteTopicsRequest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchRequest
from kio.schema.fetch.v12.response import FetchableTopicResponse, FetchResponse, PartitionData
from kio.schema.list_offsets.v1.request import ListOffsetsRequest
from kio.schema.list_offsets.v1.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.produce.v10.request import ProduceRequest
from kio.schema.produce.v10.response import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from kio.serial import entity_reader, entity_writer

NOW_MS = 1_700_000_000_000


def decoded(frame: bytearray, request_type: Any) -> Any:
    """The header and the body of a frame, all of it, as kio reads them."""
    (length,) = struct.unpack_from(">i", frame)
    assert length == len(frame) - 4
    header, header_size = entity_reader(request_type.__header_schema__)(bytes(frame), 4)
    assert header.request_api_key == request_type.__api_key__
    assert header.request_api_version == request_type.__version__
    assert header.client_id == "bench"
    body, size = entity_reader(request_type)(bytes(frame), 4 + header_size)
    assert 4 + header_size + size == len(frame)
    return header, body


def of(entity_type: Any, **values: Any) -> Any:
    """An entity of kio's from plain values; its field types are NewTypes of them."""
    return entity_type(**values)


def encoded(response: Any, *, is_flexible: bool) -> memoryview:
    buffer = io.BytesIO()
    buffer.write(struct.pack(">i", 1) + (b"\0" if is_flexible else b""))
    entity_writer(type(response))(buffer, response)
    return memoryview(buffer.getvalue())


def test_a_batch_is_read_by_kio_with_its_crc() -> None:
    batch = frames.record_batch([b"first", b"", b"third" * 100], NOW_MS)
    read, size = read_batch(batch, 0)
    assert size == len(batch)
    assert [record.value for record in read.records] == [b"first", b"", b"third" * 100]
    assert [record.offset for record in read.records] == [0, 1, 2]
    assert all(record.key is None and record.headers == () for record in read.records)


@pytest.mark.parametrize("value_bytes", [1, 100, 1024])
@pytest.mark.parametrize("batch_bytes", [1_000, 65_536])
def test_a_full_batch_has_no_room_for_one_more(batch_bytes: int, value_bytes: int) -> None:
    value = bytes(value_bytes)
    batch, count = frames.full_batch(batch_bytes, value)
    assert len(read_batch(batch, 0)[0].records) == count >= 1
    assert len(batch) <= batch_bytes or count == 1
    assert len(frames.record_batch([value] * (count + 1))) > batch_bytes


def test_produce_request() -> None:
    batch = frames.record_batch([b"value"], NOW_MS)
    frame = frames.stamp(frames.produce_request("topic", {0: batch, 7: batch}, acks=-1), 12345)
    header, body = decoded(frame, ProduceRequest)
    assert header.correlation_id == 12345
    assert body.transactional_id is None
    assert body.acks == -1
    (topic,) = body.topic_data
    assert topic.name == "topic"
    assert [(part.index, bytes(part.records)) for part in topic.partition_data] == [(0, batch), (7, batch)]


def test_a_request_with_more_partitions_than_one_byte_can_count() -> None:
    batch = frames.record_batch([b"value"], NOW_MS)
    _, body = decoded(frames.produce_request("topic", dict.fromkeys(range(200), batch), 1), ProduceRequest)
    assert [part.index for part in body.topic_data[0].partition_data] == list(range(200))


def test_fetch_request() -> None:
    _, body = decoded(frames.fetch_request("topic", 42, 1_000_000, 250), FetchRequest)
    assert (body.replica_id, body.max_wait, body.min_bytes) == (-1, timedelta(milliseconds=250), 1)
    assert (body.max_bytes, body.session_id, body.session_epoch) == (1_000_000, 0, -1)
    (partition,) = body.topics[0].partitions
    assert (body.topics[0].topic, partition.partition, partition.fetch_offset) == ("topic", 0, 42)
    assert (partition.current_leader_epoch, partition.partition_max_bytes) == (-1, 1_000_000)
    assert (body.forgotten_topics_data, body.rack_id) == ((), "")


def test_list_offsets_request() -> None:
    _, body = decoded(frames.list_offsets_request("topic", 3), ListOffsetsRequest)
    assert [part.partition_index for part in body.topics[0].partitions] == [0, 1, 2]


def test_create_and_delete_topics_requests() -> None:
    frame = frames.create_topics_request(["a", "b"], 5, {"retention.ms": "1000"})
    _, body = decoded(frame, CreateTopicsRequest)
    assert [(topic.name, topic.num_partitions, topic.replication_factor) for topic in body.topics] == [
        ("a", 5, 1),
        ("b", 5, 1),
    ]
    assert [(config.name, config.value) for config in body.topics[1].configs] == [("retention.ms", "1000")]
    assert not body.validate_only
    _, body = decoded(frames.delete_topics_request(["a", "b"]), DeleteTopicsRequest)
    assert body.topic_names == ("a", "b")


def produce_response(*errors: ErrorCode) -> memoryview:
    partitions = tuple(
        of(PartitionProduceResponse, index=index, error_code=error, base_offset=9, record_errors=())
        for index, error in enumerate(errors)
    )
    topic = of(TopicProduceResponse, name="topic", partition_responses=partitions)
    return encoded(of(ProduceResponse, responses=(topic,)), is_flexible=True)


def test_produce_errors() -> None:
    assert frames.produce_errors(produce_response(*[ErrorCode.none] * 150)) == {}
    failed = produce_response(ErrorCode.none, ErrorCode.none, ErrorCode.message_too_large)
    assert frames.produce_errors(failed) == {2: ErrorCode.message_too_large.value}


def fetch_response(records: bytes | None, error: ErrorCode = ErrorCode.none) -> memoryview:
    partition = of(
        PartitionData,
        partition_index=0,
        error_code=error,
        high_watermark=9,
        aborted_transactions=None,
        records=records,
    )
    topic = of(FetchableTopicResponse, topic="topic", partitions=(partition,))
    response = of(FetchResponse, throttle_time=timedelta(0), error_code=ErrorCode.none, responses=(topic,))
    return encoded(response, is_flexible=True)


def test_fetched_records() -> None:
    error, records = frames.fetched(fetch_response(b"x" * 1000))
    assert (error, bytes(records)) == (0, b"x" * 1000)
    error, records = frames.fetched(fetch_response(None, ErrorCode.offset_out_of_range))
    assert (error, bytes(records)) == (ErrorCode.offset_out_of_range.value, b"")


def test_the_end_of_batches_ignores_a_torn_one() -> None:
    batch = bytearray(frames.record_batch([b"a", b"b", b"c"], NOW_MS))
    later = bytearray(batch)
    struct.pack_into(">q", later, 0, 3)
    assert frames.end_of_batches(memoryview(batch + later), 0) == 6
    assert frames.end_of_batches(memoryview(batch + later[:-1]), 0) == 3
    assert frames.end_of_batches(memoryview(batch[:-1]), 17) == 17


def test_listed_offsets_come_by_partition() -> None:
    partitions = tuple(
        of(ListOffsetsPartitionResponse, partition_index=index, error_code=error, timestamp=-1, offset=offset)
        for index, error, offset in ((1, ErrorCode.none, 11), (0, ErrorCode.unknown_topic_or_partition, -1))
    )
    topic = of(ListOffsetsTopicResponse, name="topic", partitions=partitions)
    response = encoded(of(ListOffsetsResponse, topics=(topic,)), is_flexible=False)
    assert frames.listed_offsets(response) == [(ErrorCode.unknown_topic_or_partition.value, -1), (0, 11)]


def test_created_topics_with_and_without_a_message() -> None:
    topics = (
        of(
            CreatableTopicResult,
            name="a",
            error_code=ErrorCode.topic_already_exists,
            error_message="is there",
        ),
        of(CreatableTopicResult, name="b", error_code=ErrorCode.none, error_message=None),
    )
    response = of(CreateTopicsResponse, throttle_time=timedelta(0), topics=topics)
    assert frames.created_topics(encoded(response, is_flexible=False)) == {
        "a": ErrorCode.topic_already_exists.value,
        "b": 0,
    }
