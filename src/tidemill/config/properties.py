"""The parser of Java's `.properties` syntax, the format of `server.properties`.

A line with an odd number of backslashes at its end continues on the next, without its leading blanks. A line that
starts with # or ! is a comment. Key and value are separated by =, : or blanks. The last of equal keys wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tidemill.errors import ConfigError

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.|$)", re.DOTALL)
_LINE_END = re.compile(r"\r\n|\n|\r")


def parse_properties(text: str) -> dict[str, str]:
    """Parse keys and values, in the order of first appearance."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _split(line)
        name = _unescape(key, "a key")
        properties[name] = _unescape(value, f"the value of {name!r}")
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    pending = ""
    for natural in _LINE_END.split(text):
        line = natural.lstrip(_BLANKS)
        if not pending and (not line or line[0] in "#!"):
            continue
        pending += line
        if _continues(pending):
            pending = pending[:-1]
            continue
        yield pending
        pending = ""
    if pending:
        yield pending


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANKS:
        position += 2 if line[position] == "\\" else 1
    key, rest = line[:position], line[position:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return key, rest


def _unescape(text: str, what: str) -> str:
    """`what` names the text in an error. The text itself may be a password."""

    def character(match: re.Match[str]) -> str:
        code = match[1]
        if code == "u":
            raise ConfigError(f"Malformed \\u escape in {what} of the properties file")
        if len(code) == 5:
            return chr(int(code[1:], 16))
        return _ESCAPES.get(code, code)

    return _ESCAPE.sub(character, text) if "\\" in text else text
