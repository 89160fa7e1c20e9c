"""The site builds without a warning, stands alone, and its generated pages are what the code says."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Scripts with `TARGET` and `render()`, as `make docs` runs them.
GENERATORS = sorted(
    path.stem for path in (ROOT / "scripts").glob("*.py") if "\ndef render(" in path.read_text()
)


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_references_are_generated() -> None:
    assert {"compatibility", "configuration_reference", "metrics_reference"} <= set(GENERATORS)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    script = _script(name)
    assert script.TARGET.read_text(encoding="utf-8") == script.render(), "stale: run `make docs`"


@pytest.mark.parametrize("name", GENERATORS)
def test_make_docs_writes_it(name: str) -> None:
    assert f"scripts/{name}.py" in (ROOT / "Makefile").read_text()


def test_the_site_builds_without_a_warning_and_stands_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        # Not quietly: then a warning would not count.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|link|img)[^>]*?\s(?:src|href)=\"?(https?://[^\s\">]+)", text)
        assert not loaded, f"{page.name} loads {loaded}"
        assert "<!-- not run" not in text
