"""The two shapes that everything which decides has.

A *protocol machine* (Raft, partition leader, partition follower) is stepped with events and answers with
effects. A *replicated machine* (controller, groups, transactions) turns a request into records and a reply;
the runtime around it (`coordinator/shard.py`, `broker/quorum/driver.py`) makes the records durable and feeds them back
through `replay`, which alone changes state.
Neither sees a clock, a socket, a file or a random number: whoever drives it passes those in, so that a whole
cluster can run in one process on virtual time and be replayed from a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Event = TypeVar("Event", contravariant=True)
Effect = TypeVar("Effect", covariant=True)
Record = TypeVar("Record")
Reply = TypeVar("Reply")


class ProtocolMachine(Protocol[Event, Effect]):
    """`step` is called with every event and whenever `deadline_ms` has passed."""

    @property
    def deadline_ms(self) -> int | None: ...

    def step(self, event: Event, now_ms: int) -> Sequence[Effect]: ...


@dataclass(frozen=True, slots=True)
class Decision(Generic[Record, Reply]):
    """What a replicated machine wants written, and what the caller hears once it is committed."""

    records: Sequence[Record]
    reply: Reply
