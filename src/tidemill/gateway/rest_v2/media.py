"""The media types of REST Proxy v2, and which one an answer has.

`application/vnd.kafka.FORMAT.v2+json` says in its name how keys and values are written: `binary` (base64), `json`, or
`text` (strings, as in Strimzi's bridge). Without a format it is binary for a body. `avro`, `jsonschema` and
`protobuf` are known, and refused as REST Proxy refuses them without a schema registry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from tidemill.gateway.answers import JSON, json_answer
from tidemill.gateway.http.formats import Kind
from tidemill.gateway.http.openapi import Schema
from tidemill.gateway.problems import Problem

V2 = "application/vnd.kafka.v2+json"
# Names without a format, the first of which is preferred.
GENERIC = (V2, "application/vnd.kafka+json", JSON)
FORMATS = {"binary": Kind.BINARY, "json": Kind.JSON, "text": Kind.STRING}
SCHEMA_FORMATS = ("avro", "jsonschema", "protobuf")


def embedded(name: str) -> str:
    return f"application/vnd.kafka.{name}.v2+json"


# A body without records may come as any of these.
BODIES = (*GENERIC, *(embedded(name) for name in (*FORMATS, *SCHEMA_FORMATS)))


def in_generic(schema: Schema) -> dict[str, Schema]:
    """For the OpenAPI document: an answer, or a body without records."""
    return dict.fromkeys((V2, JSON), schema)


def in_formats(schema: Schema) -> dict[str, Schema]:
    """For the OpenAPI document: an answer or a body with records."""
    return dict.fromkeys((*map(embedded, FORMATS), V2, JSON), schema)


class _Range(NamedTuple):
    media_type: str
    quality: float

    def matches(self, offered: str) -> bool:
        if self.media_type in ("*/*", offered):
            return True
        kind, _, subtype = self.media_type.partition("/")
        return subtype == "*" and offered.startswith(f"{kind}/")


def accepted(request: Request, offered: Sequence[str]) -> str | None:
    """The best of what is offered; the first of equals. None when the caller accepts nothing of it."""
    header = ",".join(request.headers.getlist("accept"))
    if not header.strip():
        return offered[0]
    ranges = [_range(text) for text in header.split(",") if text.strip()]
    best, best_quality = None, 0.0
    for media_type in offered:
        # The most specific range decides: a name before text/*, that before */*.
        matching = [one for one in ranges if one.matches(media_type)]
        quality = max(matching, key=lambda one: "*" not in one.media_type, default=_Range("", 0.0)).quality
        if quality > best_quality:
            best, best_quality = media_type, quality
    return best


def _range(text: str) -> _Range:
    media_type, *parameters = (part.strip() for part in text.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                return _Range(media_type.lower(), float(value))
            except ValueError:
                return _Range(media_type.lower(), 0.0)
    return _Range(media_type.lower(), 1.0)


def answer_type(request: Request, offered: Sequence[str] = GENERIC) -> str:
    found = accepted(request, offered)
    if found is None:
        raise Problem(
            406, 406, f"Accept {request.headers['accept']!r} has nothing that is here: {', '.join(offered)}"
        )
    return found


def v2_answer(request: Request, content: object) -> Response:
    return json_answer(content, media_type=answer_type(request))
