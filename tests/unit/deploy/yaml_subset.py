"""Reads the part of YAML that the files in deploy/ use: block mappings and lists, plain and quoted scalars, | and >-.

Anything else is an error, so that a file which strays from the subset is noticed instead of misread.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_KEY = re.compile(r"(?P<key>[\w./-]+):(?: +(?P<value>\S.*))?")


class _Line(NamedTuple):
    indent: int
    text: str


class _Reader:
    def __init__(self, lines: list[_Line]) -> None:
        self._lines = lines
        self._next = 0

    def document(self) -> Any:
        value = self._block(0)
        assert self._next == len(self._lines), f"left over: {self._lines[self._next]}"
        return value

    def _peek(self) -> _Line | None:
        """The next line that is neither blank nor a comment."""
        while self._next < len(self._lines):
            line = self._lines[self._next]
            if line.text and not line.text.startswith("#"):
                return line
            self._next += 1
        return None

    def _block(self, indent: int) -> Any:
        line = self._peek()
        if line is None or line.indent < indent:
            return None
        if line.text.startswith("- ") or line.text == "-":
            return self._list(line.indent)
        return self._mapping(line.indent)

    def _list(self, indent: int) -> list[Any]:
        items: list[Any] = []
        while (line := self._peek()) is not None and line.indent == indent and line.text.startswith("- "):
            inner = line.text[2:].lstrip()
            if _KEY.fullmatch(inner) and not inner.startswith('"'):
                # The mapping's first key stands on the line of the dash.
                self._lines[self._next] = _Line(indent + 2, inner)
                items.append(self._mapping(indent + 2))
            else:
                self._next += 1
                items.append(self._scalar(inner, indent))
        return items

    def _mapping(self, indent: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while (line := self._peek()) is not None and line.indent == indent:
            match = _KEY.fullmatch(line.text)
            assert match is not None, f"not a key: {line.text!r}"
            assert match["key"] not in values, f"{match['key']} twice"
            self._next += 1
            values[match["key"]] = (
                self._block(indent + 1) if match["value"] is None else self._scalar(match["value"], indent)
            )
        return values

    def _scalar(self, text: str, indent: int) -> str:
        if text in ("|", ">-"):
            return self._literal(indent, "\n" if text == "|" else " ")
        if text.startswith('"'):
            assert re.fullmatch(r'"[^"\\]*"', text), text
            return text[1:-1]
        assert text[0] not in "[{&*!|>%@`'", f"not of the subset: {text}"
        assert not re.search(r": | #", text), f"needs quotes: {text}"
        return text

    def _literal(self, indent: int, separator: str) -> str:
        lines = []
        while self._next < len(self._lines):
            line = self._lines[self._next]
            if line.text and line.indent <= indent:
                break
            lines.append(line.text)
            self._next += 1
        return separator.join(lines)


def parse(text: str) -> list[Any]:
    """The documents of a file."""
    documents: list[list[_Line]] = [[]]
    for raw in text.splitlines():
        assert "\t" not in raw, f"tabs are not YAML: {raw!r}"
        if raw == "---":
            documents.append([])
        else:
            documents[-1].append(_Line(len(raw) - len(raw.lstrip()), raw.strip()))
    return [_Reader(lines).document() for lines in documents]
