"""Requests to one other node, over one link at a time.

Requests go out in the order in which they were made, many at a time. The peer answers in that order, so the next
response is always that of the oldest request. Each link begins with an ApiVersions request, which settles the version
of every later one. A request of an API that the peer does not list has our own highest version: a node serves other
nodes more than it advertises to clients. Where the listener asks for a login, that is next (`link_security.py`); while
it lasts, and while it is renewed, requests wait.

Whatever happens, each request gets exactly one callback. A link that is lost fails all that is outstanding: the peer
may or may not have acted on it. The next request opens a new link, after a pause that grows while opening fails. A
request whose time is over closes the link too, because the later answers are stuck behind its own. One timer per channel
watches the earliest deadline.

A callback that raises is a bug of its owner. It is logged, and the link is closed, so that no request waits for an answer
that was half processed.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tidemill.broker.net.link_security import LinkSecurity, LoginFailed
from tidemill.broker.net.network import Address, Link, Network
from tidemill.errors import ErrorCode, ProtocolError, TidemillError
from tidemill.protocol import wire
from tidemill.protocol.api.cluster import ApiVersionsRequest, ApiVersionsResponse
from tidemill.protocol.frames import has_flexible_response_header, request_frame
from tidemill.protocol.schema import Request, Response, VersionRange, decode

logger = logging.getLogger(__name__)

_BACKOFF_S_MIN = 0.05
_BACKOFF_S_MAX = 1.0
_HANDSHAKE_S_MAX = 10.0
# The one version of ApiVersions that every peer reads and that needs no second try.
_API_VERSIONS_VERSION = 0
_CLOSED = "the channel is closed"
_CORRELATION_ID_END = 1 << 31
_CORRELATION_ID = struct.Struct(">i")

ResponseT = TypeVar("ResponseT", bound=Response)
OnBody = Callable[[int, memoryview], None]
OnFailed = Callable[[str], None]


class PeerUnavailable(TidemillError):
    """The other node did not answer. Whether it acted on the request is not known."""


@dataclass(slots=True, eq=False)
class _Outstanding:
    message: Request
    on_body: OnBody
    on_failed: OnFailed
    deadline_s: float
    version_max: int | None = None
    version: int = -1
    correlation_id: int = -1


class Channel:
    def __init__(
        self,
        network: Network,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        *,
        client_id: str,
        frame_bytes_max: int,
        security: LinkSecurity | None = None,
    ) -> None:
        self.address = address
        self._security = security
        # The login that is under way, and the timer of the next one.
        self._login: asyncio.Task[None] | None = None
        self._login_timer: asyncio.TimerHandle | None = None
        self._network = network
        self._loop = loop
        self._client_id = client_id
        self._frame_bytes_max = frame_bytes_max
        self._link: Link | None = None
        # Of the peer, by API key; None until the link's handshake is done.
        self._versions: dict[int, VersionRange] | None = None
        # What waits for the handshake, and what waits for its answer.
        self._unsent: deque[_Outstanding] = deque()
        self._sent: deque[_Outstanding] = deque()
        self._correlation_id = 0
        self._backoff_s = 0.0
        self._connect_at_s = 0.0
        self._connect_timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    # -- asking ----------------------------------------------------------------------------------------------

    async def request(
        self,
        message: Request,
        response_type: type[ResponseT],
        *,
        timeout_s: float,
        version_max: int | None = None,
    ) -> ResponseT:
        """Ask and wait for the decoded answer. Raises `PeerUnavailable` when there is none in time."""
        answer: asyncio.Future[ResponseT] = self._loop.create_future()

        def on_body(version: int, body: memoryview) -> None:
            if answer.done():
                return
            try:
                answer.set_result(decode(response_type, version, bytes(body)))
            except ProtocolError as error:
                on_failed(str(error))
                raise

        def on_failed(reason: str) -> None:
            if not answer.done():
                answer.set_exception(PeerUnavailable(f"{self.address}: {reason}"))

        self.call(message, on_body, on_failed, timeout_s=timeout_s, version_max=version_max)
        return await answer

    def call(
        self,
        message: Request,
        on_body: OnBody,
        on_failed: OnFailed,
        *,
        timeout_s: float,
        version_max: int | None = None,
    ) -> None:
        """Sends a request. Later calls exactly one of `on_body` and `on_failed`.

        `on_body` gets the version that was spoken and the response behind its header; its bytes are valid until it returns.
        A message whose later versions mean something else is asked at `version_max` at most. A version that is not stable
        has to be named by it.
        """
        outstanding = _Outstanding(message, on_body, on_failed, self._loop.time() + timeout_s, version_max)
        if self._is_closed:
            self._loop.call_soon(self._fail, outstanding, _CLOSED)
            return
        if self._versions is not None:
            self._send(outstanding)
        else:
            self._unsent.append(outstanding)
            self._open_link()
        self._watch(outstanding.deadline_s)

    def _send(self, outstanding: _Outstanding) -> None:
        assert self._link is not None
        assert self._versions is not None
        message = outstanding.message
        try:
            outstanding.version = _agreed_version(
                message, self._versions.get(message.api_key), outstanding.version_max
            )
            outstanding.correlation_id = self._next_correlation_id()
            frame = request_frame(message, outstanding.version, outstanding.correlation_id, self._client_id)
        except ProtocolError as error:
            self._loop.call_soon(self._fail, outstanding, str(error))
        except ValueError as error:
            logger.exception("cannot encode a %s for %s", type(message).__name__, self.address)
            self._loop.call_soon(self._fail, outstanding, str(error))
        else:
            self._sent.append(outstanding)
            self._link.send(frame)

    def _next_correlation_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) % _CORRELATION_ID_END
        return self._correlation_id

    # -- the link --------------------------------------------------------------------------------------------

    def _open_link(self) -> None:
        """Opens the link at once, or after the reconnect backoff."""
        if self._link is not None or self._connect_timer is not None:
            return
        if self._loop.time() < self._connect_at_s:
            self._connect_timer = self._loop.call_at(self._connect_at_s, self._connect)
        else:
            self._connect()

    def _connect(self) -> None:
        self._connect_timer = None
        if not self._unsent:
            return
        self._link = self._network.connect(
            self.address,
            self._on_frame,
            self._on_link_closed,
            frame_bytes_max=self._frame_bytes_max,
            tls=self._security.tls if self._security is not None else None,
        )
        handshake = _Outstanding(
            ApiVersionsRequest(),
            self._on_api_versions,
            _ignore,
            self._loop.time() + _HANDSHAKE_S_MAX,
            version=_API_VERSIONS_VERSION,
            correlation_id=self._next_correlation_id(),
        )
        self._sent.append(handshake)
        self._link.send(
            request_frame(handshake.message, handshake.version, handshake.correlation_id, self._client_id)
        )
        self._watch(handshake.deadline_s)

    def _on_api_versions(self, version: int, body: memoryview) -> None:
        response = decode(ApiVersionsResponse, version, body)
        if response.error_code != ErrorCode.NONE:
            raise ProtocolError(f"ApiVersions was refused with error {response.error_code}")
        versions = {api.api_key: VersionRange(api.min_version, api.max_version) for api in response.api_keys}
        if self._security is not None and self._security.login is not None:
            self._log_in(versions)
        else:
            self._ready(versions)

    def _ready(self, versions: dict[int, VersionRange]) -> None:
        self._versions = versions
        self._backoff_s = 0.0
        unsent, self._unsent = self._unsent, deque()
        for outstanding in unsent:
            self._send(outstanding)

    # -- logging in ------------------------------------------------------------------------------------------

    def _log_in(self, versions: dict[int, VersionRange]) -> None:
        """Starts a login. New requests wait for its end; answers to earlier ones still arrive."""
        self._versions = None
        assert self._security is not None
        self._login = self._loop.create_task(self._authenticate(self._security, versions, self._link))

    async def _authenticate(
        self, security: LinkSecurity, versions: dict[int, VersionRange], link: Link | None
    ) -> None:
        try:
            renew_s = await security.authenticate(self._exchange)
        except (LoginFailed, PeerUnavailable) as failure:
            self._login = None
            if self._link is link:
                self._lose_link(f"this node's login failed: {failure}")
            return
        self._login = None
        if self._link is not link or link is None:
            return
        if renew_s is not None:
            self._login_timer = self._loop.call_later(renew_s, self._log_in, versions)
        self._ready(versions)

    async def _exchange(self, request: Request, version: int, response_type: type[ResponseT]) -> ResponseT:
        """One step of the login, before the requests that wait."""
        if self._link is None:
            raise PeerUnavailable(f"the connection to {self.address} was lost")
        answer: asyncio.Future[ResponseT] = self._loop.create_future()

        def on_body(version: int, body: memoryview) -> None:
            if not answer.done():
                answer.set_result(decode(response_type, version, bytes(body)))

        def on_failed(reason: str) -> None:
            if not answer.done():
                answer.set_exception(PeerUnavailable(reason))

        step = _Outstanding(
            request,
            on_body,
            on_failed,
            self._loop.time() + _HANDSHAKE_S_MAX,
            version=version,
            correlation_id=self._next_correlation_id(),
        )
        self._sent.append(step)
        self._link.send(request_frame(request, version, step.correlation_id, self._client_id))
        self._watch(step.deadline_s)
        return await answer

    def _stop_logging_in(self) -> None:
        if self._login_timer is not None:
            self._login_timer.cancel()
            self._login_timer = None
        login, self._login = self._login, None
        if login is not None and login is not asyncio.current_task(self._loop):
            login.cancel()

    # -- answers ---------------------------------------------------------------------------------------------

    def _on_frame(self, frame: memoryview) -> None:
        try:
            outstanding = self._next_answered(frame)
        except ProtocolError as error:
            self._lose_link(str(error))
            return
        start = 4
        try:
            if has_flexible_response_header(outstanding.message.api_key, outstanding.version):
                start = wire.skip_tagged_fields(frame, start)
            outstanding.on_body(outstanding.version, frame[start:])
        except ProtocolError as error:
            self._lose_link(str(error))
        except Exception as error:
            name = type(outstanding.message).__name__
            logger.exception(
                "handling the response of %s to a %s failed; the connection is closed", self.address, name
            )
            self._lose_link(f"the answer to a {name} could not be taken: {error!r}")

    def _next_answered(self, frame: memoryview) -> _Outstanding:
        if len(frame) < 4:
            raise ProtocolError(f"a response of {len(frame)} bytes has no header")
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        if not self._sent or self._sent[0].correlation_id != correlation_id:
            expected = self._sent[0].correlation_id if self._sent else "none"
            raise ProtocolError(f"an answer to request {correlation_id}; next is {expected}")
        return self._sent.popleft()

    def _on_link_closed(self, reason: str) -> None:
        self._lose_link(reason)

    def _lose_link(self, reason: str) -> None:
        """Fail everything that is outstanding; the callbacks may ask again at once."""
        if self._link is None:
            return
        self._link.close()
        self._link = None
        self._stop_logging_in()
        if self._versions is None:
            self._backoff_s = min(max(2 * self._backoff_s, _BACKOFF_S_MIN), _BACKOFF_S_MAX)
            self._connect_at_s = self._loop.time() + self._backoff_s
        self._versions = None
        self._fail_all(reason)

    def _fail_all(self, reason: str) -> None:
        failed = [*self._sent, *self._unsent]
        self._sent.clear()
        self._unsent.clear()
        for outstanding in failed:
            self._fail(outstanding, reason)

    def _fail(self, outstanding: _Outstanding, reason: str) -> None:
        try:
            outstanding.on_failed(reason)
        except Exception:
            name = type(outstanding.message).__name__
            logger.exception("handling the failure of a %s to %s failed", name, self.address)

    # -- time ------------------------------------------------------------------------------------------------

    def _watch(self, deadline_s: float) -> None:
        timer = self._deadline_timer
        if timer is not None:
            if timer.when() <= deadline_s:
                return
            timer.cancel()
        self._deadline_timer = self._loop.call_at(deadline_s, self._on_deadline)

    def _on_deadline(self) -> None:
        """Answered requests left the timer as it was, so there may be nothing to do but to set it again."""
        self._deadline_timer = None
        now_s = self._loop.time()
        late = [each for each in (*self._sent, *self._unsent) if each.deadline_s <= now_s]
        if late and self._link is not None:
            what = "connection" if self._versions is None else "answer"
            self._lose_link(f"no {what} in time")
        elif late:
            self._unsent = deque(each for each in self._unsent if each.deadline_s > now_s)
            for each in late:
                self._fail(each, "no connection in time")
        deadlines_s = [each.deadline_s for each in (*self._sent, *self._unsent)]
        if deadlines_s:
            self._watch(min(deadlines_s))

    # -- closing ---------------------------------------------------------------------------------------------

    def reconnect(self, reason: str) -> None:
        """Give up the link, because the peer is known to have lost it. What is outstanding fails."""
        self._lose_link(reason)

    def close(self) -> None:
        """Fails what is outstanding, and every later request."""
        if self._is_closed:
            return
        self._is_closed = True
        for timer in (self._connect_timer, self._deadline_timer):
            if timer is not None:
                timer.cancel()
        self._connect_timer = self._deadline_timer = None
        if self._link is not None:
            self._link.close()
            self._link = None
        self._stop_logging_in()
        self._versions = None
        self._fail_all(_CLOSED)


class Channels:
    """The channels of a node, one for each peer and purpose: what waits long does not hold up the rest."""

    def __init__(
        self,
        network: Network,
        loop: asyncio.AbstractEventLoop,
        *,
        client_id: str,
        frame_bytes_max: int,
        security: LinkSecurity | None = None,
    ) -> None:
        self._network = network
        self._security = security
        self._loop = loop
        self._client_id = client_id
        self._frame_bytes_max = frame_bytes_max
        self._channels: dict[tuple[Address, str], Channel] = {}
        self._is_closed = False

    def to(self, address: Address, purpose: str = "") -> Channel:
        channel = self._channels.get((address, purpose))
        if channel is None:
            channel = self._channels[address, purpose] = Channel(
                self._network,
                self._loop,
                address,
                client_id=self._client_id,
                frame_bytes_max=self._frame_bytes_max,
                security=self._security,
            )
            if self._is_closed:
                channel.close()
        return channel

    def close(self) -> None:
        self._is_closed = True
        for channel in list(self._channels.values()):
            channel.close()


def _agreed_version(message: Request, peer: VersionRange | None, version_max: int | None) -> int:
    own = message.versions
    if version_max is not None:
        highest = min(own.max, version_max)
    else:
        highest = own.max - 1 if message.latest_version_unstable else own.max
    if peer is None:
        return highest
    version = min(highest, peer.max)
    if version < max(own.min, peer.min):
        raise ProtocolError(
            f"no common version of {type(message).__name__}: "
            f"{own.min} to {highest} here, {peer.min} to {peer.max} there"
        )
    return version


def _ignore(_reason: str) -> None:
    """The callbacks of the waiting requests report the handshake's failure."""
