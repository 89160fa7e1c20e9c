"""A partition that its topic has had (decision 18): what producers still send to it is passed on.

Some clients never learn that a topic has fewer partitions, and go on for as long as they live. The broker that they know
as the leader serves them. It has no log of the partition any more: the sequence of a producer is known where its records
are. After shrinks to different numbers these are several partitions, and the latest of them is right.

Records of the partition may have been stored in logs that are gone, its own among them. So the first batch of a producer
may leave a gap behind what is known. From then on the partition that stores them finds gaps.

Such a gap may be apparent only. A partition that is gone has no leader epoch, so a client may send a batch through a broker
whose metadata is older than that of the one before. It passes the batch on to a leader that was replaced, which lacks the
batches before it. The producer therefore gets an error after which it tries again, not OUT_OF_ORDER_SEQUENCE_NUMBER.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, Protocol

from tidemill.broker.disk.long_work import Owner
from tidemill.broker.partitions.appending.guards import Guard
from tidemill.broker.partitions.appending.produce_rules import ProduceRules
from tidemill.broker.partitions.refusals import Refusals
from tidemill.broker.partitions.shrinking.passing_on import PassingOn, PassingOnHost
from tidemill.broker.partitions.shrinking.places import storing_partition, storing_partitions
from tidemill.broker.partitions.shrinking.stored_elsewhere import StoredElsewhere, StoredElsewhereHost
from tidemill.config import TopicConfig
from tidemill.errors import ErrorCode
from tidemill.log.producer_state.producers import AppendedBatch
from tidemill.protocol.produce import ProduceResult
from tidemill.protocol.records import BatchHeader, InvalidBatch, check_produced
from tidemill.protocol.steps import NotAtOnce
from tidemill.types import TopicPartition


class FormerPartitionHost(PassingOnHost, StoredElsewhereHost, Protocol):
    """The part of the broker that a former partition uses."""


class FormerPartition:
    """It takes batches as the `Appender` of a partition does."""

    __slots__ = ("_elsewhere", "_host", "_passing_on", "_rules", "index", "name", "refusals")

    def __init__(
        self,
        name: TopicPartition,
        count: int,
        config: TopicConfig,
        host: FormerPartitionHost,
        passing_on: PassingOn | None = None,
    ) -> None:
        """`passing_on` has batches of the partition that are under way while it is removed: none is refused for that."""
        self.name = name
        self.index = name.partition
        self._host = host
        if passing_on is None:
            passing_on = PassingOn(name, storing_partition(self.index, count, config), host, Refusals())
        self._passing_on = passing_on
        self.refusals = passing_on.refusals
        self.configure(count, config)

    def configure(self, count: int, config: TopicConfig) -> None:
        """Follow a change of the topic, which has `count` partitions: what was known of other partitions may be old."""
        self._rules = ProduceRules(self.name.topic, config)
        target = storing_partition(self.index, count, config)
        if self._passing_on.target != target:
            self._passing_on.close()
            self._passing_on = PassingOn(self.name, target, self._host, self.refusals)
        others = {each for each in storing_partitions(self.index, config) if each < count} - {target}
        self._elsewhere = StoredElsewhere(self.name, tuple(sorted(others)), self._host)

    def close(self) -> None:
        """The topic has a partition under this number again, or is gone."""
        self._passing_on.close()

    @property
    def guards(self) -> FormerPartition:
        return self

    @property
    def appender(self) -> FormerPartition:
        return self

    @property
    def is_decommissioned(self) -> bool:
        return True

    def guard_for(self, header: BatchHeader, *, adds: bool) -> Guard | None:  # noqa: ARG002
        """None: the transaction is verified where the batch is stored."""
        return None

    def refuse_unverified(self, *_refusal: object) -> NoReturn:
        raise AssertionError("nothing is verified here")

    def append(self, *_batch: object, **_how: object) -> NoReturn:
        raise NotAtOnce

    def append_later(
        self,
        data: memoryview,
        acks: int,
        settled: Callable[[ProduceResult], None],
        *,
        allows_zstd: bool = True,
        allows_transactions: bool = False,
        guard: Guard | None = None,  # noqa: ARG002
        transactional_id: str | None = None,
        is_passed_on: bool = False,  # noqa: ARG002
        owner: Owner | None = None,  # noqa: ARG002
    ) -> None:
        try:
            header = self._rules.received(data, allows_zstd, allows_transactions, is_passed_on=False)
            check_produced(header)
            duplicate, first_sequence = self._stored_elsewhere(header)
        except InvalidBatch as error:
            settled(
                ProduceResult(self.index, error.code, message=error.reason, record_errors=error.record_errors)
            )
            return
        if duplicate is not None:
            self.refusals.forget(header)
            settled(ProduceResult(self.index, ErrorCode.NONE, -header.record_count))
            return

        def passed_on(result: ProduceResult) -> None:
            settled(self._without_gap(result))

        self._passing_on.submit(
            header, data, acks, transactional_id, first_sequence, passed_on, may_leave_gap=True
        )

    def _without_gap(self, result: ProduceResult) -> ProduceResult:
        """The result for the producer, which tries again when it seems to have left a gap."""
        if result.error is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return result
        message = f"{result.message}; another broker may know more of {self.name}, which is gone"
        return result._replace(error=ErrorCode.NOT_ENOUGH_REPLICAS, message=message)

    def _stored_elsewhere(self, header: BatchHeader) -> tuple[AppendedBatch | None, int | None]:
        """The batch of another partition that this one repeats, and the sequence that follows what is stored there."""
        if header.producer_id < 0:
            return None, None
        if not self._elsewhere.is_known:
            self._elsewhere.ask()
            self.refusals.note(header, ErrorCode.NOT_ENOUGH_REPLICAS, self._host.steady_ms())
            raise InvalidBatch(ErrorCode.NOT_ENOUGH_REPLICAS, self._elsewhere.not_known)
        return self._elsewhere.find(header)
