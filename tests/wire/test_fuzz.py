"""Valid requests of every API with a few bytes changed. Most become nonsense, some become other valid requests.

Any answer will do, and so will a closed connection or (a fetch that now waits, a produce that now wants no ack)
silence; the health check after each test decides.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.brokers import RunningBroker
from tests.wire import messages
from tests.wire.connection import Connection, ConnectionClosedError
from tests.wire.samples import NAMES, SAMPLES, TOPIC

ROUNDS = 60
HEADER_SIZE = 8
PATIENCE_S = 0.1


def _flip(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at : at + 4] = rng.choice(
        [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", bytes(4), b"\xff\xff\xff\x07"]
    )


def _cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]
    data += b"\0"


def _insert(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.randrange(1, 9))


def _repeat(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + 16]


MUTATIONS: list[Callable[[random.Random, bytearray], None]] = [_flip, _overwrite, _cut, _insert, _repeat]


def _mutated(rng: random.Random, payload: bytes) -> bytes:
    """The api key and version stay, so that the mutation reaches the decoder."""
    body = bytearray(payload[HEADER_SIZE:])
    for _ in range(rng.randrange(1, 4)):
        rng.choice(MUTATIONS)(rng, body)
    return payload[:HEADER_SIZE] + bytes(body)


@pytest.mark.parametrize(("api", "version", "fields"), SAMPLES, ids=NAMES)
def test_a_valid_request_is_answered_and_its_mutations_do_no_harm(
    target: RunningBroker, api: str, version: int, fields: dict[str, Any]
) -> None:
    rng = random.Random(zlib.crc32(f"{api}{version}".encode()))
    payload = messages.request(api, version, **fields)[4:]
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(Connection(target))
        if connection.metadata(TOPIC).error_code:
            connection.create_topic(TOPIC)
        connection.request(api, version, **fields)
        for _ in range(ROUNDS):
            connection.socket.settimeout(PATIENCE_S)
            try:
                connection.send(messages.frame(_mutated(rng, payload)))
                connection.receive_frame()
            except (ConnectionClosedError, TimeoutError):
                connection.close()
                connection = stack.enter_context(Connection(target))
