"""Names of topics and groups: different queues never share one, and Kafka allows all of them."""

from __future__ import annotations

import re

import pytest

from tidemill.celery.names import Names
from tidemill.errors import ConfigError
from tidemill.internal_topics import OFFSETS_TOPIC

NAMES = Names("/")
LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@pytest.mark.parametrize("queue", ["celery", "a.b-c_D", "orders.high", "x" * 200])
def test_name_that_kafka_allows_is_kept(queue: str) -> None:
    assert NAMES.topic(queue) == NAMES.group(queue) == queue


@pytest.mark.parametrize(
    "queue",
    [
        "two words",
        "jobs/ü",
        "q" * 300,
        "q" * 299 + "r",
        ".",
        "..",
        OFFSETS_TOPIC,
        "celery.priority-9",
        "celery.pidbox.exchange",
        "kombu.bindings",
        "::",
        "@",
    ],
)
def test_other_names_are_cleaned_and_marked(queue: str) -> None:
    topics = NAMES.topics(queue)
    assert all(LEGAL.fullmatch(each) for each in topics)
    assert queue not in topics
    assert NAMES.topic(queue) not in (
        NAMES.topic(queue + "x"),
        NAMES.bindings,
        NAMES.stream("celery.pidbox"),
        NAMES.topic("celery", 9),
    )


def test_priorities_are_mapped_to_the_step_below_them_and_the_lowest_is_the_queue_itself() -> None:
    assert [NAMES.topic("q", priority) for priority in (0, 2, 3, 5, 9)] == [
        "q",
        "q",
        "q.priority-3",
        "q.priority-3",
        "q.priority-9",
    ]
    assert NAMES.topics("q") == ["q.priority-9", "q.priority-6", "q.priority-3", "q"]
    assert Names("/", [5]).topics("q") == ["q"]


def test_virtual_host_is_a_prefix_of_everything() -> None:
    names = Names("staging")
    assert (names.topic("q"), names.group("q"), names.stream("e"), names.bindings) == (
        "staging.q",
        "staging.q",
        "staging.e.exchange",
        "staging.kombu.bindings",
    )
    assert all(LEGAL.fullmatch(each) for each in Names("v" * 300).topics("q" * 300))


@pytest.mark.parametrize("steps", [[], [10], [-1, 3]])
def test_steps_outside_of_0_to_9_are_refused(steps: list[int]) -> None:
    with pytest.raises(ConfigError, match="priority_steps"):
        Names("/", steps)
