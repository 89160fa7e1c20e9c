"""The rules of share groups: a correct life passes, and each rule finds its planted violation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemill.sim.checks.checker import MessageId
from tidemill.sim.checks.shares import (
    SHARE_RULES,
    Acknowledge,
    Acknowledged,
    AcknowledgeSent,
    AcquiredRecord,
    DeadLetter,
    FetchAnswered,
    FetchSent,
    OffsetsAltered,
    Produced,
    Settled,
    ShareEvent,
    check_shares,
)
from tidemill.types import TopicPartition

JOBS = TopicPartition("jobs", 0)
LIMIT = 3
BACKOFF_MS = 1_000
ACCEPT, RELEASE, REJECT = Acknowledge.ACCEPT, Acknowledge.RELEASE, Acknowledge.REJECT


class Life:
    """A share group's history, one event a second."""

    def __init__(self) -> None:
        self.events: list[ShareEvent] = []
        self.now_s = 0.0
        self._step_s = 1.0
        self._fetches = 0
        self._held: dict[tuple[str, int], AcquiredRecord] = {}

    def _pass(self) -> float:
        self.now_s += self._step_s
        return self.now_s

    def produce(self, *offsets: int) -> Life:
        for offset in offsets:
            self.events.append(Produced(self._pass(), JOBS, offset, MessageId("p", offset)))
        return self

    def fetch(
        self,
        member: str,
        offset: int,
        count: int = 1,
        *,
        asked_s: float | None = None,
        number: int | None = None,
        leadership: str = "",
    ) -> Life:
        self._fetches += 1
        asked_s = self._pass() if asked_s is None else asked_s
        self.events.append(FetchSent(asked_s, str(self._fetches), member, (JOBS,)))
        at_s = self._pass()
        self.events.append(FetchAnswered(at_s, str(self._fetches)))
        message = MessageId("p", offset if number is None else number)
        record = AcquiredRecord(at_s, asked_s, member, JOBS, offset, message, count, leadership)
        self._held[member, offset] = record
        self.events.append(record)
        return self

    def lose_fetch(self, member: str) -> Life:
        self._fetches += 1
        self.events.append(FetchSent(self._pass(), str(self._fetches), member, (JOBS,)))
        return self

    def acknowledge(
        self, member: str, offset: int, kind: Acknowledge = ACCEPT, *, is_confirmed: bool = True
    ) -> Life:
        held = self._held[member, offset]
        sent = AcknowledgeSent(self._pass(), member, JOBS, offset, kind, held.delivery_count, held.at_s)
        self.events.append(sent)
        if is_confirmed:
            self.events.append(Acknowledged(self._pass(), sent))
        return self

    def bury(self, offset: int) -> Life:
        self.events.append(DeadLetter(self._pass(), JOBS, offset, MessageId("p", offset)))
        return self

    def settle(self, end_offset: int) -> Life:
        self.events.append(Settled(self._pass(), JOBS, end_offset, LIMIT, BACKOFF_MS))
        return self

    def alter(self, start_offset: int) -> Life:
        self.events.append(OffsetsAltered(self._pass(), {JOBS: start_offset}))
        return self

    def hurry(self) -> Life:
        """From now on ten events happen in a second."""
        self._step_s = 0.1
        return self

    def work(self, member: str, offset: int, count: int = 1, kind: Acknowledge = ACCEPT) -> Life:
        return self.fetch(member, offset, count).acknowledge(member, offset, kind)


Script = Callable[[Life], Life]


def test_a_correct_life_passes() -> None:
    life = Life().produce(0, 1, 2, 3)
    life.work("a", 0).work("a", 1, kind=RELEASE).work("b", 1, count=2, kind=REJECT)
    life.fetch("a", 2).fetch("b", 3).work("b", 2, count=2, kind=RELEASE).work("b", 2, count=3, kind=RELEASE)
    life.acknowledge("b", 3).settle(4).bury(1).bury(2)
    assert check_shares(life.events) == []


def test_a_lost_fetch_may_have_delivered() -> None:
    life = Life().produce(0).lose_fetch("a").work("b", 0, count=2).settle(1)
    assert check_shares(life.events) == []


def test_deliveries_without_a_response_may_use_up_the_limit() -> None:
    life = Life().produce(0).lose_fetch("a").lose_fetch("b").fetch("b", 0).settle(1)
    assert check_shares(life.events) == []


def test_a_lock_that_ended_is_another_members() -> None:
    """The first holder's acknowledgement was not confirmed."""
    life = Life().produce(0).fetch("a", 0).fetch("b", 0, count=2).acknowledge("a", 0, is_confirmed=False)
    assert check_shares(life.acknowledge("b", 0).settle(1).events) == []


def test_a_response_may_arrive_after_the_record_was_done() -> None:
    life = Life().produce(0)
    asked_s = life.now_s
    life.work("b", 0, count=2).fetch("a", 0, asked_s=asked_s)
    assert check_shares(life.settle(1).events) == []


def test_the_next_leader_may_not_know_a_delivery() -> None:
    life = Life().produce(0).fetch("a", 0, leadership="node1").fetch("b", 0, leadership="node2")
    assert check_shares(life.fetch("c", 0).acknowledge("c", 0).settle(1).events) == []


