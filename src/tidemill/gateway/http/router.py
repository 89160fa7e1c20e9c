"""Finds the operation of a path in the number of its segments, however many operations there are.

Paths are a tree of segments: at each step a literal segment wins over a parameter. Segments are those of the path as
it was sent, decoded one by one, so that a name with `%2F` in it is one name. A path that is known takes every method
here: a wrong one is refused with those that there are (405), instead of being looked for among other routes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import Receive, Scope, Send

from tidemill.gateway.http.openapi import ApiRoute, Handler
from tidemill.gateway.problems import Problem


class _Node:
    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        # The operations of the path that ends here, and the names of its parameters.
        self.handlers: dict[str, Handler] = {}
        self.path = ""
        self.names: tuple[str, ...] = ()

    def below(self, segment: str) -> _Node:
        if not segment.startswith("{"):
            return self.literals.setdefault(segment, _Node())
        if self.parameter is None:
            self.parameter = _Node()
        return self.parameter

    def find(self, segments: list[str], position: int, values: list[str]) -> _Node | None:
        if position == len(segments):
            return self if self.handlers else None
        segment = segments[position]
        literal = self.literals.get(segment)
        if literal is not None:
            found = literal.find(segments, position + 1, values)
            if found is not None:
                return found
        if self.parameter is None or not segment:
            return None
        values.append(segment)
        found = self.parameter.find(segments, position + 1, values)
        if found is None:
            values.pop()
        return found


class Operations(BaseRoute):
    """All declared operations, as one route."""

    def __init__(self, routes: Iterable[ApiRoute]) -> None:
        self._root = _Node()
        for route in routes:
            self._add(route)

    def _add(self, route: ApiRoute) -> None:
        segments = route.path.split("/")
        names = tuple(segment[1:-1] for segment in segments if segment.startswith("{"))
        if not all(name.isidentifier() for name in names):
            raise ValueError(f"{route.path}: a parameter is a whole segment, without a converter")
        node = self._root
        for segment in segments:
            node = node.below(segment)
        if route.method in node.handlers:
            raise ValueError(f"{route.method} {route.path} is declared twice")
        if node.handlers and node.names != names:
            raise ValueError(
                f"{route.path}: its parameters have other names than in another operation of the path"
            )
        node.names = names
        node.path = route.path
        node.handlers[route.method] = _negotiated(route)
        if route.method == "GET":
            node.handlers.setdefault("HEAD", node.handlers["GET"])

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        values: list[str] = []
        node = self._root.find(_segments(scope), 0, values)
        if node is None:
            return Match.NONE, {}
        parameters = dict(zip(node.names, values, strict=True))
        return Match.FULL, {
            "path_params": parameters,
            "handlers": node.handlers,
            "operation_path": node.path,
        }

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        handlers: Mapping[str, Handler] = scope["handlers"]
        handler = handlers.get(scope["method"])
        if handler is None:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(handlers))})
        response = await handler(Request(scope, receive, send))
        await response(scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: object) -> NoMatchFound:  # type: ignore[override]
        raise NoMatchFound(name, path_params)


def _negotiated(route: ApiRoute) -> Handler:
    operation = route.operation
    if not operation.is_negotiated or not operation.answers:
        return route.handler
    media_types = tuple(operation.answers)

    async def handle(request: Request) -> Response:
        accept = request.headers.get("accept")
        if accept is not None and not is_acceptable(accept, media_types):
            raise Problem(
                406, 406, f"Accept is {accept[:100]!r}, but only {' or '.join(media_types)} can be had here"
            )
        return await route.handler(request)

    return handle


def is_acceptable(accept: str, media_types: Iterable[str]) -> bool:
    """Whether one of the media types is in one of the ranges of an Accept header, with a quality above 0."""
    ranges: dict[str, bool] = {}
    for each in accept.lower().split(","):
        name, *parameters = (text.strip() for text in each.split(";"))
        quality = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        ranges[name] = quality.strip().rstrip("0.") != ""
    for media_type in media_types:
        for candidate in (media_type, f"{media_type.partition('/')[0]}/*", "*/*"):
            if candidate in ranges:
                if ranges[candidate]:
                    return True
                break
    return not any(ranges)


def _segments(scope: Scope) -> list[str]:
    raw: bytes = scope.get("raw_path") or b""
    path: str = scope["path"]
    if b"%2" not in raw:
        return path.split("/")
    return [unquote(segment) for segment in raw.decode("ascii", "replace").split("/")]
