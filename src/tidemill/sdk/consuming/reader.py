"""One consumer of a group: what it has, where it stands, what is handed out and what is done.

`step` is the whole life of a batch. It finishes the batch before, since requesting the next one says that it is done.
It reads for a moment, and returns what came, or None. It never waits longer than that moment for records, so Ctrl-C and
a cancelled task get their turn. All of it, rebalances included, happens in the thread that calls.

A rebalance can come only while `step` reads, when no batch is in hand. What was read of a partition that was revoked
in the same moment is dropped: it is another member's, or will be read again.

At the end of a partition its end is committed. Markers of transactions and aborted records are passed over, as by
Java's consumer, so a group that has read everything has no lag.

Refuses to wait for brokers without end: when all of them are down for `timeout_s`, `step` raises `Unreachable`.
Calling it again goes on, as does librdkafka in the background.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as Position

from tidemill.sdk.claims import Withdrawals
from tidemill.sdk.consuming.commits import Commits
from tidemill.sdk.consuming.guarantees import Guarantee, Verdict
from tidemill.sdk.consuming.positions import Positions
from tidemill.sdk.consuming.retries import Retrying
from tidemill.sdk.errors import (
    ClientError,
    Closed,
    CommitFailed,
    InvalidSetting,
    TransactionFailed,
    Unreachable,
)
from tidemill.sdk.kafka_errors import LOST_MEMBERSHIP, NO_ANSWER, cause, one_line, translated
from tidemill.sdk.publishing.publisher import Publication
from tidemill.sdk.records import NewRecord, Record, Serializer
from tidemill.sdk.settings import LOGGER, Settings
from tidemill.sdk.waiting import Health, topic_metadata
from tidemill.types import TopicPartition

# How long a step waits for the first record.
STEP_S = 0.1
# A topic that was created a moment ago may be unknown to the broker that is asked.
_NEW_TOPIC_S = 1.0
_PROBE_S = 1.0


@dataclass(frozen=True)
class Reading:
    """The topics, the group and the settings of a reader."""

    topics: Sequence[str]
    group: str
    max_batch: int
    linger_s: float
    # librdkafka's properties.
    config: Mapping[str, Any]
    retrying: Retrying | None = None

    @property
    def is_cooperative(self) -> bool:
        """Whether rebalances add and take partitions, instead of replacing all of them."""
        strategy = str(self.config.get("partition.assignment.strategy", ""))
        return "cooperative" in strategy or self.config.get("group.protocol") == "consumer"

    @property
    def first_fetch_s(self) -> float:
        """The longest wait for a partition's first record. The search for its offset may stand behind a fetch of another
        partition, which waits when there is nothing to read; and so may the fetch itself."""
        return 0.2 + 2 * float(self.config.get("fetch.wait.max.ms", 500)) / 1000


class Chunk:
    """The records of one batch, and where they lie."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        # By partition: the first offset, and the one after the last.
        self.first_offsets: dict[TopicPartition, int] = {}
        self.next_offsets: dict[TopicPartition, int] = {}
        for record in records:
            place = record.topic_partition
            self.first_offsets.setdefault(place, record.offset)
            self.next_offsets[place] = record.offset + 1

    def has(self, record: Record) -> bool:
        place = record.topic_partition
        return place in self.first_offsets and (
            self.first_offsets[place] <= record.offset < self.next_offsets[place]
        )

    def pass_over(self, ends: Mapping[TopicPartition, int], others: Mapping[TopicPartition, int]) -> None:
        """Between the records and the ends of their partitions, and before the ends of others, are no records."""
        for place in ends.keys() & self.next_offsets.keys():
            self.next_offsets[place] = max(ends[place], self.next_offsets[place])
        for place in others.keys() - self.next_offsets.keys():
            self.next_offsets[place] = others[place]


