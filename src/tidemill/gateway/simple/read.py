"""`GET /v1/topics/{topic}/records`: reading without a group and without anything that has to be made or deleted.

The caller keeps its position: an answer has `next`, and the next request gives it back as `from`. So a request that
failed is simply repeated. A position is `PARTITION:OFFSET,...`; `earliest`, `latest` and `time:MILLISECONDS` are
positions to begin with.

With `wait_ms` a request that finds nothing waits for records. It fetches repeatedly without waiting in a thread or
at a broker, so long polls cost little and never take the threads of other requests.

A record comes in the shape that `produce` takes (`records.py`). A value that is JSON comes as JSON, as it stands in the
log, and other UTF-8 with `"format": "text"`. Anything else comes in base64 with `"format": "binary"`. Only what is
committed is read.
"""

from __future__ import annotations

import asyncio
import base64
import math
import re
import time
from functools import partial
from typing import NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tidemill.claims.claim import CLAIM_HEADERS, Place, claimed_bytes, has_claim
from tidemill.client.admin.topics import Admin
from tidemill.gateway.answers import JSON, json_bytes
from tidemill.gateway.cluster.access import backend_of
from tidemill.gateway.cluster.backend import Admins, Backend
from tidemill.gateway.cluster.fetching import Chunk, Fetcher, Read, record_bytes
from tidemill.gateway.cluster.payloads import Payloads
from tidemill.gateway.http.bodies import STRICT_JSON
from tidemill.gateway.http.formats import number_in
from tidemill.gateway.http.openapi import (
    INTEGER,
    LONG,
    PARTITION,
    PARTITION_MAX,
    STRING,
    Part,
    array,
    obj,
    query,
)
from tidemill.gateway.problems import Problem
from tidemill.protocol.isolation import READ_COMMITTED
from tidemill.protocol.records import Record
from tidemill.types import TopicPartition

part = Part("Simple")

_LIMIT, _LIMIT_MAX = 100, 10_000
_WAIT_MS_MAX = 2**31 - 1
_PAUSE_S, _PAUSE_S_MAX = 0.02, 0.2
_POSITION = re.compile(r"[0-9]{1,10}:[0-9]{1,18}(,[0-9]{1,10}:[0-9]{1,18})*")
_TIME = re.compile(r"time:([0-9]{1,15})")
_FROM_PATTERN = r"^(earliest|latest|time:[0-9]{1,15}|[0-9]{1,9}:[0-9]{1,18}(,[0-9]{1,9}:[0-9]{1,18})*)$"

RECORD = obj(
    {"partition": INTEGER, "offset": LONG, "timestamp_ms": LONG, "key": {}, "value": {}},
    {"headers": {"type": "object"}, "format": STRING, "key_format": STRING},
)
Page = part.schema("SimplePage", obj({"records": array(RECORD), "next": STRING}))


class _Found(NamedTuple):
    records: list[Read]
    positions: dict[int, int]


@part.get(
    "/v1/topics/{topic}/records",
    "Read records",
    answer=Page,
    errors=(400, 404, 409, 413),
    parameters=(
        query(
            "from",
            {**STRING, "pattern": _FROM_PATTERN},
            "`earliest` (the default), `latest`, `time:MS`, or `next` of an answer.",
        ),
        query("partition", PARTITION, "This one only."),
        query(
            "limit",
            {**INTEGER, "minimum": 1, "maximum": _LIMIT_MAX},
            "At most so many records; 100 without it.",
        ),
        query(
            "wait_ms",
            {**INTEGER, "minimum": 0},
            "How long to wait when there is nothing to read; not at all without it.",
        ),
    ),
    description="`next` is where to go on. A position before the first record that is still there is a 400.",
)
async def read_records(request: Request) -> Response:
    topic = request.path_params["topic"]
    backend = backend_of(request)
    limits = request.app.state.settings.limits
    limit = number_in(request.query_params.get("limit", str(_LIMIT)), "limit", _LIMIT_MAX)
    wait_ms = number_in(request.query_params.get("wait_ms", "0"), "wait_ms", _WAIT_MS_MAX)
    if limit == 0:
        raise Problem(400, 400, "limit should be at least 1")
    positions = await _positions(request, backend, topic)
    deadline_s = time.monotonic() + min(wait_ms / 1000, limits.poll_s_max)
    pause_s = _PAUSE_S
    while True:
        at = dict(positions)
        found = await backend.ask(
            partial(
                _read,
                topic=topic,
                positions=at,
                limit=limit,
                bytes_max=limits.answer_bytes_max,
            )
        )
        if any(has_claim(each.record.value, each.record.headers) for each in found.records):
            found = await backend.payloads.run(partial(_with_payloads, found, topic, backend.payloads))
        positions = found.positions
        if found.records or time.monotonic() >= deadline_s:
            return Response(_page(found), media_type=JSON)
        await asyncio.sleep(min(pause_s, max(0.0, deadline_s - time.monotonic())))
        pause_s = min(pause_s * 1.5, _PAUSE_S_MAX)
        if await request.is_disconnected():
            raise ClientDisconnect


