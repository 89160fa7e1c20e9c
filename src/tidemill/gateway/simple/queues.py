"""`/v1/queues/{group}/workers`: jobs of a share group over HTTP, each acknowledged by itself.

A worker is a member of the group that lives in this gateway (`workers.py`). Its caller takes jobs, each with a receipt, and
says of each receipt what became of the job:

    done      it is finished, and never delivered again
    retry     it comes again, to any worker; that counts as an attempt. With `after` it comes after that time, in a topic
              with delays, and the last attempt fails it
    fail      it is given up, and becomes a dead letter where the group has a topic for them
    extend    the time of its lock begins anew

A job whose lock has ended is another worker's: its receipt is `lost`. An outcome is answered when it is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import partial

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tidemill.claims.claim import Place, has_claim
from tidemill.client.admin.share_groups import ShareGroupAdmin
from tidemill.delays.cron import InvalidSchedule, parse_duration
from tidemill.gateway.answers import JSON, json_answer, json_bytes
from tidemill.gateway.cluster.access import access_of, backend_of
from tidemill.gateway.cluster.backend import Backend
from tidemill.gateway.cluster.payloads import Payloads
from tidemill.gateway.http.bodies import limits_of, read_bytes, read_json_object
from tidemill.gateway.http.formats import invalid, member, number_in, only, text
from tidemill.gateway.http.metering import Meter
from tidemill.gateway.http.openapi import INTEGER, LONG, STRING, TOPIC_NAME, Part, array, obj, query
from tidemill.gateway.problems import Problem
from tidemill.gateway.simple import times
from tidemill.gateway.simple.read import RECORD, record_json, resolved
from tidemill.gateway.simple.workers import (
    DONE,
    EXTENDED,
    FAILED,
    JOBS_MAX,
    LOST,
    RETRIED,
    UNANSWERED,
    UNKNOWN,
    Job,
    Worker,
    Workers,
)

part = Part("Queues")

_LIMIT = 10
_WAIT_MS, _WAIT_MS_MAX = 1000, 2**31 - 1
_TOPICS_MAX = 100
_STARTS = ("earliest", "latest")
# Where the broker does not say after how many attempts a job is given up.
_ATTEMPTS_MAX_DEFAULT = 5
# The members of a body with receipts, and the outcome that each asks for.
_OUTCOMES = {"done": DONE, "retry": RETRIED, "fail": FAILED, "extend": EXTENDED}

Hiring = part.schema(
    "CreateWorker",
    obj(
        {"topics": {**array(TOPIC_NAME), "minItems": 1, "maxItems": _TOPICS_MAX}},
        {"start": {"enum": list(_STARTS)}},
        is_closed=True,
    ),
)
Hired = part.schema("Worker", obj({"worker": STRING}))
_JOB = obj(
    {
        **RECORD["properties"],
        "receipt": STRING,
        "topic": STRING,
        "attempt": INTEGER,
        "lock_ms": LONG,
    },
    {"error": STRING},
)
_JOB["required"] = ["receipt", "topic", "attempt", "lock_ms", *RECORD["required"]]
Jobs = part.schema("Jobs", obj({"jobs": array(_JOB)}))
_RECEIPTS = {**array(STRING), "maxItems": JOBS_MAX}
Outcomes = part.schema(
    "JobOutcomes",
    obj(
        {},
        {**dict.fromkeys(_OUTCOMES, _RECEIPTS), "after": times.SCHEMAS["delay"]},
        is_closed=True,
        minProperties=1,
        dependentRequired={"after": ["retry"]},
    ),
)
Settled = part.schema(
    "SettledJobs",
    obj(
        {
            "outcomes": array(
                obj(
                    {
                        "receipt": STRING,
                        "outcome": {"enum": [*_OUTCOMES.values(), LOST, UNKNOWN, UNANSWERED]},
                    },
                    {"error": STRING},
                )
            )
        }
    ),
)


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    workers = app.state.workers = Workers(app.state.settings)
    meter: Meter = app.state.meter
    meter.add_gauge("tidemill_gateway_workers", "Workers of queues that live here.", lambda: len(workers))
    expiry = asyncio.create_task(workers.expire())
    try:
        yield
    finally:
        expiry.cancel()
        await workers.close()


def _workers_of(request: Request) -> Workers:
    workers: Workers = request.app.state.workers
    return workers


def _using(request: Request) -> contextlib.AbstractContextManager[Worker]:
    group, worker_id = request.path_params["group"], request.path_params["worker"]
    return _workers_of(request).using(access_of(request).owner, group, worker_id)


# --- workers ---


@part.post(
    "/v1/queues/{group}/workers",
    "Create a worker, a member of a share group",
    body=Hiring,
    answer=Hired,
    status=201,
    errors=(404,),
    description="`start` is where a new group begins: `earliest` (the default) or `latest`, unless its settings say it. "
    "A worker without requests leaves its group after a while, and so does one that is deleted.",
)
async def create_worker(request: Request) -> Response:
    document = await read_json_object(request)
    only(document, {"topics", "start"})
    topics = [text(each, "topics") for each in member(document, "topics", list)]
    if not 0 < len(topics) <= _TOPICS_MAX:
        raise invalid(f"topics should have 1 to {_TOPICS_MAX} names")
    start = text(document.get("start", _STARTS[0]), "start")
    if start not in _STARTS:
        raise invalid(f"start should be earliest or latest, not {start[:50]!r}")
    group, backend = request.path_params["group"], backend_of(request)
    for topic in topics:
        await backend.partition_count(topic)
    attempts_max = await _prepare(backend, group, start)
    worker = _workers_of(request).create(access_of(request), group, list(dict.fromkeys(topics)), attempts_max)
    return json_answer({"worker": worker.id}, 201)


async def _prepare(backend: Backend, group: str, start: str) -> int:
    """Returns after how many attempts a job is given up."""
    try:
        limit = await backend.ask(lambda admins: ShareGroupAdmin(admins.cluster).prepare(group, start))
    except Problem as problem:
        # Without the right to do so the group begins where the broker says.
        if problem.status != 403:
            raise
        limit = None
    return limit or _ATTEMPTS_MAX_DEFAULT


@part.delete(
    "/v1/queues/{group}/workers/{worker}",
    "Delete a worker; what it holds goes to others at once",
    errors=(404,),
)
async def delete_worker(request: Request) -> Response:
    group, worker_id = request.path_params["group"], request.path_params["worker"]
    await _workers_of(request).delete(access_of(request).owner, group, worker_id)
    return Response(status_code=204)


# --- jobs ---


@part.post(
    "/v1/queues/{group}/workers/{worker}/jobs",
    "Take the next jobs",
    answer=Jobs,
    errors=(400, 404, 408, 413),
    parameters=(
        query(
            "limit",
            {**INTEGER, "minimum": 1, "maximum": JOBS_MAX},
            f"At most so many jobs; {_LIMIT} without it.",
        ),
        query(
            "wait_ms",
            {**INTEGER, "minimum": 0},
            f"How long to wait when there is none; {_WAIT_MS} without it.",
        ),
    ),
    description="Each job is locked for this worker for `lock_ms`; settle or extend it before. `attempt` counts its "
    "deliveries and delayed retries. A job whose payload cannot be read from the object store has `error` in place of its "
    "value. What was taken for a caller that has gone away is released.",
)
async def take_jobs(request: Request) -> Response:
    limit = number_in(request.query_params.get("limit", str(_LIMIT)), "limit", JOBS_MAX)
    wait_ms = number_in(request.query_params.get("wait_ms", str(_WAIT_MS)), "wait_ms", _WAIT_MS_MAX)
    if limit == 0:
        raise Problem(400, 400, "limit should be at least 1")
    # There is none: what comes later from this caller is that it has gone.
    await read_bytes(request)
    wait_s = min(wait_ms / 1000, limits_of(request).poll_s_max)
    with _using(request) as worker:
        try:
            taken = await worker.take(limit, wait_s, request.is_disconnected)
        except Problem:
            # It was refused, and will not do anything any more.
            _workers_of(request).end(worker)
            raise
        if await request.is_disconnected():
            await asyncio.gather(*(worker.settle(receipt, RETRIED) for receipt in taken))
            raise ClientDisconnect
        lock_ms = {receipt: worker.lock_ms(job) for receipt, job in taken.items()}
        payloads = backend_of(request).payloads
        has_claims = any(has_claim(each.record.value, each.record.headers) for each in taken.values())
        # A store may take long, and holds up no jobs without claims.
        in_thread = payloads.run if has_claims else asyncio.to_thread
        body = await in_thread(partial(_jobs_json, taken, lock_ms, payloads))
    return Response(body, media_type=JSON)


def _jobs_json(taken: Mapping[str, Job], lock_ms: Mapping[str, int], payloads: Payloads) -> bytes:
    rows = []
    for receipt, job in taken.items():
        topic, partition = job.delivery.partition
        record, more = job.record, b""
        try:
            record = resolved(record, Place(topic, partition, record.offset), payloads)
        except Problem as problem:
            record, more = record._replace(value=None), b'"error":%b,' % json_bytes(problem.message)
        rows.append(
            b'{"receipt":%b,"topic":%b,"attempt":%d,"lock_ms":%d,%b%b'
            % (
                json_bytes(receipt),
                json_bytes(topic),
                job.attempt,
                lock_ms[receipt],
                more,
                record_json(partition, record)[1:],
            )
        )
    return b'{"jobs":[%b]}' % b",".join(rows)


@part.post(
    "/v1/queues/{group}/workers/{worker}/outcomes",
    "Say what became of jobs",
    body=Outcomes,
    answer=Settled,
    errors=(404,),
    description="Receipts by what became of their jobs: `done`, `retry` (it comes again), `fail` (it is given up), `extend` "
    "(its lock begins anew). With `after`, those of `retry` come again after that time, in topics with delays; at the last "
    "attempt they are `failed`. The answer has `lost` where the lock had ended and the job is another worker's, `unknown` "
    "for a receipt that this worker does not hold or has settled, and `unanswered` where no broker has confirmed it in "
    "time. With an `error`, the delayed retry was not written and the job is held as before.",
)
async def settle_jobs(request: Request) -> Response:
    document = await read_json_object(request)
    after = _after_in(document)
    wanted = _outcomes_in(document)
    with _using(request) as worker:
        if after is not None:
            for topic in worker.topics_of(receipt for receipt, outcome in wanted if outcome == RETRIED):
                await backend_of(request).check_delays(topic)
        found = await asyncio.gather(
            *(
                worker.settle(receipt, outcome)
                if after is None or outcome != RETRIED
                else worker.retry_later(receipt, after)
                for receipt, outcome in wanted
            )
        )
    rows = []
    for (receipt, _), (outcome, error) in zip(wanted, found, strict=True):
        rows.append({"receipt": receipt, "outcome": outcome, **({"error": error} if error else {})})
    return json_answer({"outcomes": rows})


def _after_in(document: dict[str, object]) -> str | None:
    """Takes the time of retries out of the body."""
    if "after" not in document:
        return None
    after = text(document.pop("after"), "after")
    try:
        parse_duration(after)
    except InvalidSchedule as error:
        raise invalid(f"after: {error}") from None
    if "retry" not in document:
        raise invalid("after belongs to retry")
    return after


def _outcomes_in(document: dict[str, object]) -> list[tuple[str, str]]:
    """Receipts, and the outcome of each. One that is named twice is settled once."""
    only(document, _OUTCOMES.keys())
    if not document:
        raise invalid("the body has none of done, retry, fail and extend")
    wanted: list[tuple[str, str]] = []
    for name, outcome in _OUTCOMES.items():
        receipts = member(document, name, list) if name in document else []
        if len(receipts) > JOBS_MAX:
            raise invalid(f"{name} names more than {JOBS_MAX} receipts")
        wanted += [(text(receipt, name), outcome) for receipt in receipts]
    return wanted
