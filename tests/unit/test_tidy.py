"""Style as a test: what a reviewer would otherwise have to say again and again."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80
# Declarations, one after the other: tables, not logic.
TABLES = {"errors.py"}
BANNED_NAMES = {"utils", "helpers", "common", "manager", "misc"}


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT / "src"))


@pytest.mark.parametrize("path", SOURCES, ids=_id)
def test_module_is_tidy(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert path.stem not in BANNED_NAMES, "the name says nothing"
    if path.name in TABLES or path.parent.name == "api" or "_keys" in path.name:
        return
    if text.strip():
        assert ast.get_docstring(tree), "a module opens with its theory of operation"
    assert text.count("\n") <= MODULE_LINES_MAX, "split the module"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", SOURCES, ids=_id)
def test_nothing_is_left_for_later(path: Path) -> None:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for word in ("TODO", "FIXME", "XXX", "HACK"):
            assert word not in line.split(), f"line {number}"
        assert "breakpoint()" not in line, f"line {number}"


# -- what the repository points at ---------------------------------------------------------------------------

_CITATION = re.compile(r"\bfailures? (\d+)\b|failure_(\d+)")
_ROW = re.compile(r"^\| (\d+) \|.*\| ([^|]*) \|$", re.MULTILINE)


def _failures() -> tuple[dict[int, str], set[int]]:
    """The tests that the page names for each failure, and the numbers of features that are not built."""
    covered, waiting = (ROOT / "docs/failures.md").read_text().split("## Numbers without tests")
    tests = {int(number): cell for number, cell in _ROW.findall(covered)}
    return tests, {int(number) for number in re.findall(r"\b\d+\b", waiting)}


def test_every_failure_that_is_cited_is_on_the_page() -> None:
    covered, _ = _failures()
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "ARCHITECTURE.md"]
    for path in [*SOURCES, *(ROOT / "tests").rglob("*.py"), *pages]:
        if path == Path(__file__):
            continue
        for cited in _CITATION.finditer(path.read_text()):
            number = int(cited[1] or cited[2])
            assert number in covered, f"{path.relative_to(ROOT)} cites failure {number}"


def test_every_failure_on_the_page_has_the_tests_that_it_names() -> None:
    covered, waiting = _failures()
    found: dict[int, set[str]] = {number: set() for number in covered}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name in re.findall(r"def test_\w+", path.read_text()):
            for number in re.findall(r"failure_(\d+)", name):
                assert len(number) == 2, f"{name}: write failure_{int(number):02}"
                found[int(number)].add(f"`{path.relative_to(ROOT / 'tests').as_posix()}`")
    for number, tests in found.items():
        assert tests, f"failure {number} has no test"
        assert covered[number] == ", ".join(sorted(tests)), f"docs/failures.md, failure {number}"
    assert not waiting & set(covered), "a failure has tests or waits for its feature"


def test_the_index_of_decisions_is_complete() -> None:
    folder = ROOT / "docs/decisions"
    pages = {path.name: path.read_text().splitlines()[0] for path in folder.glob("0*.md")}
    listed = re.findall(r"^\| (\d+) \| \[(.*)\]\((.*)\) \|$", (folder / "index.md").read_text(), re.MULTILINE)
    assert {name: f"# {number}. {title}" for number, title, name in listed} == pages


def test_the_map_of_folders_is_complete() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text[text.index("## Folders") : text.index("## Where new things go")]
    package = ROOT / "src/tidemill"
    folders = {path.parent.relative_to(package).as_posix() for path in package.rglob("__init__.py")}
    assert set(re.findall(r"^\| `([\w./]+)` \|", table, re.MULTILINE)) == folders
