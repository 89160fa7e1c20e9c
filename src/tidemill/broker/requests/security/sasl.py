"""The gate of a listener with SASL: requests are handled once their connection has logged in.

The gate stands before dispatch. It keeps one `SaslServer` for each connection, carries handshakes and tokens to it, and
lets ApiVersions through before the login. A login that fails is answered after a pause
(`connection.failed.authentication.delay.ms`) and closes the connection; meanwhile nothing that the peer sends is handled. A
session that has expired is closed at its next request (KIP-368). What fails is one log line, and a flood of failures is few.
"""

from __future__ import annotations

import logging
import struct
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping

from tidemill.broker.clock import Clock
from tidemill.broker.net.network import Dispatch, Peer
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.security.bearer_keys import BearerKeys
from tidemill.broker.requests.security.plain_users import KnownPlainUsers
from tidemill.config import Login, SaslSettings
from tidemill.errors import ProtocolError
from tidemill.protocol import api as apis
from tidemill.protocol.api.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tidemill.protocol.frames import has_flexible_response_header, parse_request_header
from tidemill.protocol.schema import Request, Response, decode, encode
from tidemill.security.conversations import ServerConversation
from tidemill.security.oauthbearer import OAuthBearerServer
from tidemill.security.plain import PlainServer
from tidemill.security.sasl import (
    API_VERSIONS_KEY,
    AUTHENTICATE_KEY,
    HANDSHAKE_KEY,
    SaslServer,
    SaslServerSettings,
    SaslState,
    StartConversation,
)
from tidemill.security.scram import (
    ITERATIONS_MIN,
    MECHANISMS,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    credential,
    decoy_salt,
    salted_password,
)
from tidemill.tls.refusals import RefusalLog

logger = logging.getLogger(__name__)

_API_KEY = struct.Struct(">h")
_LENGTH = struct.Struct(">i")

_STEPS: dict[int, type[Request]] = {
    HANDSHAKE_KEY: SaslHandshakeRequest,
    AUTHENTICATE_KEY: SaslAuthenticateRequest,
}

FindScram = Callable[[ScramMechanism, str], ScramCredential | None]


