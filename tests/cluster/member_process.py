"""A member of a group as a process: `python -m tests.cluster.member_process JSON`. It can be killed.

It polls, reports, commits what it was given, and polls again, until a line on its standard input tells it to leave. What
happens goes to standard output as events of `tidemill.sim.checks.checker`, a JSON line each, written before the next thing
happens: what a killed process has done is in the pipe. `MemberProcess` is the other side.
"""

from __future__ import annotations

import dataclasses
import json
import select
import sys
import time
from collections.abc import Iterable
from typing import Any

from tests.cluster.reporting_process import ReportingProcess
from tests.interop.clients import ClientError, Received
from tests.interop.group_consumers import GroupConsumer, GroupListener, MemberSettings, Position
from tests.interop.group_table import KINDS
from tidemill.sim.checks import checker
from tidemill.sim.checks.checker import MemberName, MessageId
from tidemill.types import TopicPartition

POLL_S = 0.05
LIMIT_S = 30.0
EVENTS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        checker.Assigned,
        checker.Revoked,
        checker.Lost,
        checker.Delivered,
        checker.CommitSent,
        checker.Committed,
    )
}


def encode(event: checker.Event) -> str:
    fields = [getattr(event, field.name) for field in dataclasses.fields(event)]
    return json.dumps([type(event).__name__, *fields])


def decode(line: str) -> checker.Event:
    name, at_s, (group, member), *rest = json.loads(line)
    head = (at_s, MemberName(group, member))
    if name in ("Assigned", "Revoked", "Lost"):
        rest[0] = tuple(TopicPartition(*place) for place in rest[0])
    else:
        rest[0] = TopicPartition(*rest[0])
    if name == "Delivered":
        rest[2] = MessageId(*rest[2])
    event: checker.Event = EVENTS[name](*head, *rest)
    return event


def message_id(value: bytes) -> MessageId:
    producer, _, number = value.decode().partition("/")
    return MessageId(producer, int(number))


class _Reporter(GroupListener):
    def __init__(self, name: MemberName) -> None:
        self.name = name
        self.owned: set[TopicPartition] = set()
        self.read: dict[TopicPartition, Position] = {}

    def write(self, event: checker.Event) -> None:
        sys.stdout.write(encode(event) + "\n")

    def assigned(self, partitions: Iterable[TopicPartition], generation: int | None) -> None:
        partitions = tuple(partitions)
        self.owned.update(partitions)
        self.write(checker.Assigned(time.monotonic(), self.name, partitions, generation))

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        given_up = self._give_up(partitions)
        if given_up:
            self.write(checker.Revoked(time.monotonic(), self.name, given_up))

    def lost(self, partitions: Iterable[TopicPartition]) -> None:
        given_up = self._give_up(partitions)
        if given_up:
            self.write(checker.Lost(time.monotonic(), self.name, given_up))

    def _give_up(self, partitions: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
        """Those that were not given up before: a closing client may say it again."""
        given_up = tuple(sorted(self.owned & set(partitions)))
        self.owned.difference_update(given_up)
        for partition in given_up:
            self.read.pop(partition, None)
        return given_up

    def received(self, topic: str, record: Received, generation: int | None) -> None:
        place = TopicPartition(topic, record.partition)
        message = message_id(record.value or b"")
        self.write(checker.Delivered(time.monotonic(), self.name, place, record.offset, message, generation))
        self.read[place] = Position(record.offset + 1)

    def commit(self, consumer: GroupConsumer) -> None:
        positions, self.read = self.read, {}
        for place, position in positions.items():
            self.write(checker.CommitSent(time.monotonic(), self.name, place, position.offset))
        sys.stdout.flush()
        try:
            consumer.commit(positions)
        except ClientError:
            return  # a rebalance came first: the next owner of the partition reads it again
        for place, position in positions.items():
            self.write(checker.Committed(time.monotonic(), self.name, place, position.offset))


def main() -> None:
    task = json.loads(sys.argv[1])
    (kind,) = [kind for kind in KINDS if kind.name == task["kind"]]
    settings = MemberSettings(**{**task["settings"], "topics": tuple(task["settings"]["topics"])})
    reporter = _Reporter(MemberName(settings.group, task["name"]))
    consumer = kind(task["bootstrap"], settings, reporter)
    while not select.select([sys.stdin], [], [], 0)[0]:
        try:
            consumer.poll(POLL_S)
        except ClientError as refused:
            print(refused, file=sys.stderr)
        if reporter.read:
            reporter.commit(consumer)
        sys.stdout.flush()
    reporter.revoked(reporter.owned)
    sys.stdout.flush()
    consumer.close()


class MemberProcess:
    """A running member. `leave` or `kill` it; `events` has what it did."""

    def __init__(
        self, name: str, kind: type[GroupConsumer], bootstrap: str, settings: MemberSettings
    ) -> None:
        self.name = MemberName(settings.group, name)
        self.kind = kind
        self.events: list[checker.Event] = []
        task = {
            "name": name,
            "kind": kind.name,
            "bootstrap": bootstrap,
            "settings": dataclasses.asdict(settings),
        }
        self._process = ReportingProcess(
            str(self.name),
            "tests.cluster.member_process",
            json.dumps(task),
            take=lambda line: self.events.append(decode(line)),
            limit_s=LIMIT_S,
        )

    def owned(self) -> set[TopicPartition]:
        owned: set[TopicPartition] = set()
        for event in list(self.events):
            if isinstance(event, checker.Assigned):
                owned.update(event.partitions)
            elif isinstance(event, checker.Revoked | checker.Lost):
                owned.difference_update(event.partitions)
        return owned

    def delivered(self) -> int:
        return sum(isinstance(event, checker.Delivered) for event in list(self.events))

    def ask_to_leave(self) -> None:
        self._process.assert_alive()
        self._process.stdin.write("leave\n")
        self._process.stdin.flush()

    def leave(self) -> None:
        self.ask_to_leave()
        self._process.assert_ends_well()

    def kill(self) -> None:
        self._process.kill()
        self.events.append(checker.Died(time.monotonic(), self.name))

    def end(self) -> None:
        """Whatever became of it."""
        if self.is_alive:
            self.kill()
        else:
            self._process.close()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive

    def assert_alive(self) -> None:
        self._process.assert_alive()


if __name__ == "__main__":
    main()
