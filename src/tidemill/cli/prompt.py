"""Confirmation before a destructive operation.

A user at a terminal must confirm. A script is not prompted: a prompt without input would block it.
"""

from __future__ import annotations

import sys

from tidemill.cli.failures import CommandError


def confirm(what: str, is_confirmed: bool) -> None:
    """Return when the operation is confirmed. `is_confirmed` is the command's --yes."""
    if is_confirmed or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    print(f"{what} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed")
