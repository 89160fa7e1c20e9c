"""Serves the web console's requests under `/console/api`: pages of a picture of the cluster, messages, event streams.

They only read: changes go through v3. The shapes are in docs/decisions/0009, and in the OpenAPI document except for event
streams. A `Console` belongs to one access and holds what the routes share: with log-ins each user has its own, so that it
shows what that user may see.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
from collections.abc import AsyncIterator
from dataclasses import replace

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemill.claims.claim import Place
from tidemill.client.admin.topics import ResourceType
from tidemill.gateway.answers import json_answer
from tidemill.gateway.cluster import inquiries
from tidemill.gateway.cluster.access import Access, access_in, access_of, backend_of, session_id_of
from tidemill.gateway.cluster.backend import Admins, unknown_topic
from tidemill.gateway.console_api import browse, listing, whole_record
from tidemill.gateway.console_api.cluster_view import ClusterView
from tidemill.gateway.console_api.history import History
from tidemill.gateway.console_api.live import EventStream, Streams, cluster_events
from tidemill.gateway.console_api.picture import STATES, Picture, Row
from tidemill.gateway.console_api.rebalances import Rebalances
from tidemill.gateway.console_api.tail import tail_events
from tidemill.gateway.console_api.views import ViewList
from tidemill.gateway.http.metering import Meter
from tidemill.gateway.http.openapi import (
    BOOLEAN,
    INTEGER,
    LONG,
    STRING,
    Part,
    Schema,
    array,
    nullable,
    obj,
    query,
)
from tidemill.gateway.problems import Problem
from tidemill.protocol.api.cluster import MetadataResponseTopic

_REBALANCES_DEFAULT = 200
# Searches for messages at the same time; the others wait.
_READINGS_MAX = 4
_KEPT = "console"
_CONFIG_SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "CLIENT_METRICS_CONFIG",
    8: "GROUP_CONFIG",
}
_TOPIC_CONFIG = 1

part = Part("Console")

_BROKER_FIELDS = (
    "id",
    "host",
    "port",
    "rack",
    "is_controller",
    "is_up",
    "state",
    "leaders",
    "replicas",
    "out_of_sync",
    "bytes",
)
_TOPIC_FIELDS = (
    "name",
    "is_internal",
    "partitions",
    "replication_factor",
    "records",
    "bytes",
    "under_replicated",
    "offline",
    "records_in_per_s",
)
_PARTITION_FIELDS = ("partition", "leader", "leader_epoch", "start_offset", "end_offset", "bytes", "state")
_VIEW_FIELDS = ("name", "source", "filter", "partitions", "bytes_scanned", "bytes_shown", "records_shown")
_GROUP_FIELDS = ("group_id", "state", "protocol", "members", "coordinator", "lag", "in_flight")


class Console:
    def __init__(self, access: Access) -> None:
        backend = access.backend
        self.view = ClusterView(backend)
        self.history = History(self.view)
        self.rebalances = Rebalances(backend.settings)
        self.views = ViewList(backend, self.view)
        self.streams = Streams()
        # Each may take seconds, and a thread of the backend.
        self.readings = asyncio.Semaphore(_READINGS_MAX)
        self._sampler = asyncio.create_task(self.history.run(), name="console-history")
        access.closers.append(self.close)
        access.session_enders.append(self.streams.end_session)

    async def close(self) -> None:
        await self.streams.close()
        self._sampler.cancel()
        await asyncio.gather(self._sampler, return_exceptions=True)
        await self.view.close()


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """The console of all callers samples from the start; that of a user begins with the user's first look."""
    if app.state.access is not None:
        _console(app.state.access)
    meter: Meter = app.state.meter
    meter.add_gauge(
        "tidemill_gateway_event_streams",
        "Event streams of open consoles.",
        lambda: sum(len(console.streams) for console in _consoles(app)),
    )
    yield


async def close_streams(app: Starlette) -> None:
    """Before a server waits for what is under way: streams have no end of their own."""
    for console in _consoles(app):
        await console.streams.close()


def _consoles(app: Starlette) -> list[Console]:
    accesses = [app.state.access] if app.state.access is not None else app.state.accesses.all()
    return [console for access in accesses if (console := access.kept(_KEPT)) is not None]


def _console(access: Access) -> Console:
    return access.keep(_KEPT, lambda: Console(access))


def console_of(request: Request) -> Console:
    return _console(access_of(request))


