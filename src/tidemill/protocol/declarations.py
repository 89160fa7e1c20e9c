"""The declaration of messages: annotated classes, and the vocabulary of their fields.

A message is a class whose annotations are its wire format:

    class FetchTopic(Struct):
        topic: Annotated[String, Until(12)] = ""
        topic_id: Annotated[Uuid, Since(13)] = NO_UUID
        partitions: list[FetchPartition] = field(default_factory=list)

`Int32`, `String` … are plain `int`, `str` … to a type checker. `Since`, `Until`, `NullableSince` and `Tag`
say in which versions a field is there; in the others it has its default. Every field has a default, as in
Kafka.

There are several hundred such classes, and a process uses a few dozen of them, so declaring one costs no
more than creating a slotted class. Annotations stay strings (`from __future__ import annotations`) until
the first codec of a class is compiled, and `__init__` is compiled when the first instance is made. That is
why this is not `dataclasses.dataclass`, which it otherwise resembles: keyword-only, slotted, compared
field by field, unhashable.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias, TypeVar, dataclass_transform

T = TypeVar("T")


class Primitive(NamedTuple):
    """A type without fields. `code` is its `struct` code, empty when its size varies."""

    name: str
    code: str = ""
    size: int = 0


Int8: TypeAlias = Annotated[int, Primitive("int8", "b", 1)]
Int16: TypeAlias = Annotated[int, Primitive("int16", "h", 2)]
Int32: TypeAlias = Annotated[int, Primitive("int32", "i", 4)]
Int64: TypeAlias = Annotated[int, Primitive("int64", "q", 8)]
UInt16: TypeAlias = Annotated[int, Primitive("uint16", "H", 2)]
UInt32: TypeAlias = Annotated[int, Primitive("uint32", "I", 4)]
Float64: TypeAlias = Annotated[float, Primitive("float64", "d", 8)]
Bool: TypeAlias = Annotated[bool, Primitive("bool", "?", 1)]
# The 16 raw bytes, see `types.TopicId`.
Uuid: TypeAlias = Annotated[bytes, Primitive("uuid", "16s", 16)]
String: TypeAlias = Annotated[str, Primitive("string")]
Bytes: TypeAlias = Annotated[bytes, Primitive("bytes")]
# Decodes to a memoryview of the received buffer: records are large and only passed on.
Records: TypeAlias = Annotated[bytes | bytearray | memoryview, Primitive("records")]

NO_UUID = bytes(16)


class Since(NamedTuple):
    """The first version that has the field."""

    version: int


class Until(NamedTuple):
    """The last version that has the field."""

    version: int


class NullableSince(NamedTuple):
    """The first version in which the field, typed `… | None`, may be null."""

    version: int


class Tag(NamedTuple):
    """The field is in the tagged section, and is written only when it differs from its default."""

    number: int


# Fields with this tag, or a larger one, are Tidemill's own. Kafka's brokers and clients skip them.
FIRST_OWN_TAG = 10_000


class _Factory(NamedTuple):
    """The factory of a field's default."""

    make: Callable[[], object]


def field(*, default_factory: Callable[[], T]) -> T:
    """The default of a list or struct field, created for each instance."""
    return typing.cast(T, _Factory(default_factory))


class ArrayOf(NamedTuple):
    """An array type."""

    element: Kind


Kind: TypeAlias = "Primitive | ArrayOf | type[Struct]"


class FieldSpec(NamedTuple):
    """One field of a struct: its name, type, versions and default."""

    name: str
    kind: Kind
    default: object
    since: int
    until: int
    nullable_since: int | None
    tag: int | None

    def is_in(self, version: int) -> bool:
        return self.since <= version <= self.until

    def is_nullable_in(self, version: int) -> bool:
        return self.nullable_since is not None and version >= self.nullable_since


@dataclass_transform(kw_only_default=True, eq_default=True, field_specifiers=(field,))
class StructType(type):
    """The metaclass that turns annotated names with defaults into a slotted class."""

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> StructType:
        names = [
            key
            for key, annotation in namespace.get("__annotations__", {}).items()
            if not annotation.startswith("ClassVar")
        ]
        if names and any(getattr(base, "__struct_defaults__", None) for base in bases):
            raise TypeError(f"{name}: a struct with fields cannot be extended")
        missing = [key for key in names if key not in namespace]
        if missing:
            raise TypeError(f"{name}: no default for {', '.join(missing)}")
        namespace["__struct_defaults__"] = {key: namespace.pop(key) for key in names}
        namespace["__slots__"] = tuple(names)
        return super().__new__(mcls, name, bases, namespace, **options)


