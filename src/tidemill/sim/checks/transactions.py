"""The checker of transactions: which ones are visible, atomically, once and in order, and which never are.

Like `checker.py` it uses a history alone. The driver records when a transaction begins, what it writes, which end is
requested, and which end is *known*. A client with a response knows it; one that was killed or got no response does not.
A transaction with a requested commit and an unknown end is visible as a whole or not at all. One without a requested
commit is never visible.

Epochs order the processes. `Initialised` with a later epoch fences all earlier ones of a transactional id. What a
fenced process writes afterwards is in no log, and no end that it requests commits. A takeover (KIP-939) fences ends
alone: what the transaction's own producer still writes belongs to it until it has ended.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemill.sim.checks.checker import MessageId, Violation
from tidemill.types import TopicPartition

_NAMED_MAX = 3


class Place(NamedTuple):
    """An offset in a partition."""

    partition: TopicPartition
    offset: int

    def __str__(self) -> str:
        return f"{self.partition} offset {self.offset}"


class TransactionName(NamedTuple):
    """A transaction: its process and its sequence number among that process's transactions."""

    transactional_id: str
    incarnation: int
    number: int

    def __str__(self) -> str:
        return f"{self.transactional_id}.{self.incarnation}.{self.number}"


@dataclass(frozen=True, slots=True)
class Initialised:
    """InitProducerId returned."""

    at_s: float
    transactional_id: str
    incarnation: int
    producer_id: int
    producer_epoch: int
    # A transaction is open and stays open.
    is_takeover: bool = False


@dataclass(frozen=True, slots=True)
class Began:
    """A client began a transaction."""

    at_s: float
    transaction: TransactionName
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Wrote:
    """A client is about to send a message. `source` is the input message in a consume-transform-produce loop."""

    at_s: float
    transaction: TransactionName
    partition: TopicPartition
    message: MessageId
    source: Place | None = None


@dataclass(frozen=True, slots=True)
class EndAsked:
    """A client requests the end, with this producer id and epoch: the transaction's own, or those of a takeover."""

    at_s: float
    transaction: TransactionName
    is_commit: bool
    producer: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ended:
    """A client knows how the transaction ended."""

    at_s: float
    transaction: TransactionName
    is_commit: bool


