"""Every transcript under consumer_groups/ happens exactly as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.consumer_script import ConsumerScript
from tests.scenarios.transcripts import run

TRANSCRIPTS = sorted((Path(__file__).parent / "consumer_groups").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    written = path.read_text()
    script = ConsumerScript()
    happened = run(written, script.execute)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(happened)
        return
    assert happened == written
    assert script.world.rebuilt().replicated_state() == script.world.groups.replicated_state()


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 8
