"""The declarations of routes, and the OpenAPI 3.1 document made of them.

A part of the API (`rest_v3`, `rest_v2`, ...) makes one `Part` and declares each operation where it is written:

    part = Part("Topics (v3)")

    @part.get(
        "/v3/clusters/{cluster_id}/topics/{topic_name}",
        "A topic",                                            # the summary
        answer=ref("TopicData"),                              # JSON schema of the 2xx answer; None for one without a body
        errors=(404,),                                        # besides those that every operation has (ALWAYS)
        parameters=(query("include_internal", BOOLEAN, "..."),),
    )
    async def get_topic(request: Request) -> Response: ...

    @part.post("/v3/...", "Create a topic", body=ref("CreateTopic"), answer=ref("TopicData"), status=201, errors=(404,))

    routes = part.routes

`body` is a schema (then the media type is `application/json`) or a mapping of media type to schema; `answer` likewise.
Path parameters are declared by their names: `PATH_PARAMETERS` has the schema of each. Named schemas are added with
`part.schema(name, schema)` and pointed at with `ref(name)`. A route without declaration (`starlette.routing.Route`) is
served, but not in the document. Operations with a body may always answer 400, 408, 413, 415 and 422; that needs no
mention.

`document(routes)` is what `/openapi.json` serves: it holds nothing that the routes do not say.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tidemill import __version__
from tidemill.gateway.answers import JSON

Handler = Callable[[Request], Awaitable[Response]]
Schema = dict[str, Any]
Content = Schema | Mapping[str, Schema] | None

_NOT_NAME = re.compile(r"[^A-Za-z0-9]+")

STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer", "format": "int32"}
LONG: Schema = {"type": "integer", "format": "int64"}
ANY: Schema = {}
PARTITION_MAX = 2**31 - 1
PARTITION: Schema = {**INTEGER, "minimum": 0, "maximum": PARTITION_MAX}
BASE64: Schema = {
    "type": "string",
    "contentEncoding": "base64",
    "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}

# The error statuses of every operation, and of every one that takes a body.
ALWAYS = (401, 403, 406, 429, 431, 500, 503)
WITH_BODY = (400, 408, 413, 415, 422)
_REASONS = {
    400: "The request cannot be read, or the cluster does not accept it.",
    401: "The caller is not known.",
    403: "The caller may not do this.",
    404: "There is no such thing.",
    406: "None of the media types that Accept names can be had.",
    408: "The body arrives too slowly.",
    409: "The state does not allow this.",
    413: "The body or a record is too large.",
    431: "The request's headers are too large.",
    415: "The body has a media type that is not supported here.",
    422: "The body is JSON, but not what is needed here.",
    429: "Too many requests: try again after Retry-After seconds.",
    500: "The gateway or the cluster failed.",
    503: "The cluster cannot be reached, or too much is under way: try again after Retry-After seconds.",
}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def obj(
    required: Mapping[str, Schema],
    optional: Mapping[str, Schema] | None = None,
    *,
    is_closed: bool = False,
    **more: Any,
) -> Schema:
    """An object with these members; a closed one has no others."""
    properties = {**required, **(optional or {})}
    schema: Schema = {"type": "object", "properties": properties, **more}
    if required:
        schema["required"] = list(required)
    if is_closed:
        schema["additionalProperties"] = False
    return schema


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def query(name: str, schema: Schema, description: str, *, is_required: bool = False) -> Schema:
    return {
        "name": name,
        "in": "query",
        "schema": schema,
        "description": description,
        "required": is_required,
    }


TOPIC_PATTERN = "^[a-zA-Z0-9._-]{1,249}$"
TOPIC_NAME: Schema = {"type": "string", "pattern": TOPIC_PATTERN}
_NAME: Schema = {"type": "string", "minLength": 1}
PATH_PARAMETERS: dict[str, Schema] = {
    "cluster_id": _NAME,
    "broker_id": INTEGER,
    "topic_name": TOPIC_NAME,
    "topic": TOPIC_NAME,
    "view": TOPIC_NAME,
    "partition_id": INTEGER,
    "partition": INTEGER,
    "name": _NAME,
    "consumer_group_id": _NAME,
    "consumer_id": _NAME,
    "group_name": _NAME,
    "group": _NAME,
    "instance": _NAME,
    "worker": _NAME,
    "offset": {**LONG, "minimum": 0},
    "part": {"enum": ["key", "value"]},
}


@dataclass(frozen=True)
class Operation:
    tag: str
    summary: str
    answers: Mapping[str, Schema]
    status: int
    bodies: Mapping[str, Schema]
    errors: tuple[int, ...]
    parameters: tuple[Schema, ...]
    description: str
    is_body_optional: bool
    schemas: Mapping[str, Schema]
    answer_description: str
    also: Mapping[int, str]
    is_negotiated: bool


class ApiRoute(Route):
    """A route for one method, with its declaration."""

    def __init__(self, path: str, handler: Handler, method: str, operation: Operation) -> None:
        super().__init__(path, handler, methods=[method])
        self.method = method
        self.handler = handler
        self.operation = operation


class Part:
    """The operations of one tag, in the order of their declaration.

    With `is_negotiated`, a caller whose Accept header has none of the answer's media types is refused (406) before the
    handler is called. A part that chooses among its media types itself leaves it out.
    """

    def __init__(self, tag: str, *, is_negotiated: bool = False) -> None:
        self.tag = tag
        self._is_negotiated = is_negotiated
        self.routes: list[BaseRoute] = []
        self._schemas: dict[str, Schema] = {}

    def schema(self, name: str, schema: Schema) -> Schema:
        self._schemas[name] = schema
        return ref(name)

    def get(self, path: str, summary: str, **options: Any) -> Callable[[Handler], Handler]:
        return self.operation("GET", path, summary, **options)

    def post(self, path: str, summary: str, **options: Any) -> Callable[[Handler], Handler]:
        return self.operation("POST", path, summary, **options)

    def put(self, path: str, summary: str, **options: Any) -> Callable[[Handler], Handler]:
        return self.operation("PUT", path, summary, **options)

    def patch(self, path: str, summary: str, **options: Any) -> Callable[[Handler], Handler]:
        return self.operation("PATCH", path, summary, **options)

    def delete(self, path: str, summary: str, **options: Any) -> Callable[[Handler], Handler]:
        return self.operation("DELETE", path, summary, **options)

    def operation(
        self,
        method: str,
        path: str,
        summary: str,
        *,
        answer: Content = None,
        status: int | None = None,
        body: Content = None,
        errors: tuple[int, ...] = (),
        parameters: Iterable[Schema] = (),
        description: str = "",
        answer_description: str = "Done.",
        is_body_optional: bool = False,
        also: Mapping[int, str] | None = None,
    ) -> Callable[[Handler], Handler]:
        """Without a status it is 200, or 204 where there is no answer.

        `also` are other statuses with the same answer, and when they are used.
        """
        operation = Operation(
            tag=self.tag,
            summary=summary,
            answers=_by_media_type(answer),
            status=status or (204 if answer is None else 200),
            bodies=_by_media_type(body),
            errors=errors,
            parameters=tuple(parameters),
            description=description,
            is_body_optional=is_body_optional,
            schemas=self._schemas,
            answer_description=answer_description,
            also=also or {},
            is_negotiated=self._is_negotiated,
        )

        def declare(handler: Handler) -> Handler:
            self.routes.append(ApiRoute(path, handler, method, operation))
            return handler

        return declare


def _by_media_type(content: Content) -> Mapping[str, Schema]:
    if content is None:
        return {}
    if content and all("/" in key for key in content):
        return content
    return {JSON: dict(content)}


# --- the document ---


def document(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    declared = [route for route in routes if isinstance(route, ApiRoute)]
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Schema] = {
        "Error": obj(
            {"error_code": INTEGER, "message": STRING}, description="What went wrong, and how it is called."
        )
    }
    for route in declared:
        schemas.update(route.operation.schemas)
        paths.setdefault(_path(route.path), {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidemill gateway",
            "version": __version__,
            "description": "Kafka over HTTP, with the paths of Confluent's REST Proxy.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _path(path: str) -> str:
    """Without Starlette's converters: `{topic:path}` is `{topic}`."""
    return "/".join(
        f"{segment.partition(':')[0]}}}" if segment.startswith("{") and ":" in segment else segment
        for segment in path.split("/")
    )


