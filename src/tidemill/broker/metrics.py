"""What a node counts while it works: plain integers, added to by whoever does the work.

Nothing here has a name, a label or a text: `exposition.py` gives them those when somebody asks. A partition holds the counts
of its topic, a request those of its API, so that counting is an addition and no lookup. Counts only grow, and are kept when
a topic moves away, so that a rate over them is never wrong because of a rebalance.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

# In seconds. From a heartbeat's 50 µs to a fetch that waits for its half second, and what is slower than it should be.
LATENCY_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip


class Histogram:
    """How many of the observed seconds lie up to each bound, and above the last."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


class TopicCounts:
    """Of one topic, in all of its partitions that are or were here."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetch_requests",
        "failed_produce_requests",
        "fetch_requests",
        "messages_in",
        "produce_requests",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        # A request counts once for each partition that it writes or reads, as in Kafka.
        self.produce_requests = 0
        self.failed_produce_requests = 0
        self.fetch_requests = 0
        self.failed_fetch_requests = 0
        # What followers here copied from leaders elsewhere, and followers elsewhere from leaders here.
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0


class Metrics:
    def __init__(self, ticks: Callable[[], float]) -> None:
        # Seconds that only grow, as fine as the machine has them.
        self.ticks = ticks
        self.topics: dict[str, TopicCounts] = {}
        self.requests: dict[int, Histogram] = {}
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.loop_lag = Histogram()

    def topic(self, name: str) -> TopicCounts:
        known = self.topics.get(name)
        if known is None:
            known = self.topics[name] = TopicCounts()
        return known

    def request(self, api_key: int) -> Histogram:
        known = self.requests.get(api_key)
        if known is None:
            known = self.requests[api_key] = Histogram()
        return known
