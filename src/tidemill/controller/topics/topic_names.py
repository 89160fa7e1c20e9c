"""The rules for topic names. A name is also a directory's name on disk and part of a metric's name."""

from __future__ import annotations

import re

from tidemill.errors import ApiError, ErrorCode

# As in Kafka: with "-<partition>" appended, the folder name stays within the 255 characters of file systems.
MAX_NAME_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION with the reason when the name is not allowed."""
    problem = _problem(name)
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def is_valid_topic_name(name: str) -> bool:
    return _problem(name) is None


def collision_key(name: str) -> str:
    """Returns a key that is equal for names which collide in metrics."""
    return name.replace(".", "_")


def _problem(name: str) -> str | None:
    """Returns the reason why the name is not allowed. The first words are Kafka's: clients match on them."""
    if not name:
        return "Topic name is invalid: the name is empty"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' means a directory"
    if len(name) > MAX_NAME_LENGTH:
        return (
            f"Topic name is invalid: the length is {len(name)}, more than {MAX_NAME_LENGTH}: '{name[:40]}…'"
        )
    if not _LEGAL.fullmatch(name):
        return f"Topic name is invalid: '{name}' may have only ASCII letters, digits, '.', '_' and '-'"
    return None