async def _positions(request: Request, backend: Backend, topic: str) -> dict[int, int]:
    count = await backend.partition_count(topic)
    asked = request.query_params.get("partition")
    wanted = list(range(count))
    if asked is not None:
        wanted = [number_in(asked, "partition", PARTITION_MAX)]
    start = request.query_params.get("from", "earliest")
    given: dict[int, int] = {}
    if _POSITION.fullmatch(start):
        given = {int(each[0]): int(each[1]) for each in (pair.split(":") for pair in start.split(","))}
        if asked is None:
            # A topic that got fewer partitions is read on where the others are.
            wanted = [partition for partition in given if partition < count] or list(given)
    elif start not in ("earliest", "latest") and not _TIME.fullmatch(start):
        raise Problem(
            400, 400, f"from should be earliest, latest, time:MS or PARTITION:OFFSET,..., not {start!r}"
        )
    for partition in wanted:
        if partition >= count:
            raise Problem(404, 40402, f"topic {topic} has no partition {partition}, only 0 to {count - 1}")
    if all(partition in given for partition in wanted):
        return {partition: given[partition] for partition in wanted}
    places = [TopicPartition(topic, partition) for partition in wanted if partition not in given]
    begun = await backend.ask(lambda admins: _begin(admins.admin, places, start))
    return {
        **{place.partition: offset for place, offset in begun.items()},
        **{p: given[p] for p in wanted if p in given},
    }


def _begin(admin: Admin, places: list[TopicPartition], start: str) -> dict[TopicPartition, int]:
    if start == "latest":
        return admin.end_offsets(places, READ_COMMITTED)
    if found := _TIME.fullmatch(start):
        return admin.offsets_at(places, int(found[1]))
    return admin.start_offsets(places)


def _read(admins: Admins, topic: str, positions: dict[int, int], limit: int, bytes_max: int) -> _Found:
    """Claims are resolved later, in other threads than those of all requests to the cluster."""
    records: list[Read] = []
    size_bytes = 0
    chunks = Fetcher(admins.cluster, topic, READ_COMMITTED).round(positions)
    # A share for each that has something, so that a busy partition does not keep the others from being read.
    share = math.ceil(limit / max(1, sum(bool(chunk.batches) for chunk in chunks.values())))
    for partition, chunk in sorted(chunks.items()):
        if chunk.is_out_of_range:
            raise _out_of_range(admins.admin, topic, chunk)
        positions[partition] = chunk.next_position
        for taken, each in enumerate(chunk.records(chunk.next_position)):
            place = Place(topic, partition, each.record.offset)
            size_bytes += record_bytes(each.record)
            size_bytes += claimed_bytes(each.record.value, each.record.headers, place)
            if taken == share or len(records) == limit or (records and size_bytes > bytes_max):
                # The rest is for the next request.
                positions[partition] = each.record.offset
                break
            records.append(each)
    return _Found(records, positions)


def _with_payloads(found: _Found, topic: str, payloads: Payloads) -> _Found:
    """The records up to the first claim of each partition that cannot be resolved. Blocks as long as the store does."""
    records: list[Read] = []
    refused: dict[int, int] = {}
    for each in found.records:
        if each.partition in refused:
            continue
        place = Place(topic, each.partition, each.record.offset)
        try:
            records.append(each._replace(record=resolved(each.record, place, payloads)))
        except Problem:
            if not records:
                raise
            # It is what the next request begins with, and is refused with.
            refused[each.partition] = each.record.offset
    return _Found(records, {**found.positions, **refused})


def resolved(record: Record, place: Place, payloads: Payloads) -> Record:
    """The record with its payload in place of a claim. Blocks as long as the store does."""
    value = payloads.resolved(place, record.value, record.headers)
    if value is record.value:
        return record
    headers = [header for header in record.headers if header.key not in CLAIM_HEADERS]
    return record._replace(value=value, headers=headers)


def _out_of_range(admin: Admin, topic: str, chunk: Chunk) -> Problem:
    place = TopicPartition(topic, chunk.partition)
    start, end = admin.start_offsets([place])[place], admin.end_offsets([place])[place]
    return Problem(
        400, 40002, f"{place} has offsets from {start} to {end} now, and {chunk.position} is none of them"
    )


# --- the answer ---


def _page(found: _Found) -> bytes:
    position = ",".join(f"{partition}:{offset}" for partition, offset in sorted(found.positions.items()))
    rows = (record_json(each.partition, each.record) for each in found.records)
    return b'{"records":[%b],"next":"%b"}' % (b",".join(rows), position.encode())


def record_json(partition: int, record: Record) -> bytes:
    """A record as one element of an answer."""
    place = f'{{"partition":{partition},"offset":{record.offset},"timestamp_ms":{record.timestamp}'
    key, key_format = key_json(record.key)
    value, value_format = value_json(record.value)
    more = b"".join(
        b',"%b":"%b"' % (name, text)
        for name, text in ((b"key_format", key_format), (b"format", value_format))
        if text
    )
    if record.headers:
        headers: dict[str, list[str | None]] = {}
        for header in record.headers:
            text = None if header.value is None else bytes(header.value).decode("utf-8", "backslashreplace")
            headers.setdefault(header.key, []).append(text)
        shown = {name: texts[0] if len(texts) == 1 else texts for name, texts in headers.items()}
        more += b',"headers":%b' % json_bytes(shown)
    return b'%b,"key":%b,"value":%b%b}' % (place.encode(), key, value, more)


def key_json(data: bytes | None) -> tuple[bytes, bytes]:
    """A key as JSON, and its format. A string stands for itself, as in `produce`."""
    if data is None:
        return b"null", b""
    try:
        return json_bytes(bytes(data).decode()), b""
    except UnicodeDecodeError:
        return b'"%b"' % base64.b64encode(data), b"binary"


def value_json(data: bytes | None) -> tuple[bytes, bytes]:
    """A value as JSON, and its format."""
    if data is None:
        return b"null", b""
    try:
        text = bytes(data).decode()
    except UnicodeDecodeError:
        return b'"%b"' % base64.b64encode(data), b"binary"
    try:
        is_null = STRICT_JSON.decode(text) is None
    except (ValueError, RecursionError):
        return json_bytes(text), b"text"
    # The four letters are a value; none at all is a tombstone.
    return (json_bytes(text), b"text") if is_null else (bytes(data), b"")
