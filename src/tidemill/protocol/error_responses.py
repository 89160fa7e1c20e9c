"""The response of any API that says nothing but an error, built from the request.

Some responses have a top-level error code. The others have one per topic, partition, group or resource, and a client looks
for what it asked: an empty response would read as a success. For those each entry of the request gets an entry with the
error, found by the schemas of both messages:

* a list of the response takes its entries from the request's list of the same name, or else from all lists of the request;
* what an entry is about (`_IDENTITIES`) comes from the request's entry, or is that entry when it is a plain value;
* the error stands in the first `error_code` on the way down.

Which of these a message has depends on the version.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidemill.protocol import api as apis
from tidemill.protocol.declarations import (
    ArrayOf,
    FieldSpec,
    Primitive,
    Struct,
    StructType,
    default_of,
    field_specs,
)
from tidemill.protocol.schema import Request, Response

_ERROR_CODES = ("error_code", "partition_error_code")
# What an entry is about: its field in the response, and the names that it may have in the request.
_IDENTITIES = {
    "entity": ("entity",),
    "group_id": ("group_id",),
    "index": ("index",),
    "name": ("name",),
    "partition": ("partition",),
    "partition_index": ("partition_index", "partition"),
    "producer_id": ("producer_id",),
    "resource_name": ("resource_name",),
    "resource_type": ("resource_type",),
    "topic": ("topic",),
    "topic_id": ("topic_id",),
    "topic_name": ("topic_name", "name"),
    "transactional_id": ("transactional_id",),
    "user": ("name",),
}
# Kafka's schemas give no default for these; 0 would be an answer.
_UNKNOWN_VALUES: dict[str, int | str] = {
    "base_offset": -1,
    "committed_offset": -1,
    "high_watermark": -1,
    "low_watermark": -1,
    "metadata": "",
    "node_id": -1,
    "port": -1,
}
_ALTER_REPLICA_LOG_DIRS = 34


def error_response(
    request: Request, version: int, code: int, message: str | None, *, in_entries: bool = False
) -> Response | None:
    """None when this version has no place for the error, or the request has no entry that could get it.

    With `in_entries` the error stands in each entry, also where the response has a place for one error.
    """
    response = apis.RESPONSES[request.api_key]()
    specs = [spec for spec in field_specs(type(response)) if spec.is_in(version)]
    if not in_entries and any(spec.name in _ERROR_CODES for spec in specs):
        _tell(response, specs, code, message)
        return response
    is_told = False
    for spec in specs:
        kind = _failing_entry(spec, version)
        if kind is not None:
            entries = [
                _entry(kind, version, source, code, message) for source in _sources(request, spec, version)
            ]
            setattr(response, spec.name, entries)
            is_told = is_told or bool(entries)
    return response if is_told else None


def _failing_entry(spec: FieldSpec, version: int) -> type[Struct] | None:
    """Returns the type of the list's entries when it has an error code, at whatever depth; else None."""
    if not isinstance(spec.kind, ArrayOf) or not isinstance(spec.kind.element, StructType):
        return None
    element: type[Struct] = spec.kind.element
    for inner in field_specs(element):
        if inner.is_in(version) and (inner.name in _ERROR_CODES or _failing_entry(inner, version)):
            return element
    return None


def _sources(asked: Struct, spec: FieldSpec, version: int) -> Iterable[Any]:
    """The entries of the request that this list of the response answers."""
    if getattr(asked, "api_key", None) == _ALTER_REPLICA_LOG_DIRS:
        # The only request that groups its entries by something that the response does not show.
        return [topic for directory in getattr(asked, "dirs", ()) for topic in directory.topics]
    names = [
        each.name
        for each in field_specs(type(asked))
        if isinstance(each.kind, ArrayOf) and each.is_in(version)
    ]
    if spec.name in names:
        names = [spec.name]
    return [entry for name in names for entry in getattr(asked, name) or ()]


def _entry(kind: type[Struct], version: int, source: Any, code: int, message: str | None) -> Struct:
    entry = kind()
    specs = [spec for spec in field_specs(kind) if spec.is_in(version)]
    if isinstance(source, Struct):
        _copy(entry, specs, source, version)
    else:
        _identify(entry, specs, source)
    if any(spec.name in _ERROR_CODES for spec in specs):
        _tell(entry, specs, code, message)
        return entry
    assert isinstance(source, Struct), "a plain value has no entries of its own"
    for spec in specs:
        inner = _failing_entry(spec, version)
        if inner is not None:
            found = _sources(source, spec, version)
            setattr(entry, spec.name, [_entry(inner, version, each, code, message) for each in found])
    return entry


def _copy(entry: Struct, specs: Iterable[FieldSpec], source: Struct, version: int) -> None:
    for spec in specs:
        for name in _IDENTITIES.get(spec.name, ()):
            if hasattr(source, name):
                value = getattr(source, name)
                if value is None and not spec.is_nullable_in(version):
                    value = default_of(spec)
                setattr(entry, spec.name, value)
                break


def _identify(entry: Struct, specs: Iterable[FieldSpec], value: object) -> None:
    """The name of a topic or group, or the number of a partition, goes to the first field for such a thing."""
    wanted = "string" if isinstance(value, str) else "int32"
    for spec in specs:
        is_message = spec.name == "error_message"
        if isinstance(spec.kind, Primitive) and spec.kind.name == wanted and not is_message:
            setattr(entry, spec.name, value)
            return


def _tell(struct: Struct, specs: Iterable[FieldSpec], code: int, message: str | None) -> None:
    for spec in specs:
        if spec.name in _ERROR_CODES:
            setattr(struct, spec.name, int(code))
        elif spec.name == "error_message":
            setattr(struct, spec.name, message)
        elif spec.name in _UNKNOWN_VALUES:
            setattr(struct, spec.name, _UNKNOWN_VALUES[spec.name])
