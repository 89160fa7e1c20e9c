"""The transport as kombu's own API uses it: queues, exchanges, acknowledgements, and bad input."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from amqp.exceptions import IrrecoverableChannelError, RecoverableConnectionError
from kombu import Connection, Consumer, Exchange, Message, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError

from tests.celery.conftest import url_of
from tidemill.celery.backend import Backend
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.testing import InProcessBroker

# Shorter than a lock lasts, which is 30 s: what comes within it was released, and has not expired.
LIMIT_S = 20.0


class Inbox:
    """The messages that a consumer was given."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.messages: list[Message] = []

    def on_message(self, message: Message) -> None:
        self.messages.append(message)

    def wait(self, count: int = 1) -> list[Any]:
        """The bodies, once there are that many."""
        deadline_s = time.monotonic() + LIMIT_S
        while len(self.messages) < count:
            assert time.monotonic() < deadline_s, f"{len(self.messages)} of {count} messages came"
            drain(self._connection, 0.5)
        return [each.payload for each in self.messages]

    def stays_as_it_is(self) -> bool:
        count = len(self.messages)
        for _ in range(3):
            drain(self._connection, 0.2)
        return len(self.messages) == count


def drain(connection: Connection, timeout_s: float) -> None:
    try:
        connection.drain_events(timeout=timeout_s)
    except TimeoutError:
        return


@contextmanager
def consuming(
    connection: Connection, *queues: Queue, prefetch: int = 10, no_ack: bool = False
) -> Iterator[Inbox]:
    inbox = Inbox(connection)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=prefetch)
    with Consumer(channel, list(queues), on_message=inbox.on_message, no_ack=no_ack):
        yield inbox
    channel.close()


def publish(connection: Connection, body: object, queue: Queue, **options: Any) -> None:
    Producer(connection.default_channel).publish(
        body,
        exchange=queue.exchange,
        routing_key=queue.routing_key or queue.name,
        declare=[queue],
        **options,
    )


def in_an_hour() -> str:
    return (datetime.now(UTC) + timedelta(hours=1)).isoformat()


def topics(broker: InProcessBroker) -> set[str]:
    with Cluster(broker.bootstrap) as cluster:
        return {each.name or "" for each in Admin(cluster).topics()}


def test_simple_queue_round_trip(connection: Connection, name: str) -> None:
    with connection.SimpleQueue(name) as queue:
        queue.put({"hello": ["world", 3]}, headers={"trace": "7"})
        message = queue.get(timeout=LIMIT_S)
        message.ack()
        assert message.payload == {"hello": ["world", 3]}
        assert message.headers["trace"] == "7"


def test_bytes_and_compression_survive(connection: Connection, name: str) -> None:
    queue = Queue(name)
    publish(connection, b"\x00\xff" * 100, queue, compression="gzip", serializer="raw")
    with consuming(connection, queue) as inbox:
        inbox.wait()
        assert inbox.messages[0].body == b"\x00\xff" * 100
        inbox.messages[0].ack()


def test_accepted_message_does_not_come_again(shared: InProcessBroker, name: str) -> None:
    queue = Queue(name)
    with Connection(url_of(shared)) as connection:
        publish(connection, "done", queue)
        with consuming(connection, queue) as inbox:
            inbox.wait()
            inbox.messages[0].ack()
    with Connection(url_of(shared)) as connection, consuming(connection, queue) as inbox:
        assert inbox.stays_as_it_is()


def test_message_that_is_not_acknowledged_goes_to_another_consumer(
    shared: InProcessBroker, name: str
) -> None:
    queue = Queue(name)
    with Connection(url_of(shared)) as connection:
        publish(connection, "again", queue)
        with consuming(connection, queue) as inbox:
            inbox.wait()
            assert not inbox.messages[0].delivery_info["redelivered"]
    with Connection(url_of(shared)) as connection, consuming(connection, queue) as inbox:
        assert inbox.wait() == ["again"]
        assert inbox.messages[0].delivery_info["redelivered"]
        inbox.messages[0].ack()


@pytest.mark.parametrize("failure", [RecoverableConnectionError, IrrecoverableChannelError])
def test_requeue_whose_copy_cannot_be_written_gives_the_message_up(
    connection: Connection, name: str, monkeypatch: pytest.MonkeyPatch, failure: type[Exception]
) -> None:
    """Such as by a worker that may not write. It must not stay locked, nor take the place of other messages."""

    def refused(*_: object) -> None:
        raise failure("not authorized")

    monkeypatch.setattr(Backend, "publish_again", refused)
    queue = Queue(name)
    with consuming(connection, queue, prefetch=1) as inbox:
        publish(connection, "again", queue)
        for count in range(1, 11):
            assert inbox.wait(count) == ["again"] * count
            inbox.messages[-1].requeue()
        publish(connection, "next", queue)
        assert inbox.wait(11)[-1] == "next"


