"""Every transcript under raft/ happens exactly as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.conftest import Compare
from tests.scenarios.raft_script import Script

TRANSCRIPTS = sorted((Path(__file__).parent / "raft").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, compare: Compare) -> None:
    assert "was not elected" not in compare(path, Script().execute)


def test_there_are_transcripts() -> None:
    assert TRANSCRIPTS
