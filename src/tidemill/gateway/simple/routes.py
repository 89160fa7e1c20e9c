"""`POST /v1/topics/{topic}/produce`: producing without knowing anything else, and the gateway's own `/healthz`.

What the body is, its Content-Type says:

    application/json              one record, or {"records": [...]}; records.py has what a record is
    text/plain, application/octet-stream     one record's value, as it is
    application/x-ndjson          one record a line, written as they come: the body may be as long as it likes

`key`, `partition` and `timestamp_ms` in the query are for records that do not have their own. Of JSON nothing is
written unless all records can be read. The answer has where each was written; if the cluster did not take one, the
status is that of the first failure, and the answer still has all the others. Of a stream, the answer is a summary:
how many were written, and offsets by partition. It ends with the first line that cannot be read or is not taken,
whose number is `line`: the lines before it are written. Up to `stream_records_pending_max` lines after one that the
cluster did not take may be written as well, and are counted in `written`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill import __version__
from tidemill.gateway.answers import JSON, json_answer, json_bytes_in_turns
from tidemill.gateway.cluster.access import backend_of
from tidemill.gateway.cluster.backend import Backend, Delivery
from tidemill.gateway.http.bodies import (
    check_containers,
    check_media_type,
    decode_text,
    limits_of,
    media_type_of,
    parse_json,
    read_bytes,
    stream_lines,
)
from tidemill.gateway.http.formats import invalid, member, number_in
from tidemill.gateway.http.openapi import (
    INTEGER,
    LONG,
    PARTITION,
    PARTITION_MAX,
    STRING,
    Part,
    array,
    nullable,
    obj,
    query,
)
from tidemill.gateway.http.record_bodies import read_records
from tidemill.gateway.problems import Problem
from tidemill.gateway.settings import Limits
from tidemill.gateway.simple import dead_letters, delays, queues, shrinks, views
from tidemill.gateway.simple import read as simple_read
from tidemill.gateway.simple.records import SCHEMA, TIMESTAMP_MAX, Defaults, SimpleRecord
from tidemill.gateway.simple.times import MEMBERS
from tidemill.gateway.turns import turn_of

part = Part("Simple")

NDJSON = "application/x-ndjson"
_PLAIN = ("text/plain", "application/octet-stream")
_TYPES = (JSON, *_PLAIN, NDJSON)

Record = part.schema("SimpleRecord", SCHEMA)
Records = part.schema(
    "SimpleRecords", obj({"records": {**array(Record), "minItems": 1}}, additionalProperties=False)
)
_offset = {"partition": nullable(INTEGER), "offset": nullable(LONG), "timestamp_ms": nullable(LONG)}
_range = obj({"partition": INTEGER, "first_offset": LONG, "last_offset": LONG, "records": LONG})
Written = part.schema(
    "SimpleWritten",
    obj({"written": LONG, "offsets": array({"anyOf": [obj(_offset, {"error": STRING}), _range]})}),
)


@part.get("/healthz", "Whether the gateway runs", answer=obj({"status": STRING, "version": STRING}))
async def get_health(_: Request) -> Response:
    return json_answer({"status": "ok", "version": __version__})


@part.post(
    "/v1/topics/{topic}/produce",
    "Produce records",
    body={
        JSON: {"anyOf": [Record, Records]},
        "text/plain": STRING,
        "application/octet-stream": {"type": "string", "format": "binary"},
        NDJSON: Record,
    },
    parameters=(
        query("key", STRING, "The key of records that have none of their own."),
        query("partition", PARTITION, "Their partition, likewise."),
        query("timestamp_ms", {**LONG, "minimum": 0, "maximum": TIMESTAMP_MAX}, "Their timestamp, likewise."),
        query("delay", STRING, "How long they wait, such as `15m`; for records without a time of their own."),
        query("deliver_at", STRING, "When they are delivered, likewise."),
        query("cron", STRING, "Their schedule, likewise."),
        query("time_zone", STRING, "The schedule's time zone."),
        query("schedule_id", STRING, "The name of the delayed message."),
    ),
    answer=Written,
    errors=(404,),
    description="A value is written as JSON (or as `format` says: text, binary), a key that is a string as it is.",
)
async def produce(request: Request) -> Response:
    check_media_type(request, _TYPES)
    defaults = Defaults(
        key=request.query_params.get("key"),
        partition=_query_integer(request, "partition", PARTITION_MAX),
        timestamp_ms=_query_integer(request, "timestamp_ms", TIMESTAMP_MAX),
        times={name: text for name, text in request.query_params.items() if name in MEMBERS},
    )
    match media_type_of(request):
        case "application/x-ndjson":
            return await _produce_lines(request, defaults)
        case "application/json":
            records = await _records(request, defaults)
        case _:
            records = [SimpleRecord({"value": None}, "the record", defaults)]
            records[0].value = await read_bytes(request)
    return await _produce_all(request, records)


async def _records(request: Request, defaults: Defaults) -> list[SimpleRecord]:
    members, records = await read_records(
        request, lambda record, number: SimpleRecord(record, f"records[{number}]", defaults)
    )
    if records is None:
        if "records" not in members:
            return [SimpleRecord(members, "the record", defaults)]
        records = member(members, "records", list)
    if not records:
        raise invalid("records is empty")
    if members:
        raise invalid(f"{min(members)!r} belongs into a record, not beside records")
    return records


def _query_integer(request: Request, name: str, high: int) -> int | None:
    value = request.query_params.get(name)
    return None if value is None else number_in(value, name, high)


async def _produce_all(request: Request, records: list[SimpleRecord]) -> Response:
    topic = request.path_params["topic"]
    backend = backend_of(request)
    # The topic is looked for first, so that one that does not exist is no failure of a record.
    await backend.partition_count(topic)
    turn = turn_of(request)
    handed_over: list[asyncio.Future[Delivery] | Problem] = []
    for record in records:
        try:
            handed_over.append(await record.hand_over(backend, topic))
        except Problem as problem:
            handed_over.append(problem)
        if turn.is_over:
            await turn.give_way()
    offsets = []
    problems = []
    for delivery in handed_over:
        outcome = await _outcome(delivery)
        offsets.append(_entry(outcome))
        if isinstance(outcome, Problem):
            problems.append(outcome)
        if turn.is_over:
            await turn.give_way()
    answer: dict[str, Any] = {"written": len(offsets) - len(problems), "offsets": offsets}
    if not problems:
        return Response(await json_bytes_in_turns(answer, turn), media_type=JSON)
    first = problems[0]
    refusal = await json_bytes_in_turns({**first.body(), **answer}, turn)
    return Response(refusal, first.status, first.headers, JSON)


async def _outcome(delivery: asyncio.Future[Delivery] | Problem) -> Delivery | Problem:
    if isinstance(delivery, Problem):
        return delivery
    try:
        return await delivery
    except Problem as problem:
        return problem


def _entry(outcome: Delivery | Problem) -> dict[str, Any]:
    if isinstance(outcome, Problem):
        return {"partition": None, "offset": None, "timestamp_ms": None, "error": outcome.message}
    return {"partition": outcome.partition, "offset": outcome.offset, "timestamp_ms": outcome.timestamp_ms}


# --- lines ---


async def _produce_lines(request: Request, defaults: Defaults) -> Response:
    topic = request.path_params["topic"]
    backend = backend_of(request)
    await backend.partition_count(topic)
    stream = _Stream(limits_of(request), defaults)
    number = 0
    try:
        async for line in stream_lines(request, media_types=(NDJSON,)):
            number += 1
            if line.strip():
                await stream.write(number, line, backend, topic)
            if stream.failure is not None:
                break
    except Problem as problem:
        # Too long or too slow: the line after the last that was whole.
        stream.fail(number + 1, problem)
    await stream.drain()
    return stream.answer()


def _parsed(line: bytes, containers_max: int) -> Any:
    try:
        check_containers(decode_text(line), containers_max)
        return parse_json(line)
    except Problem as problem:
        raise Problem(
            problem.status, problem.error_code, problem.message.replace("the body", "it", 1)
        ) from None


class _Stream:
    """The lines that wait for their acknowledgement, in their order, and what became of the others."""

    def __init__(self, limits: Limits, defaults: Defaults) -> None:
        self._pending_max = limits.stream_records_pending_max
        self._containers_max = limits.record_containers_max
        self._defaults = defaults
        self._pending: deque[tuple[int, asyncio.Future[Delivery]]] = deque()
        self._ranges: dict[int, dict[str, int]] = {}
        self.failure: tuple[int, Problem] | None = None

    async def write(self, number: int, line: bytes, backend: Backend, topic: str) -> None:
        try:
            record = SimpleRecord(_parsed(line, self._containers_max), "the record", self._defaults)
            delivery = await record.hand_over(backend, topic)
        except Problem as problem:
            self.fail(number, problem)
            return
        self._pending.append((number, delivery))
        while self._pending and (len(self._pending) >= self._pending_max or self._pending[0][1].done()):
            await self._settle()

    async def drain(self) -> None:
        while self._pending:
            await self._settle()

    def fail(self, number: int, problem: Problem) -> None:
        if self.failure is None or number < self.failure[0]:
            self.failure = number, problem

    async def _settle(self) -> None:
        number, delivery = self._pending.popleft()
        outcome = await _outcome(delivery)
        if isinstance(outcome, Problem):
            self.fail(number, outcome)
            return
        found = self._ranges.setdefault(outcome.partition, {"first_offset": outcome.offset, "records": 0})
        found["first_offset"] = min(found["first_offset"], outcome.offset)
        found["last_offset"] = max(found.get("last_offset", outcome.offset), outcome.offset)
        found["records"] += 1

    def answer(self) -> Response:
        offsets = [{"partition": partition, **found} for partition, found in sorted(self._ranges.items())]
        written = sum(found["records"] for found in self._ranges.values())
        summary = {"written": written, "offsets": offsets}
        if self.failure is None:
            return json_answer(summary)
        number, problem = self.failure
        body = {"error_code": problem.error_code, "message": f"line {number}: {problem.message}"}
        # What the caller still sends is not read.
        headers = {**problem.headers, "Connection": "close"}
        return json_answer({**body, "line": number, **summary}, problem.status, headers)


lifespan = queues.lifespan
routes = [
    *part.routes,
    *simple_read.part.routes,
    *queues.part.routes,
    *dead_letters.part.routes,
    *delays.part.routes,
    *shrinks.part.routes,
    *views.part.routes,
]
