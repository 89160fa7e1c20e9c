"""Request bodies as JSON, bounded in size and in time.

`read_json` takes one document, which has to be small. `stream_json` takes several, one after the other (concatenated JSON,
with or without white space between them), as they come. Both refuse, with `Problem`:

    415    a Content-Type that is not JSON's (or what the route names), a charset that is not UTF-8, or compression
    413    more bytes than the limit, without reading them when Content-Length says so; too much in a record
    503    a body that gives way to others (`waiting_bodies.py`)
    408    a body that makes too little progress: a pause longer than `body_pause_s`, or less than `body_bytes_per_s_min`
    400    bytes that are not UTF-8; JSON that does not parse, with line and column; NaN and Infinity, which are no JSON

In a stream a pause between two
documents may be longer (`stream_pause_s`); the rate counts from a document's first byte.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from tidemill.gateway.answers import JSON
from tidemill.gateway.http.waiting_bodies import Place, bodies_of
from tidemill.gateway.problems import Problem
from tidemill.gateway.settings import Limits
from tidemill.gateway.turns import turn_of

_WHITE_SPACE = b" \t\r\n"
_NOT_SPACE = re.compile(r"[^ \t\r\n]")
_NOT_SPACE_BYTE = re.compile(rb"[^ \t\r\n]")
# So much of a stream is searched for records at once.
_PIECE_BYTES = 8192
# The escapes that may be half of a pair: rare, so what they make is looked at only where they are.
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_STRUCTURE = re.compile(rb'["{}\[\]]')
# An escape is taken as a whole, so that an escaped quote does not end the string.
_IN_STRING = re.compile(rb'"|\\.|\\', re.DOTALL)
_STRUCTURE_OR_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)
_BODY_HEADERS = frozenset(("content-length", "transfer-encoding"))
_OPENING, _CLOSING = (b"{", b"["), (b"}", b"]")


def limits_of(request: Request) -> Limits:
    limits: Limits = request.app.state.settings.limits
    return limits


def media_type_of(request: Request) -> str:
    """Without its parameters, in lower case; empty when there is none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def check_media_type(request: Request, allowed: Collection[str] = (JSON,)) -> None:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise Problem(
            415, 415, f"Content-Encoding {encoding[:40]!r} is not supported; send the body as it is"
        )
    value = request.headers.get("content-type")
    if value is None:
        raise Problem(415, 415, f"there is no Content-Type; it should be {' or '.join(sorted(allowed))}")
    if media_type_of(request) not in allowed:
        raise Problem(
            415, 415, f"Content-Type {value!r} is not supported here; use {' or '.join(sorted(allowed))}"
        )
    for parameter in value.split(";")[1:]:
        name, _, charset = parameter.partition("=")
        if name.strip().lower() == "charset" and charset.strip().strip('"').lower() not in (
            "utf-8",
            "utf8",
            "us-ascii",
        ):
            raise Problem(415, 415, f"the charset of {value!r} is not supported; use utf-8")


async def read_bytes(request: Request, limit_bytes: int | None = None) -> bytes:
    limits = limits_of(request)
    limit = limits.body_bytes_max if limit_bytes is None else limit_bytes
    _check_content_length(request, limit)
    chunks: list[bytes] = []
    size = 0
    progress = _Progress(limits)
    async for chunk in _chunks(request, progress):
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        progress.hold(size)
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def read_document(request: Request, limit_bytes: int | None = None) -> bytes:
    """A body that is parsed at once, and so has to be small."""
    limits = limits_of(request)
    limit = min(limits.document_bytes_max, limits.body_bytes_max)
    return await read_bytes(request, limit if limit_bytes is None else limit_bytes)


async def read_json(
    request: Request, limit_bytes: int | None = None, *, media_types: Collection[str] = (JSON,)
) -> Any:
    """The body's one document. An empty body is a 400."""
    check_media_type(request, media_types)
    data = await read_document(request, limit_bytes)
    if not data.strip(_WHITE_SPACE):
        raise Problem(400, 400, "the body is empty; it should be JSON")
    return parse_json(data)


async def read_json_object(
    request: Request, limit_bytes: int | None = None, *, media_types: Collection[str] = (JSON,)
) -> dict[str, Any]:
    document = await read_json(request, limit_bytes, media_types=media_types)
    if not isinstance(document, dict):
        raise Problem(400, 400, f"the body should be a JSON object, not {kind_of(document)}")
    return document


