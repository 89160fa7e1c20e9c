"""SASL for a client: how the tokens of `tidemill.security.sasl` reach a broker and come back.

PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER. Nothing here logs, and no error holds a password. `Connection` logs in
again before a session ends (KIP-368).
"""

from __future__ import annotations

import secrets
from typing import Protocol, TypeVar

from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.protocol.api.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tidemill.protocol.schema import Request, Response
from tidemill.security.conversations import SaslFailure
from tidemill.security.sasl import MECHANISMS, ClientLogin, SaslClient

ResponseT = TypeVar("ResponseT", bound=Response)

__all__ = ["MECHANISMS", "AuthenticationFailed", "CredentialsRefused", "authenticate"]
_NO_SASL = "the broker knows no SASL at this listener (set security.protocol to PLAINTEXT or SSL)"


class AuthenticationFailed(TidemillError):
    """The broker refuses this client, or could not prove its own identity. Another try would not help."""


class CredentialsRefused(AuthenticationFailed):
    """The broker knows the mechanism, and refuses this user, password or token."""


class Exchange(Protocol):
    """Sends a request to the broker and returns its response: `Connection.request`."""

    def __call__(self, message: Request, response_type: type[ResponseT]) -> ResponseT: ...


def authenticate(exchange: Exchange, login: ClientLogin) -> float | None:
    """Returns when both sides are satisfied, and raises `AuthenticationFailed` otherwise.

    The result is how many seconds the session lasts; None when it has no end.
    """
    mechanism, who = (
        login.mechanism,
        f"user {login.username}" if login.username else "the bearer of the token",
    )
    try:
        handshake = exchange(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
    except ApiError:
        raise AuthenticationFailed(_NO_SASL) from None
    if handshake.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(handshake.mechanisms) or "none"
        raise AuthenticationFailed(
            f"the SASL mechanism {mechanism} is not enabled; enabled are: {offered} (set sasl.mechanism)"
        )
    if handshake.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationFailed(_NO_SASL)
    if handshake.error_code:
        raise AuthenticationFailed(f"the SASL handshake failed with error {handshake.error_code}")
    try:
        client = SaslClient(login, nonce=secrets.token_urlsafe(24))
        token: bytes | None = client.initial_token()
        lifetime_ms = 0
        while token is not None:
            response = exchange(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
            if response.error_code:
                reason = response.error_message or f"error {response.error_code}"
                raise CredentialsRefused(f"{who} is refused ({mechanism}): {reason}")
            lifetime_ms = response.session_lifetime_ms
            token = client.evaluate(response.auth_bytes)
    except SaslFailure as failure:
        raise AuthenticationFailed(f"{mechanism} as {who}: {failure}") from None
    return lifetime_ms / 1000 if lifetime_ms > 0 else None
