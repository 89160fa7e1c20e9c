"""Inspected batches of a partition that wait while it takes no appends.

The delivery of delayed records closes a partition for moments, and lets batches in as it keeps up with the log
(`delivery.py`). A held batch has its place in the order of its connection, and its bytes count there. So a producer that is
too fast is slowed down by its own requests in flight, with acks=0 as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

# Appending so many batches takes about a millisecond.
_LET_IN_AT_ONCE = 10


class HeldBatches:
    __slots__ = ("_waiting", "is_open")

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self.is_open = True

    def __len__(self) -> int:
        return len(self._waiting)

    def admit(self, record_count: int, append: Callable[[], None]) -> None:
        """Append a batch now, or in its turn."""
        if self.is_open:
            append()
        else:
            self._waiting.append((record_count, append))

    def let_in(self, records_max: int, *, takes_any_first: bool = False) -> int:
        """Append some of the batches that wait, of up to so many records. Returns how many records that were.

        With `takes_any_first` one batch may have more.
        """
        record_count = 0
        for number in range(_LET_IN_AT_ONCE):
            if not self._waiting:
                break
            is_free = takes_any_first and number == 0
            if not is_free and record_count + self._waiting[0][0] > records_max:
                break
            count, append = self._waiting.popleft()
            record_count += count
            append()
        return record_count

    def release(self) -> None:
        """Open, and append everything that waits."""
        self.is_open = True
        while self._waiting:
            self._waiting.popleft()[1]()
