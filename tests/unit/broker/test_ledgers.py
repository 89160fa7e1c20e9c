"""Each handler module lists the versions of the APIs that it serves, and names those that it compares with."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tidemill.broker.requests import handlers
from tidemill.broker.requests.api_table import TABLE, Api

_FOLDER = Path(handlers.__file__).parent
_MODULES = sorted(handlers.__all__)
_HEAD = re.compile(r"^    (\w+) \((\d+)\), from (\d+)(?: \(KIP-\d+\))?$")
_CHANGE = re.compile(r"^      +(\d+)  (\S.*)$")


def _ledger(docstring: str) -> dict[tuple[str, int], list[int]]:
    """The versions that a docstring lists for each API, by its name and key."""
    found: dict[tuple[str, int], list[int]] = {}
    versions: list[int] = []
    for line in docstring.splitlines():
        if head := _HEAD.match(line):
            versions = found[head[1], int(head[2])] = [int(head[3])]
        elif change := _CHANGE.match(line):
            versions.append(int(change[1]))
    return found


def _served_by(module: str) -> list[Api]:
    return [api for api in TABLE.values() if api.handler.__module__.endswith(f"handlers.{module}")]


@pytest.mark.parametrize("module", _MODULES)
def test_ledger_lists_every_version_that_is_served(module: str) -> None:
    docstring = sys.modules[f"{handlers.__name__}.{module}"].__doc__ or ""
    served = {
        (api.name, api.key): list(range(api.versions.min, api.versions.max + 1)) for api in _served_by(module)
    }
    assert served
    assert _ledger(docstring) == served


@pytest.mark.parametrize("module", _MODULES)
def test_versions_are_compared_by_name(module: str) -> None:
    code = (_FOLDER / f"{module}.py").read_text()
    assert not re.findall(r"version\w* *(?:[<>]=?|==) *\d+", code)
