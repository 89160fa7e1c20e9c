"""Connections whose peers are not authenticated yet: bounded in number and in time.

A peer is in here from accept until its TLS handshake is done, and on a listener with SASL until it has logged in. When
there are too many, the oldest of the address that has most of them is closed. An honest peer is done within
milliseconds, so ten thousand that hold half a handshake only displace each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# Why a setup is given up; the number of those is logged together, not one by one.
GiveUp = Callable[[str], None]


class _Setup(NamedTuple):
    ip: str
    due_s: float
    give_up: GiveUp


class Setups:
    def __init__(self, count_max: int, setup_s_max: float) -> None:
        self._count_max = count_max
        self._setup_s_max = setup_s_max
        self._next_number = 0
        # In the order of their beginning; and the same by address.
        self._setups: dict[int, _Setup] = {}
        self._by_ip: dict[str, dict[int, None]] = {}
        # Since the last `take_given_up_count`.
        self._given_up_count = 0

    def __len__(self) -> int:
        return len(self._setups)

    def begin(self, ip: str, now_s: float, give_up: GiveUp) -> int:
        """A number for `end`. `give_up` is called at most once, and not after `end`."""
        if len(self._setups) >= self._count_max:
            busiest = max(self._by_ip.values(), key=len)
            self._give_up(next(iter(busiest)), "too many connections are not authenticated")
        number = self._next_number = self._next_number + 1
        self._setups[number] = _Setup(ip, now_s + self._setup_s_max, give_up)
        self._by_ip.setdefault(ip, {})[number] = None
        return number

    def end(self, number: int) -> None:
        """Forgets a setup that is done, failed or given up."""
        setup = self._setups.pop(number, None)
        if setup is None:
            return
        of_ip = self._by_ip[setup.ip]
        del of_ip[number]
        if not of_ip:
            del self._by_ip[setup.ip]

    def expire(self, now_s: float) -> None:
        """Give up those whose time is over."""
        late = []
        for number, setup in self._setups.items():
            if setup.due_s > now_s:
                break
            late.append(number)
        for number in late:
            self._give_up(number, f"not set up within {self._setup_s_max:g} s")

    def _give_up(self, number: int, reason: str) -> None:
        setup = self._setups[number]
        self.end(number)
        self._given_up_count += 1
        setup.give_up(reason)

    def take_given_up_count(self) -> int:
        count, self._given_up_count = self._given_up_count, 0
        return count

    def close(self) -> None:
        for number in list(self._setups):
            self._give_up(number, "the broker stops")
