"""A plain socket that speaks frames, and the few requests that nearly every test needs.

Everything has a limit: a broker that does not answer is a failed test, not a hanging one.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import uuid
from collections.abc import Sequence
from typing import Any

from tests.brokers import RunningBroker, eventually
from tests.wire import batches, messages

LIMIT_S = 30.0
FETCH_VERSION = 12
PRODUCE_VERSION = 9


class ConnectionClosedError(Exception):
    """The broker closed the connection."""


class Connection:
    """One connection. `opened` counts them all, to hold the broker's log against it."""

    opened = 0

    def __init__(self, broker: RunningBroker, limit_s: float = LIMIT_S) -> None:
        self.socket = broker.connect(limit_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0
        Connection.opened += 1

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Closes with RST instead of FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as gone:
            raise ConnectionClosedError(str(gone)) from None

    def _receive(self, size: int) -> bytes:
        chunks = []
        while size:
            try:
                chunk = self.socket.recv(min(size, 1 << 20))
            except ConnectionResetError as gone:
                raise ConnectionClosedError(str(gone)) from None
            if not chunk:
                raise ConnectionClosedError("end of stream")
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._receive(4))
        assert 4 <= size < 1 << 30, f"a response of {size} bytes"
        return self._receive(size)

    def is_closed(self, limit_s: float = LIMIT_S) -> bool:
        """True when the broker closes within the limit; False when it answers or stays silent."""
        self.socket.settimeout(limit_s)
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(LIMIT_S)

    def answer_or_close(self) -> bytes | None:
        """A response's payload, or None when the broker closed; silence fails."""
        with contextlib.suppress(ConnectionClosedError):
            return self.receive_frame()
        return None

    def start(self, api: str, version: int, **fields: Any) -> int:
        """Sends without waiting and returns the correlation id."""
        self._correlation_id += 1
        self.send(messages.request(api, version, self._correlation_id, **fields))
        return self._correlation_id

    def finish(self, api: str, version: int, correlation_id: int) -> Any:
        got, body = messages.read_response(api, version, self.receive_frame())
        assert got == correlation_id, "an answer to another request"
        return body

    def request(self, api: str, version: int, **fields: Any) -> Any:
        return self.finish(api, version, self.start(api, version, **fields))

    def create_topic(
        self, topic: str, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> uuid.UUID:
        """Creates it, waits until it has leaders and returns its id."""
        entries = [{"name": name, "value": value} for name, value in (configs or {}).items()]
        new = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "configs": entries}
        created = self.request("create_topics", 7, topics=[new], timeout=20_000)
        assert created.topics[0].error_code == 0, created.topics[0]

        def is_led() -> bool:
            return all(self.list_offset(topic, -1, index).error_code == 0 for index in range(partitions))

        eventually(is_led, f"leaders of {topic}")
        topic_id = created.topics[0].topic_id
        assert isinstance(topic_id, uuid.UUID)
        return topic_id

    def metadata(self, topic: str, create: bool = False) -> Any:
        response = self.request("metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=create)
        return response.topics[0]

    def produce(
        self,
        topic: str,
        batch: bytes | None,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int = PRODUCE_VERSION,
    ) -> Any:
        """The partition's part of the response."""
        response = self.request("produce", version, **produce_fields(topic, batch, partition, acks))
        return response.responses[0].partition_responses[0]

    def fetch(
        self, topic: str, offset: int, *, partition: int = 0, version: int = FETCH_VERSION, **options: Any
    ) -> Any:
        """The partition's part of the response."""
        response = self.request(
            "fetch", version, **fetch_fields(topic, offset, partition=partition, **options)
        )
        assert response.error_code == 0, response.error_code
        return response.responses[0].partitions[0]

    def read(self, topic: str, offset: int, *, partition: int = 0) -> list[batches.Batch]:
        """Whole batches from `offset`, checked, as far as one fetch gives them."""
        fetched = self.fetch(topic, offset, partition=partition)
        assert fetched.error_code == 0, fetched.error_code
        return batches.parse_fetched(bytes(fetched.records or b""))

    def end_offset(self, topic: str, partition: int = 0) -> int:
        return int(self.list_offset(topic, -1, partition).offset)

    def list_offset(self, topic: str, timestamp: int, partition: int = 0, version: int = 7) -> Any:
        asked = {"partition_index": partition, "timestamp": timestamp}
        response = self.request(
            "list_offsets", version, replica_id=-1, topics=[{"name": topic, "partitions": [asked]}]
        )
        return response.topics[0].partitions[0]


def produce_fields(topic: str, batch: bytes | None, partition: int = 0, acks: int = -1) -> dict[str, Any]:
    data = [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}]
    return {"acks": acks, "timeout": 20_000, "topic_data": data}


def fetch_fields(
    topic: str,
    offset: int,
    *,
    partition: int = 0,
    max_wait: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50_000_000,
    partition_max_bytes: int = 50_000_000,
    leader_epoch: int = -1,
    session_id: int = 0,
    session_epoch: int = -1,
) -> dict[str, Any]:
    """By topic name: up to v12."""
    wanted = {
        "partition": partition,
        "fetch_offset": offset,
        "partition_max_bytes": partition_max_bytes,
        "current_leader_epoch": leader_epoch,
    }
    return {
        "replica_id": -1,
        "max_wait": max_wait,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "session_id": session_id,
        "session_epoch": session_epoch,
        "topics": [{"topic": topic, "partitions": [wanted]}],
    }


def read_all(
    broker: RunningBroker, topic: str, partition: int = 0, offset: int | None = None
) -> list[batches.Batch]:
    """Every batch up to the end of the log, from its start unless an offset is given."""
    found: list[batches.Batch] = []
    with Connection(broker) as connection:
        if offset is None:
            offset = int(connection.list_offset(topic, -2, partition).offset)
        end = connection.end_offset(topic, partition)
        while offset < end:
            more = connection.read(topic, offset, partition=partition)
            assert more, f"nothing at offset {offset} of {topic}-{partition}, which ends at {end}"
            found += more
            offset = more[-1].last_offset + 1
    return found


def open_many(broker: RunningBroker, count: int) -> Sequence[Connection]:
    return [Connection(broker) for _ in range(count)]
