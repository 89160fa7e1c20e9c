"""What a broker shows at /metrics of a topic that gets fewer partitions."""

from __future__ import annotations

from tests.testing.test_delay_metrics import broker, shown
from tidemill.client.admin.shrinking import ShrinkAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.testing import InProcessBroker

__all__ = ["broker"]


def test_decommissioned_partitions_and_batches_passed_on_are_counted(broker: InProcessBroker) -> None:
    topic = broker.create_topic("orders", partitions=4)
    assert shown(broker)["tidemill_decommissioned_partitions"] == 0
    with Cluster(broker.bootstrap) as cluster:
        ShrinkAdmin(Admin(cluster)).begin(topic, 2)
    broker.wait_until(lambda: shown(broker)["tidemill_decommissioned_partitions"] == 2, "the shrink begins")
    counter = 'tidemill_shrink_batchespassedon_total{topic="orders"}'
    assert counter not in shown(broker)
    broker.produce(topic, "new", partition=3)
    assert shown(broker)[counter] == 1
    broker.produce(topic, "new", partition=1)
    assert shown(broker)[counter] == 1