class Changes:
    """Notices changes made through v3 and `/v1/views`, so that the next picture shows them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            path: str = scope["path"]
            # Records are not worth a picture each.
            if path.startswith(("/v3/", "/v1/views")) and not path.endswith("/records"):
                console: Console | None = access_in(scope).kept(_KEPT)
                if console is not None:
                    console.view.expire()
                    console.views.expire()


# --- what the document says ---


def _page_schema(item: Schema) -> Schema:
    return obj({"total": INTEGER, "items": array(item)})


_NUMBER: Schema = {"type": "number"}
_PAGE = (
    query("offset", {**LONG, "minimum": 0}, "How many to leave out."),
    query("limit", {"type": "integer", "minimum": 1, "maximum": listing.LIMIT_MAX}, "How many at most."),
    query("query", STRING, "Only those whose name has this in it, in any case."),
)


def _sort(fields: tuple[str, ...]) -> Schema:
    return query("sort", {"enum": [*fields, *(f"-{each}" for each in fields)]}, "By this; with - descending.")


_TOPIC = obj(
    {
        "name": STRING,
        "is_internal": BOOLEAN,
        "partitions": INTEGER,
        "replication_factor": INTEGER,
        "records": nullable(LONG),
        "bytes": nullable(LONG),
        "under_replicated": INTEGER,
        "offline": INTEGER,
        "records_in_per_s": nullable(_NUMBER),
    }
)
_GROUP = obj(
    {
        "group_id": STRING,
        "state": STRING,
        "protocol": STRING,
        "coordinator": INTEGER,
        "lag": nullable(LONG),
        "is_queue": BOOLEAN,
        "in_flight": nullable(LONG),
        "deliveries": STRING,
    }
)


# --- the cluster ---


@part.get(
    "/console/api/overview", "The cluster at a glance", answer=obj({"cluster_id": STRING, "as_of_ms": LONG})
)
async def overview(request: Request) -> Response:
    return json_answer((await console_of(request).view.look()).overview)


@part.get(
    "/console/api/brokers",
    "Brokers",
    answer=_page_schema(obj({"id": INTEGER, "host": STRING, "port": INTEGER})),
    errors=(400,),
    parameters=(*_PAGE, _sort(_BROKER_FIELDS)),
)
async def brokers(request: Request) -> Response:
    picture = await console_of(request).view.look()
    return json_answer(listing.page(request, picture.broker_rows, _BROKER_FIELDS, searched=_broker_text))


def _broker_text(row: Row) -> str:
    return f"{row['id']} {row['host']}:{row['port']} {row['rack'] or ''}"


# --- topics ---


@part.get(
    "/console/api/topics",
    "Topics",
    answer=_page_schema(_TOPIC),
    errors=(400,),
    parameters=(*_PAGE, _sort(_TOPIC_FIELDS), query("internal", BOOLEAN, "With Kafka's own topics.")),
)
async def topics(request: Request) -> Response:
    with_internal = listing.flag(request, "internal")
    picture = await console_of(request).view.look()
    rows = [row for row in picture.topic_rows if with_internal or not row["is_internal"]]
    return json_answer(listing.page(request, rows, _TOPIC_FIELDS, searched=operator.itemgetter("name")))


@part.get("/console/api/topics/{topic}", "A topic", answer=_TOPIC, errors=(404,))
async def topic(request: Request) -> Response:
    name = request.path_params["topic"]
    picture, found = await _topic(request, name)
    row = {
        **picture.topic_row(found),
        "configs": await _configs(request, name),
        "groups": [
            group.group_id
            for group in picture.groups.values()
            if any(partition.topic == name for partition in (*group.committed, *(group.shares or ())))
        ],
    }
    return json_answer(row)


async def _configs(request: Request, topic: str) -> list[Row] | None:
    """None for a caller that may see the topic and not its configuration."""
    try:
        configs = await backend_of(request).ask(
            lambda admins: admins.admin.describe_configs(ResourceType.TOPIC, topic)
        )
    except Problem as problem:
        if problem.status != 403:
            raise
        return None
    return [
        {
            "name": each.name,
            "value": each.value,
            "source": _CONFIG_SOURCES.get(each.config_source, "UNKNOWN"),
            "is_default": each.config_source != _TOPIC_CONFIG,
            "is_read_only": each.read_only,
            "is_sensitive": each.is_sensitive,
        }
        for each in sorted(configs, key=lambda each: each.name)
    ]


@part.get(
    "/console/api/topics/{topic}/partitions",
    "Partitions of a topic",
    answer=_page_schema(obj({"partition": INTEGER, "state": STRING})),
    errors=(400, 404),
    parameters=(
        *_PAGE,
        _sort(_PARTITION_FIELDS),
        query("state", {"enum": list(STATES)}, "Only those in it."),
    ),
)
async def partitions(request: Request) -> Response:
    state = listing.choice(request, "state", STATES)
    name = request.path_params["topic"]
    picture, found = await _topic(request, name)
    rows = [picture.partition_row(name, each) for each in found.partitions]
    if state is not None:
        rows = [row for row in rows if row["state"] == state]
    return json_answer(
        listing.page(request, rows, _PARTITION_FIELDS, searched=lambda row: str(row["partition"]))
    )


async def _topic(request: Request, name: str) -> tuple[Picture, MetadataResponseTopic]:
    """The topic in the picture. The cluster is queried for a missing one, because it may just have been created."""
    view = console_of(request).view
    picture = await view.look()
    found = picture.topology.topics.get(name)
    if found is None:
        existing = await backend_of(request).ask(lambda admins: admins.admin.existing_topics([name]))
        if name not in existing:
            raise unknown_topic(name)
        found = existing[name]
        found.partitions.sort(key=lambda each: each.partition_index)
        view.expire()
    return picture, found


# --- messages ---

_MESSAGES = part.schema(
    "ConsoleMessages",
    obj(
        {
            "items": array(obj({"partition": INTEGER, "offset": LONG, "timestamp_ms": LONG})),
            "scanned": INTEGER,
            "remaining": LONG,
            "is_complete": BOOLEAN,
            "next": {"type": "object", "additionalProperties": LONG},
            "previous": {"type": "object", "additionalProperties": LONG},
            "key_partition": nullable(INTEGER),
        }
    ),
)
_FILTERS = (
    query("partition", {**INTEGER, "minimum": 0}, "Only this one."),
    query("key", STRING, "Only records with this key."),
    query("contains", STRING, "Only records that have this in key, value or headers, in any case."),
    query(
        "isolation",
        {"enum": list(browse.ISOLATION_LEVELS)},
        "What an open or aborted transaction wrote counts, or not.",
    ),
)


@part.get(
    "/console/api/topics/{topic}/messages",
    "Messages of a topic",
    answer=_MESSAGES,
    errors=(400, 404),
    parameters=(
        *_FILTERS,
        query("from", STRING, "earliest, latest, offset:N, time:MS, offsets:P:N,P:N or before:P:N,P:N."),
        query("limit", {"type": "integer", "minimum": 1, "maximum": browse.LIMIT_MAX}, "How many at most."),
        query(
            "max_scan", {"type": "integer", "minimum": 1, "maximum": browse.SCAN_MAX}, "How many to look at."
        ),
    ),
)
async def messages(request: Request) -> Response:
    name = request.path_params["topic"]
    wanted = browse.parse_query(request)

    def read(admins: Admins) -> Row:
        return browse.read(admins.admin, name, wanted)

    async with console_of(request).readings:
        return json_answer(await backend_of(request).ask(read))


@part.get(
    "/console/api/topics/{topic}/messages/{partition}/{offset}/{part}",
    "The whole key or value of a record",
    answer={"application/octet-stream": {"type": "string", "format": "binary"}},
    errors=(400, 404, 409, 413),
    description="`part` is key or value. The bytes are as they were written; there are none (404) where it is null. "
    "A payload in an object store is read from there; 409 when that is not possible, 413 above the limit.",
)
async def message_part(request: Request) -> Response:
    name, what = request.path_params["topic"], request.path_params["part"]
    if what not in whole_record.PARTS:
        raise Problem(404, 404, f"a record has a key and a value, no {what[:50]!r}")
    index = listing.whole_number("the partition", request.path_params["partition"], 0, 2**31 - 1)
    offset = listing.whole_number("the offset", request.path_params["offset"])
    backend, place = backend_of(request), Place(name, index, offset)
    async with console_of(request).readings:
        record = await backend.ask(lambda admins: whole_record.read_record(admins.admin, place))
    data = await whole_record.part_of(record, place, what, backend.payloads)
    file_name = whole_record.file_name(name, index, offset, what)
    # What others wrote is a file, never a page of this site.
    headers = {
        "Content-Disposition": f'attachment; filename="{file_name}"',
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    return Response(data, headers=headers, media_type="application/octet-stream")


async def tail(request: Request) -> Response:
    console = console_of(request)
    console.streams.admit()
    wanted = browse.parse_query(request)
    events = await tail_events(backend_of(request), request.path_params["topic"], wanted)
    return EventStream(console.streams, events, session_id_of(request))


# --- views ---

_VIEW = obj(
    {
        "name": STRING,
        "source": STRING,
        "filter": STRING,
        "partitions": INTEGER,
        "bytes_scanned": nullable(LONG),
        "records_scanned": nullable(LONG),
        "bytes_shown": nullable(LONG),
        "records_shown": nullable(LONG),
    }
)


@part.get(
    "/console/api/views",
    "Views",
    answer=_page_schema(_VIEW),
    errors=(400,),
    parameters=(*_PAGE, _sort(_VIEW_FIELDS)),
    description="Counts are since the brokers started; null where their status listeners are not known.",
)
async def views(request: Request) -> Response:
    rows = await console_of(request).views.rows()
    return json_answer(listing.page(request, rows, _VIEW_FIELDS, searched=_view_text))


def _view_text(row: Row) -> str:
    return f"{row['name']} {row['source']} {row['filter']}"


# --- groups ---


@part.get(
    "/console/api/groups",
    "Groups",
    answer=_page_schema(_GROUP),
    errors=(400,),
    parameters=(*_PAGE, _sort(_GROUP_FIELDS)),
)
async def groups(request: Request) -> Response:
    picture = await console_of(request).view.look()
    return json_answer(
        listing.page(request, picture.group_rows, _GROUP_FIELDS, searched=operator.itemgetter("group_id"))
    )


@part.get("/console/api/groups/{group}", "A group", answer=_GROUP, errors=(404,))
async def group(request: Request) -> Response:
    name = request.path_params["group"]
    picture = await console_of(request).view.look()
    found = picture.groups.get(name)
    if found is None:
        # It may be too new for the picture.
        new = await backend_of(request).ask(lambda admins: inquiries.group(admins.group_admin, name))
        if new is None:
            raise Problem(404, 40403, f"there is no group {name}")
        found, ends = new
        picture = replace(picture, end_offsets=ends or picture.end_offsets)
        console_of(request).view.expire()
    row = {
        **picture.group_row(found),
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "instance_id": member.instance_id,
                "partitions": [each._asdict() for each in member.assignment],
            }
            for member in found.members
        ],
        "offsets": [] if found.shares is not None else picture.offset_rows(found),
        "shares": picture.share_rows(found),
    }
    return json_answer(row)


_POINTS = obj({"points": array(array(nullable(_NUMBER))), "interval_ms": INTEGER})


@part.get("/console/api/groups/{group}/lag", "A group's lag over the last hour", answer=_POINTS)
async def lag(request: Request) -> Response:
    return json_answer(console_of(request).history.lag(request.path_params["group"]))


@part.get("/console/api/throughput", "Throughput over the last hour", answer=_POINTS)
async def throughput(request: Request) -> Response:
    return json_answer(console_of(request).history.throughput())


@part.get(
    "/console/api/rebalances",
    "Rebalances, newest first",
    answer=obj({"is_known": BOOLEAN, "items": array(obj({"at_ms": LONG, "group_id": STRING}))}),
    errors=(400,),
    parameters=(
        query("group", STRING, "Only of this group."),
        query("limit", {"type": "integer", "minimum": 1, "maximum": listing.LIMIT_MAX}, "How many at most."),
    ),
)
async def rebalances(request: Request) -> Response:
    limit = listing.number(request, "limit", _REBALANCES_DEFAULT, 1, listing.LIMIT_MAX)
    wanted = listing.text(request, "group")
    console = console_of(request)
    # The status listeners know all groups, and nothing of users.
    is_restricted = access_of(request).username is not None
    visible = (await console.view.look()).groups if is_restricted else None
    return json_answer(await console.rebalances.newest(wanted, limit, visible))


async def live(request: Request) -> Response:
    console = console_of(request)
    console.streams.admit()
    return EventStream(console.streams, cluster_events(console.view), session_id_of(request))


routes: list[BaseRoute] = [
    *part.routes,
    Route("/console/api/topics/{topic}/tail", tail),
    Route("/console/api/live", live),
]
