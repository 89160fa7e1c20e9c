"""docs/cli.md says what the commands say of themselves, and what it shows can be done."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.snippets import ROOT, Page, Reader
from tidemill.testing import InProcessBroker


@pytest.fixture
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cli_reference", ROOT / "scripts" / "cli_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_commands_say(reference: ModuleType) -> None:
    assert reference.TARGET.read_text() == reference.render(), "stale: run `make docs`"


def test_the_page_does_not_depend_on_the_environment(
    reference: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = reference.render()
    monkeypatch.setenv("TIDEMILL_BOOTSTRAP", "elsewhere:9092")
    monkeypatch.setenv("COLUMNS", "40")
    assert reference.render() == written


def test_the_snippets_run(reference: ModuleType, tidemill_broker: InProcessBroker, tmp_path: Path) -> None:
    with Reader(tmp_path, {}, {"TIDEMILL_BOOTSTRAP": tidemill_broker.bootstrap}) as reader:
        reader.run_page(Page(reference.TARGET))
