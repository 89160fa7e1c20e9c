"""The bodies of requests to consumer instances: their schemas for the OpenAPI document, and how they are read.

Schema and reader stand beside each other because they say the same: what one accepts, the other takes. What is wrong
is a 422 that names the place, as `partitions[3].topic`.
"""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request

from tidemill.gateway.http.bodies import check_media_type, kind_of, parse_json, read_document
from tidemill.gateway.http.formats import integer, invalid, member
from tidemill.gateway.http.openapi import (
    PARTITION,
    PARTITION_MAX,
    STRING,
    TOPIC_NAME,
    Schema,
    array,
    nullable,
    obj,
)
from tidemill.gateway.problems import Problem
from tidemill.gateway.rest_v2.media import BODIES
from tidemill.types import TopicPartition

OFFSET_MAX = 2**63 - 2
_PATTERN_CHARACTERS_MAX = 1000
_METADATA_CHARACTERS_MAX = 4096
_LIST_MAX = 10_000
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")

_PARTITION_OF = {"topic": TOPIC_NAME, "partition": PARTITION}


def _offset(low: int) -> Schema:
    return {"type": "integer", "format": "int64", "minimum": low, "maximum": OFFSET_MAX}


def _list(items: Schema, least: int = 0) -> Schema:
    return {**array(items), "minItems": least, "maxItems": _LIST_MAX}


def _offsets_schema(low: int) -> Schema:
    metadata = nullable({**STRING, "maxLength": _METADATA_CHARACTERS_MAX})
    return obj({"offsets": _list(obj({**_PARTITION_OF, "offset": _offset(low)}, {"metadata": metadata}))})


PARTITIONS = obj({"partitions": _list(obj(_PARTITION_OF))})
POSITIONS = _offsets_schema(0)
# -1 is "no record is done", so that the group goes on with 0.
COMMITS = _offsets_schema(-1)
_NOTHING: Schema = {"type": "null"}
_TOPICS = {"topics": _list(TOPIC_NAME, 1)}
_PATTERN = {
    "topic_pattern": {
        **STRING,
        "minLength": 1,
        "maxLength": _PATTERN_CHARACTERS_MAX,
        "pattern": "^[^\\u0000]*$",
    }
}
SUBSCRIPTION: Schema = {
    "anyOf": [obj(_TOPICS, {"topic_pattern": _NOTHING}), obj(_PATTERN, {"topics": _NOTHING})]
}


async def document_of(request: Request) -> dict[str, Any] | None:
    """The body. None when there is none, and then no Content-Type is needed."""
    data = await read_document(request)
    if not data.strip():
        return None
    check_media_type(request, BODIES)
    document = parse_json(data)
    if document is None:
        return None
    if not isinstance(document, dict):
        raise invalid(f"the body should be a JSON object, not {kind_of(document)}")
    return document


async def needed_document_of(request: Request) -> dict[str, Any]:
    document = await document_of(request)
    if document is None:
        raise invalid("the body is empty; it should be a JSON object")
    return document


def partitions_in(document: dict[str, Any]) -> list[TopicPartition]:
    found = [_partition(item, f"partitions[{i}]") for i, item in enumerate(_items(document, "partitions"))]
    return list(dict.fromkeys(found))


def offsets_in(document: dict[str, Any], low: int) -> dict[TopicPartition, tuple[int, str | None]]:
    """Offset and metadata of each partition; of one that is named twice, the last."""
    found: dict[TopicPartition, tuple[int, str | None]] = {}
    for i, item in enumerate(_items(document, "offsets")):
        where = f"offsets[{i}]"
        partition = _partition(item, where)
        metadata = item.get("metadata")
        if metadata is not None and (
            not isinstance(metadata, str) or len(metadata) > _METADATA_CHARACTERS_MAX
        ):
            raise invalid(
                f"{where}.metadata should be a string of at most {_METADATA_CHARACTERS_MAX} characters"
            )
        found[partition] = integer(item.get("offset"), f"{where}.offset", low, OFFSET_MAX), metadata
    return found


def subscription_in(document: dict[str, Any]) -> tuple[tuple[str, ...], str | None]:
    """Names of topics, or a pattern."""
    topics, pattern = document.get("topics"), document.get("topic_pattern")
    if topics is not None and pattern is not None:
        raise Problem(409, 40903, "a subscription is to topics or to a pattern, not to both")
    if pattern is not None:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= _PATTERN_CHARACTERS_MAX or "\0" in pattern:
            raise invalid(
                f"topic_pattern should be a regular expression of 1 to {_PATTERN_CHARACTERS_MAX} characters"
            )
        return (), pattern
    if topics is None:
        raise invalid("topics or topic_pattern is missing")
    names = [_topic(name, f"topics[{i}]") for i, name in enumerate(_items(document, "topics"))]
    if not names:
        raise invalid("topics is empty; DELETE the subscription to end it")
    return tuple(dict.fromkeys(names)), None


def _items(document: dict[str, Any], name: str) -> list[Any]:
    items: list[Any] = member(document, name, list)
    if len(items) > _LIST_MAX:
        raise invalid(f"{name} has {len(items)} elements; at most {_LIST_MAX} are taken")
    return items


def _partition(item: Any, where: str) -> TopicPartition:
    if not isinstance(item, dict):
        raise invalid(f"{where} should be an object, not {kind_of(item)}")
    topic = _topic(item.get("topic"), f"{where}.topic")
    return TopicPartition(topic, integer(item.get("partition"), f"{where}.partition", 0, PARTITION_MAX))


def _topic(name: Any, where: str) -> str:
    if not isinstance(name, str) or not _TOPIC.fullmatch(name):
        raise invalid(
            f"{where} is not a topic's name: letters, digits, '.', '_' and '-', at most 249 of them"
        )
    return name
