"""A page of metrics is written in slices that yield to the event loop, for clusters of any size."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

from prometheus_client.parser import text_string_to_metric_families

from tests.unit.broker.node_client import LIMIT_S, Client, group_config
from tidemill.broker.clock import Clock
from tidemill.broker.metrics.registry import Recent
from tidemill.broker.node import Node
from tidemill.broker.requests.quotas import ConnectionRates
from tidemill.broker.status import exposition
from tidemill.broker.status import rows as metric_rows
from tidemill.security.quotas import CONNECTION_CREATION_RATE, QuotaEntity

PARTITIONS = 300


async def test_the_loop_gets_its_turns_while_a_large_page_is_written(tmp_path: Path) -> None:
    node = Node(group_config(tmp_path))
    await node.start()
    client = Client(*await asyncio.open_connection("127.0.0.1", node.addresses[0][1]))
    turns, is_done = 0, False

    async def others() -> None:
        nonlocal turns
        while not is_done:
            turns += 1
            await asyncio.sleep(0)

    try:
        topic = {
            "name": "wide",
            "num_partitions": PARTITIONS,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        await client.ask("create_topics", 4, topics=[topic], timeout=10_000)
        async with asyncio.timeout(LIMIT_S):
            # Partitions are hosted in steps after the answer.
            while sum(each.is_leader for each in node.broker.replicas.partitions()) < PARTITIONS:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        beside = asyncio.create_task(others())
        totals = metric_rows.Totals()
        rows = await metric_rows.write_rows(node.broker, totals)
        is_done = True
        await beside
        assert turns >= PARTITIONS // metric_rows._TURN_ROWS
        assert totals.leader_count == totals.global_partition_count >= PARTITIONS
        text = b"".join(rows).decode()
        offsets = next(
            family
            for family in text_string_to_metric_families(text)
            if family.name == "kafka_topic_partition_current_offset"
        )
        shown = {
            int(sample.labels["partition"]) for sample in offsets.samples if sample.labels["topic"] == "wide"
        }
        assert shown == set(range(PARTITIONS))
    finally:
        await client.close()
        await node.stop()


async def test_page_shows_the_rate_of_connections_of_an_address_with_a_quota(tmp_path: Path) -> None:
    node = Node(group_config(tmp_path))
    await node.start()
    try:
        quotas = {QuotaEntity.of([("ip", "10.0.0.1")]): {CONNECTION_CREATION_RATE: 1.0}}
        rates = node.broker.connection_rates = ConnectionRates(lambda: 1_000, lambda: quotas)
        waits_ms = [rates.throttle_ms("10.0.0.1") for _ in range(12)]
        assert waits_ms == [0] * 10 + [1_000] * 2
        assert rates.throttle_ms("10.0.0.2") == 0
        node.broker.clock = Clock(SimpleNamespace(wall_ms=int), lambda: 1.0)
        text = b"".join(await metric_rows._ip_quotas(node.broker)).decode()
        prefix = "kafka_server_socket_server_metrics_"
        assert f'{prefix}connection_accept_rate{{ip="10.0.0.1"}} 1.0\n' in text
        assert f'{prefix}ip_connection_accept_throttle_time{{ip="10.0.0.1"}} 1000.0\n' in text
        assert "10.0.0.2" not in text
    finally:
        await node.stop()


async def test_broker_state_shows_whether_the_node_is_ready(tmp_path: Path) -> None:
    node = Node(group_config(tmp_path))
    await node.start()
    try:
        recent = Recent(node.broker.metrics, 0.0, 0.0)
        for is_ready, state in ((True, 3), (False, 6)):
            text = b"".join(await exposition.page(node.broker, recent, is_ready=is_ready)).decode()
            assert f"\nkafka_server_kafkaserver_brokerstate {state}.0\n" in text
    finally:
        await node.stop()