@dataclass(frozen=True, slots=True)
class Decided:
    """A client knows the decision about a batch: its rows are the transactions of these producers, so many in all."""

    at_s: float
    batch: int
    writers: tuple[tuple[int, int], ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Read:
    """A reader got a message."""

    at_s: float
    reader: str
    is_read_committed: bool
    partition: TopicPartition
    offset: int
    message: MessageId


@dataclass(frozen=True, slots=True)
class ReadToEnd:
    """A reader has read everything in the partition at its isolation level."""

    at_s: float
    reader: str
    is_read_committed: bool
    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class Transformed:
    """The loop has finished this input: everything below the offset is committed."""

    at_s: float
    partition: TopicPartition


TransactionEvent = Initialised | Began | Wrote | EndAsked | Ended | Decided | Read | ReadToEnd | Transformed
TransactionHistory = Sequence[TransactionEvent]


@dataclass(slots=True)
class Transaction:
    """The facts about one transaction."""

    name: TransactionName
    producer_id: int
    producer_epoch: int
    writes: list[Wrote] = field(default_factory=list)
    commits_asked: list[EndAsked] = field(default_factory=list)
    # None when the end is unknown.
    is_committed: bool | None = None

    @property
    def commit_asked_s(self) -> float | None:
        return self.commits_asked[0].at_s if self.commits_asked else None

    @property
    def may_be_committed(self) -> bool:
        return self.is_committed if self.is_committed is not None else self.commit_asked_s is not None


def _transactions(history: TransactionHistory) -> dict[TransactionName, Transaction]:
    found: dict[TransactionName, Transaction] = {}
    for event in history:
        if isinstance(event, Began):
            found[event.transaction] = Transaction(event.transaction, event.producer_id, event.producer_epoch)
        elif isinstance(event, Wrote):
            found[event.transaction].writes.append(event)
        elif isinstance(event, EndAsked) and event.is_commit:
            found[event.transaction].commits_asked.append(event)
        elif isinstance(event, Ended):
            found[event.transaction].is_committed = event.is_commit
    return found


def transactions_by_message(history: TransactionHistory) -> dict[MessageId, Transaction]:
    return {
        write.message: transaction
        for transaction in _transactions(history).values()
        for write in transaction.writes
    }


def _committed_reads(history: TransactionHistory) -> Iterator[Read]:
    return (event for event in history if isinstance(event, Read) and event.is_read_committed)


def _ends(history: TransactionHistory, *, is_read_committed: bool) -> Iterator[ReadToEnd]:
    return (
        event
        for event in history
        if isinstance(event, ReadToEnd) and event.is_read_committed == is_read_committed
    )


def check_transactions(history: TransactionHistory) -> list[Violation]:
    return [Violation(rule.__name__, text) for rule in TRANSACTION_RULES for text in rule(history)]


def committed_transactions_are_read(history: TransactionHistory) -> Iterator[str]:
    """A reader at the end of a partition has seen all committed messages in it."""
    seen: defaultdict[tuple[str, TopicPartition], set[MessageId]] = defaultdict(set)
    for read in _committed_reads(history):
        seen[read.reader, read.partition].add(read.message)
    committed = [each for each in _transactions(history).values() if each.is_committed]
    for end in _ends(history, is_read_committed=True):
        got = seen[end.reader, end.partition]
        missed = [
            f"{write.message} of {transaction.name}, which is committed, was not shown to {end.reader}"
            for transaction in committed
            for write in transaction.writes
            if write.partition == end.partition and write.message not in got
        ]
        yield from _first_of(missed)


def only_committed_transactions_are_read(history: TransactionHistory) -> Iterator[str]:
    """No reader sees a message of a transaction that was aborted, or whose commit was never requested."""
    transactions = transactions_by_message(history)
    for read in _committed_reads(history):
        transaction = transactions.get(read.message)
        if transaction is not None and not transaction.may_be_committed:
            why = "is aborted" if transaction.is_committed is False else "has no requested commit"
            yield (
                f"{read.reader} was shown {read.message} at {_place(read)}, whose transaction {transaction.name} {why}"
            )


def a_commit_is_asked_for_before_it_is_read(history: TransactionHistory) -> Iterator[str]:
    transactions = transactions_by_message(history)
    for read in _committed_reads(history):
        transaction = transactions.get(read.message)
        asked_s = transaction.commit_asked_s if transaction is not None else None
        if asked_s is not None and asked_s > read.at_s:
            yield f"{read.reader} was shown {read.message} at {read.at_s:.3f}, before its commit was requested"


def transactions_are_atomic(history: TransactionHistory) -> Iterator[str]:
    """A reader at the end of all partitions has seen all of a transaction or nothing, and all readers agree."""
    seen: defaultdict[str, set[MessageId]] = defaultdict(set)
    for read in _committed_reads(history):
        seen[read.reader].add(read.message)
    ended: defaultdict[str, set[TopicPartition]] = defaultdict(set)
    for end in _ends(history, is_read_committed=True):
        ended[end.reader].add(end.partition)
    for transaction in _transactions(history).values():
        opinions: dict[bool, str] = {}
        for reader, partitions in ended.items():
            for write in transaction.writes:
                if write.partition in partitions:
                    opinions.setdefault(write.message in seen[reader], f"{reader} {write.partition}")
        if len(opinions) == 2:
            yield (
                f"{transaction.name} is torn: visible to {opinions[True]}, not to {opinions[False]}; "
                f"committed: {transaction.is_committed}"
            )


def nothing_invented_is_read(history: TransactionHistory) -> Iterator[str]:
    sent: dict[MessageId, TopicPartition] = {}
    for event in history:
        if isinstance(event, Wrote):
            sent[event.message] = event.partition
        elif isinstance(event, Read) and sent.get(event.message) != event.partition:
            yield f"{event.reader} was shown {event.message} at {_place(event)}, which was not written there"


def one_place_for_a_message(history: TransactionHistory) -> Iterator[str]:
    """A message has one offset and an offset one message, for all readers and however often it was sent."""
    places: dict[MessageId, int] = {}
    messages: dict[tuple[TopicPartition, int], MessageId] = {}
    for event in history:
        if isinstance(event, Read):
            known_offset = places.setdefault(event.message, event.offset)
            if known_offset != event.offset:
                yield f"{event.message} is at {event.partition} offset {known_offset} and again at {event.offset}"
            known = messages.setdefault((event.partition, event.offset), event.message)
            if known != event.message:
                yield f"{_place(event)} is {known} and also {event.message}"


def reads_go_forward(history: TransactionHistory) -> Iterator[str]:
    """A reader sees rising offsets, none twice."""
    last: dict[tuple[str, bool, TopicPartition], int] = {}
    for event in history:
        if isinstance(event, Read):
            key = (event.reader, event.is_read_committed, event.partition)
            if event.offset <= last.get(key, -1):
                yield f"{event.reader} was shown {_place(event)} after offset {last[key]}"
            last[key] = event.offset


def order_is_kept_across_transactions(history: TransactionHistory) -> Iterator[str]:
    """Within a partition the messages of one process are in the order in which they were written."""
    transactions = transactions_by_message(history)
    placed: defaultdict[tuple[TopicPartition, str, int], dict[int, tuple[int, int]]] = defaultdict(dict)
    for event in history:
        if isinstance(event, Read):
            transaction = transactions.get(event.message)
            if transaction is not None:
                name = transaction.name
                key = (event.partition, name.transactional_id, name.incarnation)
                placed[key][event.offset] = (name.number, event.message.number)
    for (partition, transactional_id, incarnation), numbers in placed.items():
        for (offset, number), (next_offset, next_number) in itertools.pairwise(sorted(numbers.items())):
            if next_number <= number:
                yield (
                    f"{partition}: {transactional_id}.{incarnation} wrote {number} at offset {offset} and then "
                    f"{next_number} at offset {next_offset}"
                )


def what_committed_readers_saw_is_in_the_log(history: TransactionHistory) -> Iterator[str]:
    found = {
        (event.partition, event.offset)
        for event in history
        if isinstance(event, Read) and not event.is_read_committed
    }
    ended = {end.partition for end in _ends(history, is_read_committed=False)}
    for read in _committed_reads(history):
        if read.partition in ended and (read.partition, read.offset) not in found:
            yield f"{read.reader} was shown {read.message} at {_place(read)}, which is gone"


def a_transaction_ends_one_way(history: TransactionHistory) -> Iterator[str]:
    """All clients that know the end of a transaction agree on it."""
    known: dict[TransactionName, bool] = {}
    for event in history:
        if (
            isinstance(event, Ended)
            and known.setdefault(event.transaction, event.is_commit) != event.is_commit
        ):
            yield f"{event.transaction} is known to be committed, and known to be aborted"


def an_epoch_is_given_to_one_process(history: TransactionHistory) -> Iterator[str]:
    """An epoch is given to one process; each one fences the one before, also in a takeover."""
    holders: dict[tuple[str, int, int], int] = {}
    for event in history:
        if isinstance(event, Initialised):
            key = (event.transactional_id, event.producer_id, event.producer_epoch)
            holder = holders.setdefault(key, event.incarnation)
            if holder != event.incarnation:
                yield (
                    f"{event.transactional_id}: producer {event.producer_id} epoch {event.producer_epoch} was given to "
                    f"{holder} and to {event.incarnation}"
                )


def a_fenced_producer_writes_nothing(history: TransactionHistory) -> Iterator[str]:
    """Messages sent under an epoch after a later one was given out are in no log, and no end requested then commits."""
    given: defaultdict[tuple[str, int], list[Initialised]] = defaultdict(list)
    for event in history:
        if isinstance(event, Initialised):
            given[event.transactional_id, event.producer_id].append(event)
    read = {event.message for event in history if isinstance(event, Read)}
    for transaction in _transactions(history).values():
        epoch = transaction.producer_epoch
        later = given[transaction.name.transactional_id, transaction.producer_id]
        fenced_s = _fenced_s((each for each in later if not each.is_takeover), epoch)
        for write in transaction.writes:
            if write.at_s > fenced_s and write.message in read:
                yield (
                    f"{write.message} was sent at {write.at_s:.3f} under epoch {epoch}, which was "
                    f"fenced at {fenced_s:.3f}, and is in the log"
                )
        if not transaction.is_committed:
            continue
        asked = [
            (
                each.at_s,
                _fenced_s(given[transaction.name.transactional_id, each.producer[0]], each.producer[1]),
            )
            for each in transaction.commits_asked
        ]
        if asked and all(at_s > fenced_s for at_s, fenced_s in asked):
            at_s, fenced_s = asked[0]
            yield f"{transaction.name} was fenced at {fenced_s:.3f}, and committed at {at_s:.3f}"


def _fenced_s(given: Iterable[Initialised], epoch: int) -> float:
    """Returns the time at which a later epoch was given out for the first time."""
    return min((each.at_s for each in given if each.producer_epoch > epoch), default=math.inf)


def every_input_is_transformed_once(history: TransactionHistory) -> Iterator[str]:
    """Each committed input message has exactly one committed output message."""
    sources = {
        event.message: event.source
        for event in history
        if isinstance(event, Wrote) and event.source is not None
    }
    readers = {end.reader for end in _ends(history, is_read_committed=True)}
    drained = {event.partition for event in history if isinstance(event, Transformed)}
    for reader in sorted(readers):
        outputs: dict[Place, MessageId] = {}
        inputs: dict[Place, MessageId] = {}
        for read in _committed_reads(history):
            if read.reader != reader:
                continue
            source = sources.get(read.message)
            if source is not None and outputs.setdefault(source, read.message) != read.message:
                yield f"{source} was transformed into {outputs[source]} and into {read.message}"
            if read.partition in drained:
                inputs[Place(read.partition, read.offset)] = read.message
        missed = [
            f"{message} at {place} was never transformed"
            for place, message in inputs.items()
            if place not in outputs
        ]
        yield from _first_of(missed)
        for place, output in outputs.items():
            if place.partition in drained and place not in inputs:
                yield f"{output} was made of {place}, which no committed reader sees"


TransactionRule = Callable[[TransactionHistory], Iterator[str]]
TRANSACTION_RULES: tuple[TransactionRule, ...] = (
    committed_transactions_are_read,
    only_committed_transactions_are_read,
    a_commit_is_asked_for_before_it_is_read,
    transactions_are_atomic,
    nothing_invented_is_read,
    one_place_for_a_message,
    reads_go_forward,
    order_is_kept_across_transactions,
    what_committed_readers_saw_is_in_the_log,
    a_transaction_ends_one_way,
    an_epoch_is_given_to_one_process,
    a_fenced_producer_writes_nothing,
    every_input_is_transformed_once,
)


def _place(event: Read) -> str:
    return f"{event.partition} offset {event.offset}"


def _first_of(texts: Sequence[str]) -> Iterator[str]:
    yield from texts[:_NAMED_MAX]
    if len(texts) > _NAMED_MAX:
        yield f"and {len(texts) - _NAMED_MAX} more"
