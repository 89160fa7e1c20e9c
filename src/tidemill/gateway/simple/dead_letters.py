"""`/v1/topics/{topic}/dead-letters`: the letters of a dead-letter topic with their reasons, and putting them back.

`tidemill.dead_letters` has the conventions of headers that are understood. A listing reads at most `_OFFSETS_MAX` offsets at
the end of each partition. A letter is replayed once, however often that is asked for (`client/admin/dead_letters.py`).
"""

from __future__ import annotations

import asyncio
import heapq
import operator
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from tidemill.client.admin.dead_letters import DeadLetterAdmin, ListedLetter, NoLetter, Replayed
from tidemill.gateway.answers import JSON, json_answer, json_bytes
from tidemill.gateway.cluster.access import access_of, backend_of
from tidemill.gateway.cluster.backend import Admins, unknown_partition
from tidemill.gateway.http.bodies import read_json_object
from tidemill.gateway.http.formats import integer, invalid, number_in, only, text
from tidemill.gateway.http.openapi import (
    BOOLEAN,
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
from tidemill.gateway.simple.read import key_json, value_json
from tidemill.types import TopicPartition

part = Part("Dead letters")

_LIMIT, _LIMIT_MAX = 100, 1000
_OFFSETS_MAX = 10_000
_OFFSET_MAX = 2**63 - 1
_VALUE_BYTES_MAX = 4096
# Each takes a thread of the gateway for as long as it reads.
_AT_ONCE_MAX = 2
_KEPT = "dead letters"

_LETTER = obj(
    {
        "partition": INTEGER,
        "offset": LONG,
        "timestamp_ms": LONG,
        "reason": STRING,
        "exception": nullable(STRING),
        "message": nullable(STRING),
        "convention": nullable(STRING),
        "original_topic": nullable(STRING),
        "original_partition": nullable(INTEGER),
        "original_offset": nullable(LONG),
        "group": nullable(STRING),
        "attempts": nullable(INTEGER),
        "is_replayed": BOOLEAN,
        "replays": INTEGER,
        "key": {},
    },
    {"value": {}, "format": STRING, "key_format": STRING},
)
Letters = part.schema("DeadLetters", obj({"letters": array(_LETTER)}))
Replay = part.schema(
    "ReplayDeadLetters",
    obj(
        {},
        {
            "partition": PARTITION,
            "offset": {**LONG, "minimum": 0, "maximum": _OFFSET_MAX},
            "to_topic": TOPIC_NAME,
        },
        is_closed=True,
        dependentRequired={"partition": ["offset"], "offset": ["partition"]},
    ),
)
Done = part.schema(
    "ReplayedDeadLetters",
    obj(
        {
            "published": INTEGER,
            "replayed_before": INTEGER,
            "exhausted": INTEGER,
            "failed": INTEGER,
            "reason": STRING,
        }
    ),
)


@part.get(
    "/v1/topics/{topic}/dead-letters",
    "List the letters of a dead-letter topic",
    answer=Letters,
    errors=(400, 404),
    parameters=(
        query(
            "limit",
            {**INTEGER, "minimum": 1, "maximum": _LIMIT_MAX},
            f"At most so many, the newest first; {_LIMIT} without it.",
        ),
    ),
    description=f"Of the last {_OFFSETS_MAX} offsets of each partition. A value above {_VALUE_BYTES_MAX} bytes is "
    "left out. The headers of share groups, Spring, Kafka Connect and Kafka Streams are understood.",
)
async def list_dead_letters(request: Request) -> Response:
    topic = request.path_params["topic"]
    limit = number_in(request.query_params.get("limit", str(_LIMIT)), "limit", _LIMIT_MAX)
    if limit == 0:
        raise Problem(400, 400, "limit should be at least 1")
    backend = backend_of(request)
    await backend.partition_count(topic)

    def newest(admins: Admins) -> list[bytes]:
        # As rows, so that no more is held than is answered.
        rows = (
            (each.letter.timestamp_ms, _row(each))
            for each in DeadLetterAdmin(admins.cluster, topic).letters(_OFFSETS_MAX)
        )
        return [row for _, row in heapq.nlargest(limit, rows, key=operator.itemgetter(0))]

    async with access_of(request).keep(_KEPT, lambda: asyncio.Semaphore(_AT_ONCE_MAX)):
        rows = await backend.ask(newest)
    return Response(b'{"letters":[%b]}' % b",".join(rows), media_type=JSON)


def _row(listed: ListedLetter) -> bytes:
    letter, said = listed.letter, listed.letter.failure
    key, key_format = key_json(letter.key)
    fields = {
        "partition": letter.dead_letter_partition,
        "offset": letter.dead_letter_offset,
        "timestamp_ms": letter.timestamp_ms,
        "reason": said.reason,
        "exception": said.exception,
        "message": said.message,
        "convention": said.convention,
        "original_topic": said.topic,
        "original_partition": said.partition,
        "original_offset": said.offset,
        "group": said.group,
        "attempts": said.attempts,
        "is_replayed": listed.is_replayed,
        "replays": letter.attempts,
    }
    more = b',"key":%b' % key + (b',"key_format":"%b"' % key_format if key_format else b"")
    if letter.value is None or len(letter.value) <= _VALUE_BYTES_MAX:
        value, value_format = value_json(letter.value)
        more += b',"value":%b' % value + (b',"format":"%b"' % value_format if value_format else b"")
    return json_bytes(fields)[:-1] + more + b"}"


@part.post(
    "/v1/topics/{topic}/dead-letters/replay",
    "Put letters back where they came from, each once",
    body=Replay,
    answer=Done,
    errors=(404,),
    description="The letter at a place, or all of them. `to_topic` puts them elsewhere. What was replayed before is "
    "counted, and not published again; `exhausted` are letters that came back too often, `failed` those that nothing "
    "says where to put.",
)
async def replay_dead_letters(request: Request) -> Response:
    topic = request.path_params["topic"]
    only_this, to_topic = _wanted(await read_json_object(request))
    backend = backend_of(request)
    count = await backend.partition_count(topic)
    if only_this is not None and only_this[0] >= count:
        raise unknown_partition(TopicPartition(topic, only_this[0]), count)

    def replay(admins: Admins) -> Replayed:
        try:
            return DeadLetterAdmin(admins.cluster, topic).replay(only_this, to_topic=to_topic)
        except NoLetter as error:
            raise Problem(404, 40402, str(error)) from None

    async with access_of(request).keep(_KEPT, lambda: asyncio.Semaphore(_AT_ONCE_MAX)):
        done = await backend.ask(replay)
    return json_answer(asdict(done))


def _wanted(document: dict[str, object]) -> tuple[tuple[int, int] | None, str | None]:
    only(document, {"partition", "offset", "to_topic"})
    to_topic = text(document["to_topic"], "to_topic") if "to_topic" in document else None
    if ("partition" in document) != ("offset" in document):
        raise invalid("a letter has a partition and an offset: give both, or none for all letters")
    if "partition" not in document:
        return None, to_topic
    partition = integer(document["partition"], "partition", 0, PARTITION_MAX)
    return (partition, integer(document["offset"], "offset", 0, _OFFSET_MAX)), to_topic
