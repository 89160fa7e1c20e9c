"""Topics that get fewer partitions, through time that the test moves."""

from __future__ import annotations

from tidemill.client.admin.shrinking import ShrinkAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.testing import InProcessBroker


def test_decommissioned_partition_takes_no_records_stays_readable_until_its_retention_ends_and_disappears(
    tidemill_broker: InProcessBroker,
) -> None:
    broker = tidemill_broker
    topic = broker.create_topic("orders", partitions=4, **{"retention.ms": 8 * 3600 * 1000})
    for partition in range(4):
        broker.produce(topic, f"old {partition}", partition=partition)
    with Cluster(broker.bootstrap) as cluster:
        shrinks = ShrinkAdmin(Admin(cluster))
        shrinks.begin(topic, 2)
        broker.produce(topic, "new", partition=3)

        def values(partition: int) -> list[bytes | None]:
            return [each.value for each in broker.records(topic, partition=partition)]

        broker.clock.advance(hours=7)
        assert [values(index) for index in range(4)] == [
            [b"old 0"],
            [b"old 1", b"new"],
            [b"old 2"],
            [b"old 3"],
        ]
        assert [each.records_left for each in shrinks.progress(topic).decommissioned] == [1, 1]
        broker.clock.advance(hours=1, seconds=1)

        def is_done() -> bool:
            broker.clock.advance(seconds=10)
            return shrinks.progress(topic).partition_count == 2

        broker.wait_until(is_done, "the end of both partitions")
        assert not shrinks.progress(topic).decommissioned
        assert values(1) == []
        broker.produce(topic, "later", partition=1)
        assert values(1) == [b"later"]
