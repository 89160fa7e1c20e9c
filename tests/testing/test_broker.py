"""A test broker as its users have it: fixture, helpers, settings, stop, crash, restart."""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from tidemill.client.retry import UnknownTopic
from tidemill.errors import TidemillError
from tidemill.testing import InProcessBroker, StoredRecord


@pytest.mark.parametrize("run", ["first", "second"])
def test_each_test_has_a_broker_of_its_own(tidemill_broker: InProcessBroker, run: str) -> None:
    assert tidemill_broker.topics() == []
    tidemill_broker.produce("orders", run)
    assert [record.value for record in tidemill_broker.records("orders")] == [run.encode()]


def test_records_come_back_as_they_were_produced(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders", partitions=3)
    stored = tidemill_broker.produce(
        "orders",
        "paid",
        key="7",
        headers={"trace": "a1", "empty": None},
        partition=2,
        timestamp_ms=1_700_000_000_000,
    )
    expected = StoredRecord(
        "orders", 2, 0, 1_700_000_000_000, b"7", b"paid", (("trace", b"a1"), ("empty", None))
    )
    assert stored == expected
    assert tidemill_broker.records("orders") == [expected]
    assert tidemill_broker.records("orders", partition=1) == []


def test_records_of_a_confluent_producer(tidemill_broker: InProcessBroker) -> None:
    producer = Producer({"bootstrap.servers": tidemill_broker.bootstrap, "compression.type": "zstd"})
    for number in range(100):
        producer.produce("orders", str(number))
    assert producer.flush(30) == 0
    values = [record.value for record in tidemill_broker.records("orders")]
    assert values == [str(number).encode() for number in range(100)]


def test_a_confluent_consumer_reads_what_the_test_produced(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.produce("orders", "hello")
    consumer = Consumer(
        {"bootstrap.servers": tidemill_broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    message = consumer.poll(30)
    assert message is not None
    assert message.value() == b"hello"
    consumer.commit(message=message, asynchronous=False)
    assert list(tidemill_broker.committed("g").values()) == [1]
    assert len(tidemill_broker.members("g")) == 1
    consumer.close()
    assert tidemill_broker.members("g") == []


def test_waiting_for_records(tidemill_broker: InProcessBroker) -> None:
    later = threading.Timer(0.05, lambda: tidemill_broker.produce("orders", "late"))
    later.start()
    (record,) = tidemill_broker.records("orders", count=1)
    later.join()
    assert record.value == b"late"
    with pytest.raises(AssertionError, match="orders holds 1 records"):
        tidemill_broker.records("orders", count=2, timeout_s=0)


def test_a_topic_that_is_not_there(tidemill_broker: InProcessBroker) -> None:
    with pytest.raises(UnknownTopic, match="orders"):
        tidemill_broker.records("orders")


def test_uncommitted_records_need_read_uncommitted(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders")
    producer = Producer({"bootstrap.servers": tidemill_broker.bootstrap, "transactional.id": "t"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("orders", "open")
    producer.flush(30)
    assert tidemill_broker.records("orders") == []
    assert [each.value for each in tidemill_broker.records("orders", isolation="read_uncommitted")] == [
        b"open"
    ]
    producer.abort_transaction(30)
    assert tidemill_broker.records("orders") == []


@pytest.mark.tidemill({"num.partitions": 5}, **{"auto.create.topics.enable": True})
def test_settings_of_a_mark(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.produce("orders", "x")
    admin = AdminClient({"bootstrap.servers": tidemill_broker.bootstrap})
    assert len(admin.list_topics("orders", timeout=30).topics["orders"].partitions) == 5


def test_configurations_of_a_topic(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders", **{"retention.ms": 1000})
    admin = AdminClient({"bootstrap.servers": tidemill_broker.bootstrap})
    (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "orders")]).values()
    assert described.result(30)["retention.ms"].value == "1000"


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_what_was_acknowledged_is_there_after_a_stop_or_a_crash(
    tidemill_broker: InProcessBroker, how: str
) -> None:
    bootstrap = tidemill_broker.bootstrap
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(1000):
        producer.produce("orders", str(number))
    assert producer.flush(30) == 0
    getattr(tidemill_broker, how)()
    assert not tidemill_broker.is_running
    tidemill_broker.start()
    assert tidemill_broker.bootstrap == bootstrap
    assert len(tidemill_broker.records("orders")) == 1000
    # The client that was there before goes on where it was.
    producer.produce("orders", "after")
    assert producer.flush(30) == 0
    assert tidemill_broker.records("orders")[-1].value == b"after"


def test_a_stop_is_clean_and_a_crash_is_not(tidemill_broker: InProcessBroker) -> None:
    mark = tidemill_broker.data_dir / ".kafka_cleanshutdown"
    tidemill_broker.stop()
    assert mark.exists()
    tidemill_broker.start()
    tidemill_broker.crash()
    assert not mark.exists()


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="needs /proc, which tells what a process has open"
)
@pytest.mark.parametrize("how", ["stop", "crash"])
def test_a_broker_that_has_ended_keeps_no_file_open(
    tmp_path_factory: pytest.TempPathFactory, no_collection: None, how: str
) -> None:
    folder = tmp_path_factory.mktemp("data")
    with InProcessBroker(data_dir=folder) as broker:
        broker.produce("orders", "paid")
        assert _open_below(folder)
        getattr(broker, how)()
        assert _open_below(folder) == []


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def _open_below(folder: Path) -> list[str]:
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            targets.append(os.readlink(descriptor))
    return [target for target in targets if target.startswith(str(folder))]


def test_crash_closes_connections_without_responses(tidemill_broker: InProcessBroker) -> None:
    """What is under way when it comes is neither finished nor refused: the connection ends."""
    tidemill_broker.create_topic("orders")
    reports: list[object] = []
    producer = Producer({"bootstrap.servers": tidemill_broker.bootstrap, "enable.idempotence": True})
    with tidemill_broker.faults.slow("orders", 3600) as fault:
        producer.produce("orders", "x", on_delivery=lambda error, _: reports.append(error))
        tidemill_broker.wait_until(lambda: producer.poll(0) or fault.hits, "the request is there")
        tidemill_broker.crash()
        assert producer.flush(0.2) == 1
        assert reports == []
    tidemill_broker.start()
    assert producer.flush(30) == 0
    assert reports == [None]
    assert len(tidemill_broker.records("orders")) == 1


def test_a_restart_may_change_settings(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.restart({"num.partitions": 4})
    tidemill_broker.produce("orders", "x")
    admin = AdminClient({"bootstrap.servers": tidemill_broker.bootstrap})
    assert len(admin.list_topics("orders", timeout=30).topics["orders"].partitions) == 4


def test_invalid_setting_raises_and_leaves_no_files() -> None:
    broker = InProcessBroker({"num.partitions": "many"})
    with pytest.raises(Exception, match=r"num\.partitions"):
        broker.__enter__()
    assert not broker.is_running
    assert not broker.data_dir.exists()


def test_without_pytest_and_in_a_folder_that_stays(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("data")
    with InProcessBroker(data_dir=folder) as broker:
        broker.produce("orders", "kept")
    with InProcessBroker(data_dir=folder) as broker:
        assert [record.value for record in broker.records("orders")] == [b"kept"]


def test_a_folder_that_another_broker_uses(tidemill_broker: InProcessBroker) -> None:
    threads = threading.enumerate()
    other = InProcessBroker(data_dir=tidemill_broker.data_dir)
    with pytest.raises(TidemillError, match="in use"):
        other.__enter__()
    assert threading.enumerate() == threads
    tidemill_broker.produce("orders", "unharmed")


def test_two_brokers_at_once(tidemill_broker: InProcessBroker) -> None:
    with InProcessBroker() as other:
        tidemill_broker.produce("orders", "here")
        other.produce("orders", "there")
        assert [record.value for record in tidemill_broker.records("orders")] == [b"here"]
        assert [record.value for record in other.records("orders")] == [b"there"]


def test_start_time_is_recorded(record_property: Callable[[str, object], None]) -> None:
    """For the eye only: what a machine under load makes of it is not judged."""
    started_s = []
    for _ in range(10):
        before_s = time.perf_counter()
        with InProcessBroker() as broker:
            started_s.append(time.perf_counter() - before_s)
            assert broker.is_running
    median_ms = round(statistics.median(started_s) * 1000)
    record_property("start_ms_median_of_10", median_ms)
    print(f"a broker starts in {median_ms} ms (median of 10)")


@pytest.mark.parametrize("_", range(2))
def test_the_session_has_one_broker(tidemill_session_broker: InProcessBroker, topic: str, _: int) -> None:
    tidemill_session_broker.produce(topic, "x")
    assert len(tidemill_session_broker.records(topic)) == 1
