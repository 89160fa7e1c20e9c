"""The response of any API that says nothing but an error, built from the request.

Some responses have a top-level error code. The others have one per topic, partition, group or resource, and a client looks
for what it asked: an empty response would read as a success. For those each entry of the request gets an entry with the
error, found by the schemas of both messages:

* a list of the response takes its entries from the request's list of the same name, or else from all lists of the request;
* what an entry is about (`_IDENTITIES`) comes from the request's entry, or is that entry when it is a plain value;
* the error stands in the first `error_code` on the way down.

Which of these a message has depends on the version (`_Plan`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

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
from tidemill.protocol.steps import Steps, run_steps

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


# So many entries take about a millisecond.
_ENTRIES_A_STEP = 256


def error_response(
    request: Request, version: int, code: int, message: str | None, *, in_entries: bool = False
) -> Response | None:
    """None when this version has no place for the error, or the request has no entry that could get it.

    With `in_entries` the error stands in each entry, also where the response has a place for one error.
    """
    return run_steps(error_response_in_steps(request, version, code, message, in_entries=in_entries))


def error_response_in_steps(
    request: Request, version: int, code: int, message: str | None, *, in_entries: bool = False
) -> Steps[Response | None]:
    """As `error_response`, some entries a step."""
    response = apis.RESPONSES[request.api_key]()
    plan = _plan_of(type(response), version)
    entries = _Entries(version, code, message)
    if plan.codes and not in_entries:
        entries.tell(response, plan)
        return response
    yield from entries.fill(response, plan, request)
    return response if entries.count else None


class _Plan(NamedTuple):
    """What a struct of a response gets, in one version."""

    # The fields for the error and for its text, and the values where 0 would be an answer. Empty without an error code.
    codes: tuple[str, ...]
    texts: tuple[str, ...]
    unknown_values: tuple[tuple[str, int | str], ...]
    # A field, the names that it may have in the request, and what it gets where it cannot be null.
    identities: tuple[tuple[str, tuple[str, ...], Any], ...]
    # Where a plain value of the request goes: the name of a topic or group, the number of a partition.
    first_string: str | None
    first_int32: str | None
    # The lists whose entries have an error code, at whatever depth, and the type of these entries.
    lists: tuple[tuple[str, type[Struct]], ...]


@cache
def _plan_of(kind: type[Struct], version: int) -> _Plan:
    specs = [spec for spec in field_specs(kind) if spec.is_in(version)]
    codes = tuple(spec.name for spec in specs if spec.name in _ERROR_CODES)
    return _Plan(
        codes,
        tuple(spec.name for spec in specs if codes and spec.name == "error_message"),
        tuple(
            (spec.name, _UNKNOWN_VALUES[spec.name])
            for spec in specs
            if codes and spec.name in _UNKNOWN_VALUES
        ),
        tuple(
            (spec.name, _IDENTITIES[spec.name], None if spec.is_nullable_in(version) else default_of(spec))
            for spec in specs
            if spec.name in _IDENTITIES
        ),
        _first_of(specs, "string"),
        _first_of(specs, "int32"),
        tuple((spec.name, entry) for spec in specs if (entry := _failing_entry(spec, version)) is not None),
    )


def _first_of(specs: Iterable[FieldSpec], primitive: str) -> str | None:
    for spec in specs:
        if isinstance(spec.kind, Primitive) and spec.kind.name == primitive and spec.name != "error_message":
            return spec.name
    return None


def _failing_entry(spec: FieldSpec, version: int) -> type[Struct] | None:
    """Returns the type of the list's entries when it has an error code, at whatever depth; else None."""
    if not isinstance(spec.kind, ArrayOf) or not isinstance(spec.kind.element, StructType):
        return None
    element: type[Struct] = spec.kind.element
    for inner in field_specs(element):
        if inner.is_in(version) and (inner.name in _ERROR_CODES or _failing_entry(inner, version)):
            return element
    return None


@cache
def _lists_of(asked: type[Struct], version: int, name: str) -> tuple[str, ...]:
    """The lists of the request that a list of the response answers."""
    names = tuple(
        each.name for each in field_specs(asked) if isinstance(each.kind, ArrayOf) and each.is_in(version)
    )
    return (name,) if name in names else names


def _sources(asked: Struct, version: int, name: str) -> Iterable[Any]:
    """The entries of the request that a list of the response answers."""
    if getattr(asked, "api_key", None) == _ALTER_REPLICA_LOG_DIRS:
        # The only request that groups its entries by something that the response does not show.
        return [topic for directory in getattr(asked, "dirs", ()) for topic in directory.topics]
    return [entry for each in _lists_of(type(asked), version, name) for entry in getattr(asked, each) or ()]


class _Entries:
    """Makes the entries of one response."""

    def __init__(self, version: int, code: int, message: str | None) -> None:
        self._version = version
        self._code = int(code)
        self._message = message
        # Of entries so far, at all depths.
        self.count = 0

    def fill(self, struct: Struct, plan: _Plan, source: Struct) -> Steps[None]:
        """Give each list of the struct an entry with the error for each entry of the request."""
        version = self._version
        for name, kind in plan.lists:
            entries: list[Struct] = []
            inner = _plan_of(kind, version)
            for each in _sources(source, version, name):
                self.count += 1
                if self.count % _ENTRIES_A_STEP == 0:
                    yield None
                entry = kind()
                self._identify(entry, inner, each)
                if inner.codes:
                    self.tell(entry, inner)
                else:
                    yield from self.fill(entry, inner, each)
                entries.append(entry)
            setattr(struct, name, entries)

    def _identify(self, entry: Struct, plan: _Plan, source: Any) -> None:
        if not isinstance(source, Struct):
            field = plan.first_string if isinstance(source, str) else plan.first_int32
            if field is not None:
                setattr(entry, field, source)
            return
        for field, names, instead_of_null in plan.identities:
            for name in names:
                if hasattr(source, name):
                    value = getattr(source, name)
                    setattr(entry, field, instead_of_null if value is None else value)
                    break

    def tell(self, struct: Struct, plan: _Plan) -> None:
        for name in plan.codes:
            setattr(struct, name, self._code)
        for name in plan.texts:
            setattr(struct, name, self._message)
        for name, value in plan.unknown_values:
            setattr(struct, name, value)
