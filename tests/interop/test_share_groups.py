"""Share groups through confluent-kafka's `ShareConsumer`: records are shared out, acknowledged one by one, and counted."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer

from tests.brokers import Broker, start_broker
from tests.conftest import BOOTSTRAP
from tests.interop import kafka_tools
from tests.interop.kafka_tools import (
    CONSOLE_SHARE_CONSUMER,
    SHARE_CONSUMER_PERFORMANCE,
    SHARE_GROUPS,
    VERIFIABLE_SHARE_CONSUMER,
    run_tool,
)

pytestmark = pytest.mark.skipif(bool(BOOTSTRAP), reason="starts a broker with short heartbeats")

SETTINGS = {
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "200",
    "group.share.assignment.interval.ms": "0",
    "group.share.min.session.timeout.ms": "500",
    "group.share.min.record.lock.duration.ms": "1000",
}
LIMIT_S = 60.0
# Its types do not say what it exports.
ck_admin: Any = confluent_kafka.admin
_NO_JAVA = kafka_tools.missing()
_numbers = itertools.count(1)

Join = Callable[..., ShareConsumer]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start_broker(tmp_path_factory.mktemp("share") / "data", settings=SETTINGS) as broker:
        yield broker
    assert "Traceback" not in broker.log()


@pytest.fixture
def topic(broker: Broker) -> str:
    return new_topic(broker, 2)


@pytest.fixture
def group(broker: Broker) -> str:
    return new_group(broker)


@pytest.fixture
def join(broker: Broker) -> Iterator[Join]:
    with ExitStack() as stack:

        def joined(group: str, topic: str, **settings: object) -> ShareConsumer:
            config = {"bootstrap.servers": broker.bootstrap, "group.id": group, **settings}
            consumer = ShareConsumer(config)
            stack.callback(consumer.close)
            consumer.subscribe([topic])
            return consumer

        yield joined


def new_topic(broker: Broker, partitions: int) -> str:
    name = f"jobs-{next(_numbers)}"
    admin = ck_admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    for created in admin.create_topics([ck_admin.NewTopic(name, partitions)]).values():
        created.result()
    return name


def new_group(broker: Broker) -> str:
    """A group that begins with the first record of each partition."""
    name = f"workers-{next(_numbers)}"
    begins = ck_admin.ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=ck_admin.AlterConfigOpType.SET
    )
    resource = ck_admin.ConfigResource(ck_admin.ConfigResource.Type.GROUP, name, incremental_configs=[begins])
    admin = ck_admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result()
    return name


def produce(broker: Broker, topic: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value.encode())
    assert producer.flush(LIMIT_S) == 0


def poll_until(
    consumers: list[ShareConsumer],
    is_done: Callable[[], bool],
    take: Callable[[ShareConsumer, Message], None],
) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_done():
        assert time.monotonic() < deadline, "the records did not come"
        for consumer in consumers:
            for message in consumer.poll(0.2):
                assert message.error() is None, message.error()
                take(consumer, message)


def values_of(messages: list[Message]) -> list[str]:
    return sorted((message.value() or b"").decode() for message in messages)


def test_members_of_a_share_group_get_each_record_once(
    broker: Broker, join: Join, group: str, topic: str
) -> None:
    """Three members of two partitions."""
    members = [join(group, topic) for _ in range(3)]
    wanted = [f"job-{number:03}" for number in range(60)]
    produce(broker, topic, wanted)
    got: list[Message] = []
    poll_until(members, lambda: len(got) >= len(wanted), lambda _, message: got.append(message))
    assert values_of(got) == wanted
    assert {message.delivery_count() for message in got} == {1}


def test_a_released_record_comes_again_and_a_rejected_one_does_not(
    broker: Broker, join: Join, group: str, topic: str
) -> None:
    member = join(group, topic, **{"share.acknowledgement.mode": "explicit"})
    produce(broker, topic, ["accept", "reject", "release"])
    deliveries: list[tuple[str, int]] = []

    def take(consumer: ShareConsumer, message: Message) -> None:
        value = (message.value() or b"").decode()
        count = message.delivery_count()
        assert count is not None
        deliveries.append((value, count))
        kind = {"reject": AcknowledgeType.REJECT, "accept": AcknowledgeType.ACCEPT}.get(value)
        if kind is None:
            kind = AcknowledgeType.RELEASE if count < 3 else AcknowledgeType.ACCEPT
        consumer.acknowledge(message, kind)

    poll_until([member], lambda: ("release", 3) in deliveries, take)
    member.commit_sync(LIMIT_S)
    produce(broker, topic, ["accept"])
    poll_until([member], lambda: deliveries.count(("accept", 1)) == 2, take)
    member.commit_sync(LIMIT_S)
    assert sorted(deliveries) == [
        ("accept", 1),
        ("accept", 1),
        ("reject", 1),
        ("release", 1),
        ("release", 2),
        ("release", 3),
    ]


def test_records_of_a_member_that_leaves_go_to_another(
    broker: Broker, join: Join, group: str, topic: str
) -> None:
    explicit = {"share.acknowledgement.mode": "explicit"}
    produce(broker, topic, ["one", "two"])
    first = ShareConsumer({"bootstrap.servers": broker.bootstrap, "group.id": group, **explicit})
    first.subscribe([topic])
    held: list[Message] = []
    poll_until([first], lambda: len(held) > 0, lambda _, message: held.append(message))
    first.close()
    second = join(group, topic)
    got: list[Message] = []
    poll_until([second], lambda: len(got) >= 2, lambda _, message: got.append(message))
    assert values_of(got) == ["one", "two"]


def test_accepted_records_stay_accepted_after_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with start_broker(data, settings=SETTINGS) as broker:
        topic, group = new_topic(broker, 1), new_group(broker)
        produce(broker, topic, ["before"])
        with ShareConsumer({"bootstrap.servers": broker.bootstrap, "group.id": group}) as consumer:
            consumer.subscribe([topic])
            got: list[Message] = []
            poll_until([consumer], lambda: len(got) == 1, lambda _, message: got.append(message))
            assert all(error is None for error in consumer.commit_sync(LIMIT_S).values())
        broker.kill()
    with start_broker(data, settings=SETTINGS) as broker:
        produce(broker, topic, ["after"])
        with ShareConsumer({"bootstrap.servers": broker.bootstrap, "group.id": group}) as consumer:
            consumer.subscribe([topic])
            later: list[Message] = []
            poll_until([consumer], lambda: len(later) == 1, lambda _, message: later.append(message))
        assert values_of(later) == ["after"]
        assert "Traceback" not in broker.log()


@pytest.mark.long
@pytest.mark.skipif(_NO_JAVA is not None, reason=_NO_JAVA or "")
def test_java_share_consumers_and_their_tools_work_unmodified(broker: Broker, group: str, topic: str) -> None:
    """One course, as each call costs a Java virtual machine."""
    wanted = [f"job-{number}" for number in range(20)]
    produce(broker, topic, wanted)
    at = ("--bootstrap-server", broker.bootstrap)
    limits = ("--max-messages", "5", "--timeout-ms", "60000")
    first = run_tool(CONSOLE_SHARE_CONSUMER, *at, "--topic", topic, "--group", group, *limits).split()
    assert len(first) == 5
    assert set(first) < set(wanted)
    told = run_tool(
        VERIFIABLE_SHARE_CONSUMER, *at, "--topic", topic, "--group-id", group, "--max-messages", "15"
    )
    events = [json.loads(line) for line in told.splitlines()]
    for name in ("records_consumed", "offsets_acknowledged"):
        assert sum(event["count"] for event in events if event["name"] == name) == 15, name
    assert "Empty" in run_tool(SHARE_GROUPS, *at, "--describe", "--group", group, "--state")
    about = ("--group", group, "--topic", topic)
    assert _lags(run_tool(SHARE_GROUPS, *at, "--describe", "--group", group)) == [0, 0]
    run_tool(SHARE_GROUPS, *at, "--reset-offsets", *about, "--to-earliest", "--execute")
    assert sum(_lags(run_tool(SHARE_GROUPS, *at, "--describe", "--group", group))) == 20
    counted = ("--topic", topic, "--group", group, "--num-records", "20", "--timeout", "60000")
    _, measured = run_tool(SHARE_CONSUMER_PERFORMANCE, *at, *counted).strip().splitlines()
    assert measured.split(", ")[5] == "20"
    assert "Successful" in run_tool(SHARE_GROUPS, *at, "--delete-offsets", *about)
    assert "was successful" in run_tool(SHARE_GROUPS, *at, "--delete", "--group", group)


def _lags(described: str) -> list[int]:
    rows = [line.split() for line in described.splitlines() if line.strip()]
    column = rows[0].index("LAG")
    return [int(row[column]) for row in rows[1:]]
