"""SASL PLAIN (RFC 4616): one token with the user's name and password, with Kafka's rules and messages."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from tidemill.security.conversations import Identity, SaslFailure

MECHANISM = "PLAIN"


class PlainUsers:
    """Passwords by user name. A look-up takes the same time whether the user exists or not."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = {user: password.encode() for user, password in passwords.items()}

    def accepts(self, user: str, password: str) -> bool:
        given = password.encode()
        expected = self._passwords.get(user)
        # Without the user, the comparison is made all the same and its outcome is dropped.
        is_equal = hmac.compare_digest(given, given if expected is None else expected)
        return is_equal and expected is not None


class PlainServer:
    def __init__(self, users: PlainUsers) -> None:
        self._users = users
        self.identity: Identity | None = None

    def respond(self, token: bytes, wall_ms: int) -> bytes:
        del wall_ms  # a password does not expire
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise SaslFailure("the PLAIN token is not UTF-8") from None
        if len(parts) != 3:
            raise SaslFailure(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        if not user:
            raise _refused("username not specified")
        if not password:
            raise _refused("password not specified")
        if not self._users.accepts(user, password):
            raise _refused("Invalid username or password")
        if authorization_id and authorization_id != user:
            raise _refused("Client requested an authorization id that is different from username")
        self.identity = Identity(user)
        return b""


class PlainClient:
    def __init__(self, user: str, password: str) -> None:
        if "\0" in user or "\0" in password:
            raise SaslFailure("PLAIN cannot carry a NUL character in a name or password")
        self._token = f"\0{user}\0{password}".encode()

    def first(self) -> bytes:
        return self._token

    def answer(self, challenge: bytes) -> None:
        """A response without an error is the server's only word."""
        if challenge:
            raise SaslFailure("the server answers PLAIN with a challenge")


def _refused(reason: str) -> SaslFailure:
    message = f"Authentication failed: {reason}"
    return SaslFailure(message, public=message)
