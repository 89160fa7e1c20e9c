r"""The formats of records: a template or JSON for `tidemill consume`, and the same JSON as input of `produce`.

A template is text with fields in braces: {topic} {partition} {offset} {timestamp} {time} {key} {value} {headers}.
`\n`, `\t` and `\0` are these characters, `{{` and `}}` are braces. Bytes are written unchanged; only a terminal gets
control characters as escapes.

The JSON of a record is lossless. UTF-8 is text under `key` and `value`; other bytes are under `key_base64` and
`value_base64`; null is null. `read_json` reads the output of `json_writer` and is strict: a misspelt, missing or
repeated field is an error, because a guess would change the record.
"""

from __future__ import annotations

import base64
import binascii
import json
import string
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from tidemill.cli.failures import UsageError
from tidemill.cli.positions import time_text
from tidemill.cli.table import printable
from tidemill.client.consumer import Consumed
from tidemill.protocol.records import INT64_MAX, INT64_MIN, Header

DEFAULT_TEMPLATE = "{value}\\n"
_NULL = b"null"

Writer: TypeAlias = Callable[[Consumed], bytes]

_FIELDS: dict[str, Writer] = {
    "topic": lambda each: each.partition.topic.encode(),
    "partition": lambda each: b"%d" % each.partition.partition,
    "offset": lambda each: b"%d" % each.record.offset,
    "timestamp": lambda each: b"%d" % each.record.timestamp,
    "time": lambda each: time_text(each.record.timestamp).encode(),
    "key": lambda each: _NULL if each.record.key is None else each.record.key,
    "value": lambda each: _NULL if each.record.value is None else each.record.value,
    "headers": lambda each: b",".join(
        key.encode() + b"=" + (_NULL if value is None else value) for key, value in each.record.headers
    ),
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def template_writer(template: str, *, is_terminal: bool) -> Writer:
    """Compile the template. An unknown field is a usage error."""
    try:
        parts = list(string.Formatter().parse(_unescaped(template)))
    except ValueError as error:
        raise UsageError(f"--format: {error}") from None
    pieces: list[bytes | Writer] = []
    for text, name, specification, conversion in parts:
        pieces.append(text.encode())
        if name is None:
            continue
        if name not in _FIELDS or specification or conversion:
            raise UsageError(f"--format knows no {{{name}}}; there are " + ", ".join(sorted(_FIELDS)))
        pieces.append(_safe(_FIELDS[name]) if is_terminal else _FIELDS[name])

    def write(consumed: Consumed) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(consumed) for piece in pieces)

    return write


def _safe(field: Writer) -> Writer:
    return lambda consumed: printable_bytes(field(consumed))


def printable_bytes(data: bytes) -> bytes:
    """Escape control characters other than tabs and line ends."""
    text = data.decode(errors="backslashreplace")
    return "".join(char if char in "\n\t" else printable(char) for char in text).encode()


def _unescaped(template: str) -> str:
    out: list[str] = []
    letters = iter(template)
    for letter in letters:
        if letter != "\\":
            out.append(letter)
            continue
        escaped = next(letters, "")
        out.append(_ESCAPES.get(escaped, "\\" + escaped))
    return "".join(out)


def json_writer(consumed: Consumed) -> bytes:
    """Format a record as one line of JSON. Bytes that are not UTF-8 are under `key_base64` and `value_base64`."""
    partition, record = consumed
    document: dict[str, object] = {
        "topic": partition.topic,
        "partition": partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    _put(document, "key", record.key)
    _put(document, "value", record.value)
    headers: list[dict[str, object]] = []
    for key, value in record.headers:
        header: dict[str, object] = {"key": key}
        _put(header, "value", value)
        headers.append(header)
    document["headers"] = headers
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _put(document: dict[str, object], name: str, data: bytes | None) -> None:
    try:
        document[name] = None if data is None else data.decode()
    except UnicodeDecodeError:
        document[f"{name}_base64"] = base64.b64encode(data or b"").decode()


# --- and back ---


class NewRecord(NamedTuple):
    """A record to write. Without a partition the key decides, and without a timestamp the current time is used."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class BadRecord(Exception):
    """A line that is not the JSON of a record. The text says why."""


_RECORD_NAMES = (
    "topic", "partition", "offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers",
)  # fmt: skip
_HEADER_NAMES = ("key", "value", "value_base64")


def read_json(line: bytes) -> NewRecord:
    """Parse one line. `topic` and `offset` are ignored: the command and the broker set them."""
    try:
        document = json.loads(line.decode(), object_pairs_hook=_without_repetition)
    except UnicodeDecodeError:
        raise BadRecord("it is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"it is not JSON: {error}") from None
    fields = _fields(document, "a record", _RECORD_NAMES)
    headers = fields.get("headers", [])
    if not isinstance(headers, list):
        raise BadRecord("headers must be a list")
    return NewRecord(
        _get(fields, "key") if "key" in fields or "key_base64" in fields else None,
        _get(fields, "value"),
        [_header(each) for each in headers],
        _integer(fields, "partition", 0, (1 << 31) - 1),
        _integer(fields, "timestamp", INT64_MIN, INT64_MAX),
    )


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadRecord(f"{twice!r} is there twice")
    return fields


def _fields(document: object, what: str, names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise BadRecord(f"{what} must be an object in braces")
    for name in document:
        if name not in names:
            raise BadRecord(f"{what} has no {name!r}; there are {', '.join(names)}")
    return document


def _header(document: object) -> Header:
    fields = _fields(document, "a header", _HEADER_NAMES)
    key = fields.get("key")
    if not isinstance(key, str):
        raise BadRecord("a header needs a text as key")
    _utf8("key", key)
    return Header(key, _get(fields, "value"))


def _get(fields: dict[str, Any], name: str) -> bytes | None:
    coded_name = f"{name}_base64"
    if name in fields and coded_name in fields:
        raise BadRecord(f"it has both {name} and {coded_name}")
    if coded_name in fields:
        coded = fields[coded_name]
        try:
            return base64.b64decode(coded.encode() if isinstance(coded, str) else b"-", validate=True)
        except binascii.Error:
            raise BadRecord(f"{coded_name} is not base64") from None
    if name not in fields:
        raise BadRecord(f"it has neither {name} nor {coded_name}; null says that there is none")
    text = fields[name]
    if text is not None and not isinstance(text, str):
        raise BadRecord(f"{name} must be a text or null, and JSON in it a text, too")
    return None if text is None else _utf8(name, text)


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadRecord(f"{name} has half of a surrogate pair, which is no text") from None


def _integer(fields: dict[str, Any], name: str, low: int, high: int) -> int | None:
    if name not in fields:
        return None
    number = fields[name]
    if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
        raise BadRecord(f"{name} must be a whole number from {low} to {high}")
    return number
