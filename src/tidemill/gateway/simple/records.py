"""The record of the simple API, from JSON: `SimpleRecord`.

    {"key": "user-7", "value": {"total": 12.5}, "headers": {"source": "web"}, "partition": 0, "timestamp_ms": 1700000000000}

Everything is optional, but a record has a key or a value; a value of null is a tombstone. A **value** is written as
JSON; with `"format": "text"` it is a string and written as it is, with `"binary"` it is base64. A **key** that is a
string is written as it is, any other as JSON, and base64 with `"key_format": "binary"`. A **header** is a string or
null, or an array of them for one that comes several times. `delay`, `deliver_at` and `cron` (`times.py`) have it delivered
later, in topics that allow that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tidemill.gateway.cluster.backend import Backend, Delivery
from tidemill.gateway.http.bodies import kind_of
from tidemill.gateway.http.formats import Kind, encode, integer, invalid
from tidemill.gateway.http.openapi import (
    BASE64,
    LONG,
    PARTITION,
    PARTITION_MAX,
    STRING,
    Schema,
    array,
    nullable,
    obj,
)
from tidemill.gateway.simple import times

FORMATS = {"json": Kind.JSON, "text": Kind.STRING, "binary": Kind.BINARY}
_MEMBERS = times.MEMBERS | {
    "key",
    "key_format",
    "value",
    "format",
    "headers",
    "partition",
    "timestamp_ms",
}
TIMESTAMP_MAX = 2**63 - 1
_HEADERS_MAX = 1000

_header = nullable(STRING)
_DATA: dict[str, Schema] = {"json": {}, "text": nullable(STRING), "binary": nullable(BASE64)}


def _written_as(data: str, format_name: str, formats: dict[str, Schema]) -> Schema:
    """A key or value has to be what its format says; without one, it may be anything."""
    kinds = [obj({format_name: {"const": name}}, {data: schema}) for name, schema in formats.items()]
    return {"anyOf": [*kinds, {"not": {"required": [format_name]}}]}


SCHEMA: Schema = obj(
    {},
    {
        "key": {},
        "key_format": {"enum": list(FORMATS)},
        "value": {},
        "format": {"enum": list(FORMATS)},
        "headers": nullable(
            {"type": "object", "additionalProperties": {"anyOf": [*_header["anyOf"], array(_header)]}}
        ),
        "partition": nullable(PARTITION),
        "timestamp_ms": nullable({**LONG, "minimum": 0, "maximum": TIMESTAMP_MAX}),
        **times.SCHEMAS,
    },
    additionalProperties=False,
    allOf=[
        {"anyOf": [{"required": ["key"]}, {"required": ["value"]}]},
        _written_as("key", "key_format", _DATA),
        _written_as("value", "format", _DATA),
    ],
)


class Defaults(NamedTuple):
    """For records that do not say otherwise."""

    key: str | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    # Members of `times.py`, for records that have none of them.
    times: Mapping[str, str] = MappingProxyType({})


class SimpleRecord:
    """A record to write. `where` names the record in the message that refuses it."""

    def __init__(self, record: Any, where: str, defaults: Defaults) -> None:
        if not isinstance(record, dict):
            raise invalid(f"{where} should be an object, not {kind_of(record)}")
        unknown = sorted(record.keys() - _MEMBERS)
        if unknown:
            raise invalid(f"{where} has a member {unknown[0]!r}; they are {', '.join(sorted(_MEMBERS))}")
        # Also where a default has a key: an empty object is no tombstone.
        if "key" not in record and "value" not in record:
            raise invalid(f"{where} has neither a key nor a value")
        self.key = _key(record, where)
        if "key" not in record and defaults.key is not None:
            self.key = defaults.key.encode("utf-8", "surrogateescape")
        self.value = encode(_format(record, "format", "json", where), record.get("value"), f"{where}.value")
        self.headers = _headers(record.get("headers"), f"{where}.headers")
        self.partition = _integer(record, "partition", where, PARTITION_MAX, defaults.partition)
        self.timestamp_ms = _integer(record, "timestamp_ms", where, TIMESTAMP_MAX, defaults.timestamp_ms)
        is_timed = not times.MEMBERS.isdisjoint(record)
        timing = times.headers_of(record if is_timed else defaults.times, where)
        if timing:
            times.check(timing, where, self.key)
            self.headers += timing
        self._is_delayed = bool(timing)

    async def hand_over(self, backend: Backend, topic: str) -> asyncio.Future[Delivery]:
        if self._is_delayed:
            await backend.check_delays(topic)
        return await backend.submit(
            topic, self.partition, self.key, self.value, self.headers, self.timestamp_ms
        )


def _key(record: dict[str, Any], where: str) -> bytes | None:
    key = record.get("key")
    # Without a format, a string stands for itself.
    kind = _format(record, "key_format", "text" if isinstance(key, str) else "json", where)
    return encode(kind, key, f"{where}.key")


def _format(record: dict[str, Any], name: str, default: str, where: str) -> Kind:
    value = record.get(name, default)
    if not isinstance(value, str) or value not in FORMATS:
        raise invalid(f"{where}.{name} should be {', '.join(FORMATS)}, not {value!r}")
    return FORMATS[value]


def _headers(headers: Any, where: str) -> list[tuple[str, bytes | None]]:
    if headers is None:
        return []
    if not isinstance(headers, dict):
        raise invalid(f"{where} should be an object, not {kind_of(headers)}")
    found: list[tuple[str, bytes | None]] = []
    for name, values in headers.items():
        for value in values if isinstance(values, list) else [values]:
            found.append((_utf8(name, where), encode(Kind.STRING, value, f"{where}.{name}")))
    if len(found) > _HEADERS_MAX:
        raise invalid(f"{where} has {len(found)} headers; at most {_HEADERS_MAX} are taken")
    return found


def _utf8(name: str, where: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise invalid(f"{where} has a name that is not Unicode text") from None
    return name


def _integer(record: dict[str, Any], name: str, where: str, high: int, default: int | None) -> int | None:
    value = record.get(name)
    return default if value is None else integer(value, f"{where}.{name}", 0, high)
