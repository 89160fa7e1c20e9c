"""Style as a test: what a reviewer would otherwise have to say again and again."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from tidemill import __version__
from tidemill.config.broker.broker import TOPIC_KEYS_WITHOUT_EFFECT
from tidemill.internal_topics import INTERNAL_TOPICS, METADATA_TOPIC

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80
# Fifteen modules in a folder are many. One for each family of APIs may be a few more.
FOLDER_MODULES_MAX = 18
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
    if path.name in TABLES or path.parent.name == "api":
        return
    if text.strip():
        assert ast.get_docstring(tree), "a module opens with its theory of operation"
    assert text.count("\n") <= MODULE_LINES_MAX, "split the module"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"
        if isinstance(node, ast.ExceptHandler) and _catches_everything(node):
            assert _is_reported(node), f"the handler in line {node.lineno} hides what it catches"


def _catches_everything(handler: ast.ExceptHandler) -> bool:
    caught = {"BaseException"} if handler.type is None else set(re.findall(r"\w+", ast.unparse(handler.type)))
    return bool(caught & {"Exception", "BaseException"})


def _is_reported(handler: ast.ExceptHandler) -> bool:
    """Whether a handler raises, logs, or passes on what it has caught."""
    reports = {"exception", "error", "warning", "debug", "format_exc"}
    return any(
        isinstance(node, ast.Raise)
        or (isinstance(node, ast.Attribute) and node.attr in reports)
        or (isinstance(node, ast.Name) and node.id == handler.name)
        for statement in handler.body
        for node in ast.walk(statement)
    )


def test_folders_have_few_modules() -> None:
    for folder in sorted({path.parent for path in SOURCES}):
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= FOLDER_MODULES_MAX, f"{folder} wants rooms"


@pytest.mark.parametrize("path", SOURCES, ids=_id)
def test_nothing_is_left_for_later(path: Path) -> None:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for word in ("TODO", "FIXME", "XXX", "HACK"):
            assert word not in line.split(), f"line {number}"
        assert "breakpoint()" not in line, f"line {number}"


# -- what the repository points at ---------------------------------------------------------------------------

# "failure 4", "failures 11 and 13", "failures 11, 12 and 13", failure_04.
_CITATION = re.compile(r"\bfailures? (\d+(?:(?:, | and )\d+)*)\b|failure_(\d+)")
# Failures of tiered storage and of links between clusters. Every other feature is built.
_NOT_BUILT = {39, 40, 41, 42}
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
            for number in re.findall(r"\d+", cited[0]):
                assert int(number) in covered, f"{path.relative_to(ROOT)} cites failure {number}"


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
    assert waiting <= _NOT_BUILT, "the feature is built: its failures have tests"


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


def test_modules_that_docstrings_and_pages_of_the_design_name_exist() -> None:
    folders = ("src", "tests", "bench", "scripts", "examples")
    modules = [path.as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    texts = {path: ast.get_docstring(ast.parse(path.read_text())) or "" for path in SOURCES}
    texts |= {
        path: path.read_text() for path in (ROOT / "ARCHITECTURE.md", *(ROOT / "docs/decisions").glob("*.md"))
    }
    for path, text in texts.items():
        for name in re.findall(r"[\w/]*\w\.py\b", text):
            assert any(module.endswith(f"/{name}") for module in modules), f"{path} names {name}"


def test_failures_1_to_44_have_tests_or_wait_for_their_feature() -> None:
    covered, waiting = _failures()
    assert set(covered) | waiting == set(range(1, 45))


def test_changelog_has_the_version_of_the_package_below_what_is_unreleased() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    released = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) - (\d{4}-\d\d-\d\d)", heading) for heading in headings[1:]]
    versions = [(tuple(map(int, each.group(1, 2, 3))), each[4]) for each in released if each]
    assert len(versions) == len(released), "a version, and the day of its release"
    assert versions == sorted(versions, reverse=True)
    assert ".".join(map(str, versions[0][0])) == __version__


def _make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_make_target_has_help_in_a_group() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split())
    grouped = set(re.findall(r"^([a-z-]+):[^#\n]*## ", text[text.index("##@ ") :], re.MULTILINE))
    assert phony == _make_targets() == grouped | {"help"}


def test_hooks_before_a_commit_run_the_tools_of_make_check() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [each["repo"] for each in config["repos"]] == ["local"], "nothing is downloaded"
    hooks = config["repos"][0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    entries = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks}
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    tools = re.findall(r"\$\(BIN\)/([\w-]+)", recipe[1])
    assert {"ruff", "mypy", "lint-imports"} <= set(tools)
    assert entries == {*(tool for tool in tools if tool != "python"), "make"}
    for hook in hooks:
        if hook["entry"].startswith("make "):
            assert hook["entry"].split()[1] in _make_targets()


def test_hosted_runs_call_make_check_and_make_test() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert {"make check", "make test"} <= set(commands)
    for command in commands:
        assert command.split()[0] == "make"
        assert set(command.split()[1:]) <= _make_targets()
    assert all("timeout-minutes" in job for job in jobs.values())


def test_names_of_internal_topics_are_in_one_module() -> None:
    quoted = {f'"{name}"' for name in (*INTERNAL_TOPICS, METADATA_TOPIC)}
    for path in sorted((ROOT / "src/tidemill").rglob("*.py")):
        if path.name != "internal_topics.py":
            text = path.read_text()
            assert not [name for name in quoted if name in text], path


def test_readme_of_the_tests_lists_every_folder_and_shared_module() -> None:
    listed = set(re.findall(r"^\| `([\w.]+)` \|", (ROOT / "tests/README.md").read_text(), re.MULTILINE))
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/__init__.py")}
    modules = {path.name for path in (ROOT / "tests").glob("*.py")} - {"__init__.py"}
    assert listed == folders | modules


# Read by tests, and by the name of its key.
_SETTINGS_READ_OTHERWISE = {"defaults", "unclean_leader_election_enable"}


def test_every_typed_setting_is_read() -> None:
    """A setting that nothing reads belongs to those without effect, of which the broker warns."""
    attributes = {
        node.attr
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    declared = {
        statement.target.id
        for path in (ROOT / "src" / "tidemill" / "config").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    without_effect = {name.replace(".", "_") for name in TOPIC_KEYS_WITHOUT_EFFECT}
    assert declared - attributes - without_effect == _SETTINGS_READ_OTHERWISE
