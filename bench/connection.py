"""A blocking connection that sends prepared frames, and the administrative calls on top of it."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from bench import frames
from bench.endpoints import Endpoint

TIMEOUT_S = 60.0
READY_TIMEOUT_S = 180.0
# Unknown topic, leader not available, not the leader: errors of a topic just after its creation.
_NOT_YET = {3, 5, 6}


class RequestFailedError(Exception):
    """The broker returned an error code."""


class Connection:
    def __init__(self, bootstrap: str, timeout_s: float = TIMEOUT_S) -> None:
        self.socket = Endpoint.parse(bootstrap).connect(timeout_s)
        self._buffer = bytearray(1 << 16)
        self._correlation_id = 0

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, frame: bytearray) -> None:
        self._correlation_id += 1
        self.socket.sendall(frames.stamp(frame, self._correlation_id))

    def receive(self) -> memoryview:
        """The next response without its length; valid until the next call."""
        view = memoryview(self._buffer)
        self._fill(view[:4])
        (length,) = struct.unpack_from(">i", view)
        if length > len(self._buffer):
            self._buffer = bytearray(length)
            view = memoryview(self._buffer)
        self._fill(view[:length])
        return view[:length]

    def call(self, frame: bytearray) -> memoryview:
        self.send(frame)
        return self.receive()

    def _fill(self, view: memoryview) -> None:
        filled = 0
        while filled < len(view):
            count = self.socket.recv_into(view[filled:])
            if not count:
                raise ConnectionError("the broker closed the connection")
            filled += count


def log_end_offsets(connection: Connection, topic: str, partitions: int) -> list[tuple[int, int]]:
    """(error code, log end offset) of each partition."""
    return frames.listed_offsets(connection.call(frames.list_offsets_request(topic, partitions)))


def create_topics(
    bootstrap: str, topics: Sequence[str], partitions: int = 1, configs: Mapping[str, str] | None = None
) -> None:
    """Create topics and wait until every partition responds."""
    create_topics_only(bootstrap, topics, partitions, configs or {})
    await_topics(bootstrap, topics, partitions)


def create_topics_only(
    bootstrap: str,
    topics: Sequence[str],
    partitions: int,
    configs: Mapping[str, str],
    *,
    replication_factor: int = 1,
) -> None:
    request = frames.create_topics_request(topics, partitions, configs, replication_factor)
    with Connection(bootstrap) as connection:
        failed = {
            name: code for name, code in frames.created_topics(connection.call(request)).items() if code
        }
    if failed:
        raise RequestFailedError(f"CreateTopics: error codes {failed}")


def await_topics(bootstrap: str, topics: Sequence[str], partitions: int) -> None:
    """Wait until every partition responds."""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    with Connection(bootstrap) as connection:
        for topic in topics:
            while errors := {error for error, _ in log_end_offsets(connection, topic, partitions) if error}:
                if not errors <= _NOT_YET or time.monotonic() > deadline_s:
                    raise RequestFailedError(f"topic {topic} is not ready: error codes {sorted(errors)}")
                time.sleep(0.002)


def delete_topics(bootstrap: str, topics: Sequence[str]) -> None:
    with Connection(bootstrap) as connection:
        connection.call(frames.delete_topics_request(topics))


def answers_api_versions(bootstrap: str) -> bool:
    try:
        with Connection(bootstrap, timeout_s=5) as connection:
            return frames.api_versions_error(connection.call(frames.api_versions_request())) == 0
    except OSError:
        return False
