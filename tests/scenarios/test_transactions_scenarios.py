"""Every transcript under transactions/ happens exactly as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.transactions_script import Script
from tests.scenarios.transcripts import run

TRANSCRIPTS = sorted((Path(__file__).parent / "transactions").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    written = path.read_text()
    script = Script()
    happened = run(written, script.execute)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(happened)
        return
    assert happened == written
    rebuilt = script.world.rebuilt()
    assert rebuilt.replicated_state() == script.world.machine.replicated_state()


def test_there_are_transcripts() -> None:
    assert TRANSCRIPTS