def test_requeue_delivers_again_more_often_than_the_group_allows(connection: Connection, name: str) -> None:
    """A group gives a record up after ten deliveries; a requeue is a wish to keep it."""
    queue = Queue(name)
    publish(connection, "stubborn", queue)
    with consuming(connection, queue) as inbox:
        for count in range(1, 13):
            inbox.wait(count)
            inbox.messages[-1].requeue()
        inbox.wait(13)
        inbox.messages[-1].ack()
        assert inbox.stays_as_it_is()


def test_rejected_message_does_not_come_again(connection: Connection, name: str) -> None:
    queue = Queue(name)
    publish(connection, "no", queue)
    publish(connection, "yes", queue)
    with consuming(connection, queue) as inbox:
        inbox.wait(2)
        for message in inbox.messages:
            message.reject()
        assert inbox.stays_as_it_is()


def test_message_of_a_consumer_without_acknowledgements_is_done_when_it_is_handed_out(
    shared: InProcessBroker, connection: Connection, name: str
) -> None:
    queue = Queue(name)
    publish(connection, "once", queue)
    with consuming(connection, queue, no_ack=True) as inbox:
        inbox.wait()
    with Connection(url_of(shared)) as other, consuming(other, queue) as inbox:
        assert inbox.stays_as_it_is()


def test_no_more_messages_are_handed_out_than_the_prefetch_count(connection: Connection, name: str) -> None:
    queues = [Queue(f"{name}-{number}") for number in range(2)]
    for queue in queues:
        for number in range(5):
            publish(connection, number, queue)
    with consuming(connection, *queues, prefetch=3) as inbox:
        inbox.wait(3)
        assert inbox.stays_as_it_is()
        for count in range(4, 11):
            inbox.messages[count - 4].ack()
            inbox.wait(count)
        for message in inbox.messages[-3:]:
            message.ack()


def test_two_consumers_share_one_partition(shared: InProcessBroker, name: str) -> None:
    queue = Queue(name)
    with Connection(url_of(shared)) as one, Connection(url_of(shared)) as two:
        for number in range(4):
            publish(one, number, queue)
        with consuming(one, queue, prefetch=2) as first, consuming(two, queue, prefetch=2) as second:
            bodies = first.wait(2) + second.wait(2)
            assert sorted(bodies) == [0, 1, 2, 3]
            for message in first.messages + second.messages:
                message.ack()


def test_higher_priorities_come_first(connection: Connection, name: str) -> None:
    queue = Queue(name, max_priority=10)
    for number, priority in enumerate([0, 0, 3, 9, 6, 9, 0]):
        publish(connection, (priority, number), queue, priority=priority)
    with consuming(connection, queue, prefetch=1) as inbox:
        for count in range(1, 8):
            inbox.wait(count)
            inbox.messages[-1].ack()
        assert [each.payload[0] for each in inbox.messages] == [9, 9, 6, 3, 0, 0, 0]


def test_basic_get_gives_one_message_or_none(connection: Connection, name: str) -> None:
    queue = Queue(name)(connection.default_channel)
    queue.declare()
    assert queue.get() is None
    for number in range(2):
        publish(connection, number, queue)
    first, second = queue.get(), queue.get()
    assert sorted([first.payload, second.payload]) == [0, 1]
    first.ack()
    second.ack()


def test_purge_removes_what_waits_and_delayed_messages(connection: Connection, name: str) -> None:
    queue = Queue(name)(connection.default_channel)
    for number in range(3):
        publish(connection, number, queue)
    publish(connection, "later", queue, headers={"eta": in_an_hour()})
    assert queue.queue_declare(passive=True).message_count == 4
    assert queue.purge() == 4
    assert queue.queue_declare(passive=True).message_count == 0
    publish(connection, "new", queue)
    with consuming(connection, queue) as inbox:
        assert inbox.wait() == ["new"]
        inbox.messages[0].ack()
        assert inbox.stays_as_it_is()


