"""Prints differences and answers for people."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.diff.compare import Accepted, Difference
from bench.diff.messages import api_name
from bench.diff.script import Answer, Key

LINE_CHARS = 140


def versions_text(versions: Iterable[int]) -> str:
    """`v3-v5, v7`"""
    spans: list[list[int]] = []
    for version in sorted(set(versions)):
        if spans and version == spans[-1][-1] + 1:
            spans[-1].append(version)
        else:
            spans.append([version])
    return ", ".join(f"v{s[0]}" if len(s) == 1 else f"v{s[0]}-v{s[-1]}" for s in spans)


def difference_lines(differences: list[Difference]) -> list[str]:
    """One entry per API, case, field and pair of values, with the versions in which it shows."""
    grouped: dict[tuple[str, str, str, str, str], list[int]] = {}
    for d in differences:
        identity = (d.api, d.case, d.field, one_line(d.kafka), one_line(d.tidemill))
        grouped.setdefault(identity, []).append(d.version)
    lines = []
    heading = ""
    for (api, case, path, kafka, tidemill), versions in grouped.items():
        title = f"{api_name(api)} {versions_text(versions)}  {case}"
        if title != heading:
            lines.append(title)
            heading = title
        lines.append(f"    {path}\n        Kafka     {kafka}\n        Tidemill  {tidemill}")
    return lines


def accepted_lines(accepted: list[Accepted]) -> list[str]:
    return [
        f"{entry.api} {entry.case} {entry.field}: {entry.used} fields, accepted: {entry.reason}"
        for entry in accepted
        if entry.used
    ]


def stale_lines(accepted: list[Accepted]) -> list[str]:
    return [
        f"accepted.toml: {entry.api}, case {entry.case!r}, field {entry.field!r} no longer differs"
        for entry in accepted
        if not entry.used
    ]


def one_line(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= LINE_CHARS * 2 else f"{text[: LINE_CHARS * 2]}… ({len(text)} characters)"


def write_answers(folder: Path, answers: dict[Key, Answer]) -> None:
    """One file per API: each question with the versions that got the same answer, and that answer."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[tuple[str, str, str], list[int]]] = {}
    for key, answer in answers.items():
        body = "\n".join(_block(answer.tree, "  "))
        group = files.setdefault(key.api, {})
        group.setdefault((key.case, _request_text(answer.request), body), []).append(key.version)
    for api, groups in files.items():
        parts = [
            f"## {case}   [{versions_text(versions)}]\n> {request}\n{body}\n"
            for (case, request, body), versions in groups.items()
        ]
        (folder / f"{api}.txt").write_text("\n".join(parts))


def _request_text(request: Any) -> str:
    text = _text(request)
    return text if len(text) <= 600 else f"{text[:600]}…"


def _block(value: Any, indent: str) -> list[str]:
    """Short things on one line; of long ones the short fields together, the long ones indented below."""
    flat = _text(value)
    if len(flat) + len(indent) <= LINE_CHARS or not isinstance(value, dict | list):
        return [f"{indent}{flat}"]
    if isinstance(value, list):
        return [line for item in value for line in _bulleted(_block(item, indent + "  "), indent)]
    lines: list[str] = []
    run: list[str] = []
    for name, item in value.items():
        field = f"{name}: {_text(item)}"
        if len(", ".join([*run, field])) + len(indent) <= LINE_CHARS:
            run.append(field)
            continue
        lines += [indent + ", ".join(run)] if run else []
        run = []
        if len(field) + len(indent) <= LINE_CHARS:
            run.append(field)
        else:
            lines += [f"{indent}{name}:", *_block(item, indent + "  ")]
    return lines + ([indent + ", ".join(run)] if run else [])


def _bulleted(lines: list[str], indent: str) -> list[str]:
    return [f"{indent}- {lines[0].strip()}", *lines[1:]]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(v) for v in value) + "]"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>" if len(value) > 40 else repr(value)
    if value is None:
        return "null"
    return value if isinstance(value, str) and value else repr(value)