async def stream_json(request: Request, *, media_types: Collection[str] = (JSON,)) -> AsyncIterator[Any]:
    """The records of the body, each as soon as its last byte is there, in turns. The record's limit holds for each."""
    check_media_type(request, media_types)
    limits = limits_of(request)
    splitter = _Splitter(limits.record_text_bytes_max, limits.record_containers_max)
    progress = _Progress(limits, is_stream=True)
    turn = turn_of(request)
    async for chunk in _chunks(request, progress):
        for start in range(0, len(chunk), _PIECE_BYTES):
            splitter.add(chunk[start : start + _PIECE_BYTES])
            for document in splitter.take():
                yield document
                if turn.is_over:
                    await turn.give_way()
            if turn.is_over:
                await turn.give_way()
        progress.hold(splitter.size_bytes)
        progress.begin_document(is_between=splitter.is_between)
    for document in splitter.end():
        yield document


async def stream_lines(request: Request, *, media_types: Collection[str] = (JSON,)) -> AsyncIterator[bytes]:
    """The lines of the body, without their ends, each as soon as it is there, in turns. A record's limit holds for each."""
    check_media_type(request, media_types)
    limits = limits_of(request)
    limit = limits.record_text_bytes_max
    progress = _Progress(limits, is_stream=True)
    turn = turn_of(request)
    rest = bytearray()
    async for chunk in _chunks(request, progress):
        # The rest has no line end in it, so only what is new is searched.
        *ends, last = chunk.split(b"\n")
        for end in ends:
            line = bytes(rest) + end
            rest.clear()
            if len(line) > limit:
                raise _too_large(limit)
            yield line
            if turn.is_over:
                await turn.give_way()
        rest += last
        if len(rest) > limit:
            raise _too_large(limit)
        progress.hold(len(rest))
        progress.begin_document(is_between=not rest)
    if rest:
        yield bytes(rest)


def parse_json(data: bytes) -> Any:
    text = decode_text(data)
    try:
        document = STRICT_JSON.decode(text)
    except json.JSONDecodeError as error:
        raise not_json(error) from None
    except (RecursionError, ValueError) as error:
        raise unreadable(error) from None
    if SURROGATE.search(text):
        check_surrogates(document)
    return document


def decode_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Problem(400, 400, f"the body is not UTF-8 at byte {error.start}") from None


def check_containers(text: str, limit: int) -> None:
    """Refuse a value of more arrays and objects than that. What comes behind the value does not count."""
    if text.count("[") + text.count("{") <= limit:
        return
    count = depth = 0
    for found in _STRUCTURE_OR_STRING.finditer(text):
        match found[0]:
            case "[" | "{":
                count += 1
                depth += 1
                if count > limit:
                    raise too_many_containers(limit)
            case "]" | "}":
                depth -= 1
                if depth <= 0:
                    return


def too_many_containers(limit: int) -> Problem:
    return Problem(
        413, 413, f"the JSON of a record has more than {limit} arrays and objects, which is the limit here"
    )


def check_surrogates(document: Any) -> None:
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Problem(
            400, 400, "the body has half of a surrogate pair (\\ud800 to \\udfff), which is no text"
        ) from None


