"""The rules for delayed records that the simulation checks: each finds what it is there for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemill.sim.checks.checker import MessageId
from tidemill.sim.crowds.delays import Event, Seen, Taken, Wish, check_delays
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
    taken(3, 3, replace(RELATIVE, ends=(1,))),
    taken(4, 20, Wish(ends=(2,))),
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
        (seen(2, 21, 2, 130, 140), "was cancelled at offset 20"),
        (seen(1, 14, 1, 90), "was cancelled at offset 3"),
        (replace(seen(3, 14, 3, 125, 130), reader="s"), "due again"),
        (seen(4, 20, 4, 90), "cancels another record"),
    ],
    ids=["twice", "early", "other time", "occurrence twice", "after cancel", "replaced", "recurs", "cancel"],
)
def test_each_rule_finds_its_violation(bad: Seen, words: str) -> None:
    assert any(words in str(each) for each in check_delays([*HISTORY, bad], 0))
