"""Streams the records that are written to a topic from now on, as server-sent events.

A tail reads without waiting, at most ten times a second, and less often the longer a reading takes (`_SHARE` of its
time). So it holds neither a thread of the backend nor the broker's loop. An event has at most `_ITEMS_MAX` records. Of
what came in faster than it can be shown, the rest is counted as `skipped`; a tail that falls behind goes on near the
end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.client.admin.topics import Admin
from tidemill.client.retry import UnknownTopic
from tidemill.errors import ApiError, ErrorCode
from tidemill.gateway.cluster.backend import Admins, Backend
from tidemill.gateway.cluster.fetching import Fetcher, Read
from tidemill.gateway.console_api.browse import Query
from tidemill.gateway.console_api.live import HEARTBEAT, HEARTBEAT_S, Event, Events
from tidemill.gateway.console_api.messages import message_row
from tidemill.gateway.console_api.picture import Row
from tidemill.gateway.problems import Problem
from tidemill.types import TopicPartition

_INTERVAL_S = 0.1
_SHARE = 0.05
_ITEMS_MAX = 100
# So many records may a partition be ahead before the tail jumps to its end.
_BEHIND_MAX = 10_000
# How long the cluster may be away before the stream ends.
_PATIENCE_S = 30.0


@dataclass
class _Round:
    positions: dict[int, int]
    items: list[Row] = field(default_factory=list)
    skipped: int = 0


async def tail_events(backend: Backend, topic: str, query: Query) -> Events:
    """Raises `Problem` before anything is streamed when there is no such topic or partition."""
    positions = await backend.ask(lambda admins: _ends(admins.admin, topic, query))
    return _events(backend, topic, query, positions)


def _ends(admin: Admin, topic: str, query: Query) -> dict[int, int]:
    leaders = Fetcher(admin.cluster, topic, query.isolation_level).leaders()
    if query.partition is not None and query.partition not in leaders:
        raise UnknownTopic(f"topic {topic} has no partition {query.partition}, only 0 to {len(leaders) - 1}")
    wanted = [
        TopicPartition(topic, partition)
        for partition, leader_id in leaders.items()
        if leader_id >= 0 and query.partition in (None, partition)
    ]
    if not wanted:
        raise ApiError(
            ErrorCode.LEADER_NOT_AVAILABLE, f"no partition of topic {topic} that is asked for has a leader"
        )
    return {
        each.partition: offset for each, offset in admin.end_offsets(wanted, query.isolation_level).items()
    }


async def _events(backend: Backend, topic: str, query: Query, positions: Mapping[int, int]) -> Events:
    answered_s = told_s = time.monotonic()
    positions = dict(positions)
    yield HEARTBEAT
    while True:
        begun_s = time.monotonic()
        at = dict(positions)

        def read(admins: Admins, at: dict[int, int] = at) -> _Round:
            return _read(admins.admin, topic, query, at)

        try:
            found = await backend.ask(read)
        except Problem as problem:
            if problem.status != 503 or time.monotonic() - answered_s > _PATIENCE_S:
                yield Event("failed", {"message": problem.message})
                return
            await asyncio.sleep(1.0)
            continue
        answered_s = time.monotonic()
        positions = found.positions
        if found.items or found.skipped:
            told_s = answered_s
            yield Event("messages", {"items": found.items, "skipped": found.skipped})
        elif answered_s - told_s >= HEARTBEAT_S:
            told_s = answered_s
            yield HEARTBEAT
        took_s = answered_s - begun_s
        await asyncio.sleep(max(_INTERVAL_S - took_s, took_s / _SHARE))


def _read(admin: Admin, topic: str, query: Query, positions: dict[int, int]) -> _Round:
    result = _Round(positions)
    found: list[Read] = []
    for partition, chunk in Fetcher(admin.cluster, topic, query.isolation_level).round(positions).items():
        if chunk.is_out_of_range:
            place = TopicPartition(topic, partition)
            positions[partition] = admin.end_offsets([place], query.isolation_level)[place]
            continue
        for each in chunk.records(chunk.next_position):
            if not query.matches(each.record):
                continue
            if len(found) < _ITEMS_MAX:
                found.append(each)
            else:
                result.skipped += 1
        positions[partition] = chunk.next_position
        behind = chunk.high_watermark - chunk.next_position
        if behind > _BEHIND_MAX:
            result.skipped += behind
            positions[partition] = chunk.high_watermark
    found.sort(key=lambda each: each.record.timestamp)
    result.items = [message_row(each, topic) for each in found]
    return result
