"""Slows down password guessing. Pure: the clock is passed in, and nothing waits here.

Failed log-ins are counted by address and by user. An attempt waits longer the more of them there were, `wait_s_max` at
most; it is never refused for their number alone, so no user can be locked out by others. The rate of guesses is bounded
by the number of attempts that may wait or be tried at the same time: in all, from one address, and for one user from
one address. Beyond that an attempt is refused at once.

A user that has logged in from an address is known there. Failures of others slow such a user down no more, until guesses
with that name come from that very address.

Memory is bounded: of each table the entry whose last failure is oldest goes first. Names are kept as digests.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections import Counter, OrderedDict
from typing import NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")

# Failures that slow nothing down: people mistype, and many of them may share an address.
_USER_FREE, _ADDRESS_FREE, _KNOWN_FREE = 5, 20, 5
_FIRST_WAIT_S = 0.25
# Failures are forgotten when none has followed for so long.
_FORGOTTEN_S = 900.0
_ENTRIES_MAX = 10_000
_PENDING_MAX, _ADDRESS_PENDING_MAX, _PAIR_PENDING_MAX = 256, 64, 4


class Attempt(NamedTuple):
    """One log-in that was admitted: `wait_s` before it may be tried."""

    address: bytes
    user: bytes
    wait_s: float


class LoginThrottle:
    def __init__(self, wait_s_max: float) -> None:
        self._wait_s_max = wait_s_max
        self._addresses: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        self._users: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        # Failures since the last success, by address and user.
        self._known: OrderedDict[tuple[bytes, bytes], int] = OrderedDict()
        self._pending: Counter[object] = Counter()

    def __len__(self) -> int:
        """Entries of all tables."""
        return len(self._addresses) + len(self._users) + len(self._known) + len(self._pending)

    def begin(self, address: str, username: str, now_s: float) -> Attempt | None:
        """The attempt, which ends with `end`; None when too many are under way."""
        attempt = Attempt(
            _network(address), hashlib.sha256(username.encode("utf-8", "replace")).digest(), 0.0
        )
        is_known = self._known.get(attempt[:2], _KNOWN_FREE) < _KNOWN_FREE
        pending = self._pending
        if pending[attempt[:2]] >= _PAIR_PENDING_MAX:
            return None
        is_crowded = pending[attempt.address] >= _ADDRESS_PENDING_MAX or pending[None] >= _PENDING_MAX
        if is_crowded and not is_known:
            return None
        for key in _counted(attempt):
            pending[key] += 1
        return attempt if is_known else attempt._replace(wait_s=self._wait_s(attempt, now_s))

    def end(self, attempt: Attempt, now_s: float, *, is_success: bool | None) -> None:
        """None where the cluster could not say."""
        for key in _counted(attempt):
            self._pending[key] -= 1
            if not self._pending[key]:
                del self._pending[key]
        pair = attempt[:2]
        if is_success:
            self._users.pop(attempt.user, None)
            _put(self._known, pair, 0)
        elif is_success is not None:
            for table, key in ((self._addresses, attempt.address), (self._users, attempt.user)):
                _put(table, key, (_count(table, key, now_s) + 1, now_s))
            if pair in self._known:
                self._known[pair] += 1

    def _wait_s(self, attempt: Attempt, now_s: float) -> float:
        over = max(
            _count(self._addresses, attempt.address, now_s) - _ADDRESS_FREE,
            _count(self._users, attempt.user, now_s) - _USER_FREE,
        )
        if over < 0:
            return 0.0
        return min(self._wait_s_max, _FIRST_WAIT_S * 2.0 ** min(over, 10))


def _counted(attempt: Attempt) -> tuple[object, ...]:
    return None, attempt.address, attempt[:2]


def _count(table: OrderedDict[bytes, tuple[int, float]], key: bytes, now_s: float) -> int:
    count, failed_s = table.get(key, (0, now_s))
    return count if now_s - failed_s < _FORGOTTEN_S else 0


def _put(table: OrderedDict[K, V], key: K, value: V) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > _ENTRIES_MAX:
        table.popitem(last=False)


def _network(address: str) -> bytes:
    """The address; of IPv6 the network of 64 bits, since one host has all of it."""
    try:
        packed = ipaddress.ip_address(address.partition("%")[0]).packed
    except ValueError:
        return address[:64].encode("utf-8", "replace")
    return packed[:8] if len(packed) == 16 else packed
