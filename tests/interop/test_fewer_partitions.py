"""Stock clients keep producing and consuming while their topic gets fewer partitions, and more again (decision 18).

One course for all clients, because partitions take their time to disappear: producers of every library feed one topic,
and groups of every library and protocol read it. Each client is judged by itself.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import confluent_kafka.admin
import pytest
from confluent_kafka import ShareConsumer

from tests.brokers import Broker, eventually, start_broker
from tests.conftest import BOOTSTRAP
from tests.interop.confluent_client import ConfluentClient
from tests.interop.confluent_group import ConfluentConsumer, ConfluentNewConsumer
from tests.interop.group_consumers import MemberSettings
from tests.interop.group_table import GROUP_SETTINGS, KINDS
from tests.interop.kafka_python_group import KafkaPythonConsumer
from tests.interop.kcat_client import KcatClient
from tests.interop.keyed_producers import METADATA_AGE_MS, PRODUCERS, Feed, KeyedProducer
from tests.interop.members import Member
from tests.interop.test_share_groups import SETTINGS as SHARE_SETTINGS
from tests.wire.connection import read_all
from tidemill.sim.checks import checker
from tidemill.sim.checks.checker import MessageId
from tidemill.types import TopicPartition

pytestmark = pytest.mark.skipif(bool(BOOTSTRAP), reason="Apache Kafka cannot take partitions away")

# Its types do not say what it exports.
ck_admin: Any = confluent_kafka.admin
TOPIC = "orders"
VIEW = "all-orders"
BEFORE, AFTER = 4, 2
# Enough for some in each partition, of every client.
KEYS = 12


class KcatMember:
    """A group of kcat: a process that prints what it reads."""

    name = "kcat"

    def __init__(self, bootstrap: str) -> None:
        self._values: list[bytes] = []
        settings = {
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": "200",
            "heartbeat.interval.ms": "200",
            "topic.metadata.refresh.interval.ms": str(METADATA_AGE_MS),
        }
        options = [part for name, value in settings.items() for part in ("-X", f"{name}={value}")]
        command = ["kcat", "-b", bootstrap, *options, "-J", "-u", "-q", "-G", "readers-kcat", TOPIC]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> KcatMember:
        self._thread.start()
        return self

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._values.append(json.loads(line)["payload"].encode())

    def values(self) -> list[bytes]:
        return list(self._values)

    def __exit__(self, *_: object) -> None:
        # Its way to leave a group may take for ever.
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class ShareMember:
    """The only member of a share group: it accepts what it gets."""

    name = "share group"

    def __init__(self, bootstrap: str) -> None:
        begins = ck_admin.ConfigEntry(
            "share.auto.offset.reset", "earliest", incremental_operation=ck_admin.AlterConfigOpType.SET
        )
        resource = ck_admin.ConfigResource(
            ck_admin.ConfigResource.Type.GROUP, "sharers", incremental_configs=[begins]
        )
        admin = ck_admin.AdminClient({"bootstrap.servers": bootstrap})
        for altered in admin.incremental_alter_configs([resource]).values():
            altered.result()
        self._values: list[bytes] = []
        self._consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": "sharers"})
        self._consumer.subscribe([TOPIC])
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> ShareMember:
        self._thread.start()
        return self

    def _read(self) -> None:
        while not self._is_stopping.is_set():
            for message in self._consumer.poll(0.2):
                if message.error() is None:
                    self._values.append(message.value() or b"")

    def values(self) -> list[bytes]:
        return list(self._values)

    def __exit__(self, *_: object) -> None:
        self._is_stopping.set()
        self._thread.join()
        self._consumer.close()


Reader = Member | KcatMember | ShareMember
Readers = dict[str, Reader]


class Course(NamedTuple):
    """What was sent, the messages of each partition as its log had them, and what each group got."""

    sent: dict[str, list[MessageId]]
    # The partitions that went, then those that stayed, then those that came.
    gone: list[list[MessageId]]
    stayed: list[list[MessageId]]
    added: list[list[MessageId]]
    received: dict[str, list[MessageId]]


def _message(value: bytes | None) -> MessageId:
    producer, _, number = (value or b"").decode().rpartition("/")
    return MessageId(producer, int(number))


def _log(broker: Broker, partition: int) -> list[MessageId]:
    batches = read_all(broker, TOPIC, partition)
    return [_message(value) for batch in batches for value in batch.values()]


def _started(broker: Broker, stack: ExitStack) -> tuple[list[Feed], Readers]:
    readers: Readers = {}
    for kind in KINDS:
        settings = MemberSettings(
            f"readers-{kind.name}",
            topics=(TOPIC,),
            auto_commit_ms=200,
            # kafka-python computes all the time while its metadata is so short-lived.
            metadata_max_age_ms=(4 if kind is KafkaPythonConsumer else 1) * METADATA_AGE_MS,
        )
        readers[kind.name] = stack.enter_context(Member(kind, broker.bootstrap, settings))
    for kind in (ConfluentConsumer, ConfluentNewConsumer):
        viewing = MemberSettings(
            f"viewers-{kind.name}", topics=(VIEW,), auto_commit_ms=200, metadata_max_age_ms=METADATA_AGE_MS
        )
        readers[f"{kind.name}, view"] = stack.enter_context(Member(kind, broker.bootstrap, viewing))
    readers["share group"] = stack.enter_context(ShareMember(broker.bootstrap))
    if KcatClient.missing() is None:
        readers["kcat"] = stack.enter_context(KcatMember(broker.bootstrap))
    producers = [kind for kind in PRODUCERS if kind.missing() is None]
    feeds = [stack.enter_context(Feed(kind, broker.bootstrap, TOPIC, KEYS)) for kind in producers]
    return feeds, readers


def _await_read(readers: Readers, messages: set[MessageId], what: str) -> None:
    wanted = {str(message).encode() for message in messages}
    for name, reader in readers.items():

        def has_all(reader: Reader = reader) -> bool:
            return wanted <= set(reader.values())

        eventually(has_all, f"{what} in the group of {name}", 120)


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    data_dir = tmp_path_factory.mktemp("fewer") / "data"
    with (
        start_broker(data_dir, settings={**GROUP_SETTINGS, **SHARE_SETTINGS}) as broker,
        ExitStack() as stack,
    ):
        yield _run(broker, stack)
    assert "Traceback" not in broker.log()


def _run(broker: Broker, stack: ExitStack) -> Course:
    admin = ConfluentClient(broker.bootstrap)
    stack.callback(admin.close)
    # Retries come within a second here.
    admin.create_topic(TOPIC, BEFORE, {"tidemill.partitions.kept.ms": "1000"})
    # It shows everything.
    admin.create_topic(
        VIEW, BEFORE, {"tidemill.view.source": TOPIC, "tidemill.view.filter": "not secret exists"}
    )
    feeds, readers = _started(broker, stack)
    for feed in feeds:
        feed.go_on()
    # The records go on meanwhile.
    admin.alter_configs(TOPIC, {"tidemill.partitions.active": str(AFTER)})
    for feed in feeds:
        feed.go_on()
    gone = [_log(broker, partition) for partition in range(AFTER, BEFORE)]
    _await_read(readers, {message for log in gone for message in log}, "the decommissioned partitions")
    for feed in feeds:
        feed.pause()
    assert [_log(broker, partition) for partition in range(AFTER, BEFORE)] == gone
    for partition, log in enumerate(gone, start=AFTER):
        assert admin.delete_records(TOPIC, partition, len(log)) == len(log)
    eventually(lambda: len(admin.partitions(TOPIC)) == AFTER, "the removal of the partitions", 60)
    # Some clients never learn of fewer partitions. Others would hold back what they have for one that is gone.
    for feed in feeds:
        feed.await_partitions(AFTER)
        feed.resume()
    for feed in feeds:
        feed.go_on()
    admin.create_partitions(TOPIC, BEFORE)
    eventually(
        lambda: all(admin.end_offset(TOPIC, partition) for partition in range(AFTER, BEFORE)),
        "records in the new partitions",
    )
    for feed in feeds:
        feed.go_on()
    for feed in feeds:
        feed.stop()
    sent = {feed.name: feed.sent() for feed in feeds}
    _await_read(readers, {message for messages in sent.values() for message in messages}, "everything")
    logs = [_log(broker, partition) for partition in range(BEFORE)]
    received = {name: [_message(value) for value in reader.values()] for name, reader in readers.items()}
    return Course(sent, gone, logs[:AFTER], logs[AFTER:], received)


@pytest.mark.parametrize("kind", PRODUCERS, ids=lambda kind: kind.name)
def test_no_acknowledged_record_is_lost_doubled_or_out_of_order_per_key(
    kind: type[KeyedProducer], course: Course
) -> None:
    """A key's records lie in one partition, or in one that went, one that stayed and one that came, in this order."""
    if reason := kind.missing():
        pytest.skip(reason)
    sent = course.sent[kind.name]
    history: list[checker.Event] = [checker.Sent(0, message, is_idempotent=True) for message in sent]
    for key in dict.fromkeys(message.producer for message in sent):
        line = TopicPartition(key, 0)
        found = [
            message
            for logs in (course.gone, course.stayed, course.added)
            for log in logs
            for message in log
            if message.producer == key
        ]
        history += [checker.Found(0, line, offset, message) for offset, message in enumerate(found)]
        history.append(checker.LogEnded(0, line))
        # Where it should be: the feed has numbered them.
        history += [
            checker.Acked(0, message, line, message.number) for message in sent if message.producer == key
        ]
    violations = checker.check(history)
    assert not violations, "\n".join(map(str, violations[:10]))


