"""Every transcript under raft/ happens exactly as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.raft_script import Script
from tests.scenarios.transcripts import run

TRANSCRIPTS = sorted((Path(__file__).parent / "raft").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    written = path.read_text()
    happened = run(written, Script().execute)
    assert "was not elected" not in happened
    if request.config.getoption("--rewrite", default=False):
        path.write_text(happened)
        return
    assert happened == written


def test_there_are_transcripts() -> None:
    assert TRANSCRIPTS
