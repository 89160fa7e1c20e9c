"""Checks every request before its route: origin, principal and load. Pure ASGI, so that streams pass through.

**Browsers.** A page of any site may make a browser send requests to 127.0.0.1. So a request that changes something is
refused (403) when its `Origin` is not the gateway's own or one of `allow_origins`. So is a cross-site one that has no
Origin. While the gateway listens on a loopback address, a `Host` that is a name other than localhost is refused as
well: DNS rebinding looks like that here.

**Callers.** `Settings.authenticate` decides about every request except `/healthz`; `scope["principal"]` has its result.

**Load.** Beyond `requests_max` requests under way a request is refused (503) before its body is read. `/healthz` is
always answered.
"""

from __future__ import annotations

import functools
import inspect
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemill.gateway.http.connection import headers_too_large
from tidemill.gateway.problems import Problem
from tidemill.gateway.settings import Settings

_READING = frozenset(("GET", "HEAD", "OPTIONS"))
# Browsers send preflight requests without credentials; CORS answers them and reveals nothing.
_PREFLIGHT = b"access-control-request-method"
_OPEN_PATHS = frozenset(("/healthz",))


class Guards:
    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._is_local = settings.is_local
        self._under_way = 0
        self._allowed_hosts = {urlsplit(origin).hostname for origin in settings.allow_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] in _OPEN_PATHS:
            # A health check answers at once, whatever is under way.
            await self._admitted(scope, receive, send)
            return
        if self._under_way >= self._settings.limits.requests_max:
            problem = Problem(503, 50301, "too many requests are under way; try again later")
            await problem.response()(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._admitted(scope, receive, send)
        finally:
            self._under_way -= 1

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._admit(scope)
        except Problem as problem:
            await problem.response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> None:
        limits = self._settings.limits
        raw_headers: list[tuple[bytes, bytes]] = scope["headers"]
        if sum(len(name) + len(value) for name, value in raw_headers) > limits.header_bytes_max:
            raise headers_too_large(limits)
        # One dictionary serves most checks, so the headers are not searched for each of them.
        by_name = dict(raw_headers)
        host = by_name.get(b"host", b"").decode("latin-1").lower()
        if self._is_local:
            self._check_host(host)
        if scope["method"] not in _READING:
            self._check_origin(host, by_name.get(b"origin"), by_name.get(b"sec-fetch-site"))
        authenticate = self._settings.authenticate
        if (
            authenticate is not None
            and scope["path"] not in _OPEN_PATHS
            and not (scope["method"] == "OPTIONS" and _PREFLIGHT in by_name)
        ):
            principal = authenticate(Headers(scope=scope), scope)
            scope["principal"] = await principal if inspect.isawaitable(principal) else principal

    def _check_host(self, host: str) -> None:
        name = _host_name(host)
        if not name or name in self._allowed_hosts or _is_local_name(name):
            return
        raise Problem(
            403,
            403,
            f"the gateway is not reached as {name[:100]!r}: use its address, or allow the name with --allow-origin",
        )

    def _check_origin(self, host: str, origin: bytes | None, site: bytes | None) -> None:
        allowed = self._settings.allow_origins
        if "*" in allowed:
            return
        if origin is None:
            if site in (b"cross-site", b"same-site"):
                raise Problem(403, 403, "a page of another site may not change anything here")
            return
        text = origin.decode("latin-1")
        if text in allowed or text.lower().partition("://")[2] == host:
            return
        raise Problem(
            403, 403, f"pages of {text[:100]} may not change anything here; --allow-origin would allow it"
        )


def _host_name(host: str) -> str:
    """Returns the host name in a Host header: without the port, and without the brackets of IPv6."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


@functools.lru_cache(maxsize=256)
def _is_local_name(name: str) -> bool:
    """Whether the name is an IP literal, or localhost, which no DNS server can rebind."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
