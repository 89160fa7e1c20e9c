"""The base of decoder and encoder generation: source lines, constants, and the fields of a version."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from tidemill.protocol.declarations import ArrayOf, FieldSpec, Kind, Primitive, Struct, field_specs

STRING = Primitive("string")
# The `struct` layouts of arrays shorter than this (replicas, partitions) are prepared.
SMALL_ARRAY = 12


class ArrayLayouts(NamedTuple):
    """The `struct` layouts of small arrays."""

    unpackers: tuple[Callable[..., tuple[Any, ...]], ...]
    packers: tuple[Callable[..., bytes], ...]


@functools.cache
def small_arrays(code: str) -> ArrayLayouts:
    layouts = [struct.Struct(">" + code * length) for length in range(SMALL_ARRAY)]
    return ArrayLayouts(
        tuple(layout.unpack_from for layout in layouts), tuple(layout.pack for layout in layouts)
    )


class Source:
    """The lines of a generated function, and its constants."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.indent = 1
        self.variables = 0
        self.constants: dict[str, object] = {"new": object.__new__}
        # Fixed-size values not yet emitted, as (struct code, expression).
        self.pending: list[tuple[str, str]] = []

    def line(self, text: str) -> None:
        self.lines.append(" " * self.indent + text)

    def constant(self, prefix: str, value: object) -> str:
        for name, known in self.constants.items():
            if known is value:
                return name
        name = f"{prefix}{len(self.constants)}"
        self.constants[name] = value
        return name

    def fresh(self, prefix: str) -> str:
        """A variable name that no pending value uses."""
        self.variables += 1
        return f"{prefix}{self.variables}"

    def build(self, header: str, name: str) -> Any:
        """Compile the function; `name` appears in tracebacks."""
        namespace = dict(self.constants)
        exec(compile("\n".join([header, *self.lines]), name, "exec"), namespace)
        return namespace["codec"]

    def untagged(self, cls: type[Struct]) -> list[FieldSpec]:
        return [spec for spec in field_specs(cls) if spec.is_in(self.version) and spec.tag is None]

    def tagged(self, cls: type[Struct]) -> list[FieldSpec]:
        specs = [spec for spec in field_specs(cls) if spec.is_in(self.version) and spec.tag is not None]
        if specs and not self.flexible:
            raise TypeError(f"{cls.__name__} v{self.version} has tagged fields but is not flexible")
        return sorted(specs, key=lambda spec: spec.tag or 0)

    def size_min(self, kind: Kind) -> int:
        """The smallest number of bytes of a value of this kind, at least one."""
        if isinstance(kind, ArrayOf) or (isinstance(kind, Primitive) and not kind.code):
            if self.flexible:
                return 1
            return 2 if kind == STRING else 4
        if isinstance(kind, Primitive):
            return kind.size
        sizes = [self.size_min_of_field(spec) for spec in self.untagged(kind)]
        return max(1, sum(sizes) + int(self.flexible))

    def size_min_of_field(self, spec: FieldSpec) -> int:
        if isinstance(spec.kind, type) and spec.is_nullable_in(self.version):
            return 1
        return self.size_min(spec.kind)

    def length_code(self, kind: Kind) -> str:
        if self.flexible:
            return "B"
        return "h" if kind == STRING else "i"
