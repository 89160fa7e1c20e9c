"""Offsets as JSON, shares of a backlog, and ranges cut into tasks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import ConfigError
from tidemill.spark.source.offsets import (
    OffsetRange,
    Offsets,
    Place,
    check_complete,
    from_json,
    limited,
    split,
    to_json,
)
from tidemill.spark.source.progress import InitialOffsets
from tidemill.types import TopicPartition

A0, A1, A10, B0 = (
    TopicPartition("a", 0),
    TopicPartition("a", 1),
    TopicPartition("a", 10),
    TopicPartition("b", 0),
)


def test_the_json_is_that_of_sparks_kafka_source_in_a_fixed_order() -> None:
    offsets = {B0: 1, A10: 10, A1: 11, A0: 10}
    told = to_json(offsets)
    assert json.dumps(told) == '{"a": {"0": 10, "1": 11, "10": 10}, "b": {"0": 1}}'
    # What the JVM connector wrote into a checkpoint.
    assert from_json(json.loads('{"b":{"0":1},"a":{"10":10,"0":10,"1":11}}')) == offsets


def test_starting_offsets_must_name_all_partitions() -> None:
    check_complete([A0, A1], [A1, A0], "startingOffsets")
    with pytest.raises(ConfigError, match="startingOffsets does not name a-1; it should name every"):
        check_complete([A0], [A0, A1], "startingOffsets")
    with pytest.raises(ConfigError, match="names, but the query does not read, a-10, b-0"):
        check_complete([A0, B0, A10], [A0], "startingOffsets")


def test_a_limit_is_shared_in_proportion_to_the_backlog() -> None:
    start = {A0: 100, A1: 0, B0: 5}
    ends = {A0: 400, A1: 100, B0: 5}
    assert limited(start, ends, 40) == {A0: 130, A1: 10, B0: 5}
    assert limited(start, ends, 400) == ends
    # A partition with little is not starved, although the batch gets a record too large.
    assert limited({A0: 0, A1: 0}, {A0: 1000, A1: 1}, 10) == {A0: 9, A1: 1}


backlogs = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 5)),
    st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
    min_size=1,
)


@given(backlogs, st.integers(1, 2000))
def test_a_share_moves_on_and_never_passes_the_end(
    backlog: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    start: Offsets = {each: first for each, (first, _) in backlog.items()}
    ends: Offsets = {each: first + size for each, (first, size) in backlog.items()}
    share = limited(start, ends, limit)
    assert all(start[each] <= share[each] <= ends[each] for each in ends)
    assert all(share[each] > start[each] for each in ends if ends[each] > start[each])
    taken = sum(share.values()) - sum(start.values())
    assert taken <= limit + len(ends)


def test_large_ranges_are_cut_and_small_ones_stay_whole() -> None:
    ranges = [OffsetRange(A0, 0, 90), OffsetRange(A1, 50, 60), OffsetRange(B0, 7, 7)]
    assert split(ranges) == ranges[:2]
    assert split(ranges, partition_count_min=2) == ranges[:2]
    cut = split(ranges, partition_count_min=4)
    assert cut == [OffsetRange(A0, 0, 30), OffsetRange(A0, 30, 60), OffsetRange(A0, 60, 90), ranges[1]]
    assert split(ranges, records_max=60) == [OffsetRange(A0, 0, 45), OffsetRange(A0, 45, 90), ranges[1]]


def test_min_partitions_is_a_minimum() -> None:
    ranges = [OffsetRange(A0, 0, 145), OffsetRange(A1, 0, 145), OffsetRange(B0, 0, 110)]
    assert len(split(ranges, partition_count_min=4)) >= 4
    assert len(split(ranges, partition_count_min=1000)) == 400


def test_only_the_first_part_of_a_range_is_from_the_earliest_offset() -> None:
    cut = split([OffsetRange(A0, 3, 9, is_from_earliest=True)], partition_count_min=2)
    assert cut == [OffsetRange(A0, 3, 6, is_from_earliest=True), OffsetRange(A0, 6, 9)]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500)), min_size=1, max_size=6),
    st.integers(0, 40),
    st.integers(0, 100),
)
def test_parts_cover_their_ranges_without_gap_or_overlap(
    sizes: list[tuple[int, int]], count_min: int, records_max: int
) -> None:
    ranges = [
        OffsetRange(TopicPartition("a", index), first, first + size)
        for index, (first, size) in enumerate(sizes)
    ]
    parts = split(ranges, partition_count_min=count_min, records_max=records_max)
    covered = [
        (part.partition, offset) for part in parts for offset in range(part.start_offset, part.end_offset)
    ]
    assert covered == [
        (each.partition, offset) for each in ranges for offset in range(each.start_offset, each.end_offset)
    ]
    assert all(part.size > 0 for part in parts)
    if records_max:
        assert all(part.size <= records_max for part in parts)
    assert len(parts) >= min(count_min, len(covered))


def test_partitions_that_start_at_latest_end_the_first_batch_where_they_start() -> None:
    initial = InitialOffsets()
    initial.tell({A0: Place(5, is_latest=True), A1: Place(0, is_earliest=True)})
    start, ends = {A0: 5, A1: 0}, {A0: 9, A1: 7, B0: 3}
    assert initial.hold(start, ends) == {A0: 5, A1: 7, B0: 3}
    assert initial.hold(start, ends) == ends


def test_a_repeated_first_batch_holds_nothing_back_afterwards() -> None:
    initial = InitialOffsets()
    initial.tell({A0: Place(5, is_latest=True)})
    initial.release()
    assert initial.hold({A0: 5}, {A0: 9}) == {A0: 9}
