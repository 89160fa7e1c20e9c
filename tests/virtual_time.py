"""An event loop whose clock advances instead of waiting: hours of timeouts take milliseconds.

`@in_virtual_time` runs an async test on such a loop; `run_in_virtual_time` does it for one coroutine, where a test runs
many. Nothing in the test may wait for a socket, a thread or a process, because time passes while it would wait.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
# Of virtual time: a test that needs more does not end by itself.
_LIMIT_S = 600


class _VirtualSelector(selectors.DefaultSelector):
    """Advances the loop's clock by the timeout instead of waiting for it."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout:
            self.loop.steady_s += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        selector = _VirtualSelector()
        selector.loop = self
        self.steady_s = 1000.0
        super().__init__(selector)

    def time(self) -> float:
        return self.steady_s


def run_in_virtual_time(main: Coroutine[Any, Any, T], *, is_death_expected: bool = False) -> T:
    loop = VirtualLoop()
    if is_death_expected:
        # Tasks that die with their process leave exceptions behind, which are no failures of the test.
        loop.set_exception_handler(lambda _loop, _context: None)
    try:
        return loop.run_until_complete(asyncio.wait_for(main, _LIMIT_S))
    finally:
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        for task in pending:
            loop.run_until_complete(asyncio.wait([task]))
        loop.close()


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Makes an async test one that pytest calls as a plain function, with the same fixtures and parameters."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_in_virtual_time(test(*args, **kwargs))

    return run
