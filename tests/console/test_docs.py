"""docs/console.md: its snippets run, and what it says of keys and files is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.snippets import ROOT, Page, Reader, free_ports

PAGE = ROOT / "docs/console.md"
CONSOLE = ROOT / "src/tidemill/gateway/console"


@pytest.fixture
def replaced() -> Iterator[dict[str, str]]:
    """Free ports for those that the page names."""
    with free_ports(8080, 8081, 9092) as replaced:
        yield replaced


def test_every_snippet_of_the_page_runs(tmp_path: Path, replaced: dict[str, str]) -> None:
    with Reader(tmp_path, replaced) as reader:
        reader.run_page(Page(PAGE))


def test_pictures_of_the_page_are_there() -> None:
    pictures = re.findall(r"images/[\w-]+\.png", PAGE.read_text())
    assert len(pictures) == 6
    assert [name for name in pictures if not (ROOT / "docs" / name).is_file()] == []


def test_the_console_loads_only_its_own_files_and_writes_no_markup() -> None:
    files = [path for path in CONSOLE.rglob("*") if path.suffix in (".js", ".html", ".css")]
    assert len(files) > 10
    for path in files:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "").replace("http://HOST:PORT", "")
        assert not re.search(r"https?://|\beval\(|insertAdjacentHTML|document\.write", text), path
        # A comment says that there is none.
        assert not re.search(r"\.(inner|outer)HTML", text), path


def test_the_page_names_every_module() -> None:
    """So that a browser asks for all of them at once, instead of one after the other."""
    named = re.findall(r'(?:src|href)="([\w/]+\.js)"', (CONSOLE / "index.html").read_text())
    assert sorted(named) == sorted(str(path.relative_to(CONSOLE)) for path in CONSOLE.rglob("*.js"))


def test_modules_stay_small() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in CONSOLE.rglob("*.js")}
    assert {name: length for name, length in lengths.items() if length > 500} == {}
