"""The checker finds each planted violation, names it, and lets a correct history pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from tidemill.sim.checks.checker import (
    RULES,
    Acked,
    Assigned,
    CommitSent,
    Committed,
    Delivered,
    Died,
    Drained,
    Event,
    Found,
    LogEnded,
    Lost,
    MemberName,
    MessageId,
    Revoked,
    Sent,
    Shown,
    Violation,
    check,
)
from tidemill.types import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
A, B = MemberName("g", "a"), MemberName("g", "b")


class Script:
    """Writes histories line by line; every line is a second later than the last."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._clock = itertools.count(1)

    def _now(self) -> float:
        return float(next(self._clock))

    def sent(self, *numbers: int, is_idempotent: bool = True) -> Script:
        self.events += [Sent(self._now(), MessageId("p", number), is_idempotent) for number in numbers]
        return self

    def acked(self, number: int, offset: int, partition: TopicPartition = P0) -> Script:
        self.events.append(Acked(self._now(), MessageId("p", number), partition, offset))
        return self

    def found(self, number: int, offset: int, partition: TopicPartition = P0) -> Script:
        self.events.append(Found(self._now(), partition, offset, MessageId("p", number)))
        return self

    def shown(self, number: int, offset: int) -> Script:
        self.events.append(Shown(self._now(), "reader", P0, offset, MessageId("p", number)))
        return self

    def ended(self, partition: TopicPartition = P0) -> Script:
        self.events.append(LogEnded(self._now(), partition))
        return self

    def drained(self, group: str = "g") -> Script:
        self.events.append(Drained(self._now(), group))
        return self

    def assigned(self, member: MemberName, generation: int | None, *partitions: TopicPartition) -> Script:
        self.events.append(Assigned(self._now(), member, partitions or (P0,), generation))
        return self

    def revoked(self, member: MemberName, *partitions: TopicPartition) -> Script:
        self.events.append(Revoked(self._now(), member, partitions or (P0,)))
        return self

    def lost(self, member: MemberName, *partitions: TopicPartition) -> Script:
        self.events.append(Lost(self._now(), member, partitions or (P0,)))
        return self

    def died(self, member: MemberName) -> Script:
        self.events.append(Died(self._now(), member))
        return self

    def delivered(
        self, member: MemberName, offset: int, generation: int | None = None, number: int | None = None
    ) -> Script:
        message = MessageId("p", offset if number is None else number)
        self.events.append(Delivered(self._now(), member, P0, offset, message, generation))
        return self

    def commit_sent(self, member: MemberName, offset: int) -> Script:
        self.events.append(CommitSent(self._now(), member, P0, offset))
        return self

    def committed(self, member: MemberName, offset: int) -> Script:
        self.events.append(Committed(self._now(), member, P0, offset))
        return self


def rules(violations: Iterable[Violation]) -> set[str]:
    return {violation.rule for violation in violations}


def script() -> Script:
    return Script().sent(*range(10))


def test_a_correct_history_passes() -> None:
    life = script()
    for number in range(4):
        life.acked(number, number)
    life.assigned(A, 1).delivered(A, 0, 1).delivered(A, 1, 1).commit_sent(A, 2).committed(A, 2)
    life.revoked(A).assigned(B, 2).delivered(B, 2, 2).delivered(B, 3, 2).commit_sent(B, 4).committed(B, 4)
    for number in range(4):
        life.found(number, number)
    assert check(life.ended().drained().events) == []


def test_every_rule_has_a_planted_violation() -> None:
    planted = {mark.args[1][index][0] for mark in _marks() for index in range(len(mark.args[1]))}
    assert {rule.__name__ for rule in RULES} == planted


def _marks() -> list[pytest.Mark]:
    marks: list[pytest.Mark] = test_a_planted_violation_is_found_by_its_rule_alone.pytestmark  # type: ignore[attr-defined]
    return marks


