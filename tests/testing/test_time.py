"""Time that a test moves: what happens after hours happens now."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from tidemill.testing import InProcessBroker, InProcessCluster
from tidemill.testing.clock import steps

# A consumer that can be killed: in the test's own process its threads would go on sending heartbeats.
_CONSUMER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "g", "auto.offset.reset": "earliest",
                     "group.protocol": sys.argv[2]})
consumer.subscribe(["orders"])
while consumer.poll(1) is None:
    pass
print("joined", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def _killed_consumer(bootstrap: str, protocol: str = "classic") -> Iterator[None]:
    """A consumer that has joined and died, without a word to the broker."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CONSUMER, bootstrap, protocol], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"joined\n"
        process.kill()
        process.wait()
        yield


def _consumer(bootstrap: str) -> Consumer:
    return Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})


def test_retention_deletes_what_has_become_too_old(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders", **{"retention.ms": 8 * 3600 * 1000})
    tidemill_broker.produce("orders", "old")
    tidemill_broker.clock.advance(hours=7)
    assert len(tidemill_broker.records("orders")) == 1
    tidemill_broker.clock.advance(hours=1, seconds=1)
    assert tidemill_broker.records("orders") == []
    assert tidemill_broker.produce("orders", "new").offset == 1


def test_retention_does_not_wait_for_its_interval(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders", **{"retention.ms": 1000})
    tidemill_broker.produce("orders", "old")
    tidemill_broker.clock.advance(seconds=2)
    assert tidemill_broker.records("orders") == []


def test_retention_by_hand(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders", **{"retention.ms": 1000})
    yesterday_ms = tidemill_broker.clock.wall_ms() - 24 * 3600 * 1000
    tidemill_broker.produce("orders", "old", timestamp_ms=yesterday_ms)
    assert len(tidemill_broker.records("orders")) == 1
    tidemill_broker.run_retention()
    assert tidemill_broker.records("orders") == []


def test_clock_returns_the_brokers_time(tidemill_broker: InProcessBroker) -> None:
    before = tidemill_broker.clock.now()
    assert abs(before - datetime.now(UTC)) < timedelta(minutes=1)
    tidemill_broker.clock.advance(days=1)
    assert tidemill_broker.clock.now() - before >= timedelta(days=1)
    record = tidemill_broker.produce("orders", "x")
    assert record.timestamp_ms >= before.timestamp() * 1000 + 24 * 3600 * 1000


def test_log_append_time_is_the_brokers_time(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders", configs={"message.timestamp.type": "LogAppendTime"})
    tidemill_broker.clock.advance(hours=5)
    producer = Producer({"bootstrap.servers": tidemill_broker.bootstrap})
    producer.produce("orders", "x")
    assert producer.flush(30) == 0
    (record,) = tidemill_broker.records("orders")
    assert abs(record.timestamp_ms - tidemill_broker.clock.wall_ms()) < 60_000


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_session_of_a_dead_consumer_ends(tidemill_broker: InProcessBroker, protocol: str) -> None:
    tidemill_broker.produce("orders", "x")
    with _killed_consumer(tidemill_broker.bootstrap, protocol):
        assert len(tidemill_broker.members("g")) == 1
        tidemill_broker.clock.advance(seconds=30)
        assert len(tidemill_broker.members("g")) == 1
        tidemill_broker.clock.advance(seconds=20)
        assert tidemill_broker.members("g") == []


def test_another_consumer_takes_over_from_a_dead_one(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.produce("orders", "x")
    with _killed_consumer(tidemill_broker.bootstrap):
        consumer = _consumer(tidemill_broker.bootstrap)
        consumer.subscribe(["orders"])
        assert consumer.poll(0.1) is None
        tidemill_broker.clock.advance(seconds=50)
        message = consumer.poll(30)
        assert message is not None
        assert message.value() == b"x"
        consumer.close()


def test_a_transaction_that_takes_too_long_is_aborted(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders")
    producer = Producer(
        {
            "bootstrap.servers": tidemill_broker.bootstrap,
            "transactional.id": "t",
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("orders", "never")
    producer.flush(30)
    tidemill_broker.produce("orders", "behind it")
    assert tidemill_broker.records("orders") == []
    tidemill_broker.clock.advance(minutes=11)
    assert [record.value for record in tidemill_broker.records("orders")] == [b"behind it"]
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)


def test_offsets_of_a_group_that_is_gone_expire(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.produce("orders", "x")
    consumer = _consumer(tidemill_broker.bootstrap)
    consumer.subscribe(["orders"])
    assert consumer.poll(30) is not None
    consumer.close()
    assert list(tidemill_broker.committed("g").values()) == [1]
    tidemill_broker.clock.advance(days=6)
    assert list(tidemill_broker.committed("g").values()) == [1]
    tidemill_broker.clock.advance(days=1, hours=1)
    assert tidemill_broker.committed("g") == {}


def test_time_stays_moved_over_a_restart(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders", **{"retention.ms": 3600 * 1000})
    tidemill_broker.produce("orders", "x")
    tidemill_broker.clock.advance(minutes=40)
    tidemill_broker.restart()
    tidemill_broker.clock.advance(minutes=40)
    assert tidemill_broker.records("orders") == []


def test_clients_are_not_disturbed_by_a_moved_clock(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders", **{"retention.ms": -1})
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": tidemill_broker.bootstrap, "error_cb": errors.append})
    for number in range(5):
        producer.produce("orders", str(number))
        assert producer.flush(30) == 0
        tidemill_broker.clock.advance(days=30)
    assert len(tidemill_broker.records("orders")) == 5
    assert errors == []


def test_time_moves_while_clients_are_busy(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders", **{"retention.ms": 3600 * 1000})
    tidemill_broker.create_topic("busy", **{"retention.ms": -1})
    tidemill_broker.produce("orders", "old")
    producer = Producer({"bootstrap.servers": tidemill_broker.bootstrap, "linger.ms": 0})
    done = threading.Event()

    def keep_busy() -> None:
        while not done.is_set():
            producer.produce("busy", "x")
            producer.poll(0)
            if len(producer) > 1000:
                producer.flush(30)

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        tidemill_broker.records("busy", count=1)
        tidemill_broker.clock.advance(hours=8)
    finally:
        done.set()
        busy.join()
    assert producer.flush(30) == 0
    assert tidemill_broker.records("orders") == []


def test_time_goes_forward_only(tidemill_broker: InProcessBroker) -> None:
    with pytest.raises(ValueError, match="forward"):
        tidemill_broker.clock.advance(seconds=-1)
    with pytest.raises(ValueError, match="forward"):
        tidemill_broker.clock.advance()


@pytest.mark.parametrize("span_s", [0.001, 1.0, 2.5, 119.0, 120.0, 121.0, 8 * 3600.0, 30 * 86400.0])
def test_steps_add_up(span_s: float) -> None:
    assert sum(steps(span_s)) == pytest.approx(span_s)
    assert all(step_s > 0 for step_s in steps(span_s))


# -- in a cluster ----------------------------------------------------------------------------------------------


def test_retention_in_a_cluster(tidemill_cluster: InProcessCluster) -> None:
    tidemill_cluster.create_topic("orders", partitions=3)
    for number in range(3):
        tidemill_cluster.produce("orders", str(number), partition=number)
    leaders = [tidemill_cluster.leader_of("orders", number) for number in range(3)]
    tidemill_cluster.clock.advance(days=8)
    assert tidemill_cluster.records("orders") == []
    # No member was taken for dead.
    assert [tidemill_cluster.leader_of("orders", number) for number in range(3)] == leaders
    assert all(len(tidemill_cluster.isr_of("orders", number)) == 3 for number in range(3))


def test_the_session_of_a_dead_consumer_ends_in_a_cluster(tidemill_cluster: InProcessCluster) -> None:
    tidemill_cluster.produce("orders", "x")
    with _killed_consumer(tidemill_cluster.bootstrap):
        assert len(tidemill_cluster.members("g")) == 1
        tidemill_cluster.clock.advance(seconds=60)
        assert tidemill_cluster.members("g") == []


def test_a_transaction_that_takes_too_long_is_aborted_in_a_cluster(
    tidemill_cluster: InProcessCluster,
) -> None:
    tidemill_cluster.create_topic("orders")
    producer = Producer(
        {
            "bootstrap.servers": tidemill_cluster.bootstrap,
            "transactional.id": "t",
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("orders", "never")
    producer.flush(30)
    tidemill_cluster.produce("orders", "behind it")
    tidemill_cluster.clock.advance(minutes=11)
    assert [record.value for record in tidemill_cluster.records("orders", count=1)] == [b"behind it"]
