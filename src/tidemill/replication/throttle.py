"""A limit on bytes per second, checked before sending and charged afterwards.

As with Kafka's replication quotas, a send of any size may start while anything is left. What exceeded the limit is paid
back before the next send.
"""

from __future__ import annotations

UNLIMITED = (1 << 63) - 1
_RETRY_MS_MAX = 1_000


class RateLimit:
    __slots__ = ("_balance", "_last_ms", "bytes_per_s")

    def __init__(self, bytes_per_s: int = UNLIMITED) -> None:
        self.bytes_per_s = bytes_per_s
        self._balance = 0.0
        self._last_ms = 0

    def _balance_at(self, steady_ms: int) -> float:
        """The bytes that may be sent. What is not used adds up to at most one second's worth."""
        rate = self.bytes_per_s
        return min(rate, self._balance + (steady_ms - self._last_ms) * rate / 1000)

    def wait_ms(self, steady_ms: int) -> int:
        """Returns how long nothing may be sent; 0 when something may."""
        rate = self.bytes_per_s
        if rate == UNLIMITED:
            return 0
        balance = self._balance_at(steady_ms)
        if balance > 0:
            return 0
        if not rate:
            return _RETRY_MS_MAX
        return min(_RETRY_MS_MAX, int(-balance * 1000 / rate) + 1)

    def charge(self, size: int, steady_ms: int) -> None:
        if self.bytes_per_s != UNLIMITED:
            self._balance = self._balance_at(steady_ms) - size
            self._last_ms = steady_ms
