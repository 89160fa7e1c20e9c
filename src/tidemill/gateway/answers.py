"""How an answer is written: compact JSON, `application/json` unless the caller of a route asked for another name of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

JSON = "application/json"
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_bytes(content: Any) -> bytes:
    # What others wrote may hold half of a surrogate pair, which JSON can say by its \u notation and UTF-8 cannot.
    return _encode(content).encode("utf-8", "backslashreplace")


def json_answer(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None, media_type: str = JSON
) -> Response:
    return Response(json_bytes(content), status, headers, media_type)
