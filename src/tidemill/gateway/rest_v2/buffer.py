"""`Buffer`: the records between a consumer and its caller's answers, and what the caller has got so far.

A record is in one of three places: it waits; it is in the one answer that is being sent (a `Batch`); or it was
answered. Only answered records count for a commit. An answer that did not reach its caller is given back, and its
records wait again, before all others and in their order. So a broken connection is harmless.

A partition that is revoked, sought or unassigned is forgotten here, and an answer that was under way at that time
changes nothing for it any more. Without I/O and without locks: it belongs to its instance's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import Message

from tidemill.claims.claim import CLAIM_VALUE, Place, claimed_bytes
from tidemill.gateway.problems import Problem
from tidemill.types import TopicPartition

# What a record costs beside its key and value, so that tombstones are not free.
_RECORD_BYTES = 1
RECORDS_MAX = 10_000


@dataclass(frozen=True)
class Batch:
    """The records of one answer, and the answer's text."""

    messages: tuple[Message, ...]
    body: bytes
    epochs: Mapping[TopicPartition, int]


class Buffer:
    def __init__(self) -> None:
        self._waiting: deque[Message] = deque()
        self._waiting_bytes = 0
        # Counts up when a partition's position moves by other means than reading.
        self._epochs: dict[TopicPartition, int] = {}
        self._answered: dict[TopicPartition, int] = {}

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def add(self, message: Message) -> None:
        self._waiting.append(message)
        self._waiting_bytes += size_of(message)

    def take(self, bytes_max: int, encode: Callable[[Message], bytes]) -> Batch:
        """The next records: at least one, though it be larger than `bytes_max`.

        A record that `encode` refuses ends the batch before it. When it is the first, the refusal is raised, and the
        record stays.
        """
        taken: list[Message] = []
        texts: list[bytes] = []
        taken_bytes = 0
        for message in self._waiting:
            record_bytes = size_of(message)
            if taken and (taken_bytes + record_bytes > bytes_max or len(taken) >= RECORDS_MAX):
                break
            try:
                texts.append(encode(message))
            except Problem:
                if not taken:
                    raise
                break
            taken.append(message)
            taken_bytes += record_bytes
        for _ in taken:
            self._waiting.popleft()
        self._waiting_bytes -= taken_bytes
        epochs = {partition: self._epochs.get(partition, 0) for partition in map(partition_of, taken)}
        return Batch(tuple(taken), b"[" + b",".join(texts) + b"]", epochs)

    def give_back(self, batch: Batch) -> None:
        current = [message for message in batch.messages if self._is_current(batch, partition_of(message))]
        self._waiting.extendleft(reversed(current))
        self._waiting_bytes += sum(map(size_of, current))

    def confirm(self, batch: Batch) -> None:
        for message in batch.messages:
            partition = partition_of(message)
            if self._is_current(batch, partition):
                self._answered[partition] = _offset_of(message) + 1

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        for partition in gone:
            self._epochs[partition] = self._epochs.get(partition, 0) + 1
            self._answered.pop(partition, None)
        self._waiting = deque(message for message in self._waiting if partition_of(message) not in gone)
        self._waiting_bytes = sum(map(size_of, self._waiting))

    def answered(self) -> dict[TopicPartition, int]:
        """Returns, for each partition, the offset after the last record that the caller has got."""
        return dict(self._answered)

    def first_waiting(self, partition: TopicPartition) -> int | None:
        return next((_offset_of(m) for m in self._waiting if partition_of(m) == partition), None)

    def _is_current(self, batch: Batch, partition: TopicPartition) -> bool:
        return batch.epochs[partition] == self._epochs.get(partition, 0)


def partition_of(message: Message) -> TopicPartition:
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return TopicPartition(topic, partition)


def size_of(message: Message) -> int:
    """With the payload of a claim, which the answer will have."""
    value = message.value()
    if value == CLAIM_VALUE and (headers := message.headers()):
        place = Place(*partition_of(message), _offset_of(message))
        payload_bytes = claimed_bytes(value, headers, place)  # type: ignore[arg-type]
    else:
        payload_bytes = len(value or b"")
    return len(message.key() or b"") + payload_bytes + _RECORD_BYTES


def _offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
