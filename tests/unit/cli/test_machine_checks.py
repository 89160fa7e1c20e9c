"""`tidemill doctor` knows the extras of the package."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

from tidemill.cli.checks.machine import machine

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def _not_installed(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)


def test_doctor_names_every_extra_with_all_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    extras = {
        name: {re.split(r"[<>=\[]", each)[0] for each in packages}
        for name, packages in declared.items()
        if name != "dev"
    }
    monkeypatch.setattr(importlib.metadata, "version", _not_installed)
    named = {
        finding.check.removeprefix("extra "): set(found[1].split(", "))
        for finding in machine(with_java=False)
        if (found := re.match(r"not installed \((.+?)\)", finding.text))
    }
    assert named == extras
