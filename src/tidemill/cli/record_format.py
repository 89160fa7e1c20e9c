"""How `tidemill consume` writes a record: as a line from a template, or as JSON.

A template is text with fields in braces: {topic} {partition} {offset} {timestamp} {time} {key} {value} {headers}. `\\n`,
`\\t` and `\\0` stand for these characters, `{{` and `}}` for braces. Bytes go out as they came in; only a terminal gets
control characters as escapes, because a record must not steer it.
"""

from __future__ import annotations

import base64
import json
import string
from collections.abc import Callable
from typing import TypeAlias

from tidemill.cli.failures import UsageError
from tidemill.cli.positions import time_text
from tidemill.cli.table import printable
from tidemill.client.consumer import Consumed

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
    """Reads the template once. A field that does not exist is a usage error."""
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
    """Tabs and line ends stay."""
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
    """One line. Bytes that are not UTF-8 stand under `key_base64`, `value_base64` instead."""
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
