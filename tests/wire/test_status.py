"""The node's own HTTP listener, as Prometheus and an orchestrator use it."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from tests.brokers import Broker, start_broker
from tidemill.broker.metrics.names import SECTIONS

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, str]]:
    settings = {"tidemill.status.listener": "127.0.0.1:0"}
    with start_broker(tmp_path_factory.mktemp("watched") / "data", settings=settings) as broker:
        found = re.search(r"http://(\S+)/metrics", broker.printed)
        assert found is not None, broker.printed
        yield broker, found[1]


def _get(address: str, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read()
    finally:
        connection.close()


def _samples(address: str) -> Samples:
    status, _, body = _get(address, "/metrics")
    assert status == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_counts_what_was_written_and_read(watched: tuple[Broker, str], topic: str) -> None:
    broker, address = watched
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(7):
        producer.produce(topic, value=b"%d" % number, partition=0)
    producer.flush(20)
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": f"{topic}-group", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    read = 0
    while read < 5:
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        read += 1
    consumer.commit(offsets=[TopicPartition(topic, 0, read)], asynchronous=False)
    samples = _samples(address)
    consumer.close()

    of_topic = (("topic", topic),)
    assert samples["kafka_server_brokertopicmetrics_messagesin_total", of_topic] == 7
    bytes_in = samples["kafka_server_brokertopicmetrics_bytesin_total", of_topic]
    assert bytes_in >= 61 + 7
    assert samples["kafka_server_brokertopicmetrics_bytesout_total", of_topic] >= bytes_in
    assert samples["kafka_server_brokertopicmetrics_failedproducerequests_total", of_topic] == 0
    of_partition = (("partition", "0"), ("topic", topic))
    assert samples["kafka_topic_partition_current_offset", of_partition] == 7
    assert samples["kafka_topic_partition_oldest_offset", of_partition] == 0
    assert samples["kafka_topic_partition_in_sync_replica", of_partition] == 1
    of_group = (("consumergroup", f"{topic}-group"), *of_partition)
    assert samples["kafka_consumergroup_current_offset", of_group] == 5
    assert samples["kafka_consumergroup_lag", of_group] == 2
    assert (
        samples["kafka_consumergroup_lag_sum", (("consumergroup", f"{topic}-group"), ("topic", topic))] == 2
    )
    assert samples["kafka_consumergroup_members", (("consumergroup", f"{topic}-group"),)] == 1
    assert samples["kafka_topic_partitions", of_topic] == 1
    assert samples["kafka_log_log_size", of_partition] == bytes_in
    assert samples["kafka_controller_kafkacontroller_activecontrollercount", ()] == 1


def test_metrics_page_shows_broker_state(watched: tuple[Broker, str]) -> None:
    broker, address = watched
    samples = _samples(address)
    assert samples["kafka_server_kafkaserver_brokerstate", ()] == 3
    assert samples["kafka_server_raft_metrics_current_leader", ()] == 1
    assert samples["kafka_server_raft_metrics_current_state_info", (("state", "leader"),)] == 1
    assert samples["kafka_broker_info", (("address", broker.bootstrap), ("id", "1"))] == 1
    committed = samples["kafka_server_raft_metrics_high_watermark", ()]
    assert 0 < committed <= samples["kafka_server_raft_metrics_log_end_offset", ()]
    disk = os.statvfs(broker.data_dir)
    assert samples["tidemill_data_dir_size_bytes", ()] == disk.f_frsize * disk.f_blocks
    assert 0 < samples["tidemill_data_dir_free_bytes", ()] <= samples["tidemill_data_dir_size_bytes", ()]
    assert samples["process_resident_memory_bytes", ()] > 1e6
    assert (
        0
        < samples["tidemill_event_loop_cpu_seconds_total", ()]
        <= samples["process_cpu_seconds_total", ()] + 0.1
    )
    assert 0 <= samples["kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", ()] <= 1


def test_the_page_has_the_names_of_the_tables_and_no_others(watched: tuple[Broker, str]) -> None:
    """The reference in the docs is written from those tables."""
    status, _, body = _get(watched[1], "/metrics")
    assert status == 200
    families = [(family.name, family.type) for family in text_string_to_metric_families(body.decode())]
    assert len(families) == len(set(families))
    own = {(name, kind) for name, kind in families if not name.startswith("process_")}
    assert own == {(metric.name, section.kind) for section in SECTIONS for metric in section.metrics}


def test_a_group_may_be_called_anything(watched: tuple[Broker, str], topic: str) -> None:
    broker, address = watched
    group = f'{topic} "quoted" \\ back\nnext line'
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"v", partition=0)
    producer.flush(20)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    key = (("consumergroup", group), ("partition", "0"), ("topic", topic))
    assert _samples(address)["kafka_consumergroup_lag", key] == 0


def test_requests_are_timed(watched: tuple[Broker, str]) -> None:
    broker, address = watched
    name = ("request", "Metadata")
    key = ("tidemill_request_duration_seconds_count", (name,))
    Producer({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=20)
    before = _samples(address)
    Producer({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=20)
    after = _samples(address)
    assert after[key] > before[key]
    assert after["kafka_network_requestmetrics_requests_total", (name,)] == after[key]
    buckets = [
        value
        for (sample, labels), value in after.items()
        if sample == "tidemill_request_duration_seconds_bucket" and name in labels
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == after[key]
    sum_s = after["tidemill_request_duration_seconds_sum", (name,)]
    assert sum_s > 0
    quantiles_ms = [
        after["kafka_network_requestmetrics_totaltimems", (("quantile", share), name)]
        for share in ("0.50", "0.95", "0.999")
    ]
    assert 0 < quantiles_ms[0] <= quantiles_ms[1] <= quantiles_ms[2]


def test_status_page_shows_causes_of_rebalances(watched: tuple[Broker, str], topic: str) -> None:
    broker, address = watched
    group = f"{topic}-watched"
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"v")
    producer.flush(20)
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    message = consumer.poll(20)
    assert message is not None
    consumer.close()
    status, content_type, body = _get(address, f"/rebalances?group={group}")
    assert (status, content_type) == (200, "application/json")
    events = json.loads(body)
    assert [(event["group_id"], event["members_before"], event["members_after"]) for event in events] == [
        (group, 0, 1),
        (group, 1, 0),
    ]
    assert "joined" in events[0]["cause"]
    assert "left" in events[1]["cause"]


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_is_healthy_and_ready(watched: tuple[Broker, str], path: str) -> None:
    assert _get(watched[1], path)[0] == 200


def test_a_head_has_no_body(watched: tuple[Broker, str]) -> None:
    status, _, body = _get(watched[1], "/metrics", "HEAD")
    assert (status, body) == (200, b"")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (b"\x00\x01\x02\r\n\r\n", 400),
        (b"GET /metrics SPDY/3\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    ],
    ids=["unknown path", "another method", "garbage", "another protocol", "huge headers"],
)
def test_bad_requests_get_their_error_and_nothing_else_suffers(
    watched: tuple[Broker, str], sent: bytes, status: int
) -> None:
    host, port = watched[1].rsplit(":", 1)
    with socket.create_connection((host, int(port)), 20) as client:
        client.sendall(sent)
        assert client.makefile("rb").readline().startswith(b"HTTP/1.1 %d " % status)
    assert _get(watched[1], "/healthz")[0] == 200


def test_a_port_that_is_taken_does_not_stop_the_broker(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with start_broker(tmp_path / "data", settings={"tidemill.status.listener": address}) as broker:
            with broker.connect():
                assert "/metrics" not in broker.printed
            (line,) = (line for line in broker.log().splitlines() if address in line)
    assert f"cannot listen on {address}" in line
    assert "give --status another address" in line
