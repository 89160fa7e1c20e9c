"""What the table of behaviours asks of a client, whichever library is underneath.

An adapter overrides what its library can do; the rest raises `GapError` with the reason that the adapter's `gaps`
gives for it, and `test_table.py` holds the two together: nothing is left out without a reason, and no reason outlives
the gap. Errors keep Kafka's own numbers (`ClientError.code`), whatever the library calls them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import ClassVar, NoReturn, Protocol

UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_CONFIG = 40
UNKNOWN_MEMBER_ID = 25
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
GROUP_SUBSCRIBED_TO_TOPIC = 86

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LIMIT_S = 30.0
Headers = tuple[tuple[str, bytes | None], ...]


class ClientError(Exception):
    """The broker's refusal, as the library reported it."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(f"{code} {message}")
        self.code = code


class GapError(Exception):
    """The library cannot do this; the message says why."""


@dataclass(frozen=True)
class Message:
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None


@dataclass(frozen=True)
class Delivery:
    partition: int
    offset: int


@dataclass(frozen=True)
class Received:
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = field(default=(), compare=False)
    timestamp_ms: int = field(default=-1, compare=False)
    is_append_time: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class GroupDescription:
    state: str
    member_count: int


class Reader(Protocol):
    def next(self, limit_s: float = LIMIT_S) -> Received:
        """The next record; fails when none comes within the limit."""
        ...


class Client:
    """One stock client against one broker. `close` leaves no socket, thread or process behind."""

    name: ClassVar[str]
    gaps: ClassVar[Mapping[str, str]] = {}

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    @classmethod
    def missing(cls) -> str | None:
        """None when the client is installed, else how to install it."""
        return None

    def close(self) -> None: ...

    def _gap(self, capability: str) -> NoReturn:
        raise GapError(f"{self.name}: {self.gaps.get(capability, 'no reason given')}")

    def brokers(self) -> set[str]:
        """`host:port` of every broker in the metadata."""
        self._gap("brokers")

    def list_topics(self) -> set[str]:
        self._gap("list_topics")

    def partitions(self, topic: str) -> set[int]:
        """Asks for metadata without creating the topic; empty when there is no such topic."""
        self._gap("partitions")

    def create_topic(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        self._gap("create_topic")

    def delete_topic(self, topic: str) -> None:
        self._gap("delete_topic")

    def create_partitions(self, topic: str, total: int) -> None:
        self._gap("create_partitions")

    def describe_configs(self, topic: str) -> dict[str, str | None]:
        self._gap("describe_configs")

    def alter_configs(self, topic: str, change: Mapping[str, str | None]) -> None:
        """Incremental: None takes an override away, what is not named stays."""
        self._gap("alter_configs")

    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """The older AlterConfigs: the named overrides replace all others."""
        self._gap("replace_configs")

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Returns the new beginning."""
        self._gap("delete_records")

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[Delivery]:
        """Sends and waits for every ack; empty when the library does not say where the records went."""
        self._gap("produce")

    def reader(
        self, topic: str, partition: int, offset: int, *, reset: str = "none", wait_ms_max: int = 500
    ) -> AbstractContextManager[Reader]:
        """Reads one partition from `offset`, without a group."""
        self._gap("reader")

    def fetch(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        with self.reader(topic, partition, offset) as reader:
            return [reader.next() for _ in range(count)]

    def beginning_offset(self, topic: str, partition: int) -> int:
        self._gap("beginning_offset")

    def end_offset(self, topic: str, partition: int) -> int:
        self._gap("end_offset")

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset whose timestamp is at or after the given one; None when there is none."""
        self._gap("offset_at")

    def offset_of_newest(self, topic: str, partition: int) -> int:
        """The offset of the record with the largest timestamp."""
        self._gap("offset_of_newest")

    def list_groups(self) -> set[str]:
        self._gap("list_groups")

    def describe_group(self, group: str) -> GroupDescription:
        """States under the names of the classic protocol, without spaces or capitals: `stable`, `empty`, `dead`."""
        self._gap("describe_group")

    def delete_group(self, group: str) -> None:
        self._gap("delete_group")

    def group_offsets(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        """(topic, partition) → (offset, metadata) of everything that is committed."""
        self._gap("group_offsets")

    def alter_group_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commits from outside of the group."""
        self._gap("alter_group_offsets")

    def delete_group_offsets(self, group: str, topic: str, partitions: Sequence[int]) -> None:
        self._gap("delete_group_offsets")
