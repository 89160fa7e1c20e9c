"""Views through stock clients: long runs of nothing are passed, and nothing is missed, shown twice or waited for."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.brokers import Broker, eventually
from tests.interop.clients import CODECS, Client, ClientError, Message
from tests.interop.group_consumers import GroupConsumer
from tests.interop.group_table import with_members
from tests.interop.members import Member
from tests.interop.table import with_clients
from tidemill.types import TopicPartition

INVALID_TOPIC_EXCEPTION = 17
WHERE = "region = 'eu' and not 'test' in tags"
SHOWN = (("region", b"eu"), ("tags", b"gold, new"))
HIDDEN = ((("region", b"us"), ("tags", b"gold")), (("region", b"eu"), ("tags", b"new,test")), ())
RUN = 2000
Join = Callable[..., Member]


def hidden(count: int) -> list[Message]:
    return [Message(b"hidden %d" % number, headers=HIDDEN[number % 3]) for number in range(count)]


def create_view(admin: Client, topic: str) -> str:
    admin.create_topic(topic)
    view = f"{topic}-view"
    admin.create_topic(view, configs={"tidemill.view.source": topic, "tidemill.view.filter": WHERE})
    return view


@pytest.fixture
def view(broker: Broker, other: Client, topic: str) -> str:
    """Only Tidemill has views, so this is never Apache Kafka."""
    return create_view(other, topic)


@with_clients()
def test_failure_34_a_view_with_long_empty_runs_is_read_to_its_end(
    client: Client, other: Client, topic: str, view: str
) -> None:
    for codec in CODECS:
        other.produce(topic, [*hidden(RUN), Message(codec.encode(), headers=SHOWN)], compression=codec)
    other.produce(topic, hidden(RUN))
    with client.reader(view, 0, 0) as reader:
        received = [reader.next() for _ in CODECS]
        assert [record.value for record in received] == [codec.encode() for codec in CODECS]
        assert [record.offset for record in received] == [(RUN + 1) * n + RUN for n in range(len(CODECS))]
        # The reader is past the last run when something follows it.
        other.produce(topic, [*hidden(3), Message(b"last", headers=SHOWN)])
        assert reader.next().value == b"last"


@with_clients()
def test_a_reader_may_begin_within_an_empty_run(client: Client, other: Client, topic: str, view: str) -> None:
    other.produce(topic, [Message(b"first", headers=SHOWN), *hidden(RUN), Message(b"last", headers=SHOWN)])
    (record,) = client.fetch(view, 0, RUN // 2, 1)
    assert (record.offset, record.value) == (RUN + 1, b"last")


@with_clients("offset_at")
def test_a_reader_rewinds_by_time(client: Client, other: Client, topic: str, view: str) -> None:
    start_ms = int(time.time() * 1000) - 100_000
    other.produce(
        topic,
        [
            Message(
                b"%d" % number,
                headers=SHOWN if number % 10 == 0 else HIDDEN[0],
                timestamp_ms=start_ms + number,
            )
            for number in range(100)
        ],
    )
    offset = client.offset_at(view, 0, start_ms + 41)
    assert offset == 41
    (record,) = client.fetch(view, 0, offset, 1)
    assert record.value == b"50"


@with_clients()
def test_a_view_has_the_ends_of_its_source(client: Client, other: Client, topic: str, view: str) -> None:
    other.produce(topic, hidden(10))
    assert (client.beginning_offset(view, 0), client.end_offset(view, 0)) == (0, 10)


@with_clients()
def test_a_producer_is_refused(client: Client, other: Client, topic: str, view: str) -> None:
    with pytest.raises(ClientError) as refused:
        client.produce(view, [Message(b"v", headers=SHOWN)])
    # kcat prints the error's name and no code.
    assert refused.value.code == INVALID_TOPIC_EXCEPTION or "Invalid topic" in str(refused.value)
    assert other.end_offset(topic, 0) == 0


@with_members()
def test_a_group_commits_and_resumes_on_a_view(
    kind: type[GroupConsumer], join: Join, admin: Client, group: str, topic: str, broker: Broker
) -> None:
    view = create_view(admin, topic)
    admin.produce(topic, [*hidden(RUN), Message(b"first", headers=SHOWN), *hidden(RUN)])
    first = join(kind, topics=(view,))
    eventually(lambda: first.values() == [b"first"], "the first record")
    first.do(lambda consumer: consumer.commit())
    committed, _ = admin.group_offsets(group)[view, 0]
    assert RUN < committed <= 2 * RUN + 1, "in offsets of the source"
    first.stop()
    admin.produce(topic, [Message(b"second", headers=SHOWN)])
    second = join(kind, topics=(view,))
    eventually(lambda: second.values() == [b"second"], "the second record, and the first not again")
    assert second.do(lambda consumer: consumer.committed(TopicPartition(view, 0))) is not None
