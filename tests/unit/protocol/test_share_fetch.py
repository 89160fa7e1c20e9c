"""A ShareFetch response that is packed in parts has the bytes of the message."""

from __future__ import annotations

import pytest

from tidemill.protocol.api.share import (
    AcquiredRecords,
    LeaderIdAndEpoch,
    NodeEndpoint,
    ShareFetchableTopicResponse,
    ShareFetchPartitionData,
    ShareFetchResponse,
)
from tidemill.protocol.schema import encode
from tidemill.protocol.share_fetch import ShareFetched, pack_share_fetched

TOPIC_ID = bytes(range(16))


@pytest.mark.parametrize("version", [1, 2])
def test_packed_response_equals_the_encoded_message(version: int) -> None:
    endpoints = [NodeEndpoint(node_id=3, host="h", port=9092, rack=None)]
    packed = pack_share_fetched(
        [
            (
                TOPIC_ID,
                [
                    (ShareFetched(0, acquired=[(5, 9, 2)]), [bytearray(b"abc"), bytearray(b"de")]),
                    (ShareFetched(1, 6, "elsewhere", 121, "not held", (3, 7)), []),
                ],
            )
        ],
        version,
        acquisition_lock_timeout_ms=30_000,
        throttle_time_ms=4,
        node_endpoints=endpoints,
    )
    message = ShareFetchResponse(
        throttle_time_ms=4,
        acquisition_lock_timeout_ms=30_000,
        responses=[
            ShareFetchableTopicResponse(
                topic_id=TOPIC_ID,
                partitions=[
                    ShareFetchPartitionData(
                        partition_index=0,
                        records=b"abcde",
                        acquired_records=[AcquiredRecords(first_offset=5, last_offset=9, delivery_count=2)],
                    ),
                    ShareFetchPartitionData(
                        partition_index=1,
                        error_code=6,
                        error_message="elsewhere",
                        acknowledge_error_code=121,
                        acknowledge_error_message="not held",
                        current_leader=LeaderIdAndEpoch(leader_id=3, leader_epoch=7),
                    ),
                ],
            )
        ],
        node_endpoints=endpoints,
    )
    assert b"".join(packed) == encode(message, version)
