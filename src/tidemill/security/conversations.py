"""The shape of a SASL mechanism: a conversation of tokens, on the server's side and on the client's.

A conversation is one attempt to log in. It knows nothing of frames, versions and sessions; `sasl.py` runs it for a
connection. Every failure is a `SaslFailure`, and the conversation is over then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tidemill.errors import TidemillError


class SaslFailure(TidemillError):
    """The attempt failed. `public` is what the other side may learn; None stands for "invalid credentials".

    The exception's own text is for the log. Neither holds a secret.
    """

    def __init__(self, detail: str, *, public: str | None = None) -> None:
        super().__init__(detail)
        self.public = public


@dataclass(frozen=True, slots=True)
class Identity:
    """The name that was proven, and the wall time at which the proof expires, where it does."""

    name: str
    expires_wall_ms: int | None = None


class ServerConversation(Protocol):
    @property
    def identity(self) -> Identity | None:
        """None until the client is authenticated."""

    def respond(self, token: bytes, wall_ms: int) -> bytes:
        """Returns the next challenge, or the last word when `identity` is known. Raises `SaslFailure`."""


class ClientConversation(Protocol):
    def first(self) -> bytes:
        """The token that opens the conversation."""

    def answer(self, challenge: bytes) -> bytes | None:
        """Returns the next token; None when the server's last word was right. Raises `SaslFailure`."""
