"""Hot keys: one key that is a large share of a topic would make one partition, and its consumer, carry all of it.

`HotKeys` is off unless a client is given one. Then, for every topic, the last `window` records with a key are
remembered. A key that has at least `share` of them is hot: its records go to `spread` partitions in turn instead of
one. The key in the record stays what it is. Every other key goes where Kafka's own client sends it (murmur2).

The price: **a hot key's records have no order among themselves**, because they are in several partitions. That holds
while it is hot, and across the moments when that begins and ends. A consumer that needs all of them reads
`partitions_of`.

Nothing is drawn at random and no clock is read: the same keys in the same order go to the same partitions. Each
producer counts for itself, since none sees what the others send.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from tidemill.client.producing.partitioner import partition_of_key
from tidemill.sdk.errors import InvalidSetting


@dataclass(frozen=True, slots=True)
class HotKeys:
    # A key is hot when it has this share of the window, or more.
    share: float = 0.1
    # How many records of a topic are looked back on.
    window: int = 10_000
    # How many partitions a hot key is spread over, where the topic has as many.
    spread: int = 4

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InvalidSetting(f"HotKeys: share is {self.share:g}; it has to be above 0, and 1 at most")
        if self.window < 1 or self.spread < 1:
            raise InvalidSetting(
                f"HotKeys: window is {self.window} and spread {self.spread}; both have to be 1 or more"
            )

    def partitions_of(self, key: str | bytes, partition_count: int) -> list[int]:
        """Returns the partitions of a key's records: its own first, then those that it uses while it is hot."""
        home = partition_of_key(key.encode() if isinstance(key, str) else key, partition_count)
        used = min(self.spread, partition_count)
        stride = partition_count // used
        return [(home + number * stride) % partition_count for number in range(used)]


class _Window:
    """The last keys of one topic."""

    def __init__(self) -> None:
        self.keys: deque[bytes] = deque()
        self.counts: Counter[bytes] = Counter()
        # How many records of a key were spread so far: whose turn it is.
        self.turns: dict[bytes, int] = {}


class HotKeySpreader:
    """Counts the keys of one producer. Not for several threads at once."""

    def __init__(self, rule: HotKeys) -> None:
        self._rule = rule
        self._threshold = rule.share * rule.window
        self._windows: dict[str, _Window] = {}

    def partition(self, topic: str, key: bytes, partition_count: int) -> int | None:
        """The partition of the next record with this key; None leaves it to the key's hash."""
        window = self._windows.setdefault(topic, _Window())
        window.keys.append(key)
        window.counts[key] += 1
        if len(window.keys) > self._rule.window:
            self._forget(window, window.keys.popleft())
        if window.counts[key] < self._threshold:
            window.turns.pop(key, None)
            return None
        turn = window.turns.get(key, 0)
        window.turns[key] = turn + 1
        partitions = self._rule.partitions_of(key, partition_count)
        return partitions[turn % len(partitions)]

    @staticmethod
    def _forget(window: _Window, key: bytes) -> None:
        window.counts[key] -= 1
        if not window.counts[key]:
            del window.counts[key]
            window.turns.pop(key, None)
