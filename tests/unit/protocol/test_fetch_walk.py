"""Fetch responses read in place, against the message classes."""

from __future__ import annotations

from typing import cast

import pytest

from tidemill.errors import ErrorCode, ProtocolError
from tidemill.log.files import FileSlice
from tidemill.protocol.api.data import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from tidemill.protocol.fetch import Fetched, FetchedRecords, pack_fetched, walk_fetched
from tidemill.protocol.schema import decode_exact, encode

ONE, TWO = bytes(15) + b"\1", bytes(15) + b"\2"
VERSIONS = range(13, 19)


def response() -> FetchResponse:
    return FetchResponse(
        session_id=77,
        responses=[
            FetchableTopicResponse(
                topic_id=ONE,
                partitions=[
                    PartitionData(
                        partition_index=0,
                        high_watermark=5,
                        last_stable_offset=4,
                        log_start_offset=2,
                        records=b"x" * 300,
                    ),
                    PartitionData(
                        partition_index=3,
                        high_watermark=9,
                        log_start_offset=1,
                        diverging_epoch=FetchEpochEndOffset(epoch=4, end_offset=6),
                        current_leader=LeaderIdAndEpoch(leader_id=1, leader_epoch=8),
                    ),
                ],
            ),
            FetchableTopicResponse(
                topic_id=TWO,
                partitions=[
                    PartitionData(
                        partition_index=1,
                        error_code=ErrorCode.FENCED_LEADER_EPOCH,
                        high_watermark=-1,
                        aborted_transactions=[
                            AbortedTransaction(producer_id=1, first_offset=2),
                            AbortedTransaction(producer_id=3, first_offset=5),
                        ],
                        records=b"",
                    )
                ],
            ),
        ],
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_every_partition_is_found(version: int) -> None:
    walk = walk_fetched(memoryview(encode(response(), version)), version)
    assert (walk.error_code, walk.session_id) == (0, 77)
    assert [found._replace(records=memoryview(bytes(found.records))) for found in walk.partitions] == [
        FetchedRecords(ONE, 0, 0, 5, 2, None, memoryview(b"x" * 300), 4),
        FetchedRecords(ONE, 3, 0, 9, 1, (4, 6), memoryview(b"")),
        FetchedRecords(
            TWO, 1, ErrorCode.FENCED_LEADER_EPOCH, -1, -1, None, memoryview(b""), -1, ((1, 2), (3, 5))
        ),
    ]


def test_records_are_not_copied() -> None:
    body = bytearray(encode(response(), 17))
    first = next(walk_fetched(memoryview(body), 17).partitions)
    body[body.index(b"xxx")] = ord("y")
    assert bytes(first.records[:3]) == b"yxx"


@pytest.mark.parametrize("length", range(10, 380, 7))
def test_a_response_that_is_cut_off_is_refused(length: int) -> None:
    body = memoryview(encode(response(), 17))[:length]
    with pytest.raises(ProtocolError):
        list(walk_fetched(body, 17).partitions)


@pytest.mark.parametrize("version", [16, 17, 18])
def test_leaders_are_named_with_their_endpoints(version: int) -> None:
    endpoint = NodeEndpoint(node_id=4, host="four", port=9092, rack="r")
    fetched = Fetched(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=(4, 2))
    topics: list[tuple[str | bytes, list[tuple[Fetched, FileSlice | None]]]] = [(ONE, [(fetched, None)])]
    parts = pack_fetched(topics, version, node_endpoints=[endpoint])
    decoded = decode_exact(FetchResponse, version, b"".join(cast("list[bytearray]", parts)))
    assert decoded.node_endpoints == [endpoint]
    assert decoded.responses[0].partitions[0].current_leader.leader_id == 4
