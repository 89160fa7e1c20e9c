"""Topics of which readers are shown little: delayed records that wait, and a view that shows one record of some hundreds.

Every client reads to the end, commits, resumes and rewinds by time, and its fetches are counted: a client that stalls on an
empty answer does not come to the end, and one that spins over it asks too often.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from tests.brokers import eventually
from tests.interop import kafka_tools, other_clients
from tests.interop.clients import Client, ClientError, Message
from tests.interop.confluent_client import ConfluentClient
from tests.interop.group_consumers import GroupConsumer
from tests.interop.group_table import GROUP_SETTINGS, with_members
from tests.interop.members import Member
from tests.interop.table import with_clients
from tidemill.testing import InProcessBroker

RUN = 500
DUE = 200
# A client that asks for what it can get needs far fewer; one that spins asks thousands of times a second.
FETCHES_MAX = 40
POLL_S = 0.5
Join = Callable[..., Member]


class Hidden(NamedTuple):
    """A topic with three records to see, `first`, `second` and `last`, and long runs of others between them."""

    topic: str
    # A record in the first run has this time, or an earlier one that is after that of `first`.
    after_first_ms: int


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(GROUP_SETTINGS) as started:
        yield started


@pytest.fixture(scope="module")
def group_target(broker: InProcessBroker) -> InProcessBroker:
    return broker


@pytest.fixture
def client(request: pytest.FixtureRequest, broker: InProcessBroker) -> Iterator[Client]:
    opened = request.param(broker.bootstrap)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def writer(broker: InProcessBroker) -> Iterator[Client]:
    opened = ConfluentClient(broker.bootstrap)
    yield opened
    opened.close()


@pytest.fixture(params=["delays", "view"])
def hidden(request: pytest.FixtureRequest, broker: InProcessBroker, writer: Client, topic: str) -> Hidden:
    # Before the append time that batches with delays get.
    start_ms = broker.clock.wall_ms() - 100_000
    shown = [
        Message(value, headers=(("region", b"eu"),), timestamp_ms=start_ms + 2 * number * RUN)
        for number, value in enumerate((b"first", b"second", b"last"))
    ]
    if request.param == "delays":
        broker.create_topic(topic, configs={"tidemill.delays.enable": "true"})
        read, headers = topic, (("tidemill-delay", b"30d"),)
    else:
        broker.create_topic(topic)
        read, headers = broker.create_view(f"{topic}-view", topic, "region = 'eu'"), (("region", b"us"),)
    for message in shown:
        writer.produce(topic, [message])
        run = [Message(b"hidden", headers=headers, timestamp_ms=(message.timestamp_ms or 0) + 1)] * RUN
        writer.produce(topic, run)
    return Hidden(read, start_ms + 1)


def fetches(broker: InProcessBroker, topic: str) -> int:
    (thread,) = broker._running_threads()
    return thread.call(lambda node: node.broker.metrics.topic(topic).fetch_requests)


@with_clients()
def test_failure_34_hidden_records_are_passed_without_a_stall_or_a_spin(
    client: Client, broker: InProcessBroker, hidden: Hidden
) -> None:
    with client.reader(hidden.topic, 0, 0) as reader:
        assert [reader.next().value for _ in range(3)] == [b"first", b"second", b"last"]
        assert fetches(broker, hidden.topic) <= FETCHES_MAX
        # Beyond the last one there is nothing to see: the client waits.
        before, begun_s = fetches(broker, hidden.topic), time.monotonic()
        with contextlib.suppress(AssertionError, ClientError, TimeoutError):
            reader.next(limit_s=2 * POLL_S)
        waited_s = time.monotonic() - begun_s
        assert fetches(broker, hidden.topic) - before <= FETCHES_MAX * (1 + waited_s / POLL_S)


@with_clients("offset_at")
def test_a_reader_rewinds_by_time_into_what_is_hidden(client: Client, hidden: Hidden) -> None:
    offset = client.offset_at(hidden.topic, 0, hidden.after_first_ms)
    assert offset == 1
    assert [record.value for record in client.fetch(hidden.topic, 0, offset, 2)] == [b"second", b"last"]


@with_clients()
def test_the_end_is_that_of_the_log(client: Client, hidden: Hidden) -> None:
    assert client.end_offset(hidden.topic, 0) == 3 * (RUN + 1)


@with_members()
def test_a_group_commits_and_resumes(
    kind: type[GroupConsumer], join: Join, broker: InProcessBroker, hidden: Hidden
) -> None:
    first = join(kind, topics=(hidden.topic,))
    eventually(lambda: first.values() == [b"first", b"second", b"last"], "all that is shown")
    first.do(lambda consumer: consumer.commit())
    first.stop()
    before = fetches(broker, hidden.topic)
    second = join(kind, topics=(hidden.topic,))
    eventually(lambda: fetches(broker, hidden.topic) > before, "the second member reads")
    second.stop()
    assert second.values() == []
    assert fetches(broker, hidden.topic) <= 3 * FETCHES_MAX


@with_clients()
def test_record_that_becomes_due_is_read_once(
    client: Client, broker: InProcessBroker, writer: Client, topic: str
) -> None:
    broker.create_topic(topic, configs={"tidemill.delays.enable": "true"})
    delay = (("tidemill-delay", b"1h"),)
    writer.produce(topic, [Message(b"%d" % number, headers=delay) for number in range(DUE)])
    with client.reader(topic, 0, 0) as reader:
        broker.clock.advance(hours=2)
        assert [reader.next().value for _ in range(DUE)] == [b"%d" % number for number in range(DUE)]
    assert fetches(broker, topic) <= 5 * FETCHES_MAX


# --- clients that are programs of their own ---


@pytest.mark.skipif(kafka_tools.missing() is not None, reason=str(kafka_tools.missing()))
def test_java_reads_commits_and_resumes(broker: InProcessBroker, hidden: Hidden) -> None:
    def consume(count: int) -> list[str]:
        options = ("--bootstrap-server", broker.bootstrap, "--topic", hidden.topic, "--group", hidden.topic)
        limit = ("--max-messages", str(count), "--timeout-ms", "60000")
        return kafka_tools.run_tool(
            kafka_tools.CONSOLE_CONSUMER, *options, *limit, "--from-beginning"
        ).split()

    assert consume(2) == ["first", "second"]
    assert consume(1) == ["last"]
    assert fetches(broker, hidden.topic) <= 3 * FETCHES_MAX


@pytest.mark.parametrize("program", other_clients.PROGRAMS, ids=lambda program: program.name)
def test_other_languages_read_commit_resume_and_rewind(
    program: other_clients.Program, broker: InProcessBroker, hidden: Hidden
) -> None:
    if (missing := program.missing()) is not None:
        pytest.skip(missing)
    where = (broker.bootstrap, hidden.topic)
    assert program.run(*where, "group", hidden.topic, "2") == ["first", "second"]
    assert program.run(*where, "group", hidden.topic, "1") == ["last"]
    assert program.run(*where, "since", str(hidden.after_first_ms), "2") == ["second", "last"]
    assert fetches(broker, hidden.topic) <= 6 * FETCHES_MAX
