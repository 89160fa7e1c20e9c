"""When the offsets of a batch are committed: the whole difference between the three guarantees.

| | offsets are committed | a crash in the middle of a batch |
|---|---|---|
| at least once | when the batch is done | the batch is handed out again |
| at most once | before the batch is handed out | the batch is lost |
| exactly once | in a transaction with what the batch published | that is aborted, the batch is handed out again |

A guarantee decides about one batch at a time. It never reads: `Verdict.AGAIN` asks the reader to go back to where the
batch began.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError

from tidemill.sdk.commits import Commits, Outcome
from tidemill.sdk.errors import ClientError, TransactionFailed
from tidemill.sdk.kafka_errors import LOST_MEMBERSHIP, REBALANCING, one_line
from tidemill.sdk.publishing import Publication, Publisher
from tidemill.sdk.settings import LOGGER
from tidemill.sdk.transactions import Transactions
from tidemill.types import TopicPartition

GuaranteeName = Literal["at-least-once", "at-most-once", "exactly-once"]
Offsets = Mapping[TopicPartition, int]

_ABORTS_MAX = 5


class Verdict(Enum):
    GO_ON = auto()
    # Go back to where the batch began: its records are to be handed out again.
    AGAIN = auto()


class Guarantee:
    """What the three have in common, which is at most once without its commit."""

    def __init__(self, publisher: Callable[[], Publisher]) -> None:
        # Where batches publish to.
        self.publisher = publisher
        self._offsets: Offsets = {}
        self._publications: list[Publication] = []

    def open(self) -> None:
        """Before the first record is read."""

    def begin(self, offsets: Offsets) -> Verdict:
        """Before a batch is handed out. `offsets` are those after its last records."""
        self._offsets = offsets
        self._publications = []
        return Verdict.GO_ON

    def taken(self, publication: Publication) -> None:
        """The batch publishes."""
        self._publications.append(publication)

    def finish(self) -> Verdict:
        """The batch is done."""
        return Verdict.GO_ON

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
        # Results first: otherwise a crash between the two would lose them.
        deadline_s = time.monotonic() + self._timeout_s + 1.0
        for publication in self._publications:
            try:
                publication.result(max(0.0, deadline_s - time.monotonic()))
            except TimeoutError:
                health = self.publisher().health
                raise health.unreachable(f"publish to {publication.topic}", self._timeout_s) from None
        self._commits.commit(self._offsets)
        return Verdict.GO_ON


class AtMostOnce(Guarantee):
    def __init__(self, publisher: Callable[[], Publisher], commits: Commits) -> None:
        super().__init__(publisher)
        self._commits = commits

    def begin(self, offsets: Offsets) -> Verdict:
        # What is not committed is not handed out: somebody else might hand it out, too.
        is_committed = self._commits.commit(offsets) is Outcome.COMMITTED
        return super().begin(offsets) if is_committed else Verdict.AGAIN


class ExactlyOnce(Guarantee):
    def __init__(self, consumer: Consumer, make_transactions: Callable[[], Transactions]) -> None:
        super().__init__(lambda: self._started().publisher)
        self._consumer = consumer
        self._make_transactions = make_transactions
        self._transactions: Transactions | None = None
        self._membership: Any = None
        self._aborts = 0

    def _started(self) -> Transactions:
        if self._transactions is None:
            self._transactions = self._make_transactions()
        return self._transactions

    def open(self) -> None:
        self._started().open()

    def begin(self, offsets: Offsets) -> Verdict:
        # Under which membership the records were read: a member that was replaced since is refused by it. An id that is
        # gone means that it is already; the broker would take offsets without one for those of a lone consumer.
        self._membership = self._consumer.consumer_group_metadata()
        if not self._consumer.memberid():
            return Verdict.AGAIN
        self._started().begin()
        return super().begin(offsets)

    def finish(self) -> Verdict:
        transactions = self._started()
        reason = transactions.commit(self._offsets, self._membership)
        if reason is None:
            self._aborts = 0
            return Verdict.GO_ON
        failed = self._first_failure()
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

    def _first_failure(self) -> ClientError | None:
        """Of a record that could not be delivered, rather than was given up in the abort."""
        for publication in self._publications:
            error = publication.exception() if publication.done() else None
            if isinstance(error, ClientError) and not (error.code or "").startswith("_PURGE"):
                text = f"{error}; the batch is aborted"
                return type(error)(text, code=error.code, is_retriable=error.is_retriable)
        return None

    def give_up(self) -> None:
        if self._transactions is not None:
            self._transactions.abort()
            self._transactions.publisher.forgive_unseen()

    def close(self) -> None:
        if self._transactions is not None:
            self._transactions.close()
