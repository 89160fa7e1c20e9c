"""From a request frame to its handler, and from what the handler returns to a reply.

`api_table.py` names the handlers. An API that is out of the scope of a listener is answered there like one that does not
exist.

Whatever a client sends, it gets the protocol's own answer. An API that is not served gets UNSUPPORTED_VERSION in a
layout that the client can read. A bug in a handler gets UNKNOWN_SERVER_ERROR, and a traceback in the log. The error
stands in each entry where the response has no other place for it. Bytes that cannot be understood close the connection,
and so does a failure that no response can tell: silence or an empty response would read as a success.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import NamedTuple, TypeVar

from tidemill.broker.net.network import Peer
from tidemill.broker.net.request_order import Order, order_in
from tidemill.broker.requests.api_table import TABLE, Api, Scope
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.pieces import Entries, PieceTurns, answer_in_pieces
from tidemill.broker.requests.quotas import RequestUsage
from tidemill.broker.requests.security import authorization
from tidemill.broker.requests.security.node_hosts import known_hosts
from tidemill.errors import ApiError, ErrorCode, ProtocolError
from tidemill.protocol import api as apis
from tidemill.protocol.api.cluster import ApiVersion, ApiVersionsResponse
from tidemill.protocol.error_responses import error_response, error_response_in_steps
from tidemill.protocol.frames import (
    API_VERSIONS_KEY,
    RequestHeader,
    has_flexible_response_header,
    parse_request_header,
)
from tidemill.protocol.schema import Request, Response, decode, decode_in_steps, encode, encode_in_steps
from tidemill.protocol.steps import Steps, run_steps

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A larger request may take long to decode, and its response long to encode.
_LARGE_BYTES = 16_384


class _Route(NamedTuple):
    """One version of an API, as a request needs it."""

    api: Api
    has_flexible_header: bool
    took: Callable[[float], None]


class Dispatcher:
    def __init__(self, broker: Broker, scopes: Mapping[str, Scope]) -> None:
        """`scopes` says what each listener serves."""
        self._broker = broker
        self._metrics = broker.metrics
        # By listener, API key and version.
        self._routes = {
            name: {
                (key, version): _Route(
                    api, has_flexible_response_header(key, version), broker.metrics.request(key).observe
                )
                for key, api in TABLE.items()
                if api.scope & scope
                for version in range(api.versions.min, api.versions.max + 1)
            }
            for name, scope in scopes.items()
        }
        self._scopes = scopes
        self._piece_turns = PieceTurns()
        # In the order in which they began: a set's order would differ from run to run.
        self._tasks: dict[asyncio.Task[None], None] = {}

    def dispatch(self, connection: Peer, frame: memoryview) -> None:
        header = parse_request_header(frame)
        route = self._routes[connection.listener_name].get((header.api_key, header.api_version))
        if route is None:
            self._refuse(connection, header, frame)
            return
        served, has_flexible_header, took = route
        call = Call(connection, header, frame, has_flexible_header)
        if self._metrics.is_watched:
            call.took = took
            call.started_s = connection.received_s
        handle = self._handle_raw if served.is_raw else self._handle
        if self._broker.quotas is None:
            handle(served, call)
        else:
            self._handle_measured(served, call, handle)

    def _handle_measured(self, served: Api, call: Call, handle: Callable[[Api, Call], None]) -> None:
        """Handle a request of a cluster with quotas. What only nodes send is exempt."""
        quotas = self._broker.quotas
        if quotas is None or order_in(served.key, call.version) is Order.INDEPENDENT:
            handle(served, call)
            return
        call.usage = RequestUsage(quotas, call.connection, call.client_id)
        handle(served, call)
        call.usage.pause()

    def _handle_raw(self, served: Api, call: Call) -> None:
        try:
            served.handler(self._broker, call)  # type: ignore[call-arg]
        except ProtocolError:
            raise
        except Exception as error:
            logger.exception("%s of %s failed; its connection is closed", served.name, call.connection.peer)
            call.connection.close(f"{served.name} failed: {error!r}")

    def _handle(self, served: Api, call: Call) -> None:
        if len(call.frame) > _LARGE_BYTES:
            self._handle_large(served, call)
            return
        request = decode(served.request, call.version, call.frame, call.header.body_position)
        call.expect_reply()
        self._handle_decoded(served, call, request)

    def _handle_large(self, served: Api, call: Call) -> None:
        body = self._keep_large(call)
        decoding: Awaitable[Request] = self._in_turns(decode_in_steps(served.request, call.version, body))
        if call.usage is not None:
            decoding = call.usage.timed(decoding)
        self._answer_later(self._finish_large(served, call, decoding, len(body)))

    async def _finish_large(self, served: Api, call: Call, decoding: Awaitable[Request], size: int) -> None:
        request = await self._decoded(call, decoding, size)
        if request is None:
            return
        self._handle_decoded(served, call, request)
        if call.usage is not None:
            call.usage.pause()

    def _keep_large(self, call: Call) -> bytes:
        """A copy of the request, to be decoded in steps: its frame is overwritten by what arrives next."""
        call.is_large = True
        call.expect_reply()
        body = bytes(call.frame[call.header.body_position :])
        call.connection.add_kept_bytes(len(body))
        return body

    async def _decoded(self, call: Call, decoding: Awaitable[Request], size: int) -> Request | None:
        """The request; None when it is malformed or not wanted any more."""
        try:
            request = await decoding
        except ProtocolError as error:
            call.connection.close(str(error))
            return None
        finally:
            call.connection.add_kept_bytes(-size)
        return request if call.is_wanted else None

    def _handle_decoded(self, served: Api, call: Call, request: Request) -> None:
        if order_in(served.key, call.version) is Order.INDEPENDENT:
            broker = self._broker
            broker.lanes.claim(call.connection, lambda: known_hosts(broker, request))
        if served.entries is not None and served.entries.is_more_than_a_piece(request):
            self._answer_later(self._finish_in_pieces(served, served.entries, call, request))
            return
        try:
            result = self._serve(served, call, request)
        except Exception as error:
            self._failed(served, call, request, error)
            return
        if inspect.isawaitable(result):
            if call.usage is not None:
                result = call.usage.timed(result)
            self._answer_later(self._finish(served, call, request, result))
        else:
            assert isinstance(result, Response)
            self._answer(served, call, request, result)

    def _serve(self, served: Api, call: Call, request: Request) -> Response | Awaitable[Response]:
        if self._broker.authorizer is None:
            return served.handler(self._broker, call, request)  # type: ignore[call-arg, return-value]
        return authorization.serve(self._broker, call, request, served.handler)  # type: ignore[arg-type]

    def _answer_later(self, finish: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(finish)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _finish(self, served: Api, call: Call, request: Request, result: Awaitable[Response]) -> None:
        try:
            response = await result
        except Exception as error:
            self._failed(served, call, request, error)
        else:
            self._answer(served, call, request, response)

    async def _finish_in_pieces(self, served: Api, entries: Entries, call: Call, request: Request) -> None:
        result: Awaitable[Response] = answer_in_pieces(
            self._piece_turns,
            entries,
            request,
            lambda piece: self._serve(served, call, piece),
            lambda: call.is_wanted,
        )
        if call.usage is not None:
            result = call.usage.timed(result)
        try:
            response = await result
        except Exception as error:
            self._failed(served, call, request, error)
            return
        _show_throttling(call, response)
        await self._answer_in_steps(served, call, request, response)

    async def _answer_in_steps(self, served: Api, call: Call, request: Request, response: Response) -> None:
        try:
            body = await self._in_turns(encode_in_steps(response, call.version))
        except Exception as error:
            self._failed(served, call, request, error)
            return
        if call.is_wanted:
            call.respond((body,))

    async def _in_turns(self, steps: Steps[T]) -> T:
        """Take a step in each turn. The first one waits for its turn, too."""
        while True:
            await self._piece_turns.turn()
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result

    def _answer(self, served: Api, call: Call, request: Request, response: Response) -> None:
        if not call.is_wanted:
            return
        _show_throttling(call, response)
        if call.is_large:
            self._answer_later(self._answer_in_steps(served, call, request, response))
            return
        try:
            body = encode(response, call.version)
        except Exception as error:
            # A text or a name that is too long, or a null where there may be none.
            self._failed(served, call, request, error)
        else:
            call.respond((body,))

    def _failed(self, served: Api, call: Call, request: Request, error: Exception) -> None:
        if isinstance(error, ApiError):
            self._tell(call, request, error.code, error.message)
            return
        logger.error(
            "%s of %s failed; it gets UNKNOWN_SERVER_ERROR", served.name, call.connection.peer, exc_info=error
        )
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        self._tell(call, request, code, code.message)

    def _tell(self, call: Call, request: Request, code: ErrorCode, message: str) -> None:
        """Answer with nothing but the error; close the connection when no response can say it."""
        if not call.is_wanted:
            return
        if call.is_large:
            self._answer_later(self._tell_in_steps(call, request, code, message))
            return
        response = error_response(request, call.version, code, message)
        if response is None:
            _close_untold(call, request, code, message)
        else:
            _show_throttling(call, response)
            call.respond((encode(response, call.version),))

    async def _tell_in_steps(self, call: Call, request: Request, code: ErrorCode, message: str) -> None:
        response = await self._in_turns(error_response_in_steps(request, call.version, code, message))
        if not call.is_wanted:
            return
        if response is None:
            _close_untold(call, request, code, message)
        else:
            _show_throttling(call, response)
            await self._respond_in_steps(call, response)

    async def _respond_in_steps(self, call: Call, response: Response) -> None:
        """Send a response that only repeats the request with errors."""
        try:
            body = await self._in_turns(encode_in_steps(response, call.version))
        except ValueError as error:
            # A name that the request may have and the response may not.
            call.connection.close(str(error))
            return
        if call.is_wanted:
            call.respond((body,))

    def _refuse(self, connection: Peer, header: RequestHeader, frame: memoryview) -> None:
        """An API or a version that is not served here."""
        request = apis.REQUESTS.get(header.api_key)
        if header.api_key == API_VERSIONS_KEY:
            # KIP-511: whatever was asked, the answer is in the layout of version 0 and tells what to ask with.
            call = Call(connection, header, frame, is_flexible=False)
            call.expect_reply()
            served = TABLE[API_VERSIONS_KEY].advertised
            own = ApiVersion(api_key=API_VERSIONS_KEY, min_version=served.min, max_version=served.max)
            refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])
            call.respond((encode(refusal, 0),))
            return
        if (
            request is None
            or header.api_version not in request.versions
            or self._is_served(connection, header)
        ):
            name = apis.API_NAMES.get(header.api_key, "unknown")
            raise ProtocolError(
                f"API key {header.api_key} ({name}) version {header.api_version} is not served; "
                "ApiVersions tells which are"
            )
        call = Call(
            connection, header, frame, has_flexible_response_header(header.api_key, header.api_version)
        )
        if len(frame) > _LARGE_BYTES:
            body = self._keep_large(call)
            decoding = self._in_turns(decode_in_steps(request, call.version, body))
            self._answer_later(self._refuse_large(call, decoding, len(body)))
            return
        asked = decode(request, call.version, frame, header.body_position)
        call.expect_reply()
        response = run_steps(_not_served(asked, call.version))
        call.respond((encode(response, call.version),))

    async def _refuse_large(self, call: Call, decoding: Awaitable[Request], size: int) -> None:
        request = await self._decoded(call, decoding, size)
        if request is not None:
            response = await self._in_turns(_not_served(request, call.version))
            await self._respond_in_steps(call, response)

    def _is_served(self, connection: Peer, header: RequestHeader) -> bool:
        api = TABLE.get(header.api_key)
        return api is not None and bool(api.scope & self._scopes[connection.listener_name])

    async def drain(self, timeout_s: float) -> None:
        """Wait for the handlers that are still running, but not for those whose peer is gone."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
            for task in list(self._tasks):
                task.cancel()


def _not_served(request: Request, version: int) -> Steps[Response]:
    message = f"{apis.API_NAMES[request.api_key]} is not served"
    response = yield from error_response_in_steps(request, version, ErrorCode.UNSUPPORTED_VERSION, message)
    # A request that names nothing gets an answer about nothing.
    return response if response is not None else apis.RESPONSES[request.api_key]()


def _close_untold(call: Call, request: Request, code: ErrorCode, message: str) -> None:
    name = apis.API_NAMES[request.api_key]
    call.connection.close(f"{name} v{call.version} has no response that could say {code.name}: {message}")


def _show_throttling(call: Call, response: Response) -> None:
    usage = call.usage
    if usage is not None and (throttle_ms := usage.completed()) and hasattr(response, "throttle_time_ms"):
        response.throttle_time_ms = throttle_ms
