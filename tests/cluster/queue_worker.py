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
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import tidemill
from tests.cluster.member_process import message_id
from tidemill.sdk.errors import ClientError
from tidemill.sim.checks.shares import Acknowledge, Acknowledged, AcknowledgeSent, AcquiredRecord, ShareEvent
from tidemill.types import TopicPartition

REPO = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
COMPLAINTS_MAX = 4000
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
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.queue_worker", bootstrap, topic, group, str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            cwd=REPO,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # the last line of a killed process may be cut
                self._understand(json.loads(line))

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
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(LIMIT_S)
        complaints = self.complaints()
        self._close()
        assert code == 0, f"{self.name} ended with {code}\n{complaints}"

    def kill(self) -> None:
        """`kill -9`."""
        self._process.kill()
        self._process.wait(LIMIT_S)
        self._close()

    def end(self) -> None:
        if self._process.poll() is None:
            self.kill()

    def assert_alive(self) -> None:
        code = self._process.poll()
        assert code is None, f"{self.name} ended by itself with {code}\n{self.complaints()}"

    def complaints(self) -> str:
        """The end of what it wrote to its standard error."""
        self._complaints.seek(0)
        return self._complaints.read().decode(errors="replace")[-COMPLAINTS_MAX:]

    def _close(self) -> None:
        self._reader.join(LIMIT_S)
        self._complaints.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


if __name__ == "__main__":
    main()