@pytest.mark.parametrize("kind", PRODUCERS, ids=lambda kind: kind.name)
def test_a_key_stays_in_one_partition_through_a_shrink(kind: type[KeyedProducer], course: Course) -> None:
    if reason := kind.missing():
        pytest.skip(reason)
    keys = {message.producer for message in course.sent[kind.name]}
    places = {
        key: {index for index, log in enumerate(course.stayed) if any(each.producer == key for each in log)}
        for key in keys
    }
    assert {key: len(place) for key, place in places.items()} == dict.fromkeys(keys, 1)
    # Both kinds occur: keys of partitions that stayed, and keys of partitions that went.
    moved = {each.producer for log in course.gone for each in log if each.producer in keys}
    assert moved
    assert keys - moved


GROUPS = [
    *(kind.name for kind in KINDS),
    *(f"{kind.name}, view" for kind in (ConfluentConsumer, ConfluentNewConsumer)),
    "share group",
    "kcat",
]


@pytest.mark.parametrize("name", GROUPS)
def test_every_group_reads_the_partitions_that_went_and_those_that_came(name: str, course: Course) -> None:
    if name not in course.received:
        pytest.skip("kcat is not installed: apt-get install kcat")
    sent = {message for messages in course.sent.values() for message in messages}
    assert set(course.received[name]) == sent
    assert all(log for log in (*course.gone, *course.added))
