"""Committing a consumer's offsets, in bounded time.

A commit that fails because of a rebalance is no error: the records are delivered again, to the member that has the
partition then. `Outcome` says which it was. librdkafka's call has no time limit, so it runs in a thread. As long as one
is under way, `settle` prevents other calls on that consumer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from enum import Enum, auto

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Position

from tidemill.sdk.errors import CommitFailed
from tidemill.sdk.kafka_errors import LOST_MEMBERSHIP, NO_ANSWER, REBALANCING, cause, translated
from tidemill.sdk.settings import LOGGER
from tidemill.sdk.waiting import Health, in_thread
from tidemill.types import TopicPartition

_PAUSE_S = 0.05


class Outcome(Enum):
    COMMITTED = auto()
    # The group is rebalancing. What this member keeps is committed the next time.
    LATER = auto()
    # This member is no longer part of the group as it was: others have its partitions.
    LOST = auto()


class Commits:
    def __init__(self, consumer: Consumer, group: str, timeout_s: float, health: Health) -> None:
        self._consumer = consumer
        self.group = group
        self._doing = f"commit offsets of group {group}"
        self._timeout_s = timeout_s
        self._health = health
        self._running: Future[list[Position]] | None = None
        # How long the commit under way may take.
        self._deadline_s = 0.0
        # What a rebalance kept from being committed, of partitions that this member still has.
        self._kept: dict[TopicPartition, int] = {}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> Outcome:
        """`Unreachable` when no answer comes in time; the same call may be made again then."""
        self._kept.update(offsets)
        deadline_s = self._deadline_s = time.monotonic() + self._timeout_s
        self.settle(deadline_s)
        while True:
            self._running = in_thread(self._commit_kept)
            error = self._await(deadline_s)
            if error is None:
                self._kept.clear()
                return Outcome.COMMITTED
            outcome = self._judge(error)
            if outcome is not None:
                return outcome
            if time.monotonic() >= deadline_s:
                raise self._health.unreachable(self._doing, self._timeout_s)
            time.sleep(_PAUSE_S)

    def _commit_kept(self) -> list[Position]:
        positions = [Position(*place, offset) for place, offset in self._kept.items()]
        return self._consumer.commit(offsets=positions, asynchronous=False)

    def _judge(self, error: KafkaError) -> Outcome | None:
        """None asks for another attempt."""
        if error.code() in REBALANCING:
            LOGGER.info("%s: %s", self._doing, error.str())
            return Outcome.LATER
        if error.code() in LOST_MEMBERSHIP:
            LOGGER.info(
                "%s: %s; the records go to the member that has the partitions now", self._doing, error.str()
            )
            self._kept.clear()
            return Outcome.LOST
        if error.code() in NO_ANSWER or error.retriable():
            return None
        raise translated(error, self._doing, CommitFailed)

    def _await(self, deadline_s: float) -> KafkaError | None:
        assert self._running is not None
        try:
            committed = self._running.result(max(0.0, deadline_s - time.monotonic()))
        except TimeoutError:
            raise self._health.unreachable(self._doing, self._timeout_s) from None
        except KafkaException as failure:
            self._running = None
            return cause(failure)
        self._running = None
        return next((place.error for place in committed or () if place.error is not None), None)

    def settle(self, deadline_s: float | None = None) -> None:
        """Wait for a commit that is still under way; what becomes of it does not matter, it is made again."""
        if self._running is not None:
            self._await(time.monotonic() + self._timeout_s if deadline_s is None else deadline_s)

    def forget(self, partitions: set[TopicPartition]) -> None:
        """Forgets the offsets of partitions that another member has now."""
        for place in partitions & self._kept.keys():
            del self._kept[place]

    def close_consumer(self) -> None:
        """Leave the group. After a commit without an answer that happens in the background, as soon as it can.

        One that an interrupt took us away from has its time first: the process may end behind us, without having left.
        """
        running = self._running
        if running is not None:
            wait([running], max(0.0, self._deadline_s - time.monotonic()))
        if running is None or running.done():
            self._consumer.close()
        else:
            running.add_done_callback(lambda _: self._consumer.close())
