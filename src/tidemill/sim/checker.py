"""Judges what clients saw of a broker or a cluster, in simulation, in cluster tests and in long runs alike.

A history is a list of events in the order in which they happened, all stamped by one clock. Whoever drives the clients
writes it: what producers sent and what was acknowledged, what members of groups were given, processed and committed,
what was in the logs at the end. The checker knows nothing else: no broker, no client, no file.

Each rule is a function from a history to violations, named after what it promises; `check` runs them all. A rule
judges only what the history lets it know: an acknowledged write is lost only if somebody read the log to its end
(`LogEnded`) or a group to its end (`Drained`) without it; two owners in one generation show only where clients tell
their generation.

A member owns a partition from `Assigned` to `Revoked`, which it reports *before* it lets go. One that was removed without
knowing (`Lost`) or that was killed (`Died`) owned until some time before that event, nobody knows which: it may
overlap with the next owner, for the coordinator refuses what it does under its old generation.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.types import TopicPartition

# What a violation says about the first of many of its kind; the rest are counted.
_NAMED_MAX = 3


class MessageId(NamedTuple):
    """Who sent it, and the how manieth of that producer to that partition it is. Every value carries its own."""

    producer: str
    number: int

    def __str__(self) -> str:
        return f"{self.producer}/{self.number}"


class MemberName(NamedTuple):
    group: str
    member: str

    def __str__(self) -> str:
        return f"{self.member} of {self.group}"


@dataclass(frozen=True, slots=True)
class Sent:
    """A producer handed over a message; whether it is written is open."""

    at_s: float
    message: MessageId
    is_idempotent: bool = False


@dataclass(frozen=True, slots=True)
class Acked:
    at_s: float
    message: MessageId
    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """A member of a group processed a message. `generation` is None where the client does not tell it."""

    at_s: float
    member: MemberName
    partition: TopicPartition
    offset: int
    message: MessageId
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class Assigned:
    """The member owns these partitions too, from now on."""

    at_s: float
    member: MemberName
    partitions: tuple[TopicPartition, ...]
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class Revoked:
    """The member is about to give these partitions up, in agreement with the coordinator."""

    at_s: float
    member: MemberName
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """The member learnt that these partitions are no longer its own."""

    at_s: float
    member: MemberName
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Died:
    """The member was killed: it cannot tell when it stopped to own what it had."""

    at_s: float
    member: MemberName


@dataclass(frozen=True, slots=True)
class CommitSent:
    at_s: float
    member: MemberName
    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The coordinator acknowledged the commit."""

    at_s: float
    member: MemberName
    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class Found:
    """The log holds this message at this offset."""

    at_s: float
    partition: TopicPartition
    offset: int
    message: MessageId


@dataclass(frozen=True, slots=True)
class LogEnded:
    """All messages of the partition were reported as `Found`."""

    at_s: float
    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class Drained:
    """The group has reached the end of all partitions of its topics."""

    at_s: float
    group: str


