"""The loggers of this process as a configuration resource (KIP-412): their levels are seen and changed at run time.

Names are those of Python's loggers, and `root`. Levels have Kafka's names; TRACE and FATAL, which Python has not, stand
below DEBUG and for CRITICAL. A level that is removed is inherited again. Nothing is kept over a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidemill.controller.configs import Operation
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.admin import IncrementalAlterConfigsAlterableConfig

logger = logging.getLogger(__name__)

ROOT = "root"
_TRACE = 5
LEVELS = {
    "TRACE": _TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def levels() -> dict[str, str]:
    """Every logger that exists, with the level in force."""
    names = [
        name for name, each in logging.root.manager.loggerDict.items() if isinstance(each, logging.Logger)
    ]
    found = {name: _name_of(logging.getLogger(name).getEffectiveLevel()) for name in sorted(names)}
    return {ROOT: _name_of(logging.root.level), **found}


def _name_of(level: int) -> str:
    """The least severe of Kafka's levels that lets through what this level lets through."""
    return next((name for name, number in LEVELS.items() if level <= number), "FATAL")


def check_node(name: str, node_id: int) -> None:
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    if not name.removeprefix("-").isdecimal():
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if int(name) != node_id:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id} but received {name}"
        )


def alter(changes: Sequence[IncrementalAlterConfigsAlterableConfig], *, validate_only: bool) -> None:
    """All of the changes, or an error and none."""
    known = levels()
    if len({change.name for change in changes}) < len(changes):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    for change in changes:
        _check(change, known)
    if validate_only:
        return
    for change in changes:
        target = logging.root if change.name == ROOT else logging.getLogger(change.name)
        is_removed = change.config_operation == Operation.DELETE
        target.setLevel(logging.NOTSET if is_removed else LEVELS[change.value or ""])
        logger.info("logger %s has level %s", change.name, _name_of(target.getEffectiveLevel()))


def _check(change: IncrementalAlterConfigsAlterableConfig, known: dict[str, str]) -> None:
    if change.config_operation in (Operation.APPEND, Operation.SUBTRACT):
        verb = Operation(change.config_operation).name
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"{verb} operation is not allowed for the BROKER_LOGGER resource"
        )
    if change.config_operation not in (Operation.SET, Operation.DELETE):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unknown operation type {change.config_operation} is not allowed for the BROKER_LOGGER resource",
        )
    if change.name not in known:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Logger {change.name} does not exist!")
    if change.config_operation == Operation.DELETE:
        if change.name == ROOT:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT} logger is not allowed"
            )
    elif change.value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {change.name}")
    elif change.value not in LEVELS:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {change.name} to {change.value}: must be one of {', '.join(LEVELS)}",
        )
