"""The shapes that v3's answers share: resources with a kind and a link to themselves, collections, links to others.

`Cluster` is one request's view of the cluster that its path names: a wrong id is a 404 before anything else is looked
at. All links begin with what the caller called the gateway (the Host header).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from tidemill.gateway.answers import json_answer
from tidemill.gateway.cluster.access import backend_of
from tidemill.gateway.cluster.backend import Backend
from tidemill.gateway.http.openapi import STRING, Schema, array, nullable, obj
from tidemill.gateway.problems import Problem

Fields = dict[str, Any]

RELATED: Schema = obj({"related": STRING})


def path_integer(request: Request, name: str) -> int:
    """Part of a path that has to be a number: anything else names nothing."""
    text: str = request.path_params[name]
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 18:
        raise Problem(404, 404, f"{name} should be an integer, not {text!r}")
    return int(text)


class ClusterLinks:
    def __init__(self, request: Request, cluster_id: str) -> None:
        self.backend: Backend = backend_of(request)
        self.id = cluster_id
        self._request = request

    @cached_property
    def _base(self) -> str:
        return f"{self._request.base_url}v3/clusters/{quote(self.id, safe='')}"

    def url(self, *segments: str | int) -> str:
        return "/".join((self._base, *(quote(str(segment), safe="-:") for segment in segments)))

    def related(self, *segments: str | int) -> Fields:
        return {"related": self.url(*segments)}

    def resource(self, kind: str, segments: tuple[str | int, ...], name: str, fields: Fields) -> Fields:
        """`name` is what follows the cluster in the resource's own name, such as `/topic=orders`."""
        return {
            "kind": kind,
            "metadata": {"self": self.url(*segments), "resource_name": f"crn:///kafka={self.id}{name}"},
            "cluster_id": self.id,
            **fields,
        }

    def collection(self, kind: str, segments: tuple[str | int, ...], items: Iterable[Fields]) -> Response:
        return json_answer(
            {"kind": kind, "metadata": {"self": self.url(*segments), "next": None}, "data": list(items)}
        )


async def cluster_of(request: Request) -> ClusterLinks:
    """The cluster in the request's path. 404 unless it is the one that the gateway stands before."""
    cluster_id = await backend_of(request).cluster_id()
    named: str = request.path_params["cluster_id"]
    if named != cluster_id:
        raise Problem(404, 404, f"there is no cluster {named} here; /v3/clusters has the one there is")
    return ClusterLinks(request, cluster_id)


def resource_schema(
    kind: str, required: dict[str, Schema], optional: dict[str, Schema] | None = None
) -> Schema:
    metadata = obj({"self": STRING}, {"resource_name": nullable(STRING)})
    return obj(
        {"kind": {"const": kind}, "metadata": metadata, "cluster_id": STRING, **required}, optional or {}
    )


def collection_schema(kind: str, items: Schema) -> Schema:
    metadata = obj({"self": STRING}, {"next": nullable(STRING)})
    return obj({"kind": {"const": kind}, "metadata": metadata, "data": array(items)})
