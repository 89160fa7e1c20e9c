"""Fails on functions, methods, properties and classes of `src` that nothing in `src`, `scripts` or `bench` uses.

Vulture finds them. Tests do not count as users: what only a test calls is dead. `dead_code_allowed.txt` lists the names
that are called from outside: by Python, Spark, Starlette, pytest, users of the SDK and of `tidemill.testing`. An entry
that is no longer needed fails, too.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).parent.parent
ALLOWED = Path(__file__).parent / "dead_code_allowed.txt"
# Attributes and variables are fields of messages and dataclasses more often than not.
KINDS = {"function", "method", "property", "class", "import", "unreachable_code"}
# What these decorate is called through a table.
DECORATORS = ["@serves", "@serves_raw", "@part.*"]
# One class for each message of the protocol, whether it is served or not.
SCHEMAS = ROOT / "src/tidemill/protocol/api"


def main() -> int:
    vulture = Vulture(ignore_decorators=DECORATORS)
    vulture.scavenge([str(ROOT / folder) for folder in ("src", "scripts", "bench")])
    found = {
        item.name: item
        for item in vulture.get_unused_code()
        if item.typ in KINDS and Path(item.filename).is_relative_to(ROOT / "src")
        if not Path(item.filename).is_relative_to(SCHEMAS)
    }
    lines = (line.partition("#")[0].strip() for line in ALLOWED.read_text().splitlines())
    allowed = {line for line in lines if line}
    for name in sorted(found.keys() - allowed):
        item = found[name]
        path = Path(item.filename).relative_to(ROOT)
        print(f"{path}:{item.first_lineno}: {item.typ} '{name}' has no user", file=sys.stderr)
    for name in sorted(allowed - found.keys()):
        print(f"{ALLOWED.name}: '{name}' has a user, or is gone", file=sys.stderr)
    return int(found.keys() != allowed)


if __name__ == "__main__":
    sys.exit(main())
