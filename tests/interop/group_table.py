"""The columns of the table for groups: libraries with the protocols and the assignors that they have."""

from __future__ import annotations

from collections.abc import Container

import pytest

from tests.interop.aiokafka_group import AiokafkaConsumer
from tests.interop.confluent_group import ConfluentConsumer, ConfluentNewConsumer
from tests.interop.group_consumers import GroupConsumer
from tests.interop.kafka_python_group import KafkaPythonConsumer

KINDS: tuple[type[GroupConsumer], ...] = (
    ConfluentConsumer,
    ConfluentNewConsumer,
    AiokafkaConsumer,
    KafkaPythonConsumer,
)
CLASSIC_KINDS: tuple[type[GroupConsumer], ...] = (ConfluentConsumer, AiokafkaConsumer, KafkaPythonConsumer)

# Broker settings under which a test need not wait for what takes seconds by default.
GROUP_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "2500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "0",
}


def with_members(
    *kinds: type[GroupConsumer],
    without: dict[type[GroupConsumer], str] | None = None,
    long: Container[type[GroupConsumer]] = (),
) -> pytest.MarkDecorator:
    """Runs a behaviour with members of every kind, or of these; `without` names those that cannot, and why.

    Those in `long` are left to `make long`.
    """
    able = [kind for kind in kinds or KINDS if kind not in (without or {})]
    columns = [
        pytest.param(kind, id=kind.name, marks=[pytest.mark.long] if kind in long else []) for kind in able
    ]
    return pytest.mark.parametrize("kind", columns)


def with_assignors() -> pytest.MarkDecorator:
    """Every kind with every assignor that it has."""
    columns = [
        pytest.param(kind, assignor, id=f"{kind.name}, {assignor}")
        for kind in KINDS
        for assignor in kind.assignors
    ]
    return pytest.mark.parametrize(("kind", "assignor"), columns)
