"""How a command says that it did not do what it was asked."""

from __future__ import annotations

from tidemill.errors import TidemillError


class CommandError(TidemillError):
    """One line for the user: what happened, and what to do about it. Exit code 1."""


class UsageError(TidemillError):
    """Arguments that do not make sense together. Exit code 2."""
