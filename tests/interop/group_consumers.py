"""Members of groups, whichever library is underneath: one consumer, driven by the thread that polls it.

`GroupConsumer` is the library; `GroupListener` hears what it is given, gives up and reads, in the order in which it
happened, always from inside a call of the consumer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from tests.interop.clients import Received
from tidemill.types import TopicPartition

CLASSIC, CONSUMER = "classic", "consumer"


class Position(NamedTuple):
    offset: int
    metadata: str = ""


@dataclass(frozen=True)
class MemberSettings:
    group: str
    topics: tuple[str, ...] = ()
    # A regular expression, instead of names.
    pattern: str | None = None
    assignor: str | None = None
    instance_id: str | None = None
    auto_commit_ms: int | None = None
    session_timeout_ms: int = 6_000
    heartbeat_interval_ms: int = 200
    max_poll_interval_ms: int | None = None
    metadata_max_age_ms: int = 300_000
    request_timeout_ms: int | None = None
    reset: str = "earliest"


class GroupListener:
    """Does nothing; override what you want to know."""

    def assigned(self, partitions: Iterable[TopicPartition], generation: int | None) -> None: ...

    def revoked(self, partitions: Iterable[TopicPartition]) -> None: ...

    def lost(self, partitions: Iterable[TopicPartition]) -> None: ...

    def received(self, topic: str, record: Received, generation: int | None) -> None: ...


class GroupConsumer(ABC):
    """One member. Every method is called by one and the same thread."""

    name: ClassVar[str]
    protocol: ClassVar[str] = CLASSIC
    assignors: ClassVar[tuple[str, ...]]

    def __init__(self, bootstrap: str, settings: MemberSettings, listener: GroupListener) -> None:
        self.bootstrap = bootstrap
        self.settings = settings
        self.listener = listener

    @abstractmethod
    def poll(self, limit_s: float, records_max: int = 100) -> None:
        """Lets the library work and hands over what came. A refusal is a `ClientError`."""

    @abstractmethod
    def assignment(self) -> set[TopicPartition]: ...

    @abstractmethod
    def commit(self, offsets: Mapping[TopicPartition, Position] | None = None) -> None:
        """Synchronous; of everything that was handed over when nothing is named."""

    @abstractmethod
    def commit_async(self, offsets: Mapping[TopicPartition, Position] | None = None) -> None: ...

    @abstractmethod
    def committed(self, partition: TopicPartition) -> Position | None: ...

    @abstractmethod
    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    @abstractmethod
    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int: ...

    @abstractmethod
    def close(self) -> None:
        """Leaves the group, unless the member is static."""
