"""kio's request schemas as plain shapes that a writer can walk, and lie about, without building objects.

kio refuses to write what a schema does not allow. A fuzzer has to, so only the description comes from kio; `test_fuzz.py`
checks that kio reads back what `frames.py` writes when it does not lie.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from dataclasses import dataclass
from typing import Any

from kio.index import load_request_schema
from kio.schema.index import schema_name_map
from kio.static.constants import EntityType

from tests.wire.messages import API_KEYS

# What each of kio's types is on the wire.
_WIRE_TYPES = {
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
    "error_code": "int16",
    "records": "bytes",
}


@dataclass(frozen=True, eq=False)
class Field:
    name: str
    # A primitive type of the protocol, or "struct".
    kind: str
    is_duration: bool
    is_array: bool
    is_nullable: bool
    tag: int | None
    struct: Struct | None

    @property
    def may_be_null(self) -> bool:
        """The value itself; of an array only the whole may be null."""
        return self.is_nullable and not self.is_array


@dataclass(frozen=True, eq=False)
class Struct:
    name: str
    is_flexible: bool
    plain: tuple[Field, ...]
    tagged: tuple[Field, ...]


@dataclass(frozen=True, eq=False)
class Api:
    name: str
    key: int
    version: int
    body: Struct


def _is_union(hint: Any) -> bool:
    return isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union


def _field(field: dataclasses.Field[Any], hint: Any) -> Field:
    is_nullable = _is_union(hint)
    if is_nullable:
        (hint,) = [each for each in typing.get_args(hint) if each is not type(None)]
    is_array = typing.get_origin(hint) is tuple
    if is_array:
        hint = typing.get_args(hint)[0]
        if _is_union(hint):
            (hint,) = [each for each in typing.get_args(hint) if each is not type(None)]
    tag = field.metadata.get("tag")
    kafka_type = field.metadata.get("kafka_type")
    if kafka_type is None:
        return Field(field.name, "struct", False, is_array, is_nullable, tag, _struct(hint))
    kind = _WIRE_TYPES.get(kafka_type, kafka_type)
    # A uuid of zeros is kio's None; on the wire there is nothing nullable about it. The same goes for instants. Tagged
    # fields are left out instead.
    is_nullable = is_nullable and tag is None and (is_array or kind in ("string", "bytes"))
    return Field(field.name, kind, kafka_type.startswith("timedelta"), is_array, is_nullable, tag, None)


@functools.cache
def _struct(schema: type[Any]) -> Struct:
    hints = typing.get_type_hints(schema)
    fields = [_field(field, hints[field.name]) for field in dataclasses.fields(schema)]
    tagged = sorted((field for field in fields if field.tag is not None), key=lambda field: field.tag or 0)
    plain = tuple(field for field in fields if field.tag is None)
    return Struct(schema.__name__, schema.__flexible__, plain, tuple(tagged))


@functools.cache
def all_apis() -> tuple[Api, ...]:
    """Every version of every request that kio knows, in a stable order."""
    found = []
    for name, versions in schema_name_map.items():
        if name not in API_KEYS:
            continue
        for version, entities in sorted(versions.items()):
            if EntityType.request in entities:
                key = API_KEYS[name]
                found.append(Api(name, key, version, _struct(load_request_schema(key, version))))
    return tuple(sorted(found, key=lambda api: (api.key, api.version)))
