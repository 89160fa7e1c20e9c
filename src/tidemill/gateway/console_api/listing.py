"""Query parameters, and lists as pages: `offset`, `limit`, `query`, `sort`, answered with the total and the items.

Whatever is not understood is refused with 400 and a sentence that says what would be; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from starlette.requests import Request

from tidemill.gateway.console_api.picture import Row
from tidemill.gateway.problems import Problem

LIMIT_DEFAULT = 100
LIMIT_MAX = 1000
INT64_MAX = 2**63 - 1
_QUERY_CHARACTERS_MAX = 1000


def refused(message: str) -> Problem:
    return Problem(400, 40002, message)


def text(request: Request, name: str) -> str | None:
    """The parameter, or None when it is missing or empty."""
    return parameter(request, name) or None


def parameter(request: Request, name: str) -> str | None:
    value = request.query_params.get(name)
    if value is not None and len(value) > _QUERY_CHARACTERS_MAX and name != "from":
        raise refused(f"{name} may have {_QUERY_CHARACTERS_MAX} characters, not {len(value)}")
    return value


def whole_number(name: str, given: str, lowest: int = 0, highest: int = INT64_MAX) -> int:
    """Digits only: int() would take 1_000, +1 and digits of other scripts."""
    if given.isascii() and given.isdigit() and len(given) <= 19 and lowest <= int(given) <= highest:
        return int(given)
    raise refused(f"{name} is a number from {lowest} to {highest}, not {given[:50]!r}")


def number(request: Request, name: str, default: int, lowest: int = 0, highest: int = INT64_MAX) -> int:
    given = parameter(request, name)
    return default if given is None else whole_number(name, given, lowest, highest)


def optional_number(request: Request, name: str, highest: int = INT64_MAX) -> int | None:
    given = parameter(request, name)
    return None if given is None else whole_number(name, given, 0, highest)


def flag(request: Request, name: str) -> bool:
    given = parameter(request, name)
    if given in (None, "false"):
        return False
    if given == "true":
        return True
    raise refused(f"{name} is true or false, not {given!r}")


def choice(request: Request, name: str, allowed: Sequence[str]) -> str | None:
    given = parameter(request, name)
    if given is not None and given not in allowed:
        raise refused(f"{name} is one of {', '.join(allowed)}, not {given[:50]!r}")
    return given


def page(
    request: Request, rows: Iterable[Row], fields: Sequence[str], *, searched: Callable[[Row], str]
) -> dict[str, Any]:
    """The requested page. `fields` can be sorted by; `searched` gives the text that `query` is matched with."""
    offset = number(request, "offset", 0)
    limit = number(request, "limit", LIMIT_DEFAULT, 1, LIMIT_MAX)
    query = (text(request, "query") or "").lower()
    listed = [row for row in rows if query in searched(row).lower()] if query else list(rows)
    sort = parameter(request, "sort")
    if sort is not None:
        name = sort.removeprefix("-")
        if name not in fields:
            raise refused(
                f"sort is one of {', '.join(fields)}, with - before it for descending, not {sort[:50]!r}"
            )
        known = [row for row in listed if row[name] is not None]
        known.sort(key=lambda row: row[name], reverse=sort.startswith("-"))
        # What is not known comes last, either way.
        listed = known + [row for row in listed if row[name] is None]
    return {"total": len(listed), "items": listed[offset : offset + limit]}
