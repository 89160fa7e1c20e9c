"""Of transactions, too, the checker finds each planted violation, names it, and lets a correct history pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tidemill.sim.checks.checker import MessageId
from tidemill.sim.checks.transactions import (
    TRANSACTION_RULES,
    Began,
    EndAsked,
    Ended,
    Initialised,
    Place,
    Read,
    ReadToEnd,
    TransactionEvent,
    TransactionName,
    Transformed,
    Wrote,
    check_transactions,
)
from tidemill.types import TopicPartition

P0, P1, OUT = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("out", 0)


class Script:
    """Transactions of one id, under producer 7; every line is a second later than the last."""

    def __init__(self) -> None:
        self.events: list[TransactionEvent] = []
        self._clock = itertools.count(1)
        self._epochs: dict[int, int] = {}

    def _now(self) -> float:
        return float(next(self._clock))

    def _name(self, number: int) -> TransactionName:
        return TransactionName("pay", 0, number)

    def initialised(self, epoch: int, incarnation: int = 0, *, is_takeover: bool = False) -> Script:
        self.events.append(Initialised(self._now(), "pay", incarnation, 7, epoch, is_takeover))
        return self

    def began(self, number: int = 0, epoch: int = 0) -> Script:
        self._epochs[number] = epoch
        self.events.append(Began(self._now(), self._name(number), 7, epoch))
        return self

    def wrote(
        self, message: int, tp: TopicPartition = P0, number: int = 0, source: Place | None = None
    ) -> Script:
        self.events.append(Wrote(self._now(), self._name(number), tp, MessageId("m", message), source))
        return self

    def asked(self, number: int = 0, *, is_commit: bool = True, epoch: int | None = None) -> Script:
        """By the transaction's own producer, unless another epoch has taken it over."""
        producer = (7, self._epochs.get(number, 0) if epoch is None else epoch)
        self.events.append(EndAsked(self._now(), self._name(number), is_commit, producer))
        return self

    def ended(self, number: int = 0, *, is_commit: bool = True) -> Script:
        self.events.append(Ended(self._now(), self._name(number), is_commit))
        return self

    def committed(self, number: int = 0) -> Script:
        return self.asked(number).ended(number)

    def read(
        self,
        message: int,
        offset: int,
        tp: TopicPartition = P0,
        *,
        is_read_committed: bool = True,
        reader: str = "r",
    ) -> Script:
        self.events.append(Read(self._now(), reader, is_read_committed, tp, offset, MessageId("m", message)))
        return self

    def to_end(self, *tps: TopicPartition, is_read_committed: bool = True, reader: str = "r") -> Script:
        for tp in tps or (P0,):
            self.events.append(ReadToEnd(self._now(), reader, is_read_committed, tp))
        return self

    def transformed(self, tp: TopicPartition = P0) -> Script:
        self.events.append(Transformed(self._now(), tp))
        return self


def rules(script: Script) -> set[str]:
    return {violation.rule for violation in check_transactions(script.events)}


def script() -> Script:
    return Script().initialised(0)


def test_a_correct_history_passes() -> None:
    life = script().began(0).wrote(0).wrote(1, P1).committed(0)
    life.began(1).wrote(2, P0, 1).asked(1, is_commit=False).ended(1, is_commit=False)
    life.began(2).wrote(3, P0, 2).asked(2)  # the outcome is unknown
    life.initialised(5, 1)
    for tp, message, offset in ((P0, 0, 0), (P1, 1, 0), (P0, 3, 4)):
        life.read(message, offset, tp)
    for tp, message, offset in ((P0, 0, 0), (P0, 2, 2), (P0, 3, 4), (P1, 1, 0)):
        life.read(message, offset, tp, is_read_committed=False, reader="u")
    life.to_end(P0, P1).to_end(P0, P1, is_read_committed=False, reader="u")
    assert check_transactions(life.events) == []


def test_an_unknown_end_may_be_either() -> None:
    for is_visible in (True, False):
        life = script().began().wrote(0).wrote(1, P1).asked()
        if is_visible:
            life.read(0, 0).read(1, 0, P1)
        assert rules(life.to_end(P0, P1)) == set()


def test_an_input_that_was_aborted_before_it_was_transformed_again_passes() -> None:
    life = script().began(0).wrote(0).committed(0)
    life.began(1).wrote(10, OUT, 1, Place(P0, 0)).asked(1, is_commit=False).ended(1, is_commit=False)
    life.began(2).wrote(11, OUT, 2, Place(P0, 0)).committed(2)
    life.read(0, 0).read(11, 2, OUT).transformed().to_end(P0, OUT)
    assert rules(life) == set()


