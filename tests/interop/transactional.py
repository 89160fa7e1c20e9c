"""Transactional producers, whichever library is underneath, and readers of each isolation level."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from tidemill.types import TopicPartition

TIMEOUT_MS = 60_000
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


class FencedError(Exception):
    """The library says that another producer with the same transactional id has taken over."""


class TransactionalProducer(ABC):
    """One producer, ready for its first transaction. `FencedError` from whichever call finds out."""

    name: ClassVar[str]

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self.bootstrap = bootstrap
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, partition: TopicPartition, *values: bytes) -> None:
        """Returns when the broker has them."""

    @abstractmethod
    def send_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """A producer that was fenced closes without complaint."""

    @classmethod
    @abstractmethod
    def read(cls, bootstrap: str, partition: TopicPartition, isolation: str) -> list[bytes]:
        """Everything that a consumer of the library may read at that level, up to the given end."""
