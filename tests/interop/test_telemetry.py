"""Metrics that stock clients push by themselves (KIP-714) show among the broker's."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from confluent_kafka import Producer

from tests.brokers import eventually, start_broker
from tests.wire.connection import Connection


def test_metrics_pushed_by_librdkafka_are_exposed(tmp_path: Path, topic: str) -> None:
    settings = {"tidemill.status.listener": "127.0.0.1:0"}
    with start_broker(tmp_path / "data", settings=settings) as broker, Connection(broker) as connection:
        found = re.search(r"http://\S+/metrics", broker.printed)
        assert found is not None, broker.printed
        entries = [
            {"name": name, "config_operation": 0, "value": value}
            for name, value in (("metrics", "*"), ("interval.ms", "100"), ("match", "client_id=pusher"))
        ]
        change = {"resource_type": 16, "resource_name": "all", "configs": entries}
        (response,) = connection.request("incremental_alter_configs", 1, resources=[change]).responses
        assert response.error_code == 0
        producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "pusher"})

        def is_shown() -> bool:
            producer.produce(topic, b"x")
            producer.flush(5)
            with urllib.request.urlopen(found[0], timeout=10) as page:
                lines = page.read().decode().splitlines()
            shown = [line for line in lines if line.startswith("tidemill_client_metric{")]
            return any('client_id="pusher"' in line and "producer" in line for line in shown)

        eventually(is_shown, "the client's metrics")
        assert "Traceback" not in broker.log()