class SaslGate:
    """For one listener; `dispatch` takes its frames."""

    def __init__(
        self,
        settings: SaslServerSettings,
        behind: Dispatch,
        loop: AbstractEventLoop,
        clock: Clock,
        new_nonce: Callable[[], str],
        failed_delay_ms: int,
    ) -> None:
        """`behind` handles the requests of connections that have logged in."""
        self._settings = settings
        self._behind = behind
        self._loop = loop
        self._clock = clock
        self._new_nonce = new_nonce
        self._failed_delay_ms = failed_delay_ms
        self._sessions: dict[Peer, SaslServer] = {}
        self._refusals = RefusalLog(logger)

    def dispatch(self, connection: Peer, frame: memoryview) -> None:
        session = self._sessions.get(connection)
        if session is None:
            session = self._sessions[connection] = SaslServer(self._settings)
            connection.close_callbacks.append(lambda: self._forget(connection))
        if session.state is SaslState.FAILED:
            # The connection is closed when the delay is over, and not before.
            return
        if session.expects_raw_tokens:
            self._take_raw_token(connection, session, bytes(frame))
            return
        if len(frame) < _API_KEY.size:
            raise ProtocolError(f"a request of {len(frame)} bytes has no header")
        (api_key,) = _API_KEY.unpack_from(frame)
        if api_key in (HANDSHAKE_KEY, AUTHENTICATE_KEY):
            self._take_step(connection, session, frame)
        elif session.state is SaslState.AUTHENTICATED:
            if session.session_expires_ms is not None and session.is_expired(self._clock.steady_ms()):
                connection.close("its session has expired, and it did not log in again (KIP-368)")
            else:
                self._behind(connection, frame)
        elif api_key == API_VERSIONS_KEY and session.may_serve(api_key):
            self._behind(connection, frame)
        else:
            name = apis.API_NAMES.get(api_key, "unknown")
            self._refuse(connection, f"it sent API key {api_key} ({name}) before it had logged in")

    def _forget(self, connection: Peer) -> None:
        self._sessions.pop(connection, None)

    # -- the exchange ----------------------------------------------------------------------------------------

    def _take_step(self, connection: Peer, session: SaslServer, frame: memoryview) -> None:
        header = parse_request_header(frame)
        request = _STEPS[header.api_key]
        if header.api_version not in request.versions:
            name = apis.API_NAMES[header.api_key]
            raise ProtocolError(f"{name} version {header.api_version} is not served")
        is_flexible = has_flexible_response_header(header.api_key, header.api_version)
        call = Call(connection, header, frame, is_flexible)
        message = decode(request, header.api_version, frame, header.body_position)
        if isinstance(message, SaslHandshakeRequest):
            response = self._handshake(session, message, header.api_version)
        else:
            assert isinstance(message, SaslAuthenticateRequest)
            response = self._authenticate(session, message)
        call.expect_reply()
        if session.state is SaslState.FAILED:
            self._fail_later(connection, session, lambda: call.respond((encode(response, call.version),)))
            return
        call.respond((encode(response, call.version),))
        self._note_login(connection, session)

    def _handshake(self, session: SaslServer, request: SaslHandshakeRequest, version: int) -> Response:
        reply = session.handshake(
            request.mechanism, version, nonce=self._new_nonce(), steady_ms=self._clock.steady_ms()
        )
        return SaslHandshakeResponse(error_code=reply.error_code, mechanisms=list(reply.mechanisms))

    def _authenticate(self, session: SaslServer, request: SaslAuthenticateRequest) -> Response:
        reply = session.authenticate(
            bytes(request.auth_bytes), wall_ms=self._clock.wall_ms(), steady_ms=self._clock.steady_ms()
        )
        return SaslAuthenticateResponse(
            error_code=reply.error_code,
            error_message=reply.error_message,
            auth_bytes=reply.token,
            session_lifetime_ms=reply.session_lifetime_ms,
        )

    def _take_raw_token(self, connection: Peer, session: SaslServer, token: bytes) -> None:
        """After a handshake of version 0: the frame is the token, and so is the answer."""
        reply = connection.expect_reply()
        answer = session.authenticate_raw(
            token, wall_ms=self._clock.wall_ms(), steady_ms=self._clock.steady_ms()
        )
        if answer is None:
            self._fail_later(connection, session, lambda: None)
            return
        reply.send((_LENGTH.pack(len(answer)), answer))
        self._note_login(connection, session)

    def _note_login(self, connection: Peer, session: SaslServer) -> None:
        if session.state is SaslState.AUTHENTICATED and session.principal is not None:
            connection.principal = session.principal
            connection.mark_as_authenticated()

    def _fail_later(self, connection: Peer, session: SaslServer, answer: Callable[[], None]) -> None:
        """Delays the answer and closes the connection, so that guessing passwords is slow."""
        delay_ms = self._failed_delay_ms
        self._loop.call_later(delay_ms / 1000, self._fail, connection, session.failure, answer)
        # Otherwise a frame that closes the connection at once would cut the delay short.
        connection.mute_for(delay_ms)

    def _fail(self, connection: Peer, failure: str | None, answer: Callable[[], None]) -> None:
        if not connection.is_closed:
            answer()
            self._refuse(connection, f"its login failed: {failure or 'no reason is known'}")

    def _refuse(self, connection: Peer, reason: str) -> None:
        # What a peer sent may be in there: it must not write lines of its own into the log.
        readable = reason.encode("unicode_escape").decode()
        self._refusals.tell(
            f"closed the connection of {connection.peer} at listener {connection.listener_name}: {readable}",
            self._loop.time(),
        )
        connection.close(None)


def server_settings(
    settings: SaslSettings,
    find_scram: FindScram,
    plain: KnownPlainUsers | None,
    keys: BearerKeys | None,
    decoy_key: bytes,
) -> SaslServerSettings:
    """The mechanisms of a listener. The credentials that this node logs in with are known without metadata."""
    mechanisms: dict[str, StartConversation] = {}
    for name in settings.mechanisms:
        if name in MECHANISMS:
            mechanisms[name] = _scram(MECHANISMS[name], settings.own_logins, find_scram, decoy_key)
        elif name == "PLAIN":
            assert plain is not None
            mechanisms[name] = lambda _nonce, plain=plain: PlainServer(plain.users)  # type: ignore[misc]
        else:
            assert keys is not None
            mechanisms[name] = lambda _nonce, keys=keys: OAuthBearerServer(keys.validate)  # type: ignore[misc]
    return SaslServerSettings(mechanisms, settings.max_reauth_ms)


def _scram(
    mechanism: ScramMechanism,
    own_logins: Mapping[str, Login],
    find_scram: FindScram,
    decoy_key: bytes,
) -> StartConversation:
    login = own_logins.get(mechanism.mechanism_name)
    own = None
    if login is not None:
        salt = decoy_salt(decoy_key, login.username)
        salted = salted_password(mechanism, login.password.value, salt, ITERATIONS_MIN)
        own = credential(mechanism, salted, salt, ITERATIONS_MIN)

    def find(user: str) -> ScramCredential | None:
        if own is not None and login is not None and user == login.username:
            return own
        return find_scram(mechanism, user)

    def start(nonce: str) -> ServerConversation:
        return ScramServer(mechanism, find, nonce=nonce, decoy_key=decoy_key)

    return start