class Struct(metaclass=StructType):
    """The base of everything that has a wire format."""

    __struct_defaults__: ClassVar[dict[str, object]]
    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __init__(self, **values: Any) -> None:
        initialise = _compile_init(type(self))
        setattr(type(self), "__init__", initialise)  # noqa: B010
        initialise(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__struct_defaults__)

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__struct_defaults__)
        return f"{type(self).__name__}({inner})"

    def __replace__(self: T, **changes: Any) -> T:
        names = type(self).__struct_defaults__  # type: ignore[attr-defined]
        return type(self)(**{name: getattr(self, name) for name in names} | changes)


StructT = TypeVar("StructT", bound=Struct)


def replace(struct: StructT, **changes: Any) -> StructT:
    """A shallow copy with some fields changed (`copy.replace`, which needs Python 3.13)."""
    return struct.__replace__(**changes)


def _compile_init(cls: type[Struct]) -> Callable[..., None]:
    namespace: dict[str, Any] = {"UNSET": object()}
    parameters, body = [], []
    for name, default in cls.__struct_defaults__.items():
        if isinstance(default, _Factory):
            namespace[f"make_{name}"] = default.make
            parameters.append(f"{name}=UNSET")
            body.append(f" self.{name} = make_{name}() if {name} is UNSET else {name}")
        else:
            namespace[f"default_{name}"] = default
            parameters.append(f"{name}=default_{name}")
            body.append(f" self.{name} = {name}")
    head = f"def __init__(self, *, {', '.join(parameters)}):" if parameters else "def __init__(self):"
    exec("\n".join([head, *body] if body else [head, " pass"]), namespace)
    initialise: Callable[..., None] = namespace["__init__"]
    initialise.__qualname__ = f"{cls.__qualname__}.__init__"
    return initialise


_specs: dict[type[Struct], tuple[FieldSpec, ...]] = {}


def field_specs(cls: type[Struct]) -> tuple[FieldSpec, ...]:
    """The fields in wire order, their annotations evaluated."""
    specs = _specs.get(cls)
    if specs is None:
        hints = typing.get_type_hints(cls, include_extras=True)
        specs = tuple(_field_spec(cls, name, hints[name]) for name in cls.__struct_defaults__)
        _specs[cls] = specs
    return specs


def _field_spec(cls: type[Struct], name: str, hint: Any) -> FieldSpec:
    marks: list[object] = []
    hint = _peel(hint, marks)
    nullable_since: int | None = None
    if typing.get_origin(hint) in (typing.Union, types.UnionType) and type(None) in typing.get_args(hint):
        nullable_since = 0
        (inner,) = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        hint = _peel(inner, marks)
    since, until, tag = 0, sys.maxsize, None
    kind: Kind | None = None
    for mark in marks:
        match mark:
            case Primitive():
                kind = mark
            case Since(version):
                since = version
            case Until(version):
                until = version
            case NullableSince(version):
                nullable_since = version
            case Tag(number):
                tag = number
            case _:
                raise TypeError(f"{cls.__name__}.{name}: {mark!r} means nothing here")
    kind = kind or _composite(cls, name, hint)
    return FieldSpec(name, kind, cls.__struct_defaults__[name], since, until, nullable_since, tag)


def _peel(hint: Any, marks: list[object]) -> Any:
    if typing.get_origin(hint) is Annotated:
        marks.extend(hint.__metadata__)
        return hint.__origin__
    return hint


def _composite(cls: type[Struct], name: str, hint: Any) -> Kind:
    if isinstance(hint, StructType):
        return typing.cast("type[Struct]", hint)
    if typing.get_origin(hint) is list:
        marks: list[object] = []
        inner = _peel(typing.get_args(hint)[0], marks)
        if marks and isinstance(marks[0], Primitive):
            return ArrayOf(marks[0])
        if isinstance(inner, StructType):
            return ArrayOf(typing.cast("type[Struct]", inner))
    raise TypeError(f"{cls.__name__}.{name}: {hint!r} has no wire format")


def default_of(spec: FieldSpec) -> object:
    """A fresh default value."""
    return spec.default.make() if isinstance(spec.default, _Factory) else spec.default


def default_factory_of(spec: FieldSpec) -> Callable[[], object] | None:
    return spec.default.make if isinstance(spec.default, _Factory) else None
