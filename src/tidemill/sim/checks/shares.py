"""The rules of share groups: what members may see, however brokers and members fail.

Members report when they ask for records, what they acquire, and what they acknowledge. The rules use nothing else, so
they judge only what members know: a fetch whose response was lost may have delivered records that no member saw.

When an administrator alters the offsets of the group, it begins another life. Each life is judged for itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from tidemill.sim.checks.checker import MessageId, Violation
from tidemill.types import TopicPartition

Place = tuple[TopicPartition, int]
# Brokers count whole milliseconds.
_CLOCK_STEP_S = 0.002


class Acknowledge(IntEnum):
    """What a member says of a record, as on the wire."""

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4

    @property
    def is_final(self) -> bool:
        return self in (Acknowledge.ACCEPT, Acknowledge.REJECT)


@dataclass(frozen=True, slots=True)
class Produced:
    """A record was written and acknowledged."""

    at_s: float
    partition: TopicPartition
    offset: int
    message: MessageId


@dataclass(frozen=True, slots=True)
class FetchSent:
    """A member asked for records of these partitions."""

    at_s: float
    fetch_id: str
    member: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class FetchAnswered:
    """The response of a fetch arrived. Without this event it may have delivered records that no member saw."""

    at_s: float
    fetch_id: str


@dataclass(frozen=True, slots=True)
class AcquiredRecord:
    """A member got a record and its lock. The lock began between `asked_s` and `at_s`."""

    at_s: float
    asked_s: float
    member: str
    partition: TopicPartition
    offset: int
    message: MessageId
    delivery_count: int
    # Which leader delivered it: process and leader epoch. Empty when a leadership began or ended meanwhile.
    leadership: str = ""

    @property
    def place(self) -> Place:
        return self.partition, self.offset


@dataclass(frozen=True, slots=True)
class AcknowledgeSent:
    """A member acknowledged a record that it had acquired at `acquired_s`."""

    at_s: float
    member: str
    partition: TopicPartition
    offset: int
    kind: Acknowledge
    delivery_count: int
    acquired_s: float

    @property
    def place(self) -> Place:
        return self.partition, self.offset


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The broker confirmed an acknowledgement."""

    at_s: float
    sent: AcknowledgeSent


@dataclass(frozen=True, slots=True)
class Settled:
    """The group was drained: everything before `end_offset` of the partition is done."""

    at_s: float
    partition: TopicPartition
    end_offset: int
    delivery_count_max: int
    # How long a record waits after its first release; each further release doubles it.
    backoff_ms: int = 0

    def backoff_s(self, delivery_count: int) -> float:
        return self.backoff_ms * 2.0 ** (delivery_count - 1) / 1000


