"""The hand-written answer of Fetch against the message classes, in every version."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.protocol.api.data import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchEpochEndOffset,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from tidemill.protocol.fetch import Fetched, pack_fetched
from tidemill.protocol.schema import decode_exact

VERSIONS = range(4, 19)


class Slice(NamedTuple):
    content: bytes

    @property
    def length(self) -> int:
        return len(self.content)


_int64 = st.integers(-1, (1 << 63) - 1)
_fetched = st.builds(
    Fetched,
    partition=st.integers(0, 1 << 20),
    error_code=st.integers(-1, 100),
    high_watermark=_int64,
    last_stable_offset=_int64,
    log_start_offset=_int64,
    aborted=st.none() | st.lists(st.tuples(_int64, _int64), max_size=3),
    diverging=st.none() | st.tuples(st.integers(0, 1 << 30), _int64),
    preferred_read_replica=st.integers(-1, 5),
    current_leader=st.none() | st.tuples(st.integers(0, 5), st.integers(0, 1 << 30)),
)
_records = st.none() | st.builds(Slice, st.binary(max_size=300))
_topics = st.lists(
    st.tuples(
        st.text(max_size=150),
        st.binary(min_size=16, max_size=16),
        st.lists(st.tuples(_fetched, _records), max_size=3),
    ),
    max_size=3,
)


def _expected(fetched: Fetched, records: Slice | None, version: int) -> PartitionData:
    aborted = None
    if fetched.aborted is not None:
        aborted = [AbortedTransaction(producer_id=p, first_offset=o) for p, o in fetched.aborted]
    diverging = FetchEpochEndOffset()
    if version >= 12 and fetched.diverging is not None:
        diverging = FetchEpochEndOffset(epoch=fetched.diverging[0], end_offset=fetched.diverging[1])
    leader = LeaderIdAndEpoch()
    if version >= 16 and fetched.current_leader is not None:
        leader = LeaderIdAndEpoch(leader_id=fetched.current_leader[0], leader_epoch=fetched.current_leader[1])
    return PartitionData(
        partition_index=fetched.partition,
        error_code=fetched.error_code,
        high_watermark=fetched.high_watermark,
        last_stable_offset=fetched.last_stable_offset,
        log_start_offset=fetched.log_start_offset if version >= 5 else -1,
        aborted_transactions=aborted,
        preferred_read_replica=fetched.preferred_read_replica if version >= 11 else -1,
        diverging_epoch=diverging,
        current_leader=leader,
        records=records.content if records is not None else b"",
    )


@pytest.mark.parametrize("version", VERSIONS)
@given(topics=_topics, error_code=st.integers(0, 100), session_id=st.integers(0, 1 << 30))
@settings(max_examples=25, deadline=None)
def test_packed_response_equals_encoded_message(
    version: int,
    topics: list[tuple[str, bytes, list[tuple[Fetched, Slice | None]]]],
    error_code: int,
    session_id: int,
) -> None:
    parts = pack_fetched(
        [(name if version < 13 else topic_id, partitions) for name, topic_id, partitions in topics],
        version,
        error_code=error_code,
        session_id=session_id,
    )
    packed = b"".join(part.content if isinstance(part, Slice) else bytes(part) for part in parts)
    assert decode_exact(FetchResponse, version, packed) == FetchResponse(
        error_code=error_code if version >= 7 else 0,
        session_id=session_id if version >= 7 else 0,
        responses=[
            FetchableTopicResponse(
                **({"topic": name} if version < 13 else {"topic_id": topic_id}),
                partitions=[_expected(fetched, records, version) for fetched, records in partitions],
            )
            for name, topic_id, partitions in topics
        ],
    )


@pytest.mark.parametrize("version", [4, 11, 12, 18])
def test_records_are_handed_on_as_they_are_and_nothing_is_copied(version: int) -> None:
    first, empty, second = Slice(b"a" * 1000), Slice(b""), Slice(b"b" * 2000)
    name: str | bytes = "t" if version < 13 else b"i" * 16
    parts = pack_fetched([(name, [(Fetched(0), first), (Fetched(1), empty), (Fetched(2), second)])], version)
    assert [part for part in parts if isinstance(part, Slice)] == [first, second]
    assert sum(len(part) for part in parts if isinstance(part, bytearray)) < 300
