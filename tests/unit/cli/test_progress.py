"""Progress: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import io

from tidemill.cli.cluster.throttle import throttled_replicas
from tidemill.cli.progress import Progress
from tidemill.types import TopicPartition


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_come_at_intervals_and_the_end_always() -> None:
    stream, now = io.StringIO(), [0.0]
    with Progress(stream, lambda: now[0]) as progress:
        progress.show(0.0, "begun")
        now[0] = 1.0
        progress.show(0.4, "too early")
        now[0] = 3.0
        progress.show(0.5, "half")
        now[0] = 3.1
        progress.show(1.0, "done")
        progress.show(1.0, "done")
    assert stream.getvalue() == "  0 %  begun\n 50 %  half\n100 %  done\n"


def test_a_bar_redraws_itself_and_ends_its_line() -> None:
    stream = Terminal()
    with Progress(stream) as progress:
        progress.show(0.5, "half")
        progress.show(1.0, "done")
    half, done = stream.getvalue().split("\r")[1:]
    assert half.startswith("[" + "#" * 15 + "." * 15 + "]  50 %  half")
    assert done.startswith("[" + "#" * 30 + "] 100 %  done")
    assert done.endswith("\n")


def test_work_without_a_known_end_has_no_bar() -> None:
    stream = Terminal()
    with Progress(stream) as progress:
        progress.show(None, "7 records")
    assert stream.getvalue() == "\r7 records\x1b[K\n"


def test_a_throttle_covers_senders_and_receivers() -> None:
    present = {TopicPartition("t", 0): (1, 2), TopicPartition("t", 1): (2, 3)}
    targets = {TopicPartition("t", 0): (1, 4), TopicPartition("t", 1): (5, 3)}
    assert throttled_replicas(present, targets) == {
        "t": {
            "leader.replication.throttled.replicas": "0:1,0:2,1:2,1:3",
            "follower.replication.throttled.replicas": "0:4,1:5",
        }
    }
