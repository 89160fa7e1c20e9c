"""A range goes on when its leader dies: nothing is missed, nothing comes twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.cluster.clusters import QUICK_FENCING, Cluster
from tests.conftest import BOOTSTRAP
from tidemill.client.cluster import Cluster as ClusterOfClient
from tidemill.client.fetch import fetch_range
from tidemill.protocol.records import iterate_records
from tidemill.types import TopicPartition

pytestmark = pytest.mark.skipif(
    bool(BOOTSTRAP), reason="kills brokers; TIDEMILL_INTEROP_BOOTSTRAP names another's"
)
RECORD_COUNT = 6000


def test_a_range_outlives_its_leader(tmp_path: Path) -> None:
    partition = TopicPartition("ranges", 0)
    with Cluster(3, tmp_path, settings=QUICK_FENCING) as cluster:
        cluster.create_topic(partition.topic, 1)
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.size": 20_000, "linger.ms": 5}
        )
        for number in range(RECORD_COUNT):
            producer.produce(partition.topic, b"%d " % number * 200, partition=0)
            producer.poll(0)
        assert producer.flush(60) == 0
        read, asked = [], 0
        with ClusterOfClient(cluster.bootstrap) as client:
            for answer in fetch_range(client, partition, 0, RECORD_COUNT, fetch_bytes=100_000):
                for header, view in answer.batches:
                    read += [(each.offset, each.value) for each in iterate_records(view, header)]
                asked += 1
                if asked in (3, 9):
                    leader = cluster.leader_of(partition.topic, 0)
                    cluster.kill(leader)
                    cluster.start(leader)
        assert read == [(number, b"%d " % number * 200) for number in range(RECORD_COUNT)]
        assert asked > 20