def test_altered_offsets_begin_another_life() -> None:
    """A record that was done comes again, counted from the first delivery; one before the start need not come."""
    life = Life().produce(0, 1).work("a", 0).work("a", 1, kind=RELEASE).alter(1)
    assert check_shares(life.work("b", 1).settle(2).events) == []
    skipped = Life().produce(0, 1).work("a", 0).work("a", 1).alter(0).work("b", 0).settle(2)
    assert [violation.rule for violation in check_shares(skipped.events)] == ["nothing_is_skipped"]


def test_dead_letters_of_an_earlier_life_are_not_held_against_a_later_one() -> None:
    life = Life().produce(0, 1).work("a", 0, kind=REJECT).alter(0).work("b", 0).work("b", 1, kind=REJECT)
    assert check_shares(life.settle(2).bury(0).bury(1).events) == []
    again = Life().produce(0, 1).work("a", 0, kind=REJECT).alter(0).work("b", 0).work("b", 1)
    found = check_shares(again.settle(2).bury(0).bury(1).events)
    assert [violation.text for violation in found if "jobs-0 offset 1 was accepted" in violation.text]


PLANTED: tuple[tuple[str, Script, str], ...] = (
    (
        "a_record_is_done_once",
        lambda life: (
            life.fetch("a", 0).fetch("b", 0, asked_s=0.5).acknowledge("a", 0).acknowledge("b", 0, REJECT)
        ),
        "was done by a and again by b",
    ),
    ("what_is_done_is_not_delivered", lambda life: life.work("a", 0).fetch("b", 0, 2), "delivered to b"),
    (
        "a_lock_is_exclusive",
        lambda life: life.fetch("a", 0).fetch("b", 0, 2).acknowledge("a", 0, RELEASE),
        "was held by a",
    ),
    ("a_release_counts", lambda life: life.work("a", 0, 1, RELEASE).fetch("b", 0, 1), "as delivery 1"),
    (
        "a_release_waits",
        lambda life: life.hurry().work("a", 0, 1, RELEASE).fetch("b", 0, 2).acknowledge("b", 0),
        "released at",
    ),
    ("no_delivery_is_invented", lambda life: life.fetch("a", 0, 2), "members know of 1"),
    (
        "a_leader_counts_every_delivery",
        lambda life: (
            life.fetch("a", 0, leadership="node1").fetch("b", 0, leadership="node1").acknowledge("b", 0)
        ),
        "as delivery 1 from node1",
    ),
    (
        "the_limit_holds",
        lambda life: (
            life.work("a", 0, 1, RELEASE).work("a", 0, 2, RELEASE).work("a", 0, 3, RELEASE).fetch("a", 0, 4)
        ),
        "delivery 4 of at most 3",
    ),
    (
        "nothing_is_skipped",
        lambda life: life.fetch("a", 0).produce(1).work("b", 1),
        "without a member's word",
    ),
    (
        "dead_letters_are_what_was_given_up",
        lambda life: life.work("a", 0).bury(0),
        "was accepted by a and is a dead letter",
    ),
    ("deliveries_are_of_the_log", lambda life: life.fetch("a", 0, number=7).acknowledge("a", 0), "as p/7"),
)


def test_every_rule_has_a_planted_violation() -> None:
    assert [rule for rule, _, _ in PLANTED] == [rule.__name__ for rule in SHARE_RULES]


@pytest.mark.parametrize(("rule", "script", "words"), PLANTED, ids=[rule for rule, _, _ in PLANTED])
def test_a_planted_violation_is_found_by_its_rule(rule: str, script: Script, words: str) -> None:
    found = check_shares(script(Life().produce(0)).settle(9).events)
    assert words in next(violation.text for violation in found if violation.rule == rule)
    # A delivery after the end breaks a second rule as well: a count without a delivery, or a record that was not acquired.
    assert {violation.rule for violation in found} <= {
        rule,
        "nothing_is_skipped",
        "the_limit_holds",
        "a_release_waits",
        "dead_letters_are_what_was_given_up",
    }


def test_a_record_that_came_back_from_its_last_delivery_stays_archived() -> None:
    life = Life().produce(0).work("a", 0, 1, RELEASE).work("a", 0, 2, RELEASE).work("a", 0, 3, RELEASE)
    found = check_shares(life.fetch("b", 0, 3).settle(1).events)
    assert any("was delivered again" in violation.text for violation in found)


@pytest.mark.parametrize(
    ("life", "words"),
    [
        (lambda: Life().produce(0).work("a", 0, kind=REJECT), "is no dead letter"),
        (lambda: Life().produce(0).work("a", 0, kind=REJECT).bury(0).bury(0), "twice"),
        (lambda: Life().produce(0).fetch("a", 0).bury(0), "after the deliveries [1]"),
    ],
)
def test_dead_letters_are_exact(life: Callable[[], Life], words: str) -> None:
    found = check_shares(life().settle(1).events)
    assert any(words in each.text for each in found if each.rule == "dead_letters_are_what_was_given_up")
