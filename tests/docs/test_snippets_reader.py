"""The reader of snippets sees what a page does wrong."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import eventually
from tests.snippets import Page, Reader, SnippetFailedError


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with Reader(tmp_path, {"HOST:1": "127.0.0.1:4711"}, limit_s=20) as reader:
        yield reader


def page(folder: Path, text: str) -> Page:
    path = folder / "page.md"
    path.write_text(textwrap.dedent(text).replace("'''", "```"))
    return Page(path)


def test_state_is_kept_within_a_page_and_names_are_replaced(tmp_path: Path, reader: Reader) -> None:
    read = page(
        tmp_path,
        """
        ## First
        <!-- set-up: python
        address = "HOST:1"
        -->
        '''python
        print("at", address)
        '''
        <!-- output -->
        '''text
        at 127.0.0.1:…
        '''
        <!-- file: sub/data.txt -->
        '''text
        of a file
        '''
        ## Second

        '''sh
        cd sub
        export SAID="two words"
        '''

        '''console
        $ cat data.txt; \\
        > echo "$SAID"
        of a file
        two words
        $ seq 5
        1
        …
        5
        '''
        """,
    )
    assert [snippet.section for snippet in read.snippets] == ["First"] * 4 + ["Second"] * 2
    assert [snippet.is_run for snippet in read.snippets] == [True, True, False, False, True, True]
    reader.run_page(read)
    assert (tmp_path / "sub" / "data.txt").read_text() == "of a file\n"


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("'''python\nvalue = {}['missing']\n'''", "KeyError: 'missing'"),
        ("'''sh\nfalse | true\n'''", "exit 1"),
        ("'''console\n$ echo one\ntwo\n'''", "and this was printed"),
        ("'''console\n$ seq 3\n1\n'''", "and this was printed"),
        ("<!-- fails: no such -->\n'''sh\ntrue\n'''", "should have failed"),
        ("<!-- fails: no such -->\n'''sh\necho other; false\n'''", "should have failed"),
        ("<!-- background: ready -->\n'''sh\necho no\n'''", "never printed 'ready'"),
    ],
)
def test_what_a_page_gets_wrong_fails_at_its_line(
    tmp_path: Path, reader: Reader, block: str, said: str
) -> None:
    with pytest.raises(SnippetFailedError, match=r"page\.md, line 3") as failure:
        reader.run_page(page(tmp_path, f"# A page\n\n{block}\n"))
    assert said in str(failure.value)


def test_a_snippet_that_never_ends_is_ended(tmp_path: Path) -> None:
    endless = page(
        tmp_path,
        "'''python\nimport threading\nthreading.Event().wait()\n'''\n'''sh\ntail -f /dev/null\n'''\n",
    )
    with Reader(tmp_path, limit_s=0.3) as reader:
        for snippet in endless.snippets:
            with pytest.raises(SnippetFailedError, match="not done within"):
                reader.run(snippet)


def test_what_runs_in_the_background_ends_with_the_reader(tmp_path: Path, reader: Reader) -> None:
    text = "<!-- background: ready -->\n'''sh\necho $$ > pid\necho ready\ntail -f /dev/null\n'''\n"
    reader.run_page(page(tmp_path, text))
    shell = int((tmp_path / "pid").read_text())
    os.kill(shell, 0)
    reader.close()
    with pytest.raises(ProcessLookupError):
        os.kill(shell, 0)


def test_what_ends_in_the_background_leaves_no_variables(tmp_path: Path, reader: Reader) -> None:
    background = (
        "trap 'touch over' EXIT\nexport NAME=background\necho ready\nuntil test -e go; do sleep 0.02; done"
    )
    before = (
        f"<!-- background: ready -->\n'''sh\n{background}\n'''\n'''sh\nexport NAME=reader\ntouch go\n'''\n"
    )
    reader.run_page(page(tmp_path, before))
    eventually((tmp_path / "over").exists, "the end of the shell in the background")
    reader.run_page(page(tmp_path, "'''console\n$ echo $NAME\nreader\n'''\n"))


def test_an_unknown_mark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="'not-run: whim' is no mark"):
        page(tmp_path, "<!-- not-run: whim -->\n'''sh\ntrue\n'''\n")
