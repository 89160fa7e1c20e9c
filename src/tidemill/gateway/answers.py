"""Writes JSON responses: compact, as `application/json` unless the route negotiated another media type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from tidemill.gateway.turns import Turn

JSON = "application/json"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_bytes(content: Any) -> bytes:
    # What others wrote may hold half of a surrogate pair, which JSON can say by its \u notation and UTF-8 cannot.
    return _encode(content).encode("utf-8", "backslashreplace")


def json_answer(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None, media_type: str = JSON
) -> Response:
    return Response(json_bytes(content), status, headers, media_type)


_ENTRIES_AT_ONCE = 100


async def json_bytes_in_turns(content: Mapping[str, Any], turn: Turn) -> bytes:
    """As `json_bytes`, for an object that has long arrays: those are written in turns."""
    members = []
    for name, value in content.items():
        written = await _array_in_turns(value, turn) if isinstance(value, list) else json_bytes(value)
        members.append(json_bytes(name) + b":" + written)
    return b"{" + b",".join(members) + b"}"


async def _array_in_turns(entries: list[Any], turn: Turn) -> bytes:
    parts = []
    for start in range(0, len(entries), _ENTRIES_AT_ONCE):
        parts.append(json_bytes(entries[start : start + _ENTRIES_AT_ONCE])[1:-1])
        if turn.is_over:
            await turn.give_way()
    return b"[" + b",".join(parts) + b"]"
