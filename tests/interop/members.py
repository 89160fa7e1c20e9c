"""A member of a group in a thread of its own, as an application would run it: it polls until it is stopped.

A test looks at what the member owns and has received, and gives it work (commit, seek) that its own thread does between two
polls. `pause` stops polling without a word, as an application does whose processing takes too long.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

from tests.brokers import eventually
from tests.interop.clients import LIMIT_S, ClientError, Received
from tests.interop.group_consumers import GroupConsumer, GroupListener, MemberSettings
from tidemill.types import TopicPartition

POLL_S = 0.05
Result = TypeVar("Result")


class Member(GroupListener):
    """Use as a context manager; leaving it leaves the group."""

    def __init__(self, kind: type[GroupConsumer], bootstrap: str, settings: MemberSettings) -> None:
        self.owned: set[TopicPartition] = set()
        self.rebalances = 0
        self.records: list[tuple[str, Received]] = []
        self.errors: list[ClientError] = []
        self.failure: Exception | None = None
        self._kind, self._bootstrap, self._settings = kind, bootstrap, settings
        self._work: queue.SimpleQueue[Callable[[GroupConsumer], None]] = queue.SimpleQueue()
        self._is_stopping = threading.Event()
        self._is_paused = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Member:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the member did not close"
        if self.failure is not None:
            raise self.failure

    def pause(self) -> None:
        self._is_paused.set()

    def resume(self) -> None:
        self._is_paused.clear()

    def do(self, work: Callable[[GroupConsumer], Result]) -> Result:
        """The result of `work(consumer)`, done by the member's thread."""
        done: Future[Result] = Future()

        def run(consumer: GroupConsumer) -> None:
            try:
                done.set_result(work(consumer))
            except Exception as failure:
                done.set_exception(failure)

        self._work.put(run)
        return done.result(LIMIT_S)

    def values(self) -> list[bytes]:
        return [record.value or b"" for _, record in self.records]

    def _run(self) -> None:
        try:
            consumer = self._kind(self._bootstrap, self._settings, self)
            try:
                self._loop(consumer)
            finally:
                consumer.close()
        except Exception as failure:
            self.failure = failure

    def _loop(self, consumer: GroupConsumer) -> None:
        while not self._is_stopping.is_set():
            while not self._work.empty():
                self._work.get()(consumer)
            if self._is_paused.is_set():
                self._is_stopping.wait(POLL_S)
                continue
            try:
                consumer.poll(POLL_S)
            except ClientError as refused:
                self.errors.append(refused)

    def assigned(self, partitions: Iterable[TopicPartition], generation: int | None) -> None:
        self.owned |= set(partitions)
        self.rebalances += 1

    def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        self.owned -= set(partitions)

    def lost(self, partitions: Iterable[TopicPartition]) -> None:
        self.owned -= set(partitions)

    def received(self, topic: str, record: Received, generation: int | None) -> None:
        self.records.append((topic, record))


def shared_out(members: Iterable[Member], partitions: int, topic: str) -> None:
    """Waits until the members own all partitions of a topic, each one once, and all of them some."""
    members = list(members)
    whole = [TopicPartition(topic, index) for index in range(partitions)]

    def is_so() -> bool:
        for member in members:
            if member.failure is not None:
                raise member.failure
        shares = [set(member.owned) for member in members]
        return sorted(place for share in shares for place in share if place.topic == topic) == whole and all(
            shares
        )

    eventually(is_so, f"{partitions} partitions of {topic}, shared by {len(members)} members")
