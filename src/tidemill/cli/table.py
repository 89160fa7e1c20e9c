"""Aligned tables and colours of the commands.

Numbers and quantities are aligned right. Cells are never cut off, so that a table can be searched and copied. Control
characters are escaped. Colours appear only on a terminal, and never when NO_COLOR is set.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

Cell = str | int | None


class Quantity(str):
    """A number in text form, with a unit or a sign."""


_GAP = "  "
_NOTHING = "-"
BOLD = "1"


def has_colour(stream: IO[str]) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, style: str, stream: IO[str] | None = None) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if has_colour(stream or sys.stdout) else text


def printable(text: str) -> str:
    """Escape control characters: foreign text must not control the terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """The header and the rows. A column with a number in any cell is aligned right."""
    rows = [list(row) for row in rows]
    texts = [[_NOTHING if cell is None else printable(str(cell)) for cell in row] for row in rows]
    are_numbers = [
        any(isinstance(row[index], int | Quantity) for row in rows) for index in range(len(columns))
    ]
    widths = [max(map(width, column)) for column in zip(columns, *texts, strict=True)]
    for line in (columns, *texts):
        cells = [
            _padded(cell, size, right) for cell, size, right in zip(line, widths, are_numbers, strict=True)
        ]
        yield _GAP.join(cells).rstrip()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    lines = table_lines(columns, rows)
    print(styled(next(lines), BOLD))
    for line in lines:
        print(line)


def print_fields(fields: Sequence[tuple[str, Cell]]) -> None:
    """Print names and values, one a line, with the values aligned."""
    size = max(width(name) for name, _ in fields) + 1
    for name, value in fields:
        shown = _NOTHING if value is None else printable(str(value))
        print(f"{styled(_padded(f'{name}:', size, is_right=False), BOLD)} {shown}".rstrip())


def width(text: str) -> int:
    """The width in terminal columns: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def size_text(size_bytes: int) -> Quantity:
    """Format a size in binary units."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return Quantity(f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}")
        size /= 1024
    return Quantity(f"{size:.1f} TiB")


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _padded(text: str, size: int, is_right: bool) -> str:
    padding = " " * (size - width(text))
    return padding + text if is_right else text + padding
