"""The table of the APIs that this broker serves. The handler modules fill it.

`@serves(MetadataRequest)` beside the function is all there is to adding an API, and `docs/compatibility.md` is generated
from the same table. A handler gets the decoded message and returns the response, or a coroutine that does; version
differences live in the codec. The two hot APIs, Produce and Fetch, register with `@serves_raw` and read the frame.

Each API has a scope: a listener serves the broker's APIs, the controller's, or both, and announces only those.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Flag
from typing import Any, TypeVar

from tidemill.broker.net.request_order import Order, declare
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.pieces import Entries
from tidemill.broker.requests.security import authorization
from tidemill.protocol import api as apis
from tidemill.protocol.schema import Request, Response, VersionRange

RequestT = TypeVar("RequestT", bound=Request)


class Scope(Flag):
    """The kinds of listeners that serve an API, and the kind that a listener is."""

    BROKER = 1
    CONTROLLER = 2
    BOTH = 3


MessageHandler = Callable[[Broker, Call, Any], Response | Awaitable[Response]]
RawHandler = Callable[[Broker, Call], None]


@dataclass(frozen=True, slots=True)
class Api:
    key: int
    name: str
    request: type[Request]
    versions: VersionRange
    # What ApiVersions says when it differs from what is served.
    advertised: VersionRange
    handler: MessageHandler | RawHandler
    is_raw: bool
    gaps: tuple[str, ...]
    scope: Scope
    # The list that is answered in pieces when it is long; None when the request is answered as a whole.
    entries: Entries | None


TABLE: dict[int, Api] = {}


def serves(
    request: type[RequestT],
    *,
    versions: tuple[int, int] | None = None,
    gaps: Sequence[str] = (),
    scope: Scope = Scope.BROKER,
    independent_since: int | None = None,
    entries: Entries | None = None,
) -> Callable[[Callable[[Broker, Call, RequestT], Response | Awaitable[Response]]], Any]:
    """Register the handler of an API. `gaps` are behaviours of Kafka's that are missing, for the docs.

    A long list of `entries` is given to the handler in pieces.

    `independent_since` is the first version that only nodes of the cluster send. What only controllers serve is independent
    anyway.
    """
    order = Order.INDEPENDENT if scope is Scope.CONTROLLER else Order.ALONE

    def register(handler: Callable[[Broker, Call, RequestT], Response | Awaitable[Response]]) -> Any:
        _register(
            request,
            handler,
            versions=versions,
            gaps=gaps,
            scope=scope,
            order=order,
            independent_since=independent_since,
            entries=entries,
        )
        return handler

    return register


def serves_raw(
    request: type[Request],
    *,
    order: Order,
    advertised: tuple[int, int] | None = None,
    gaps: Sequence[str] = (),
    scope: Scope = Scope.BROKER,
) -> Callable[[RawHandler], RawHandler]:
    """Register a handler that reads the frame and answers by itself."""

    def register(handler: RawHandler) -> RawHandler:
        _register(request, handler, advertised=advertised, gaps=gaps, scope=scope, order=order, is_raw=True)
        return handler

    return register


def _register(
    request: type[Request],
    handler: MessageHandler | RawHandler,
    *,
    versions: tuple[int, int] | None = None,
    advertised: tuple[int, int] | None = None,
    gaps: Sequence[str],
    scope: Scope,
    order: Order,
    independent_since: int | None = None,
    is_raw: bool = False,
    entries: Entries | None = None,
) -> None:
    assert request.api_key not in TABLE, f"{request.__name__} is served twice"
    if request.api_key not in authorization.NEEDS:
        raise ValueError(f"{request.__name__} cannot be served: authorization.py does not say what it needs")
    stable = request.versions
    if request.latest_version_unstable:
        stable = VersionRange(stable.min, stable.max - 1)
    served = VersionRange(*versions) if versions else stable
    TABLE[request.api_key] = Api(
        request.api_key,
        apis.API_NAMES[request.api_key],
        request,
        served,
        VersionRange(*advertised) if advertised else served,
        handler,
        is_raw,
        tuple(gaps),
        scope,
        entries,
    )
    declare(request.api_key, order, independent_since)
