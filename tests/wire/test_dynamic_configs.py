"""Dynamic broker settings against running brokers: they count at once and after a start, and the file's values come back."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest
from confluent_kafka import Producer

from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.cluster import Cluster
from tidemill.config import ConfigSource
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from tidemill.testing import InProcessBroker, InProcessCluster

# Another address of this machine, so that the connections of the test itself do not count.
STRANGER = "127.0.0.2"
OVERRIDES = "max.connections.per.ip.overrides"
ALL = ""
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker({OVERRIDES: f"{STRANGER}:3"}) as started:
        yield started


def alter(broker: InProcessBroker | InProcessCluster, name: str, **changes: str | None) -> None:
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).alter_configs(
            ResourceType.BROKER,
            name,
            changes={key.replace("_", "."): value for key, value in changes.items()},
        )


def described(bootstrap: str, name: str, key: str) -> tuple[str | None, int, bool]:
    with Cluster(bootstrap) as cluster:
        entries = Admin(cluster).describe_configs(ResourceType.BROKER, name)
    (found,) = [each for each in entries if each.name == key]
    return found.value, found.config_source, found.read_only


def is_answered(client: socket.socket) -> bool:
    """Whether the broker answers a request on it. It closes a connection over a limit."""
    try:
        client.sendall(_API_VERSIONS)
        return len(client.recv(4)) > 0
    except ConnectionError:
        return False


def admitted(port: int) -> int:
    """How many connections of the stranger are open at once, of four."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(STRANGER, 0))
            )
            for _ in range(4)
        ]
        return sum(is_answered(client) for client in clients)


def await_admitted(broker: InProcessBroker | InProcessCluster, port: int, count: int) -> None:
    broker.wait_until(lambda: admitted(port) == count, f"{count} connections of one address are admitted")


def test_limit_of_connections_counts_at_once_and_after_a_start_until_it_is_removed(
    broker: InProcessBroker,
) -> None:
    assert admitted(broker.port) == 3
    alter(broker, ALL, max_connections_per_ip_overrides=f"{STRANGER}:1")
    await_admitted(broker, broker.port, 1)
    broker.restart()
    assert admitted(broker.port) == 1
    alter(broker, ALL, max_connections_per_ip_overrides=None)
    await_admitted(broker, broker.port, 3)


def test_value_for_one_broker_is_stronger_than_that_for_all(broker: InProcessBroker) -> None:
    alter(broker, "1", max_connections_per_ip_overrides=f"{STRANGER}:2")
    alter(broker, ALL, max_connections_per_ip_overrides=f"{STRANGER}:1")
    await_admitted(broker, broker.port, 2)
    value, source, is_read_only = described(broker.bootstrap, "1", OVERRIDES)
    assert (value, source, is_read_only) == (f"{STRANGER}:2", ConfigSource.DYNAMIC_BROKER_CONFIG, False)
    alter(broker, "1", max_connections_per_ip_overrides=None)
    await_admitted(broker, broker.port, 1)
    assert described(broker.bootstrap, "1", OVERRIDES)[1] == ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG


def test_lower_limit_closes_the_connections_that_were_silent_the_longest(broker: InProcessBroker) -> None:
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), timeout=30))
            for _ in range(6)
        ]
        for client in silent:
            assert is_answered(client)
        # The broker itself and the client of the test have connections, too.
        alter(broker, ALL, max_connections="4")
        broker.wait_until(lambda: not is_answered(silent[0]), "the oldest connection is closed")
        alter_with_room(broker)
        assert is_answered(silent[5])


def alter_with_room(broker: InProcessBroker) -> None:
    """Lifts the limit, once one of the connections is free for it."""

    def lift() -> bool:
        try:
            alter(broker, ALL, max_connections=None)
        except Exception:
            return False
        return True

    broker.wait_until(lift, "the limit is lifted")