class Reader:
    def __init__(
        self,
        settings: Settings,
        reading: Reading,
        make_guarantee: Callable[[Consumer, Commits], Guarantee],
        prepare: Callable[[Retrying], None],
        withdrawals: Withdrawals,
    ) -> None:
        """`prepare` sees to the topics that retries need."""
        self._timeout_s = settings.timeout_s
        self._reading = reading
        self._prepare = prepare
        self._withdrawals = withdrawals
        self._doing = f"consume {', '.join(reading.topics)} as {reading.group}"
        self.health = Health(settings.bootstrap)
        config = settings.consumer(self.health.on_error, reading.group, reading.config)
        try:
            self.consumer = Consumer(config)
        except KafkaException as failure:
            raise translated(cause(failure), self._doing, InvalidSetting) from None
        self._commits = Commits(self.consumer, reading.group, settings.timeout_s, self.health)
        self._guarantee = make_guarantee(self.consumer, self._commits)
        retry_topics = reading.retrying.also_read if reading.retrying else []
        self._topics = [*reading.topics, *retry_topics]
        self.positions = Positions(
            self.consumer, reading.topics, settings.timeout_s, self.health, frozenset(retry_topics)
        )
        self._in_hand: Chunk | None = None
        self._is_open = False
        self._is_closed = False
        # Taken away since it was last emptied, which is before each call that reads.
        self._revoked: set[TopicPartition] = set()
        self._pending_error: ClientError | None = None
        # From when on it means something that no record comes; None before this member was given partitions, or none.
        self.idle_from_s: float | None = None

    # -- the life of a batch ---------------------------------------------------------------------------------

    def step(self) -> Chunk | None:
        self._open()
        self.finish()
        if self._pending_error is not None:
            error, self._pending_error = self._pending_error, None
            raise error
        self.positions.pay_back()
        try:
            records, ends = self._fetch()
        except KafkaException as failure:
            raise translated(cause(failure), self._doing) from None
        if not records:
            self._commit_passed(self.positions.passed(ends))
            self._check_health()
            return None
        self.health.recovered()
        self._withdrawals.read_ahead(records)
        chunk = Chunk(records)
        chunk.pass_over(ends, self.positions.passed(ends))
        try:
            verdict = self._guarantee.begin(chunk.next_offsets)
        except BaseException:
            self.positions.go_back(chunk.first_offsets)
            raise
        if verdict is Verdict.AGAIN:
            self.positions.go_back(chunk.first_offsets)
            return None
        self.positions.moved(chunk.next_offsets)
        self._in_hand = chunk
        return chunk

    def finish(self) -> Verdict:
        """The batch in hand is done."""
        chunk = self._in_hand
        if chunk is None:
            return Verdict.GO_ON
        try:
            verdict = self._guarantee.finish()
        except (Unreachable, CommitFailed):
            # Still in hand: the next call tries again.
            raise
        except ClientError:
            self._in_hand = None
            self.positions.go_back(chunk.first_offsets)
            raise
        self._in_hand = None
        if verdict is Verdict.AGAIN:
            self.positions.go_back(chunk.first_offsets)
        return verdict

    def commit(self, record: Record | None = None) -> None:
        """The batch in hand is done, up to and with a record or as a whole."""
        self._check_open()
        if record is None:
            if self.finish() is Verdict.AGAIN:
                raise TransactionFailed(
                    f"{self._doing}: the transaction is aborted, as the group has rebalanced; "
                    "its records are handed out again",
                    is_retriable=True,
                )
        else:
            self._guarantee.commit_part({record.topic_partition: record.offset + 1})

    def rewind(self) -> None:
        """The batch in hand is not done: its records are handed out again."""
        self._check_open()
        chunk, self._in_hand = self._in_hand, None
        if chunk is not None:
            self._guarantee.give_up()
            self.positions.go_back(chunk.first_offsets)

    def close(self, is_done: bool) -> None:
        """Leave the group. The batch in hand is finished, or given up."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if is_done:
                self.finish()
            else:
                self._guarantee.give_up()
        finally:
            self._in_hand = None
            self._commits.close_consumer()
            self._guarantee.close()

    def control(self, is_move: bool = False) -> Positions:
        """For calls between two steps. After a move, what is then read takes its time to come."""
        self._check_open()
        if is_move and self.idle_from_s is not None:
            self.idle_from_s = time.monotonic() + self._reading.first_fetch_s
        return self.positions

    # -- what a batch publishes ------------------------------------------------------------------------------

    def publish(
        self, chunk: Chunk, topic: str, record: NewRecord, serializer: Serializer | None
    ) -> Publication:
        self.check_in_hand(chunk, topic)
        publication = self._guarantee.publisher().publish(topic, record, serializer)
        self._guarantee.taken(publication)
        return publication

    def check_in_hand(self, chunk: Chunk, topic: str) -> None:
        if chunk is not self._in_hand:
            raise Closed(f"publish to {topic}: its batch is over; publish while it is in hand")

    def fail(self, chunk: Chunk, record: Record, error: BaseException | str) -> None:
        """A record of the batch in hand could not be worked on: its retry or dead letter counts when the batch is done."""
        if chunk is not self._in_hand or not chunk.has(record):
            raise Closed(
                f"{self._doing}: {record.topic_partition} at {record.offset} is not in the batch in hand"
            )
        message = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self._guarantee.fail(record, one_line(message))

    @property
    def guarantee(self) -> Guarantee:
        return self._guarantee

    # -- reading ---------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"{self._doing}: already closed")
        self._commits.settle()

    def _open(self) -> None:
        self._check_open()
        if self._is_open:
            return
        for topic in self._reading.topics:
            if not topic.startswith("^"):
                self._check_topic(topic)
        if self._reading.retrying is not None:
            self._prepare(self._reading.retrying)
        self._guarantee.open()
        self.consumer.subscribe(
            self._topics,
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_revoke,
        )
        self._is_open = True

    def _check_topic(self, topic: str) -> None:
        found = topic_metadata(
            lambda name, seconds: self.consumer.list_topics(name, timeout=seconds),
            topic,
            self._doing,
            self._timeout_s,
            self.health,
            _NEW_TOPIC_S,
        )
        if found.error is not None:
            raise translated(found.error, f"consume {topic}", advice="create it with create_topic")

    def _commit_passed(self, passed: Mapping[TopicPartition, int]) -> None:
        """Every record before these offsets is done."""
        if not passed:
            return
        self.positions.moved(passed)
        try:
            self._commits.commit(passed)
        except (Unreachable, CommitFailed) as failure:
            # No record is read again for it, and the next commit has them too.
            LOGGER.info("%s: %s", self._doing, failure)

    def _fetch(self) -> tuple[list[Record], dict[TopicPartition, int]]:
        """Records, and the ends of partitions that were reached."""
        messages: list[Message] = []
        try:
            self._gather(messages)
        except BaseException:
            # Ctrl-C, above all: a loop that goes on after it must not miss what was read before it.
            self.positions.go_back(
                Chunk([_record(each) for each in messages if not each.error()]).first_offsets
            )
            raise
        records = []
        ends: dict[TopicPartition, int] = {}
        retrying = self._reading.retrying
        for message in messages:
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                place, end = _place(message)
                if not self.positions.is_owed(place):
                    ends[place] = end
            elif error is not None:
                self._note(error)
            elif not self.positions.is_owed((record := _record(message)).topic_partition):
                record = record if retrying is None else retrying.restored(record)
                records.append(self._withdrawals.resolved(record))
        return records, ends

    def _gather(self, messages: list[Message]) -> None:
        """Gathers the messages that have arrived, after a moment's wait for the first.

        With `linger_s`, it waits for more until that is over or the batch is full.
        """
        first = self.consumer.poll(STEP_S)
        if first is None:
            return
        messages.append(first)
        if first.error() is not None:
            # The end of a partition, or a failure. Only records wait for more records.
            return
        self._revoked.clear()
        deadline_s = time.monotonic() + self._reading.linger_s
        while len(messages) < self._reading.max_batch:
            left_s = max(0.0, deadline_s - time.monotonic())
            more = self.consumer.consume(self._reading.max_batch - len(messages), min(left_s, STEP_S))
            if self._revoked:
                messages[:] = [
                    each for each in messages if (each.topic(), each.partition()) not in self._revoked
                ]
                self._revoked.clear()
            messages += more
            if left_s == 0.0:
                return

    def _note(self, error: KafkaError) -> None:
        """Logs an error that librdkafka recovers from by itself; keeps any other, to be raised after the records before."""
        code = error.code()
        is_fatal = error.fatal()
        if not is_fatal and (code in NO_ANSWER or code in LOST_MEMBERSHIP):
            LOGGER.info("%s: %s", self._doing, error.str())
            return
        if self._pending_error is None:
            self._pending_error = translated(error, self._doing)

    def _check_health(self) -> None:
        if self.health.fatal is not None:
            raise translated(self.health.fatal, self._doing)
        if self._pending_error is not None:
            error, self._pending_error = self._pending_error, None
            raise error
        since_s = self.health.down_since_s
        if since_s is None or time.monotonic() - since_s < self._timeout_s:
            return
        try:
            self.consumer.list_topics(self._reading.topics[0], timeout=_PROBE_S)
        except KafkaException as failure:
            raise self.health.unreachable(self._doing, self._timeout_s) from failure
        self.health.recovered()

    # -- rebalances: in this thread, while `_fetch` reads ------------------------------------------------------

    def _on_assign(self, consumer: Consumer, partitions: list[Position]) -> None:
        LOGGER.debug("%s: assigned %s", self._doing, partitions)
        self.idle_from_s = time.monotonic() + (self._reading.first_fetch_s if partitions else 0.0)
        if self.positions.assigned(partitions):
            (consumer.incremental_assign if self._reading.is_cooperative else consumer.assign)(partitions)

    def _on_revoke(self, _: Consumer, partitions: list[Position]) -> None:
        LOGGER.debug("%s: revoked %s", self._doing, partitions)
        places = {TopicPartition(each.topic, each.partition) for each in partitions}
        self._revoked |= places
        self._commits.forget(places)
        self.positions.revoked(places)


def _place(message: Message) -> tuple[TopicPartition, int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return TopicPartition(topic, partition), offset


def _record(message: Message) -> Record:
    place, offset = _place(message)
    headers = message.headers()
    return Record(
        place.topic,
        place.partition,
        offset,
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple(headers) if headers else (),  # type: ignore[arg-type]
    )
