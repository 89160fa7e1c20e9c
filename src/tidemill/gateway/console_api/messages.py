"""Shows a record: where and when it was written, and what a person can make of its bytes.

Keys, values and header values are `{"kind": ..., "data": ...}`:

    json     an object or a list, as the text that was written: no number loses a digit
    text     UTF-8 without control characters
    binary   anything else, in base64
    null     no key, a tombstone
    cut      the first 64 KB of something longer, as text or (`is_binary`) in base64; nothing of a payload in an object store

A record with a claim has `claim`, with the URI of its payload or what is wrong with the claim.
"""

from __future__ import annotations

import base64
import codecs
import json
import re

from tidemill.claims.claim import Place, has_claim, parse_claim
from tidemill.claims.errors import ClaimError
from tidemill.gateway.cluster.fetching import Read
from tidemill.gateway.console_api.picture import Row

SHOWN_BYTES_MAX = 64 * 1024
_JSON_BEGINS = (b"{", b"[")
_JSON_BLANKS = b" \t\r\n"
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def message_row(read: Read, topic: str) -> Row:
    record = read.record
    row = {
        "partition": read.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        "timestamp_type": "log_append_time" if read.is_append_time else "create_time",
        "key": shown(record.key),
        "value": shown(record.value),
        "headers": [{"name": header.key, "value": shown(header.value)} for header in record.headers],
        "key_bytes": None if record.key is None else len(record.key),
        "value_bytes": None if record.value is None else len(record.value),
    }
    if has_claim(record.value, record.headers):
        _show_claim(row, read, topic)
    return row


def _show_claim(row: Row, read: Read, topic: str) -> None:
    """The payload is elsewhere: it is loaded on demand, as what was cut is."""
    record = read.record
    try:
        claim = parse_claim(record.value, record.headers, Place(topic, read.partition, record.offset))
    except ClaimError as error:
        row["claim"] = {"uri": None, "error": str(error)}
        return
    if claim is not None:
        row["claim"] = {"uri": claim.uri, "sha256": claim.sha256}
        row["value"] = {"kind": "cut", "data": "", "is_binary": False}
        row["value_bytes"] = claim.size


def shown(data: bytes | None) -> Row:
    if data is None:
        return {"kind": "null", "data": None}
    is_cut = len(data) > SHOWN_BYTES_MAX
    text = _text(data[:SHOWN_BYTES_MAX], is_whole=not is_cut)
    if is_cut:
        beginning = _base64(data[:SHOWN_BYTES_MAX]) if text is None else text
        return {"kind": "cut", "data": beginning, "is_binary": text is None}
    if text is None:
        return {"kind": "binary", "data": _base64(data)}
    return {"kind": "json" if _is_json(data) else "text", "data": text}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _text(data: bytes, *, is_whole: bool) -> str | None:
    """None when it is not text. Where it was cut, the last character may be half there."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data, final=is_whole)
    except UnicodeDecodeError:
        return None
    return None if _CONTROL_CHARACTERS.search(text) else text


def _is_json(data: bytes) -> bool:
    if not data.lstrip(_JSON_BLANKS).startswith(_JSON_BEGINS):
        return False
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
