"""Random messages of any class and version, with a taste for the values at the edges of each type."""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Iterator
from typing import Any

from tidemill.protocol import api
from tidemill.protocol.declarations import ArrayOf, FieldSpec, Kind, Primitive, Struct, field_specs
from tidemill.protocol.schema import Message

_BITS = {"b": 8, "h": 16, "i": 32, "q": 64, "H": 16, "I": 32}
# Around the lengths where a compact length needs one more byte.
_LENGTHS = (0, 1, 3, 126, 127, 128, 300)
_ALPHABET = "abcXYZ-._09 äß€𝄞\x00\n"


def message_types() -> list[type[Message]]:
    """Every message that the protocol package declares, in a stable order."""
    found: dict[str, type[Message]] = {}
    for entry in pkgutil.iter_modules(api.__path__):
        module = importlib.import_module(f"{api.__name__}.{entry.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Message) and value.__module__ == module.__name__:
                found[value.__name__] = value
    return [found[name] for name in sorted(found)]


def message_versions() -> Iterator[tuple[type[Message], int]]:
    for cls in message_types():
        for version in range(cls.versions.min, cls.versions.max + 1):
            yield cls, version


def label(case: object) -> str:
    return case.__name__ if isinstance(case, type) else f"v{case}"


class Sampler:
    """Builds instances from a seed. A subclass may keep to what `twin`, an oracle, can hold."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def message(self, cls: type[Any], version: int, twin: type[Any] | None = None) -> Any:
        specs = [spec for spec in field_specs(cls) if spec.is_in(version)]
        return cls(**{spec.name: self.field(spec, version) for spec in specs})

    def field(self, spec: FieldSpec, version: int) -> object:
        if spec.is_nullable_in(version) and self.random.random() < 0.3:
            return None
        return self.value(spec.kind, version)

    def value(self, kind: Kind, version: int) -> object:
        if isinstance(kind, ArrayOf):
            return [self.value(kind.element, version) for _ in range(self.random.choice((0, 1, 1, 2, 3)))]
        if isinstance(kind, Primitive):
            return self.primitive(kind)
        return self.message(kind, version)

    def primitive(self, kind: Primitive) -> object:
        match kind.name:
            case "bool":
                return self.random.random() < 0.5
            case "float64":
                return self.random.choice((0.0, -1.5, 1e300, self.random.random()))
            case "uuid":
                return self.random.choice((bytes(16), self.random.randbytes(16), self.random.randbytes(16)))
            case "string":
                return "".join(self.random.choices(_ALPHABET, k=self.random.choice(_LENGTHS)))
            case "bytes" | "records":
                return self.random.randbytes(self.random.choice(_LENGTHS))
        return self.integer(kind)

    def integer(self, kind: Primitive) -> int:
        bits = _BITS[kind.code]
        low, high = (0, (1 << bits) - 1) if kind.code.isupper() else (-(1 << bits - 1), (1 << bits - 1) - 1)
        return self.random.choice((low, high, 0, 1, max(low, -1), self.random.randint(low, high)))


def same(left: object, right: object) -> bool:
    """Equality that does not mind whether records are bytes or a view, and holds for NaN."""
    if isinstance(left, Struct) and type(left) is type(right):
        return all(
            same(getattr(left, spec.name), getattr(right, spec.name)) for spec in field_specs(type(left))
        )
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right or (left != left and right != right)
