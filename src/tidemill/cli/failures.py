"""The errors of commands: the user sees one line and gets an exit code."""

from __future__ import annotations

from tidemill.errors import TidemillError


class CommandError(TidemillError):
    """A failed command. The text is one line: what happened, and what to do about it. Exit code 1."""


class UsageError(TidemillError):
    """Arguments that contradict each other. Exit code 2."""
