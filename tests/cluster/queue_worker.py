"""A worker of a queue as a process that can be killed: it works on jobs through the SDK and prints what it saw.

The program prints one line of JSON for each step: a job was handed to the handler, an acknowledgement is about to be
sent, the broker has confirmed it. `WorkerProcess` starts it and makes events of `tidemill.sim.checks.shares` of the lines.
Times are of the monotonic clock, which all processes of a machine share.

The request of a fetch is not visible through the SDK, so `asked_s` of a delivery is the moment when the handler got it.
That is stricter than the rules need: a job that waited in the worker counts as delivered when its work begins.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from typing import Any

import tidemill
from tests.cluster.member_process import message_id
from tests.cluster.reporting_process import ReportingProcess
from tidemill.sdk.errors import ClientError
from tidemill.sim.checks.shares import Acknowledge, Acknowledged, AcknowledgeSent, AcquiredRecord, ShareEvent
from tidemill.types import TopicPartition

LIMIT_S = 60.0
CONCURRENCY, PREFETCH = 4, 8
WORK_S_MAX = 0.02
RELEASED = 0.05


class _Worker:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._lock = threading.Lock()

    def _say(self, *what: object) -> None:
        with self._lock:
            sys.stdout.write(json.dumps([time.monotonic(), *what]) + "\n")
            sys.stdout.flush()

    def handle(self, job: tidemill.Job) -> None:
        record = job.record
        count = job.delivery.delivery_count
        place = (record.topic, record.partition, record.offset)
        self._say("taken", place, (job.value or b"").decode(), count)
        time.sleep(self._rng.random() * WORK_S_MAX)
        is_released = count == 1 and self._rng.random() < RELEASED
        kind = Acknowledge.RELEASE if is_released else Acknowledge.ACCEPT
        self._say("sent", place, int(kind))
        try:
            job.retry() if is_released else job.done()
        except ClientError as refused:
            print(refused, file=sys.stderr)
            return
        self._say("confirmed", place, int(kind))


def main() -> None:
    bootstrap, topic, group, seed = sys.argv[1:]
    stop = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    with tidemill.Client(bootstrap) as client:
        queue = client.queue(topic, group, prefetch=PREFETCH, concurrency=CONCURRENCY)
        queue.run(_Worker(int(seed)).handle, stop=stop)


class WorkerProcess:
    """A running worker. `stop` or `kill` it; `events` has what it did."""

    def __init__(self, name: str, bootstrap: str, topic: str, group: str, seed: int) -> None:
        self.name = name
        self.events: list[ShareEvent] = []
        self._taken: dict[tuple[TopicPartition, int], AcquiredRecord] = {}
        self._sent: dict[tuple[TopicPartition, int], AcknowledgeSent] = {}
        self._process = ReportingProcess(
            name,
            "tests.cluster.queue_worker",
            bootstrap,
            topic,
            group,
            str(seed),
            take=lambda line: self._understand(json.loads(line)),
            limit_s=LIMIT_S,
        )

    def _understand(self, said: list[Any]) -> None:
        at_s, what, (topic, index, offset), *rest = said
        tp = TopicPartition(topic, index)
        match what:
            case "taken":
                message, count = message_id(rest[0].encode()), rest[1]
                taken = AcquiredRecord(at_s, at_s, self.name, tp, offset, message, count)
                self._taken[tp, offset] = taken
                self.events.append(taken)
            case "sent":
                taken = self._taken[tp, offset]
                kind = Acknowledge(rest[0])
                sent = AcknowledgeSent(at_s, self.name, tp, offset, kind, taken.delivery_count, taken.at_s)
                self._sent[tp, offset] = sent
                self.events.append(sent)
            case "confirmed":
                self.events.append(Acknowledged(at_s, self._sent[tp, offset]))

    def stop(self) -> None:
        """It finishes what it has in hand, and leaves the group."""
        self._process.stdin.close()
        self._process.assert_ends_well()

    def kill(self) -> None:
        """`kill -9`."""
        self._process.kill()

    def end(self) -> None:
        if self._process.is_alive:
            self.kill()

    def assert_alive(self) -> None:
        self._process.assert_alive()


if __name__ == "__main__":
    main()