def _operation(route: ApiRoute) -> dict[str, Any]:
    operation = route.operation
    answer: dict[str, Any] = {"description": operation.answer_description}
    if operation.answers:
        answer["content"] = {name: {"schema": schema} for name, schema in operation.answers.items()}
    responses: dict[str, Any] = {str(operation.status): answer}
    for status, description in operation.also.items():
        responses[str(status)] = {**answer, "description": description}
    errors = {*ALWAYS, *operation.errors, *(WITH_BODY if operation.bodies else ())}
    for status in sorted(errors):
        responses[str(status)] = {
            "description": _REASONS[status],
            "content": {JSON: {"schema": ref("Error")}},
        }
    path_parameters = [
        {"name": name, "in": "path", "required": True, "schema": PATH_PARAMETERS[name]}
        for name in route.param_convertors
    ]
    described: dict[str, Any] = {
        "tags": [operation.tag],
        "summary": operation.summary,
        "operationId": _NOT_NAME.sub("_", f"{route.method.lower()}{route.path}").strip("_"),
        "responses": responses,
    }
    if operation.description:
        described["description"] = operation.description
    if path_parameters or operation.parameters:
        described["parameters"] = [*path_parameters, *operation.parameters]
    if operation.bodies:
        described["requestBody"] = {
            "required": not operation.is_body_optional,
            "content": {name: {"schema": schema} for name, schema in operation.bodies.items()},
        }
    return described
