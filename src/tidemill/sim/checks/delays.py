"""The rules for delayed records: never early, never twice, never missing, and nothing of an aborted transaction.

The log decides: a copy behind a cancel is a violation, one before it is not. A request in a transaction takes effect at
its commit marker. The marker stands before the next record of the same transactional id in the partition. Clocks of
brokers may be wrong, so a record may be delivered early by as much as the fastest clock was ever ahead.

Retention may remove a copy before a reader gets it. The reader notes which offsets it skipped for that.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidemill.sim.checks.checker import MessageId, Violation
from tidemill.sim.checks.transactions import (
    Transaction,
    TransactionHistory,
    TransactionName,
    transactions_by_message,
)
from tidemill.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Wish:
    """The request in a record. `ends` are the messages that it cancels or replaces."""

    # The time that it names.
    due_ms: int | None = None
    ends: tuple[MessageId, ...] = ()
    # Whether it waits for a time that counts from the append, and whether it comes again and again.
    counts_from_append: bool = False
    recurs: bool = False

    @property
    def waits(self) -> bool:
        return self.due_ms is not None or self.counts_from_append

    @property
    def is_shown(self) -> bool:
        """Whether readers get it some time, unless it is ended."""
        return self.waits or not self.ends


@dataclass(frozen=True, slots=True)
class Taken:
    """The broker acknowledged a message."""

    at_s: float
    partition: TopicPartition
    offset: int
    message: MessageId
    wish: Wish


@dataclass(frozen=True, slots=True)
class Seen:
    """A reader was shown a message. The headers of a copy are None unless it is the copy of a delayed record."""

    at_s: float
    reader: str
    partition: TopicPartition
    offset: int
    message: MessageId
    original_offset: int | None
    due_ms: int | None
    next_due_ms: int | None
    wall_ms: int
    is_read_committed: bool = False


Event = Taken | Seen


@dataclass(frozen=True, slots=True)
class Skipped:
    """Retention removed the records in this range before a reader got them."""

    wall_ms: int
    offset: int
    end_offset: int

    def may_hold(self, taken: Taken, ahead_ms_max: int) -> bool:
        """Whether the message, or a copy of it, may have been in the range."""
        wish = taken.wish
        if not wish.waits:
            return self.offset <= taken.offset < self.end_offset
        is_due = wish.due_ms is None or self.wall_ms + ahead_ms_max >= wish.due_ms
        return is_due and taken.offset + 1 < self.end_offset


def required(taken: Sequence[Taken], transactions: TransactionHistory) -> list[Taken]:
    """The messages that every reader must be shown."""
    of = transactions_by_message(transactions)
    ends = _ends(taken, of)
    return [
        each
        for each in taken
        if each.wish.is_shown
        and each.message not in ends
        and (each.message not in of or of[each.message].is_committed)
    ]


def check_delays(
    events: Sequence[Event], ahead_ms_max: int, transactions: TransactionHistory = ()
) -> list[Violation]:
    # Clocks that were all behind are right at the end.
    of = transactions_by_message(transactions)
    return [Violation("delays", text) for text in _violations(events, max(0, ahead_ms_max), of)]


def _ends(taken: Sequence[Taken], of: Mapping[MessageId, Transaction]) -> dict[MessageId, float]:
    """By message: the offset after which nothing may deliver it, because a record cancels or replaces it.

    It is infinite where the offset, or whether the record takes effect at all, is not known.
    """
    followers = _followers(taken, of)
    ends: dict[MessageId, float] = {}
    for event in taken:
        transaction = of.get(event.message)
        offset: float = event.offset
        if transaction is not None:
            if not transaction.may_be_committed:
                continue
            is_known = transaction.is_committed
            offset = followers.get((event.partition, transaction.name), math.inf) if is_known else math.inf
        for message in event.wish.ends:
            ends[message] = min(offset, ends.get(message, math.inf))
    return ends


def _followers(
    taken: Sequence[Taken], of: Mapping[MessageId, Transaction]
) -> dict[tuple[TopicPartition, TransactionName], int]:
    """By partition and transaction: the first offset of the next transaction there of the same transactional id."""
    places: defaultdict[tuple[TopicPartition, str], dict[TransactionName, int]] = defaultdict(dict)
    for event in taken:
        transaction = of.get(event.message)
        if transaction is not None:
            firsts = places[event.partition, transaction.name.transactional_id]
            firsts[transaction.name] = min(event.offset, firsts.get(transaction.name, event.offset))
    followers: dict[tuple[TopicPartition, TransactionName], int] = {}
    for (partition, _), firsts in places.items():
        # Not in the order of their names: a process that slept before it began fences one that was started after it.
        names = sorted(firsts, key=lambda name: firsts[name])
        for name, following in pairwise(names):
            followers[partition, name] = firsts[following]
    return followers


def _violations(
    events: Sequence[Event], ahead_ms_max: int, of: Mapping[MessageId, Transaction]
) -> Iterator[str]:
    taken = {event.message: event for event in events if isinstance(event, Taken)}
    ends = _ends(list(taken.values()), of)
    seen = [event for event in events if isinstance(event, Seen)]
    yield from _repeated(seen, taken)
    for each in seen:
        place = f"{each.message} at {each.partition} offset {each.offset}"
        transaction = of.get(each.message)
        if transaction is not None and (each.original_offset is not None or each.is_read_committed):
            yield from _uncommitted(place, each, transaction)
        known = taken.get(each.message)
        if known is None:
            continue  # its acknowledgement was lost
        wish = known.wish
        if not wish.waits:
            if wish.ends:
                yield f"{place} cancels another record and was shown"
            elif each.offset != known.offset:
                yield f"{place} was acked at {known.offset}"
            continue
        if each.original_offset != known.offset:
            yield f"{place} is shown as a copy of {each.original_offset} and was acked at {known.offset}"
        if wish.due_ms is not None and each.due_ms != wish.due_ms:
            yield f"{place} says that it was due at {each.due_ms}, and asked for {wish.due_ms}"
        if each.due_ms is None or each.wall_ms + ahead_ms_max < each.due_ms:
            yield f"{place} was shown at {each.wall_ms} and was due at {each.due_ms}"
        if (each.next_due_ms is not None) != wish.recurs:
            yield f"{place} is due again at {each.next_due_ms}"
        if ends.get(each.message, each.offset) < each.offset:
            yield f"{place} was cancelled before offset {ends[each.message] + 1:.0f}"


def _uncommitted(place: str, seen: Seen, transaction: Transaction) -> Iterator[str]:
    """What is delivered belongs to a transaction that is committed, and was not delivered before that."""
    asked_s = transaction.commit_asked_s
    if not transaction.may_be_committed:
        why = "is aborted" if transaction.is_committed is False else "has no requested commit"
        yield f"{place} was delivered to {seen.reader}, and its transaction {transaction.name} {why}"
    elif asked_s is not None and asked_s > seen.at_s:
        yield f"{place} was delivered at {seen.at_s:.3f}, before the commit of {transaction.name} was requested"


def _repeated(seen: Sequence[Seen], taken: Mapping[MessageId, Taken]) -> Iterator[str]:
    """A message is shown once, and one that recurs once for each of its times, in their order."""
    last: dict[tuple[str, MessageId], Seen] = {}
    for each in seen:
        before = last.get((each.reader, each.message))
        last[each.reader, each.message] = each
        if before is None:
            continue
        known = taken.get(each.message)
        if known is not None and not known.wish.recurs:
            yield f"{each.reader} was shown {each.message} at offsets {before.offset} and {each.offset}"
        elif before.next_due_ms is None or each.due_ms is None or each.due_ms < before.next_due_ms:
            yield (
                f"{each.reader} was shown {each.message} for {each.due_ms} after the copy for {before.due_ms}, "
                f"which said {before.next_due_ms}"
            )
