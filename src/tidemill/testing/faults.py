"""Scripted faults: a test arms them, and checks that they struck.

A fault is armed by the call that names it. It ends when it has struck the given number of times, when its `with` block
ends, or with the test. A fault that never struck means that the test did not test it: the end of its block, or of the
test, raises `UnusedFault`, unless it was armed with `optional=True`.

Faults strike client requests at the network seam (`network.py`); the broker behind it is the production one. They
never strike the fixture's own operations (`produce`, `records` and so on) or requests between brokers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, auto
from types import TracebackType
from typing import Any, Protocol

from tidemill.errors import ErrorCode
from tidemill.protocol import api as apis
from tidemill.protocol.api.data import FetchRequest, ProduceRequest
from tidemill.testing.refusals import api_key_of, check_refusable

_PRODUCE, _FETCH = ProduceRequest.api_key, FetchRequest.api_key


class UnusedFault(AssertionError):
    """A fault was armed and never struck."""


class Strike(Enum):
    """The effect of a fault on a request."""

    LOSE_ANSWER = auto()
    REFUSE = auto()
    DELAY = auto()
    FILL_DISK = auto()


class Host(Protocol):
    """A running node, as far as faults affect it."""

    def disconnect_all(self) -> int: ...
    def set_disk_full(self, is_full: bool) -> None: ...


class Fault:
    """One armed fault. A context manager: leaving the block disarms it and checks that it struck."""

    def __init__(
        self,
        book: Faults,
        strike: Strike,
        text: str,
        *,
        api_keys: tuple[int, ...] = (),
        topic: str | None = None,
        times: int | None = None,
        error: ErrorCode = ErrorCode.NONE,
        delay_s: float = 0.0,
        is_optional: bool = False,
    ) -> None:
        self._book = book
        self.strike = strike
        self.text = text
        self.api_keys = api_keys
        self.topic = topic
        self.error = error
        self.delay_s = delay_s
        self.is_optional = is_optional
        # How often it can still strike; None means without a limit.
        self._left = times
        # How often it has struck.
        self.hits = 0

    def __repr__(self) -> str:
        return f"<{self.text}: struck {self.hits} times>"

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._book.forget(self)
        if kind is None:
            self.check_used()

    @property
    def is_exhausted(self) -> bool:
        return self._left == 0

    def hit(self) -> None:
        self.hits += 1
        if self._left is not None:
            self._left -= 1

    def end(self) -> None:
        """Disarm the fault. It still counts as unused when it never struck."""
        self._left = 0
        self._book.ended(self)

    def check_used(self) -> None:
        if not self.is_optional and (self.hits == 0 or (self._left or 0) > 0):
            raise UnusedFault(_unused_text([self]))


def _unused_text(faults: list[Fault]) -> str:
    listed = "; ".join(f"{fault.text} ({fault.hits} hits)" for fault in faults)
    return (
        f"armed but not struck: {listed}. Was the request sent, to that topic and by a client of this broker? "
        "Arm it with optional=True if it may stay unused."
    )


class Faults:
    """The faults of a broker, or of all brokers of a cluster."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: list[Fault] = []
        self._all: list[Fault] = []
        self._hosts: list[Host] = []

    # -- what a test says ------------------------------------------------------------------------------------

    def lose_next_ack(
        self, topic: str | None = None, *, api: str = "Produce", times: int = 1, optional: bool = False
    ) -> Fault:
        """Carry out the next request, but close the connection before its response."""
        key = api_key_of(api)
        text = f"lose the next answer to {_request_text(key, topic)}"
        return self._arm(
            Strike.LOSE_ANSWER, text, api_keys=(key,), topic=topic, times=times, is_optional=optional
        )

    def refuse_next(
        self,
        api: str,
        error: ErrorCode | str,
        topic: str | None = None,
        *,
        times: int = 1,
        optional: bool = False,
    ) -> Fault:
        """Reject the next request of that API with an error, such as "NOT_ENOUGH_REPLICAS"."""
        key = api_key_of(api)
        check_refusable(key)
        code = ErrorCode[error] if isinstance(error, str) else ErrorCode(error)
        text = f"refuse the next {_request_text(key, topic)} with {code.name}"
        return self._arm(
            Strike.REFUSE, text, api_keys=(key,), topic=topic, times=times, error=code, is_optional=optional
        )

    def slow(self, topic: str, seconds: float, *, optional: bool = False) -> Fault:
        """Delay the responses to produce and fetch requests of the topic, until the fault ends."""
        text = f"slow down {topic} by {seconds:g} s"
        return self._arm(
            Strike.DELAY,
            text,
            api_keys=(_PRODUCE, _FETCH),
            topic=topic,
            delay_s=seconds,
            is_optional=optional,
        )

    def slow_api(
        self, api: str, seconds: float, *, times: int | None = None, optional: bool = False
    ) -> Fault:
        """Delay the responses of that API: the next few, or until the fault ends."""
        key = api_key_of(api)
        text = f"slow down {apis.API_NAMES[key]} by {seconds:g} s"
        return self._arm(
            Strike.DELAY, text, api_keys=(key,), times=times, delay_s=seconds, is_optional=optional
        )

    def fill_disk(self, *, optional: bool = False) -> Fault:
        """Fail every write, as on a full disk, until the fault ends."""
        fault = self._arm(Strike.FILL_DISK, "fill the disk", is_optional=optional)
        for host in list(self._hosts):
            host.set_disk_full(True)
        return fault

    def disconnect_all(self) -> int:
        """Close every client connection now. Returns how many there were."""
        return sum(host.disconnect_all() for host in list(self._hosts))

    def allow_unused(self) -> None:
        """Allow all faults armed so far to stay unused."""
        for fault in self._all:
            fault.is_optional = True

    # -- the book --------------------------------------------------------------------------------------------

    def _arm(self, strike: Strike, text: str, **details: Any) -> Fault:
        times = details.get("times")
        if times is not None and times < 1:
            raise ValueError(f"a fault strikes at least once, not {times} times")
        fault = Fault(self, strike, text, **details)
        with self._lock:
            self._armed.append(fault)
            self._all.append(fault)
        return fault

    def forget(self, fault: Fault) -> None:
        """Stop tracking a fault that its block has checked."""
        with self._lock:
            if fault in self._all:
                self._all.remove(fault)

    def ended(self, fault: Fault) -> None:
        with self._lock:
            if fault in self._armed:
                self._armed.remove(fault)
        if fault.strike is Strike.FILL_DISK:
            for host in list(self._hosts):
                host.set_disk_full(False)

    @property
    def is_armed(self) -> bool:
        return bool(self._armed)

    def concerns(self, api_key: int) -> bool:
        """Whether a request of this API may be struck, so that decoding it is worth the cost."""
        return any(api_key in fault.api_keys for fault in self._armed)

    def take(self, api_key: int, topics: Callable[[], set[str]]) -> Fault | None:
        """Returns the first armed fault that matches the request, and counts the strike."""
        with self._lock:
            for fault in self._armed:
                if api_key in fault.api_keys and (fault.topic is None or fault.topic in topics()):
                    fault.hit()
                    if fault.is_exhausted:
                        self._armed.remove(fault)
                    return fault
        return None

    def disk_refused(self) -> None:
        with self._lock:
            for fault in self._armed:
                if fault.strike is Strike.FILL_DISK:
                    fault.hit()

    def check_all_used(self) -> None:
        """Raise `UnusedFault` at the end of a test for faults that never struck."""
        unused = []
        for fault in self._all:
            try:
                fault.check_used()
            except UnusedFault:
                unused.append(fault)
        if unused:
            raise UnusedFault(_unused_text(unused))

    def attach(self, host: Host) -> Callable[[], None]:
        """Register a running node. Returns a function that removes it."""
        self._hosts.append(host)
        if any(fault.strike is Strike.FILL_DISK for fault in self._armed):
            host.set_disk_full(True)
        return lambda: self._hosts.remove(host)


def _request_text(api_key: int, topic: str | None) -> str:
    return apis.API_NAMES[api_key] + (f" of {topic}" if topic is not None else "")
