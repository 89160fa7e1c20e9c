"""Every shell and Python snippet of the docs runs, as a reader would run it.

Pages of other parts have their own test, beside the tests of that part; here is the list of who runs which.
"""

from __future__ import annotations

import re
import socket
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.snippets import ROOT, Page, Reader, Snippet, free_ports
from tidemill.testing import InProcessBroker
from tidemill.testing.ports import HOST

DOCS = ROOT / "docs"
NOT_RUN_MAX = 14
# Each of them starts the broker that it is about, or needs none.
OF_THEIR_OWN = ("index.md", "backup.md", "monitor.md", "security.md")
WITH_A_BROKER = (
    "celery.md",
    "claims.md",
    "delays.md",
    "migrate.md",
    "queues.md",
    "troubleshoot.md",
    "tutorial/first-topic.md",
    "tutorial/python.md",
    "tutorial/rest.md",
    "upgrade.md",
    "partitions.md",
    "views.md",
)
WITH_A_CLUSTER = ("cluster.md",)
WITH_A_GATEWAY = ("tutorial/rest.md",)
# Pages of other parts, and the test that runs them.
ELSEWHERE = {
    "cli.md": "tests/cli/",
    "console.md": "tests/console/",
    "gateway.md": "tests/gateway/",
    "gateway-v2.md": "tests/gateway/",
    "sdk.md": "tests/sdk/",
    "spark.md": "tests/spark/",
    "testing.md": "tests/testing/",
}
_GATEWAY = "tidemill gateway --bootstrap 127.0.0.1:9092 --listen 127.0.0.1:8080"


@pytest.fixture
def replaced() -> Iterator[dict[str, str]]:
    """Free ports for those that the pages name."""
    with free_ports(8080, 9092, 9192, 9404) as replaced:
        yield replaced


def environment(replaced: Mapping[str, str]) -> dict[str, str]:
    return {"TIDEMILL_BOOTSTRAP": replaced[f"{HOST}:9092"]}


@pytest.mark.parametrize("name", OF_THEIR_OWN)
def test_a_page_that_starts_what_it_needs(name: str, tmp_path: Path, replaced: dict[str, str]) -> None:
    with Reader(tmp_path, replaced, environment(replaced)) as reader:
        reader.run_page(Page(DOCS / name))


@pytest.mark.parametrize("name", WITH_A_BROKER)
def test_a_page_with_a_broker(name: str, tmp_path: Path, replaced: dict[str, str]) -> None:
    with InProcessBroker() as broker:
        replaced |= {f"{HOST}:9092": broker.bootstrap}
        with Reader(tmp_path, replaced, environment(replaced)) as reader:
            if name in WITH_A_GATEWAY:
                reader.run(Snippet(name, 0, "", "background: Console at", "sh", _GATEWAY))
            reader.run_page(Page(DOCS / name))


def test_the_readme(tmp_path: Path, replaced: dict[str, str]) -> None:
    with InProcessBroker() as broker:
        replaced |= {f"{HOST}:9092": broker.bootstrap}
        with Reader(tmp_path, replaced, environment(replaced)) as reader:
            reader.run(Snippet("README.md", 0, "", "background: Console at", "sh", _GATEWAY))
            reader.run_page(Page(ROOT / "README.md"))


@pytest.mark.parametrize("name", WITH_A_CLUSTER)
def test_a_page_with_a_cluster(name: str, tmp_path: Path) -> None:
    base = _free_ports(6)
    replaced = {f"--base-port {9092}": f"--base-port {base}"}
    with Reader(tmp_path, replaced, {"TIDEMILL_BOOTSTRAP": f"{HOST}:{base}"}, limit_s=120) as reader:
        reader.run_page(Page(DOCS / name))


def _free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for first in range(21_000, 60_000, count):
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.create_server((HOST, port)))
            return first
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
    raise AssertionError("no ports are free")


def _pages() -> dict[str, Page]:
    """Those for readers: a decision quotes code as it was."""
    pages = {str(path.relative_to(DOCS)): path for path in sorted(DOCS.rglob("*.md"))}
    return {name: Page(path) for name, path in pages.items() if not name.startswith("decisions/")}


def test_every_page_with_snippets_is_run_by_a_test() -> None:
    here = {*OF_THEIR_OWN, *WITH_A_BROKER, *WITH_A_CLUSTER}
    with_snippets = {
        name for name, page in _pages().items() if any(snippet.is_run for snippet in page.snippets)
    }
    assert with_snippets <= here | set(ELSEWHERE)
    for name in with_snippets & set(ELSEWHERE):
        folder = ROOT / ELSEWHERE[name]
        tests = [path for path in folder.rglob("test_*.py") if f"docs/{name}" in path.read_text()]
        assert tests, f"nothing in {folder} runs docs/{name}"


def test_skipped_snippets_are_few_and_have_a_reason() -> None:
    pages = [*_pages().values(), Page(ROOT / "README.md")]
    left_out = [snippet for page in pages for snippet in page.left_out]
    for snippet in left_out:
        assert len(snippet.mark.partition(":")[2].strip()) > 5, snippet.place
    assert 0 < len(left_out) <= NOT_RUN_MAX, [(snippet.place, snippet.mark) for snippet in left_out]


def test_the_first_command_installs_this_clone_with_extras_that_it_has() -> None:
    first = Page(DOCS / "index.md").left_out[0]
    found = re.fullmatch(r"pip install '\.\[(?P<extras>[a-z,]+)\]'\n?", first.text)
    assert found, first.text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(found["extras"].split(",")) <= set(project["optional-dependencies"])
