"""`pytest tests/scenarios --rewrite` puts what happens now into the transcripts; review the diff as prose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenarios.transcripts import Command, run

Compare = Callable[[Path, Callable[[Command], list[str]]], str]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="rewrite the golden output of scenario transcripts"
    )


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Compare:
    """Executes a transcript and compares it with what is written; `--rewrite` writes it anew. Returns the executed one."""

    def compare(path: Path, execute: Callable[[Command], list[str]]) -> str:
        written = path.read_text()
        happened = run(written, execute)
        if request.config.getoption("--rewrite", default=False):
            path.write_text(happened)
        else:
            assert happened == written
        return happened

    return compare
