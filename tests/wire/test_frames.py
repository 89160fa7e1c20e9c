"""Bytes that are no requests: their connection is closed, and no other notices."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from typing import Any

import pytest

from tests.brokers import Broker, RunningBroker
from tests.wire import batches, health, messages
from tests.wire.connection import Connection, ConnectionClosedError, fetch_fields, produce_fields
from tests.wire.samples import NAMES, SAMPLES

UNSUPPORTED_VERSION = 35
INT32_MAX = 2**31 - 1
A_BILLION = 1_000_000_000
ARRAY_OF_A_BILLION = struct.pack(">i", A_BILLION)
COMPACT_ARRAY_OF_A_BILLION = b"\x81\x94\xeb\xdc\x03"
NULL_STRING = b"\xff\xff"
TOPIC_A = b"\x02a"


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes(target: RunningBroker, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        with Connection(target) as connection:
            try:
                connection.send(rng.randbytes(rng.choice([1, 3, 4, 5, 100, 5000])))
                connection.socket.shutdown(socket.SHUT_WR)
            except (ConnectionClosedError, OSError):
                continue
            while connection.answer_or_close() is not None:
                pass


@pytest.mark.parametrize("seed", range(3))
def test_random_payload_in_a_right_frame(target: RunningBroker, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        with Connection(target) as connection:
            connection.send(messages.frame(rng.randbytes(rng.choice([1, 7, 8, 10, 100, 5000]))))
            connection.answer_or_close()


@pytest.mark.parametrize("size", [-1, -2, -(2**31), INT32_MAX, 104_857_601])
def test_an_impossible_length_closes_the_connection(target: RunningBroker, size: int) -> None:
    with Connection(target) as connection:
        connection.send(struct.pack(">i", size) + b"some more bytes")
        assert connection.is_closed()


def test_a_length_of_zero_closes_the_connection(target: RunningBroker) -> None:
    with Connection(target) as connection:
        connection.send(struct.pack(">i", 0))
        assert connection.is_closed()


def test_a_large_length_reserves_no_memory(broker: Broker) -> None:
    """Thirty connections announce 100 MB each and send ten bytes; the health check looks at the memory."""
    before = health.snapshot(broker)
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            connection = stack.enter_context(Connection(broker))
            connection.send(struct.pack(">i", 104_857_600) + b"0123456789")
        health.assert_healthy(broker, before)


@pytest.mark.parametrize(("api", "version", "fields"), SAMPLES, ids=NAMES)
def test_a_request_that_is_cut_anywhere(
    target: RunningBroker, api: str, version: int, fields: dict[str, Any]
) -> None:
    """Framed as if it were whole. Some cuts leave a valid request; all get an answer or a closed connection."""
    payload = messages.request(api, version, **fields)[4:]
    cuts = range(len(payload)) if len(payload) < 60 else range(0, len(payload), 3)
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(Connection(target))
        for cut in cuts:
            connection.send(messages.frame(payload[:cut]))
            if connection.answer_or_close() is None:
                connection.close()
                connection = stack.enter_context(Connection(target))


def test_a_connection_that_ends_in_the_middle_of_a_frame(
    target: RunningBroker, connection: Connection
) -> None:
    whole = messages.request("produce", 9, **produce_fields(health.TOPIC, batches.encode([b"never"])))
    health.assert_serves(target)
    end = connection.end_offset(health.TOPIC)
    for cut in range(1, len(whole)):
        with Connection(target) as cut_short:
            cut_short.send(whole[:cut])
    with Connection(target) as after:
        assert after.end_offset(health.TOPIC) == end


def test_a_slow_sender_is_served_when_it_is_done(target: RunningBroker) -> None:
    """One byte at a time, while others are served."""
    health.assert_serves(target)
    whole = messages.request("metadata", 12, topics=[{"name": health.TOPIC}])
    with Connection(target) as slow:
        for position, byte in enumerate(whole):
            slow.send(bytes([byte]))
            if position % 20 == 0:
                health.assert_serves(target)
        _, body = messages.read_response("metadata", 12, slow.receive_frame())
    assert body.topics[0].error_code == 0


BILLIONS = {
    "metadata v1 topics": ("metadata", 1, ARRAY_OF_A_BILLION),
    "metadata v12 topics": ("metadata", 12, COMPACT_ARRAY_OF_A_BILLION),
    "produce v3 topics": ("produce", 3, NULL_STRING + b"\xff\xff\0\0\0\1" + ARRAY_OF_A_BILLION),
    "produce v9 topics": ("produce", 9, b"\0\xff\xff\0\0\0\1" + COMPACT_ARRAY_OF_A_BILLION),
    "produce v9 partitions": ("produce", 9, b"\0\xff\xff\0\0\0\1\x02" + TOPIC_A + COMPACT_ARRAY_OF_A_BILLION),
    "produce v9 records": (
        "produce",
        9,
        b"\0\xff\xff\0\0\0\1\x02" + TOPIC_A + b"\x02\0\0\0\0" + COMPACT_ARRAY_OF_A_BILLION,
    ),
    "fetch v4 topics": ("fetch", 4, bytes(17) + ARRAY_OF_A_BILLION),
    "fetch v12 topics": ("fetch", 12, b"\xff\xff\xff\xff" + bytes(21) + COMPACT_ARRAY_OF_A_BILLION),
    "fetch v12 partitions": (
        "fetch",
        12,
        b"\xff\xff\xff\xff" + bytes(21) + b"\x02" + TOPIC_A + COMPACT_ARRAY_OF_A_BILLION,
    ),
    "create_topics v2 topics": ("create_topics", 2, ARRAY_OF_A_BILLION),
    "create_topics v7 topics": ("create_topics", 7, COMPACT_ARRAY_OF_A_BILLION),
    "list_offsets v1 topics": ("list_offsets", 1, b"\xff\xff\xff\xff" + ARRAY_OF_A_BILLION),
    "delete_topics v6 topics": ("delete_topics", 6, COMPACT_ARRAY_OF_A_BILLION),
    "describe_configs v4 resources": ("describe_configs", 4, COMPACT_ARRAY_OF_A_BILLION),
}


@pytest.mark.parametrize("name", BILLIONS)
def test_a_billion_elements_in_a_small_request(target: RunningBroker, name: str) -> None:
    api, version, body = BILLIONS[name]
    with Connection(target) as connection:
        connection.send(messages.frame(messages.request_header(api, version, 1) + body + b"\0\0\0\0"))
        assert connection.answer_or_close() is None


@pytest.mark.parametrize("size", [-2, -(2**15), 2**15 - 1])
def test_a_wrong_length_of_the_client_id(target: RunningBroker, size: int) -> None:
    with Connection(target) as connection:
        connection.send(messages.frame(struct.pack(">hhih", 3, 1, 1, size) + b"abc"))
        assert connection.answer_or_close() is None


def test_a_null_client_id(connection: Connection) -> None:
    payload = messages.request_header("metadata", 1, 5, client_id=None) + messages.request_body("metadata", 1)
    connection.send(messages.frame(payload))
    correlation_id, body = messages.read_response("metadata", 1, connection.receive_frame())
    assert correlation_id == 5
    assert len(body.brokers) == 1


@pytest.mark.parametrize("api_key", [-1, 999, 32767, -32768])
def test_an_unknown_api_key_is_answered_or_closed(target: RunningBroker, api_key: int) -> None:
    with Connection(target) as connection:
        connection.send(messages.frame(struct.pack(">hhi", api_key, 0, 7) + NULL_STRING))
        answer = connection.answer_or_close()
        if answer is not None:
            assert struct.unpack_from(">ih", answer) == (7, UNSUPPORTED_VERSION)


@pytest.mark.parametrize("version", [-1, 99, 32767])
@pytest.mark.parametrize("api", ["produce", "fetch", "metadata", "create_topics", "list_offsets"])
def test_an_unknown_version_is_answered_or_closed(target: RunningBroker, api: str, version: int) -> None:
    with Connection(target) as connection:
        header = struct.pack(">hhi", messages.API_KEYS[api], version, 7) + NULL_STRING + b"\0"
        connection.send(messages.frame(header + bytes(30)))
        answer = connection.answer_or_close()
        if answer is not None:
            assert struct.unpack_from(">i", answer) == (7,)
            assert struct.pack(">h", UNSUPPORTED_VERSION) in answer


def test_a_thousand_pipelined_requests_are_answered_in_order(connection: Connection, topic: str) -> None:
    connection.create_topic(topic)
    kinds = []
    wire = []
    for number in range(1000):
        if number % 2:
            fields = produce_fields(topic, batches.encode([b"%d" % number]))
            kinds.append(("produce", 9))
            wire.append(messages.request("produce", 9, number, **fields))
        else:
            kinds.append(("metadata", 12))
            wire.append(messages.request("metadata", 12, number, topics=[{"name": topic}]))
    sender = threading.Thread(target=connection.send, args=(b"".join(wire),))
    sender.start()
    answers = [messages.read_response(api, version, connection.receive_frame()) for api, version in kinds]
    sender.join()
    assert [correlation_id for correlation_id, _ in answers] == list(range(1000))
    offsets = [body.responses[0].partition_responses[0].base_offset for _, body in answers[1::2]]
    assert offsets == list(range(500))


def test_what_follows_a_waiting_fetch_is_answered_after_it(connection: Connection, topic: str) -> None:
    connection.create_topic(topic)
    fetch = connection.start("fetch", 12, **fetch_fields(topic, 0, max_wait=300))
    greeting = connection.start("api_versions", 0)
    fetched = connection.finish("fetch", 12, fetch)
    assert fetched.error_code == 0
    assert connection.finish("api_versions", 0, greeting).error_code == 0


def test_a_half_closed_connection_still_gets_its_answer(target: RunningBroker) -> None:
    with Connection(target) as connection:
        number = connection.start("api_versions", 0)
        connection.socket.shutdown(socket.SHUT_WR)
        assert connection.finish("api_versions", 0, number).error_code == 0
        assert connection.is_closed()


def test_a_half_closed_connection_with_a_waiting_fetch_is_closed(target: RunningBroker, topic: str) -> None:
    with Connection(target) as connection:
        connection.create_topic(topic)
        connection.start("fetch", 12, **fetch_fields(topic, 0, max_wait=1000))
        connection.socket.shutdown(socket.SHUT_WR)
        while connection.answer_or_close() is not None:
            pass


def test_resets_in_the_middle_of_a_response(target: RunningBroker, topic: str) -> None:
    with Connection(target) as connection:
        connection.create_topic(topic, configs={"max.message.bytes": "10000000"})
        assert connection.produce(topic, batches.encode([b"x" * 8_000_000])).error_code == 0
    descriptors = target.open_files() if isinstance(target, Broker) else None
    for _ in range(40):
        with Connection(target) as rude:
            rude.start("fetch", 12, **fetch_fields(topic, 0))
            assert len(rude.socket.recv(1000)) > 0
            rude.reset()
    health.assert_descriptors_return_to(target, descriptors)
