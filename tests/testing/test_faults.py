"""What a test says should go wrong goes wrong, and clients see of it what they would see of the real thing."""

from __future__ import annotations

import threading
import time
import warnings
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tidemill.testing import InProcessBroker, UnusedFault

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # how it reads its schemas
    from kafka import KafkaConsumer as KafkaPythonConsumer


class Reports:
    """Delivery reports as they come."""

    def __init__(self) -> None:
        self.errors: list[KafkaError] = []
        self.offsets: list[int] = []

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.offsets.append(message.offset())
        else:
            self.errors.append(error)


def _producer(broker: InProcessBroker, **settings: object) -> Producer:
    return Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "retry.backoff.ms": 10, **settings}
    )


def test_an_idempotent_producer_survives_a_lost_ack_without_a_duplicate(
    tidemill_broker: InProcessBroker,
) -> None:
    tidemill_broker.create_topic("orders")
    producer = _producer(tidemill_broker, **{"enable.idempotence": True})
    reports = Reports()
    fault = tidemill_broker.faults.lose_next_ack("orders")
    producer.produce("orders", "once", on_delivery=reports)
    assert producer.flush(30) == 0
    assert fault.hits == 1
    assert reports.offsets == [0]
    assert [record.value for record in tidemill_broker.records("orders")] == [b"once"]


def test_a_producer_that_is_not_idempotent_writes_twice(tidemill_broker: InProcessBroker) -> None:
    """What the fault is good for: the request was carried out, and the client cannot know."""
    tidemill_broker.create_topic("orders")
    producer = _producer(tidemill_broker, **{"enable.idempotence": False})
    with tidemill_broker.faults.lose_next_ack("orders"):
        producer.produce("orders", "twice")
        assert producer.flush(30) == 0
    assert [record.value for record in tidemill_broker.records("orders")] == [b"twice", b"twice"]


def test_a_fault_strikes_its_topic_only(tidemill_broker: InProcessBroker) -> None:
    for name in ("orders", "other"):
        tidemill_broker.create_topic(name)
    producer = _producer(tidemill_broker, **{"enable.idempotence": False})
    fault = tidemill_broker.faults.lose_next_ack("orders")
    producer.produce("other", "x")
    producer.flush(30)
    assert fault.hits == 0
    producer.produce("orders", "x")
    producer.flush(30)
    assert fault.hits == 1
    assert len(tidemill_broker.records("other")) == 1


