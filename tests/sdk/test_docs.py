"""`docs/sdk.md` is true: its snippets run in order and print what the page says, and its tables are those of the code."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.snippets import Page, Reader
from tidemill import AsyncClient, Client
from tidemill.sdk import errors
from tidemill.testing import InProcessBroker

PAGE = Page("docs/sdk.md")


def test_every_snippet_runs(tidemill_broker: InProcessBroker, tmp_path: Path) -> None:
    with Reader(tmp_path, {"127.0.0.1:9092": tidemill_broker.bootstrap}) as reader:
        reader.run_page(PAGE)
    shouted = tidemill_broker.records("shouted")
    assert len({record.value for record in shouted}) > 1_000


def test_only_the_installation_is_left_out() -> None:
    assert [snippet.mark for snippet in PAGE.left_out] == ["not run: installs packages"]


def test_every_error_is_in_the_table() -> None:
    kinds = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.ClientError)
    ]
    missing = [name for name in kinds if f"`{name}`" not in PAGE.text and name != "ClientError"]
    assert missing == []


@pytest.mark.parametrize("method", ["create_topic", "publish", "publish_many", "flush", "consume", "queue"])
def test_the_reference_has_every_parameter_and_its_default(method: str) -> None:
    for face in (Client, AsyncClient):
        parameters = list(inspect.signature(getattr(face, method)).parameters.values())[1:]
        words = []
        for each in parameters:
            if each.kind is each.KEYWORD_ONLY and "*" not in words:
                words.append("*")
            if each.kind is each.VAR_KEYWORD:
                words.append(f"**{each.name}")
            elif each.default is each.empty:
                words.append(each.name)
            else:
                default = f'"{each.default}"' if isinstance(each.default, str) else repr(each.default)
                words.append(f"{each.name}={default}")
        assert f"| `{method}({', '.join(words)})` |" in PAGE.text
