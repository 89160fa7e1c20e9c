"""Frames: a four-byte length, a header, a body.

A request header is parsed by hand, since it is on the path of every request. Version 2 of it (flexible) is version 1
followed by tagged fields; its client id stays a classic string. Which of the two is sent follows from the API's first
flexible version. A header with an unknown API key is read as version 1, enough to answer with its correlation id.

A client finds out by ApiVersions what we understand, so that API must work before this is known. A version newer than
ours is read as far as the client id, and the response header is always version 0.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from tidemill.errors import ProtocolError
from tidemill.protocol import wire
from tidemill.protocol.api import APIS
from tidemill.protocol.schema import Request, Response, decode_exact, encode_into
from tidemill.protocol.wire import Buffer

API_VERSIONS_KEY = 18
LENGTH_BYTES = 4

ResponseT = TypeVar("ResponseT", bound=Response)

_HEADER = struct.Struct(">hhih")
_HEADER_FIXED = struct.Struct(">hhi")
_NEVER = 0x8000
_flexible_since: dict[int, int] = {
    key: _NEVER if api.flexible_since is None else api.flexible_since for key, api in APIS.items()
}


class RequestHeader(NamedTuple):
    """The header of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def parse_frame_length(buffer: Buffer, position: int, limit: int) -> int:
    """The length of the frame whose first four bytes are at `position`."""
    length, _ = wire.read_int32(buffer, position)
    if length < 0 or length > limit:
        raise ProtocolError(f"frame of {length} bytes, allowed are 0 to {limit}")
    return length


def parse_request_header(frame: Buffer) -> RequestHeader:
    """Parse the header. `frame` starts after the length prefix."""
    try:
        api_key, api_version, correlation_id, length = _HEADER.unpack_from(frame)
    except struct.error:
        raise ProtocolError(f"a request of {len(frame)} bytes has no header") from None
    position = _HEADER.size
    client_id: str | None = None
    if length >= 0:
        end = position + length
        if end > len(frame):
            raise wire.truncated(length, len(frame) - position)
        try:
            client_id = str(frame[position:end], "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"the client id is not UTF-8: {error.reason}") from None
        position = end
    elif length != wire.NULL_LENGTH:
        raise ProtocolError(f"client id of length {length}")
    if api_version >= _flexible_since.get(api_key, _NEVER):
        position = _skip_header_tags(frame, position, lenient=api_key == API_VERSIONS_KEY)
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def _skip_header_tags(frame: Buffer, position: int, lenient: bool) -> int:
    if position < len(frame) and frame[position] == 0:
        return position + 1
    try:
        return wire.skip_tagged_fields(frame, position)
    except ProtocolError:
        if lenient:
            return position
        raise


def response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    raw = wire.INT32.pack(correlation_id)
    if has_flexible_response_header(api_key, api_version):
        return raw + b"\0"
    return raw


def has_flexible_response_header(api_key: int, api_version: int) -> bool:
    return api_key != API_VERSIONS_KEY and api_version >= _flexible_since.get(api_key, _NEVER)


def request_frame(message: Request, version: int, correlation_id: int, client_id: str | None = None) -> bytes:
    """A request as a client sends it, with its length prefix."""
    out = _request_head(type(message), version, correlation_id, client_id)
    encode_into(message, version, out)
    return _with_length(out)


def request_frame_parts(
    api: type[Request], version: int, correlation_id: int, client_id: str | None, body: Sequence[Buffer]
) -> list[Buffer]:
    """A request frame around an encoded body in pieces, which are not copied."""
    head = _request_head(api, version, correlation_id, client_id)
    size = len(head) - LENGTH_BYTES + sum(len(part) for part in body)
    wire.INT32.pack_into(head, 0, size)
    return [head, *body]


def _request_head(api: type[Request], version: int, correlation_id: int, client_id: str | None) -> bytearray:
    """Space for the length prefix, and the header."""
    out = bytearray(LENGTH_BYTES)
    out += _HEADER_FIXED.pack(api.api_key, version, correlation_id)
    wire.write_nullable_string(out, client_id)
    if api.is_flexible(version):
        out.append(0)
    return out


def response_frame(message: Response, version: int, correlation_id: int) -> bytes:
    """A response as a broker sends it, with its length prefix."""
    out = bytearray(LENGTH_BYTES)
    out += response_header(message.api_key, version, correlation_id)
    encode_into(message, version, out)
    return _with_length(out)


def _with_length(out: bytearray) -> bytes:
    wire.INT32.pack_into(out, 0, len(out) - LENGTH_BYTES)
    return bytes(out)


def parse_response(cls: type[ResponseT], version: int, frame: Buffer) -> tuple[int, ResponseT]:
    """The correlation id and the message in a frame without its length prefix."""
    correlation_id, position = wire.read_int32(frame, 0)
    if has_flexible_response_header(cls.api_key, version):
        position = wire.skip_tagged_fields(frame, position)
    return correlation_id, decode_exact(cls, version, frame, position)
