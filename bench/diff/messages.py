"""Requests and answers as plain dicts, encoded by `kio` so that no code of Tidemill judges itself.

A request is written once for all versions of its API, in kio's field names. `encode` drops the fields that a version
does not have and fills in those that were not given. A name that no version knows is a mistake in the script and
raises. `decode` turns an answer into dicts, lists and scalars; error codes become `NAME(code)`.
"""

from __future__ import annotations

import enum
import functools
import io
import types
import typing
import uuid
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer

from bench.diff.schemas import RESPONSES

Tree = Any
KEYS = {name: key for key, name in api_key_map.items()}


def api_name(snake: str) -> str:
    """`create_topics` as Kafka writes it: `CreateTopics`."""
    return "".join(part.capitalize() for part in snake.split("_"))


def versions_known(api: str) -> range:
    """The versions that kio can encode, which have no gaps."""
    known = sorted(schema_name_map[api])
    return range(known[0], known[-1] + 1)


def encode(api: str, version: int, request: dict[str, Any], correlation_id: int, client_id: str) -> bytes:
    schema: Any = load_request_schema(KEYS[api], version)
    header_schema = schema.__header_schema__
    header = header_schema(
        request_api_key=KEYS[api],
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    unknown = set(_paths(request)) - _paths_known(api)
    if unknown:
        raise ValueError(f"{api}: no version has the fields {sorted(unknown)}")
    out = io.BytesIO()
    entity_writer(header_schema)(out, header)
    entity_writer(schema)(out, _build(schema, request))
    return out.getvalue()


def decode(api: str, version: int, payload: bytes) -> Tree:
    """The answer's body as a tree; bytes left over are part of it, because a client would trip over them."""
    schema: Any = RESPONSES.get((api, version)) or load_response_schema(KEYS[api], version)
    _, header_size = entity_reader(schema.__header_schema__)(payload, 0)
    message, size = entity_reader(schema)(payload, header_size)
    tree = _tree(message)
    left = len(payload) - header_size - size
    if left:
        tree["bytes_left_over"] = left
    return tree


def _build(schema: Any, values: dict[str, Any]) -> Any:
    hints = _hints(schema)
    chosen = {}
    for field in fields(schema):
        if field.name in values:
            chosen[field.name] = _value(
                hints[field.name], field.metadata.get("kafka_type"), values[field.name]
            )
        elif field.default is MISSING and field.default_factory is MISSING:
            chosen[field.name] = _zero(hints[field.name], field.metadata.get("kafka_type"))
    return schema(**chosen)


def _value(hint: Any, kafka_type: str | None, value: Any) -> Any:
    if value is None:
        return None
    inner, is_tuple, _ = _shape(hint)
    if is_tuple:
        return tuple(_value(inner, kafka_type, item) for item in value)
    if is_dataclass(inner):
        return _build(inner, value)
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        return timedelta(milliseconds=value)
    return value


def _zero(hint: Any, kafka_type: str | None) -> Any:
    inner, is_tuple, is_optional = _shape(hint)
    if is_optional:
        return None
    if is_tuple:
        return ()
    if is_dataclass(inner):
        return _build(inner, {})
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        return timedelta(0)
    return {"string": "", "bytes": b"", "records": b"", "bool": False}.get(kafka_type or "", 0)


def _shape(hint: Any) -> tuple[Any, bool, bool]:
    """(item type, is an array, may be null)"""
    is_optional = False
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        args = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        is_optional = len(args) < len(typing.get_args(hint))
        hint = args[0]
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], True, is_optional
    return hint, False, is_optional


@functools.cache
def _hints(schema: Any) -> dict[str, Any]:
    return typing.get_type_hints(schema)


def _paths(request: Any, prefix: str = "") -> typing.Iterator[str]:
    if isinstance(request, dict):
        for name, value in request.items():
            yield f"{prefix}{name}"
            yield from _paths(value, f"{prefix}{name}.")
    elif isinstance(request, list | tuple):
        for item in request:
            yield from _paths(item, prefix)


@functools.cache
def _paths_known(api: str) -> frozenset[str]:
    found: set[str] = set()

    def walk(schema: Any, prefix: str) -> None:
        for field in fields(schema):
            found.add(f"{prefix}{field.name}")
            inner, _, _ = _shape(_hints(schema)[field.name])
            if is_dataclass(inner):
                walk(inner, f"{prefix}{field.name}.")

    for version in versions_known(api):
        walk(load_request_schema(KEYS[api], version), "")
    return frozenset(found)


def _tree(value: Any) -> Tree:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _tree(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, list | tuple):
        return [_tree(item) for item in value]
    if isinstance(value, enum.IntEnum):
        return f"{value.name.upper()}({int(value)})"
    if isinstance(value, uuid.UUID):
        return value
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    return value
