"""The key or the value of one record, with every byte: what the lists of messages cut (`messages.py`)."""

from __future__ import annotations

import re
import time
from functools import partial

from tidemill.claims.claim import Place, has_claim
from tidemill.client.admin.topics import Admin
from tidemill.client.retry import UnknownTopic
from tidemill.gateway.cluster.fetching import Fetcher
from tidemill.gateway.cluster.payloads import Payloads
from tidemill.gateway.problems import Problem
from tidemill.protocol.isolation import READ_UNCOMMITTED
from tidemill.protocol.records import Record

PARTS = ("key", "value")
_SECONDS_MAX = 5.0
_PAUSE_S = 0.02
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def read_record(admin: Admin, place: Place) -> Record:
    """404 when there is no such record. In a thread."""
    record = _record(admin, *place)
    if record is None:
        raise Problem(
            404,
            404,
            f"partition {place.partition} of topic {place.topic} has no record at offset {place.offset}",
        )
    return record


async def part_of(record: Record, place: Place, part: str, payloads: Payloads) -> bytes:
    """404 when the record has no such part."""
    data = record.key if part == "key" else record.value
    if part == "value" and has_claim(record.value, record.headers):
        data = await payloads.run(partial(payloads.resolved, place, record.value, record.headers))
    if data is None:
        raise Problem(404, 404, f"the record's {part} is null")
    return bytes(data)


def _record(admin: Admin, topic: str, partition: int, offset: int) -> Record | None:
    fetcher = Fetcher(admin.cluster, topic, READ_UNCOMMITTED)
    leaders = fetcher.leaders()
    if partition not in leaders:
        raise UnknownTopic(f"topic {topic} has no partition {partition}, only 0 to {len(leaders) - 1}")
    deadline_s = time.monotonic() + _SECONDS_MAX
    while time.monotonic() < deadline_s:
        chunk = fetcher.round({partition: offset}).get(partition)
        if chunk is None:
            # Its leader moves.
            time.sleep(_PAUSE_S)
            continue
        return next((found.record for found in chunk.records(offset + 1)), None)
    raise Problem(503, 50301, f"partition {partition} of topic {topic} has no leader that answers")


def file_name(topic: str, partition: int, offset: int, part: str) -> str:
    return f"{_UNSAFE.sub('_', topic)}-{partition}-{offset}-{part}"
