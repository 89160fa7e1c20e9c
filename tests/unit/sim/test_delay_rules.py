"""The rules for delayed records that the simulation checks: each finds what it is there for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemill.sim.checks.checker import MessageId
from tidemill.sim.checks.delays import Event, Seen, Skipped, Taken, Wish, check_delays, required
from tidemill.sim.checks.transactions import (
    Began,
    EndAsked,
    Ended,
    TransactionEvent,
    TransactionName,
    Wrote,
)
from tidemill.types import TopicPartition

TP = TopicPartition("later", 0)


def taken(number: int, offset: int, wish: Wish) -> Taken:
    return Taken(0.0, TP, offset, MessageId("p", number), wish)


def seen(number: int, offset: int, original_offset: int, due_ms: int, next_due_ms: int | None = None) -> Seen:
    return Seen(0.0, "r", TP, offset, MessageId("p", number), original_offset, due_ms, next_due_ms, due_ms)


RELATIVE = Wish(counts_from_append=True)
RECURS = Wish(counts_from_append=True, recurs=True)
HISTORY: list[Event] = [
    taken(0, 0, Wish(due_ms=100)),
    taken(1, 1, RELATIVE),
    taken(2, 2, RECURS),
    taken(3, 3, replace(RELATIVE, ends=(MessageId("p", 1),))),
    taken(4, 20, Wish(ends=(MessageId("p", 2),))),
    seen(0, 10, 0, 100),
    seen(2, 11, 2, 110, 120),
    seen(2, 12, 2, 120, 130),
    seen(3, 13, 3, 125),
]


def test_a_good_history_has_no_violations() -> None:
    assert check_delays(HISTORY, 0) == []


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (seen(0, 14, 0, 100), "offsets 10 and 14"),
        (replace(seen(3, 14, 3, 125), reader="s", wall_ms=124), "was due at 125"),
        (replace(seen(0, 14, 0, 101), reader="s"), "asked for 100"),
        (seen(2, 14, 2, 120, 130), "for 120 after the copy for 120"),
        (seen(2, 21, 2, 130, 140), "was cancelled before offset 21"),
        (seen(1, 14, 1, 90), "was cancelled before offset 4"),
        (replace(seen(3, 14, 3, 125, 130), reader="s"), "due again"),
        (seen(4, 20, 4, 90), "cancels another record"),
    ],
    ids=["twice", "early", "other time", "occurrence twice", "after cancel", "replaced", "recurs", "cancel"],
)
def test_each_rule_finds_its_violation(bad: Seen, words: str) -> None:
    assert any(words in str(each) for each in check_delays([*HISTORY, bad], 0))


# -- transactions ------------------------------------------------------------------------------------------------

COMMITTED, ABORTED, LATER = (TransactionName("t", 0, number) for number in range(3))


def transaction(name: TransactionName, number: int, *, is_commit: bool) -> list[TransactionEvent]:
    """A transaction with one message, whose end is requested at 5 s."""
    return [
        Began(0.0, name, 1, 0),
        Wrote(1.0, name, TP, MessageId("p", number)),
        EndAsked(5.0, name, is_commit, (1, 0)),
        Ended(6.0, name, is_commit),
    ]


TRANSACTIONS: list[TransactionEvent] = [
    *transaction(COMMITTED, 0, is_commit=True),
    *transaction(ABORTED, 1, is_commit=False),
    *transaction(LATER, 2, is_commit=True),
]
DUE = Wish(due_ms=100)
TAKEN = [taken(0, 0, DUE), taken(1, 2, DUE), taken(2, 4, DUE)]


@pytest.mark.parametrize(
    ("number", "at_s", "words"),
    [
        (0, 7.0, ""),
        (0, 4.0, "before the commit of t.0.0"),
        (1, 7.0, "its transaction t.0.1 is aborted"),
    ],
)
def test_only_a_committed_transaction_is_delivered(number: int, at_s: float, words: str) -> None:
    copy = replace(seen(number, 10, 2 * number, 100), at_s=at_s)
    found = [str(each) for each in check_delays([*TAKEN, copy], 0, TRANSACTIONS)]
    assert [words in each for each in found] == ([True] if words else [])


def test_message_of_a_transaction_without_a_requested_commit_is_not_delivered() -> None:
    begun = TRANSACTIONS[:2]
    copy = replace(seen(0, 10, 0, 100), at_s=7.0)
    assert "no requested commit" in str(check_delays([*TAKEN, copy], 0, begun))


def test_ordinary_message_of_an_aborted_transaction_is_shown_to_uncommitted_readers_alone() -> None:
    ordinary = taken(1, 2, Wish())
    shown = Seen(7.0, "r", TP, 2, MessageId("p", 1), None, None, None, 100)
    assert check_delays([ordinary, shown], 0, TRANSACTIONS) == []
    assert check_delays([ordinary, replace(shown, is_read_committed=True)], 0, TRANSACTIONS)


def test_cancel_in_a_transaction_counts_from_its_marker_on() -> None:
    """The marker stands before offset 4, where the next transaction begins."""
    target = taken(9, 0, DUE)

    def found(cancelling: int, copy_offset: int) -> list[str]:
        cancel = taken(cancelling, 2, Wish(ends=(target.message,)))
        events: list[Event] = [target, cancel, taken(2, 4, DUE), seen(9, copy_offset, 0, 100)]
        return [str(each) for each in check_delays(events, 0, TRANSACTIONS)]

    assert found(0, 3) == []
    assert "was cancelled" in str(found(0, 5))
    assert found(1, 5) == [], "the cancel is aborted"
    assert found(2, 5) == [], "where the marker is, is not known"


def test_what_a_committed_transaction_took_is_required() -> None:
    assert [each.message.number for each in required(TAKEN, TRANSACTIONS)] == [0, 2]
    assert [each.message.number for each in required(TAKEN, TRANSACTIONS[:3])] == [1, 2], "0 is not known"


@pytest.mark.parametrize(
    ("wish", "skipped", "may_hold"),
    [
        (DUE, Skipped(wall_ms=99, offset=0, end_offset=9), False),
        (DUE, Skipped(wall_ms=100, offset=0, end_offset=9), True),
        (DUE, Skipped(wall_ms=100, offset=0, end_offset=4), False),
        (RELATIVE, Skipped(wall_ms=0, offset=5, end_offset=9), True),
        (Wish(), Skipped(wall_ms=0, offset=0, end_offset=3), False),
        (Wish(), Skipped(wall_ms=0, offset=0, end_offset=4), True),
    ],
    ids=["not due yet", "due", "before it", "relative", "ordinary, before it", "ordinary"],
)
def test_skipped_range_excuses_only_what_it_may_hold(wish: Wish, skipped: Skipped, may_hold: bool) -> None:
    assert skipped.may_hold(taken(0, 3, wish), 0) is may_hold