def test_message_with_an_eta_is_delivered_when_it_is_due(
    shared: InProcessBroker, connection: Connection, name: str
) -> None:
    queue = Queue(name)
    publish(connection, "later", queue, headers={"eta": in_an_hour()})
    publish(connection, "now", queue, headers={"eta": "2001-01-01T00:00:00+00:00"})
    with consuming(connection, queue) as inbox:
        assert inbox.wait() == ["now"]
        assert inbox.stays_as_it_is()
        inbox.messages[0].ack()
    shared.clock.advance(seconds=3601)
    with consuming(connection, queue) as inbox:
        assert inbox.wait() == ["later"]
        inbox.messages[0].ack()


def test_deleted_queue_is_gone_with_its_topics_and_bindings(
    shared: InProcessBroker, connection: Connection, name: str
) -> None:
    queue = Queue(name, Exchange(f"{name}-x"), name, max_priority=10)(connection.default_channel)
    publish(connection, 1, queue)
    assert {name, f"{name}.priority-9"} <= topics(shared)
    queue.delete()
    assert not {each for each in topics(shared) if each.startswith(f"{name}.") or each == name}
    with pytest.raises(ChannelError):
        queue.queue_declare(passive=True)
    with Connection(url_of(shared)) as other:
        assert name not in [each[0] for each in other.default_channel.list_bindings()]
    # It can be declared again.
    connection.declared_entities.clear()
    publish(connection, 2, queue)
    assert queue.queue_declare(passive=True).message_count == 1


def test_direct_exchange_of_one_process_routes_by_bindings_of_another(
    shared: InProcessBroker, name: str
) -> None:
    exchange = Exchange(f"{name}-x", "direct")
    with Connection(url_of(shared)) as one, Connection(url_of(shared)) as two:
        producer = Producer(two.default_channel, exchange)
        producer.publish("nobody", routing_key="red")
        Queue(f"{name}-red", exchange, "red")(one.default_channel).declare()
        Queue(f"{name}-both", exchange, "red")(one.default_channel).declare()
        Queue(f"{name}-both", exchange, "blue")(one.default_channel).declare()
        producer.publish("r", routing_key="red")
        producer.publish("b", routing_key="blue")
        with consuming(one, Queue(f"{name}-red", exchange, "red")) as red:
            assert red.wait() == ["r"]
            assert red.stays_as_it_is()
            red.messages[0].ack()
        with consuming(one, Queue(f"{name}-both", exchange, "blue")) as both:
            assert sorted(both.wait(2)) == ["b", "r"]
            for message in both.messages:
                message.ack()


def test_topic_exchange(connection: Connection, name: str) -> None:
    exchange = Exchange(f"{name}-x", "topic")
    orders = Queue(f"{name}-orders", exchange, "orders.#")
    everything = Queue(f"{name}-all", exchange, "*.eu")
    for queue in (orders, everything):
        queue(connection.default_channel).declare()
    producer = Producer(connection.default_channel, exchange)
    for key in ("orders.eu", "orders.us.new", "mails.eu"):
        producer.publish(key, routing_key=key)
    with consuming(connection, orders, no_ack=True) as inbox:
        assert sorted(inbox.wait(2)) == ["orders.eu", "orders.us.new"]
    with consuming(connection, everything, no_ack=True) as inbox:
        assert sorted(inbox.wait(2)) == ["mails.eu", "orders.eu"]


def test_fanout_reaches_durable_and_transient_queues_from_their_binding_on(
    shared: InProcessBroker, connection: Connection, name: str
) -> None:
    exchange = Exchange(f"{name}-x", "fanout")
    kept = Queue(f"{name}-kept", exchange)
    own = [Queue(f"{name}-own-{number}", exchange, exclusive=True, auto_delete=True) for number in range(2)]
    producer = Producer(connection.default_channel, exchange)
    producer.publish("too early")
    with (
        Connection(url_of(shared)) as other,
        consuming(connection, kept, no_ack=True) as durable,
        consuming(connection, own[0], no_ack=True) as first,
        consuming(other, own[1], no_ack=True) as second,
    ):
        producer.publish("hello")
        assert (durable.wait(), first.wait(), second.wait()) == (["hello"], ["hello"], ["hello"])
    assert not {each for each in topics(shared) if each.startswith(f"{name}-own")}


def test_transient_queue_keeps_what_came_between_its_declaration_and_its_consumer(
    connection: Connection, name: str
) -> None:
    exchange = Exchange(f"{name}-x", "direct", durable=False)
    reply = Queue(f"{name}-reply", exchange, name, auto_delete=True, durable=False)
    reply(connection.default_channel).declare()
    producer = Producer(connection.default_channel, exchange)
    producer.publish("for another", routing_key="other")
    producer.publish("answer", routing_key=name)
    with consuming(connection, reply, no_ack=True) as inbox:
        assert inbox.wait() == ["answer"]
        assert inbox.stays_as_it_is()


