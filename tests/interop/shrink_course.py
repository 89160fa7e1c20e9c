"""A topic gets fewer partitions, and more again, while clients produce to it and consume it (decision 18).

One course for many clients, because partitions take their time to disappear: producers of several libraries feed one
topic, and groups of several libraries and protocols read it. Each client is judged by itself.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import confluent_kafka.admin
from confluent_kafka import ShareConsumer

from tests.brokers import Broker, eventually, start_broker
from tests.interop.confluent_client import ConfluentClient
from tests.interop.group_table import GROUP_SETTINGS
from tests.interop.keyed_producers import METADATA_AGE_MS, Feed, KeyedProducer
from tests.interop.other_clients import Conversation
from tests.interop.test_share_groups import SETTINGS as SHARE_SETTINGS
from tests.wire.connection import Connection, read_all
from tidemill.sim.checks import checker
from tidemill.sim.checks.checker import MessageId
from tidemill.types import TopicPartition

# Its types do not say what it exports.
ck_admin: Any = confluent_kafka.admin
TOPIC = "orders"
VIEW = "all-orders"
BEFORE, AFTER = 4, 2
# Enough for some in each partition, of every client.
KEYS = 12
LIMIT_S = 120.0


class Reader(Protocol):
    """Reads the topic as a group of its own while its context is open."""

    def values(self) -> list[bytes]: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *_: object) -> None: ...


# By a name for each; made when the broker runs.
Readers = dict[str, Callable[[str], Reader]]


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


class ProgramMember:
    """A group of a program in another language. Ends on request, without an error."""

    def __init__(self, program: Conversation) -> None:
        self._program = program
        self._values: list[bytes] = []
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> ProgramMember:
        self._thread.start()
        return self

    def _read(self) -> None:
        for line in self._program.lines():
            self._values.append(line.encode())

    def values(self) -> list[bytes]:
        return list(self._values)

    def __exit__(self, *_: object) -> None:
        try:
            self._program.end()
        finally:
            self._thread.join()
            self._program.close()


def begin_at_the_earliest(bootstrap: str, share_group: str) -> None:
    """A share group reads what was there before it, which its clients cannot ask for."""
    begins = ck_admin.ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=ck_admin.AlterConfigOpType.SET
    )
    resource = ck_admin.ConfigResource(
        ck_admin.ConfigResource.Type.GROUP, share_group, incremental_configs=[begins]
    )
    admin = ck_admin.AdminClient({"bootstrap.servers": bootstrap})
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result()


class ShareMember:
    """The only member of a share group: it accepts what it gets."""

    name = "share group"

    def __init__(self, bootstrap: str) -> None:
        begin_at_the_earliest(bootstrap, "sharers")
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


class Course(NamedTuple):
    """The sent messages, those of each partition's log, and those that each group read."""

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


@contextmanager
def run_course(data_dir: Path, kinds: Iterable[type[KeyedProducer]], readers: Readers) -> Iterator[Course]:
    with (
        start_broker(data_dir, settings={**GROUP_SETTINGS, **SHARE_SETTINGS}) as broker,
        ExitStack() as stack,
    ):
        yield _run(broker, stack, list(kinds), readers)
    assert "Traceback" not in broker.log()


def _await_read(readers: dict[str, Reader], messages: set[MessageId], what: str) -> None:
    wanted = {str(message).encode() for message in messages}
    for name, reader in readers.items():

        def has_all(reader: Reader = reader) -> bool:
            return wanted <= set(reader.values())

        eventually(has_all, f"{what} in the group of {name}", LIMIT_S)


def _await_records(broker: Broker, names: list[str]) -> None:
    """Waits until every producer has records in partitions that go: what a library was handed may still be in its buffers.

    A partition without records would be gone before the course looks into it.
    """

    def have_all() -> bool:
        logs = [_log(broker, partition) for partition in range(AFTER, BEFORE)]
        writers = {message.producer.rpartition("-")[0] for log in logs for message in log}
        return all(logs) and writers.issuperset(names)

    eventually(have_all, "records of every producer", LIMIT_S)


