"""Trees as text for people: short ones on a line, long ones indented."""

from __future__ import annotations

from typing import Any

LINE_CHARS = 140
REQUEST_CHARS = 600


def request_text(request: Any) -> str:
    text = as_text(request)
    return text if len(text) <= REQUEST_CHARS else f"{text[:REQUEST_CHARS]}…"


def one_line(value: Any) -> str:
    text = as_text(value)
    return text if len(text) <= LINE_CHARS * 2 else f"{text[: LINE_CHARS * 2]}… ({len(text)} characters)"


def block(value: Any, indent: str) -> list[str]:
    """Short things on one line; of long ones the short fields together, the long ones indented below."""
    flat = as_text(value)
    if len(flat) + len(indent) <= LINE_CHARS or not isinstance(value, dict | list):
        return [f"{indent}{flat}"]
    if isinstance(value, list):
        return [line for item in value for line in _bulleted(block(item, indent + "  "), indent)]
    lines: list[str] = []
    run: list[str] = []
    for name, item in value.items():
        field = f"{name}: {as_text(item)}"
        if len(", ".join([*run, field])) + len(indent) <= LINE_CHARS:
            run.append(field)
            continue
        lines += [indent + ", ".join(run)] if run else []
        run = []
        if len(field) + len(indent) <= LINE_CHARS:
            run.append(field)
        else:
            lines += [f"{indent}{name}:", *block(item, indent + "  ")]
    return lines + ([indent + ", ".join(run)] if run else [])


def _bulleted(lines: list[str], indent: str) -> list[str]:
    return [f"{indent}- {lines[0].strip()}", *lines[1:]]


def as_text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {as_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(as_text(v) for v in value) + "]"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>" if len(value) > 40 else repr(value)
    if value is None:
        return "null"
    return value if isinstance(value, str) and value else repr(value)
