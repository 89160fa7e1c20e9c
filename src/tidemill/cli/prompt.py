"""Asks before something is destroyed.

A person at a terminal is asked. A script is not: it says what it wants by running the command, and a question that
nobody answers would hang it.
"""

from __future__ import annotations

import sys

from tidemill.cli.failures import CommandError


def confirm(what: str, is_confirmed: bool) -> None:
    """Returns when it may be done; `is_confirmed` is the command's --yes."""
    if is_confirmed or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    print(f"{what} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed")
