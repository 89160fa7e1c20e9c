"""Requests of groups as bytes, built by hand, and the parts of the responses that the loads read."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench.frames import request

OFFSET_COMMIT, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 8, 10, 11, 12, 13, 14
NO_INSTANCE = struct.pack(">h", -1)
PROTOCOL = "range"
# A subscription of version 0 to no topic, without user data.
SUBSCRIPTION = struct.pack(">hii", 0, 0, -1)
# Correlation id and throttle time.
_HEAD_BYTES = 8


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def find_coordinator(group: str) -> bytearray:
    return request(FIND_COORDINATOR, 1, _string(group) + b"\0")


def join_group(group: str, member_id: str, session_timeout_ms: int) -> bytearray:
    body = (
        _string(group)
        + struct.pack(">ii", session_timeout_ms, session_timeout_ms)
        + _string(member_id)
        + NO_INSTANCE
        + _string("consumer")
        + struct.pack(">i", 1)
        + _string(PROTOCOL)
        + _bytes(SUBSCRIPTION)
    )
    return request(JOIN_GROUP, 5, body)


def sync_group(group: str, generation: int, member_id: str, assignments: Mapping[str, bytes]) -> bytearray:
    given = b"".join(_string(name) + _bytes(share) for name, share in assignments.items())
    body = (
        _string(group)
        + struct.pack(">i", generation)
        + _string(member_id)
        + NO_INSTANCE
        + struct.pack(">i", len(assignments))
        + given
    )
    return request(SYNC_GROUP, 3, body)


def heartbeat(group: str, generation: int, member_id: str) -> bytearray:
    body = _string(group) + struct.pack(">i", generation) + _string(member_id) + NO_INSTANCE
    return request(HEARTBEAT, 3, body)


def offset_commit(
    group: str, generation: int, member_id: str, topic: str, offsets: Mapping[int, int]
) -> bytearray:
    places = b"".join(
        struct.pack(">iqi", partition, offset, -1) + _string("") for partition, offset in offsets.items()
    )
    body = (
        _string(group)
        + struct.pack(">i", generation)
        + _string(member_id)
        + NO_INSTANCE
        + struct.pack(">i", 1)
        + _string(topic)
        + struct.pack(">i", len(offsets))
        + places
    )
    return request(OFFSET_COMMIT, 7, body)


def leave_group(group: str, member_ids: Sequence[str]) -> bytearray:
    members = b"".join(_string(member_id) + NO_INSTANCE for member_id in member_ids)
    return request(LEAVE_GROUP, 3, _string(group) + struct.pack(">i", len(member_ids)) + members)


class Joined(NamedTuple):
    error: int
    generation: int
    leader: str
    member_id: str


def _read_string(response: memoryview, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", response, at)
    end = at + 2 + max(0, length)
    return bytes(response[at + 2 : end]).decode(), end


def error_of(response: memoryview) -> int:
    """The error of FindCoordinator, SyncGroup, Heartbeat and LeaveGroup."""
    error: int = struct.unpack_from(">h", response, _HEAD_BYTES)[0]
    return error


def joined(response: memoryview) -> Joined:
    error, generation = struct.unpack_from(">hi", response, _HEAD_BYTES)
    _, at = _read_string(response, _HEAD_BYTES + 6)
    leader, at = _read_string(response, at)
    member_id, _ = _read_string(response, at)
    return Joined(error, generation, leader, member_id)


def commit_errors(response: memoryview) -> set[int]:
    """The errors of an OffsetCommit for one topic; empty when every partition was committed."""
    _, at = _read_string(response, _HEAD_BYTES + 4)
    (count,) = struct.unpack_from(">i", response, at)
    return {
        error for _, error in struct.iter_unpack(">ih", bytes(response[at + 4 : at + 4 + 6 * count])) if error
    }
