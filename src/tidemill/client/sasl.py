"""SASL for a client: PLAIN (RFC 4616), SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, 7677), and the exchange that carries it.

A `Conversation` is what a mechanism says: it begins, answers each challenge, and must find the end right. SCRAM proves
both sides: a server that does not know the password is refused like a client that does not. As in Kafka's own client,
user names and passwords are used as they are written, in UTF-8, and a server's demand of fewer than 4096 iterations is
refused. Nothing here logs, and no error holds a password.

A session is not renewed: where the broker limits it (`connections.max.reauth.ms`), it closes the connection at that age, and
the next request opens another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Protocol, TypeVar

from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.protocol.api.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tidemill.protocol.schema import Request, Response

ResponseT = TypeVar("ResponseT", bound=Response)

PLAIN = "PLAIN"
_SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = (PLAIN, *_SCRAM_HASHES)
_ITERATIONS_MIN = 4096
# So that a server cannot keep a client busy for long.
_ITERATIONS_MAX = 1_000_000
_NO_SASL = "the broker knows no SASL at this listener (set security.protocol to PLAINTEXT or SSL)"
# No channel binding; its base64 is what the last message repeats.
_GS2_HEADER = "n,,"


class AuthenticationFailed(TidemillError):
    """The broker refuses this client, or is not who it should be. Trying again would not help."""


class Exchange(Protocol):
    """How a request reaches the broker and comes back: `Connection.request`."""

    def __call__(self, message: Request, response_type: type[ResponseT]) -> ResponseT: ...


class Conversation(Protocol):
    """One run of a mechanism. `ValueError` says what is wrong with what the server said."""

    def first(self) -> bytes: ...

    def answer(self, challenge: bytes) -> bytes | None:
        """What to say next; None when the server has said its last word and that was right."""


def authenticate(exchange: Exchange, mechanism: str, username: str, password: str) -> None:
    """Returns when both sides are satisfied, and raises `AuthenticationFailed` otherwise."""
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
    conversation = start(mechanism, username, password)
    message: bytes | None = conversation.first()
    while message is not None:
        response = exchange(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse)
        if response.error_code:
            reason = response.error_message or f"error {response.error_code}"
            raise AuthenticationFailed(f"user {username} is refused ({mechanism}): {reason}")
        try:
            message = conversation.answer(response.auth_bytes)
        except ValueError as error:
            raise AuthenticationFailed(f"{mechanism} as user {username}: {error}") from None


def start(mechanism: str, username: str, password: str) -> Conversation:
    if mechanism == PLAIN:
        return Plain(username, password)
    return Scram(_SCRAM_HASHES[mechanism], username, password)


class Plain:
    def __init__(self, username: str, password: str) -> None:
        self._message = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> None:
        """The answer without an error is all there is."""


class Scram:
    def __init__(
        self,
        hash_name: str,
        username: str,
        password: str,
        nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        self._hash_name = hash_name
        self._password = password.encode()
        self._nonce = nonce()
        escaped = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={escaped},r={self._nonce}"
        # What the server must prove in the end; None until it has sent its salt.
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        return (_GS2_HEADER + self._first_bare).encode()

    def answer(self, challenge: bytes) -> bytes | None:
        fields = _fields(challenge)
        if "e" in fields:
            raise ValueError(f"the server says {fields['e']}")
        if self._server_signature is None:
            return self._proof(challenge.decode(), fields)
        if not hmac.compare_digest(_base64(fields, "v"), self._server_signature):
            raise ValueError("the server does not know the password: it is not the one it should be")
        return None

    def _proof(self, server_first: str, fields: dict[str, str]) -> bytes:
        nonce = fields.get("r", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ValueError("the server's nonce does not continue ours")
        iterations = fields.get("i", "")
        if not iterations.isdecimal() or not _ITERATIONS_MIN <= int(iterations) <= _ITERATIONS_MAX:
            raise ValueError(
                f"the server asks for {iterations or 'no'} iterations, allowed are {_ITERATIONS_MIN} to "
                f"{_ITERATIONS_MAX}"
            )
        salted = hashlib.pbkdf2_hmac(self._hash_name, self._password, _base64(fields, "s"), int(iterations))
        without_proof = f"c={base64.b64encode(_GS2_HEADER.encode()).decode()},r={nonce}"
        signed = f"{self._first_bare},{server_first},{without_proof}".encode()
        client_key = self._hmac(salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._hash_name, client_key).digest(), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash_name)


def _fields(message: bytes) -> dict[str, str]:
    """`a=…,b=…`; `ValueError` also when it is not UTF-8."""
    fields = {}
    for part in message.decode().split(","):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError("the server's message is not one of SCRAM")
        fields[name] = value
    return fields


def _base64(fields: dict[str, str], name: str) -> bytes:
    try:
        return base64.b64decode(fields[name], validate=True)
    except (KeyError, binascii.Error):
        raise ValueError(f"the server's message has no valid {name}=") from None
