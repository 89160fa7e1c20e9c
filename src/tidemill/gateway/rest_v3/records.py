"""v3: producing records, one or a stream of them, over one request.

The body is one record, or several one after the other. Each is answered by a report, in their order: `error_code` 200
with partition and offset, or what went wrong with this one; the others go on. What was reported with an offset is in
the log.

One record that was sent with a Content-Length is answered like any other request: its failure is the HTTP status.
Several, or a chunked body, are a stream: the status is 200 as soon as the topic is known to exist, and reports are
sent while records still come in. A body that stops to be JSON ends the stream with a last report that says where.

A stream has at most `stream_records_pending_max` records without a report; then the gateway stops reading until the
cluster, or a caller that does not read its reports, has caught up.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidemill.gateway.answers import JSON, json_bytes
from tidemill.gateway.cluster.backend import Backend, Delivery
from tidemill.gateway.http.bodies import check_media_type, kind_of, limits_of, stream_json
from tidemill.gateway.http.formats import Kind, encode, from_base64, integer, invalid, member, only, text
from tidemill.gateway.http.openapi import ANY, INTEGER, LONG, STRING, Part, Schema, array, nullable, obj
from tidemill.gateway.problems import Problem
from tidemill.gateway.rest_v3.shapes import cluster_of
from tidemill.gateway.rest_v3.topics import objects
from tidemill.gateway.turns import turn_of

part = Part("Records (v3)", is_negotiated=True)

_KINDS = {kind.name: kind for kind in Kind}
_RECORD_FIELDS = frozenset(("partition_id", "headers", "key", "value", "timestamp"))
_DATA_FIELDS = frozenset(("type", "data"))
_SCHEMA_KINDS = ("AVRO", "JSONSCHEMA", "PROTOBUF")
_SCHEMA_FIELDS = frozenset(("subject", "subject_name_strategy", "schema_id", "schema_version", "schema"))
_REPORTS_BYTES = 16_384
_TIMESTAMP_MS_MAX = 253_402_300_799_999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_DATA: Schema = {
    "anyOf": [
        obj({"type": {"const": "JSON"}}, {"data": ANY}, is_closed=True),
        obj({"type": {"const": "STRING"}}, {"data": nullable(STRING)}, is_closed=True),
        obj(
            {"type": {"const": "BINARY"}},
            {"data": nullable({"type": "string", "contentEncoding": "base64", "format": "byte"})},
            is_closed=True,
        ),
        {"type": "null"},
    ]
}
_RECORD = part.schema(
    "Record",
    obj(
        {},
        {
            "partition_id": nullable({"type": "integer", "minimum": 0, "maximum": 2**31 - 1}),
            "headers": nullable(
                array(
                    obj(
                        {"name": STRING},
                        {
                            "value": nullable(
                                {"type": "string", "contentEncoding": "base64", "format": "byte"}
                            )
                        },
                        is_closed=True,
                    )
                )
            ),
            "key": _DATA,
            "value": _DATA,
            "timestamp": nullable({"type": "string", "format": "date-time"}),
        },
        is_closed=True,
    ),
)
_WRITTEN = nullable(obj({"type": STRING, "size": INTEGER}))
_REPORT = part.schema(
    "Report",
    obj(
        {"error_code": INTEGER},
        {
            "message": STRING,
            "cluster_id": STRING,
            "topic_name": STRING,
            "partition_id": INTEGER,
            "offset": LONG,
            "timestamp": nullable({"type": "string", "format": "date-time"}),
            "key": _WRITTEN,
            "value": _WRITTEN,
        },
    ),
)


class _Record(NamedTuple):
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int | None
    key_kind: str
    value_kind: str


class _Handed(NamedTuple):
    """A record that was handed over."""

    record: _Record
    future: asyncio.Future[Delivery]


@part.post(
    "/v3/clusters/{cluster_id}/topics/{topic_name}/records",
    "Produce records",
    description="The body is one record, or several one after the other; each is answered by a report, in their order.",
    body=_RECORD,
    answer=_REPORT,
    answer_description="Where the record was written. For several records, one report after the other.",
    errors=(404,),
)
async def produce_records(request: Request) -> Response:
    cluster = await cluster_of(request)
    check_media_type(request)
    topic: str = request.path_params["topic_name"]
    await cluster.backend.partition_count(topic)
    produced = _Topic(cluster.backend, cluster.id, topic)
    documents = stream_json(request)
    if "content-length" not in request.headers:
        return _Reports(_Stream(request, produced, documents))
    # The whole body is on its way, so that a second record, or that there is none, can be waited for.
    first = await anext(documents, None)
    if first is None:
        raise Problem(400, 400, "the body is empty; it should be a record as JSON")
    second: Any
    try:
        second = await anext(documents, None)
    except Problem as problem:
        second = problem
    if second is None:
        return Response(await produced.report(await produced.hand_over(first)), media_type=JSON)
    return _Reports(_Stream(request, produced, documents, first, second))


class _Topic:
    """Produces the records of a request to its topic, and writes their reports."""

    def __init__(self, backend: Backend, cluster_id: str, topic: str) -> None:
        self._backend = backend
        self._topic = topic
        self._prefix = (
            f'{{"error_code":200,"cluster_id":{json.dumps(cluster_id)},"topic_name":{json.dumps(topic)},'
        )

    async def hand_over(self, document: Mapping[str, Any]) -> _Handed:
        record = _record(document)
        future = await self._backend.submit(
            self._topic, record.partition, record.key, record.value, record.headers, record.timestamp_ms
        )
        return _Handed(record, future)

    async def report(self, handed: _Handed) -> bytes:
        """Returns the report of an acknowledged record. Raises its failure."""
        record, delivery = handed.record, await handed.future
        stamp = "null" if delivery.timestamp_ms is None else f'"{_time_text(delivery.timestamp_ms)}"'
        return (
            f'{self._prefix}"partition_id":{delivery.partition},"offset":{delivery.offset},"timestamp":{stamp},'
            f'"key":{_written(record.key_kind, record.key)},"value":{_written(record.value_kind, record.value)}}}'
        ).encode()


class _Stream:
    """Reads records and hands them over, in a task of its own; the writer of reports takes them with `next`."""

    def __init__(
        self,
        request: Request,
        produced: _Topic,
        documents: AsyncIterator[Any],
        *first: dict[str, Any] | Problem,
    ) -> None:
        """`first` are documents that were read already; a problem among them is the last."""
        self._produced = produced
        self._documents = documents
        self._first = first
        # Taken from the queue, but not reported yet.
        self._item: _Handed | Problem | None = None
        self._is_ended = False
        self._is_closed = False
        self._draining: asyncio.Event = request.app.state.draining
        self._queue: asyncio.Queue[_Handed | Problem | None] = asyncio.Queue(
            limits_of(request).stream_records_pending_max
        )
        self._turn = turn_of(request)
        self._reader = asyncio.create_task(self._read())
        self._drainer = asyncio.create_task(self._end_when_drained())

    async def next(self) -> bytes:
        """The next reports, one a line: those that are there, and one if it has to be waited for. Nothing at the end."""
        if self._turn.is_over:
            await self._turn.give_way()
        reports = bytearray()
        while not self._is_ended and len(reports) < _REPORTS_BYTES:
            if self._item is None:
                if reports and self._queue.empty():
                    break
                self._item = await self._queue.get()
            item = self._item
            if item is None:
                self._is_ended = True
            elif reports and isinstance(item, _Handed) and not item.future.done():
                break
            else:
                self._item = None
                reports += await self._report(item) + b"\n"
        return bytes(reports)

    async def _report(self, item: _Handed | Problem) -> bytes:
        try:
            if isinstance(item, Problem):
                raise item
            return await self._produced.report(item)
        except Problem as problem:
            return json_bytes(problem.body())

    async def close(self) -> None:
        self._is_closed = True
        self._reader.cancel()
        self._drainer.cancel()
        await asyncio.wait((self._reader, self._drainer))

    async def _end_when_drained(self) -> None:
        """A stopping gateway takes no more records; those it took are still reported."""
        await self._draining.wait()
        self._reader.cancel()

    async def _read(self) -> None:
        try:
            await self._hand_over()
        except asyncio.CancelledError:
            if self._is_closed:
                raise
        await self._queue.put(None)

    async def _hand_over(self) -> None:
        try:
            for each in self._first:
                if isinstance(each, Problem):
                    raise each
                await self._take(each)
            async for document in self._documents:
                await self._take(document)
        except Problem as problem:
            await self._queue.put(problem)
        except ClientDisconnect:
            # Records that were handed over are written, although no caller is left for their reports.
            return

    async def _take(self, document: dict[str, Any]) -> None:
        try:
            await self._queue.put(await self._produced.hand_over(document))
        except Problem as problem:
            await self._queue.put(problem)


class _Reports(Response):
    """The reports of a stream, while its records come in."""

    def __init__(self, stream: _Stream) -> None:
        super().__init__(media_type=JSON)
        del self.headers["content-length"]
        self._stream = stream

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            while reports := await self._stream.next():
                await send({"type": "http.response.body", "body": reports, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._stream.close()


# --- one record ---


def _record(document: Mapping[str, Any]) -> _Record:
    only(document, _RECORD_FIELDS, "the record")
    partition = document.get("partition_id")
    key_kind, key = _data(document.get("key"), "key")
    value_kind, value = _data(document.get("value"), "value")
    return _Record(
        None if partition is None else integer(partition, "partition_id", 0, 2**31 - 1),
        key,
        value,
        _headers(document.get("headers")),
        _timestamp_ms(document.get("timestamp")),
        key_kind,
        value_kind,
    )


def _data(given: Any, where: str) -> tuple[str, bytes | None]:
    if given is None:
        return "BINARY", None
    if not isinstance(given, dict):
        raise invalid(
            f'{where} should be an object such as {{"type": "JSON", "data": 1}}, not {kind_of(given)}'
        )
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise _unknown_kind(given, where)
    only(given, _DATA_FIELDS, where)
    return kind, encode(_KINDS[kind], given.get("data"), f"{where}.data")


def _unknown_kind(given: Mapping[str, Any], where: str) -> Problem:
    if _SCHEMA_FIELDS & given.keys() or given.get("type") in _SCHEMA_KINDS:
        return invalid(
            f"{where} needs a schema registry, which is not supported; {where}.type is BINARY, JSON or STRING"
        )
    if "type" not in given:
        return invalid(f"{where}.type is missing; it should be BINARY, JSON or STRING")
    return invalid(f"{where}.type should be BINARY, JSON or STRING, not {json.dumps(given['type'])[:40]}")


def _headers(given: Any) -> list[tuple[str, bytes | None]]:
    if given is None:
        return []
    headers = []
    for index, each in enumerate(objects(given, "headers")):
        where = f"headers[{index}]"
        only(each, {"name", "value"}, where)
        name = member(each, "name", str, where)
        value = each.get("value")
        place = f"{where}.value"
        headers.append((name, None if value is None else from_base64(text(value, place), place)))
    return headers


def _timestamp_ms(given: Any) -> int | None:
    if given is None:
        return None
    written = text(given, "timestamp")
    try:
        moment = datetime.fromisoformat(written)
        if moment.tzinfo is None:
            raise ValueError("no time zone")
        stamp = round((moment - _EPOCH).total_seconds() * 1000)
    except (ValueError, OverflowError):
        raise invalid(f"timestamp should be such as 2026-02-05T19:14:42Z, not {written[:40]!r}") from None
    return integer(stamp, "timestamp, in milliseconds,", 0, _TIMESTAMP_MS_MAX)


def _time_text(timestamp_ms: int) -> str:
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def _written(kind: str, data: bytes | None) -> str:
    return "null" if data is None else f'{{"type":"{kind}","size":{len(data)}}}'


routes = part.routes
