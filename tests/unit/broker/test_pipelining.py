"""Many requests in flight on one connection: every one is answered, in order, on both loops."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.broker.node_client import Client, group_config
from tests.unit.broker.scripted_peer import run_in
from tests.wire import batches, messages
from tests.wire.connection import fetch_fields, produce_fields
from tidemill.broker.node import Node

REQUESTS = 30_000
REQUESTS_LONG = 100_000
# Of these many fit the buffer, so that the limit of replies is reached first.
SMALLEST = 20_000
# Some seconds, on a machine that has nothing else to do. `sendall` takes it as the time for all of its bytes.
LIMIT_S = 600.0
TOPIC = "pipelined"
RECEIVE_BYTES = 1 << 18

# The loop that `serve` runs; `make long` has asyncio's own.
pytestmark = pytest.mark.parametrize("loop_name", ["uvloop", pytest.param("asyncio", marks=pytest.mark.long)])


def mixed_requests() -> list[bytes]:
    """A frame of each kind: small and large, answered at once, later, and not before the one ahead is answered."""
    one_partition = [{"partition_index": 0, "timestamp": -1}]
    return [
        messages.request("api_versions", 0),
        messages.request("produce", 9, **produce_fields(TOPIC, batches.encode([b"x"]))),
        messages.request("metadata", 12, topics=[{"name": TOPIC}]),
        messages.request("fetch", 12, **fetch_fields(TOPIC, 0, partition_max_bytes=200)),
        messages.request(
            "list_offsets", 7, replica_id=-1, topics=[{"name": TOPIC, "partitions": one_partition}]
        ),
        messages.request("produce", 9, **produce_fields(TOPIC, batches.encode([b"y" * 300]), acks=1)),
        messages.request("find_coordinator", 1, key="nobody"),
        messages.request("describe_cluster", 1),
        messages.request("heartbeat", 1, group_id="nobody", generation_id=1, member_id="nobody"),
        # Larger than the buffer that a connection begins with.
        messages.request("produce", 9, **produce_fields(TOPIC, batches.encode([b"z" * 3000]))),
    ]


def numbered(frames: list[bytes], count: int) -> bytes:
    """`count` of them in one stretch, in turn, each with its place as correlation id."""
    stretch = bytearray()
    for number in range(count):
        position = len(stretch)
        stretch += frames[number % len(frames)]
        struct.pack_into(">i", stretch, position + 8, number)
    return bytes(stretch)


def correlation_ids(sock: socket.socket, count: int) -> Iterator[int]:
    received = bytearray()
    while count:
        chunk = sock.recv(RECEIVE_BYTES)
        assert chunk, f"the connection ended {count} answers too early"
        received += chunk
        position = 0
        while len(received) - position >= 8:
            size, number = struct.unpack_from(">ii", received, position)
            if len(received) - position < 4 + size:
                break
            position += 4 + size
            count -= 1
            yield number
        del received[:position]


def exchange(port: int, requests: bytes, count: int) -> list[int]:
    """Sends everything while another thread takes the answers."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as sock:
        sender = threading.Thread(target=sock.sendall, args=(requests,))
        sender.start()
        answered = list(correlation_ids(sock, count))
        sender.join()
    return answered


async def with_topic(tmp_path: Path) -> tuple[Node, int]:
    node = Node(group_config(tmp_path))
    await node.start()
    port = node.addresses[0][1]
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    await client.ask("create_topics", 7, topics=[{"name": TOPIC, "num_partitions": 1}], timeout=20_000)
    await client.close()
    return node, port


@pytest.mark.parametrize(
    ("frames", "count"),
    [
        (mixed_requests(), REQUESTS),
        pytest.param(mixed_requests(), REQUESTS_LONG, marks=pytest.mark.long),
        (mixed_requests()[:1], SMALLEST),
    ],
    ids=["mixed", "mixed-long", "smallest"],
)
def test_pipelined_requests_are_answered_in_order(
    loop_name: str, frames: list[bytes], count: int, tmp_path: Path
) -> None:
    async def scenario() -> None:
        node, port = await with_topic(tmp_path)
        try:
            answered = await asyncio.to_thread(exchange, port, numbered(frames, count), count)
        finally:
            await node.stop()
        assert answered == list(range(count))

    run_in(loop_name, scenario(), LIMIT_S)


def test_more_requests_than_may_wait_are_answered_behind_a_delayed_fetch(
    loop_name: str, tmp_path: Path
) -> None:
    count = 5_000

    async def scenario() -> None:
        node, port = await with_topic(tmp_path)
        parked = messages.request("fetch", 12, **fetch_fields(TOPIC, 0, max_wait=200))
        frames = [parked, *[messages.request("api_versions", 0)] * (count - 1)]
        try:
            answered = await asyncio.to_thread(exchange, port, numbered(frames, count), count)
        finally:
            await node.stop()
        assert answered == list(range(count))

    run_in(loop_name, scenario())
