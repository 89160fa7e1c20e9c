"""`LoginGate`: authenticates a caller before its request reaches a route. Pure ASGI, as the guards are.

A caller shows one of these:

    Authorization: Basic …        user and password of the cluster
    Authorization: Bearer …       a token of `POST /v1/login`, or with OAUTHBEARER a token of the cluster's issuer
    Cookie: tidemill_session_…    a session of the console

The scope then has the caller's `access` and `session_id`. Without any, or with a wrong one, the answer is 401. Its
challenge is Basic for programs; to a page of the console it is Bearer, since a browser would open a dialog of its own for
Basic.

A browser sends its cookie whatever page asks. So a request by cookie has to come from a page of the gateway's own
origin, by `Origin` or `Sec-Fetch-Site`. A change has to carry the session's token in `X-CSRF-Token` as well.

What a browser needs before there is a session is open: the console's files, the documents, and the log-in itself.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import time
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemill.gateway.cluster.backend import credentials_refused
from tidemill.gateway.login.accesses import Accesses
from tidemill.gateway.login.sessions import Kind, Session
from tidemill.gateway.problems import Problem
from tidemill.gateway.settings import Credentials, Settings

_READING = frozenset(("GET", "HEAD", "OPTIONS"))
_REALM = 'realm="Tidemill"'
_PROGRAMS, _PAGES = f'Basic {_REALM}, charset="UTF-8"', f"Bearer {_REALM}"
_CREDENTIAL_CHARACTERS_MAX = 1024
_TOKEN_CHARACTERS_MAX = 16 * 1024
OPEN_PATHS = frozenset(
    ("/healthz", "/docs", "/openapi.json", "/v1/login", "/console/api/login", "/console/api/session")
)


class _Caller(NamedTuple):
    credentials: Credentials
    session: Session | None = None


class LoginGate:
    def __init__(self, app: ASGIApp, settings: Settings, console_paths: Collection[str]) -> None:
        self._app = app
        self._settings = settings
        self._has_tokens = settings.has_tokens
        self._open_paths = OPEN_PATHS | frozenset(console_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        challenge = _PAGES if self._has_tokens else _challenge(scope["path"], headers)
        challenging = _challenging(send, challenge)
        is_preflight = scope["method"] == "OPTIONS" and b"access-control-request-method" in headers
        if scope["path"] in self._open_paths or is_preflight:
            await self._app(scope, receive, challenging)
            return
        accesses: Accesses = scope["app"].state.accesses
        try:
            caller = self._caller(accesses, scope, headers)
            async with accesses.using(caller.credentials, address_of(scope, self._settings)) as access:
                scope["access"] = access
                scope["session"] = caller.session
                scope["session_id"] = caller.session.id if caller.session else ""
                await self._app(scope, receive, challenging)
        except Problem as problem:
            await problem.response()(scope, receive, challenging)

    def _caller(self, accesses: Accesses, scope: Scope, headers: dict[bytes, bytes]) -> _Caller:
        authorization = headers.get(b"authorization")
        now_s = time.monotonic()
        if authorization is not None:
            scheme, _, rest = authorization.decode("latin-1").partition(" ")
            match scheme.lower():
                case "basic" if not self._has_tokens:
                    return _Caller(basic_credentials(rest))
                case "bearer":
                    token = rest.strip()
                    session = accesses.sessions.find(token, Kind.BEARER, now_s)
                    if session is not None:
                        return _Caller(session.credentials, session)
                    if self._has_tokens:
                        return _Caller(token_credentials(token))
                    raise Problem(401, 40101, "the token is not known, or it has expired")
            kinds = "Bearer, with a token," if self._has_tokens else "Basic or Bearer"
            raise Problem(401, 40101, f"Authorization is {kinds} here")
        session = session_in(accesses, headers, self._settings, now_s)
        if session is None:
            raise Problem(401, 40101, "a log-in with a user of the cluster is needed")
        is_change = scope["method"] not in _READING
        _check_same_origin(headers, needs_proof=is_change)
        if is_change:
            token = headers.get(b"x-csrf-token", b"").decode("latin-1")
            if not accesses.sessions.is_csrf_token(session, token):
                raise Problem(403, 403, "a change by cookie needs the session's token in X-CSRF-Token")
        return _Caller(session.credentials, session)


# --- what a request says ---


def cookie_name(settings: Settings) -> str:
    """Returns the cookie's name, with the port: browsers share cookies among ports. With TLS only this host can set it."""
    prefix = "__Host-" if settings.tls is not None else ""
    return f"{prefix}tidemill_session_{settings.listen_port}"


def session_in(
    accesses: Accesses, headers: dict[bytes, bytes], settings: Settings, now_s: float
) -> Session | None:
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(headers.get(b"cookie", b"").decode("latin-1"))
    except CookieError:
        return None
    found = jar.get(cookie_name(settings))
    return None if found is None else accesses.sessions.find(found.value, Kind.COOKIE, now_s)


def _check_same_origin(headers: dict[bytes, bytes], *, needs_proof: bool) -> None:
    """`Problem` unless the request comes from a page of this origin. Without proof, the browser has to say otherwise."""
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    host = headers.get(b"host", b"").lower()
    if origin is not None and origin.lower().partition(b"://")[2] != host:
        raise Problem(403, 403, "a page of another origin may not use this session")
    if site is not None and site not in (b"same-origin", b"none"):
        raise Problem(403, 403, "a page of another site may not use this session")
    if needs_proof and origin is None and site != b"same-origin":
        raise Problem(
            403, 403, "a change by cookie has to say which page it comes from, by Origin or Sec-Fetch-Site"
        )


def basic_credentials(encoded: str) -> Credentials:
    try:
        name, separator, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise Problem(401, 40101, "Authorization has no user and password that can be read") from None
    if not separator:
        raise Problem(401, 40101, "Authorization has no password")
    return checked_credentials(name, password)


def token_credentials(token: str) -> Credentials:
    """Returns the credentials of a token. The cluster decides whether it is good; the name is only for people."""
    if not token or not token.isascii() or not token.isprintable() or len(token) > _TOKEN_CHARACTERS_MAX:
        raise credentials_refused()
    name = "the bearer of a token"
    with contextlib.suppress(IndexError, ValueError, RecursionError):
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        if isinstance(claims, dict):
            name = str(claims.get("sub") or name)[:_CREDENTIAL_CHARACTERS_MAX]
    return Credentials(name, token)


def checked_credentials(name: str, password: str) -> Credentials:
    if (
        not name
        or not password
        or max(len(name), len(password)) > _CREDENTIAL_CHARACTERS_MAX
        or "\0" in name + password
    ):
        raise credentials_refused()
    return Credentials(name, password)


def address_of(scope: Scope, settings: Settings) -> str:
    """The caller's. Behind a proxy that is trusted, what that proxy has seen."""
    client = scope.get("client")
    address = client[0] if client else ""
    if settings.trusts_forwarded:
        forwarded = dict(scope["headers"]).get(b"x-forwarded-for", b"").decode("latin-1")
        address = forwarded.rpartition(",")[2].strip() or address
    return address


# --- challenges ---


def _challenge(path: str, headers: dict[bytes, bytes]) -> str:
    is_page = path.startswith("/console/") or b"x-csrf-token" in headers
    return _PAGES if is_page else _PROGRAMS


def _challenging(send: Send, challenge: str) -> Send:
    async def challenged(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 401:
            MutableHeaders(scope=message).setdefault("WWW-Authenticate", challenge)
        await send(message)

    return challenged
