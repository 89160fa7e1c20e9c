"""What a broker shows of delayed records and views at /metrics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidemill.broker.metrics.registry import Recent
from tidemill.broker.node import Node
from tidemill.broker.status import exposition
from tidemill.testing import InProcessBroker

DELAYS = {"tidemill.delays.enable": "true"}


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as started:
        started._running_threads()[0].call(_watch)
        yield started


def _watch(node: Node) -> None:
    node.broker.metrics.is_watched = True


def shown(broker: InProcessBroker) -> dict[str, float]:
    """The samples of the metrics page, by name and labels."""
    (thread,) = broker._running_threads()

    async def page(node: Node) -> list[bytes]:
        recent = Recent(node.broker.metrics, 0.0, 0.0)
        return await exposition.page(node.broker, recent, is_ready=True)

    text = b"".join(thread.run(page)).decode()
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows if name.startswith("tidemill_")}


def test_waiting_delivered_and_cancelled_records_are_counted(broker: InProcessBroker) -> None:
    topic = broker.create_topic("later", configs=DELAYS)
    before_ms = broker.clock.wall_ms()
    broker.produce(topic, "first", headers={"tidemill-delay": "1h"})
    broker.produce(topic, "second", headers={"tidemill-delay": "3h"})
    broker.produce(topic, "no", key="k", headers={"tidemill-delay": "4h", "tidemill-schedule-id": "a"})
    place = '{topic="later",partition="0"}'
    broker.wait_until(lambda: shown(broker)[f"tidemill_delays_pending{place}"] == 3, "three wait")
    found = shown(broker)
    assert found["tidemill_broker_delays_pending"] == 3
    assert found[f"tidemill_delays_next_due_timestamp_seconds{place}"] >= before_ms / 1000 + 3600

    broker.produce(topic, None, key="k", headers={"tidemill-cancel": "", "tidemill-schedule-id": "a"})
    broker.clock.advance(hours=2)
    broker.records(topic, count=1)
    broker.wait_until(lambda: shown(broker)[f"tidemill_delays_pending{place}"] == 1, "one waits")
    found = shown(broker)
    assert found['tidemill_delays_delivered_total{topic="later"}'] == 1
    assert found['tidemill_delays_cancelled_total{topic="later"}'] == 1
    assert found["tidemill_delays_lateness_seconds_count"] == 1


def test_records_of_an_older_log_are_not_counted_again(broker: InProcessBroker) -> None:
    topic = broker.create_topic("later", configs=DELAYS)
    broker.produce(topic, "no", key="k", headers={"tidemill-delay": "4h", "tidemill-schedule-id": "a"})
    broker.produce(topic, "waits", headers={"tidemill-delay": "4h"})
    broker.produce(topic, None, key="k", headers={"tidemill-cancel": "", "tidemill-schedule-id": "a"})
    broker.restart()
    place = 'tidemill_delays_pending{topic="later",partition="0"}'
    broker.wait_until(lambda: shown(broker)[place] == 1, "the log is replayed")
    assert 'tidemill_delays_cancelled_total{topic="later"}' not in shown(broker)


def test_topics_without_either_have_no_rows_of_them(broker: InProcessBroker) -> None:
    broker.produce("orders", "paid")
    assert not [name for name in shown(broker) if 'topic="orders"' in name]


def test_a_view_counts_what_it_scans_and_shows(broker: InProcessBroker) -> None:
    broker.create_topic("orders")
    view = broker.create_topic(
        "eu",
        partitions=-1,
        configs={"tidemill.view.source": "orders", "tidemill.view.filter": "region = 'eu'"},
    )
    for region in ("eu", "us", "us", "eu", "us"):
        broker.produce("orders", "paid", headers={"region": region})
    assert len(broker.records(view)) == 2
    found = shown(broker)
    assert found['tidemill_view_recordsscanned_total{topic="eu"}'] == 5
    assert found['tidemill_view_recordsshown_total{topic="eu"}'] == 2
    assert found['tidemill_view_bytesscanned_total{topic="eu"}'] > 0
