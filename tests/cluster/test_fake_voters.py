"""A client that fetches the metadata in the name of voters does not count for them (decision 10)."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import pytest

from tests.brokers import RunningBroker
from tests.cluster.clusters import IS_APACHE_KAFKA, METADATA_TOPIC, Cluster
from tests.conftest import BOOTSTRAP
from tests.wire.connection import Connection

pytestmark = pytest.mark.skipif(
    bool(BOOTSTRAP) or IS_APACHE_KAFKA, reason="pauses brokers; Kafka serves no metadata log to clients"
)
ANSWER_LIMIT_S = 60.0


def _end_offset(records: bytes) -> tuple[int, int]:
    """The offset after the last batch, and its epoch."""
    end_offset = epoch = position = 0
    while position + 61 <= len(records):
        base_offset, length, epoch = struct.unpack_from(">qii", records, position)
        end_offset = base_offset + struct.unpack_from(">i", records, position + 23)[0] + 1
        position += 12 + length
    return end_offset, epoch


def _follow_metadata(node: RunningBroker, voter: int, begin: tuple[int, int], stop: threading.Event) -> None:
    """Fetch the metadata log in the name of a voter, on the port of the clients."""
    offset, leader_epoch = begin
    epoch = leader_epoch
    with Connection(node, ANSWER_LIMIT_S) as connection:
        while not stop.is_set():
            part = {
                "partition": 0,
                "fetch_offset": offset,
                "last_fetched_epoch": epoch,
                "current_leader_epoch": leader_epoch,
                "partition_max_bytes": 1 << 20,
            }
            answer = connection.request(
                "fetch",
                12,
                replica_id=voter,
                max_wait=50,
                min_bytes=1,
                max_bytes=1 << 20,
                session_id=0,
                session_epoch=-1,
                topics=[{"topic": METADATA_TOPIC, "partitions": [part]}],
            )
            fetched = answer.responses[0].partitions[0]
            if fetched.error_code:
                return  # the leader has resigned
            if fetched.records:
                offset, epoch = _end_offset(bytes(fetched.records))


def test_clients_that_fetch_as_voters_commit_no_metadata(tmp_path: Path) -> None:
    with Cluster(3, tmp_path) as cluster:
        asked = [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
        with Connection(cluster.nodes[1], ANSWER_LIMIT_S) as connection:
            quorum = connection.request("describe_quorum", 1, topics=asked).topics[0].partitions[0]
        leader = cluster.nodes[quorum.leader_id]
        others = [node.id for node in cluster.others(leader.id)]
        for node_id in others:
            cluster.pause(node_id)
        stop = threading.Event()
        begin = quorum.high_watermark, quorum.leader_epoch
        strangers = [
            threading.Thread(target=_follow_metadata, args=(leader, voter, begin, stop)) for voter in others
        ]
        for stranger in strangers:
            stranger.start()
        new = {"name": "ghost", "num_partitions": 1, "replication_factor": 1}
        with Connection(leader, ANSWER_LIMIT_S) as connection:
            created = connection.request("create_topics", 7, topics=[new], timeout=5_000).topics[0]
        stop.set()
        for stranger in strangers:
            stranger.join()
        for node_id in others:
            cluster.resume(node_id)
    assert created.error_code, "no majority of the voters has it"
