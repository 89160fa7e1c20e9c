"""The source of encoders: `codec(m, out)`. One that works in steps is a generator, which yields after some kilobytes.

Names in generated code: `b` the last string or bytes, `n` the last length. Numbered by depth: `a0` lists, `s0` list
elements, `t0` nested structs, `f0_1` whether tag 1 is written, `o0` a tagged field's own buffer. `k` is where a step ends.
"""

from __future__ import annotations

import struct
from typing import Any

from tidemill.protocol import wire
from tidemill.protocol.codegen.source import SMALL_ARRAY, STRING, Source, small_arrays
from tidemill.protocol.declarations import (
    ArrayOf,
    FieldSpec,
    Kind,
    Primitive,
    Struct,
    default_factory_of,
    default_of,
    field_specs,
)

_STEP_BYTES = 16 << 10


class EncoderSource(Source):
    """Generates the source of an encoder."""

    def __init__(self, version: int, flexible: bool, *, in_steps: bool = False) -> None:
        super().__init__(version, flexible)
        self.in_steps = in_steps
        self.out = "out"
        self.constants["write_uvarint"] = wire.write_uvarint
        self.constants["write_long_string"] = _write_long_string
        self.constants["null_value"] = _null_value
        self.constants["bad_uuid"] = _bad_uuid

    def compile(self, cls: type[Struct]) -> Any:
        if self.in_steps:
            self.line(f"k = len(out) + {_STEP_BYTES}")
        self.struct(cls, "m", 0)
        self.flush()
        if self.in_steps:
            self.line("yield")
        if not self.lines:
            self.line("pass")
        return self.build("def codec(m, out):", f"<encode {cls.__name__} v{self.version}>")

    def struct(self, cls: type[Struct], var: str, depth: int) -> None:
        for spec in self.untagged(cls):
            self.value(spec.kind, f"{var}.{spec.name}", spec.is_nullable_in(self.version), spec.name, depth)
        if self.flexible:
            self.tags(self.tagged(cls), var, depth)

    def flush(self) -> None:
        if not self.pending:
            return
        codes = "".join(code for code, _ in self.pending)
        values = [value for code, value in self.pending if code != "x"]
        self.pending = []
        if codes == "x":
            self.line(f"{self.out}.append(0)")
            return
        pack = f"P_{codes}".replace("?", "z")
        self.constants[pack] = struct.Struct(">" + codes).pack
        self.line(f"{self.out} += {pack}({', '.join(values)})")

    def value(self, kind: Kind, source: str, nullable: bool, name: str, depth: int) -> None:
        if isinstance(kind, ArrayOf):
            self.array(kind, source, nullable, name, depth)
        elif not isinstance(kind, Primitive):
            self.nested(kind, source, nullable, name, depth)
        elif kind.code == "16s":
            self.line(f"if len({source}) != 16: raise bad_uuid({name!r}, {source})")
            self.pending.append((kind.code, source))
        elif kind.code:
            self.pending.append((kind.code, source))
        else:
            self.variable(kind, source, nullable, name)

    def length(self, kind: Kind, expression: str) -> None:
        if not self.flexible:
            self.pending.append((self.length_code(kind), expression))
            self.flush()
            return
        self.flush()
        self.line(f"n = {expression} + 1")
        self.line(f"if n < 128: {self.out}.append(n)")
        long_form = "write_long_string" if kind == STRING else "write_uvarint"
        self.line(f"else: {long_form}({self.out}, n)")

    def null_branch(self, var: str, kind: Kind, nullable: bool, name: str) -> None:
        """Open the branch for a value that is not null; the caller closes it."""
        if not nullable:
            self.line(f"if {var} is None: raise null_value({name!r}, {self.version})")
            return
        self.flush()
        self.line(f"if {var} is None:")
        self.indent += 1
        self.pending.append(("x", "") if self.flexible else (self.length_code(kind), "-1"))
        self.flush()
        self.indent -= 1
        self.line("else:")
        self.indent += 1

    def variable(self, kind: Primitive, source: str, nullable: bool, name: str) -> None:
        self.line(f"b = {source}")
        self.null_branch("b", kind, nullable, name)
        if kind.name == "string":
            self.line("b = b.encode()")
        self.length(kind, "len(b)")
        self.line(f"{self.out} += b")
        self.indent -= int(nullable)

    def array(self, kind: ArrayOf, source: str, nullable: bool, name: str, depth: int) -> None:
        items = f"a{depth}"
        self.line(f"{items} = {source}")
        self.null_branch(items, kind, nullable, name)
        self.length(kind, f"len({items})")
        element = kind.element
        if isinstance(element, Primitive) and element.code and element.size < 16:
            table = f"PA_{element.code}".replace("?", "z")
            self.constants[table] = small_arrays(element.code).packers
            self.constants["pack"] = struct.pack
            self.line(f"n = len({items})")
            self.line(f"if n < {SMALL_ARRAY}: {self.out} += {table}[n](*{items})")
            self.line(f'else: {self.out} += pack(f">{{n}}{element.code}", *{items})')
        else:
            self.line(f"for s{depth} in {items}:")
            self.indent += 1
            self.value(element, f"s{depth}", False, name, depth + 1)
            self.flush()
            if self.in_steps:
                self.step_end()
            self.indent -= 1
        self.indent -= int(nullable)

    def step_end(self) -> None:
        self.line("if len(out) > k:")
        self.indent += 1
        self.line(f"k = len(out) + {_STEP_BYTES}")
        self.line("yield")
        self.indent -= 1

    def nested(self, cls: Any, source: str, nullable: bool, name: str, depth: int) -> None:
        var = source
        if "." in source:
            var = self.fresh("t")
            self.line(f"{var} = {source}")
            if not nullable:
                self.line(f"if {var} is None: raise null_value({name!r}, {self.version})")
        if not nullable:
            self.struct(cls, var, depth + 1)
            return
        self.flush()
        self.line(f"if {var} is None: {self.out}.append(255)")
        self.line("else:")
        self.indent += 1
        self.pending.append(("b", "1"))
        self.struct(cls, var, depth + 1)
        self.flush()
        self.indent -= 1

    def tags(self, tagged: list[FieldSpec], var: str, depth: int) -> None:
        if not tagged:
            self.pending.append(("x", ""))
            return
        self.flush()
        flags = [f"f{depth}_{spec.tag}" for spec in tagged]
        for spec, flag in zip(tagged, flags, strict=True):
            self.line(f"{flag} = {self.differs(spec, f'{var}.{spec.name}')}")
        self.line(f"{self.out}.append({' + '.join(flags)})")
        for spec, flag in zip(tagged, flags, strict=True):
            self.line(f"if {flag}:")
            self.indent += 1
            self.tag(spec, f"{var}.{spec.name}", depth)
            self.indent -= 1

    def tag(self, spec: FieldSpec, source: str, depth: int) -> None:
        outer, self.out = self.out, f"o{depth}"
        self.line(f"{self.out} = bytearray()")
        self.value(spec.kind, source, spec.is_nullable_in(self.version), spec.name, depth + 1)
        self.flush()
        body, self.out = self.out, outer
        number = bytearray()
        assert spec.tag is not None
        wire.write_uvarint(number, spec.tag)
        self.line(f"{outer} += {bytes(number)!r}")
        self.line(f"write_uvarint({outer}, len({body}))")
        self.line(f"{outer} += {body}")

    def differs(self, spec: FieldSpec, source: str) -> str:
        """A boolean expression that is true when the value must be written."""
        if default_factory_of(spec) is list:
            return f"({source} is None or len({source}) > 0)"
        if spec.default is None:
            return f"({source} is not None)"
        kind = spec.kind
        if isinstance(kind, type) and not spec.is_nullable_in(self.version):
            inner = [
                self.differs(part, f"{source}.{part.name}")
                for part in field_specs(kind)
                if part.is_in(self.version)
            ]
            return f"({' or '.join(inner) or False})"
        return f"({source} != {self.constant('D', default_of(spec))})"


def _write_long_string(out: bytearray, length: int) -> None:
    if length > wire.STRING_BYTES_MAX + 1:
        raise ValueError(
            f"a string of {length - 1} bytes is longer than the protocol's {wire.STRING_BYTES_MAX}"
        )
    wire.write_uvarint(out, length)


def _null_value(name: str, version: int) -> ValueError:
    return ValueError(f"{name} may not be null in version {version}")


def _bad_uuid(name: str, value: bytes) -> ValueError:
    return ValueError(f"{name}: a uuid has 16 bytes, not {len(value)}")
