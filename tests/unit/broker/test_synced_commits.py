"""Committed offsets on a broker that syncs every message before its ack."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.broker.node_client import SESSION_MS, Client, group_config, join
from tidemill.broker.node import Node
from tidemill.internal_topics import OFFSETS_TOPIC
from tidemill.log.sync import SyncWork


async def test_a_commit_is_answered_once_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    run = SyncWork.run

    def noting(work: SyncWork) -> None:
        run(work)
        synced.append(work.folder)

    monkeypatch.setattr(SyncWork, "run", noting)
    node = Node(group_config(tmp_path, log_flush_interval_messages="1"))
    await node.start()
    client = Client(*await asyncio.open_connection("127.0.0.1", node.addresses[0][1]))
    try:
        await join(client, "billing", SESSION_MS)
        partition, _ = node.broker.replicas.find((OFFSETS_TOPIC, 0))
        assert partition is not None
        assert partition.log is not None
        assert partition.high_watermark == partition.log.log_end_offset > 0
        assert partition.log.recovery_point >= partition.high_watermark
        assert any(folder.endswith(f"{OFFSETS_TOPIC}-0") for folder in synced)
    finally:
        await client.close()
        await node.stop()