@pytest.mark.parametrize(
    ("rule", "life", "words"),
    [
        ("no_acked_write_lost", script().acked(0, 0).acked(1, 1).found(0, 0).ended(), "p/1 was acked at t-0"),
        ("every_acked_write_is_delivered", script().acked(0, 0).drained(), "p/0, acked at t-0 offset 0"),
        (
            "offsets_agree",
            script().acked(0, 0).assigned(A, 1).delivered(A, 0, 1, number=1),
            "t-0 offset 0 is p/0 and also p/1",
        ),
        (
            "nothing_read_vanishes",
            script().assigned(A, None).delivered(A, 0).delivered(A, 1).found(0, 0).ended(),
            "a of g read p/1 at t-0 offset 1, which is gone",
        ),
        (
            "views_show_what_matches",
            script().found(0, 0).found(1, 1).found(2, 2).ended().shown(0, 0).shown(2, 2),
            "record 1 of the view of t-0 is (2, MessageId(producer='p', number=2)) and not (1, ",
        ),
        ("nothing_is_invented", script().found(99, 0), "p/99 at t-0 offset 0 was never sent"),
        (
            "no_duplicate_from_an_idempotent_producer",
            script().acked(0, 0).found(0, 0).found(0, 1),
            "p/0 is at t-0 offset 0 and again at t-0 offset 1",
        ),
        ("order_is_kept", script().found(1, 0).found(0, 1), "p/1 at offset 0 comes before p/0 at offset 1"),
        (
            "one_owner_in_a_generation",
            script().assigned(A, 3).died(A).assigned(B, 3),
            "t-0 in generation 3 of g: a and b",
        ),
        ("one_owner_at_a_time", script().assigned(A, 1).assigned(B, 2).revoked(A), "t-0 of g: a from 11.000"),
        (
            "only_the_owner_processes",
            script().assigned(A, 1).revoked(A).delivered(A, 0, 1),
            "a of g processed t-0 offset 0 at 13.000, which it did not own",
        ),
        (
            "one_member_processes_an_offset_in_a_generation",
            script().assigned(A, 1).delivered(A, 0, 1).died(A).assigned(B, None).delivered(B, 0, 1),
            "t-0 offset 0 in generation 1 of g: by a and by b",
        ),
        (
            "a_tenure_reads_in_order",
            script().assigned(A, None).delivered(A, 1).delivered(A, 0),
            "a of g processed t-0 offset 0 after offset 1",
        ),
        (
            "resumes_at_the_commit",
            script()
            .assigned(A, 1)
            .delivered(A, 0, 1)
            .committed(A, 1)
            .revoked(A)
            .assigned(B, 2)
            .delivered(B, 3, 2),
            "b of g resumed t-0 at offset 3; committed was 1",
        ),
    ],
)
def test_a_planted_violation_is_found_by_its_rule_alone(rule: str, life: Script, words: str) -> None:
    violations = check(life.events)
    assert rules(violations) == {rule}
    assert any(words in str(violation) for violation in violations)


def test_a_write_acked_at_another_offset_is_lost() -> None:
    life = script().acked(0, 5).found(0, 0).ended()
    assert "no_acked_write_lost" in rules(check(life.events))


def test_many_lost_writes_are_named_once_and_counted() -> None:
    life = script()
    for number in range(10):
        life.acked(number, number)
    texts = [violation.text for violation in check(life.ended().events)]
    assert len(texts) == 4
    assert texts[-1] == "and 7 more"


def test_log_not_read_to_its_end_is_not_judged() -> None:
    assert check(script().acked(0, 0).acked(1, 1).found(0, 0).events) == []


def test_a_write_without_an_ack_may_be_there_or_not() -> None:
    assert check(script().found(3, 0).ended().drained().events) == []


def test_a_producer_that_is_not_idempotent_may_duplicate() -> None:
    life = Script().sent(0, is_idempotent=False).acked(0, 1).found(0, 0).found(0, 1).ended()
    assert check(life.events) == []


@pytest.mark.parametrize("ending", ["lost", "died"])
def test_an_owner_that_did_not_know_of_its_end_may_overlap(ending: str) -> None:
    life = script().assigned(A, 1).assigned(B, 2)
    getattr(life, ending)(A)
    assert check(life.events) == []


def test_an_overlap_with_an_owner_further_back_is_found() -> None:
    c = MemberName("g", "c")
    life = script().assigned(A, 1).assigned(B, 2).lost(B).assigned(c, 3)
    found = [violation.text for violation in check(life.events) if violation.rule == "one_owner_at_a_time"]
    assert len(found) == 2


def test_a_partition_may_return_to_its_owner() -> None:
    life = script().assigned(A, 1, P0, P1).revoked(A, P1).assigned(B, 2, P1).revoked(B, P1).assigned(A, 3, P1)
    assert check(life.events) == []


def test_groups_do_not_mix() -> None:
    other = MemberName("h", "b")
    life = script().assigned(A, 1).assigned(other, 1).delivered(A, 0, 1).delivered(other, 0, 1)
    assert check(life.events) == []


def test_processing_again_in_the_next_generation_is_allowed_without_a_commit() -> None:
    life = script().assigned(A, 1).delivered(A, 0, 1).revoked(A).assigned(B, 2).delivered(B, 0, 2)
    assert check(life.events) == []


@pytest.mark.parametrize("resumed", [1, 3])
def test_a_commit_without_an_answer_may_count_or_not(resumed: int) -> None:
    life = script().assigned(A, 1).delivered(A, 0, 1).commit_sent(A, 1).committed(A, 1)
    life.delivered(A, 1, 1).delivered(A, 2, 1).commit_sent(A, 3).died(A)
    assert check(life.assigned(B, 2).delivered(B, resumed, 2).events) == []


def test_a_commit_without_an_answer_counts_no_longer_after_the_next_commit() -> None:
    life = script().assigned(A, 1).delivered(A, 0, 1).commit_sent(A, 1).died(A)
    life.assigned(B, 2).delivered(B, 0, 2).commit_sent(B, 4).committed(B, 4).revoked(B)
    found = check(life.assigned(A, 3).delivered(A, 1, 3).events)
    assert rules(found) == {"resumes_at_the_commit"}


def test_a_member_that_gets_its_generation_back_reads_again_what_it_has_not_committed() -> None:
    life = script().assigned(A, 1).delivered(A, 0, 1).delivered(A, 1, 1).revoked(A)
    assert check(life.assigned(A, 1).delivered(A, 0, 1).delivered(A, 1, 1).events) == []
