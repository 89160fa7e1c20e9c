"""Compiles a struct's declaration, for one version, into the Python source of a decoder and an encoder.

The source is straight-line code for exactly that version. Nested structs are inlined, and absent fields become
assignments of their defaults. Neighbouring fixed-size values share one `struct` call, with the length byte or word of
what comes next and the usually empty tagged section among them. Nothing is looked up at run time.

    decoder(buffer, p, end) -> (message, p)      encoder(message, out)

Bounds: indexing and `unpack_from` fail by themselves past the end, and schema.py turns that into
`ProtocolError`. Slices do not fail, so generated code compares every length with `end` before it slices or
loops.

Without `records` a decoder reads from `bytes`, whose slices are ready values; with `records` it reads from
a memoryview, so that records are never copied.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeAlias

from tidemill.protocol.codegen.decoder import DecoderSource
from tidemill.protocol.codegen.encoder import EncoderSource
from tidemill.protocol.declarations import ArrayOf, Kind, Primitive, Struct, field_specs

Decoder: TypeAlias = Callable[[Any, int, int], tuple[Any, int]]
Encoder: TypeAlias = Callable[[Any, bytearray], None]
StepEncoder: TypeAlias = Callable[[Any, bytearray], Iterator[None]]
StepDecoder: TypeAlias = Callable[[Any, int, int], Generator[None, None, tuple[Any, int]]]


def compile_decoder(cls: type[Struct], version: int, flexible: bool) -> Decoder:
    decoder: Decoder = DecoderSource(version, flexible, views=has_records(cls)).compile(cls)
    return decoder


def compile_step_decoder(cls: type[Struct], version: int, flexible: bool) -> StepDecoder:
    source = DecoderSource(version, flexible, views=has_records(cls), in_steps=True)
    decoder: StepDecoder = source.compile(cls)
    return decoder


def compile_encoder(cls: type[Struct], version: int, flexible: bool) -> Encoder:
    encoder: Encoder = EncoderSource(version, flexible).compile(cls)
    return encoder


def compile_step_encoder(cls: type[Struct], version: int, flexible: bool) -> StepEncoder:
    encoder: StepEncoder = EncoderSource(version, flexible, in_steps=True).compile(cls)
    return encoder


def has_records(cls: type[Struct]) -> bool:
    return any(_kind_has_records(spec.kind) for spec in field_specs(cls))


def _kind_has_records(kind: Kind) -> bool:
    if isinstance(kind, ArrayOf):
        return _kind_has_records(kind.element)
    if isinstance(kind, Primitive):
        return kind.name == "records"
    return has_records(kind)
