"""Commits the offsets of batches. When it does so is the whole difference between the three guarantees.

| | offsets are committed | a crash in the middle of a batch |
|---|---|---|
| at least once | when the batch is done | the batch is handed out again |
| at most once | before the batch is handed out | the batch is lost |
| exactly once | in a transaction with what the batch published | that is aborted, the batch is handed out again |

At least once with retries, a batch in which records failed is committed in a transaction with what takes their place, so
neither is lost or doubled. That transaction is open only while the batch is finished, not while it is worked on.

A guarantee decides about one batch at a time. It never reads: `Verdict.AGAIN` asks the reader to go back to where the
batch began. A result that the producer did not even take fails the batch as one does that was not delivered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError

from tidemill.sdk.consuming.commits import Commits, Outcome
from tidemill.sdk.consuming.retries import Retrying
from tidemill.sdk.errors import ClientError, DeliveryFailed, InvalidSetting, TransactionFailed, Unreachable
from tidemill.sdk.kafka_errors import LOST_MEMBERSHIP, REBALANCING, one_line
from tidemill.sdk.publishing.publisher import Publication, Publisher
from tidemill.sdk.publishing.transactions import Transactions
from tidemill.sdk.records import NewRecord, Record
from tidemill.sdk.settings import LOGGER
from tidemill.types import TopicPartition

GuaranteeName = Literal["at-least-once", "at-most-once", "exactly-once"]
Offsets = Mapping[TopicPartition, int]

_ABORTS_MAX = 5


class Verdict(Enum):
    GO_ON = auto()
    # Go back to where the batch began: its records are to be handed out again.
    AGAIN = auto()


class Guarantee:
    """The base of the three guarantees: at most once without its commit."""

    # Whether a batch is done only when what it published is delivered.
    awaits_results = True

    def __init__(self, publisher: Callable[[], Publisher]) -> None:
        # Where batches publish to.
        self.publisher = publisher
        self._offsets: Offsets = {}
        self._publications: list[Publication] = []
        # Why a result was not taken by the producer.
        self._refusal: Exception | None = None

    def open(self) -> None:
        """Before the first record is read."""

    def begin(self, offsets: Offsets) -> Verdict:
        """Before a batch is handed out. `offsets` are those after its last records."""
        self._offsets = offsets
        self._publications = []
        self._refusal = None
        return Verdict.GO_ON

    def taken(self, publication: Publication) -> None:
        """The batch publishes."""
        self._publications.append(publication)

    def refused(self, error: Exception) -> None:
        """A result was not taken by the producer, after `publish` had returned."""
        self._refusal = self._refusal or error

    def finish(self) -> Verdict:
        """The batch is done."""
        return Verdict.GO_ON

    def commit_part(self, offsets: Offsets) -> None:
        """The batch is done up to these offsets."""

    def _raise_refusal(self) -> None:
        error = self._refusal
        if error is None:
            return
        if isinstance(error, ClientError) and not isinstance(error, Unreachable):
            raise error
        # To finish the batch again is of no use: the record is not under way.
        code, is_retriable = getattr(error, "code", None), isinstance(error, Unreachable)
        raise DeliveryFailed(one_line(str(error)), code=code, is_retriable=is_retriable) from error

    def fail(self, record: Record, message: str) -> None:  # noqa: ARG002
        """A record of the batch could not be worked on."""
        raise InvalidSetting(
            "attempt: give consume(retries=..., dead_letters=...), which say what becomes of a failure"
        )

    def give_up(self) -> None:
        """The batch is not done."""

    def close(self) -> None:
        """Nothing is read any more."""


class AtLeastOnce(Guarantee):
    def __init__(self, publisher: Callable[[], Publisher], commits: Commits, timeout_s: float) -> None:
        super().__init__(publisher)
        self._commits = commits
        self._timeout_s = timeout_s

    def taken(self, publication: Publication) -> None:
        publication.reported_elsewhere()
        super().taken(publication)

    def finish(self) -> Verdict:
        self._await_results()
        self._commits.commit(self._offsets)
        return Verdict.GO_ON

    def commit_part(self, offsets: Offsets) -> None:
        self._await_results()
        self._commits.commit(offsets)

    def _await_results(self) -> None:
        self._raise_refusal()
        # Before offsets: otherwise a crash between the two would lose them.
        deadline_s = time.monotonic() + self._timeout_s + 1.0
        for publication in self._publications:
            try:
                publication.result(max(0.0, deadline_s - time.monotonic()))
            except TimeoutError:
                health = self.publisher().health
                raise health.unreachable(f"publish to {publication.topic}", self._timeout_s) from None


class AtMostOnce(Guarantee):
    # Its offsets are committed before it publishes, and stay so.
    awaits_results = False

    def __init__(self, publisher: Callable[[], Publisher], commits: Commits) -> None:
        super().__init__(publisher)
        self._commits = commits

    def begin(self, offsets: Offsets) -> Verdict:
        # What is not committed is not handed out: another member might hand it out, too.
        is_committed = self._commits.commit(offsets) is Outcome.COMMITTED
        return super().begin(offsets) if is_committed else Verdict.AGAIN


class TransactionalOffsets:
    """The transactions of one consumer: its offsets, and records that count together with them."""

    def __init__(self, consumer: Consumer, make_transactions: Callable[[], Transactions]) -> None:
        self._consumer = consumer
        self._make_transactions = make_transactions
        self._transactions: Transactions | None = None
        self._membership: Any = None
        self._aborts = 0

    @property
    def started(self) -> Transactions:
        if self._transactions is None:
            self._transactions = self._make_transactions()
        return self._transactions

    def remember_membership(self) -> None:
        """Remembers under which membership records were read: a member that was replaced since is refused by it."""
        self._membership = self._consumer.consumer_group_metadata()

    @property
    def is_member(self) -> bool:
        """Whether the consumer has a member id. The broker takes offsets without one for those of a lone consumer."""
        return bool(self._consumer.memberid())

    def commit(self, offsets: Offsets, publications: list[Publication]) -> Verdict:
        transactions = self.started
        reason = transactions.commit(offsets, self._membership)
        if reason is None:
            self._aborts = 0
            return Verdict.GO_ON
        failed = _first_failure(publications)
        transactions.publisher.forgive_unseen()
        if failed is not None:
            raise failed
        LOGGER.info("aborted, and read again: %s", one_line(reason.str()))
        if reason.code() not in LOST_MEMBERSHIP | REBALANCING:
            self._count_abort(reason)
        return Verdict.AGAIN

    def _count_abort(self, reason: KafkaError) -> None:
        self._aborts += 1
        if self._aborts >= _ABORTS_MAX:
            self._aborts = 0
            raise TransactionFailed(
                f"the transaction of this batch was aborted {_ABORTS_MAX} times, at last for: {one_line(reason.str())}",
                code=reason.name(),
                is_retriable=True,
            )

    def abort(self) -> None:
        if self._transactions is not None:
            self._transactions.abort()
            self._transactions.publisher.forgive_unseen()

    def close(self) -> None:
        if self._transactions is not None:
            self._transactions.close()


def _first_failure(publications: list[Publication]) -> ClientError | None:
    """Returns the error of the first record that could not be delivered, rather than was given up in the abort."""
    for publication in publications:
        error = publication.exception() if publication.done() else None
        if isinstance(error, ClientError) and not (error.code or "").startswith("_PURGE"):
            text = f"{error}; the batch is aborted"
            return type(error)(text, code=error.code, is_retriable=error.is_retriable)
    return None


class AtLeastOnceWithRetries(AtLeastOnce):
    def __init__(
        self,
        publisher: Callable[[], Publisher],
        commits: Commits,
        timeout_s: float,
        offsets: TransactionalOffsets,
        retrying: Retrying,
    ) -> None:
        super().__init__(publisher, commits, timeout_s)
        self._retrying = retrying
        self._transactional = offsets
        # By place and offset, what takes the place of a record that failed.
        self._failed: dict[tuple[TopicPartition, int], tuple[str, NewRecord]] = {}
        # Of a transaction whose commit was not answered yet.
        self._replacements: list[Publication] | None = None

    def open(self) -> None:
        self._transactional.started.open()

    def begin(self, offsets: Offsets) -> Verdict:
        self._failed = {}
        self._transactional.remember_membership()
        return super().begin(offsets) if self._transactional.is_member else Verdict.AGAIN

    def fail(self, record: Record, message: str) -> None:
        topic, instead = self._retrying.after_failure(record, message)
        place = record.topic_partition
        LOGGER.warning(
            "attempt %d at %s offset %d failed, it goes to %s: %s",
            record.attempt,
            place,
            record.offset,
            topic,
            message,
        )
        self._failed[place, record.offset] = (topic, instead)

    def commit_part(self, offsets: Offsets) -> None:
        if self._failed:
            raise InvalidSetting(
                "commit: records of this batch failed; commit() the whole batch, so that their retries count with it"
            )
        super().commit_part(offsets)

    def finish(self) -> Verdict:
        if not self._failed:
            return super().finish()
        self._await_results()
        if self._replacements is None:
            self._replacements = self._publish_replacements()
        try:
            verdict = self._transactional.commit(self._offsets, self._replacements)
        except Unreachable:
            # The transaction is as it was: the same commit may be made again.
            raise
        except BaseException:
            self._replacements = None
            raise
        self._replacements = None
        return verdict

    def _publish_replacements(self) -> list[Publication]:
        transactions = self._transactional.started
        transactions.begin()
        try:
            # Keys, values and headers are bytes already: a serializer has done its work on the original.
            return [
                transactions.publisher.publish(topic, instead, bytes)
                for topic, instead in self._failed.values()
            ]
        except BaseException:
            self._transactional.abort()
            raise

    def give_up(self) -> None:
        self._replacements = None
        self._transactional.abort()

    def close(self) -> None:
        self._transactional.close()


class ExactlyOnce(Guarantee):
    def __init__(self, offsets: TransactionalOffsets) -> None:
        super().__init__(lambda: offsets.started.publisher)
        self._transactional = offsets

    def open(self) -> None:
        self._transactional.started.open()

    def begin(self, offsets: Offsets) -> Verdict:
        self._transactional.remember_membership()
        if not self._transactional.is_member:
            return Verdict.AGAIN
        self._transactional.started.begin()
        return super().begin(offsets)

    def finish(self) -> Verdict:
        if self._refusal is not None:
            self._transactional.abort()
            self._raise_refusal()
        return self._transactional.commit(self._offsets, self._publications)

    def commit_part(self, offsets: Offsets) -> None:  # noqa: ARG002
        raise InvalidSetting(
            "commit: exactly once a batch counts as a whole, with all that it published; commit() it, or read "
            "smaller ones with max_batch"
        )

    def give_up(self) -> None:
        self._transactional.abort()

    def close(self) -> None:
        self._transactional.close()
