"""Too many, too slow, too idle: each costs the client that does it, and no other."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.brokers import Broker, RunningBroker, eventually, raise_descriptor_limit
from tests.wire import health
from tests.wire.batches import encode
from tests.wire.connection import Connection, ConnectionClosedError, fetch_fields, produce_fields
from tests.wire.messages import frame, request, request_body, request_header

SILENT = int(os.environ.get("TIDEMILL_SILENT_CONNECTIONS", "2000"))
MEMBER_ID_REQUIRED = 79
NO_COORDINATOR_YET = (14, 15, 16)
VALUE = b"x" * 1_000_000


@pytest.fixture
def large(connection: Connection, topic: str) -> str:
    """A topic of 20 MB."""
    connection.create_topic(topic)
    for _ in range(20):
        assert connection.produce(topic, encode([VALUE])).error_code == 0
    return topic


def test_silent_connections_do_no_harm(broker: Broker) -> None:
    """Two thousand; ten thousand with TIDEMILL_SILENT_CONNECTIONS=10000."""
    limit = raise_descriptor_limit(SILENT * 2 + 1000)
    assert limit > SILENT + 200, f"this machine allows {limit} open files; needs more than {SILENT + 200}"
    descriptors = broker.open_files()
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(Connection(broker)) for _ in range(SILENT)]
        health.assert_serves(broker)
        assert silent[0].request("api_versions", 0).error_code == 0
        assert silent[-1].request("api_versions", 0).error_code == 0
    health.assert_descriptors_return_to(broker, descriptors)


def test_slow_readers_do_not_starve_others(target: RunningBroker, large: str) -> None:
    """Ten readers ask for 200 MB each and take it a byte at a time. Others are served, memory is bounded."""
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(Connection(target)) for _ in range(10)]
        for reader in slow:
            for _ in range(10):
                reader.start("fetch", 12, **fetch_fields(large, 0))
        before = health.snapshot(target)
        for _ in range(50):
            for reader in slow:
                assert len(reader.socket.recv(1)) == 1
        health.assert_healthy(target, before)


def test_a_slow_reader_gets_everything_in_the_end(target: RunningBroker, large: str) -> None:
    with Connection(target) as reader:
        numbers = [reader.start("fetch", 12, **fetch_fields(large, 0)) for _ in range(3)]
        health.assert_serves(target)
        for number in numbers:
            body = reader.finish("fetch", 12, number)
            assert len(bytes(body.responses[0].partitions[0].records)) > 20 * len(VALUE)


def test_a_sender_that_does_not_read_its_answers(target: RunningBroker, topic: str) -> None:
    """Thousands of requests in, not one answer read: the broker stops reading before its memory fills."""
    with Connection(target) as setup:
        setup.create_topic(topic, partitions=50)
    with Connection(target) as deaf:
        deaf.socket.settimeout(1)
        requests = b"".join(_metadata_requests(topic, 200))
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 30_000_000:
                sent += deaf.socket.send(requests)
        health.assert_serves(target)


def _metadata_requests(topic: str, count: int) -> list[bytes]:
    return [request("metadata", 12, number, topics=[{"name": topic}]) for number in range(count)]


def test_many_large_produces_at_once(target: RunningBroker, topic: str) -> None:
    """Thirty connections send a megabyte each, half of it first, all together."""
    with Connection(target) as setup:
        setup.create_topic(topic)
    frame = request("produce", 9, **produce_fields(topic, encode([VALUE])))
    with contextlib.ExitStack() as stack:
        senders = [stack.enter_context(Connection(target)) for _ in range(30)]
        for sender in senders:
            sender.send(frame[: len(frame) // 2])
        health.assert_serves(target)
        for sender in senders:
            sender.send(frame[len(frame) // 2 :])
        offsets = [
            sender.finish("produce", 9, 1).responses[0].partition_responses[0].base_offset
            for sender in senders
        ]
    assert sorted(offsets) == list(range(30))


def test_a_larger_request_than_allowed_is_refused(start: Callable[..., Broker], topic: str) -> None:
    broker = start({"socket.request.max.bytes": "100000"})
    with Connection(broker) as connection:
        connection.create_topic(topic)
        assert connection.produce(topic, encode([b"x" * 90_000])).error_code == 0
    with Connection(broker) as connection:
        with contextlib.suppress(ConnectionClosedError):
            connection.start("produce", 9, **produce_fields(topic, encode([b"x" * 110_000])))
        assert connection.answer_or_close() is None
    health.assert_serves(broker)


def test_idle_connections_are_closed(start: Callable[..., Broker]) -> None:
    broker = start({"connections.max.idle.ms": "2000"})
    with Connection(broker) as silent, Connection(broker) as spoke:
        assert spoke.request("api_versions", 0).error_code == 0
        assert silent.is_closed()
        assert spoke.is_closed()
    health.assert_serves(broker)


def test_a_busy_connection_is_not_idle(start: Callable[..., Broker], topic: str) -> None:
    """Requests in between keep a connection open for several times the limit."""
    broker = start({"connections.max.idle.ms": "3000"})
    with Connection(broker) as busy, Connection(broker) as silent:
        busy.create_topic(topic)
        closed = threading.Event()

        def watch() -> None:
            if silent.is_closed():
                closed.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        while not closed.is_set():
            busy.fetch(topic, 0, max_wait=100)
        for _ in range(10):
            busy.fetch(topic, 0, max_wait=100)
        watcher.join()


def test_no_more_connections_than_allowed(start: Callable[..., Broker]) -> None:
    """Of thirty, at most ten are served at a time; when those leave, others are."""
    broker = start({"max.connections": "10"})
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(Connection(broker)) for _ in range(30)]
        assert 1 <= sum(_is_answered(connection) for connection in opened) <= 10
    eventually(lambda: _is_served(broker), "a connection after the others left")


def _is_answered(connection: Connection) -> bool:
    """Not when the broker closes, nor when it lets the connection wait."""
    connection.socket.settimeout(0.2)
    try:
        return bool(connection.request("api_versions", 0).error_code == 0)
    except (ConnectionClosedError, TimeoutError):
        return False


def _is_served(broker: Broker) -> bool:
    try:
        health.assert_serves(broker)
    except (ConnectionClosedError, OSError):
        return False
    return True


REPEATED: dict[str, tuple[int, dict[str, Any], str]] = {
    "describe_configs": (4, {"resources": [{"resource_type": 4, "resource_name": "1"}] * 20_000}, "results"),
    "describe_groups": (5, {"groups": ["a group"] * 20_000}, "groups"),
    "consumer_group_describe": (1, {"group_ids": ["a group"] * 20_000}, "groups"),
    "offset_fetch": (8, {"groups": [{"group_id": "a group", "topics": None}] * 20_000}, "groups"),
    "describe_transactions": (0, {"transactional_ids": ["an id"] * 20_000}, "transaction_states"),
    "metadata": (
        12,
        {"topics": [{"name": "no-such-topic"}] * 20_000, "allow_auto_topic_creation": False},
        "topics",
    ),
    "describe_producers": (
        0,
        {"topics": [{"name": "no-such-topic", "partition_indexes": [0]}] * 20_000},
        "topics",
    ),
}


@pytest.mark.parametrize("api", REPEATED)
def test_what_is_named_twenty_thousand_times_is_described_once(connection: Connection, api: str) -> None:
    """The configuration of a broker is 35 KB: told that often it would be 700 MB, and more of memory."""
    version, fields, field = REPEATED[api]
    assert len(getattr(connection.request(api, version, **fields), field)) == 1


@pytest.mark.parametrize("name", ["x" * 32_767, "ä" * 16_383])
@pytest.mark.parametrize("is_static", [False, True])
def test_a_member_with_the_longest_name_there_is_gets_an_id(
    connection: Connection, topic: str, name: str, is_static: bool
) -> None:
    """Its id begins with the name of the instance, or of the client, and is a string of the protocol itself."""
    fields: dict[str, Any] = {
        "group_id": topic,
        "session_timeout": 10_000,
        "rebalance_timeout": 1_000,
        "member_id": "",
        "group_instance_id": name if is_static else None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    header = request_header("join_group", 9, 1, client_id="short" if is_static else name)

    def join() -> Any:
        connection.request("find_coordinator", 6, key_type=0, coordinator_keys=[topic])
        connection.send(frame(header + request_body("join_group", 9, **fields)))
        answer = connection.finish("join_group", 9, 1)
        return None if answer.error_code in NO_COORDINATOR_YET else answer

    joined = eventually(join, "a coordinator of the group")
    assert joined.error_code in (0, MEMBER_ID_REQUIRED)
    assert joined.member_id.startswith(name[:10])


def test_a_burst_of_bad_connections_logs_one_line_each(broker: Broker) -> None:
    """A line says who was closed and why; not a line per byte, and not one per good connection."""
    before = len(broker.log().splitlines())
    for _ in range(100):
        with Connection(broker) as connection:
            connection.send(b"\xff\xff\xff\xff\xff")
            assert connection.is_closed()
    for _ in range(100):
        with Connection(broker) as connection:
            assert connection.request("api_versions", 0).error_code == 0
    lines = broker.log().splitlines()[before:]
    assert len(lines) <= 100 + 5
