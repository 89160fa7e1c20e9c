"""`tidemill transactions`, with a producer of confluent-kafka and, for what no client would do, a hand-written batch.

The broker does not verify transactional writes (`transaction.partition.verification.enable=false`), so that a transaction
can be left hanging. A broker named by `TIDEMILL_INTEROP_BOOTSTRAP` has to run with that setting, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from tests.brokers import RunningBroker, eventually, start_broker
from tests.cli.conftest import Run
from tests.conftest import BOOTSTRAP
from tests.wire.batches import TRANSACTIONAL, Header, encode
from tests.wire.connection import Connection, produce_fields
from tidemill.client.cluster import Cluster
from tidemill.client.producing.transaction_coordinator import TransactionCoordinator
from tidemill.spark.sink.commits import Commits, Decision, Transaction
from tidemill.spark.sink.two_phase import task_prefix

# A client that adds its partitions to the transaction itself, or forgets to.
PRODUCE_VERSION = 9
FORGOTTEN_PRODUCER_ID = 900_000
NOT_LEADER_OR_FOLLOWER = 6
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    if BOOTSTRAP:
        host, port = BOOTSTRAP.rsplit(":", 1)
        yield RunningBroker(host, int(port))
        return
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "transaction.partition.verification.enable": "false",
    }
    with start_broker(tmp_path_factory.mktemp("transactions") / "data", settings=settings) as broker:
        yield broker


@pytest.fixture(scope="module")
def cluster(target: RunningBroker) -> Iterator[Cluster]:
    with Cluster(target.bootstrap) as cluster:
        yield cluster


@pytest.fixture
def producer(target: RunningBroker, orders: str) -> Iterator[Callable[[], Producer]]:
    """Makes the producer of `<topic>-id`, with a transaction that has written to partition 1 of three."""
    made: list[Producer] = []

    def make() -> Producer:
        settings = {
            "bootstrap.servers": target.bootstrap,
            "transactional.id": f"{orders}-id",
            "transaction.timeout.ms": 45_000,
        }
        producer = Producer(settings)
        made.append(producer)
        producer.init_transactions(LIMIT_S)
        producer.begin_transaction()
        producer.produce(orders, b"held back", partition=1)
        assert producer.flush(LIMIT_S) == 0
        return producer

    yield make
    for each in made:
        each.purge()
        each.flush(LIMIT_S)


def begun(target: RunningBroker, transactional_id: str, topic: str, partition: int) -> Producer:
    """A producer with a transaction that it has not ended."""
    producer = Producer({"bootstrap.servers": target.bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"held back", partition=partition)
    assert producer.flush(LIMIT_S) == 0
    return producer


def leave_hanging(target: RunningBroker, topic: str, partition: int) -> None:
    """Leaves a transaction open that its coordinator does not know."""
    header = Header(
        attributes=TRANSACTIONAL,
        producer_id=FORGOTTEN_PRODUCER_ID,
        producer_epoch=3,
        base_sequence=0,
        base_timestamp_ms=int(time.time() * 1000),
    )
    fields = produce_fields(topic, encode([b"lost"], header), partition)

    def error() -> int:
        with Connection(target) as connection:
            answer = connection.request("produce", PRODUCE_VERSION, transactional_id="forgotten", **fields)
        return int(answer.responses[0].partition_responses[0].error_code)

    # A leader may learn that it is one after the topic was announced.
    eventually(lambda: error() != NOT_LEADER_OR_FOLLOWER, "a leader that takes it", LIMIT_S)


def committed_values(target: RunningBroker, topic: str, count: int) -> list[bytes]:
    consumer: Any = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": f"{topic}-reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    values: list[bytes] = []
    try:
        consumer.subscribe([topic])

        def is_read() -> bool:
            record = consumer.poll(0.1)
            if record is not None and record.error() is None:
                values.append(record.value())
            return len(values) >= count

        eventually(is_read, f"{count} committed records of {topic}", LIMIT_S)
    finally:
        consumer.close()
    return values


def test_a_transaction_lives_and_ends(cli: Run, orders: str, producer: Callable[[], Producer]) -> None:
    name = f"{orders}-id"
    writing = producer()
    (listed,) = cli("transactions", "list", "--id-pattern", name, "--json").json
    assert (listed["transactional_id"], listed["state"]) == (name, "Ongoing")
    document = cli("transactions", "describe", name, "--json").json
    assert document["partitions"] == [{"topic": orders, "partition": 1}]
    assert (document["state"], document["timeout_ms"]) == ("Ongoing", 45_000)
    assert document["producer_id"] == listed["producer_id"]
    shown = cli("transactions", "describe", name).ok
    assert "timeout:        45 s\n" in shown
    assert "s ago)\n" in shown
    assert shown.splitlines()[-1].split() == [orders, "1"]

    writing.commit_transaction(LIMIT_S)

    def is_complete() -> bool:
        return bool(cli("transactions", "describe", name, "--json").json["state"] == "CompleteCommit")

    eventually(is_complete, "the transaction complete", LIMIT_S)
    assert cli("transactions", "describe", name, "--json").json["partitions"] == []
    assert "partitions:     0\n" in cli("transactions", "describe", name).ok


def test_a_transaction_that_is_left_open_is_ended_by_hand(
    cli: Run, target: RunningBroker, cluster: Cluster, orders: str
) -> None:
    name = f"{orders}-id"
    writing = begun(target, name, orders, 1)
    # The producer that should decide has taken it over: it has no timeout, and does not come back.
    TransactionCoordinator(cluster, name).take_over(two_phase=True)
    assert "timeout:        none (two-phase commit)\n" in cli("transactions", "describe", name).ok
    assert "is not a task of Spark" in cli("transactions", "end", name, "--as-decided", "--yes").error
    document = cli("transactions", "end", name, "--commit", "--yes", "--json").json
    assert document["state"] in ("PrepareCommit", "CompleteCommit")
    assert committed_values(target, orders, 1) == [b"held back"]
    assert "has no transaction open" in cli("transactions", "end", name, "--abort", "--yes").error
    with pytest.raises(KafkaException):
        writing.commit_transaction(LIMIT_S)


def test_a_task_of_spark_is_ended_as_its_driver_decided(
    cli: Run, target: RunningBroker, cluster: Cluster, orders: str
) -> None:
    query_id = f"{orders}/query"
    names = [f"{task_prefix(query_id)}/{task}-0.0" for task in range(2)]
    for number, name in enumerate(names):
        begun(target, name, orders, number)
    writer = TransactionCoordinator(cluster, names[0]).take_over(two_phase=True).writer
    assert writer is not None
    with Commits(cluster, query_id) as commits:
        commits.fence()
        commits.decide(Decision(7, (Transaction(names[0], *writer),)))
    assert "as decided" in cli("transactions", "end", names[1], "--as-decided", "--yes").ok
    assert committed_values(target, orders, 1) == [b"held back"]
    states = [cli("transactions", "describe", name, "--json").json["state"] for name in names]
    assert [state.removeprefix("Prepare").removeprefix("Complete") for state in states] == ["Commit", "Abort"]


def test_an_id_without_a_transaction(cli: Run, target: RunningBroker, orders: str) -> None:
    name = f"{orders}-id"
    Producer({"bootstrap.servers": target.bootstrap, "transactional.id": name}).init_transactions(LIMIT_S)
    document = cli("transactions", "describe", name, "--json").json
    assert (document["state"], document["partitions"], document["started_ms"]) == ("Empty", [], None)
    assert "started:        -\n" in cli("transactions", "describe", name).ok


def test_list_filters_transactions(cli: Run, orders: str, producer: Callable[[], Producer]) -> None:
    name = f"{orders}-id"
    writing = producer()
    (mine,) = cli("transactions", "list", "--id-pattern", name, "--json").json

    def ids(*filters: str) -> list[str]:
        return [each["transactional_id"] for each in cli("transactions", "list", *filters, "--json").json]

    number = str(mine["producer_id"])
    assert ids("--producer-id", number) == [name]
    assert ids("--producer-id", number, "--state", "Ongoing") == [name]
    assert ids("--producer-id", number, "--state", "Empty", "--state", "PrepareAbort") == []
    assert ids("--producer-id", number, "--min-duration", "1ms") == [name]
    assert ids("--producer-id", number, "--min-duration", "1h") == []
    assert ids("--id-pattern", f"{orders}-.*") == [name]
    assert ids("--id-pattern", orders) == []
    shown = cli("transactions", "list", "--producer-id", number).ok.splitlines()
    assert shown[1].split() == [name, number, "Ongoing", str(mine["coordinator_id"])]
    nothing = cli("transactions", "list", "--producer-id", "999999")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "no transactions match\n")
    writing.abort_transaction(LIMIT_S)


def test_wrong_arguments_are_rejected(cli: Run, orders: str) -> None:
    unknown = cli("transactions", "describe", "nobody").error
    assert "there is no transactional id nobody; `tidemill transactions list`" in unknown
    assert "no transaction is ever in state Asleep" in cli("transactions", "list", "--state", "Asleep").error
    assert "'(' is not a regular expression" in cli("transactions", "list", "--id-pattern", "(").error
    assert cli("transactions", "list", "--topic", orders).code == 2
    assert cli("transactions", "list", "--hanging", "--state", "Ongoing").code == 2
    assert cli("transactions", "list", "--min-duration", "soon").code == 2
    place = ("--topic", orders, "--partition", "0")
    assert cli("transactions", "abort", *place).code == 2
    absent = cli("transactions", "abort", *place, "--start-offset", "5").error
    assert f"no open transaction in {orders}-0 begins at offset 5; open there: none" in absent
    beyond = cli("transactions", "abort", "--topic", orders, "--partition", "7", "--start-offset", "5").error
    assert f"topic {orders} has no partition 7, only 0 to 2" in beyond
    missing = cli("transactions", "list", "--hanging", "--topic", f"{orders}-not").error
    assert f"there is no topic {orders}-not" in missing


def test_a_hanging_transaction_is_found_and_aborted(cli: Run, target: RunningBroker, orders: str) -> None:
    leave_hanging(target, orders, 2)
    everywhere = cli("transactions", "list", "--hanging", "--min-duration", "0s", "--json").json
    (found,) = [each for each in everywhere if each["topic"] == orders]
    assert (found["partition"], found["start_offset"]) == (2, 0)
    assert (found["producer_id"], found["producer_epoch"]) == (FORGOTTEN_PRODUCER_ID, 3)
    there = ("--topic", f"{orders}:2", "--min-duration", "0s")
    assert [each["topic"] for each in cli("transactions", "list", "--hanging", *there, "--json").json] == [
        orders
    ]
    young = cli("transactions", "list", "--hanging", "--topic", orders)
    assert (young.code, young.out, young.err) == (0, "", "no transaction hangs\n")
    row = cli("transactions", "list", "--hanging", *there).ok.splitlines()[1].split()
    assert row[:5] == [orders, "2", "0", str(FORGOTTEN_PRODUCER_ID), "3"]

    place = ("--topic", orders, "--partition", "2")
    other = cli("transactions", "abort", *place, "--producer-id", "1").error
    assert f"open there: offset 0 of producer {FORGOTTEN_PRODUCER_ID}" in other
    done = cli("transactions", "abort", *place, "--start-offset", "0").ok
    assert (
        done
        == f"aborted the transaction of producer {FORGOTTEN_PRODUCER_ID} in {orders}-2 from offset 0 on\n"
    )
    assert cli("transactions", "list", "--hanging", *there, "--json").json == []
    with Connection(target) as connection:
        assert connection.produce(orders, encode([b"next"]), partition=2).error_code == 0
    assert committed_values(target, orders, 1) == [b"next"]


def test_abort_refuses_transaction_that_its_coordinator_will_end(
    cli: Run, orders: str, producer: Callable[[], Producer]
) -> None:
    name = f"{orders}-id"
    producer()
    there = ("--topic", orders, "--min-duration", "0s")
    assert cli("transactions", "list", "--hanging", *there, "--json").json == []
    number = str(cli("transactions", "describe", name, "--json").json["producer_id"])
    place = ("--topic", orders, "--partition", "1", "--producer-id", number)
    refused = cli("transactions", "abort", *place).error
    assert f"the transaction does not hang: it is one of {name}" in refused
    aborted = cli("transactions", "abort", *place, "--force", "--json").json
    assert (aborted["topic"], aborted["partition"], aborted["start_offset"]) == (orders, 1, 0)
    assert "open there: none" in cli("transactions", "abort", *place).error


@pytest.mark.parametrize("group", [[], ["--group", "isolated"]], ids=["without a group", "in a group"])
def test_consume_by_isolation_level(
    cli: Run, orders: str, producer: Callable[[], Producer], group: list[str]
) -> None:
    transaction = producer()
    transaction.abort_transaction(LIMIT_S)
    for value in (b"committed", b"open"):
        transaction.begin_transaction()
        transaction.produce(orders, value, partition=1)
        assert transaction.flush(LIMIT_S) == 0
        if value == b"committed":
            transaction.commit_transaction(LIMIT_S)
    everything = cli("consume", orders, "--format", "{value}\n").ok
    assert everything.split("\n") == ["held back", "committed", "open", ""]
    committed = cli("consume", orders, "--format", "{value}\n", "--isolation-level", "read_committed", *group)
    assert committed.ok == "committed\n"
