"""The judgement of exactly-once: each rule sees what breaks its promise, and nothing else."""

from __future__ import annotations

import pytest

from tidemill.sim.checks import exactly_once
from tidemill.sim.checks.checker import Found, MessageId
from tidemill.sim.checks.exactly_once import Logs, check
from tidemill.sim.clients.fetching import message_of
from tidemill.types import TopicPartition


def log(topic: str, *messages: str, partition: int = 0, start: int = 0) -> list[Found]:
    """`a1 a2 - b1`: one message to an offset; a dash is an offset that this reader does not see."""
    place = TopicPartition(topic, partition)
    return [
        Found(0.0, place, start + offset, MessageId(message[0], int(message[1:])))
        for offset, message in enumerate(messages)
        if message != "-"
    ]


INPUT = log("in", "a1", "b1", "a2", "b2")
UNCOMMITTED = log("out", "a1", "a1", "b1", "-", "a2", "b2")
COMMITTED = log("out", "-", "a1", "b1", "-", "a2", "b2")


def broken_rules(logs: Logs) -> list[str]:
    return [violation.rule for violation in check(logs)]


def test_consistent_history_has_no_violations() -> None:
    logs = Logs(INPUT, COMMITTED, UNCOMMITTED)
    assert check(logs) == []
    assert [(found.offset, str(found.message)) for found in logs.aborted()] == [(0, "a/1")]


@pytest.mark.parametrize(
    ("committed", "uncommitted", "rule"),
    [
        (log("out", "a1", "b1", "a2"), None, "every_input_is_transformed"),
        (log("out", "a1", "b1", "a2", "b2", "b2"), None, "nothing_is_transformed_twice"),
        (log("out", "a1", "b1", "a2", "b2", "c1"), None, "nothing_is_invented"),
        (
            log("out", "a1", "b1", "a2", "b2"),
            log("out", "a1", "b1", "a2", "b2", "c1"),
            "nothing_is_invented",
        ),
        (log("out", "a2", "b1", "a1", "b2"), None, "order_is_kept"),
        (log("out", "a1", "b1", "b2") + log("out", "a2", partition=1), None, "order_is_kept"),
        (
            log("out", "a1", "b1", "a2", "b2"),
            log("out", "-", "a1", "b1", "a2", "b2"),
            "committed_is_part_of_the_log",
        ),
    ],
)
def test_each_rule_finds_its_violation(
    committed: list[Found], uncommitted: list[Found] | None, rule: str
) -> None:
    logs = Logs(INPUT, committed, committed if uncommitted is None else uncommitted)
    assert set(broken_rules(logs)) == {rule}


def test_many_of_a_kind_are_counted() -> None:
    many = log("in", *(f"a{number}" for number in range(9)))
    texts = [violation.text for violation in check(Logs(many, [], []))]
    assert texts[-1] == "and 4 more"
    assert len(texts) == 6


def test_a_value_names_its_message() -> None:
    assert message_of(b"k/3/17") == MessageId("k/3", 17)
    assert len(exactly_once.RULES) == 5
