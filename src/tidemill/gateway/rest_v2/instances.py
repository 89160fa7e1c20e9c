"""REST Proxy v2's consumer instances: `/consumers/{group}` and everything below.

An instance is a consumer that lives in this gateway (`instance.py`, `registry.py`); the requests here say what
it reads, read, seek, and commit. What a caller can rely on:

* Records that were read but not answered completely are read again by the next request. A caller that goes away while
  it waits, or in the middle of an answer, loses nothing.
* Nothing is committed that was not answered. With `auto.commit.enable` a request for records commits what earlier
  ones have answered.
* A commit names records: `{"offset": 20}` says that 20 is done, and the group goes on at 21, as REST Proxy has it.
  Positions name the offset to read next.

An instance belongs to the gateway that made it; `base_uri` says where that is. It is built from the request's own
Host, or from X-Forwarded-* when `trusts_forwarded` says that a proxy sets them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from urllib.parse import quote

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tidemill.gateway.cluster.access import access_of
from tidemill.gateway.http.bodies import read_bytes
from tidemill.gateway.http.formats import number_in
from tidemill.gateway.http.metering import Meter
from tidemill.gateway.http.openapi import (
    INTEGER,
    LONG,
    PARTITION,
    PARTITION_MAX,
    STRING,
    TOPIC_NAME,
    Part,
    array,
    nullable,
    obj,
    query,
)
from tidemill.gateway.problems import Problem
from tidemill.gateway.rest_v2.answer import RecordsAnswer, until_gone
from tidemill.gateway.rest_v2.instance import Read
from tidemill.gateway.rest_v2.media import (
    GENERIC,
    accepted,
    answer_type,
    embedded,
    in_formats,
    in_generic,
    v2_answer,
)
from tidemill.gateway.rest_v2.options import OPTIONS, InstanceOptions
from tidemill.gateway.rest_v2.registry import Entry, Instances
from tidemill.gateway.rest_v2.shapes import (
    COMMITS,
    OFFSET_MAX,
    PARTITIONS,
    POSITIONS,
    SUBSCRIPTION,
    document_of,
    needed_document_of,
    offsets_in,
    partitions_in,
    subscription_in,
)
from tidemill.gateway.settings import Settings
from tidemill.types import TopicPartition

part = Part("Consumers (v2)")

_PREFIX = re.compile(r"(/[\w.~-]+)*/?")
_HOST = re.compile(r"[\w.-]+(:\d{1,5})?|\[[0-9a-fA-F:.]+\](:\d{1,5})?")


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    instances = Instances(app.state.settings)
    app.state.instances = instances
    meter: Meter = app.state.meter
    meter.add_gauge(
        "tidemill_gateway_consumer_instances", "REST consumers that live here.", lambda: len(instances)
    )
    expiry = asyncio.create_task(instances.expire())
    try:
        yield
    finally:
        expiry.cancel()
        await instances.close()


def instances_of(request: Request) -> Instances:
    instances: Instances = request.app.state.instances
    return instances


# --- shapes ---

Partitions = part.schema("ConsumerPartitions", PARTITIONS)
Positions = part.schema("ConsumerPositions", POSITIONS)
Commits = part.schema("ConsumerCommits", COMMITS)
Options = part.schema("CreateConsumerInstance", OPTIONS)
Created = part.schema("ConsumerInstance", obj({"instance_id": STRING, "base_uri": STRING}))
Subscription = part.schema("Subscription", SUBSCRIPTION)
Subscribed = part.schema("SubscribedTopics", obj({"topics": array(STRING)}))
Records = part.schema(
    "ConsumerRecords",
    array(obj({"topic": STRING, "key": {}, "value": {}, "partition": INTEGER, "offset": LONG})),
)


# --- making and ending instances ---


@part.post(
    "/consumers/{group}",
    "Create a consumer instance",
    body=in_generic(nullable(Options)),
    is_body_optional=True,
    answer=in_generic(Created),
    errors=(409,),
)
async def create_instance(request: Request) -> Response:
    answer_type(request)
    instances = instances_of(request)
    settings: Settings = request.app.state.settings
    group = request.path_params["group"]
    options = InstanceOptions.parse(await document_of(request) or {})
    entry = await instances.create(access_of(request), group, options)
    path = f"/consumers/{quote(group, safe='')}/instances/{quote(options.name, safe='')}"
    created = {"instance_id": entry.options.name, "base_uri": _base_url(request, settings) + path}
    return v2_answer(request, created)


def _base_url(request: Request, settings: Settings) -> str:
    scheme, host, prefix = request.url.scheme, request.url.netloc, ""
    if settings.trusts_forwarded:
        # Proxies in a row add their own after a comma; the first is what the caller used.
        forwarded = [
            request.headers.get(f"x-forwarded-{name}", "").partition(",")[0].strip()
            for name in ("proto", "host", "prefix")
        ]
        scheme = forwarded[0].lower() if forwarded[0].lower() in ("http", "https") else scheme
        host = forwarded[1] if _HOST.fullmatch(forwarded[1]) else host
        prefix = forwarded[2].rstrip("/") if _PREFIX.fullmatch(forwarded[2]) else ""
    return f"{scheme}://{host}{prefix}"


@part.delete(
    "/consumers/{group}/instances/{instance}",
    "Delete a consumer instance; it leaves its group",
    errors=(404,),
)
async def delete_instance(request: Request) -> Response:
    owner, (group, name) = access_of(request).owner, _named(request)
    await instances_of(request).delete(owner, group, name)
    return Response(status_code=204)


# --- what it reads ---


def _using(request: Request) -> contextlib.AbstractContextManager[Entry]:
    return instances_of(request).using(access_of(request).owner, *_named(request))


def _named(request: Request) -> tuple[str, str]:
    return request.path_params["group"], request.path_params["instance"]


@part.post(
    "/consumers/{group}/instances/{instance}/subscription",
    "Subscribe to topics, or to a pattern of topics",
    body=in_generic(Subscription),
    errors=(404, 409),
    description="`topics` and `topic_pattern` exclude each other. A subscription replaces the one before it.",
)
async def subscribe(request: Request) -> Response:
    document = await needed_document_of(request)
    topics, pattern = subscription_in(document)
    with _using(request) as entry:
        _check_kind(entry, is_pattern=pattern is not None)
        if (topics, pattern) == (entry.topics, entry.pattern):
            return Response(status_code=204)
        names = topics if pattern is None else (f"^({pattern})$",)
        await instances_of(request).finished(entry.instance.subscribe(names))
        entry.topics, entry.pattern = topics, pattern
    return Response(status_code=204)


def _check_kind(entry: Entry, *, is_pattern: bool = False, is_by_hand: bool = False) -> None:
    other = None
    if entry.is_assigned_by_hand and not is_by_hand:
        other = "has partitions assigned"
    elif entry.topics and (is_pattern or is_by_hand):
        other = "is subscribed to topics"
    elif entry.pattern is not None and not is_pattern:
        other = "is subscribed to a pattern"
    if other:
        raise Problem(
            409,
            40903,
            f"the consumer instance {other}; topics, pattern and partitions exclude each other: DELETE its subscription",
        )


@part.get(
    "/consumers/{group}/instances/{instance}/subscription",
    "The topics that it is subscribed to",
    answer=in_generic(Subscribed),
    errors=(404,),
    description="Of a pattern, those that partitions were assigned of.",
)
async def get_subscription(request: Request) -> Response:
    with _using(request) as entry:
        topics: Sequence[str] = entry.topics
        if entry.pattern is not None:
            assigned = await instances_of(request).finished(entry.instance.assignment())
            topics = sorted({partition.topic for partition in assigned})
        return v2_answer(request, {"topics": list(topics)})


@part.delete("/consumers/{group}/instances/{instance}/subscription", "Read nothing any more", errors=(404,))
async def unsubscribe(request: Request) -> Response:
    with _using(request) as entry:
        await instances_of(request).finished(entry.instance.unsubscribe())
        entry.topics, entry.pattern, entry.is_assigned_by_hand = (), None, False
    return Response(status_code=204)


@part.post(
    "/consumers/{group}/instances/{instance}/assignments",
    "Read these partitions, without the group's help",
    body=in_generic(Partitions),
    errors=(404, 409),
)
async def assign(request: Request) -> Response:
    partitions = partitions_in(await needed_document_of(request))
    with _using(request) as entry:
        _check_kind(entry, is_by_hand=True)
        await instances_of(request).finished(entry.instance.assign(partitions))
        entry.is_assigned_by_hand = bool(partitions)
    return Response(status_code=204)


@part.get(
    "/consumers/{group}/instances/{instance}/assignments",
    "The partitions that it reads now",
    answer=in_generic(Partitions),
    errors=(404,),
)
async def get_assignments(request: Request) -> Response:
    with _using(request) as entry:
        assigned = await instances_of(request).finished(entry.instance.assignment())
    return v2_answer(request, {"partitions": [partition._asdict() for partition in assigned]})


# --- positions and offsets ---


@part.post(
    "/consumers/{group}/instances/{instance}/positions",
    "Read these offsets next",
    body=in_generic(Positions),
    errors=(404, 409),
)
async def seek(request: Request) -> Response:
    offsets = offsets_in(await needed_document_of(request), 0)
    return await _seek(request, {partition: offset for partition, (offset, _) in offsets.items()})


@part.post(
    "/consumers/{group}/instances/{instance}/positions/beginning",
    "Read partitions from their beginning",
    body=in_generic(Partitions),
    errors=(404, 409),
)
async def seek_to_beginning(request: Request) -> Response:
    return await _seek(
        request, dict.fromkeys(partitions_in(await needed_document_of(request)), OFFSET_BEGINNING)
    )


@part.post(
    "/consumers/{group}/instances/{instance}/positions/end",
    "Read partitions from their end",
    body=in_generic(Partitions),
    errors=(404, 409),
)
async def seek_to_end(request: Request) -> Response:
    return await _seek(request, dict.fromkeys(partitions_in(await needed_document_of(request)), OFFSET_END))


async def _seek(request: Request, offsets: dict[TopicPartition, int]) -> Response:
    with _using(request) as entry:
        await instances_of(request).finished(entry.instance.seek(offsets))
    return Response(status_code=204)


@part.post(
    "/consumers/{group}/instances/{instance}/offsets",
    "Commit",
    body=in_generic(nullable(Commits)),
    is_body_optional=True,
    answer=in_generic(Commits),
    errors=(404, 409),
    description="Each offset is that of the last record that is done; the group goes on with the next one. Without a "
    "body, all records that were answered are committed. The answer has the same offsets.",
)
async def commit(request: Request) -> Response:
    document = await document_of(request)
    # -1 is "none is done", so that 0 comes next.
    offsets = None if document is None else offsets_in(document, -1)
    with _using(request) as entry:
        done = await instances_of(request).finished(
            entry.instance.commit(
                None if offsets is None else {p: (offset + 1, note) for p, (offset, note) in offsets.items()}
            )
        )
    committed = [{**partition._asdict(), "offset": offset - 1} for partition, offset in sorted(done.items())]
    return v2_answer(request, {"offsets": committed})


@part.get(
    "/consumers/{group}/instances/{instance}/offsets",
    "Committed offsets",
    answer=in_generic(Positions),
    parameters=(
        query("topic", TOPIC_NAME, "Of this topic only."),
        query("partition", array(PARTITION), "Of partitions with these numbers only."),
    ),
    errors=(400, 404, 408, 413, 415, 422),
    description="Of the partitions that the instance reads; of others, when topic and partitions are named, here or in a "
    'body as REST Proxy has it: `{"partitions": [{"topic": "t", "partition": 0}]}`. The offsets are those that the group '
    "goes on with. A partition without a commit is left out.",
)
async def get_committed(request: Request) -> Response:
    document = await document_of(request)
    topic = request.query_params.get("topic")
    numbers = [
        number_in(text, "partition", PARTITION_MAX) for text in request.query_params.getlist("partition")
    ]
    partitions: list[TopicPartition] | None = None
    if document is not None:
        partitions = partitions_in(document)
    elif topic is not None and numbers:
        partitions = [TopicPartition(topic, number) for number in numbers]
    with _using(request) as entry:
        found = await instances_of(request).finished(entry.instance.committed(partitions))
    offsets = [
        {**partition._asdict(), "offset": offset, "metadata": metadata}
        for partition, (offset, metadata) in sorted(found.items())
        if topic in (None, partition.topic) and (not numbers or partition.partition in numbers)
    ]
    return v2_answer(request, {"offsets": offsets})


# --- records ---


@part.get(
    "/consumers/{group}/instances/{instance}/records",
    "The next records",
    answer=in_formats(Records),
    parameters=(
        query(
            "timeout",
            {**INTEGER, "minimum": 0},
            "How many milliseconds to wait for records, instead of the instance's own.",
        ),
        query(
            "max_bytes",
            {**LONG, "minimum": -1},
            "Of keys and values together. One record is always answered.",
        ),
    ),
    errors=(400, 404, 408, 409, 413, 422),
    description="Waits for `fetch.min.bytes`, which is one record unless the instance says otherwise. Accept has to name "
    "the instance's format, or none (40601). A record that is not of that format is refused (42206) and stays the next one.",
)
async def get_records(request: Request) -> Response:
    if request.method == "HEAD":
        raise Problem(405, 405, "records are not read without being answered", {"Allow": "GET"})
    await read_bytes(request)
    instances = instances_of(request)
    with _using(request) as entry:
        offered = (embedded(entry.options.format), *GENERIC)
        media_type = accepted(request, offered)
        if media_type is None:
            raise Problem(
                406,
                40601,
                f"the consumer instance has the format {entry.options.format}: Accept should be {offered[0]}",
            )
        timeout_s, bytes_max = _bounds(request, entry)
        if not (entry.topics or entry.pattern is not None or entry.is_assigned_by_hand):
            raise Problem(
                409,
                40903,
                "the consumer instance reads nothing yet: subscribe it to topics, or assign partitions",
            )
        read = entry.instance.read(timeout_s, entry.options.bytes_min, bytes_max)
        gone = asyncio.create_task(until_gone(request.receive))
        try:
            body = await _text_of(read, gone, timeout_s + instances.patience_s)
        except BaseException:
            gone.cancel()
            entry.instance.settle(read, is_delivered=False)
            raise
        return RecordsAnswer(body, media_type, instances=instances, entry=entry, read=read, gone=gone)


async def _text_of(read: Read, gone: asyncio.Task[None], patience_s: float) -> bytes:
    answered = asyncio.wrap_future(read.future)
    await asyncio.wait((answered, gone), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
    if answered.done():
        return answered.result()
    answered.cancel()
    if gone.done():
        raise ClientDisconnect
    raise Problem(503, 50003, "the consumer instance is busy with an earlier request")


def _bounds(request: Request, entry: Entry) -> tuple[float, int]:
    """Returns the wait in seconds, and the most bytes of an answer."""
    limits = request.app.state.settings.limits
    timeout, max_bytes = request.query_params.get("timeout"), request.query_params.get("max_bytes")
    timeout_s = (
        entry.options.timeout_s if timeout is None else number_in(timeout, "timeout", PARTITION_MAX) / 1000
    )
    bytes_max = limits.answer_bytes_max
    if max_bytes not in (None, "-1", "0"):
        bytes_max = min(bytes_max, number_in(max_bytes, "max_bytes", OFFSET_MAX + 1))
    return min(timeout_s, limits.poll_s_max), bytes_max


routes = part.routes