@dataclass(frozen=True, slots=True)
class OffsetsAltered:
    """The group had no members and begins at other offsets, with no knowledge of what it did before."""

    at_s: float
    starts: dict[TopicPartition, int]
    # Records that may be dead letters of an earlier life.
    maybe_buried: frozenset[Place] = frozenset()


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The dead-letter topic of the drained group holds the record of this place."""

    at_s: float
    partition: TopicPartition
    offset: int
    message: MessageId

    @property
    def place(self) -> Place:
        return self.partition, self.offset


ShareEvent = (
    Produced
    | FetchSent
    | FetchAnswered
    | AcquiredRecord
    | AcknowledgeSent
    | Acknowledged
    | Settled
    | OffsetsAltered
    | DeadLetter
)
ShareHistory = Sequence[ShareEvent]


def check_shares(history: ShareHistory) -> list[Violation]:
    return [
        Violation(rule.__name__, text)
        for life in _lives(history)
        for rule in SHARE_RULES
        for text in rule(life)
    ]


def _lives(history: ShareHistory) -> list[list[ShareEvent]]:
    """Cut a history where offsets were altered. What was written stays; a fetch without an answer may still deliver."""
    limit = next((event.delivery_count_max for event in history if isinstance(event, Settled)), 0)
    lives: list[list[ShareEvent]] = [[]]
    buried: frozenset[Place] = frozenset()
    for event in history:
        if not isinstance(event, OffsetsAltered):
            lives[-1].append(event)
            continue
        before = lives[-1]
        answered = {each.fetch_id for each in before if isinstance(each, FetchAnswered)}
        buried |= _maybe_given_up(before, limit)
        lives.append([replace(event, maybe_buried=buried)])
        lives[-1] += [
            each
            for each in before
            if isinstance(each, Produced) or (isinstance(each, FetchSent) and each.fetch_id not in answered)
        ]
    return lives


def _maybe_given_up(history: ShareHistory, limit: int) -> frozenset[Place]:
    lost, counts = _lost_fetches(history), _counts(history)
    rejected = {
        event.place
        for event in history
        if isinstance(event, AcknowledgeSent) and event.kind is Acknowledge.REJECT
    }
    written = {(event.partition, event.offset) for event in history if isinstance(event, Produced)}
    spent = {
        place
        for place in written | counts.keys()
        if max(counts.get(place, ()), default=0) >= limit
        or len(counts.get(place, ())) + lost[place[0]] >= limit
    }
    return frozenset(rejected | spent)


def a_record_is_done_once(history: ShareHistory) -> Iterator[str]:
    """No record is accepted or rejected by two holders."""
    done: dict[Place, AcknowledgeSent] = {}
    for event in history:
        if isinstance(event, Acknowledged) and event.sent.kind.is_final:
            first = done.setdefault(event.sent.place, event.sent)
            if first is not event.sent:
                yield f"{_where(event.sent)} was done by {first.member} and again by {event.sent.member}"


def what_is_done_is_not_delivered(history: ShareHistory) -> Iterator[str]:
    """A record whose acceptance or rejection was confirmed is delivered to no member that asks afterwards."""
    done: dict[Place, Acknowledged] = {}
    for event in history:
        if isinstance(event, Acknowledged) and event.sent.kind.is_final:
            done.setdefault(event.sent.place, event)
        elif isinstance(event, AcquiredRecord):
            known = done.get(event.place)
            if known is not None and known.at_s < event.asked_s:
                yield (
                    f"{_where(event)} was done by {known.sent.member} at {known.at_s:.3f} and delivered to "
                    f"{event.member}, which asked at {event.asked_s:.3f}"
                )


def a_lock_is_exclusive(history: ShareHistory) -> Iterator[str]:
    """From its delivery to its confirmed acknowledgement a record is delivered to no other member."""
    deliveries: defaultdict[Place, list[AcquiredRecord]] = defaultdict(list)
    for event in history:
        if isinstance(event, AcquiredRecord):
            deliveries[event.place].append(event)
    for event in history:
        if not isinstance(event, Acknowledged):
            continue
        held = event.sent
        for other in deliveries[held.place]:
            if other.member != held.member and held.acquired_s < other.asked_s and other.at_s < held.at_s:
                yield (
                    f"{_where(held)} was held by {held.member} from {held.acquired_s:.3f} to {held.at_s:.3f} and "
                    f"delivered to {other.member} at {other.at_s:.3f}"
                )


def a_release_counts(history: ShareHistory) -> Iterator[str]:
    """A delivery after a confirmed release has a larger delivery count."""
    released: dict[Place, tuple[int, float]] = {}
    for event in history:
        if isinstance(event, Acknowledged) and event.sent.kind is Acknowledge.RELEASE:
            count, _ = released.get(event.sent.place, (0, 0.0))
            if event.sent.delivery_count >= count:
                released[event.sent.place] = event.sent.delivery_count, event.at_s
        elif isinstance(event, AcquiredRecord):
            count, at_s = released.get(event.place, (0, 0.0))
            if event.delivery_count <= count and at_s < event.asked_s:
                yield (
                    f"{_where(event)} was released after delivery {count} at {at_s:.3f} and comes to {event.member} "
                    f"as delivery {event.delivery_count}"
                )


def a_release_waits(history: ShareHistory) -> Iterator[str]:
    """A record whose release was confirmed is not delivered again before its backoff is over."""
    settled = {event.partition: event for event in history if isinstance(event, Settled)}
    released: defaultdict[Place, list[AcknowledgeSent]] = defaultdict(list)
    for event in history:
        if isinstance(event, Acknowledged) and event.sent.kind is Acknowledge.RELEASE:
            released[event.sent.place].append(event.sent)
    for event in history:
        if not isinstance(event, AcquiredRecord) or event.partition not in settled:
            continue
        for sent in released.get(event.place, ()):
            wait_s = settled[event.partition].backoff_s(sent.delivery_count)
            # Not its count: a leader that failed takes deliveries along that were under way.
            if sent.at_s < event.asked_s and event.at_s < sent.at_s + wait_s - _CLOCK_STEP_S:
                yield (
                    f"{_where(event)} was released at {sent.at_s:.3f} for {wait_s:.1f} s and delivered to "
                    f"{event.member} at {event.at_s:.3f}"
                )


def no_delivery_is_invented(history: ShareHistory) -> Iterator[str]:
    """A delivery count is not larger than the deliveries that can have been."""
    lost, counts = _lost_fetches(history), _counts(history)
    for place, found in counts.items():
        for number, count in enumerate(found, 1):
            if count > number + lost[place[0]]:
                yield (
                    f"{place[0]} offset {place[1]} has delivery {count}, members know of {number}, and "
                    f"{lost[place[0]]} responses were lost"
                )
                break


def a_leader_counts_every_delivery(history: ShareHistory) -> Iterator[str]:
    """A leader delivers no record twice with the same delivery count, whether or how it came back.

    The next leader may: it knows the deliveries that were durable.
    """
    seen: dict[tuple[Place, str, int], AcquiredRecord] = {}
    for event in history:
        if isinstance(event, AcquiredRecord) and event.leadership:
            first = seen.setdefault((event.place, event.leadership, event.delivery_count), event)
            if first is not event:
                yield (
                    f"{_where(event)} came to {first.member} at {first.at_s:.3f} and to {event.member} at "
                    f"{event.at_s:.3f} as delivery {event.delivery_count} from {event.leadership}"
                )


def the_limit_holds(history: ShareHistory) -> Iterator[str]:
    """No record is delivered more often than the limit, and one that came back from its last delivery is archived."""
    limits = {event.partition: event.delivery_count_max for event in history if isinstance(event, Settled)}
    archived: dict[Place, float] = {}
    for event in history:
        if isinstance(event, Acknowledged) and event.sent.kind is Acknowledge.RELEASE:
            if event.sent.delivery_count == limits.get(event.sent.partition):
                archived.setdefault(event.sent.place, event.at_s)
        elif isinstance(event, AcquiredRecord):
            limit = limits.get(event.partition, event.delivery_count)
            if event.delivery_count > limit:
                yield f"{_where(event)} has delivery {event.delivery_count} of at most {limit}"
            if archived.get(event.place, event.asked_s) < event.asked_s:
                yield f"{_where(event)} came back from its last delivery and was delivered again"


def nothing_is_skipped(history: ShareHistory) -> Iterator[str]:
    """Every record of a drained group was accepted or rejected, or has used up its deliveries."""
    lost, counts = _lost_fetches(history), _counts(history)
    done = {event.place for event in history if isinstance(event, AcknowledgeSent) and event.kind.is_final}
    settled = {event.partition: event for event in history if isinstance(event, Settled)}
    starts = {
        tp: offset
        for event in history
        if isinstance(event, OffsetsAltered)
        for tp, offset in event.starts.items()
    }
    for event in history:
        if not isinstance(event, Produced) or event.partition not in settled:
            continue
        place, end = (event.partition, event.offset), settled[event.partition]
        if place in done or not starts.get(event.partition, 0) <= event.offset < end.end_offset:
            continue
        seen = counts.get(place, [])
        if (
            max(seen, default=0) < end.delivery_count_max
            and len(seen) + lost[place[0]] < end.delivery_count_max
        ):
            yield f"{event.message} at {place[0]} offset {place[1]} is done without a member's word; deliveries: {seen}"


def dead_letters_are_what_was_given_up(history: ShareHistory) -> Iterator[str]:
    """A rejected record, and one that came back from its last delivery, is a dead letter once; no other record is."""
    limits = {event.partition: event.delivery_count_max for event in history if isinstance(event, Settled)}
    unknown = {
        place for event in history if isinstance(event, OffsetsAltered) for place in event.maybe_buried
    }
    letters: set[Place] = set()
    for event in history:
        if isinstance(event, DeadLetter) and event.place not in unknown:
            if event.place in letters:
                yield f"{_where(event)} is a dead letter twice"
            letters.add(event.place)
    lost, counts = _lost_fetches(history), _counts(history)
    rejected = {
        event.place
        for event in history
        if isinstance(event, AcknowledgeSent) and event.kind is Acknowledge.REJECT
    }
    for event in history:
        if not isinstance(event, Acknowledged) or event.sent.partition not in limits:
            continue
        if event.sent.place in unknown:
            continue
        sent, is_letter = event.sent, event.sent.place in letters
        is_last = sent.kind is Acknowledge.RELEASE and sent.delivery_count == limits[sent.partition]
        if (sent.kind is Acknowledge.REJECT or is_last) and not is_letter:
            yield f"{_where(sent)} was given up by {sent.member} and is no dead letter"
        if sent.kind is Acknowledge.ACCEPT and is_letter:
            yield f"{_where(sent)} was accepted by {sent.member} and is a dead letter"
    for partition, offset in sorted(letters - rejected):
        seen = counts.get((partition, offset), [])
        limit = limits.get(partition, 0)
        if max(seen, default=0) < limit and len(seen) + lost[partition] < limit:
            yield f"{partition} offset {offset} is a dead letter after the deliveries {seen}"


def deliveries_are_of_the_log(history: ShareHistory) -> Iterator[str]:
    """A member, and the dead-letter topic, gets the record that was written at that offset."""
    written = {
        (event.partition, event.offset): event.message for event in history if isinstance(event, Produced)
    }
    for event in history:
        if isinstance(event, AcquiredRecord | DeadLetter):
            known = written.get(event.place, event.message)
            if known != event.message:
                yield f"{_where(event)} is {known}, and was delivered as {event.message}"


ShareRule = Callable[[ShareHistory], Iterator[str]]
SHARE_RULES: tuple[ShareRule, ...] = (
    a_record_is_done_once,
    what_is_done_is_not_delivered,
    a_lock_is_exclusive,
    a_release_counts,
    a_release_waits,
    no_delivery_is_invented,
    a_leader_counts_every_delivery,
    the_limit_holds,
    nothing_is_skipped,
    dead_letters_are_what_was_given_up,
    deliveries_are_of_the_log,
)


def _lost_fetches(history: ShareHistory) -> defaultdict[TopicPartition, int]:
    """How many fetches of each partition were not answered: each may have delivered a record once."""
    answered = {event.fetch_id for event in history if isinstance(event, FetchAnswered)}
    lost: defaultdict[TopicPartition, int] = defaultdict(int)
    for event in history:
        if isinstance(event, FetchSent) and event.fetch_id not in answered:
            for partition in event.partitions:
                lost[partition] += 1
    return lost


def _counts(history: ShareHistory) -> dict[Place, list[int]]:
    """The delivery counts that members saw of each record, in rising order."""
    counts: defaultdict[Place, list[int]] = defaultdict(list)
    for event in history:
        if isinstance(event, AcquiredRecord):
            counts[event.place].append(event.delivery_count)
    return {place: sorted(found) for place, found in counts.items()}


def _where(event: AcquiredRecord | AcknowledgeSent | DeadLetter) -> str:
    return f"{event.partition} offset {event.offset}"
