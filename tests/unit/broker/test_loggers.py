"""Log levels as settings of a broker: seen, changed and inherited again."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tidemill.broker.requests import loggers
from tidemill.controller.configs import Operation
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.admin import IncrementalAlterConfigsAlterableConfig as Change

NAME = "tidemill.some.part"
SET, DELETE, APPEND = Operation.SET, Operation.DELETE, Operation.APPEND


@pytest.fixture(autouse=True)
def part() -> Iterator[logging.Logger]:
    root_level = logging.root.level
    logger = logging.getLogger(NAME)
    yield logger
    logger.setLevel(logging.NOTSET)
    logging.root.setLevel(root_level)


def change(name: str, operation: int, value: str | None = None) -> Change:
    return Change(name=name, config_operation=operation, value=value)


@pytest.mark.parametrize(
    ("level", "python_level"),
    [
        ("TRACE", 5),
        ("DEBUG", logging.DEBUG),
        ("INFO", logging.INFO),
        ("WARN", logging.WARNING),
        ("ERROR", logging.ERROR),
        ("FATAL", logging.CRITICAL),
    ],
)
def test_a_level_is_set_and_shown(part: logging.Logger, level: str, python_level: int) -> None:
    loggers.alter([change(NAME, SET, level)], validate_only=False)
    assert part.level == python_level
    assert loggers.levels()[NAME] == level


def test_a_level_that_is_removed_is_inherited_again(part: logging.Logger) -> None:
    loggers.alter([change(NAME, SET, "DEBUG"), change("root", SET, "ERROR")], validate_only=False)
    loggers.alter([change(NAME, DELETE)], validate_only=False)
    assert part.level == logging.NOTSET
    assert loggers.levels()[NAME] == loggers.levels()["root"] == "ERROR"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([change("tidemill.no.such", SET, "INFO")], ErrorCode.INVALID_CONFIG),
        ([change("tidemill.no.such", DELETE)], ErrorCode.INVALID_CONFIG),
        ([change(NAME, SET, "LOUD")], ErrorCode.INVALID_CONFIG),
        ([change(NAME, SET, None)], ErrorCode.INVALID_REQUEST),
        ([change(NAME, APPEND, "INFO")], ErrorCode.INVALID_REQUEST),
        ([change(NAME, 9, "INFO")], ErrorCode.INVALID_REQUEST),
        ([change("root", DELETE)], ErrorCode.INVALID_REQUEST),
        ([change(NAME, SET, "INFO"), change(NAME, SET, "WARN")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_bad_change_is_refused_and_nothing_changes(
    part: logging.Logger, changes: list[Change], code: ErrorCode
) -> None:
    with pytest.raises(ApiError) as refused:
        loggers.alter([change(loggers.__name__, SET, "ERROR"), *changes], validate_only=False)
    assert refused.value.code is code
    assert part.level == logging.getLogger(loggers.__name__).level == logging.NOTSET


def test_validating_changes_nothing(part: logging.Logger) -> None:
    loggers.alter([change(NAME, SET, "ERROR")], validate_only=True)
    assert part.level == logging.NOTSET
    assert "tidemill.no.such" not in loggers.levels()


@pytest.mark.parametrize("name", ["", "x", "2"])
def test_loggers_belong_to_one_node(name: str) -> None:
    loggers.check_node("1", 1)
    with pytest.raises(ApiError) as refused:
        loggers.check_node(name, 1)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
