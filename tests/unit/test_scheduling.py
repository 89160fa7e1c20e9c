"""How tests are divided among workers."""

from __future__ import annotations

import re
from pathlib import Path

from tests.scheduling import (
    _SLOWEST_FIRST,
    _WITHOUT_SESSION,
    APART,
    CONSOLE,
    SPARK_SESSION,
    rank_of,
    repeated_id,
    unit_of,
)

TESTS = Path(__file__).resolve().parents[1]


def test_files_of_the_spark_session_are_one_unit() -> None:
    assert unit_of("tests/spark/test_sink_batch.py::TestSession::test_x[a/b::c]") == SPARK_SESSION
    assert unit_of("tests/spark/test_python.py::test_x") == "tests/spark/test_python.py"
    assert unit_of("tests/unit/spark/test_sink_batch.py::test_x") == "tests/unit/spark/test_sink_batch.py"


def test_no_file_outside_the_unit_uses_the_session() -> None:
    for name in _WITHOUT_SESSION:
        text = (TESTS / "spark" / name).read_text()
        assert not re.search(r"\b(spark: SparkSession|read: Read)\b", text), name


def test_files_of_the_console_are_one_unit() -> None:
    assert (
        unit_of("tests/console/test_live.py::test_x")
        == unit_of("tests/console/test_lists.py::test_x")
        == CONSOLE
    )


def test_tests_of_some_folders_are_units_of_their_own() -> None:
    for test in ("tests/sim/test_world.py::test_x[1]", "tests/docs/test_snippets.py::test_x[a/b::c]"):
        assert unit_of(test) == test


def test_no_file_whose_tests_are_apart_has_fixtures_to_share() -> None:
    for folder in APART:
        for path in (TESTS.parent / folder).glob("*.py"):
            assert not re.search(r"fixture\([^)]*scope=", path.read_text()), path.name


def test_slow_folders_come_first_and_unit_tests_last() -> None:
    assert {folder for folder in _SLOWEST_FIRST if not (TESTS / folder).is_dir()} == set()
    ordered = ["tests/spark/test_sink_batch.py", "tests/spark/test_python.py", "tests/console/test_live.py"]
    ordered += ["tests/sim/test_world.py", "tests/wire/test_order.py", "tests/unit/test_tidy.py"]
    assert sorted({*ordered}, key=rank_of) == ordered


def test_id_of_several_tests_is_found() -> None:
    assert repeated_id(["a::x", "a::y"]) is None
    assert repeated_id(["a::x", "a::y", "a::x"]) == "a::x"
