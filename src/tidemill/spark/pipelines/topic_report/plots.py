"""Plots as inline SVG: bars, columns over time, and a forecast's fan. No script, no font, nothing from elsewhere.

Every text goes through `escape`: names and keys are what strangers chose. Colours are classes that the page's style
sheet gives a value for light and dark. Each plot carries a title and a description for those who do not see it; the
page puts the same numbers in a table beside it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH = 720
_ROW = 24
_LABEL_WIDTH = 240
_VALUE_WIDTH = 150
_LABEL_CHARS_MAX = 36
_HEIGHT = 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 16, 16, 34


class Bar(NamedTuple):
    label: str
    value: float
    text: str
    is_marked: bool = False
    """Stands out; the text says why, colour alone does not."""


class Column(NamedTuple):
    label: str
    value: float
    text: str


class FanPoint(NamedTuple):
    label: str
    low: float
    mid: float
    high: float


class Limit(NamedTuple):
    value: float
    text: str


def bars(title: str, description: str, rows: Sequence[Bar], mark: Limit | None = None) -> str:
    """Horizontal bars, one to a row; `mark` is a line across all of them."""
    largest = max([row.value for row in rows] + ([mark.value] if mark else []), default=0.0) or 1.0
    width = _WIDTH - _LABEL_WIDTH - _VALUE_WIDTH
    parts = []
    for index, row in enumerate(rows):
        y = index * _ROW
        length = max(1.0, width * row.value / largest) if row.value > 0 else 0.0
        kind = "bar marked" if row.is_marked else "bar"
        parts.append(
            f'<text class="label" x="{_LABEL_WIDTH - 8}" y="{y + 16}" text-anchor="end">{_short(row.label)}</text>'
            f'<rect class="{kind}" x="{_LABEL_WIDTH}" y="{y + 4}" width="{length:.1f}" height="{_ROW - 8}" rx="2">'
            f"<title>{escape(row.label)}: {escape(row.text)}</title></rect>"
            f'<text class="value" x="{_LABEL_WIDTH + length + 6:.1f}" y="{y + 16}">{escape(row.text)}</text>'
        )
    height = len(rows) * _ROW
    if mark is not None:
        x = _LABEL_WIDTH + width * mark.value / largest
        parts.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>'
            f'<text class="axis" x="{x:.1f}" y="{height + 14}" text-anchor="middle">{escape(mark.text)}</text>'
        )
        height += _ROW
    return _svg(title, description, height, "".join(parts))


def columns(title: str, description: str, values: Sequence[Column], largest_text: str) -> str:
    """Values over time, the oldest first; the axis shows the largest."""
    largest = max((each.value for each in values), default=0.0) or 1.0
    plot_width = _WIDTH - _LEFT - _RIGHT
    plot_height = _HEIGHT - _TOP - _BOTTOM
    step = plot_width / max(len(values), 1)
    parts = [_frame(largest_text)]
    for index, each in enumerate(values):
        height = plot_height * each.value / largest
        parts.append(
            f'<rect class="bar" x="{_LEFT + index * step + step * 0.1:.2f}" y="{_TOP + plot_height - height:.2f}" '
            f'width="{step * 0.8:.2f}" height="{height:.2f}"><title>{escape(each.label)}: {escape(each.text)}</title></rect>'
        )
    for index in sorted({0, len(values) // 2, len(values) - 1} if values else ()):
        x = _LEFT + (index + 0.5) * step
        parts.append(_time_label(x, values[index].label))
    return _svg(title, description, _HEIGHT, "".join(parts))


def fan(
    title: str, description: str, points: Sequence[FanPoint], limit: Limit, largest_text: str, largest: float
) -> str:
    """A line with the band between its low and high ends, and the limit that it runs towards."""
    plot_width = _WIDTH - _LEFT - _RIGHT
    plot_height = _HEIGHT - _TOP - _BOTTOM
    largest = largest or 1.0

    def x(index: int) -> float:
        return _LEFT + plot_width * index / max(len(points) - 1, 1)

    def y(value: float) -> float:
        return _TOP + plot_height * (1 - min(value, largest) / largest)

    band = [f"{x(i):.1f},{y(point.high):.1f}" for i, point in enumerate(points)]
    band += [f"{x(i):.1f},{y(point.low):.1f}" for i, point in reversed(list(enumerate(points)))]
    line = " ".join(f"{x(i):.1f},{y(point.mid):.1f}" for i, point in enumerate(points))
    parts = [
        _frame(largest_text),
        f'<polygon class="band" points="{" ".join(band)}"/>',
        f'<polyline class="line" points="{line}"/>',
        f'<line class="mark" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(limit.value):.1f}" y2="{y(limit.value):.1f}"/>',
        f'<text class="axis" x="{_WIDTH - _RIGHT}" y="{y(limit.value) + 14:.1f}" text-anchor="end">'
        f"{escape(limit.text)}</text>",
    ]
    parts += [
        _time_label(x(index), points[index].label)
        for index in (0, len(points) // 2, len(points) - 1)
        if points
    ]
    return _svg(title, description, _HEIGHT, "".join(parts))


def _frame(largest_text: str) -> str:
    bottom = _HEIGHT - _BOTTOM
    return (
        f'<line class="frame" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>'
        f'<text class="axis" x="{_LEFT - 8}" y="{bottom}" text-anchor="end">0</text>'
        f'<text class="axis" x="{_LEFT - 8}" y="{_TOP + 8}" text-anchor="end">{escape(largest_text)}</text>'
    )


def _time_label(x: float, text: str) -> str:
    anchor = "start" if x < _LEFT + 60 else "end" if x > _WIDTH - _RIGHT - 60 else "middle"
    return f'<text class="axis" x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(label: str) -> str:
    return escape(label if len(label) <= _LABEL_CHARS_MAX else f"{label[: _LABEL_CHARS_MAX - 1]}…")


def _svg(title: str, description: str, height: float, body: str) -> str:
    # The same page from the same numbers, byte for byte.
    number = zlib.crc32(f"{title}\n{description}".encode())
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-labelledby="plot-{number} plot-{number}-text">'
        f'<title id="plot-{number}">{escape(title)}</title><desc id="plot-{number}-text">{escape(description)}</desc>'
        f"{body}</svg>"
    )
