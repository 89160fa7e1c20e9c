"""How many examples hypothesis tries: all with `make long`, a third with `make test`.

Examples are random, so each run of `make test` tries others.
"""

from __future__ import annotations

import os

_ALL = bool(os.environ.get("TIDEMILL_ALL_EXAMPLES"))


def examples(count: int) -> int:
    return count if _ALL else count // 3
