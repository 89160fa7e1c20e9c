"""Delays of published records, from a program."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tidemill import Client
from tidemill.sdk.errors import InvalidSetting
from tidemill.testing import InProcessBroker


@pytest.fixture
def later(shared: InProcessBroker, name: str) -> str:
    return shared.create_topic(name, configs={"tidemill.delays.enable": "true"})


def _shown(shared: InProcessBroker, topic: str, count: int) -> list[bytes | None]:
    return [record.value for record in shared.records(topic, count=count)]


def test_records_wait_and_come(shared: InProcessBroker, client: Client, later: str) -> None:
    client.publish(later, "an hour", delay=3600).result()
    client.publish(later, "two hours", delay=timedelta(hours=2)).result()
    client.publish(later, "half an hour", delay="30m").result()
    client.publish(later, "a moment", deliver_at=datetime.now(UTC) + timedelta(hours=3)).result()
    client.publish(later, "each day", key="k", cron="@daily", schedule_id="d").result()
    assert shared.records(later) == []
    shared.clock.advance(hours=4)
    assert set(_shown(shared, later, 4)) >= {b"an hour", b"two hours", b"half an hour", b"a moment"}


def test_what_waits_is_cancelled(shared: InProcessBroker, client: Client, later: str) -> None:
    for schedule_id in ("a", "b"):
        client.publish(later, schedule_id, key="k", delay=60, schedule_id=schedule_id).result()
    client.cancel(later, "k", "a").result()
    shared.clock.advance(minutes=5)
    assert _shown(shared, later, 1) == [b"b"]


@pytest.mark.parametrize(
    "how",
    [
        {"delay": 1, "cron": "@daily", "schedule_id": "x"},
        {"delay": -1},
        {"delay": float("nan")},
        {"deliver_at": datetime(2030, 1, 1)},
        {"cron": "@daily"},
        {"time_zone": "Europe/Berlin"},
        {"schedule_id": "x"},
    ],
)
def test_times_that_cannot_be_meant_are_refused(client: Client, later: str, how: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        client.publish(later, "no", **how)
