"""One connection to one broker: a request goes out, its response comes back.

`request` is one exchange. `post` sends without waiting, and `take` returns the response later. Responses come in the order
of the requests, so a caller that posts owns the connection until everything is taken.

The first exchange is ApiVersions; from then on every request uses the highest version that both sides know.
Every wait is bounded. There are two failures, because a caller may always try again after the first one only:

    BrokerUnreachable    no connection was made, so nothing was sent
    ConnectionLost       the request may have been carried out, but its response did not arrive

With `security` the connection is encrypted and authenticated before any other request. `AuthenticationFailed` means that
one side does not trust the other; another attempt would fail, too. Where a broker limits sessions
(`connections.max.reauth.ms`, or the life of a token) the connection logs in again in time, before the next request
(KIP-368). Responses under way are received first and kept for `take`.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from tidemill import __version__
from tidemill.client.connections.sasl import AuthenticationFailed
from tidemill.client.connections.security import SecurityOptions
from tidemill.errors import ApiError, ErrorCode, ProtocolError, TidemillError
from tidemill.protocol import frames, wire
from tidemill.protocol.api.cluster import ApiVersionsRequest, ApiVersionsResponse
from tidemill.protocol.schema import Request, Response, VersionRange, decode

ResponseT = TypeVar("ResponseT", bound=Response)

RESPONSE_BYTES_MAX = 1 << 30
# Understood by every broker since Kafka 2.4; older ones answer with UNSUPPORTED_VERSION and get version 0.
_API_VERSIONS_VERSION = 3
# The kernel takes 1,024 pieces at once.
_PARTS_AT_ONCE = 512
_CORRELATION_BYTES = 4
# Part of a session after which it is renewed, as Kafka's clients do.
_RENEW_SHARE = 0.85


class BrokerUnreachable(TidemillError):
    """No connection could be made."""


class ConnectionLost(TidemillError):
    """The connection failed between a request and its response."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Connection:
    def __init__(
        self,
        address: Address,
        *,
        client_id: str = "tidemill",
        timeout_s: float = 30.0,
        security: SecurityOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self.is_closed = False
        self._is_ready = False
        # What may be missing when the broker closes the connection. Empty once the broker has answered a request.
        self._hint = ""
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._correlation_id = 0
        # Requests that were posted and whose answers were not taken.
        self._unanswered = 0
        # Their answers, as far as a new login had to receive them.
        self._early: deque[memoryview] = deque()
        self._security = security or SecurityOptions()
        self._clock = clock
        # When to log in again; None where a session has no end.
        self._renew_s: float | None = None
        self._versions: dict[int, VersionRange] = {}
        try:
            self._socket = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise BrokerUnreachable(f"{address}: {_reason(error, timeout_s)}") from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._secure(self._security)
        except ConnectionLost as error:
            raise BrokerUnreachable(str(error)) from None
        except ProtocolError as error:
            raise BrokerUnreachable(f"{address} does not speak the Kafka protocol: {error}") from None
        except AuthenticationFailed as error:
            raise type(error)(f"{address}: {error}") from None
        finally:
            if not self._is_ready:
                self.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.is_closed = True
        self._socket.close()

    def is_usable(self) -> bool:
        """Whether the next request can be sent here: neither side has closed the connection.

        A broker closes an idle one after `connections.max.idle.ms`. Nothing else arrives that was not asked for.
        """
        if self.is_closed:
            return False
        if self._unanswered:
            # With requests under way something may arrive at any time.
            return True
        arrived = select.poll()
        arrived.register(self._socket, select.POLLIN)
        return not arrived.poll(0)

    @property
    def certificate_expires_s(self) -> float | None:
        """The end of the broker's certificate, in seconds since 1970; None without TLS."""
        if not isinstance(self._socket, ssl.SSLSocket):
            return None
        end = (self._socket.getpeercert() or {}).get("notAfter")
        return ssl.cert_time_to_seconds(end) if isinstance(end, str) else None

    def version_of(self, message: type[Request], max_version: int | None = None) -> int:
        """The highest version that we, the broker and the caller's bound allow."""
        offered = self._versions.get(message.api_key)
        ours = message.versions
        if offered is not None:
            version = min(offered.max, ours.max, ours.max if max_version is None else max_version)
            if version >= max(offered.min, ours.min):
                return version
        name = message.__name__.removesuffix("Request")
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION, f"{self.address} does not offer {name} in a known version"
        )

    def request(
        self,
        message: Request,
        response_type: type[ResponseT],
        *,
        max_version: int | None = None,
        wait_s: float = 0.0,
    ) -> ResponseT:
        """The answer. `wait_s` is how long the broker was asked to take, on top of the usual timeout."""
        version = self.version_of(type(message), max_version)
        frame = self._exchange(message, version, wait_s)
        try:
            return frames.parse_response(response_type, version, frame)[1]
        except ProtocolError:
            self.close()
            raise

    def send(self, message: Request) -> None:
        """For the one request that has no answer: Produce with acks=0."""
        self.post(message, self.version_of(type(message)))
        self._unanswered -= 1

    def post(self, message: Request, version: int) -> int:
        """Sends a request whose answer is taken later, by the correlation id that is returned."""
        self._renew_session()
        correlation_id = self._next_correlation_id()
        self._send([frames.request_frame(message, version, correlation_id, self._client_id)])
        self._unanswered += 1
        return correlation_id

    def post_body(self, api: type[Request], version: int, body: Sequence[wire.Buffer]) -> int:
        """As `post`, for a request whose body is already encoded, in pieces, which are not copied."""
        self._renew_session()
        correlation_id = self._next_correlation_id()
        self._send(frames.request_frame_parts(api, version, correlation_id, self._client_id, body))
        self._unanswered += 1
        return correlation_id

    def take(
        self, correlation_id: int, *, wait_s: float = 0.0, allocate: Callable[[int], bytearray] = bytearray
    ) -> memoryview:
        """The frame of the answer to the oldest request that was posted, in a buffer of at least that size.

        After any failure, also Ctrl-C, the stream is at an unknown place: it is closed.
        """
        try:
            frame = self._next_frame(wait_s, allocate)
            answered_id = wire.read_int32(frame, 0)[0]
            if answered_id != correlation_id:
                raise ProtocolError(f"{self.address} answered request {answered_id}, not {correlation_id}")
        except OSError as error:
            self.close()
            hint = "" if isinstance(error, TimeoutError) else self._hint
            raise ConnectionLost(
                f"{self.address}: {_reason(error, self._timeout_s + wait_s)}{hint}"
            ) from None
        except BaseException:
            self.close()
            raise
        self._hint = ""
        self._unanswered -= 1
        return frame

    def _next_frame(self, wait_s: float, allocate: Callable[[int], bytearray]) -> memoryview:
        if self._early:
            early = self._early.popleft()
            frame = memoryview(allocate(len(early)))[: len(early)]
            frame[:] = early
            return frame
        self._socket.settimeout(self._timeout_s + wait_s)
        prefix = self._receive(memoryview(bytearray(frames.LENGTH_BYTES)))
        length = frames.parse_frame_length(prefix, 0, RESPONSE_BYTES_MAX)
        return self._receive(memoryview(allocate(length))[:length])

    def _renew_session(self) -> None:
        """Log in again when the session is about to end."""
        if self._renew_s is None or self._clock() < self._renew_s:
            return
        # Not again for each request of the login itself.
        self._renew_s = None
        try:
            received = [self._next_frame(0.0, bytearray) for _ in range(self._unanswered)]
            waiting, self._unanswered = self._unanswered, 0
            self._log_in()
        except OSError as error:
            self.close()
            raise ConnectionLost(f"{self.address}: {_reason(error, self._timeout_s)}") from None
        except BaseException:
            self.close()
            raise
        self._unanswered = waiting
        self._early.extend(received)

    def _log_in(self) -> None:
        lifetime_s = self._security.authenticate(self.request)
        self._renew_s = None if lifetime_s is None else self._clock() + _RENEW_SHARE * lifetime_s

    def _secure(self, security: SecurityOptions) -> None:
        """TLS, then ApiVersions, which needs no login, then SASL."""
        try:
            self._socket = security.secured(self._socket, self.address.host)
        except OSError as error:
            reason = _reason(error, self._timeout_s)
            raise ConnectionLost(
                f"{self.address}: TLS failed: {reason} (is it a listener with TLS?)"
            ) from None
        self._hint = f" ({security.hint})"
        self._negotiate()
        self._log_in()
        if security.mechanism is None:
            self._hint = " (if its listener wants a login, set security.protocol and sasl.mechanism)"
        self._is_ready = True

    def _negotiate(self) -> None:
        hello = ApiVersionsRequest(client_software_name="tidemill", client_software_version=__version__)
        version = _API_VERSIONS_VERSION
        frame = self._exchange(hello, version)
        # A broker that does not know the version answers in the layout of version 0.
        if wire.read_int16(frame, _CORRELATION_BYTES)[0] == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
            frame = self._exchange(hello, version)
        response = decode(ApiVersionsResponse, version, frame, _CORRELATION_BYTES)
        if response.error_code:
            raise ProtocolError(f"ApiVersions failed with error {response.error_code}")
        self._versions = {
            api.api_key: VersionRange(api.min_version, api.max_version) for api in response.api_keys
        }

    def _exchange(self, message: Request, version: int, wait_s: float = 0.0) -> memoryview:
        return self.take(self.post(message, version), wait_s=wait_s)

    def _next_correlation_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def _send(self, parts: Sequence[wire.Buffer]) -> None:
        """After any failure the stream is at an unknown place: it is closed."""
        try:
            self._socket.settimeout(self._timeout_s)
            if len(parts) == 1 or isinstance(self._socket, ssl.SSLSocket):
                self._socket.sendall(b"".join(parts) if len(parts) > 1 else parts[0])
            else:
                self._send_gathered(deque(memoryview(part) for part in parts))
        except OSError as error:
            self.close()
            reason = _reason(error, self._timeout_s)
            raise ConnectionLost(f"{self.address}: {reason}{self._hint}") from None
        except BaseException:
            self.close()
            raise

    def _send_gathered(self, parts: deque[memoryview]) -> None:
        while parts:
            sent = self._socket.sendmsg(islice(parts, _PARTS_AT_ONCE))
            while sent:
                if sent < len(parts[0]):
                    parts[0] = parts[0][sent:]
                    break
                sent -= len(parts.popleft())
            while parts and not parts[0]:
                parts.popleft()

    def _receive(self, view: memoryview) -> memoryview:
        received, size = 0, len(view)
        while received < size:
            count = self._socket.recv_into(view[received:])
            if not count:
                raise ConnectionLost(f"{self.address} closed the connection{self._hint}")
            received += count
        return view


def _reason(error: OSError, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "the TLS connection broke off").replace("_", " ").lower()
    return str(error.strerror or error).lower()
