"""The counters of a node: plain integers that the code path which does the work adds to.

Nothing here has a name, a label or a text: `exposition.py` adds those at a scrape. A partition holds the counts
of its topic, a request those of its API, so that counting is an addition and no lookup. Counts only grow, and are kept when
a topic moves away, so that a rate over them is never wrong because of a rebalance. Request times are noted only
while the status listener is on, which sorts the notes into buckets several times a second.
"""

from __future__ import annotations

from bisect import bisect_right

# In seconds. From a heartbeat's 50 µs to a fetch that waits for its half second, and what is slower than it should be.
LATENCY_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip


class Histogram:
    """Counts observed seconds by bucket: up to each bound, and above the last."""

    __slots__ = ("_counts", "_new", "_sum_s", "observe")

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self._sum_s = 0.0
        # A request has time for no more than an `append`; many are sorted into their buckets for the price of a few.
        self._new: list[float] = []
        self.observe = self._new.append

    def settle(self) -> None:
        """Counts the observations made since the last call, which take memory until then."""
        new = self._new
        if not new:
            return
        self._sum_s += sum(new)
        new.sort()
        below = 0
        for index, bound in enumerate(LATENCY_BOUNDS_S):
            up_to = bisect_right(new, bound, below)
            self._counts[index] += up_to - below
            below = up_to
        self._counts[-1] += len(new) - below
        new.clear()

    @property
    def counts(self) -> list[int]:
        self.settle()
        return self._counts

    @property
    def sum_s(self) -> float:
        self.settle()
        return self._sum_s

    @property
    def count(self) -> int:
        return sum(self.counts)

    def copy(self) -> Histogram:
        copied = Histogram()
        copied._counts, copied._sum_s = self.counts.copy(), self.sum_s
        return copied

    def since(self, earlier: Histogram) -> Histogram:
        """Returns the observations made after `earlier` was copied from this one."""
        difference = Histogram()
        difference._counts = [now - before for now, before in zip(self.counts, earlier.counts, strict=True)]
        difference._sum_s = self.sum_s - earlier.sum_s
        return difference


def quantile(histogram: Histogram, share: float) -> float:
    """Seconds, estimated as Prometheus does it: spread evenly within a bucket, the last bound when beyond it."""
    wanted, below = share * histogram.count, 0
    for index, count in enumerate(histogram.counts[:-1]):
        if count and below + count >= wanted:
            lower = LATENCY_BOUNDS_S[index - 1] if index else 0.0
            return lower + (LATENCY_BOUNDS_S[index] - lower) * (wanted - below) / count
        below += count
    return LATENCY_BOUNDS_S[-1] if below < histogram.count else 0.0


class TopicCounts:
    """The counters of one topic, over all of its partitions that are or were here."""

    __slots__ = (
        "batches_passed_on",
        "bytes_in",
        "bytes_out",
        "delays_cancelled",
        "delays_delivered",
        "failed_fetch_requests",
        "failed_produce_requests",
        "fetch_requests",
        "messages_in",
        "produce_requests",
        "replication_bytes_in",
        "replication_bytes_out",
        "view_bytes_scanned",
        "view_records_scanned",
        "view_records_shown",
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
        # What was looked through in the source of a view, and what of it the view showed.
        self.view_bytes_scanned = 0
        self.view_records_scanned = 0
        self.view_records_shown = 0
        # Delayed records whose copies were appended here, and those that were cancelled while this broker led.
        self.delays_delivered = 0
        self.delays_cancelled = 0
        # Batches for decommissioned partitions led here that others have stored.
        self.batches_passed_on = 0


class Metrics:
    def __init__(self) -> None:
        # Whether requests are timed. If so, the status listener has to call `settle`.
        self.is_watched = False
        self.topics: dict[str, TopicCounts] = {}
        self.requests: dict[int, Histogram] = {}
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.loop_lag = Histogram()
        # How long after their due time delayed records were delivered.
        self.delay_lateness = Histogram()

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

    def settle(self) -> None:
        self.loop_lag.settle()
        self.delay_lateness.settle()
        for each in self.requests.values():
            each.settle()


class Recent:
    """The last minute or two of what only grows: a copy from the beginning of each of the last two windows.

    Its owner calls `turn` once a window, in the thread of the event loop, and passes that thread's CPU time.
    """

    WINDOW_S = 60.0

    def __init__(self, metrics: Metrics, now_s: float, loop_cpu_s: float) -> None:
        self._metrics = metrics
        self._before = self._now = self._copy(now_s, loop_cpu_s)

    def _copy(self, now_s: float, loop_cpu_s: float) -> tuple[float, float, dict[int, Histogram]]:
        return now_s, loop_cpu_s, {key: each.copy() for key, each in self._metrics.requests.items()}

    def is_due(self, now_s: float) -> bool:
        return now_s - self._now[0] >= self.WINDOW_S

    def turn(self, now_s: float, loop_cpu_s: float) -> None:
        self._before, self._now = self._now, self._copy(now_s, loop_cpu_s)

    def requests(self) -> dict[int, Histogram]:
        none = Histogram()
        return {
            key: each.since(self._before[2].get(key, none)) for key, each in self._metrics.requests.items()
        }

    def idle_share(self, now_s: float, loop_cpu_s: float) -> float:
        """Returns the share of the time in which the loop's thread did not compute."""
        passed_s = now_s - self._before[0]
        return 1.0 if passed_s <= 0 else min(1.0, max(0.0, 1.0 - (loop_cpu_s - self._before[1]) / passed_s))
