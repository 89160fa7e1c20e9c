"""Long work in steps: a generator that its driver advances one step at a time.

A step takes well under a millisecond. Between steps the generator yields None, or a function that blocks without
holding the interpreter (decompression). The driver calls that function in a thread and sends the result back, or
throws its error. The generator's return value is the result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Blocking: TypeAlias = Callable[[], Any]
Steps: TypeAlias = Generator[Blocking | None, Any, T]


class NotAtOnce(Exception):
    """The work takes more than one step."""


def run_first_step(steps: Steps[T]) -> T:
    """The result of work that takes one step. Raises `NotAtOnce` and drops the rest when it takes more."""
    try:
        next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    steps.close()
    raise NotAtOnce


def run_steps(steps: Steps[T]) -> T:
    """Run all steps now."""
    value = None
    while True:
        try:
            work = steps.send(value)
        except StopIteration as end:
            result: T = end.value
            return result
        value = work() if work is not None else None
