"""The checker of two-phase commits: each batch's rows are read once, from the decided transactions only.

It uses the same history as `transactions.py`. A row of a batch is the `source` of the messages that tasks made of it,
one for each attempt. A decision counts when any client has read it, or knows that it wrote it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from tidemill.sim.checks.checker import MessageId, Violation
from tidemill.sim.checks.transactions import (
    Began,
    Decided,
    Ended,
    Place,
    Read,
    ReadToEnd,
    TransactionHistory,
    TransactionName,
    Wrote,
)
from tidemill.types import TopicPartition

_BATCHES = "batches"


def row(batch: int, number: int) -> Place:
    """The id of a row. It is in no topic: the query reads it."""
    return Place(TopicPartition(_BATCHES, batch), number)


def check_decisions(history: TransactionHistory) -> list[Violation]:
    return [Violation(rule.__name__, text) for rule in DECISION_RULES for text in rule(history)]


def _decided(history: TransactionHistory) -> dict[int, Decided]:
    """The decisions by batch: the first one that any client knew."""
    found: dict[int, Decided] = {}
    for event in history:
        if isinstance(event, Decided):
            found.setdefault(event.batch, event)
    return found


def _writers(history: TransactionHistory) -> dict[TransactionName, tuple[int, int]]:
    return {
        event.transaction: (event.producer_id, event.producer_epoch)
        for event in history
        if isinstance(event, Began)
    }


def _rows(history: TransactionHistory) -> dict[MessageId, Wrote]:
    return {
        event.message: event
        for event in history
        if isinstance(event, Wrote) and event.source is not None and event.source.partition.topic == _BATCHES
    }


def a_batch_is_decided_once(history: TransactionHistory) -> Iterator[str]:
    """Drivers fence each other: each batch is decided by exactly one of them."""
    first = _decided(history)
    for event in history:
        if isinstance(event, Decided) and event.writers != first[event.batch].writers:
            yield f"batch {event.batch} is {first[event.batch].writers} and also {event.writers}"
    missing = set(range(max(first, default=-1) + 1)) - set(first)
    if missing:
        yield f"no decision is known about the batches {sorted(missing)}"


def no_decided_transaction_is_aborted(history: TransactionHistory) -> Iterator[str]:
    decided = {writer: event.batch for event in _decided(history).values() for writer in event.writers}
    writers = _writers(history)
    for event in history:
        if isinstance(event, Ended) and not event.is_commit and writers[event.transaction] in decided:
            batch = decided[writers[event.transaction]]
            yield f"{event.transaction} is decided to be part of batch {batch}, and is aborted"


def only_decided_rows_are_read(history: TransactionHistory) -> Iterator[str]:
    """Rows of failed attempts are never read."""
    decided = {writer for event in _decided(history).values() for writer in event.writers}
    writers, rows = _writers(history), _rows(history)
    for event in history:
        if isinstance(event, Read) and event.is_read_committed and event.message in rows:
            transaction = rows[event.message].transaction
            if writers[transaction] not in decided:
                yield f"{event.reader} was shown {event.message} of {transaction}, which was not decided"


def every_row_of_a_decided_batch_is_read_once(history: TransactionHistory) -> Iterator[str]:
    rows = _rows(history)
    wanted = [row(event.batch, each) for event in _decided(history).values() for each in range(event.rows)]
    partitions = {write.partition for write in rows.values()}
    ended: defaultdict[str, set[TopicPartition]] = defaultdict(set)
    seen: defaultdict[str, defaultdict[Place, int]] = defaultdict(lambda: defaultdict(int))
    for event in history:
        if isinstance(event, ReadToEnd) and event.is_read_committed:
            ended[event.reader].add(event.partition)
        elif isinstance(event, Read) and event.is_read_committed and event.message in rows:
            source = rows[event.message].source
            assert source is not None
            seen[event.reader][source] += 1
    for reader, read in ended.items():
        if not partitions <= read:
            continue
        for place in wanted:
            if seen[reader][place] != 1:
                count = seen[reader][place]
                yield f"{reader} was shown row {place.offset} of batch {place.partition.partition} {count} times"


DecisionRule = Callable[[TransactionHistory], Iterator[str]]
DECISION_RULES: tuple[DecisionRule, ...] = (
    a_batch_is_decided_once,
    no_decided_transaction_is_aborted,
    only_decided_rows_are_read,
    every_row_of_a_decided_batch_is_read_once,
)