Event = (
    Sent
    | Acked
    | Delivered
    | Assigned
    | Revoked
    | Lost
    | Died
    | CommitSent
    | Committed
    | Found
    | LogEnded
    | Drained
)
History = Sequence[Event]
Place = tuple[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def check(history: History) -> list[Violation]:
    """Everything that is wrong with a history; empty when nothing is."""
    return [Violation(rule.__name__, text) for rule in RULES for text in rule(history)]


# Logs: what was written, and where.


def no_acked_write_lost(history: History) -> Iterator[str]:
    """What was acknowledged is in the log that was read to its end, at the offset of the acknowledgement."""
    ended = {event.partition for event in history if isinstance(event, LogEnded)}
    found = {(event.partition, event.offset): event.message for event in history if isinstance(event, Found)}
    lost = [
        event
        for event in history
        if isinstance(event, Acked)
        and event.partition in ended
        and found.get((event.partition, event.offset)) != event.message
    ]
    yield from _first_of(lost, lambda event: f"{event.message} was acked at {_place(event)} and is not there")


def every_acked_write_is_delivered(history: History) -> Iterator[str]:
    """A group that has read everything has processed everything that was acknowledged, at least once."""
    delivered: defaultdict[str, set[MessageId]] = defaultdict(set)
    for event in history:
        if isinstance(event, Delivered):
            delivered[event.member.group].add(event.message)
    acked = [event for event in history if isinstance(event, Acked)]
    for drained in (event for event in history if isinstance(event, Drained)):
        got = delivered[drained.group]
        missed = [event for event in acked if event.message not in got]
        yield from _first_of(
            missed,
            lambda event, group=drained.group: (  # type: ignore[misc]
                f"{event.message}, acked at {_place(event)}, never reached group {group}"
            ),
        )


def offsets_agree(history: History) -> Iterator[str]:
    """One offset of one partition is one message, whoever says so."""
    messages: dict[Place, MessageId] = {}
    for event in history:
        if isinstance(event, Acked | Delivered | Found):
            known = messages.setdefault((event.partition, event.offset), event.message)
            if known != event.message:
                yield f"{_place(event)} is {known} and also {event.message}"


def nothing_is_invented(history: History) -> Iterator[str]:
    """What is delivered or found was sent before."""
    sent: set[MessageId] = set()
    for event in history:
        if isinstance(event, Sent):
            sent.add(event.message)
        elif isinstance(event, Acked | Delivered | Found) and event.message not in sent:
            yield f"{event.message} at {_place(event)} was never sent"


def no_duplicate_from_an_idempotent_producer(history: History) -> Iterator[str]:
    """However often an idempotent producer retried, its message has one offset."""
    idempotent = {event.message for event in history if isinstance(event, Sent) and event.is_idempotent}
    places: dict[MessageId, Place] = {}
    for event in history:
        if isinstance(event, Acked | Delivered | Found) and event.message in idempotent:
            place = (event.partition, event.offset)
            known = places.setdefault(event.message, place)
            if known != place:
                yield f"{event.message} is at {known[0]} offset {known[1]} and again at {_place(event)}"


def order_is_kept(history: History) -> Iterator[str]:
    """In a partition the messages of one producer lie in the order of their first sending."""
    idempotent = {
        event.message.producer for event in history if isinstance(event, Sent) and event.is_idempotent
    }
    placed: defaultdict[tuple[TopicPartition, str], dict[int, int]] = defaultdict(dict)
    for event in history:
        if isinstance(event, Acked | Delivered | Found) and event.message.producer in idempotent:
            numbers = placed[event.partition, event.message.producer]
            numbers.setdefault(event.offset, event.message.number)
    for (partition, producer), numbers in placed.items():
        ordered = sorted(numbers.items())
        for (offset, number), (next_offset, next_number) in itertools.pairwise(ordered):
            if next_number < number:
                yield (
                    f"{partition}: {producer}/{number} at offset {offset} comes before "
                    f"{producer}/{next_number} at offset {next_offset}"
                )


def nothing_read_vanishes(history: History) -> Iterator[str]:
    """What a consumer was shown is still there when the log is read to its end, acknowledged or not."""
    ended = {event.partition for event in history if isinstance(event, LogEnded)}
    found = {(event.partition, event.offset) for event in history if isinstance(event, Found)}
    for event in history:
        if (
            isinstance(event, Delivered)
            and event.partition in ended
            and (event.partition, event.offset) not in found
        ):
            yield f"{event.member} read {event.message} at {_place(event)}, which is gone"
            return


# Groups: who owned what, and what became of it.


@dataclass(slots=True)
class _Tenure:
    """A member's ownership of a partition. An end that the member could not name is not firm."""

    member: MemberName
    partition: TopicPartition
    began_s: float
    generation: int | None
    ended_s: float | None = None
    is_firm: bool = True

    def is_held_at(self, at_s: float) -> bool:
        """False also when nobody knows."""
        return self.is_firm and (self.ended_s is None or self.ended_s > at_s)

    def __str__(self) -> str:
        until = "still" if self.ended_s is None else f"until {self.ended_s:.3f}"
        return f"{self.member.member} from {self.began_s:.3f} {until}"


def _tenures(history: History) -> list[_Tenure]:
    current: dict[tuple[MemberName, TopicPartition], _Tenure] = {}
    tenures: list[_Tenure] = []

    def end(member: MemberName, partitions: Iterable[TopicPartition], at_s: float, *, is_firm: bool) -> None:
        for partition in partitions:
            tenure = current.pop((member, partition), None)
            if tenure is not None:
                tenure.ended_s, tenure.is_firm = at_s, is_firm

    for event in history:
        if isinstance(event, Assigned):
            # Given anew without being revoked: the member was told of a new generation and kept it.
            end(event.member, event.partitions, event.at_s, is_firm=True)
            for partition in event.partitions:
                tenure = _Tenure(event.member, partition, event.at_s, event.generation)
                current[event.member, partition] = tenure
                tenures.append(tenure)
        elif isinstance(event, Revoked):
            end(event.member, event.partitions, event.at_s, is_firm=True)
        elif isinstance(event, Lost):
            end(event.member, event.partitions, event.at_s, is_firm=False)
        elif isinstance(event, Died):
            owned = [partition for member, partition in current if member == event.member]
            end(event.member, owned, event.at_s, is_firm=False)
    return tenures


def one_owner_in_a_generation(history: History) -> Iterator[str]:
    """Within one generation of a group a partition is given to one member only."""
    owners: dict[tuple[str, int, TopicPartition], MemberName] = {}
    for event in history:
        if isinstance(event, Assigned) and event.generation is not None:
            for partition in event.partitions:
                key = (event.member.group, event.generation, partition)
                owner = owners.setdefault(key, event.member)
                if owner != event.member:
                    yield (
                        f"{partition} in generation {event.generation} of {event.member.group}: "
                        f"{owner.member} and {event.member.member}"
                    )


def one_owner_at_a_time(history: History) -> Iterator[str]:
    """A partition is given to the next member after the last one has given it up."""
    by_partition: defaultdict[tuple[str, TopicPartition], list[_Tenure]] = defaultdict(list)
    for tenure in _tenures(history):
        by_partition[tenure.member.group, tenure.partition].append(tenure)
    for (group, partition), tenures in by_partition.items():
        tenures.sort(key=lambda tenure: tenure.began_s)
        held: list[_Tenure] = []
        for later in tenures:
            held = [earlier for earlier in held if earlier.is_held_at(later.began_s)]
            for earlier in held:
                if earlier.member != later.member:
                    yield f"{partition} of {group}: {earlier}, and {later}"
            held.append(later)


def only_the_owner_processes(history: History) -> Iterator[str]:
    """A member processes what it owns, when it owns it."""
    owned: defaultdict[MemberName, set[TopicPartition]] = defaultdict(set)
    for event in history:
        if isinstance(event, Assigned):
            owned[event.member].update(event.partitions)
        elif isinstance(event, Revoked | Lost):
            owned[event.member].difference_update(event.partitions)
        elif isinstance(event, Died):
            owned[event.member].clear()
        elif isinstance(event, Delivered) and event.partition not in owned[event.member]:
            yield f"{event.member} processed {_place(event)} at {event.at_s:.3f}, which it did not own"


def one_member_processes_an_offset_in_a_generation(history: History) -> Iterator[str]:
    """Within one generation nobody processes what another member has processed.

    The same member may, when it was given the partition anew: who joins again while the group is stable gets its old
    generation back, and reads again what it has not committed.
    """
    processed: dict[tuple[str, int, TopicPartition, int], Delivered] = {}
    for event in history:
        if isinstance(event, Delivered) and event.generation is not None:
            key = (event.member.group, event.generation, event.partition, event.offset)
            first = processed.setdefault(key, event)
            if first.member != event.member:
                yield (
                    f"{_place(event)} in generation {event.generation} of {event.member.group}: "
                    f"by {first.member.member} and by {event.member.member}"
                )


def a_tenure_reads_in_order(history: History) -> Iterator[str]:
    """From its assignment on, a member sees growing offsets of a partition."""
    last: dict[tuple[MemberName, TopicPartition], int] = {}
    for event in history:
        if isinstance(event, Assigned):
            for partition in event.partitions:
                last.pop((event.member, partition), None)
        elif isinstance(event, Delivered):
            key = (event.member, event.partition)
            before = last.get(key, -1)
            if event.offset <= before:
                yield f"{event.member} processed {_place(event)} after offset {before}"
            last[key] = event.offset


@dataclass(slots=True)
class _Commits:
    """Of one partition in one group: the last acknowledged commit, and those since then whose answer is unknown."""

    offset: int | None = None
    open_offsets: set[int] | None = None

    def sent(self, offset: int) -> None:
        self.open_offsets = (self.open_offsets or set()) | {offset}

    def acked(self, offset: int) -> None:
        self.offset, self.open_offsets = offset, None

    def allows(self, offset: int) -> bool:
        return offset == self.offset or offset in (self.open_offsets or ())


def resumes_at_the_commit(history: History) -> Iterator[str]:
    """The first message that a member processes of a partition it was given is the one that the group committed last.

    A commit whose answer never came may or may not count. A partition without a commit starts wherever the client's reset
    policy says.
    """
    commits: defaultdict[tuple[str, TopicPartition], _Commits] = defaultdict(_Commits)
    waits: set[tuple[MemberName, TopicPartition]] = set()
    for event in history:
        if isinstance(event, Assigned):
            waits.update((event.member, partition) for partition in event.partitions)
        elif isinstance(event, CommitSent):
            commits[event.member.group, event.partition].sent(event.offset)
        elif isinstance(event, Committed):
            commits[event.member.group, event.partition].acked(event.offset)
        elif isinstance(event, Delivered) and (event.member, event.partition) in waits:
            waits.discard((event.member, event.partition))
            known = commits[event.member.group, event.partition]
            if known.offset is not None and not known.allows(event.offset):
                unsure = f" (or {sorted(known.open_offsets)})" if known.open_offsets else ""
                yield (
                    f"{event.member} resumed {event.partition} at offset {event.offset}; "
                    f"committed was {known.offset}{unsure}"
                )


Rule = Callable[[History], Iterator[str]]
RULES: tuple[Rule, ...] = (
    no_acked_write_lost,
    every_acked_write_is_delivered,
    offsets_agree,
    nothing_read_vanishes,
    nothing_is_invented,
    no_duplicate_from_an_idempotent_producer,
    order_is_kept,
    one_owner_in_a_generation,
    one_owner_at_a_time,
    only_the_owner_processes,
    one_member_processes_an_offset_in_a_generation,
    a_tenure_reads_in_order,
    resumes_at_the_commit,
)


def _place(event: Acked | Delivered | Found) -> str:
    return f"{event.partition} offset {event.offset}"


def _first_of(events: Sequence[Acked], text: Callable[[Acked], str]) -> Iterator[str]:
    """The first few, and the number of the others: a lost partition is one story, not a million."""
    yield from (text(event) for event in events[:_NAMED_MAX])
    if len(events) > _NAMED_MAX:
        yield f"and {len(events) - _NAMED_MAX} more"
