"""The rules about two-phase commits, each with a history that breaks it and the ones that do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tidemill.sim.checks.checker import MessageId
from tidemill.sim.checks.decisions import DECISION_RULES, check_decisions, row
from tidemill.sim.checks.transactions import (
    Began,
    Decided,
    Ended,
    Read,
    ReadToEnd,
    TransactionEvent,
    TransactionName,
    Wrote,
)
from tidemill.types import TopicPartition

P0, P1 = TopicPartition("rows", 0), TopicPartition("rows", 1)
ROWS = 2


class Script:
    """Batches of two rows. Producer 7 writes each transaction under an epoch of its own, the transaction's number."""

    def __init__(self) -> None:
        self.events: list[TransactionEvent] = []
        self._clock = itertools.count(1)

    def _now(self) -> float:
        return float(next(self._clock))

    def _name(self, number: int) -> TransactionName:
        return TransactionName("query-0-0", 0, number)

    def wrote(self, number: int, batch: int, *rows: int, tp: TopicPartition = P0) -> Script:
        """A transaction with these rows of the batch."""
        self.events.append(Began(self._now(), self._name(number), 7, number))
        for each in rows:
            message = MessageId(f"m{number}", each)
            self.events.append(Wrote(self._now(), self._name(number), tp, message, row(batch, each)))
        return self

    def decided(self, batch: int, *numbers: int) -> Script:
        self.events.append(Decided(self._now(), batch, tuple((7, each) for each in numbers), ROWS))
        return self

    def aborted(self, number: int) -> Script:
        self.events.append(Ended(self._now(), self._name(number), is_commit=False))
        return self

    def read(
        self, *numbers: int, rows: tuple[int, ...] = (0, 1), tps: tuple[TopicPartition, ...] = (P0,)
    ) -> Script:
        """A reader sees these rows of these transactions, and all partitions to their ends."""
        for offset, (number, each) in enumerate(itertools.product(numbers, rows)):
            message = MessageId(f"m{number}", each)
            self.events.append(Read(self._now(), "reader", True, P0, offset, message))
        for tp in tps:
            self.events.append(ReadToEnd(self._now(), "reader", True, tp))
        return self


def rules(script: Script) -> set[str]:
    return {violation.rule for violation in check_decisions(script.events)}


def _twice_in_a_decision() -> Script:
    return Script().wrote(1, 0, 0, 1).wrote(2, 0, 0, 1).decided(0, 1, 2).read(1, 2)


PLANTED: list[tuple[str, Callable[[], Script]]] = [
    ("a_batch_is_decided_once", lambda: Script().wrote(1, 0).wrote(2, 0).decided(0, 1).decided(0, 2)),
    ("a_batch_is_decided_once", lambda: Script().wrote(1, 0).wrote(2, 2).decided(0, 1).decided(2, 2)),
    ("no_decided_transaction_is_aborted", lambda: Script().wrote(1, 0, 0, 1).decided(0, 1).aborted(1)),
    ("only_decided_rows_are_read", lambda: Script().wrote(1, 0, 0, 1).read(1)),
    (
        "every_row_of_a_decided_batch_is_read_once",
        lambda: Script().wrote(1, 0, 0, 1).decided(0, 1).read(1, rows=(1,)),
    ),
    ("every_row_of_a_decided_batch_is_read_once", _twice_in_a_decision),
]


@pytest.mark.parametrize(("rule", "build"), PLANTED)
def test_a_violation_is_found(rule: str, build: Callable[[], Script]) -> None:
    assert rule in rules(build())


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule.__name__ for rule in DECISION_RULES} == {rule for rule, _ in PLANTED}


def test_a_batch_that_is_repeated_in_another_transaction_is_read_once() -> None:
    life = Script().wrote(1, 0, 0, 1).aborted(1).wrote(2, 0, 1, 0).decided(0, 2).read(2)
    assert rules(life) == set()


def test_repeated_reports_of_a_decision_count_once() -> None:
    assert rules(Script().wrote(1, 0, 0, 1).decided(0, 1).decided(0, 1).read(1)) == set()


def test_a_reader_that_did_not_reach_the_end_of_all_partitions_may_lack_rows() -> None:
    life = Script().wrote(1, 0, 0).wrote(2, 0, 1, tp=P1).decided(0, 1, 2).read(1, rows=(0,))
    assert rules(life) == set()
