"""Logging in and out: a bearer token for scripts, a cookie for the console."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from tidemill.gateway.answers import json_answer
from tidemill.gateway.cluster.access import Access
from tidemill.gateway.cluster.backend import Backend
from tidemill.gateway.http.bodies import read_json_object
from tidemill.gateway.http.formats import invalid
from tidemill.gateway.http.metering import Meter
from tidemill.gateway.http.openapi import BOOLEAN, INTEGER, STRING, Part, nullable, obj
from tidemill.gateway.login.accesses import Accesses
from tidemill.gateway.login.gate import (
    address_of,
    checked_credentials,
    cookie_name,
    session_in,
    token_credentials,
)
from tidemill.gateway.login.sessions import Kind, Session, Sessions
from tidemill.gateway.problems import Problem
from tidemill.gateway.settings import Settings

_BODY_BYTES_MAX = 16 * 1024
_NO_STORE = {"Cache-Control": "no-store"}

part = Part("Log-in")

_Login = part.schema(
    "Login",
    obj(
        {"username": {"type": "string", "minLength": 1}, "password": {"type": "string", "minLength": 1}},
        is_closed=True,
    ),
)


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """The accesses of the users, or the one that all callers share."""
    settings: Settings = app.state.settings
    app.state.access = app.state.accesses = None
    if settings.login is None:
        backend = Backend(settings)
        await backend.open()
        access = app.state.access = Access(backend)
        try:
            yield
        finally:
            await access.close()
        return
    accesses = app.state.accesses = Accesses(settings, Sessions(settings.login, secrets.token_bytes))
    meter: Meter = app.state.meter
    meter.add_gauge(
        "tidemill_gateway_sessions",
        "Sessions of the console and tokens that are in use.",
        lambda: len(accesses.sessions),
    )
    meter.add_gauge(
        "tidemill_gateway_users", "Users that are connected to the cluster.", lambda: len(accesses.all())
    )
    tending = asyncio.create_task(accesses.tend(), name="gateway-accesses")
    try:
        yield
    finally:
        tending.cancel()
        await asyncio.gather(tending, return_exceptions=True)
        await accesses.close()


@part.post(
    "/v1/login",
    "Log in as a user of the cluster, for a token",
    body=_Login,
    answer=obj({"token": STRING, "token_type": STRING, "expires_in_s": INTEGER, "idle_s": INTEGER}),
    errors=(404,),
    description="Send the token as `Authorization: Bearer`. It ends after `idle_s` without a request.",
)
async def log_in_for_a_token(request: Request) -> Response:
    session = await _log_in(request, Kind.BEARER)
    limits = _settings(request).login
    assert limits is not None
    answer = {
        "token": session.text,
        "token_type": "Bearer",
        "expires_in_s": int(limits.session_s_max),
        "idle_s": int(limits.session_idle_s),
    }
    return json_answer(answer, headers=_NO_STORE)


@part.post("/v1/logout", "Revoke the token of this request", errors=(400, 404))
async def revoke_token(request: Request) -> Response:
    _revoke(request, Kind.BEARER)
    return Response(status_code=204)


_State = part.schema(
    "ConsoleSession",
    obj({"needs_login": BOOLEAN, "username": nullable(STRING), "csrf_token": nullable(STRING)}),
)


@part.get("/console/api/session", "Who is logged in", answer=_State)
async def session(request: Request) -> Response:
    settings = _settings(request)
    found = None
    if settings.login is not None:
        found = session_in(_accesses(request), dict(request.scope["headers"]), settings, time.monotonic())
    return json_answer(_state(settings, found), headers=_NO_STORE)


@part.post("/console/api/login", "Log in to the console", body=_Login, answer=_State, errors=(404,))
async def log_in(request: Request) -> Response:
    opened = await _log_in(request, Kind.COOKIE)
    settings = _settings(request)
    answer = json_answer(_state(settings, opened), headers=_NO_STORE)
    _set_cookie(request, answer, opened.text)
    return answer


@part.post("/console/api/logout", "Log out of the console", errors=(400, 404))
async def log_out(request: Request) -> Response:
    _revoke(request, Kind.COOKIE)
    answer = Response(status_code=204)
    _set_cookie(request, answer, None)
    return answer


routes: list[BaseRoute] = part.routes


def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


def _accesses(request: Request) -> Accesses:
    accesses: Accesses | None = request.app.state.accesses
    if accesses is None:
        raise Problem(404, 404, "this gateway has no log-in: its cluster has none, or --auth decides")
    return accesses


async def _log_in(request: Request, kind: Kind) -> Session:
    accesses = _accesses(request)
    body = await read_json_object(request, _BODY_BYTES_MAX)
    for name in body:
        if name not in ("username", "password"):
            raise invalid(f"the body has an unrecognized field: {name[:50]}")
    name, password = _text(body, "username"), _text(body, "password")
    has_tokens = _settings(request).has_tokens
    credentials = token_credentials(password) if has_tokens else checked_credentials(name, password)
    async with accesses.using(credentials, address_of(request.scope, _settings(request))):
        return accesses.sessions.open(credentials, kind, time.monotonic())


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise invalid(f"{name} should be a string that is not empty")
    return value


def _revoke(request: Request, kind: Kind) -> None:
    accesses = _accesses(request)
    found: Session | None = request.scope.get("session")
    if found is None or found.kind is not kind:
        raise Problem(400, 400, f"this request has no session by {kind}")
    accesses.sessions.revoke(found.id)
    accesses.end_streams(found)


def _state(settings: Settings, found: Session | None) -> dict[str, Any]:
    return {
        "needs_login": settings.login is not None,
        "username": None if found is None else found.credentials.username,
        "csrf_token": None if found is None else found.csrf_token,
    }


def _set_cookie(request: Request, answer: Response, text: str | None) -> None:
    """Without a text the cookie is taken back. The browser keeps it while it runs; the gateway decides when it is over."""
    settings = _settings(request)
    is_proxied = settings.trusts_forwarded and request.headers.get("x-forwarded-proto") == "https"
    answer.set_cookie(
        cookie_name(settings),
        text or "",
        max_age=None if text else 0,
        path="/",
        secure=settings.tls is not None or is_proxied,
        httponly=True,
        samesite="strict",
    )
