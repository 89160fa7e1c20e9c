"""Builds the gateway's Starlette application (`create_app(settings)`), which `Server(uvicorn_config(...))` runs.

A part is a module with `routes`, and with `lifespan` (an async context manager of the application) if it has something to
start and stop. `_PARTS` lists the parts. They reach the cluster only through `access_of(request)`: the access of all
callers, or with log-ins that of the caller's own user.
Paths that no part serves are looked up among the console's files.

Every error response is JSON. `problems.py` maps `Problem` and Kafka's errors to a status. Any other exception is a bug: the
response is a 500, and the log has its traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from tidemill.claims.large_payloads import Counts
from tidemill.errors import TidemillError
from tidemill.gateway.console_api import routes as console_api
from tidemill.gateway.http import metering, pages
from tidemill.gateway.http.connection import BoundedConnection, bounded_connection
from tidemill.gateway.http.guards import Guards
from tidemill.gateway.http.metering import Meter, Metering
from tidemill.gateway.http.openapi import ApiRoute, document
from tidemill.gateway.http.router import Operations
from tidemill.gateway.http.waiting_bodies import WaitingBodies
from tidemill.gateway.login import routes as login
from tidemill.gateway.login.gate import LoginGate
from tidemill.gateway.problems import Problem, problem_of
from tidemill.gateway.rest_v2 import instances
from tidemill.gateway.rest_v2 import routes as v2
from tidemill.gateway.rest_v3 import routes as v3
from tidemill.gateway.settings import Settings
from tidemill.gateway.simple import routes as simple
from tidemill.gateway.turns import Turns
from tidemill.tls.acceptor import TlsAcceptor

# The log-in is the first: the other parts stand on the accesses that it makes.
_PARTS: Sequence[Any] = (login, v3, v2, instances, simple, console_api, metering, pages)
_CONSOLE = Path(__file__).parent / "console"
# The console loads nothing from elsewhere and runs only files of its own. A browser revalidates each file every time:
# an upgrade must not leave it with modules of two versions.
_CONSOLE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def create_app(settings: Settings) -> Starlette:
    routes = [route for part in _PARTS for route in part.routes]
    middleware = [Middleware(Guards, settings=settings), Middleware(console_api.Changes)]
    if settings.login is not None:
        middleware.insert(1, Middleware(LoginGate, settings=settings, console_paths=_console_paths()))
    if settings.allow_origins:
        middleware.insert(
            0,
            Middleware(
                CORSMiddleware,
                allow_origins=settings.allow_origins,
                allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
                allow_headers=["Authorization", "Content-Type", "Accept"],
            ),
        )
    middleware.insert(0, Middleware(Metering))
    app = Starlette(
        routes=[
            Operations(route for route in routes if isinstance(route, ApiRoute)),
            *(route for route in routes if not isinstance(route, ApiRoute)),
            Mount("/", _ConsoleFiles(directory=_CONSOLE, html=True), name="console"),
        ],
        middleware=middleware,
        exception_handlers={
            Problem: _on_problem,
            TidemillError: _on_tidemill_error,
            HTTPException: _on_http_exception,
            ClientDisconnect: _on_disconnect,
            Exception: _on_bug,
        },
        lifespan=_lifespan,
    )
    app.state.settings = settings
    app.state.meter = Meter()
    if settings.large_payloads is not None:
        _count_payloads(app.state.meter, settings.large_payloads.counts)
    app.state.openapi = document(routes)
    return app


def _count_payloads(meter: Meter, counts: Counts) -> None:
    meter.add_counter(
        "tidemill_gateway_payloads_stored_total",
        "Large payloads that were put into the object store.",
        lambda: counts.stored,
    )
    meter.add_counter(
        "tidemill_gateway_payloads_read_total",
        "Large payloads that were read and verified.",
        lambda: counts.read,
    )
    meter.add_counter(
        "tidemill_gateway_payloads_failed_total",
        "Large payloads that were not stored, or not read: missing, forged, corrupt, store down.",
        lambda: counts.failed,
    )


@contextlib.asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    app.state.draining = asyncio.Event()
    app.state.turns = Turns()
    app.state.waiting_bodies = WaitingBodies(settings.limits)
    async with contextlib.AsyncExitStack() as stack:
        for part in _PARTS:
            lifespan = getattr(part, "lifespan", None)
            if lifespan is not None:
                await stack.enter_async_context(lifespan(app))
        yield


# --- files ---


def _console_paths() -> list[str]:
    files = [path.relative_to(_CONSOLE).as_posix() for path in _CONSOLE.rglob("*") if path.is_file()]
    return ["/", *(f"/{name}" for name in files)]


class _ConsoleFiles(StaticFiles):
    """The console's files. A path that is none of them is unknown, whatever the method."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            full_path, _ = self.lookup_path(path)
            if not full_path:
                raise HTTPException(404)
            raise HTTPException(405, headers={"Allow": "GET, HEAD"})
        response = await super().get_response(path, scope)
        response.headers.update(_CONSOLE_HEADERS)
        return response


# --- refusals ---


async def _on_problem(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _on_tidemill_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, TidemillError)
    return problem_of(error).response()


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    headers = dict(error.headers or {})
    match error.status_code:
        case 404:
            message = f"there is nothing at {path}; /docs has what there is"
        case 405:
            message = f"{path} does not take {method}, only {headers.get('Allow', 'GET')}"
        case _:
            message = error.detail
    return Problem(error.status_code, None, message, headers).response()


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    """A response for a client that is gone, which no client reads."""
    return Response(status_code=400)


async def _on_bug(_request: Request, _error: Exception) -> Response:
    return Problem(
        500, 500, "the gateway failed in a way it did not expect; its log has the reason"
    ).response()


# --- running ---


def uvicorn_config(app: Starlette, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.listen_host,
        port=settings.listen_port,
        http=bounded_connection(settings.limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # `trusts_forwarded` decides whom to trust, not uvicorn's guess.
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=math.ceil(settings.drain_s),
    )


class Server(uvicorn.Server):
    """Ends what would go on for ever, event streams and streams of records, before it waits for what is under way.

    With TLS it accepts connections itself, so that certificates are renewed and failed handshakes are logged.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        settings: Settings = cast(Starlette, self.config.app).state.settings
        if settings.tls is None:
            await super().startup(sockets)
            return
        assert sockets is not None
        await super().startup([])
        for listening in sockets:
            acceptor = TlsAcceptor(listening, settings.tls, self._new_connection, "the gateway")
            acceptor.start()
            self.servers.append(cast(asyncio.Server, acceptor))

    def _new_connection(self) -> asyncio.Protocol:
        make = cast(type[BoundedConnection], self.config.http_protocol_class)
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = cast(Starlette, self.config.app)
        app.state.draining.set()
        await console_api.close_streams(app)
        await super().shutdown(sockets)
