"""`/v1/views`: topics that show the records of another topic that match a filter. They are read like any topic."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.client.admin.views import View, ViewAdmin
from tidemill.gateway.answers import json_answer
from tidemill.gateway.cluster.access import backend_of
from tidemill.gateway.http.bodies import read_json_object
from tidemill.gateway.http.formats import member, only
from tidemill.gateway.http.openapi import INTEGER, STRING, TOPIC_NAME, Part, array, obj

part = Part("Views")

_FILTER = {**STRING, "description": "Such as `region = 'eu' and not 'test' in tags`."}
_VIEW = part.schema("View", obj({"name": STRING, "source": STRING, "filter": STRING, "partitions": INTEGER}))
_VIEWS = part.schema("Views", obj({"views": array(_VIEW)}))
_NEW_VIEW = part.schema(
    "NewView", obj({"name": TOPIC_NAME, "source": TOPIC_NAME, "filter": _FILTER}, is_closed=True)
)
_CHANGE = part.schema("ViewChange", obj({"filter": _FILTER}, is_closed=True))


@part.get(
    "/v1/views",
    "List views",
    answer=_VIEWS,
    description="Those whose configuration the caller may see (DescribeConfigs).",
)
async def list_views(request: Request) -> Response:
    found = await backend_of(request).ask(lambda admins: ViewAdmin(admins.admin).list())
    return json_answer({"views": [view._asdict() for view in found]})


@part.post(
    "/v1/views",
    "Create a view",
    body=_NEW_VIEW,
    answer=_VIEW,
    status=201,
    errors=(404,),
    description="It has the partitions of its source. Needs Create on the view and Read on the source.",
)
async def create_view(request: Request) -> Response:
    given = await _given(request, "name", "source", "filter")
    name, source, where = given["name"], given["source"], given["filter"]
    backend = backend_of(request)
    created = await backend.ask(lambda admins: ViewAdmin(admins.admin).create(name, source, where))
    backend.forget_topic(name)
    return json_answer(created._asdict(), 201)


@part.get("/v1/views/{view}", "A view", answer=_VIEW, errors=(400, 404))
async def get_view(request: Request) -> Response:
    return json_answer((await _view(request))._asdict())


@part.patch(
    "/v1/views/{view}",
    "Give a view another filter",
    body=_CHANGE,
    answer=_VIEW,
    errors=(404,),
    description="It holds for what is read from then on. Needs AlterConfigs on the view and Read on the source.",
)
async def alter_view(request: Request) -> Response:
    where = (await _given(request, "filter"))["filter"]
    name = request.path_params["view"]
    await backend_of(request).ask(lambda admins: ViewAdmin(admins.admin).alter(name, where))
    return json_answer((await _view(request))._replace(filter=where)._asdict())


@part.delete(
    "/v1/views/{view}",
    "Delete a view",
    errors=(400, 404),
    description="The records of its source stay. A topic that is no view is not deleted.",
)
async def delete_view(request: Request) -> Response:
    name = request.path_params["view"]
    backend = backend_of(request)
    await backend.ask(lambda admins: ViewAdmin(admins.admin).delete(name))
    backend.forget_topic(name)
    return Response(status_code=204)


async def _given(request: Request, *names: str) -> dict[str, Any]:
    given = await read_json_object(request)
    only(given, set(names))
    return {name: member(given, name, str) for name in names}


async def _view(request: Request) -> View:
    name = request.path_params["view"]
    return await backend_of(request).ask(lambda admins: ViewAdmin(admins.admin).describe(name))
