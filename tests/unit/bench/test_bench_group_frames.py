"""The hand-built frames of groups against kio: what we build it decodes, what it builds we read."""

from __future__ import annotations

from typing import Any

import pytest
from bench import group_frames as frames
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v1.request import FindCoordinatorRequest
from kio.schema.heartbeat.v3.request import HeartbeatRequest
from kio.schema.join_group.v5.request import JoinGroupRequest
from kio.schema.leave_group.v3.request import LeaveGroupRequest
from kio.schema.offset_commit.v7.request import OffsetCommitRequest
from kio.schema.sync_group.v3.request import SyncGroupRequest

from tests.unit.bench.test_bench_frames import decoded
from tests.wire import messages


def answered(api: str, version: int, **fields: Any) -> memoryview:
    schema = load_response_schema(messages.API_KEYS[api], version)
    return memoryview(b"\0\0\0\1" + messages._write(messages.build(schema, fields)))


def test_find_coordinator() -> None:
    _, body = decoded(frames.find_coordinator("g"), FindCoordinatorRequest)
    assert (body.key, body.key_type) == ("g", 0)


def test_join_group() -> None:
    _, body = decoded(frames.join_group("g", "m", 9000), JoinGroupRequest)
    assert (body.group_id, body.member_id, body.group_instance_id) == ("g", "m", None)
    assert body.session_timeout.total_seconds() == body.rebalance_timeout.total_seconds() == 9
    assert [(one.name, one.metadata) for one in body.protocols] == [("range", frames.SUBSCRIPTION)]


def test_sync_group() -> None:
    _, body = decoded(frames.sync_group("g", 4, "m", {"m": b"x", "n": b""}), SyncGroupRequest)
    assert (body.group_id, body.generation_id, body.member_id) == ("g", 4, "m")
    assert [(one.member_id, one.assignment) for one in body.assignments] == [("m", b"x"), ("n", b"")]


def test_heartbeat() -> None:
    _, body = decoded(frames.heartbeat("g", 4, "m"), HeartbeatRequest)
    assert (body.group_id, body.generation_id, body.member_id, body.group_instance_id) == ("g", 4, "m", None)


def test_offset_commit() -> None:
    _, body = decoded(frames.offset_commit("g", 4, "m", "t", {0: 10, 1: 11}), OffsetCommitRequest)
    (topic,) = body.topics
    assert topic.name == "t"
    assert [
        (one.partition_index, one.committed_offset, one.committed_metadata) for one in topic.partitions
    ] == [
        (0, 10, ""),
        (1, 11, ""),
    ]


def test_leave_group() -> None:
    _, body = decoded(frames.leave_group("g", ["m", "n"]), LeaveGroupRequest)
    assert [one.member_id for one in body.members] == ["m", "n"]


@pytest.mark.parametrize(("api", "version"), [("heartbeat", 3), ("sync_group", 3), ("leave_group", 3)])
def test_the_error_of_an_answer(api: str, version: int) -> None:
    assert frames.error_of(answered(api, version, error_code=ErrorCode(27))) == 27


def test_the_answer_to_a_join() -> None:
    response = answered(
        "join_group",
        5,
        generation_id=3,
        protocol_name="range",
        leader="n",
        member_id="m",
        error_code=ErrorCode(0),
    )
    assert frames.joined(response) == frames.Joined(0, 3, "n", "m")


def test_the_answer_to_a_commit() -> None:
    places = [
        {"partition_index": 0, "error_code": ErrorCode(0)},
        {"partition_index": 1, "error_code": ErrorCode(22)},
    ]
    response = answered("offset_commit", 7, topics=[{"name": "t", "partitions": places}])
    assert frames.commit_errors(response) == {22}
