"""Style as a test: what a reviewer would otherwise have to say again and again."""

from __future__ import annotations

import ast
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