def test_largest_batch_follows_the_setting(broker: InProcessBroker) -> None:
    broker.create_topic("t")
    alter(broker, ALL, message_max_bytes="500")

    def is_refused() -> bool:
        try:
            broker.produce("t", b"x" * 1000)
        except ApiError as error:
            return error.code is ErrorCode.MESSAGE_TOO_LARGE
        return False

    broker.wait_until(is_refused, "a large batch is refused")
    alter(broker, ALL, message_max_bytes=None)
    broker.wait_until(lambda: not is_refused(), "a large batch is accepted again")


def test_cleaner_follows_a_shorter_pause() -> None:
    with InProcessBroker({"log.cleaner.backoff.ms": "86400000"}) as broker:
        configs = {"cleanup.policy": "compact", "segment.ms": 1, "min.cleanable.dirty.ratio": 0}
        broker.create_topic("t", configs=configs)
        # Segments are rolled by the records' times: each record has a segment of its own, however fast they are written.
        for second in range(5):
            broker.produce("t", b"value", key=b"key", timestamp_ms=1_000 * (second + 1))
        alter(broker, "1", log_cleaner_backoff_ms="20")
        broker.wait_until(lambda: len(broker.records("t")) < 5, "the log is compacted")


def test_producers_are_forgotten_by_a_shorter_age(broker: InProcessBroker) -> None:
    broker.create_topic("t")
    produce_idempotently(broker)
    wanted = [TopicRequest(name="t", partition_indexes=[0])]
    with Cluster(broker.bootstrap) as cluster:

        def states() -> int:
            request = DescribeProducersRequest(topics=wanted)
            answer = cluster.broker(1).request(request, DescribeProducersResponse)
            return len(answer.topics[0].partitions[0].active_producers)

        assert states() == 1
        alter(broker, ALL, producer_id_expiration_ms="1")
        broker.wait_until(lambda: states() == 0, "the producer is forgotten")


def produce_idempotently(broker: InProcessBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    producer.produce("t", b"value")
    producer.flush()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"node_id": "7"}, "Cannot update these configs dynamically: [node.id]"),
        ({"listeners": "PLAINTEXT://:0"}, "Cannot update these configs dynamically: [listeners]"),
        ({"max_connections": "0"}, "Invalid value 0 for configuration max.connections"),
        ({"num_io_threads": "17"}, "should not be greater than double the current value 8"),
        ({"num_io_threads": "3"}, "should be at least half the current value 8"),
        ({"max_connections": "100", "log_cleaner_threads": "0"}, "log.cleaner.threads"),
    ],
)
def test_refused_change_changes_nothing(
    broker: InProcessBroker, changes: dict[str, str | None], words: str
) -> None:
    with pytest.raises(ApiError) as refused:
        alter(broker, "1", **changes)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert words in (refused.value.message or "")
    for key in changes:
        source = described(broker.bootstrap, "1", key.replace("_", "."))[1]
        assert source in (ConfigSource.DEFAULT_CONFIG, ConfigSource.STATIC_BROKER_CONFIG)


def is_followed(cluster: InProcessCluster, partition: int) -> bool:
    return len(cluster.isr_of("t", partition)) == 3


def test_setting_for_all_counts_at_each_of_three_brokers() -> None:
    with InProcessCluster() as cluster:
        cluster.create_topic("t", partitions=3, replication_factor=3)
        brokers = [cluster.broker(number) for number in (1, 2, 3)]
        alter(cluster, ALL, max_connections_per_ip_overrides=f"{STRANGER}:1", num_replica_fetchers="2")
        for each in brokers:
            port = int(each.bootstrap.rpartition(":")[2])
            await_admitted(cluster, port, 1)
            assert described(each.bootstrap, str(brokers.index(each) + 1), "num.replica.fetchers")[:2] == (
                "2",
                ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
            )
        for partition in range(3):
            cluster.produce("t", b"after", partition=partition)
            cluster.wait_until(partial(is_followed, cluster, partition), "every replica follows")
        brokers[2].restart()
        await_admitted(cluster, int(brokers[2].bootstrap.rpartition(":")[2]), 1)
        alter(cluster, ALL, max_connections_per_ip_overrides=None, num_replica_fetchers=None)
        for each in brokers:
            await_admitted(cluster, int(each.bootstrap.rpartition(":")[2]), 4)
