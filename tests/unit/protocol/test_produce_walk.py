"""The hand-written walk and answer of Produce against the message classes, in every version."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from tidemill.errors import ErrorCode, ProtocolError
from tidemill.protocol.api.data import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidemill.protocol.produce import (
    ProduceResult,
    TopicToProduce,
    pack_produced,
    produce_request_parts,
    walk_produce,
)
from tidemill.protocol.schema import decode_exact, encode

VERSIONS = range(3, 14)
_partitions = st.lists(
    st.builds(
        PartitionProduceData, index=st.integers(-1, 1 << 20), records=st.none() | st.binary(max_size=300)
    ),
    max_size=4,
)
_topics = st.lists(
    st.tuples(st.text(max_size=150), st.binary(min_size=16, max_size=16), _partitions), max_size=3
)
_int64 = st.integers(-1, (1 << 63) - 1)


def _request(
    version: int,
    topics: list[tuple[str, bytes, list[PartitionProduceData]]],
    transactional_id: str | None,
    acks: int,
) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(name=name, partition_data=partitions)
            if version < 13
            else TopicProduceData(topic_id=topic_id, partition_data=partitions)
            for name, topic_id, partitions in topics
        ],
    )


_pieces = st.lists(st.binary(max_size=300), min_size=1, max_size=3)
_to_produce = st.lists(
    st.builds(
        TopicToProduce,
        name=st.text(max_size=150),
        topic_id=st.binary(min_size=16, max_size=16),
        partitions=st.lists(st.tuples(st.integers(-1, 1 << 20), _pieces), max_size=4),
    ),
    max_size=3,
)


@pytest.mark.parametrize("version", VERSIONS)
@given(
    topics=_to_produce,
    transactional_id=st.none() | st.text(max_size=200),
    acks=st.sampled_from([-1, 0, 1]),
)
@settings(max_examples=25, deadline=None)
def test_a_request_in_parts_is_what_the_message_says(
    version: int, topics: list[TopicToProduce], transactional_id: str | None, acks: int
) -> None:
    parts = produce_request_parts(version, transactional_id, acks, 30_000, topics)
    whole = [
        (
            topic.name,
            topic.topic_id,
            [
                PartitionProduceData(index=index, records=b"".join(pieces))
                for index, pieces in topic.partitions
            ],
        )
        for topic in topics
    ]
    assert b"".join(parts) == encode(_request(version, whole, transactional_id, acks), version)


@pytest.mark.parametrize("version", VERSIONS)
@given(topics=_topics, transactional_id=st.none() | st.text(max_size=200), acks=st.sampled_from([-1, 0, 1]))
@settings(max_examples=25, deadline=None)
def test_walked_request_equals_decoded_message(
    version: int,
    topics: list[tuple[str, bytes, list[PartitionProduceData]]],
    transactional_id: str | None,
    acks: int,
) -> None:
    frame = memoryview(b"header" + encode(_request(version, topics, transactional_id, acks), version))
    walk = walk_produce(frame, 6, version)
    assert (walk.acks, walk.timeout_ms) == (acks, 30_000)
    assert walk.transactional_id == transactional_id
    found = [
        (
            topic.wire_name,
            [(i, None if start < 0 else bytes(frame[start:end])) for i, start, end in topic.partitions],
        )
        for topic in walk.topics
    ]
    assert found == [
        (name.encode() if version < 13 else topic_id, [(p.index, p.records) for p in partitions])
        for name, topic_id, partitions in topics
    ]


@pytest.mark.parametrize("version", VERSIONS)
@given(
    topics=_topics,
    changes=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 40),
)
@settings(max_examples=examples(40), deadline=None)
def test_mutated_requests_raise_nothing_but_protocol_errors(
    version: int,
    topics: list[tuple[str, bytes, list[PartitionProduceData]]],
    changes: list[tuple[int, int]],
    cut: int,
) -> None:
    """And whatever the walk finds lies within the frame."""
    data = bytearray(encode(_request(version, topics, "id", 1), version))
    for position, value in changes:
        data[position % len(data)] = value
    frame = memoryview(data)[: max(0, len(data) - cut)]
    try:
        walk = walk_produce(frame, 0, version)
    except ProtocolError:
        return
    for topic in walk.topics:
        for _, start, end in topic.partitions:
            assert (start, end) == (-1, -1) or 0 <= start <= end <= len(frame)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_request_that_is_cut_off_is_refused(version: int) -> None:
    partitions = [
        PartitionProduceData(index=1, records=b"r" * 20),
        PartitionProduceData(index=2, records=None),
    ]
    data = encode(_request(version, [("topic", b"i" * 16, partitions)], "id", 1), version)
    # What is behind the last topic are tagged fields, which the walk has no need to see.
    needed = len(data) - (1 if version >= 9 else 0)
    for length in range(needed):
        with pytest.raises(ProtocolError):
            walk_produce(memoryview(data)[:length], 0, version)
    walk_produce(memoryview(data)[:needed], 0, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_billion_elements_are_refused_before_anything_is_made_of_them(version: int) -> None:
    billion = b"\x80\x94\xeb\xdc\x03" if version >= 9 else (1_000_000_000).to_bytes(4, "big")
    null = b"\0" if version >= 9 else b"\xff\xff"
    frame = null + b"\0\1" + b"\0\0\0\0" + billion + bytes(50)
    with pytest.raises(ProtocolError, match="elements"):
        walk_produce(memoryview(frame), 0, version)


@pytest.mark.parametrize("version", VERSIONS)
@given(
    topics=st.lists(
        st.tuples(
            st.text(max_size=150),
            st.binary(min_size=16, max_size=16),
            st.lists(st.tuples(st.integers(0, 1 << 20), _int64, _int64, _int64), max_size=4),
        ),
        max_size=3,
    )
)
@settings(max_examples=25, deadline=None)
def test_packed_response_equals_encoded_message(
    version: int, topics: list[tuple[str, bytes, list[tuple[int, int, int, int]]]]
) -> None:
    packed = pack_produced(
        [
            (
                name.encode() if version < 13 else topic_id,
                [
                    ProduceResult(i, ErrorCode.NONE, offset, time, start)
                    for i, offset, time, start in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ],
        version,
    )
    assert decode_exact(ProduceResponse, version, bytes(packed)) == ProduceResponse(
        responses=[
            TopicProduceResponse(
                **({"name": name} if version < 13 else {"topic_id": topic_id}),
                partition_responses=[
                    PartitionProduceResponse(
                        index=i,
                        base_offset=offset,
                        log_append_time_ms=time,
                        log_start_offset=start if version >= 5 else -1,
                    )
                    for i, offset, time, start in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ]
    )
