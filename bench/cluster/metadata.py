"""The metadata of a cluster: its brokers and partitions, and topics that are ready when every leader responds."""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from bench import frames
from bench.connection import Connection, RequestFailedError, create_topics_only, delete_topics

METADATA, DESCRIBE_QUORUM = 3, 55
READY_TIMEOUT_S = 300.0
POLL_S = 0.02
_topic_numbers = itertools.count(1)


@dataclass(frozen=True)
class PartitionState:
    topic: str
    index: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True)
class Description:
    """`brokers`: id → address of those alive."""

    brokers: Mapping[int, str]
    partitions: Sequence[PartitionState]


class _Reader:
    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at

    def take(self, layout: str) -> int:
        (value,) = struct.unpack_from(">" + layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return int(value)

    def text(self) -> str:
        length = max(0, self.take("h"))
        self._at += length
        return bytes(self._data[self._at - length : self._at]).decode()

    def numbers(self) -> tuple[int, ...]:
        count = self.take("i")
        values = struct.unpack_from(f">{count}i", self._data, self._at)
        self._at += 4 * count
        return values


def metadata_request(topics: Sequence[str]) -> bytearray:
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return frames.request(METADATA, 1, struct.pack(">i", len(topics)) + names)


def described(response: memoryview) -> Description:
    """The content of a Metadata v1 response, without topics that do not exist."""
    read = _Reader(response, 4)
    brokers = {}
    for _ in range(read.take("i")):
        node_id, host, port, _ = read.take("i"), read.text(), read.take("i"), read.text()
        brokers[node_id] = f"{host}:{port}"
    read.take("i")  # the controller, which in KRaft is any broker
    partitions = []
    for _ in range(read.take("i")):
        read.take("h")
        topic = read.text()
        read.take("b")
        for _ in range(read.take("i")):
            read.take("h")
            index, leader = read.take("i"), read.take("i")
            partitions.append(PartitionState(topic, index, leader, read.numbers(), read.numbers()))
    return Description(brokers, partitions)


def describe(address: str, topics: Sequence[str]) -> Description:
    with Connection(address, timeout_s=10) as connection:
        return described(connection.call(metadata_request(topics)))


def quorum_leader_request() -> bytearray:
    """DescribeQuorum v0 of partition 0 of the metadata."""
    topic = b"__cluster_metadata"
    partitions = frames.uvarint(2) + struct.pack(">i", 0) + b"\0"
    topics = frames.uvarint(2) + frames.uvarint(len(topic) + 1) + topic + partitions + b"\0"
    return frames.request(DESCRIBE_QUORUM, 0, topics + b"\0", is_flexible=True)


def described_quorum_leader(response: memoryview) -> int:
    """The id of the active controller, of a DescribeQuorum v0 response."""
    at = 4 + 1  # correlation id, the header's tagged fields
    (error,) = struct.unpack_from(">h", response, at)
    if error:
        raise RequestFailedError(f"DescribeQuorum: error code {error}")
    _, at = frames.read_uvarint(response, at + 2)  # one topic
    name_length, at = frames.read_uvarint(response, at)
    _, at = frames.read_uvarint(response, at + name_length - 1)  # one partition
    _, error, leader = struct.unpack_from(">ihi", response, at)
    if error:
        raise RequestFailedError(f"DescribeQuorum: error code {error}")
    return int(leader)


def quorum_leader(address: str) -> int:
    with Connection(address, timeout_s=10) as connection:
        return described_quorum_leader(connection.call(quorum_leader_request()))


def list_offsets_request(partitions: Mapping[str, Collection[int]]) -> bytearray:
    """ListOffsets v1: the log end offsets of some partitions of some topics."""
    topics = b"".join(
        struct.pack(">h", len(topic))
        + topic.encode()
        + struct.pack(">i", len(indexes))
        + b"".join(struct.pack(">iq", index, frames.LATEST_TIMESTAMP) for index in indexes)
        for topic, indexes in partitions.items()
    )
    return frames.request(frames.LIST_OFFSETS, 1, struct.pack(">ii", -1, len(partitions)) + topics)


def end_offsets(response: memoryview) -> dict[tuple[str, int], tuple[int, int]]:
    """(topic, partition) → (error code, log end offset), of a ListOffsets v1 response."""
    read = _Reader(response, 4)
    found = {}
    for _ in range(read.take("i")):
        topic = read.text()
        for _ in range(read.take("i")):
            index, error = read.take("i"), read.take("h")
            read.take("q")  # timestamp
            found[topic, index] = (error, read.take("q"))
    return found


def log_end_offset_sum(address: str, topic: str) -> int:
    """The number of records in all partitions, from their leaders."""
    description = describe(address, [topic])
    total = 0
    for leader, partitions in _by_leader(description.partitions).items():
        with Connection(description.brokers[leader]) as connection:
            for error, offset in end_offsets(connection.call(list_offsets_request(partitions))).values():
                if error:
                    raise RequestFailedError(f"ListOffsets: error code {error}")
                total += offset
    return total


def leader_address(address: str, topic: str, partition: int = 0) -> str:
    description = describe(address, [topic])
    return description.brokers[next(p.leader for p in description.partitions if p.index == partition)]


def await_partitions(
    addresses: Callable[[], Sequence[str]],
    topics: Sequence[str],
    count: int,
    is_ready: Callable[[PartitionState], bool],
    timeout_s: float = READY_TIMEOUT_S,
) -> None:
    """Wait until each of `addresses` describes `count` ready partitions and their leaders answer for them."""
    deadline_s = time.monotonic() + timeout_s
    waiting = list(addresses())
    while waiting:
        missing = count
        with suppress(OSError):
            description = describe(waiting[0], topics)
            missing = count - sum(map(is_ready, description.partitions))
            if missing == 0 and _leaders_answer(description):
                waiting.pop(0)
                continue
        if time.monotonic() > deadline_s:
            raise RequestFailedError(f"{missing} of {count} partitions not ready within {timeout_s:.0f} s")
        time.sleep(POLL_S)


def is_led(partition: PartitionState) -> bool:
    return partition.leader >= 0


def is_fully_in_sync(partition: PartitionState) -> bool:
    return partition.leader >= 0 and len(partition.isr) == len(partition.replicas)


def _by_leader(partitions: Sequence[PartitionState]) -> dict[int, dict[str, list[int]]]:
    led: dict[int, dict[str, list[int]]] = {}
    for partition in partitions:
        led.setdefault(partition.leader, {}).setdefault(partition.topic, []).append(partition.index)
    return led


def _leaders_answer(description: Description) -> bool:
    for leader, partitions in _by_leader(description.partitions).items():
        if leader not in description.brokers:
            return False
        with Connection(description.brokers[leader], timeout_s=10) as connection:
            answers = end_offsets(connection.call(list_offsets_request(partitions)))
        if any(error for error, _ in answers.values()):
            return False
    return True


@contextmanager
def replicated_topic(addresses: Sequence[str], partitions: int) -> Iterator[str]:
    """A topic of three replicas of which two must be in sync, there as long as the block."""
    name = f"replicated-{next(_topic_numbers)}"
    create_replicated(addresses, [name], partitions)
    try:
        yield name
    finally:
        delete_topics(addresses[0], [name])


def create_replicated(addresses: Sequence[str], topics: Sequence[str], partitions: int) -> None:
    """Create topics and wait until every replica of every partition is in sync, as every broker sees it."""
    create_topics_only(
        addresses[0], topics, partitions, {"min.insync.replicas": "2"}, replication_factor=len(addresses)
    )
    await_partitions(lambda: addresses, topics, len(topics) * partitions, is_fully_in_sync)
