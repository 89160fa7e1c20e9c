"""The source of decoders: `codec(buf, p, end) -> (message, p)`. One that works in steps is a generator, which yields after
some kilobytes and returns the same.

Names in generated code: `p` position, `n` the last length read, `q` the end of a slice. Numbered by depth: `n0`
lengths, `a0` lists, `s0` list elements, `t0` nested structs, `c0 g0 e0` count, tag and end of tagged fields. `k` is where
a step ends.
"""

from __future__ import annotations

import struct
from typing import Any

from tidemill.errors import ProtocolError
from tidemill.protocol import wire
from tidemill.protocol.codegen.source import SMALL_ARRAY, STRING, Source, small_arrays
from tidemill.protocol.declarations import (
    ArrayOf,
    FieldSpec,
    Kind,
    Primitive,
    Struct,
    default_factory_of,
    field_specs,
)
from tidemill.protocol.wire import Buffer

# Small entries take half a millisecond to decode.
_STEP_BYTES = 4 << 10


class DecoderSource(Source):
    """Generates the source of a decoder."""

    def __init__(self, version: int, flexible: bool, views: bool, *, in_steps: bool = False) -> None:
        super().__init__(version, flexible)
        self.in_steps = in_steps
        self.views = views
        self.constants["long_uvarint"] = wire.read_uvarint
        self.constants["long_string"] = _long_string
        self.constants["long_array"] = _long_array
        self.constants["tag_count"] = wire.read_tag_count
        self.constants["skip_tags"] = wire.skip_tagged_fields
        self.constants["too_many"] = wire.too_many_elements
        self.constants["overrun"] = _overrun
        self.constants["bad_length"] = _bad_length
        self.constants["bad_tag"] = _bad_tag
        self.constants["unpack_from"] = struct.unpack_from

    def compile(self, cls: type[Struct]) -> Any:
        if self.in_steps:
            self.line(f"k = p + {_STEP_BYTES}")
        self.struct(cls, "m", 0)
        self.flush()
        if self.in_steps:
            self.line("yield")
        self.line("return m, p")
        return self.build("def codec(buf, p, end):", f"<decode {cls.__name__} v{self.version}>")

    def struct(self, cls: type[Struct], var: str, depth: int) -> None:
        self.line(f"{var} = new({self.constant('C', cls)})")
        tagged = self.tagged(cls)
        for spec in field_specs(cls):
            if not spec.is_in(self.version) or spec.tag is not None:
                self.default(spec, f"{var}.{spec.name}")
        for spec in self.untagged(cls):
            self.value(spec.kind, f"{var}.{spec.name}", spec.is_nullable_in(self.version), spec.name, depth)
        if self.flexible:
            self.tags(tagged, var, depth)

    def default(self, spec: FieldSpec, target: str) -> None:
        factory = default_factory_of(spec)
        if factory is list:
            self.line(f"{target} = []")
        elif factory is not None:
            self.line(f"{target} = {self.constant('F', factory)}()")
        elif spec.default is None or isinstance(spec.default, (int, str)):
            self.line(f"{target} = {spec.default!r}")
        else:
            self.line(f"{target} = {self.constant('D', spec.default)}")

    def flush(self) -> None:
        if not self.pending:
            return
        codes = "".join(code for code, _ in self.pending)
        targets = [target for _, target in self.pending]
        self.pending = []
        if codes == "B":
            self.line(f"{targets[0]} = buf[p]; p += 1")
            return
        layout = struct.Struct(">" + codes)
        unpack = f"U_{codes}".replace("?", "z")
        self.constants[unpack] = layout.unpack_from
        comma = "," if len(targets) == 1 else ""
        self.line(f"{', '.join(targets)}{comma} = {unpack}(buf, p); p += {layout.size}")

    def value(self, kind: Kind, target: str, nullable: bool, name: str, depth: int) -> None:
        if isinstance(kind, ArrayOf):
            self.array(kind, target, nullable, name, depth)
        elif not isinstance(kind, Primitive):
            self.nested(kind, target, nullable, depth)
        elif kind.code:
            self.pending.append((kind.code, target))
        else:
            self.variable(kind, target, nullable, name)

    def length(self, kind: Kind, var: str) -> None:
        """Read a length into `var`; −1 for null."""
        self.pending.append((self.length_code(kind), var))
        self.flush()
        if self.flexible:
            long_form = "long_string" if kind == STRING else "long_uvarint"
            if isinstance(kind, ArrayOf):
                long_form = "long_array"
            self.line(f"if {var} > 127: {var}, p = {long_form}(buf, p - 1)")
            self.line(f"{var} -= 1")
        elif isinstance(kind, ArrayOf):
            self.line(f"if {var} > {wire.ARRAY_ELEMENTS_MAX}: raise too_many({var})")

    def null_branch(self, var: str, target: str, nullable: bool, name: str) -> None:
        self.line(f"if {var} < 0:")
        if nullable:
            self.line(f" if {var} != -1: raise bad_length({name!r}, {var})")
            self.line(f" {target} = None")
        else:
            self.line(f" raise bad_length({name!r}, {var})")
        self.line("else:")

    def variable(self, kind: Primitive, target: str, nullable: bool, name: str) -> None:
        self.length(kind, "n")
        self.null_branch("n", target, nullable, name)
        self.line(" q = p + n")
        self.line(f" if q > end: raise overrun({name!r}, n, end - p)")
        self.line(f" {target} = {self.slice(kind)}")
        self.line(" p = q")

    def slice(self, kind: Primitive) -> str:
        if kind.name == "string":
            return 'str(buf[p:q], "utf-8")' if self.views else "buf[p:q].decode()"
        if kind.name == "records" or not self.views:
            return "buf[p:q]"
        return "bytes(buf[p:q])"

    def array(self, kind: ArrayOf, target: str, nullable: bool, name: str, depth: int) -> None:
        var, items = f"n{depth}", f"a{depth}"
        self.length(kind, var)
        self.null_branch(var, target, nullable, name)
        self.indent += 1
        size_min = self.size_min(kind.element)
        self.line(f"if {var} * {size_min} > end - p: raise overrun({name!r}, {var}, end - p)")
        element = kind.element
        if isinstance(element, Primitive) and element.code:
            self.fixed_array(element, target, var)
        else:
            self.line(f"{target} = {items} = []")
            self.line(f"for _ in range({var}):")
            self.indent += 1
            if isinstance(element, Primitive):
                self.value(element, "x", False, name, depth + 1)
                self.line(f"{items}.append(x)")
            else:
                self.nested(element, "", False, depth + 1)
                self.flush()
                self.line(f"{items}.append(s{depth + 1})")
            if self.in_steps:
                self.step_end()
            self.indent -= 1
        self.indent -= 1

    def step_end(self) -> None:
        self.line("if p > k:")
        self.indent += 1
        self.line(f"k = p + {_STEP_BYTES}")
        self.line("yield")
        self.indent -= 1

    def fixed_array(self, element: Primitive, target: str, var: str) -> None:
        table = f"UA_{element.code}".replace("?", "z")
        self.constants[table] = small_arrays(element.code).unpackers
        self.line(f"if {var} < {SMALL_ARRAY}: {target} = list({table}[{var}](buf, p))")
        if element.code == "16s":
            item = "bytes(buf[q:q + 16])" if self.views else "buf[q:q + 16]"
            self.line(f"else: {target} = [{item} for q in range(p, p + {var} * 16, 16)]")
        else:
            # A repeat count, not a repeated code: `struct` caches layouts, and this one stays small.
            self.line(f'else: {target} = list(unpack_from(f">{{{var}}}{element.code}", buf, p))')
        self.line(f"p += {var} * {element.size}")

    def nested(self, cls: Any, target: str, nullable: bool, depth: int) -> None:
        var = self.fresh("t") if target else f"s{depth}"
        if not nullable:
            self.struct(cls, var, depth + 1)
            if target:
                self.line(f"{target} = {var}")
            return
        self.pending.append(("b", "n"))
        self.flush()
        self.line("if n < 0:")
        self.line(f" {target} = None")
        self.line("else:")
        self.indent += 1
        self.struct(cls, var, depth + 1)
        self.flush()
        self.line(f"{target} = {var}")
        self.indent -= 1

    def tags(self, tagged: list[FieldSpec], var: str, depth: int) -> None:
        self.pending.append(("B", "n"))
        self.flush()
        if not tagged:
            self.line("if n: p = skip_tags(buf, p - 1)")
            return
        count, tag, stop = f"c{depth}", f"g{depth}", f"e{depth}"
        self.line("if n:")
        self.indent += 1
        self.line(f"{count}, p = tag_count(buf, p - 1)")
        self.line(f"if {count} > end - p: raise overrun('tagged fields', {count}, end - p)")
        self.line(f"for _ in range({count}):")
        self.indent += 1
        self.line(f"{tag}, p = long_uvarint(buf, p)")
        self.line("n, p = long_uvarint(buf, p)")
        self.line(f"{stop} = p + n")
        self.line(f"if {stop} > end: raise overrun('a tagged field', n, end - p)")
        for position, spec in enumerate(tagged):
            self.line(f"{'el' if position else ''}if {tag} == {spec.tag}:")
            self.indent += 1
            self.value(
                spec.kind, f"{var}.{spec.name}", spec.is_nullable_in(self.version), spec.name, depth + 1
            )
            self.flush()
            self.line(f"if p != {stop}: raise bad_tag({spec.name!r})")
            self.indent -= 1
        self.line(f"else: p = {stop}")
        self.indent -= 2


def _long_string(buffer: Buffer, position: int) -> tuple[int, int]:
    length, position = wire.read_uvarint(buffer, position)
    if length > wire.STRING_BYTES_MAX + 1:
        raise ProtocolError(f"a string of {length - 1} bytes, at most {wire.STRING_BYTES_MAX} are allowed")
    return length, position


def _long_array(buffer: Buffer, position: int) -> tuple[int, int]:
    length, position = wire.read_uvarint(buffer, position)
    if length > wire.ARRAY_ELEMENTS_MAX + 1:
        raise wire.too_many_elements(length - 1)
    return length, position


def _overrun(name: str, length: int, left: int) -> ProtocolError:
    return ProtocolError(f"{name}: length {length} with {max(left, 0)} bytes left")


def _bad_length(name: str, length: int) -> ProtocolError:
    return ProtocolError(f"{name}: {'null is not allowed' if length == -1 else f'length {length}'}")


def _bad_tag(name: str) -> ProtocolError:
    return ProtocolError(f"{name}: the tagged field's size does not match its content")
