"""Our codec against kio's, generated from Kafka's own schemas, for every message and version kio has.

A random message of ours is encoded and decoded by kio; the fields must agree. kio then encodes what it
read, and we must get back what we started with. kio turns some integers into richer types (durations,
instants, error codes, uuids); `_from_kio` translates back, and `_KioSampler` keeps to what kio can
represent.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import typing
import uuid
from pkgutil import resolve_name
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer

from tidemill.protocol.declarations import (
    FIRST_OWN_TAG,
    ArrayOf,
    FieldSpec,
    Kind,
    Primitive,
    field_specs,
)
from tidemill.protocol.schema import Message, decode_exact, encode

from .message_samples import Sampler, label, message_types, same

# Headers are parsed by hand, see frames.py and its tests.
_NOT_MESSAGES = {"RequestHeader", "ResponseHeader"}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


def _kio_paths() -> dict[tuple[str, int], str]:
    paths = {}
    for versions in schema_name_map.values():
        for version, entities in versions.items():
            for path in entities.values():
                paths[path.rsplit(":", 1)[1], version] = path
    return {key: path for key, path in paths.items() if key[0] not in _NOT_MESSAGES}


KIO_PATHS = _kio_paths()
OURS = {cls.__name__: cls for cls in message_types()}
CASES = [(OURS[name], version) for name, version in sorted(KIO_PATHS) if name in OURS]


def test_every_message_and_version_of_kio_is_declared() -> None:
    missing = [
        (name, version)
        for name, version in KIO_PATHS
        if name not in OURS or version not in OURS[name].versions
    ]
    assert missing == []


@pytest.mark.parametrize(("cls", "version"), CASES, ids=label)
def test_encoding_equals_kio(cls: type[Message], version: int) -> None:
    twin = resolve_name(KIO_PATHS[cls.__name__, version])
    assert twin.__flexible__ == cls.is_flexible(version)
    read, write = entity_reader(twin), entity_writer(twin)

    @settings(max_examples=8, deadline=None, database=None)
    @given(st.integers(0, 2**32))
    def round_trip(seed: int) -> None:
        ours = _KioSampler(seed).message(cls, version, twin)
        raw = encode(ours, version)
        theirs, size = read(raw, 0)
        assert size == len(raw)
        assert _from_kio(cls, version, theirs) == ours
        buffer = io.BytesIO()
        write(buffer, theirs)
        assert same(decode_exact(cls, version, buffer.getvalue()), ours)

    round_trip()


class _KioSampler(Sampler):
    """Samples that kio can hold: known error codes, representable instants and durations."""

    def message(self, cls: type[Any], version: int, twin: type[Any] | None = None) -> Any:
        assert twin is not None
        return cls(
            **{
                spec.name: self._twin_field(spec, version, other)
                for spec, other in _pairs(cls, version, twin)
            }
        )

    def _twin_field(self, spec: FieldSpec, version: int, other: dataclasses.Field[Any]) -> object:
        if spec.is_nullable_in(version) and self.random.random() < 0.3:
            return None
        kind, nested = spec.kind, _nested(other)
        if nested is not None and isinstance(kind, ArrayOf):
            return [
                self.message(_struct(kind), version, nested) for _ in range(self.random.choice((0, 1, 2)))
            ]
        if nested is not None:
            return self.message(_struct(kind), version, nested)
        match other.metadata.get("kafka_type"):
            case "error_code":
                return int(self.random.choice(list(KioErrorCode)))
            case "timedelta_i64":
                return self.random.choice((0, -1, 2**40))
            case "datetime_i64":
                return self.random.choice((0, 1, 1_700_000_000_123))
        return self.value(kind, version)


def _struct(kind: Kind) -> type[Any]:
    if isinstance(kind, ArrayOf):
        kind = kind.element
    assert isinstance(kind, type)
    return kind


# Kafka has renamed these since kio was generated: ours, kio's.
_RENAMED = {
    ("acceptable_recovery_lag_legacy", "acceptable_recovery_lag"),
    ("generation_id_or_member_epoch", "generation_id"),
}


def _pairs(cls: type[Any], version: int, twin: type[Any]) -> list[tuple[FieldSpec, dataclasses.Field[Any]]]:
    ours = [spec for spec in field_specs(cls) if spec.is_in(version) and not _is_own(spec)]
    pairs = list(zip(ours, dataclasses.fields(twin), strict=True))
    for spec, other in pairs:
        assert _plain(spec.name) == _plain(other.name) or (spec.name, other.name) in _RENAMED
    return pairs


def _is_own(spec: FieldSpec) -> bool:
    """A field that Kafka does not have."""
    return spec.tag is not None and spec.tag >= FIRST_OWN_TAG


def _plain(name: str) -> str:
    """kio leaves the unit out of the names of durations."""
    return name.removesuffix("_ms").replace("_", "")


def _nested(other: dataclasses.Field[Any]) -> type[Any] | None:
    """The dataclass in `X`, `X | None`, `tuple[X, ...]` or `tuple[X, ...] | None`."""
    pending: list[Any] = [other.type]
    while pending:
        hint = pending.pop()
        if dataclasses.is_dataclass(hint):
            return typing.cast("type[Any]", hint)
        pending.extend(typing.get_args(hint))
    return None


def _from_kio(cls: type[Any], version: int, theirs: Any) -> Any:
    values = {
        spec.name: _value_from_kio(spec.kind, version, getattr(theirs, other.name))
        for spec, other in _pairs(cls, version, type(theirs))
    }
    return cls(**values)


def _value_from_kio(kind: Any, version: int, value: Any) -> Any:
    if isinstance(kind, Primitive) and kind.name == "uuid":
        return bytes(16) if value is None else value.bytes
    match value:
        case tuple():
            return [_value_from_kio(kind.element, version, item) for item in value]
        case datetime.timedelta():
            return value // _MILLISECOND
        case datetime.datetime():
            return (value - _EPOCH) // _MILLISECOND
        case uuid.UUID():
            return value.bytes
        case KioErrorCode():
            return int(value)
    if dataclasses.is_dataclass(value):
        return _from_kio(kind, version, value)
    return value
