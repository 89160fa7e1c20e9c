"""`pytest tests/scenarios --rewrite` puts what happens now into the transcripts; review the diff as prose."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="rewrite the golden output of scenario transcripts"
    )
