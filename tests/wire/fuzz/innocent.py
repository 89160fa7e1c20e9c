"""A client that means no harm: one record at a time goes in and comes out, while others attack. A process of its own.

`python -m tests.wire.fuzz.innocent host:port,… topic partitions` goes on until its standard input ends, then prints one
line of JSON: how many round trips it made, and their times: over all, and the p99 of the worst ten seconds, so that a bad
moment of a long attack shows. It ends by itself, with a reason, when one takes longer than
`LIMIT_S` or what comes out is not what went in.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time

from tests.brokers import RunningBroker
from tests.wire import batches
from tests.wire.connection import Connection, ConnectionClosedError

LIMIT_S = 60.0
# Printed after the first round trip.
READY = "ready"
_PAUSE_S = 0.01
_RETRY_S = 0.05
_ASK_LIMIT_S = 20.0
_WINDOW_S = 10.0


class RoundTripFailed(Exception):
    """A record did not come back in time, or not as it was."""


class Innocent:
    def __init__(self, brokers: list[RunningBroker], topic: str, partitions: int) -> None:
        self._brokers = brokers
        self._topic = topic
        self._partitions = partitions
        self._connections: dict[int, Connection] = {}
        self._asked = 0
        # When each round trip began, and how long it took.
        self.round_trips: list[tuple[float, float]] = []
        self.retries = 0

    def round_trip(self) -> None:
        number = len(self.round_trips)
        partition = number % self._partitions
        value = b"innocent %d" % number
        began_s = time.perf_counter()
        last = "nothing was tried"
        while time.perf_counter() - began_s < LIMIT_S:
            try:
                failure = self._try(partition, value)
            except (OSError, ConnectionClosedError, StopIteration, IndexError) as error:
                failure = repr(error)
            if failure is None:
                self.round_trips.append((began_s, time.perf_counter() - began_s))
                return
            last = failure
            self.retries += 1
            with contextlib.suppress(KeyError):
                self._connections.pop(partition).close()
            time.sleep(_RETRY_S)
        raise RoundTripFailed(f"no round trip within {LIMIT_S:g} s: {last}")

    def _try(self, partition: int, value: bytes) -> str | None:
        """None when the record went in and came out; else why it did not."""
        connection = self._connections.get(partition)
        if connection is None:
            connection = self._connections[partition] = self._connect(partition)
        produced = connection.produce(self._topic, batches.encode([value]), partition=partition)
        if produced.error_code:
            return f"produce: {produced.error_code!r}"
        fetched = connection.fetch(self._topic, produced.base_offset, partition=partition, max_wait=500)
        if fetched.error_code:
            return f"fetch: {fetched.error_code!r}"
        found = batches.parse_fetched(bytes(fetched.records or b""))
        if not found or found[0].values() != [value]:
            return (
                f"wrote {value!r} at {produced.base_offset}, read {[batch.values() for batch in found][:3]}"
            )
        return None

    def _connect(self, partition: int) -> Connection:
        self._asked += 1
        with Connection(self._brokers[self._asked % len(self._brokers)], _ASK_LIMIT_S) as connection:
            answer = connection.request("metadata", 12, topics=[{"name": self._topic}])
        leader = next(
            each.leader_id for each in answer.topics[0].partitions if each.partition_index == partition
        )
        place = next(each for each in answer.brokers if each.node_id == leader)
        return Connection(RunningBroker(place.host, place.port), _ASK_LIMIT_S)

    def summary(self, failure: str | None) -> dict[str, object]:
        windows: dict[int, list[float]] = {}
        for began_s, took_s in self.round_trips:
            windows.setdefault(int((began_s - self.round_trips[0][0]) / _WINDOW_S), []).append(took_s)
        all_s = [took_s for _, took_s in self.round_trips]
        return {
            "failure": failure,
            "round_trips": len(all_s),
            "retries": self.retries,
            "p50_ms": _percentile_ms(all_s, 0.50),
            "p99_ms": _percentile_ms(all_s, 0.99),
            "max_ms": _percentile_ms(all_s, 1.0),
            "worst_10s_p99_ms": max((_percentile_ms(each, 0.99) for each in windows.values()), default=0.0),
        }


def _percentile_ms(times_s: list[float], share: float) -> float:
    ordered = sorted(times_s) or [0.0]
    return round(ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000, 1)


def main() -> None:
    bootstrap, topic, partitions = sys.argv[1:]
    brokers = []
    for each in bootstrap.split(","):
        host, port = each.rsplit(":", 1)
        brokers.append(RunningBroker(host, int(port)))
    is_over = threading.Event()

    def watch_input() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=watch_input, daemon=True).start()
    innocent = Innocent(brokers, topic, int(partitions))
    failure = None
    try:
        innocent.round_trip()
        print(READY, flush=True)
        while not is_over.wait(_PAUSE_S):
            innocent.round_trip()
    except Exception as error:
        failure = repr(error)
    print(json.dumps(innocent.summary(failure)), flush=True)


if __name__ == "__main__":
    main()
