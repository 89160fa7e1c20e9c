"""Every Python snippet of docs/testing.md is a file of a user's project, and that project's tests pass.

Each second-level section is a project of its own: a snippet's first line names its file, an ini snippet is `pytest.ini`.
"""

from __future__ import annotations

import re

import pytest

from tests.snippets import Page

pytest_plugins = ["pytester"]

_PAGE = Page("docs/testing.md")
_FILE = re.compile(r"# (\w+\.py)\n")
_INI = "[pytest]\n"


def _projects() -> dict[str, dict[str, str]]:
    """By section: file name to content."""
    projects: dict[str, dict[str, str]] = {}
    for snippet in _PAGE.snippets:
        if snippet.language not in ("python", "ini"):
            continue
        named = _FILE.match(snippet.text)
        assert named or snippet.language == "ini", (
            f"{snippet.place}: the first line of a snippet names its file"
        )
        name = named[1] if named else "pytest.ini"
        files = projects.setdefault(snippet.section, {})
        assert name not in files, f"{snippet.place}: {name} is there twice"
        files[name] = snippet.text
    return projects


def test_there_are_snippets() -> None:
    assert len(_projects()) >= 9
    blocks = _PAGE.text.count("\n```python\n")
    assert blocks == sum(name.endswith(".py") for files in _projects().values() for name in files)


def _run(pytester: pytest.Pytester, projects: dict[str, dict[str, str]]) -> None:
    """Sections that need no ini file of their own are folders of one run."""
    expected = 0
    for title, files in projects.items():
        folder = pytester.mkdir(re.sub(r"\W+", "_", title)) if len(projects) > 1 else pytester.path
        tests = 0
        for name, code in files.items():
            (folder / name).write_text(code, encoding="utf-8")
            tests += len(re.findall(r"^(?:async )?def test_", code, re.MULTILINE))
        assert tests, f"{title} has no test"
        expected += tests
    options = ("-p", "no:cacheprovider", "--import-mode=importlib")
    outcomes = pytester.runpytest_subprocess(*options).parseoutcomes()
    assert set(outcomes) <= {"passed", "warning", "warnings"}, outcomes
    assert outcomes["passed"] >= expected


def test_the_snippets_pass(pytester: pytest.Pytester) -> None:
    pytester.makeini(_INI)
    _run(pytester, {title: files for title, files in _projects().items() if "pytest.ini" not in files})


def test_the_snippets_with_an_ini_file_pass(pytester: pytest.Pytester) -> None:
    projects = {title: files for title, files in _projects().items() if "pytest.ini" in files}
    assert len(projects) == 1
    _run(pytester, projects)
