"""A partition that its topic has had (decision 18): what producers still send to it is passed on.

Some clients never learn that a topic has fewer partitions, and go on for as long as they live. The broker that they know
as the leader serves them. It has no log of the partition any more: the sequence of a producer is known where its records
are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from tidemill.broker.partitions.appending.guards import Guard
from tidemill.broker.partitions.appending.produce_rules import ProduceRules
from tidemill.broker.partitions.appending.refusals import Refusals
from tidemill.broker.partitions.shrinking.passing_on import PassingOn, PassingOnHost
from tidemill.config import TopicConfig
from tidemill.protocol.produce import ProduceResult
from tidemill.protocol.records import BatchHeader, InvalidBatch, check_produced
from tidemill.protocol.steps import NotAtOnce
from tidemill.types import TopicPartition


class FormerPartition:
    """It takes batches as the `Appender` of a partition does."""

    __slots__ = ("_passing_on", "_rules", "index", "name", "target")

    def __init__(self, name: TopicPartition, target: int, config: TopicConfig, host: PassingOnHost) -> None:
        self.name = name
        self.index = name.partition
        self.target = target
        self._rules = ProduceRules(name.topic, config)
        self._passing_on = PassingOn(name, target, host, Refusals())

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
    ) -> None:
        try:
            header = self._rules.received(data, allows_zstd, allows_transactions, is_passed_on=False)
            check_produced(header)
        except InvalidBatch as error:
            settled(
                ProduceResult(self.index, error.code, message=error.reason, record_errors=error.record_errors)
            )
            return
        self._passing_on.submit(header, data, acks, transactional_id, None, settled)
