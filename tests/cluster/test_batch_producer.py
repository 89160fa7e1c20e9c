"""Batches that are sent ahead when their leader dies: everything once, in order, committed or not at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.brokers import eventually
from tests.cluster.clusters import QUICK_FENCING, Cluster
from tests.conftest import BOOTSTRAP
from tests.unit.client.test_transactional import batch
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster as ClusterOfClient
from tidemill.client.fetch import fetch_range
from tidemill.client.producing.transaction_coordinator import TransactionCoordinator
from tidemill.client.producing.transactional import (
    BatchProducer,
    CommittedOffset,
    TransactionalProducer,
    stable_offsets,
)
from tidemill.protocol.isolation import READ_COMMITTED
from tidemill.protocol.records import iterate_records
from tidemill.types import TopicPartition

pytestmark = pytest.mark.skipif(
    bool(BOOTSTRAP), reason="kills brokers; TIDEMILL_INTEROP_BOOTSTRAP names another's"
)
TOPIC = "batches"
PARTITIONS = [TopicPartition(TOPIC, index) for index in range(3)]
BATCH_COUNT = 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(3, tmp_path_factory.mktemp("batches"), settings=QUICK_FENCING) as running:
        running.create_topic(TOPIC, len(PARTITIONS))
        yield running


def read(client: ClusterOfClient, partition: TopicPartition) -> list[bytes]:
    admin = Admin(client)

    def end_if_stable() -> int | None:
        """Markers follow the answer to a commit."""
        (stable,) = admin.end_offsets([partition], READ_COMMITTED).values()
        return stable if admin.end_offsets([partition])[partition] == stable else None

    end = eventually(end_if_stable, "the end of every transaction")
    answers = fetch_range(client, partition, 0, end, isolation_level=READ_COMMITTED)
    return [
        record.value or b""
        for answer in answers
        for header, view in answer.batches
        for record in iterate_records(view, header)
    ]


def write(cluster: Cluster, producer: BatchProducer, name: str) -> list[bytes]:
    """Batches for every partition, while two leaders die and come back."""
    values = [f"{name}-{number}".encode() for number in range(BATCH_COUNT)]
    for number, value in enumerate(values):
        producer.produce([(partition, batch(value)) for partition in PARTITIONS])
        if number in (BATCH_COUNT // 3, 2 * BATCH_COUNT // 3):
            leader = cluster.leader_of(TOPIC, 0)
            cluster.kill(leader)
            cluster.start(leader)
    return values


@pytest.mark.long
@pytest.mark.parametrize("is_new", [False, True], ids=["old", "new"])
def test_transactions_outlive_leaders_and_coordinators(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    monkeypatch.setattr(TransactionCoordinator, "is_new", is_new)
    name = f"transactional-{is_new}"
    with ClusterOfClient(cluster.bootstrap, timeout_s=60.0) as client:
        # Longer than leaders take to be replaced on a busy machine.
        with TransactionalProducer(client, name, transaction_timeout_ms=600_000) as producer:
            producer.init()
            producer.begin()
            lost = write(cluster, producer, f"{name}-aborted")
            producer.abort()
            producer.begin()
            kept = write(cluster, producer, name)
            producer.send_offsets(name, {PARTITIONS[0]: CommittedOffset(7, "done")})
            producer.commit()
        assert stable_offsets(client, name, PARTITIONS) == {PARTITIONS[0]: CommittedOffset(7, "done")}
        for partition in PARTITIONS:
            seen = read(client, partition)
            assert [value for value in seen if value.startswith(name.encode())] == kept
            assert not set(lost) & set(seen)


def test_an_idempotent_producer_outlives_leaders(cluster: Cluster) -> None:
    with ClusterOfClient(cluster.bootstrap, timeout_s=60.0) as client:
        with BatchProducer(client) as producer:
            written = write(cluster, producer, "idempotent")
            producer.flush()
        for partition in PARTITIONS:
            assert [value for value in read(client, partition) if value.startswith(b"idempotent")] == written
