"""The checker of histories: verifies what clients saw, in simulation, in cluster tests and in long runs alike.

A history is a list of events in the order in which they happened, with the timestamps of one clock. The driver of the
clients records it: sent and acknowledged messages, the assignments, deliveries and commits of group members, and the
content of the logs at the end. The checker uses nothing else: no broker, no client, no file.

Each rule is a function from a history to violations, named after its guarantee; `check` runs them all. A rule judges
only what the history shows. An acknowledged write is lost only if a log was read to its end (`LogEnded`) or a group
drained (`Drained`) without it. Two owners in one generation are found only where clients report their generation.

A member owns a partition from `Assigned` to `Revoked`, which it reports *before* it gives the partition up. A member
that was removed (`Lost`) or killed (`Died`) owned the partition until some unknown time before that event. It may
overlap with the next owner, because the coordinator rejects commits of the old generation.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.types import TopicPartition

# A violation names the first few of its kind and counts the rest.
_NAMED_MAX = 3


class MessageId(NamedTuple):
    """The identity of a message: its producer and its sequence number in the partition. Every value contains it."""

    producer: str
    number: int

    def __str__(self) -> str:
        return f"{self.producer}/{self.number}"


class MemberName(NamedTuple):
    """A member of a consumer group."""

    group: str
    member: str

    def __str__(self) -> str:
        return f"{self.member} of {self.group}"


@dataclass(frozen=True, slots=True)
class Sent:
    """A producer sent a message; it may or may not be written."""

    at_s: float
    message: MessageId
    is_idempotent: bool = False


@dataclass(frozen=True, slots=True)
class Acked:
    """A producer's message was acknowledged."""

    at_s: float
    message: MessageId
    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """A member processed a message. `generation` is None where the client does not report it."""

    at_s: float
    member: MemberName
    partition: TopicPartition
    offset: int
    message: MessageId
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class Assigned:
    """The member owns these additional partitions from now on."""

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
    """The member learned that it no longer owns these partitions."""

    at_s: float
    member: MemberName
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Died:
    """The member was killed. It cannot report when its ownership ended."""

    at_s: float
    member: MemberName


@dataclass(frozen=True, slots=True)
class CommitSent:
    """A member sent a commit."""

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
class Shown:
    """A reader of a view was shown this message of the source's partition."""

    at_s: float
    reader: str
    partition: TopicPartition
    offset: int
    message: MessageId


