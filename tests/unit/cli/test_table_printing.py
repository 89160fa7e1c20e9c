"""Tables line up, whatever is in them, and colour appears only where it can be seen."""

from __future__ import annotations

import io

import pytest

from tidemill.cli.table import (
    has_colour,
    plural,
    print_fields,
    print_table,
    printable,
    size_text,
    table_lines,
    width,
)


def test_text_is_aligned_left_and_numbers_right() -> None:
    rows = [("orders", 3, None), ("a-longer-name", 12, 7)]
    assert list(table_lines(("TOPIC", "PARTITIONS", "LAG"), rows)) == [
        "TOPIC          PARTITIONS  LAG",
        "orders                  3    -",
        "a-longer-name          12    7",
    ]


def test_sizes_are_aligned_right() -> None:
    rows = [("a", size_text(512)), ("b", size_text(2048))]
    assert list(table_lines(("NAME", "SIZE"), rows)) == ["NAME     SIZE", "a       512 B", "b     2.0 KiB"]


def test_a_table_without_rows_is_its_header() -> None:
    assert list(table_lines(("A", "B"), [])) == ["A  B"]


def test_wide_characters_take_two_columns() -> None:
    assert width("注文") == 4
    assert width("e\u0301") == 1
    assert list(table_lines(("NAME", "N"), [("注文", 1), ("abcd", 2)]))[1:] == ["注文  1", "abcd  2"]


def test_a_cell_cannot_break_the_table_or_steer_the_terminal() -> None:
    (_, row) = table_lines(("CLIENT",), [("evil\n\x1b[31m",)])
    assert row == "evil\\n\\x1b[31m"
    assert printable("plain ü 注文") == "plain ü 注文"


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 1024**3, "5.0 GiB"), (3 * 1024**4, "3.0 TiB")],
)
def test_sizes_have_binary_units(size_bytes: int, expected: str) -> None:
    assert size_text(size_bytes) == expected


def test_plurals() -> None:
    assert [plural(count, "record") for count in (0, 1, 2)] == ["0 records", "1 record", "2 records"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return monkeypatch


def test_colour_appears_only_on_terminal_without_no_color(environment: pytest.MonkeyPatch) -> None:
    assert has_colour(Terminal())
    assert not has_colour(io.StringIO())
    environment.setenv("NO_COLOR", "1")
    assert not has_colour(Terminal())


def test_output_to_pipe_has_no_control_sequences(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_table(("A",), [("x",)])
    print_fields([("name", "x"), ("lag", 7), ("rack", None)])
    assert capsys.readouterr().out == "A\nx\nname: x\nlag:  7\nrack: -\n"
