"""Encodes the keys and values of requests: `binary` is base64, `json` any document, `string` UTF-8 text.

`null` is no bytes at all in every format, which is a tombstone as a value. JSON is written compactly, members in the
order they came in.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Set
from enum import StrEnum
from typing import Any

from tidemill.gateway.answers import json_bytes
from tidemill.gateway.http.bodies import kind_of
from tidemill.gateway.problems import Problem

# What REST Proxy answers when a body is JSON of the wrong shape.
INVALID_PAYLOAD = 42206


class Kind(StrEnum):
    BINARY = "binary"
    JSON = "json"
    STRING = "string"


def encode(kind: Kind, data: Any, where: str) -> bytes | None:
    """`where` names the field, for the message of the 422 that wrong data gets."""
    if data is None:
        return None
    match kind:
        case Kind.JSON:
            return json_bytes(data)
        case Kind.STRING:
            return text(data, where).encode()
    return from_base64(text(data, where), where)


def from_base64(given: str, where: str) -> bytes:
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(f"{where} is not base64: {error}") from None


def text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise invalid(f"{where} should be a string, not {kind_of(value)}")
    return value


def integer(value: Any, where: str, low: int, high: int) -> int:
    value = _whole(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(f"{where} should be an integer, not {kind_of(value)}")
    if not low <= value <= high:
        raise invalid(f"{where} should be from {low} to {high}, not {value}")
    return value


def member(document: Mapping[str, Any], name: str, kind: type, where: str = "") -> Any:
    """A member that has to be there, and of that type."""
    full = f"{where}.{name}" if where else name
    if name not in document:
        raise invalid(f"{full} is missing")
    value = _whole(document[name]) if kind is int else document[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise invalid(f"{full} should be {_KINDS[kind]}, not {kind_of(value)}")
    return value


def optional_boolean(document: Mapping[str, Any], name: str) -> bool:
    """False when the member is missing or null."""
    value = document.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise invalid(f"{name} should be a boolean, not {kind_of(value)}")
    return value


def _whole(value: Any) -> Any:
    """JSON has no integers of its own: 80.0 is one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def only(document: Mapping[str, Any], names: Set[str], where: str = "") -> None:
    """A member that is not known is a mistake, as REST Proxy has it: it would be ignored silently otherwise."""
    if not names >= document.keys():
        unknown = ", ".join(sorted(document.keys() - names))
        raise invalid(f"{where or 'the body'} has an unrecognized field: {unknown}")


_KINDS = {str: "a string", int: "an integer", bool: "a boolean", list: "an array", dict: "an object"}


def invalid(message: str) -> Problem:
    return Problem(422, INVALID_PAYLOAD, message)


def number_in(text: str, name: str, high: int) -> int:
    """Parses a query parameter that holds an integer from 0 to `high`."""
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) > high:
        raise Problem(400, 400, f"{name} should be an integer from 0 to {high}, not {text!r}")
    return int(text)