def test_transient_queue_is_reached_by_its_name(connection: Connection, name: str) -> None:
    queue = Queue(name, exclusive=True, auto_delete=True)
    with consuming(connection, queue) as inbox:
        Producer(connection.default_channel).publish("direct", routing_key=name)
        assert inbox.wait() == ["direct"]
        inbox.messages[0].requeue()
        inbox.wait(2)
        inbox.messages[1].ack()
        assert inbox.stays_as_it_is()


def test_message_for_a_queue_that_does_not_exist_is_dropped_and_creates_nothing(
    shared: InProcessBroker, connection: Connection, name: str
) -> None:
    Producer(connection.default_channel).publish("lost", exchange=f"{name}-none", routing_key="k")
    Producer(connection.default_channel).publish("lost", routing_key=name)
    assert not {each for each in topics(shared) if each.startswith(name)}
    with pytest.raises(ChannelError), consuming(connection, Queue(name, no_declare=True)):
        pass


def test_exchange_of_another_type_is_refused(shared: InProcessBroker, name: str) -> None:
    with Connection(url_of(shared)) as one, Connection(url_of(shared)) as two:
        Exchange(name, "direct")(one.default_channel).declare()
        with pytest.raises(ChannelError, match="type direct"):
            Exchange(name, "fanout")(two.default_channel).declare()


def test_virtual_hosts_do_not_meet(shared: InProcessBroker, connection: Connection, name: str) -> None:
    with Connection(f"tidemill://{shared.bootstrap}/staging") as staging:
        publish(staging, "staging", Queue(name))
        publish(connection, "production", Queue(name))
        with consuming(connection, Queue(name), no_ack=True) as inbox:
            assert inbox.wait() == ["production"]
            assert inbox.stays_as_it_is()
    assert f"staging.{name}" in topics(shared)


# -- bad input -----------------------------------------------------------------------------------------------


def test_foreign_records_are_rejected_with_a_line_in_the_log_each(
    shared: InProcessBroker, connection: Connection, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(name)
    queue(connection.default_channel).declare()
    for value in ("not json", json.dumps({"properties": 3})):
        shared.produce(name, value)
    publish(connection, "fine", queue)
    with caplog.at_level(logging.ERROR, "tidemill.celery"), consuming(connection, queue) as inbox:
        assert inbox.wait() == ["fine"]
        inbox.messages[0].ack()
        assert inbox.stays_as_it_is()
    assert len([each for each in caplog.records if "not a message of kombu" in each.message]) == 2


def test_queue_name_of_300_characters(connection: Connection, name: str) -> None:
    long_names = [name + character * 300 for character in "ab"]
    for long_name in long_names:
        publish(connection, long_name, Queue(long_name))
    for long_name in long_names:
        with consuming(connection, Queue(long_name), no_ack=True) as inbox:
            assert inbox.wait() == [long_name]


def test_message_larger_than_the_topic_allows_is_refused_at_once_and_the_next_one_is_not(
    connection: Connection, name: str
) -> None:
    queue = Queue(name)
    retry_policy = {"max_retries": 3, "interval_start": 60}
    with pytest.raises((ChannelError, OperationalError), match=r"max\.message\.bytes"):
        publish(connection, "x" * 2_000_000, queue, retry=True, retry_policy=retry_policy)
    publish(connection, "small", queue)
    with consuming(connection, queue, no_ack=True) as inbox:
        assert inbox.wait() == ["small"]


def test_broker_that_cannot_be_reached_is_a_connection_error() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        connection = Connection(f"tidemill://127.0.0.1:{held.getsockname()[1]}//")
        with pytest.raises(connection.recoverable_connection_errors):
            connection.connect()
        with pytest.raises(OperationalError):
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"security_protocol": "TLS"}, "security.protocol"),
        ({"sasl_kerberos_keytab": "x"}, "Kerberos"),
        ({"priority_steps": [12]}, "priority_steps"),
    ],
)
def test_wrong_options_are_named(shared: InProcessBroker, options: dict[str, Any], text: str) -> None:
    connection = Connection(url_of(shared), transport_options=options)
    with pytest.raises(connection.connection_errors, match=text):
        connection.connect()
