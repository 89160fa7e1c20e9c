"""Requests and responses by kio, whose classes are generated from Kafka's own schemas.

`request_body("metadata", 12, topics=[{"name": "a"}])` fills what is not named with the schema's default, or zero, and
refuses a field that this version does not have. Durations are milliseconds. Responses come back as kio's objects.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import io
import struct
import types
import typing
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer

API_KEYS: dict[str, int] = {name: key for key, name in api_key_map.items()}
NO_UUID = bytes(16)


@functools.cache
def _hints(schema: type) -> dict[str, Any]:
    return typing.get_type_hints(schema)


def _plain(annotation: Any) -> Any:
    """The type itself of an optional annotation."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        (annotation,) = [one for one in typing.get_args(annotation) if one is not type(None)]
    return annotation


def _is_optional(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation) and typing.get_origin(annotation) is not tuple


def _zero(annotation: Any, kafka_type: str | None) -> Any:
    if _is_optional(annotation):
        return None
    if typing.get_origin(annotation) is tuple:
        return ()
    if dataclasses.is_dataclass(annotation) and kafka_type is None:
        return build(typing.cast(type, annotation), {})
    if kafka_type and kafka_type.startswith("timedelta"):
        return datetime.timedelta(0)
    if kafka_type == "bool":
        return False
    if kafka_type == "string":
        return ""
    return b"" if kafka_type in ("bytes", "records") else 0


def _convert(value: Any, annotation: Any, kafka_type: str | None) -> Any:
    if value is None:
        return None
    annotation = _plain(annotation)
    if typing.get_origin(annotation) is tuple:
        (element, _) = typing.get_args(annotation)
        return tuple(_convert(one, element, kafka_type) for one in value)
    if isinstance(value, dict):
        return build(annotation, value)
    if kafka_type and kafka_type.startswith("timedelta"):
        return datetime.timedelta(milliseconds=value)
    return value


def build(schema: type, values: dict[str, Any]) -> Any:
    hints = _hints(schema)
    arguments = {}
    fields = {field.name: field for field in dataclasses.fields(schema)}
    unknown = values.keys() - fields.keys()
    if unknown:
        raise TypeError(f"{schema.__name__} of {schema.__module__} has no {', '.join(sorted(unknown))}")
    for name, field in fields.items():
        kafka_type = field.metadata.get("kafka_type")
        if name in values:
            arguments[name] = _convert(values[name], hints[name], kafka_type)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            arguments[name] = _zero(hints[name], kafka_type)
    return schema(**arguments)


def _write(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@functools.cache
def request_schema(api: str, version: int) -> Any:
    return load_request_schema(API_KEYS[api], version)


def request_body(api: str, version: int, **fields: Any) -> bytes:
    return _write(build(request_schema(api, version), fields))


def request_header(api: str, version: int, correlation_id: int, client_id: str | None = "wire-test") -> bytes:
    """Header v2 for flexible versions: a v1 header and an empty list of tagged fields."""
    name = (client_id or "").encode()
    text = b"\xff\xff" if client_id is None else struct.pack(">h", len(name)) + name
    plain = struct.pack(">hhi", API_KEYS[api], version, correlation_id) + text
    return plain + b"\0" if request_schema(api, version).__flexible__ else plain


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def request(api: str, version: int, correlation_id: int = 1, **fields: Any) -> bytes:
    """A whole frame."""
    return frame(request_header(api, version, correlation_id) + request_body(api, version, **fields))


def read_response(api: str, version: int, payload: bytes) -> tuple[int, Any]:
    """Correlation id and body of a response frame's payload; every byte must be accounted for."""
    schema = load_response_schema(API_KEYS[api], version)
    (correlation_id,) = struct.unpack_from(">i", payload)
    at = 4
    # KIP-511: the header of ApiVersions' response is always v0, so that old clients can read it.
    if schema.__flexible__ and api != "api_versions":
        assert payload[at] == 0, "tagged fields in the response header"
        at += 1
    body, size = entity_reader(schema)(payload, at)
    assert at + size == len(payload), f"{len(payload) - at - size} bytes after the {api} v{version} response"
    return correlation_id, body