@dataclass(frozen=True, slots=True)
class ShownToEnd:
    """The reader has reached the end of the source's partition."""

    at_s: float
    reader: str
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
    | Shown
    | ShownToEnd
    | Drained
)
History = Sequence[Event]
Place = tuple[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule and its description."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def check(history: History) -> list[Violation]:
    """Returns every violation in a history."""
    return [Violation(rule.__name__, text) for rule in RULES for text in rule(history)]


# Logs: what was written, and where.


def no_acked_write_lost(history: History) -> Iterator[str]:
    """Every acknowledged message is in the log that was read to its end, at its acknowledged offset."""
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
    """A group that has read everything has processed every acknowledged message at least once."""
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
    """An offset of a partition holds one message, in every event that names it."""
    messages: dict[Place, MessageId] = {}
    for event in history:
        if isinstance(event, Acked | Delivered | Found):
            known = messages.setdefault((event.partition, event.offset), event.message)
            if known != event.message:
                yield f"{_place(event)} is {known} and also {event.message}"


def nothing_is_invented(history: History) -> Iterator[str]:
    """Every message that is delivered or found was sent before."""
    sent: set[MessageId] = set()
    for event in history:
        if isinstance(event, Sent):
            sent.add(event.message)
        elif isinstance(event, Acked | Delivered | Found) and event.message not in sent:
            yield f"{event.message} at {_place(event)} was never sent"


def no_duplicate_from_an_idempotent_producer(history: History) -> Iterator[str]:
    """A message of an idempotent producer has one offset, however often it was retried."""
    idempotent = {event.message for event in history if isinstance(event, Sent) and event.is_idempotent}
    places: dict[MessageId, Place] = {}
    for event in history:
        if isinstance(event, Acked | Delivered | Found) and event.message in idempotent:
            place = (event.partition, event.offset)
            known = places.setdefault(event.message, place)
            if known != place:
                yield f"{event.message} is at {known[0]} offset {known[1]} and again at {_place(event)}"


def order_is_kept(history: History) -> Iterator[str]:
    """Within a partition the messages of one producer are in the order of their first sending."""
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
    """Every message that a consumer has read is in the log when it is read to its end, acknowledged or not."""
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


# Views: what is shown of the logs.


def is_shown(message: MessageId) -> bool:
    """Whether the simulated view shows a message: two in each seven, so that runs of both kinds occur."""
    return message.number % 7 < 2


def views_show_what_matches(history: History) -> Iterator[str]:
    """A reader of a view is shown the matching messages of the source's log: each once, in order, and no other."""
    ended = {event.partition for event in history if isinstance(event, LogEnded)}
    expected: defaultdict[TopicPartition, list[tuple[int, MessageId]]] = defaultdict(list)
    for event in history:
        if isinstance(event, Found) and is_shown(event.message):
            expected[event.partition].append((event.offset, event.message))
    shown: defaultdict[tuple[str, TopicPartition], list[tuple[int, MessageId]]] = defaultdict(list)
    finished: set[tuple[str, TopicPartition]] = set()
    for event in history:
        if isinstance(event, Shown):
            shown[event.reader, event.partition].append((event.offset, event.message))
        elif isinstance(event, ShownToEnd):
            finished.add((event.reader, event.partition))
    for reader, partition in (*shown, *(finished - shown.keys())):
        if partition not in ended:
            continue
        got, wanted = shown[reader, partition], sorted(expected[partition])
        if (reader, partition) not in finished:
            wanted = wanted[: len(got)]
        for number, (seen, matching) in enumerate(itertools.zip_longest(got, wanted)):
            if seen != matching:
                yield f"{reader}: record {number} of the view of {partition} is {seen} and not {matching}"
                break


# Groups: ownership of partitions, deliveries and commits.


@dataclass(slots=True)
class _Tenure:
    """A member's ownership of a partition. Its end is not firm when the member could not report it."""

    member: MemberName
    partition: TopicPartition
    began_s: float
    generation: int | None
    ended_s: float | None = None
    is_firm: bool = True

    def is_held_at(self, at_s: float) -> bool:
        """Whether the member owned the partition at that time; False when it is unknown."""
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
            # Assigned again without a revocation: the member kept it in a new generation.
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
    """Within one generation of a group a partition is assigned to one member only."""
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
    """A partition is assigned to the next member after the previous one has given it up."""
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
    """A member processes only partitions that it owns at the time."""
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
    """Within one generation a message is processed by one member only.

    The same member may process it again after another assignment: a member that rejoins a stable group keeps its
    generation, and reads again what it has not committed.
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
    """After its assignment a member reads rising offsets of a partition."""
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
    """The commits of one group and partition: the last acknowledged one, and later ones without a response."""

    offset: int | None = None
    open_offsets: set[int] | None = None

    def sent(self, offset: int) -> None:
        self.open_offsets = (self.open_offsets or set()) | {offset}

    def acked(self, offset: int) -> None:
        self.offset, self.open_offsets = offset, None

    def allows(self, offset: int) -> bool:
        return offset == self.offset or offset in (self.open_offsets or ())


def resumes_at_the_commit(history: History) -> Iterator[str]:
    """The first message that a member processes after an assignment is the one at the last committed offset.

    A commit without a response may or may not count. A partition without a commit starts at the client's reset policy.
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
    views_show_what_matches,
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
    """The first few events, and the number of the others."""
    yield from (text(event) for event in events[:_NAMED_MAX])
    if len(events) > _NAMED_MAX:
        yield f"and {len(events) - _NAMED_MAX} more"
