"""The batches that producers sent to a partition and that other partitions store (decision 18).

A partition that was decommissioned stores new records again, or passes them on to another partition than before, or is a
new one under an old number. The sequences of producers went on in another log meanwhile. Its leader asks the leaders of the
partitions that may have stored its batches, once, before it takes the first batch of an idempotent producer. A broker that
serves a partition which is gone does the same.

Their answer stays true: each has replied with what is committed, and knows from its metadata that it stores nothing more for
this partition. A batch that is on its way there is refused.

The question is a DescribeProducers with indexes that no client sends. Besides the storing partition it has negative ones:
the partition that producers named, and how far the storing leader must know the metadata. The answer has a producer for each
batch, with its base sequence as the coordinator epoch and its base offset as the start of a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from tidemill.errors import ErrorCode
from tidemill.log.producer_state.producers import (
    BATCHES_REMEMBERED,
    AppendedBatch,
    Producers,
    ProducerState,
    later_sequence,
    next_sequence,
)
from tidemill.protocol.api.transactions import DescribeProducersRequest, TopicRequest
from tidemill.protocol.api.transactions import ProducerState as DescribedProducer
from tidemill.protocol.records import BatchHeader, InvalidBatch
from tidemill.types import TopicPartition


class Stored(NamedTuple):
    """The last batches of one producer that another partition stores."""

    producer_id: int
    epoch: int
    batches: list[AppendedBatch]


Answered = Callable[[Iterable[Stored] | None], None]


class StoredElsewhereHost(Protocol):
    def ask_stored(self, storing: TopicPartition, named: int, answered: Answered) -> None:
        """Ask the leader of `storing` what it stores for the partition `named`, by metadata not older than this broker's.

        `answered` is called once, later; with None when there is no answer.
        """


class StoredElsewhere:
    """The producers' batches that other partitions store for one, while this broker leads it or serves its producers."""

    __slots__ = ("_asked", "_host", "_name", "_producers", "_unknown", "origins")

    def __init__(self, name: TopicPartition, origins: tuple[int, ...], host: StoredElsewhereHost) -> None:
        self._name = name
        self.origins = origins
        self._host = host
        self._unknown = set(origins)
        self._asked: set[int] = set()
        self._producers: dict[int, Stored] = {}

    @property
    def not_known(self) -> str:
        """Returns the reason for which a batch has to wait."""
        return f"partitions {list(self.origins)} may store records of {self._name}, and did not answer yet"

    @property
    def is_known(self) -> bool:
        return not self._unknown

    @property
    def is_empty(self) -> bool:
        return not self._unknown and not self._producers

    def ask(self) -> None:
        """Ask those that have not answered, unless that is under way."""
        for origin in sorted(self._unknown - self._asked):
            self._asked.add(origin)
            storing = TopicPartition(self._name.topic, origin)
            self._host.ask_stored(storing, self._name.partition, partial(self._answered, origin))

    def _answered(self, origin: int, stored: Iterable[Stored] | None) -> None:
        self._asked.discard(origin)
        if stored is None or origin not in self._unknown:
            return
        self._unknown.discard(origin)
        for each in stored:
            known = self._producers.get(each.producer_id)
            if known is None or _is_later(each, known):
                self._producers[each.producer_id] = each

    def find(self, header: BatchHeader) -> tuple[AppendedBatch | None, int | None]:
        """The stored batch that this one repeats, and the sequence that follows what is stored; None where it is unknown.

        `InvalidBatch` when the producer is fenced.
        """
        stored = self._producers.get(header.producer_id)
        if stored is None or stored.epoch < header.producer_epoch:
            return None, None
        if stored.epoch > header.producer_epoch:
            raise InvalidBatch(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} wrote with epoch {header.producer_epoch}, its last one is {stored.epoch}",
            )
        for batch in stored.batches:
            if (batch.base_sequence, batch.last_sequence) == (header.base_sequence, header.last_sequence):
                return batch, None
        return None, next_sequence(stored.batches)

    def forget_older(self, state: ProducerState | None) -> None:
        """Forget a producer whose retries all refer to batches of this partition's own log by now."""
        stored = None if state is None else self._producers.get(state.producer_id)
        if state is None or stored is None:
            return
        is_full = len(state.batches) == BATCHES_REMEMBERED
        # Sequences of different epochs do not compare.
        if state.epoch > stored.epoch or (
            state.epoch == stored.epoch
            and is_full
            and _follows(state.batches[0].base_sequence, next_sequence(stored.batches))
        ):
            del self._producers[state.producer_id]


def _is_later(one: Stored, other: Stored) -> bool:
    if one.epoch != other.epoch:
        return one.epoch > other.epoch
    return _follows(next_sequence(one.batches), next_sequence(other.batches))


def _follows(sequence: int, other: int) -> bool:
    return later_sequence(sequence, other) == sequence


def stored_for(producers: Producers, named: int) -> list[Stored]:
    """Returns the producers' batches that a log stores for the partition `named`."""
    return [
        Stored(state.producer_id, state.epoch, state.named[named])
        for state in producers.states()
        if named in state.named
    ]


# -- on the wire ---------------------------------------------------------------------------------------------


# A metadata offset has more bits than the index of a partition.
_INDEXES = 1 << 31


def end_of(stored: Iterable[Stored]) -> int:
    """The offset behind the last batch."""
    return max((batch.last_offset + 1 for each in stored for batch in each.batches), default=0)


class Question(NamedTuple):
    """Asks what a partition stores for the partition `named`, by metadata that is not older than `metadata_end`."""

    storing: int
    named: int
    metadata_end: int


def to_request(topic: str, question: Question) -> DescribeProducersRequest:
    high, low = divmod(question.metadata_end, _INDEXES)
    indexes = [question.storing, ~question.named, ~high, ~low]
    return DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=indexes)])


def question_in(indexes: Sequence[int]) -> Question | None:
    """The question in the indexes of a DescribeProducers; None when they are those of partitions."""
    if len(indexes) != 4 or max(indexes[1:]) >= 0:
        return None
    return Question(indexes[0], ~indexes[1], ~indexes[2] * _INDEXES + ~indexes[3])


def to_described(stored: Iterable[Stored]) -> list[DescribedProducer]:
    return [
        DescribedProducer(
            producer_id=each.producer_id,
            producer_epoch=each.epoch,
            last_sequence=batch.last_sequence,
            last_timestamp=batch.timestamp,
            coordinator_epoch=batch.base_sequence,
            current_txn_start_offset=batch.base_offset,
        )
        for each in stored
        for batch in each.batches
    ]


def from_described(described: Iterable[DescribedProducer]) -> list[Stored]:
    found: dict[int, Stored] = {}
    for each in described:
        base_sequence, base_offset = each.coordinator_epoch, each.current_txn_start_offset
        span = (each.last_sequence - base_sequence) & 0x7FFFFFFF
        batch = AppendedBatch(
            base_sequence, each.last_sequence, base_offset, base_offset + span, each.last_timestamp
        )
        stored = found.setdefault(each.producer_id, Stored(each.producer_id, each.producer_epoch, []))
        stored.batches.append(batch)
    return list(found.values())
