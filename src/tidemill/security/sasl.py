"""The authentication of one connection: Kafka's SaslServerAuthenticator, and its counterpart for a client.

    HANDSHAKE ──handshake──> AUTHENTICATE ──authenticate…──> AUTHENTICATED ──handshake──> AUTHENTICATE (again)
        └──────────── any failure ──────────┴──> FAILED <─────────────────────────────────────┘

The machine takes mechanism names and tokens and returns replies; the caller has the frames and their versions:

- Before AUTHENTICATED, `may_serve(api_key)` says which requests are served. Everything else closes the connection.
- After a handshake of version 0, tokens come and go as frames without Kafka's headers: `expects_raw_tokens` is true,
  and `authenticate_raw` takes them. After version 1 they come in SaslAuthenticate, and `authenticate` takes them.
- When the state is FAILED, the last reply is sent and the connection is closed. No token is taken any more.
- When it is AUTHENTICATED, `principal` is known. From `session_expires_ms` on (steady time), a request that does not
  begin another handshake closes the connection: `is_expired`.
- A handshake on an authenticated connection begins a re-authentication (KIP-368). Until that is done the connection
  sends SaslAuthenticate alone; mechanism and principal must stay what they were. It is allowed once a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidemill.errors import ErrorCode
from tidemill.security import oauthbearer, plain, scram
from tidemill.security.conversations import ClientConversation, Identity, SaslFailure, ServerConversation
from tidemill.security.principals import Principal

HANDSHAKE_KEY, API_VERSIONS_KEY, AUTHENTICATE_KEY = 17, 18, 36
MECHANISMS = (plain.MECHANISM, *scram.MECHANISMS, oauthbearer.MECHANISM)
REAUTHENTICATION_INTERVAL_MS_MIN = 1_000
# The version of SaslHandshake after which tokens are frames without headers.
_RAW_TOKENS = 0

# Begins a mechanism's conversation with a nonce that is used for nothing else.
StartConversation = Callable[[str], ServerConversation]


@dataclass(frozen=True, slots=True)
class SaslServerSettings:
    """One listener's mechanisms, in the order in which clients see them.

    `max_reauth_ms` is `connections.max.reauth.ms` by mechanism; 0 or no entry sets no limit.
    """

    mechanisms: Mapping[str, StartConversation]
    max_reauth_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HandshakeReply:
    error_code: ErrorCode
    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AuthenticateReply:
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    token: bytes = b""
    session_lifetime_ms: int = 0


class SaslState(Enum):
    HANDSHAKE = "handshake"
    AUTHENTICATE = "authenticate"
    AUTHENTICATED = "authenticated"
    FAILED = "failed"


_SERVED = {
    SaslState.HANDSHAKE: frozenset({HANDSHAKE_KEY, API_VERSIONS_KEY}),
    SaslState.AUTHENTICATE: frozenset({AUTHENTICATE_KEY}),
    SaslState.FAILED: frozenset[int](),
}


class SaslServer:
    def __init__(self, settings: SaslServerSettings) -> None:
        self._settings = settings
        self._mechanism = ""
        self._conversation: ServerConversation | None = None
        self._previous_mechanism: str | None = None
        self._began_ms: int | None = None
        self.state = SaslState.HANDSHAKE
        self.expects_raw_tokens = False
        # Kept through a re-authentication, which may not change it.
        self.principal: Principal | None = None
        # In steady time; None while the session has no end.
        self.session_expires_ms: int | None = None
        # Why the state is FAILED, for the log. It may hold what the peer sent, so it is escaped there.
        self.failure: str | None = None

    @property
    def mechanism(self) -> str:
        """The mechanism of the last handshake; empty before the first."""
        return self._mechanism

    def may_serve(self, api_key: int) -> bool:
        served = _SERVED.get(self.state)
        return served is None or api_key in served

    def is_expired(self, steady_ms: int) -> bool:
        return (
            self.state is SaslState.AUTHENTICATED
            and self.session_expires_ms is not None
            and steady_ms > self.session_expires_ms
        )

    def handshake(self, mechanism: str, version: int, *, nonce: str, steady_ms: int) -> HandshakeReply:
        enabled = tuple(self._settings.mechanisms)
        if self.state is SaslState.AUTHENTICATED:
            since_ms = steady_ms - (self._began_ms or 0)
            if version == _RAW_TOKENS or since_ms < REAUTHENTICATION_INTERVAL_MS_MIN:
                return HandshakeReply(ErrorCode.ILLEGAL_SASL_STATE, ())
            self._previous_mechanism = self._mechanism
        elif self.state is not SaslState.HANDSHAKE:
            self._fail("a SASL handshake came during authentication")
            return HandshakeReply(ErrorCode.ILLEGAL_SASL_STATE, ())
        start = self._settings.mechanisms.get(mechanism)
        if start is None:
            self._fail(f"the SASL mechanism {mechanism[:40]!r} is not enabled")
            return HandshakeReply(ErrorCode.UNSUPPORTED_SASL_MECHANISM, enabled)
        self._began_ms = steady_ms
        self._mechanism = mechanism
        self._conversation = start(nonce)
        self.expects_raw_tokens = version == _RAW_TOKENS
        self.state = SaslState.AUTHENTICATE
        return HandshakeReply(ErrorCode.NONE, enabled)

    def authenticate(self, token: bytes, *, wall_ms: int, steady_ms: int) -> AuthenticateReply:
        if self.state is not SaslState.AUTHENTICATE or self.expects_raw_tokens:
            if self.state is SaslState.AUTHENTICATED:
                message = "SaslAuthenticate request received after successful authentication"
            else:
                message = "SaslAuthenticate request received without a SaslHandshake before it"
                self._fail(message)
            return AuthenticateReply(ErrorCode.ILLEGAL_SASL_STATE, message)
        try:
            reply, lifetime_ms = self._advance(token, wall_ms, steady_ms)
        except SaslFailure as failure:
            return AuthenticateReply(ErrorCode.SASL_AUTHENTICATION_FAILED, self._refusal(failure))
        return AuthenticateReply(token=reply, session_lifetime_ms=lifetime_ms)

    def authenticate_raw(self, token: bytes, *, wall_ms: int, steady_ms: int) -> bytes | None:
        """The frame to send; None after a failure, which version 0 reports by closing the connection."""
        assert self.expects_raw_tokens
        assert self.state is SaslState.AUTHENTICATE
        try:
            reply, _ = self._advance(token, wall_ms, steady_ms)
        except SaslFailure as failure:
            self._refusal(failure)
            return None
        return reply

    def _advance(self, token: bytes, wall_ms: int, steady_ms: int) -> tuple[bytes, int]:
        assert self._conversation is not None
        if self._previous_mechanism not in (None, self._mechanism):
            message = (
                f"SaslMechanism '{self._previous_mechanism}' cannot be changed to '{self._mechanism}' "
                "during re-authentication"
            )
            raise SaslFailure(message, public=message)
        reply = self._conversation.respond(token, wall_ms)
        identity = self._conversation.identity
        if identity is None:
            return reply, 0
        return reply, self._complete(identity, wall_ms, steady_ms)

    def _complete(self, identity: Identity, wall_ms: int, steady_ms: int) -> int:
        principal = Principal.user(identity.name)
        if self.principal not in (None, principal):
            message = (
                f"Cannot change principals during re-authentication from {self.principal} to {principal}"
            )
            raise SaslFailure(message, public=message)
        limits = []
        if (max_reauth_ms := self._settings.max_reauth_ms.get(self._mechanism, 0)) > 0:
            limits.append(max_reauth_ms)
        if identity.expires_wall_ms is not None:
            limits.append(max(identity.expires_wall_ms - wall_ms, 0))
        lifetime_ms = min(limits, default=0)
        self.session_expires_ms = steady_ms + lifetime_ms if limits else None
        self.principal = principal
        self.expects_raw_tokens = False
        self._conversation = None
        self.state = SaslState.AUTHENTICATED
        return lifetime_ms

    def _refusal(self, failure: SaslFailure) -> str:
        self._fail(str(failure))
        return failure.public or (
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            f"{self._mechanism}"
        )

    def _fail(self, reason: str) -> None:
        self.state = SaslState.FAILED
        self.failure = reason
        self.principal = None
        self.expects_raw_tokens = False
        self._conversation = None


@dataclass(frozen=True, slots=True)
class ClientLogin:
    """The credentials of a client: a name and password, or for OAUTHBEARER a token."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


class SaslClient:
    """One attempt of a client: send `initial_token`, then what `evaluate` returns, until `is_complete`.

    `SaslFailure` when the server's words are wrong. A refusal that the server sends as an error code is outside.
    """

    def __init__(self, login: ClientLogin, *, nonce: str) -> None:
        self.mechanism = login.mechanism
        self.is_complete = False
        self._conversation = _start_client(login, nonce)

    def initial_token(self) -> bytes:
        return self._conversation.first()

    def evaluate(self, challenge: bytes) -> bytes | None:
        """The next token; None when the conversation is complete. SCRAM's takes milliseconds of processor time."""
        answer = self._conversation.answer(challenge)
        self.is_complete = answer is None
        return answer


def _start_client(login: ClientLogin, nonce: str) -> ClientConversation:
    if login.mechanism == plain.MECHANISM:
        return plain.PlainClient(login.username, login.password)
    if login.mechanism == oauthbearer.MECHANISM:
        return oauthbearer.OAuthBearerClient(login.token)
    if login.mechanism in scram.MECHANISMS:
        return scram.ScramClient(
            scram.MECHANISMS[login.mechanism], login.username, login.password, nonce=nonce
        )
    raise SaslFailure(f"the SASL mechanism {login.mechanism!r} is not known")