def kind_of(value: object) -> str:
    """JSON's name for what was given, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
    return "an object"


def _no_such_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_such_number(text)


# Python's own reads and writes NaN and Infinity, which are not JSON.
STRICT_JSON = json.JSONDecoder(parse_constant=_no_such_number, parse_float=_finite)


def not_json(error: json.JSONDecodeError) -> Problem:
    message = f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    return Problem(400, 400, message)


def unreadable(error: ValueError | RecursionError) -> Problem:
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return Problem(400, 400, f"the body is not JSON that can be read: {reason}")


def _too_large(limit: int) -> Problem:
    return Problem(413, 413, f"the body is larger than {limit} bytes, which is the limit here")


def _check_content_length(request: Request, limit: int) -> None:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise _too_large(limit)


class _Progress:
    """The time limit of the next chunk."""

    def __init__(self, limits: Limits, *, is_stream: bool = False) -> None:
        self._limits = limits
        self._is_stream = is_stream
        self._is_between = is_stream
        self._began_s = time.monotonic()
        self._bytes = 0
        self.place: Place | None = None

    def hold(self, size_bytes: int) -> None:
        """So many bytes of the body are kept from now on."""
        if self.place is not None:
            self.place.hold(size_bytes)

    def begin_document(self, *, is_between: bool) -> None:
        if is_between or self._is_between:
            self._began_s = time.monotonic()
            self._bytes = 0
        self._is_between = is_between

    def add(self, count: int) -> None:
        self._bytes += count

    def patience_s(self) -> float:
        limits = self._limits
        if self._is_stream and self._is_between:
            return limits.stream_pause_s
        allowed_s = limits.body_pause_s + self._bytes / limits.body_bytes_per_s_min
        return min(limits.body_pause_s, self._began_s + allowed_s - time.monotonic())


async def _chunks(request: Request, progress: _Progress) -> AsyncIterator[bytes]:
    if _BODY_HEADERS.isdisjoint(request.headers):
        # There is no body, so it needs no place.
        return
    with bodies_of(request).place() as place:
        progress.place = place
        more_body = True
        while more_body:
            message = await place.receive(request, progress.patience_s())
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk: bytes = message.get("body", b"")
            if chunk:
                progress.add(len(chunk))
                yield chunk
            more_body = message.get("more_body", False)


class _Splitter:
    """Finds the documents in bytes that come in pieces.

    Those that are there as a whole are parsed where they begin. From the first one that cannot be, the end is found by
    its brackets, every byte once. Either it has not come yet, or the parser says what is wrong with it.
    """

    def __init__(self, limit_bytes: int, containers_max: int) -> None:
        self._limit = limit_bytes
        self._containers_max = containers_max
        self._buffer = bytearray()
        # How much of the buffer was looked at, and what was seen of the document that it begins with.
        self._seen = 0
        self._depth = 0
        self._containers = 0
        self._is_in_string = False

    @property
    def size_bytes(self) -> int:
        return len(self._buffer)

    @property
    def is_between(self) -> bool:
        return not self._buffer

    def add(self, chunk: bytes) -> None:
        self._buffer += chunk

    def take(self) -> Iterator[dict[str, Any]]:
        """Each as soon as it is found: what comes before a mistake counts."""
        if self._seen == 0:
            yield from self._take_whole()
        start = 0
        try:
            while (end := self._end_of_next(start)) is not None:
                # A view would be copied by the decoder just the same.
                document = bytes(self._buffer[start:end])
                start = end
                if len(document) > self._limit:
                    raise _too_large(self._limit)
                yield _object(document)
        finally:
            del self._buffer[:start]
            self._seen = max(0, self._seen - start)
        self._skip_space()
        if len(self._buffer) > self._limit:
            raise _too_large(self._limit)

    def _take_whole(self) -> Iterator[dict[str, Any]]:
        try:
            text = self._buffer.decode()
        except UnicodeDecodeError as error:
            text = self._buffer[: error.start].decode()
        if SURROGATE.search(text):
            return
        position = 0
        try:
            while True:
                start = _NOT_SPACE.search(text, position)
                if start is None or start[0] != "{":
                    return
                try:
                    document, end = STRICT_JSON.raw_decode(text, start.start())
                except (ValueError, RecursionError):
                    return
                if end - position > self._limit:
                    return
                position = end
                yield document
        finally:
            del self._buffer[: position if text.isascii() else len(text[:position].encode())]

    def end(self) -> Iterator[dict[str, Any]]:
        rest = bytes(self._buffer).strip(_WHITE_SPACE)
        self._buffer.clear()
        if rest:
            yield _object(rest)

    def _skip_space(self) -> None:
        if self._seen == 0:
            del self._buffer[: len(self._buffer) - len(self._buffer.lstrip(_WHITE_SPACE))]

    def _end_of_next(self, start: int) -> int | None:
        """Returns the end of the document that begins at `start`, behind white space; None when its end is not there yet."""
        buffer = self._buffer
        if self._seen <= start:
            begin = _NOT_SPACE_BYTE.search(buffer, start)
            if begin is None:
                return None
            start = begin.start()
            if buffer[start] != ord("{"):
                # What it is instead, the parser says better.
                _object(bytes(buffer[start : start + 64]))
            self._seen = start
            self._containers = 0
        position = self._seen
        while True:
            found = (_IN_STRING if self._is_in_string else _STRUCTURE).search(buffer, position)
            if found is None:
                self._seen = len(buffer)
                return None
            position = found.end()
            mark = found[0]
            if mark == b'"':
                self._is_in_string = not self._is_in_string
            elif mark in _OPENING:
                self._depth += 1
                self._containers += 1
                if self._containers > self._containers_max:
                    raise too_many_containers(self._containers_max)
            elif mark in _CLOSING:
                self._depth -= 1
                if self._depth == 0:
                    self._seen = position
                    return position
            elif position > len(buffer) - 1 and len(mark) == 1:
                # A backslash that is the last byte: what it escapes comes with the next piece.
                self._seen = position - 1
                return None


def _object(data: bytes) -> dict[str, Any]:
    document = parse_json(data)
    if not isinstance(document, dict):
        raise Problem(400, 400, f"every record should be a JSON object, not {kind_of(document)}")
    return document
