"""Messages, and the functions that turn them into bytes and back.

A message class names its API key, the versions its declaration covers and the first flexible version:

    class FetchRequest(Request, api_key=1, versions=(4, 18), flexible=12): ...

One class serves all versions. A field that a version lacks is left at its default by `decode` and silently left out by
`encode`. So a handler fills in one response, and old clients get what they can understand. A null where the version
allows none is a bug of ours and a `ValueError`; bytes that do not parse are the peer's, and always a `ProtocolError`.

Codecs are compiled on first use per (class, version), see `codegen/`. The vocabulary of declarations is in
declarations.py and re-exported here, so that message modules import from one place.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar, NamedTuple, TypeVar

from tidemill.errors import ProtocolError
from tidemill.protocol.codegen import (
    Decoder,
    Encoder,
    StepDecoder,
    StepEncoder,
    compile_decoder,
    compile_encoder,
    compile_step_decoder,
    compile_step_encoder,
    has_records,
)
from tidemill.protocol.declarations import (
    FIRST_OWN_TAG,
    NO_UUID,
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableSince,
    Records,
    Since,
    String,
    Struct,
    Tag,
    UInt16,
    UInt32,
    Until,
    Uuid,
    field,
    replace,
)
from tidemill.protocol.steps import Steps
from tidemill.protocol.wire import Buffer

__all__ = [
    "FIRST_OWN_TAG",
    "NO_UUID",
    "Bool",
    "Bytes",
    "DataMessage",
    "Float64",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "Message",
    "NullableSince",
    "Records",
    "Request",
    "Response",
    "Since",
    "String",
    "Struct",
    "Tag",
    "UInt16",
    "UInt32",
    "Until",
    "Uuid",
    "VersionRange",
    "decode",
    "decode_exact",
    "decode_from",
    "decode_in_steps",
    "encode",
    "encode_in_steps",
    "encode_into",
    "field",
    "replace",
]


class VersionRange(NamedTuple):
    """A range of versions."""

    min: int
    max: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.min <= version <= self.max


class Message(Struct):
    """A struct that is sent or stored by itself."""

    api_key: ClassVar[int]
    versions: ClassVar[VersionRange]
    flexible_since: ClassVar[int | None]
    latest_version_unstable: ClassVar[bool]
    _decoders: ClassVar[dict[int, tuple[Decoder, bool]]]
    _step_decoders: ClassVar[dict[int, StepDecoder]]
    _encoders: ClassVar[dict[int, Encoder]]
    _step_encoders: ClassVar[dict[int, StepEncoder]]

    def __init_subclass__(
        cls,
        *,
        api_key: int = -1,
        versions: tuple[int, int] | None = None,
        flexible: int | None = None,
        latest_version_unstable: bool = False,
    ) -> None:
        super().__init_subclass__()
        if versions is None:
            return
        cls.api_key = api_key
        cls.versions = VersionRange(*versions)
        cls.flexible_since = flexible
        cls.latest_version_unstable = latest_version_unstable
        cls._decoders = {}
        cls._step_decoders = {}
        cls._encoders = {}
        cls._step_encoders = {}

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        return cls.flexible_since is not None and version >= cls.flexible_since


class Request(Message):
    """A request of a client, broker or controller."""


class Response(Message):
    """The response to the request with the same API key and version."""


class DataMessage(Message):
    """A message that is stored or embedded, not sent by itself: metadata records, coordinator records."""


MessageT = TypeVar("MessageT", bound=Message)

_MALFORMED = (struct.error, IndexError, UnicodeDecodeError)


def decode(cls: type[MessageT], version: int, buffer: Buffer, position: int = 0) -> MessageT:
    """Decode the message at `position`; bytes after it are ignored."""
    return decode_from(cls, version, buffer, position)[0]


def decode_exact(cls: type[MessageT], version: int, buffer: Buffer, position: int = 0) -> MessageT:
    """Decode the message that fills the rest of the buffer."""
    message, end = decode_from(cls, version, buffer, position)
    if end != len(buffer):
        raise ProtocolError(f"{cls.__name__} v{version}: {len(buffer) - end} bytes too many")
    return message


def decode_from(cls: type[MessageT], version: int, buffer: Buffer, position: int = 0) -> tuple[MessageT, int]:
    """Decode the message at `position`. Returns it and its end."""
    decoder, views = cls._decoders.get(version) or _decoder(cls, version)
    try:
        if views:
            view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
            return decoder(view, position, len(view))
        if isinstance(buffer, bytes):
            return decoder(buffer, position, len(buffer))
        # One copy, whose slices are ready values.
        copied = bytes(memoryview(buffer)[position:])
        message, end = decoder(copied, 0, len(copied))
        return message, position + end
    except _MALFORMED as error:
        raise _malformed(cls, version, error) from None


def decode_in_steps(cls: type[MessageT], version: int, body: bytes) -> Steps[MessageT]:
    """As `decode`, in steps of some kilobytes."""
    decoder = cls._step_decoders.get(version)
    if decoder is None:
        _check_decodable(cls, version)
        decoder = cls._step_decoders[version] = compile_step_decoder(cls, version, cls.is_flexible(version))
    try:
        message, _ = yield from decoder(memoryview(body) if has_records(cls) else body, 0, len(body))
    except _MALFORMED as error:
        raise _malformed(cls, version, error) from None
    decoded: MessageT = message
    return decoded


def encode(message: Message, version: int) -> bytes:
    out = bytearray()
    encode_into(message, version, out)
    return bytes(out)


def encode_into(message: Message, version: int, out: bytearray) -> None:
    """Append the message. After a ValueError `out` may end in a part of it."""
    encoder = message._encoders.get(version) or _encoder(type(message), version)
    try:
        encoder(message, out)
    except struct.error as error:
        raise ValueError(f"{type(message).__name__} v{version}: {error}") from None


def encode_in_steps(message: Message, version: int) -> Steps[bytes]:
    """As `encode`, in steps of some kilobytes."""
    cls = type(message)
    encoder = cls._step_encoders.get(version)
    if encoder is None:
        _check_encodable(cls, version)
        encoder = cls._step_encoders[version] = compile_step_encoder(cls, version, cls.is_flexible(version))
    out = bytearray()
    try:
        for _ in encoder(message, out):
            yield None
    except struct.error as error:
        raise ValueError(f"{cls.__name__} v{version}: {error}") from None
    return bytes(out)


def _decoder(cls: type[Message], version: int) -> tuple[Decoder, bool]:
    _check_decodable(cls, version)
    compiled = compile_decoder(cls, version, cls.is_flexible(version)), has_records(cls)
    cls._decoders[version] = compiled
    return compiled


def _encoder(cls: type[Message], version: int) -> Encoder:
    _check_encodable(cls, version)
    compiled = compile_encoder(cls, version, cls.is_flexible(version))
    cls._encoders[version] = compiled
    return compiled


def _check_decodable(cls: type[Message], version: int) -> None:
    if version not in cls.versions:
        raise ProtocolError(f"{cls.__name__} has no version {version}, only {_range_text(cls)}")


def _malformed(cls: type[Message], version: int, error: Exception) -> ProtocolError:
    return ProtocolError(f"{cls.__name__} v{version} is malformed: {error}")


def _check_encodable(cls: type[Message], version: int) -> None:
    if version not in cls.versions:
        raise ValueError(f"{cls.__name__} has no version {version}, only {_range_text(cls)}")


def _range_text(cls: type[Any]) -> str:
    return f"{cls.versions.min} to {cls.versions.max}"
