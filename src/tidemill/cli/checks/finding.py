"""The result of a check: a verdict, what was found, and a remedy for problems."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    verdict: Verdict
    text: str
    remedy: str | None = None


def ok(check: str, text: str) -> Finding:
    return Finding(check, Verdict.OK, text)


def warning(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Verdict.WARNING, text, remedy)


def problem(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Verdict.PROBLEM, text, remedy)
