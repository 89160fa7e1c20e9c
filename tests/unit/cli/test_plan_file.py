"""The JSON format of reassignment plans."""

from __future__ import annotations

import json

import pytest

from tidemill.cli.cluster.plan_file import parse_plan, plan_text
from tidemill.cli.failures import CommandError
from tidemill.types import TopicPartition

PLAN = {TopicPartition("orders", 1): (1, 2), TopicPartition("orders", 0): (3,)}


def test_plan_can_be_read_by_tidemill_and_kafka() -> None:
    text = plan_text(PLAN)
    assert parse_plan(text, "plan") == PLAN
    assert json.loads(text) == {
        "version": 1,
        "partitions": [
            {"topic": "orders", "partition": 0, "replicas": [3]},
            {"topic": "orders", "partition": 1, "replicas": [1, 2]},
        ],
    }
    assert parse_plan(plan_text({}), "plan") == {}


def test_log_dirs_in_kafkas_plans_are_ignored() -> None:
    row = {"topic": "a", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]}
    assert parse_plan(json.dumps({"version": 1, "partitions": [row]}), "plan") == {
        TopicPartition("a", 0): (1, 2)
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a reassignment plan"),
        ('{"version": 2, "partitions": []}', "is not a reassignment plan"),
        ('{"version": 1, "partitions": [1]}', "partition 1 of the list"),
        ('{"partitions": [{"topic": "a", "partition": -1, "replicas": [1]}]}', "from 0 on"),
        ('{"partitions": [{"topic": "a", "partition": 0, "replicas": []}]}', "different broker ids"),
        ('{"partitions": [{"topic": "a", "partition": 0, "replicas": [1, 1]}]}', "different broker ids"),
        ('{"partitions": [{"topic": "a", "partition": 0, "replicas": [1, "2"]}]}', "different broker ids"),
        (
            '{"partitions": [{"topic": "a", "partition": 0, "replicas": [1]},'
            ' {"topic": "a", "partition": 0, "replicas": [2]}]}',
            "names a-0 twice",
        ),
    ],
)
def test_invalid_plan_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(CommandError, match=reason) as caught:
        parse_plan(text, "plan.json")
    assert "plan.json" in str(caught.value)