def _transformed_twice() -> Script:
    life = script().began(0).wrote(0).committed(0)
    life.began(1).wrote(10, OUT, 1, Place(P0, 0)).committed(1)
    life.began(2).wrote(11, OUT, 2, Place(P0, 0)).committed(2)
    return life.read(0, 0).read(10, 0, OUT).read(11, 2, OUT).transformed().to_end(P0, OUT)


def _never_transformed() -> Script:
    return script().began().wrote(0).committed().read(0, 0).transformed().to_end(P0, OUT)


def _made_of_nothing() -> Script:
    life = script().began(0).wrote(0).committed(0).began(1).wrote(10, OUT, 1, Place(P0, 3)).committed(1)
    life.began(2).wrote(11, OUT, 2, Place(P0, 0)).committed(2)
    return life.read(0, 0).read(10, 0, OUT).read(11, 2, OUT).transformed().to_end(P0, OUT)


PLANTED: list[tuple[str, Callable[[], Script]]] = [
    ("committed_transactions_are_read", lambda: script().began().wrote(0).committed().to_end()),
    (
        "only_committed_transactions_are_read",
        lambda: script().began().wrote(0).asked(is_commit=False).ended(is_commit=False).read(0, 0),
    ),
    ("only_committed_transactions_are_read", lambda: script().began().wrote(0).read(0, 0)),
    (
        "only_committed_transactions_are_read",
        lambda: script().began().wrote(0).asked().ended(is_commit=False).read(0, 0),
    ),
    ("a_commit_is_asked_for_before_it_is_read", lambda: script().began().wrote(0).read(0, 0).committed()),
    (
        "transactions_are_atomic",
        lambda: script().began().wrote(0).wrote(1, P1).asked().read(0, 0).to_end(P0, P1),
    ),
    (
        "transactions_are_atomic",
        lambda: script().began().wrote(0).asked().read(0, 0).to_end().to_end(reader="s"),
    ),
    ("nothing_invented_is_read", lambda: script().began().wrote(0).committed().read(0, 0, P1)),
    ("one_place_for_a_message", lambda: script().began().wrote(0).committed().read(0, 0).read(0, 1)),
    (
        "one_place_for_a_message",
        lambda: script().began().wrote(0).wrote(1).committed().read(0, 0).read(1, 0, reader="s"),
    ),
    ("reads_go_forward", lambda: script().began().wrote(0).committed().read(0, 0).read(0, 0)),
    (
        "order_is_kept_across_transactions",
        lambda: script().began().wrote(0).wrote(1).committed().read(1, 0).read(0, 1),
    ),
    (
        "what_committed_readers_saw_is_in_the_log",
        lambda: script().began().wrote(0).committed().read(0, 0).to_end(is_read_committed=False),
    ),
    (
        "a_fenced_producer_writes_nothing",
        lambda: script().began().initialised(1, 1).wrote(0).read(0, 0, is_read_committed=False),
    ),
    ("a_fenced_producer_writes_nothing", lambda: script().began().wrote(0).initialised(1, 1).committed()),
    (
        "a_fenced_producer_writes_nothing",
        lambda: script().began().wrote(0).initialised(1, 1, is_takeover=True).committed(),
    ),
    ("an_epoch_is_given_to_one_process", lambda: script().initialised(1, 1).initialised(1, 2)),
    (
        "a_transaction_ends_one_way",
        lambda: script().began().wrote(0).asked().ended().ended(is_commit=False),
    ),
    ("every_input_is_transformed_once", _transformed_twice),
    ("every_input_is_transformed_once", _never_transformed),
    ("every_input_is_transformed_once", _made_of_nothing),
]


@pytest.mark.parametrize(("rule", "build"), PLANTED)
def test_a_violation_is_found(rule: str, build: Callable[[], Script]) -> None:
    assert rule in rules(build())


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule.__name__ for rule in TRANSACTION_RULES} == {rule for rule, _ in PLANTED}


def test_a_late_end_of_an_epoch_that_was_fenced_is_no_violation_when_it_does_not_commit() -> None:
    life = script().began().wrote(0).initialised(1, 1).asked().ended(is_commit=False)
    assert rules(life) == set()


def test_takeover_may_commit_the_transaction() -> None:
    life = script().began().wrote(0).initialised(1, 1, is_takeover=True).asked(epoch=1).ended()
    assert rules(life) == set()


def test_a_takeover_leaves_what_its_producer_still_writes_in_the_transaction() -> None:
    life = script().began().wrote(0).initialised(1, 1, is_takeover=True).wrote(1)
    assert rules(life.read(1, 1, is_read_committed=False)) == set()


def test_a_takeover_shuts_out_the_one_before() -> None:
    life = script().began().wrote(0).initialised(1, 1, is_takeover=True).initialised(2, 2, is_takeover=True)
    assert rules(life.asked(epoch=1).ended()) == {"a_fenced_producer_writes_nothing"}
