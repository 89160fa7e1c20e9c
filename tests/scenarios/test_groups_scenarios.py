"""Every transcript under groups/ happens exactly as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.conftest import Compare
from tests.scenarios.groups_script import Script

TRANSCRIPTS = sorted((Path(__file__).parent / "groups").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, compare: Compare) -> None:
    script = Script()
    compare(path, script.execute)
    assert script.world.rebuilt().replicated_state() == script.world.groups.replicated_state()


def test_there_are_transcripts() -> None:
    assert TRANSCRIPTS