def _shrink(broker: Broker, admin: ConfluentClient) -> None:
    """Returns when the partitions that go take no new records. Producers go on meanwhile."""
    with Connection(broker) as connection:
        before = [each.leader_epoch for each in connection.metadata(TOPIC).partitions]
        admin.alter_configs(TOPIC, {"tidemill.partitions.active": str(AFTER)})

        def lead_in_new_epochs() -> bool:
            after = {
                each.partition_index: each.leader_epoch for each in connection.metadata(TOPIC).partitions
            }
            return all(after[index] > before[index] for index in range(AFTER, BEFORE))

        eventually(lead_in_new_epochs, "the decommission of the partitions", LIMIT_S)


def _run(
    broker: Broker, stack: ExitStack, kinds: list[type[KeyedProducer]], kinds_of_readers: Readers
) -> Course:
    admin = ConfluentClient(broker.bootstrap)
    stack.callback(admin.close)
    # Retries come within a second here.
    admin.create_topic(TOPIC, BEFORE, {"tidemill.partitions.kept.ms": "1000"})
    # It shows everything.
    admin.create_topic(
        VIEW, BEFORE, {"tidemill.view.source": TOPIC, "tidemill.view.filter": "not secret exists"}
    )
    readers = {name: stack.enter_context(make(broker.bootstrap)) for name, make in kinds_of_readers.items()}
    feeds = [stack.enter_context(Feed(kind, broker.bootstrap, TOPIC, KEYS)) for kind in kinds]
    _await_records(broker, [feed.name for feed in feeds])
    _shrink(broker, admin)
    for feed in feeds:
        feed.go_on()
    gone = [_log(broker, partition) for partition in range(AFTER, BEFORE)]
    _await_read(readers, {message for log in gone for message in log}, "the decommissioned partitions")
    for feed in feeds:
        feed.pause()
    assert [_log(broker, partition) for partition in range(AFTER, BEFORE)] == gone
    for partition, log in enumerate(gone, start=AFTER):
        assert admin.delete_records(TOPIC, partition, len(log)) == len(log)
    eventually(lambda: len(admin.partitions(TOPIC)) == AFTER, "the removal of the partitions", LIMIT_S)
    # Some clients never learn of fewer partitions. Others would hold back what they have for one that is gone.
    for feed in feeds:
        feed.await_partitions(AFTER)
        feed.resume()
    for feed in feeds:
        feed.go_on()
    admin.create_partitions(TOPIC, BEFORE)
    eventually(
        # They begin where those before them ended.
        lambda: all(admin.end_offset(TOPIC, each) > len(log) for each, log in enumerate(gone, start=AFTER)),
        "records in the new partitions",
        LIMIT_S,
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


def violations_of(course: Course, name: str) -> list[str]:
    """Returns the violations that the checker finds in the records of a producer.

    A key's records lie in one partition, or in one that went, one that stayed and one that came, in this order.
    """
    sent = course.sent[name]
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
    return [str(violation) for violation in checker.check(history)]


def scattered_keys(course: Course, name: str) -> set[str]:
    """The keys of a producer with records in more than one of the partitions that stayed, or in none."""
    keys = {message.producer for message in course.sent[name]}
    # Both kinds occur: keys of partitions that stayed, and keys of partitions that went.
    moved = {each.producer for log in course.gone for each in log if each.producer in keys}
    assert moved
    assert keys - moved
    places = {key: sum(any(each.producer == key for each in log) for log in course.stayed) for key in keys}
    return {key for key, count in places.items() if count != 1}


def unread(course: Course, name: str) -> set[MessageId]:
    """Returns the records that a group has not read. Records were in partitions that went and in those that came."""
    assert all(log for log in (*course.gone, *course.added))
    sent = {message for messages in course.sent.values() for message in messages}
    return sent - set(course.received[name])
