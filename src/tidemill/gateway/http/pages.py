"""`/openapi.json`, and `/docs`, which shows the same to people: one page, made here, without a script.

Everything on the page comes from the document and is escaped; the page may load nothing (Content-Security-Policy).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from tidemill.gateway.answers import json_answer

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --quiet: #8888; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 13px/1.5 ui-monospace, monospace; }
pre { overflow: auto; padding: .5rem .75rem; border: 1px solid var(--line); border-radius: 4px; }
details { border-bottom: 1px solid var(--line); }
summary { padding: .4rem 0; cursor: pointer; display: flex; gap: .75rem; flex-wrap: wrap; }
summary b { min-width: 4rem; font-family: ui-monospace, monospace; }
summary span { color: GrayText; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .1rem 1rem .1rem 0; vertical-align: top; }
"""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


async def openapi_json(request: Request) -> Response:
    return json_answer(request.app.state.openapi)


async def docs_page(request: Request) -> Response:
    return HTMLResponse("".join(_page(request.app.state.openapi)), headers=_HEADERS)


def _page(document: dict[str, Any]) -> Iterator[str]:
    info = document["info"]
    yield "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    yield f"<title>{escape(info['title'])}</title><style>{_STYLE}</style>"
    yield f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>"
    yield f"<p>{escape(info['description'])} The same for programs: <a href=/openapi.json>/openapi.json</a>."
    by_tag: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            by_tag.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    for tag, listed in by_tag.items():
        yield f"<h2>{escape(tag)}</h2>"
        for method, path, operation in listed:
            yield from _operation(method, path, operation)
    yield "<h2>Schemas</h2>"
    for name, schema in document["components"]["schemas"].items():
        yield f"<details id='{escape(name)}'><summary><code>{escape(name)}</code></summary>{_json(schema)}</details>"


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<details><summary><b>{method}</b><code>{escape(path)}</code>"
    yield f"<span>{escape(operation['summary'])}</span></summary>"
    if "description" in operation:
        yield f"<p>{escape(operation['description'])}"
    parameters = operation.get("parameters", ())
    if parameters:
        rows = (
            f"<tr><td><code>{escape(each['name'])}</code><td>{escape(each['in'])}"
            f"<td>{escape(each['schema'].get('type', ''))}<td>{escape(each.get('description', ''))}"
            for each in parameters
        )
        yield f"<h4>Parameters</h4><table>{''.join(rows)}</table>"
    if "requestBody" in operation:
        yield f"<h4>Body</h4>{''.join(_content(operation['requestBody']['content']))}"
    yield "<h4>Answers</h4><table>"
    for status, answer in operation["responses"].items():
        body = "".join(_content(answer.get("content", {}))) if status.startswith("2") else ""
        yield f"<tr><td>{escape(status)}<td>{escape(answer['description'])}{body}"
    yield "</table></details>"


def _content(content: dict[str, Any]) -> Iterator[str]:
    for media_type, described in content.items():
        schema = described["schema"]
        name = schema.get("$ref", "").rpartition("/")[2]
        link = f"<a href='#{escape(name)}'>{escape(name)}</a>" if name else _json(schema)
        yield f"<p><code>{escape(media_type)}</code> {link}"


def _json(schema: dict[str, Any]) -> str:
    return f"<pre>{escape(json.dumps(schema, indent=1))}</pre>"


routes: list[BaseRoute] = [Route("/openapi.json", openapi_json), Route("/docs", docs_page)]
