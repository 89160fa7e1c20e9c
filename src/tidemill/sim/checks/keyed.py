"""The checker of a topic whose number of partitions changes: keyed records, wherever they are stored.

The history has what producers sent, what was acknowledged, where each record was found, and what a group was given. A record
is found before it is deleted: partitions are emptied so that they disappear. So a place names the leader epoch of its batch,
which tells the partitions apart that had the same number one after the other.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemill.sim.checks.checker import MessageId, Violation
from tidemill.sim.checks.transactions import EndAsked, Ended, TransactionEvent, TransactionName, Wrote

_NAMED_MAX = 3


class KeyedPlace(NamedTuple):
    """The place of a stored record. Places of one partition number are in the order of time."""

    partition: int
    leader_epoch: int
    offset: int

    def __str__(self) -> str:
        return f"partition {self.partition} offset {self.offset} (epoch {self.leader_epoch})"


@dataclass(slots=True)
class KeyedHistory:
    """The observations of a topic's clients. The producer of a message is a client and a key."""

    topic: str
    sent: set[MessageId] = field(default_factory=set)
    # With the partition that the producer named, and the offset, which is -1 when another partition stores the record.
    acked: dict[MessageId, tuple[int, int]] = field(default_factory=dict)
    found: dict[KeyedPlace, MessageId] = field(default_factory=dict)
    delivered: set[MessageId] = field(default_factory=set)
    # Whether every record that is left was found, and the group is at the end.
    is_complete: bool = False
    # Those of the whole world.
    transactions: list[TransactionEvent] = field(default_factory=list)


def check_keyed(history: KeyedHistory) -> list[Violation]:
    if not history.is_complete:
        return []
    return [Violation(rule.__name__, text) for rule in KEYED_RULES for text in rule(history)]


def no_acked_record_is_lost(history: KeyedHistory) -> Iterator[str]:
    """Every acknowledged record is stored in some partition, and at its offset if the producer got one."""
    found = set(history.found.values())
    places = {(place.partition, place.offset, message) for place, message in history.found.items()}
    lost = [
        f"{message}, acked by partition {partition} at offset {offset}, is not there"
        for message, (partition, offset) in history.acked.items()
        if message not in found or (offset >= 0 and (partition, offset, message) not in places)
    ]
    yield from _first_of(lost)


def no_record_is_doubled(history: KeyedHistory) -> Iterator[str]:
    """A record has one place, whatever partition it was sent to and however often."""
    places: dict[MessageId, KeyedPlace] = {}
    for place, message in history.found.items():
        known = places.setdefault(message, place)
        if known != place:
            yield f"{message} is at {known} and again at {place}"


def order_of_a_key_is_kept(history: KeyedHistory) -> Iterator[str]:
    """Under one partition number the records of a client and key are in the order in which they were sent."""
    written = _written(history)
    order: defaultdict[tuple[int, str], list[tuple[KeyedPlace, tuple[int, int]]]] = defaultdict(list)
    for place, message in history.found.items():
        writer, number = written.get(message, (message.producer, (0, message.number)))
        order[place.partition, writer].append((place, number))
    for (_, writer), numbers in order.items():
        for (place, number), (next_place, next_number) in itertools.pairwise(sorted(numbers)):
            if next_number < number:
                yield f"{writer}: {number} at {place} comes before {next_number} at {next_place}"


def no_offset_comes_again(history: KeyedHistory) -> Iterator[str]:
    """A partition that is added under an old number goes on where the one before it ended."""
    for place, next_place in itertools.pairwise(sorted(history.found)):
        if place.partition == next_place.partition and next_place.offset <= place.offset:
            yield f"{next_place} comes after {place}"


def nothing_is_invented(history: KeyedHistory) -> Iterator[str]:
    sent = history.sent | _written(history).keys()
    for place, message in history.found.items():
        if message not in sent:
            yield f"{message} at {place} was never sent"


def the_group_reads_everything(history: KeyedHistory) -> Iterator[str]:
    """The group was given every record that is or was stored, before it was deleted."""
    missed = [
        f"{message} at {place} never reached the group"
        for place, message in history.found.items()
        if message not in history.delivered
    ]
    yield from _first_of(missed)


def transactions_are_stored_whole_or_not_at_all(history: KeyedHistory) -> Iterator[str]:
    """All records of a committed transaction are visible, and none of one that was aborted or never to be committed."""
    found = set(history.found.values())
    ended: dict[TransactionName, bool] = {}
    asked: set[TransactionName] = set()
    writes: defaultdict[TransactionName, list[MessageId]] = defaultdict(list)
    for event in history.transactions:
        if isinstance(event, Ended):
            ended[event.transaction] = event.is_commit
        elif isinstance(event, EndAsked) and event.is_commit:
            asked.add(event.transaction)
        elif isinstance(event, Wrote) and event.partition.topic == history.topic:
            writes[event.transaction].append(event.message)
    for name, messages in writes.items():
        visible = [message for message in messages if message in found]
        is_committed = ended.get(name, None if name in asked else False)
        if is_committed is False and visible:
            yield f"{visible[0]} is visible, and {name} is not committed"
        elif visible and len(visible) < len(messages):
            yield f"{name} is torn: {len(visible)} of its {len(messages)} records are visible"
        elif is_committed and not visible:
            yield f"{messages[0]} of {name}, which is committed, is not there"


def _written(history: KeyedHistory) -> dict[MessageId, tuple[str, tuple[int, int]]]:
    """The writer of each transactional message, and its number among all that went to the same partition."""
    written = {}
    for event in history.transactions:
        if isinstance(event, Wrote) and event.partition.topic == history.topic:
            name = event.transaction
            writer = f"{name.transactional_id}.{name.incarnation}@{event.partition.partition}"
            written[event.message] = (writer, (name.number, event.message.number))
    return written


KeyedRule = Callable[[KeyedHistory], Iterator[str]]
KEYED_RULES: tuple[KeyedRule, ...] = (
    no_acked_record_is_lost,
    no_record_is_doubled,
    order_of_a_key_is_kept,
    no_offset_comes_again,
    nothing_is_invented,
    the_group_reads_everything,
    transactions_are_stored_whole_or_not_at_all,
)


def _first_of(texts: list[str]) -> Iterator[str]:
    yield from texts[:_NAMED_MAX]
    if len(texts) > _NAMED_MAX:
        yield f"and {len(texts) - _NAMED_MAX} more"
