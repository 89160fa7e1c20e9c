"""A kombu message as a record: JSON, as kombu's other virtual transports have it. No I/O.

The time of a task (`eta`, which `countdown` becomes) is a header of delayed messages, so the broker keeps the task until
then. Only a time with a zone is: what a time without one means, the worker's configuration decides.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kombu.utils.json import dumps, loads

from tidemill.celery.names import PRIORITY_MAX
from tidemill.delays.requests import DELIVER_AT
from tidemill.protocol.records import Header

Message = dict[str, Any]
_ENCODINGS = (None, "base64", "utf-8")


class NotAMessage(Exception):
    """The record was not written by kombu."""


def encode(message: Message) -> bytes:
    text: str = dumps(message)
    return text.encode()


def decode(value: bytes | None) -> Message:
    """The message, checked as far as kombu relies on it."""
    try:
        message = loads(value or b"")
    except (ValueError, RecursionError) as error:
        raise NotAMessage(f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise NotAMessage("not a JSON object")
    properties = message.get("properties")
    if not isinstance(properties, dict) or not isinstance(properties.get("delivery_info"), dict):
        raise NotAMessage("no properties with a delivery_info")
    if not isinstance(message.get("headers") or {}, dict):
        raise NotAMessage("its headers are no object")
    _check_body(message.get("body"), properties.get("body_encoding"))
    return message


def _check_body(body: object, encoding: object) -> None:
    if encoding not in _ENCODINGS or not isinstance(body, str | None):
        raise NotAMessage("its body is in no known encoding")
    if body and encoding == "base64":
        try:
            b64decode(body, validate=True)
        except (binascii.Error, ValueError) as error:
            raise NotAMessage(f"its body is not base64: {error}") from None


def priority_of(message: Message) -> int:
    """From 0 to 9, 9 being the most urgent."""
    try:
        priority = int(message["properties"]["priority"])
    except (KeyError, TypeError, ValueError):
        return 0
    return min(max(priority, 0), PRIORITY_MAX)


def due_headers(message: Message, wall_ms: int) -> list[Header]:
    """The header that delays the message; none when it has no time, or that has passed."""
    headers = message.get("headers")
    eta = headers.get("eta") if isinstance(headers, Mapping) else None
    due_ms = _due_ms(eta)
    if due_ms is None or due_ms <= wall_ms:
        return []
    return [Header(DELIVER_AT, b"%d" % due_ms)]


def _due_ms(eta: object) -> int | None:
    if isinstance(eta, str):
        try:
            eta = datetime.fromisoformat(eta)
        except ValueError:
            return None
    if not isinstance(eta, datetime) or eta.tzinfo is None:
        return None
    return int(eta.timestamp() * 1000)