def test_a_refused_produce_is_tried_again(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders")
    producer = _producer(tidemill_broker)
    reports = Reports()
    with tidemill_broker.faults.refuse_next("Produce", "NOT_ENOUGH_REPLICAS", "orders", times=3) as fault:
        producer.produce("orders", "x", on_delivery=reports)
        assert producer.flush(30) == 0
    assert fault.hits == 3
    assert reports.offsets == [0]


def test_a_produce_that_is_refused_for_good_is_reported(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders")
    producer = _producer(tidemill_broker, **{"enable.idempotence": False})
    reports = Reports()
    tidemill_broker.faults.refuse_next("Produce", "TOPIC_AUTHORIZATION_FAILED")
    producer.produce("orders", "x", on_delivery=reports)
    assert producer.flush(30) == 0
    assert [error.code() for error in reports.errors] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    assert tidemill_broker.records("orders") == []


def test_a_refused_commit(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.produce("orders", "x")
    consumer = Consumer(
        {
            "bootstrap.servers": tidemill_broker.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    message = consumer.poll(30)
    assert message is not None
    tidemill_broker.faults.refuse_next("OffsetCommit", "GROUP_AUTHORIZATION_FAILED", "orders")
    with pytest.raises(KafkaException) as refused:
        consumer.commit(message=message, asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    assert tidemill_broker.committed("g") == {}
    consumer.close()


def test_a_refused_creation_of_a_topic(tidemill_broker: InProcessBroker) -> None:
    admin = AdminClient({"bootstrap.servers": tidemill_broker.bootstrap})
    tidemill_broker.faults.refuse_next("CreateTopics", "POLICY_VIOLATION")
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic("orders", 1)])["orders"].result(30)
    assert refused.value.args[0].code() == KafkaError.POLICY_VIOLATION
    assert tidemill_broker.topics() == []


def test_a_topic_whose_leader_is_not_known_yet(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders")
    producer = _producer(tidemill_broker)
    with tidemill_broker.faults.refuse_next("Metadata", "LEADER_NOT_AVAILABLE", "orders", times=2):
        producer.produce("orders", "x")
        assert producer.flush(30) == 0
    assert len(tidemill_broker.records("orders")) == 1


def test_a_slow_topic(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders")
    producer = _producer(tidemill_broker)
    started_s = time.monotonic()
    with tidemill_broker.faults.slow("orders", 0.3):
        producer.produce("orders", "x")
        assert producer.flush(30) == 0
    # Never earlier than that; how much later is the machine's business.
    assert time.monotonic() - started_s >= 0.3
    assert len(tidemill_broker.records("orders")) == 1


def test_a_slow_topic_ends_early_when_the_clock_moves(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders")
    reports = Reports()
    producer = _producer(tidemill_broker)
    with tidemill_broker.faults.slow("orders", 3600) as fault:
        producer.produce("orders", "x", on_delivery=reports)
        tidemill_broker.wait_until(lambda: producer.poll(0) or fault.hits, "the request is there")
        tidemill_broker.clock.advance(hours=1)
        assert producer.flush(30) == 0
    assert reports.offsets == [0]


def test_a_slow_api(tidemill_broker: InProcessBroker) -> None:
    admin = AdminClient({"bootstrap.servers": tidemill_broker.bootstrap})
    started_s = time.monotonic()
    with tidemill_broker.faults.slow_api("CreateTopics", 0.3, times=1):
        admin.create_topics([NewTopic("orders", 1)])["orders"].result(30)
    assert time.monotonic() - started_s >= 0.3


def test_fetches_that_name_no_topic_are_known_by_their_session(tidemill_broker: InProcessBroker) -> None:
    """kafka-python fetches incrementally: after the first fetch its requests list only what changed."""
    tidemill_broker.produce("orders", "first")
    consumer = KafkaPythonConsumer(
        "orders",
        bootstrap_servers=tidemill_broker.bootstrap,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
    )
    assert next(consumer).value == b"first"
    with tidemill_broker.faults.slow("orders", 0.01) as fault:
        tidemill_broker.wait_until(lambda: consumer.poll(50) or fault.hits >= 3, "fetches are slowed down")
    consumer.close()


def test_every_connection_is_closed_and_clients_come_back(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders")
    producer = _producer(tidemill_broker)
    producer.produce("orders", "before")
    producer.flush(30)
    assert tidemill_broker.faults.disconnect_all() >= 1
    producer.produce("orders", "after")
    assert producer.flush(30) == 0
    assert [record.value for record in tidemill_broker.records("orders")] == [b"before", b"after"]


def test_a_full_disk_refuses_records_until_there_is_space(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders")
    producer = _producer(tidemill_broker)
    producer.produce("orders", "before")
    assert producer.flush(30) == 0
    reports = Reports()
    with tidemill_broker.faults.fill_disk() as fault:
        producer.produce("orders", "waits", on_delivery=reports)
        tidemill_broker.wait_until(
            lambda: producer.poll(0) or fault.hits >= 2, "the producer has tried twice"
        )
        assert reports.offsets == []
    assert producer.flush(30) == 0
    assert [record.value for record in tidemill_broker.records("orders")] == [b"before", b"waits"]


def test_the_tests_own_helpers_are_not_struck(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders")
    fault = tidemill_broker.faults.refuse_next("Produce", "NOT_ENOUGH_REPLICAS", optional=True)
    tidemill_broker.produce("orders", "x")
    assert fault.hits == 0


def test_unused_fault_raises(tidemill_broker: InProcessBroker) -> None:
    with (
        pytest.raises(UnusedFault, match="lose the next answer to Produce of orders"),
        tidemill_broker.faults.lose_next_ack("orders"),
    ):
        tidemill_broker.produce("orders", "by hand")
    tidemill_broker.faults.refuse_next("Produce", "NOT_ENOUGH_REPLICAS", times=2)
    with pytest.raises(UnusedFault, match="optional=True"):
        tidemill_broker.faults.check_all_used()
    tidemill_broker.faults.allow_unused()
    tidemill_broker.faults.check_all_used()


@pytest.mark.parametrize(
    ("api", "error", "reason"),
    [
        ("Prodce", "NOT_ENOUGH_REPLICAS", "no API"),
        ("ApiVersions", "UNSUPPORTED_VERSION", "just an error"),
        ("SaslHandshake", "ILLEGAL_SASL_STATE", "just an error"),
    ],
)
def test_invalid_fault_is_rejected(
    tidemill_broker: InProcessBroker, api: str, error: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        tidemill_broker.faults.refuse_next(api, error)
    with pytest.raises(KeyError):
        tidemill_broker.faults.refuse_next("Produce", "NO_SUCH_ERROR")
    tidemill_broker.faults.check_all_used()


def test_faults_may_be_armed_while_clients_are_busy(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders")
    producer = _producer(tidemill_broker, **{"enable.idempotence": True})
    done = threading.Event()

    def keep_busy() -> None:
        number = 0
        while not done.is_set():
            producer.produce("orders", str(number))
            producer.poll(0.001)
            number += 1
        producer.flush(30)

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        for _ in range(5):
            fault = tidemill_broker.faults.lose_next_ack("orders")
            tidemill_broker.wait_until(lambda struck=fault: struck.hits, "the fault has struck")  # type: ignore[misc]
    finally:
        done.set()
        busy.join()
    values = [int(record.value or b"") for record in tidemill_broker.records("orders")]
    assert values == list(range(len(values)))
