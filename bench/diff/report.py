"""Prints differences and answers for people."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bench.diff.compare import Accepted, Difference
from bench.diff.messages import api_name
from bench.diff.render import block, one_line, request_text
from bench.diff.script import Answer, Key


def versions_text(versions: Iterable[int]) -> str:
    """`v3-v5, v7`"""
    spans: list[list[int]] = []
    for version in sorted(set(versions)):
        if spans and version == spans[-1][-1] + 1:
            spans[-1].append(version)
        else:
            spans.append([version])
    return ", ".join(f"v{s[0]}" if len(s) == 1 else f"v{s[0]}-v{s[-1]}" for s in spans)


def difference_lines(differences: list[Difference], fields_max: int | None) -> list[str]:
    """Per API and case, the fields that differ, with the versions in which each does."""
    grouped: dict[tuple[str, str], dict[tuple[str, str, str], list[int]]] = {}
    for d in differences:
        fields = grouped.setdefault((d.api, d.case), {})
        fields.setdefault((d.field, one_line(d.kafka), one_line(d.tidemill)), []).append(d.version)
    lines = []
    for (api, case), fields in grouped.items():
        lines.append(f"{api_name(api)}  {case}")
        shown = list(fields.items())[:fields_max]
        for (path, kafka, tidemill), versions in shown:
            lines.append(f"    {path}  [{versions_text(versions)}]")
            lines.append(f"        Kafka     {kafka}\n        Tidemill  {tidemill}")
        if len(shown) < len(fields):
            lines.append(f"    … and {len(fields) - len(shown)} more fields (--verbose)")
    return lines


def accepted_lines(accepted: list[Accepted]) -> list[str]:
    return [
        f"{entry.api} {', '.join(entry.cases)} {entry.field}: {entry.used} fields, accepted: {entry.reason}"
        for entry in accepted
        if entry.used
    ]


def stale_lines(accepted: list[Accepted]) -> list[str]:
    return [
        f"accepted.toml: {entry.api}, {', '.join(entry.cases)}, field {entry.field}: no longer differs"
        for entry in accepted
        if not entry.used
    ]


def write_answers(folder: Path, answers: dict[Key, Answer]) -> None:
    """One file per API: each question with the versions that got the same answer, and that answer."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[tuple[str, str, str], list[int]]] = {}
    for key, answer in answers.items():
        body = "\n".join(block(answer.tree, "  "))
        group = files.setdefault(key.api, {})
        group.setdefault((key.case, request_text(answer.request), body), []).append(key.version)
    for api, groups in files.items():
        parts = [
            f"## {case}   [{versions_text(versions)}]\n> {request}\n{body}\n"
            for (case, request, body), versions in groups.items()
        ]
        (folder / f"{api}.txt").write_text("\n".join(parts))
