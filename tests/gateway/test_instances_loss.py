"""Consumer instances whose callers go away, are slow, many or forgotten: nothing is lost, no caller waits for another."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.gateway.conftest import Gateway, start_gateway
from tests.gateway.test_instances import values
from tests.gateway.v2_caller import RestConsumer, error_of, post, until
from tidemill.gateway.settings import Limits, Settings
from tidemill.testing import InProcessBroker


@contextlib.contextmanager
def limited(broker: InProcessBroker, **limits: float) -> Iterator[Gateway]:
    settings = Settings(bootstrap=broker.bootstrap, limits=Limits(**limits))  # type: ignore[arg-type]
    with start_gateway(settings, broker) as gateway:
        yield gateway


def half_open_read(consumer: RestConsumer, gateway: Gateway, query: str = "timeout=30000") -> socket.socket:
    """A request for records whose answer is not read yet."""
    path = httpx.URL(consumer.uri).raw_path.decode()
    connection = socket.socket()
    # Whatever the network keeps for a caller counts as answered, so it should keep little.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((gateway.host, gateway.port))
    connection.sendall(
        f"GET {path}/records?{query} HTTP/1.1\r\nHost: {gateway.host}:{gateway.port}\r\n\r\n".encode()
    )
    return connection


def test_a_caller_that_goes_away_while_it_waits_loses_nothing(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    consumer = RestConsumer(gateway.client, format="json").subscribe(topic)
    until(consumer.partitions, "an assignment")
    for _ in range(3):
        half_open_read(consumer, gateway).close()
    for number in range(3):
        gateway.broker.produce(topic, f"{number}")
    assert values(consumer.read_until(3)) == [0, 1, 2]


def test_an_answer_that_is_broken_off_comes_again(gateway: Gateway, topic: str) -> None:
    """The answer is larger than all buffers on its way: what those have taken, the gateway cannot know lost."""
    sent = [f"{number:04}" * 60_000 for number in range(60)]
    for value in sent:
        gateway.broker.produce(topic, value)
    consumer = RestConsumer(gateway.client, format="text", **{"fetch.min.bytes": 10_000_000}).subscribe(topic)
    until(consumer.partitions, "an assignment")
    with half_open_read(consumer, gateway) as connection:
        head = connection.recv(4096)
        assert head.startswith(b"HTTP/1.1 200")
    found = consumer.read_until(60)
    assert values(found) == sent
    assert [record["offset"] for record in found] == list(range(60))
    assert consumer.post("offsets").json()["offsets"][0]["offset"] == 59


def test_records_that_were_not_returned_are_not_committed(gateway: Gateway, topic: str) -> None:
    gateway.broker.produce(topic, "1")
    consumer = RestConsumer(gateway.client, format="json").subscribe(topic)
    until(consumer.partitions, "an assignment")
    assert consumer.post("offsets").json() == {"offsets": []}
    assert gateway.broker.committed(consumer.group) == {}


def test_head_reads_no_records(gateway: Gateway, topic: str) -> None:
    gateway.broker.produce(topic, "1")
    consumer = RestConsumer(gateway.client, format="json").subscribe(topic)
    assert gateway.client.head(f"{consumer.uri}/records").status_code == 405
    assert values(consumer.read_until(1)) == [1]


def test_two_instances_share_the_partitions_and_take_over(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic, partitions=4)
    first = RestConsumer(gateway.client, format="json").subscribe(topic)
    until(lambda: first.partitions() == {0, 1, 2, 3}, "all partitions at the first")
    second = RestConsumer(gateway.client, first.group, format="json").subscribe(topic)
    # Neither of them reads meanwhile: an instance takes part in rebalances by itself.
    until(lambda: len(first.partitions()) == len(second.partitions()) == 2, "half of them at each")
    assert first.partitions() | second.partitions() == {0, 1, 2, 3}
    for partition in range(4):
        gateway.broker.produce(topic, f"{partition}", partition=partition)
    assert set(values(first.read_until(2))) == first.partitions()
    assert set(values(second.read_until(2))) == second.partitions()
    for consumer in (first, second):
        assert len(consumer.post("offsets").json()["offsets"]) == 2
    first.delete()
    until(lambda: second.partitions() == {0, 1, 2, 3}, "all partitions at the second")
    gateway.broker.produce(topic, "9", partition=min({0, 1, 2, 3}))
    # What was committed does not come again.
    assert values(second.read_until(1)) == [9]


def test_an_idle_instance_expires_and_leaves_its_group(gateway_broker: InProcessBroker, topic: str) -> None:
    gateway_broker.create_topic(topic, partitions=2)
    with limited(gateway_broker, instance_idle_s=0.6) as gateway:
        idle = RestConsumer(gateway.client, format="json", **{"auto.commit.enable": "true"}).subscribe(topic)
        until(lambda: idle.partitions() == {0, 1}, "all partitions at the one")
        gateway_broker.produce(topic, "1", partition=0)
        assert values(idle.read_until(1)) == [1]
        used = RestConsumer(gateway.client, idle.group, format="json").subscribe(topic)
        # Asking for records that do not come is use: this one stays.
        found: list[int] = []

        def read_until(condition: Callable[[], bool]) -> None:
            def step() -> bool:
                found.extend(values(used.read(100)))
                return condition()

            until(step, "what the other has to see")

        read_until(lambda: used.partitions() == {0, 1})
        assert error_of(idle.get("records")) == (404, 40403)
        # It is unknown whether the last answer was used, so it comes again.
        read_until(lambda: 1 in found)
        assert len(gateway_broker.members(idle.group)) == 1


def test_a_long_poll_is_use(gateway_broker: InProcessBroker, topic: str) -> None:
    gateway_broker.create_topic(topic)
    with limited(gateway_broker, instance_idle_s=0.2) as gateway:
        consumer = RestConsumer(gateway.client).subscribe(topic)
        assert consumer.read(timeout_ms=600) == []


def test_a_gateway_that_stops_leaves_its_groups(gateway_broker: InProcessBroker, topic: str) -> None:
    gateway_broker.create_topic(topic)
    with limited(gateway_broker) as gateway:
        consumers = [RestConsumer(gateway.client, f"{topic}-group").subscribe(topic) for _ in range(3)]
        until(lambda: len(gateway_broker.members(consumers[0].group)) == 3, "three members")
    # Long before their sessions would be over.
    assert gateway_broker.members(consumers[0].group) == []


def test_there_is_a_limit_on_instances(gateway_broker: InProcessBroker) -> None:
    with limited(gateway_broker, instances_max=2) as gateway:
        consumers = [RestConsumer(gateway.client) for _ in range(2)]
        refused = post(gateway.client, "/consumers/one-too-many")
        assert error_of(refused) == (429, 429)
        assert int(refused.headers["retry-after"]) > 0
        consumers[0].delete()
        assert post(gateway.client, "/consumers/one-too-many").status_code == 200


def test_slow_instance_delays_no_other(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    waiting = RestConsumer(gateway.client).subscribe(topic)
    until(waiting.partitions, "an assignment")
    connection = half_open_read(waiting, gateway, "timeout=20000")
    try:
        other = RestConsumer(gateway.client, format="json").subscribe(topic)
        gateway.broker.produce(topic, "1")
        assert values(other.read_until(1)) == [1]
        # The same instance answers other questions, too.
        assert waiting.partitions() == {0}
        assert gateway.client.get("/topics").status_code == 200
    finally:
        connection.close()


def test_deleting_an_instance_ends_its_read(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    consumer = RestConsumer(gateway.client).subscribe(topic)
    until(consumer.partitions, "an assignment")
    with half_open_read(consumer, gateway) as connection:
        consumer.delete()
        connection.settimeout(10)
        assert connection.recv(4096).startswith(b"HTTP/1.1 404")


def test_concurrent_reads_of_one_instance_get_each_record_once(gateway: Gateway, topic: str) -> None:
    for number in range(200):
        gateway.broker.produce(topic, f"{number}")
    consumer = RestConsumer(gateway.client, format="json").subscribe(topic)
    found: list[int] = []

    def read() -> None:
        with httpx.Client(timeout=30) as client:
            while len(found) < 200:
                records = client.get(
                    f"{consumer.uri}/records", params={"timeout": 100, "max_bytes": 20}
                ).json()
                found.extend(values(records))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == list(range(200))


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_isolation_level_decides_about_open_transactions(gateway: Gateway, topic: str, level: str) -> None:
    from confluent_kafka import Producer

    gateway.broker.create_topic(topic)
    producer = Producer({"bootstrap.servers": gateway.broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"1")
    producer.flush()
    consumer = RestConsumer(gateway.client, format="json", **{"isolation.level": level}).subscribe(topic)
    until(consumer.partitions, "an assignment")
    if level == "read_uncommitted":
        assert values(consumer.read_until(1)) == [1]
        producer.abort_transaction(10)
    else:
        assert consumer.read(timeout_ms=300) == []
        producer.commit_transaction(10)
        assert values(consumer.read_until(1)) == [1]


def test_unreachable_cluster_is_an_error_and_found_again(topic: str) -> None:
    with InProcessBroker() as broker:
        broker.produce(topic, "1")
        settings = Settings(bootstrap=broker.bootstrap, timeout_s=2.0)
        with start_gateway(settings, broker) as gateway:
            consumer = RestConsumer(gateway.client, format="json").subscribe(topic)
            assert values(consumer.read_until(1)) == [1]
            broker.stop()
            refused = until(
                lambda: (found := consumer.get("records")).status_code != 200 and found, "a refusal"
            )
            assert refused.status_code == 503
            broker.start()
            broker.produce(topic, "2")
            assert 2 in until(lambda: values(consumer.get("records").json()), "records again")


def test_a_gateway_stops_though_the_cluster_is_gone(topic: str) -> None:
    with InProcessBroker() as broker:
        broker.create_topic(topic)
        with start_gateway(Settings(bootstrap=broker.bootstrap, timeout_s=1.0, drain_s=1.0)) as gateway:
            consumers = [RestConsumer(gateway.client).subscribe(topic) for _ in range(2)]
            until(lambda: all(consumer.partitions() for consumer in consumers[:1]), "an assignment")
            broker.crash()
