"""The OpenAPI document and the page that shows it."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from tidemill import __version__
from tidemill.gateway.http.openapi import STRING, ApiRoute, Part, document, obj
from tidemill.gateway.http.router import Operations


@pytest.fixture(scope="module")
def api(gateway: Any) -> dict[str, Any]:
    found: dict[str, Any] = gateway.client.get("/openapi.json").json()
    return found


def operations(api: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, found in api["paths"].items()
        for method, operation in found.items()
    ]


def test_document_has_the_versions_of_openapi_and_of_the_gateway(api: dict[str, Any]) -> None:
    assert api["openapi"] == "3.1.0"
    assert api["info"]["version"] == __version__


def test_every_operation_is_described_and_has_a_name_of_its_own(api: dict[str, Any]) -> None:
    found = operations(api)
    assert len({operation["operationId"] for _, _, operation in found}) == len(found)
    for method, path, operation in found:
        assert operation["summary"], (method, path)
        assert re.findall(r"{(\w+)}", path) == [
            each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"
        ]


def test_every_schema_that_is_pointed_at_is_there(api: dict[str, Any]) -> None:
    pointed = set(re.findall(r"#/components/schemas/(\w+)", str(api)))
    assert pointed <= api["components"]["schemas"].keys()


def test_all_parts_are_in_it(api: dict[str, Any]) -> None:
    assert {"v3", "topics", "consumers", "v1", "console"} <= {path.split("/")[1] for path in api["paths"]}


def test_the_page_shows_every_operation_and_runs_nothing(client: httpx.Client, api: dict[str, Any]) -> None:
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "<script" not in page.text
    for _, path, _ in operations(api):
        assert f"<code>{path}</code>" in page.text


async def _handler(_request: Request) -> Response:
    return Response()


def _declared(*paths: str) -> list[ApiRoute]:
    part = Part("Test")
    for path in paths:
        part.get(path, "Something", answer=STRING)(_handler)
    return [route for route in part.routes if isinstance(route, ApiRoute)]


def test_a_declaration_becomes_an_operation() -> None:
    part = Part("Things")
    part.schema("Thing", obj({"name": STRING}))
    part.post("/things/{name}", "Make a thing", body=obj({}), errors=(404,))(_handler)
    made = document(part.routes)["paths"]["/things/{name}"]["post"]
    assert made["tags"] == ["Things"]
    assert {"204", "400", "404", "413", "415", "422", "503"} <= made["responses"].keys()
    assert made["requestBody"]["required"] is True


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (("/a/{name}", "/a/{name}"), "declared twice"),
        (("/a/{name:path}",), "converter"),
    ],
)
def test_declarations_that_cannot_be_served(paths: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Operations(_declared(*paths))
