"""Read, transform, write, with the offsets in the transaction: exactly once, whichever process is killed meanwhile.

With `TIDEMILL_EXACTLY_ONCE_KILLS=100` for the long run, `TIDEMILL_EXACTLY_ONCE_SEED` for another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.clusters import Cluster
from tests.cluster.exactly_once import PARTITIONS, Workload

CLIENTS = ("confluent", "kafka_python", "aiokafka")
KILLS = int(os.environ.get("TIDEMILL_EXACTLY_ONCE_KILLS", "3"))
SEED = int(os.environ.get("TIDEMILL_EXACTLY_ONCE_SEED", "1"))
# So many kills cannot all have missed every transaction that had written something.
KILLS_THAT_ABORT = 20
SETTINGS = {
    # A dead broker is noticed soon, but a busy machine does not lose the living.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "1000",
    "transaction.state.log.num.partitions": str(PARTITIONS),
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("exactly-once")
    with Cluster(3, folder, settings=SETTINGS) as cluster:
        yield cluster


@pytest.mark.long
@pytest.mark.parametrize("client", CLIENTS)
def test_every_input_is_transformed_exactly_once(client: str, cluster: Cluster, tmp_path: Path) -> None:
    with Workload(cluster, client, SEED, tmp_path) as workload:
        for _ in range(KILLS):
            workload.strike()
        summary = workload.finish()
    print(summary)
    if KILLS >= KILLS_THAT_ABORT:
        assert summary.aborted_records > 0, f"nothing was ever aborted: {summary}"
