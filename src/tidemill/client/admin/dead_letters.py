"""Lists, replays and purges the letters of a dead-letter topic. `tidemill.dead_letters` has the conventions and rules.

What was replayed is remembered as offsets of the group `tidemill-dead-letters-TOPIC` in the dead-letter topic. Letters
that were replayed out of order stand in the metadata of the commit, as ranges. Letters and marks are one transaction
under a transactional id of the same name. A replay that is killed leaves both or neither, and of two at a time one is
fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.consumer import Consumer
from tidemill.client.producing.partitioner import Partitioner
from tidemill.client.producing.transactional import CommittedOffset, TransactionalProducer, stable_offsets
from tidemill.dead_letters import EXHAUSTED, FAILED, PUBLISH, DeadLetter, Decision, Header, decide, read
from tidemill.errors import TidemillError
from tidemill.protocol.isolation import READ_COMMITTED
from tidemill.protocol.records import HEADER_SIZE, Record, build_batch
from tidemill.protocol.records import Header as RecordHeader
from tidemill.types import TopicPartition

ATTEMPTS_MAX = 3
# Below the default of offset.metadata.max.bytes, 4096.
_MARKS_CHARS_MAX = 4000
_LETTERS_A_TRANSACTION = 500


class Marks:
    """Offsets of one partition whose letters were replayed, as ranges that do not touch."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._ranges = sorted(ranges)

    @classmethod
    def of(cls, committed: CommittedOffset | None) -> Marks:
        if committed is None:
            return cls()
        marks = cls([(0, committed.offset)] if committed.offset else [])
        for part in filter(None, committed.metadata.split(",")):
            first, _, last = part.partition("-")
            marks.add(int(first), int(last or first) + 1)
        return marks

    def committed(self) -> CommittedOffset:
        """As it is written. The offset is where the first letter is that was not replayed."""
        offset = self._ranges[0][1] if self._ranges and self._ranges[0][0] == 0 else 0
        later = [each for each in self._ranges if each[0] > 0]
        text = ",".join(str(first) if end == first + 1 else f"{first}-{end - 1}" for first, end in later)
        if len(text) > _MARKS_CHARS_MAX:
            raise TidemillError(
                "too many letters were replayed out of order to remember each; replay the others before them first"
            )
        return CommittedOffset(offset, text)

    def add(self, first_offset: int, end_offset: int) -> None:
        if first_offset == end_offset:
            return
        merged: list[tuple[int, int]] = []
        for first, end in sorted([*self._ranges, (first_offset, end_offset)]):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            else:
                merged.append((first, end))
        self._ranges = merged

    def __contains__(self, offset: int) -> bool:
        return any(first <= offset < end for first, end in self._ranges)


class NoLetter(TidemillError):
    """There is no letter at the given place."""


class ListedLetter(NamedTuple):
    letter: DeadLetter
    is_replayed: bool


@dataclass
class Replayed:
    """Counts what a replay did, in letters."""

    published: int = 0
    replayed_before: int = 0
    exhausted: int = 0
    # The first of those that nothing says where to put.
    failed: int = 0
    reason: str = ""

    def count(self, decision: Decision) -> None:
        if decision.outcome == PUBLISH:
            self.published += 1
        elif decision.outcome == EXHAUSTED:
            self.exhausted += 1
        elif decision.outcome == FAILED:
            self.failed += 1
            self.reason = self.reason or f"{decision.letter.place}: {decision.why}"


class _Letters(NamedTuple):
    """Records for one partition, as a producer of batches takes them."""

    records: memoryview
    record_count: int
    base_timestamp: int
    max_timestamp: int


class DeadLetterAdmin:
    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._name = f"tidemill-dead-letters-{topic}"
        self._partition_counts: dict[str, int] = {}
        self._partitioner = Partitioner()

    # -- looking ---------------------------------------------------------------------------------------------

    def letters(self, offsets_max: int | None = None) -> Iterator[ListedLetter]:
        """All letters, by partition and offset; or those in so many offsets at the end of each partition."""
        partitions = self._cluster.partitions_of(self._topic)
        marks = self._marks(partitions)
        begin: dict[TopicPartition, int] = {}
        if offsets_max is not None:
            admin = Admin(self._cluster)
            starts, ends = admin.start_offsets(partitions), admin.end_offsets(partitions, READ_COMMITTED)
            begin = {each: max(starts[each], ends[each] - offsets_max) for each in partitions}
        for letter in self._read(partitions, None, begin):
            replayed = letter.dead_letter_offset in marks[letter.dead_letter_partition]
            yield ListedLetter(letter, replayed)

    def letter(self, partition: int, offset: int) -> ListedLetter:
        place = TopicPartition(self._topic, partition)
        for letter in self._read([place], None, {place: offset}):
            if letter.dead_letter_offset == offset:
                return ListedLetter(letter, offset in self._marks([place])[partition])
            break
        raise NoLetter(f"{place} has no letter at offset {offset}")

    def _marks(self, partitions: Sequence[TopicPartition]) -> dict[int, Marks]:
        found = stable_offsets(self._cluster, self._name, partitions)
        return {each.partition: Marks.of(found.get(each)) for each in partitions}

    def _read(
        self,
        partitions: Sequence[TopicPartition],
        to_topic: str | None,
        begin: dict[TopicPartition, int] | None = None,
    ) -> Iterator[DeadLetter]:
        """Up to the end that the partitions have now."""
        admin = Admin(self._cluster)
        ends = admin.end_offsets(partitions, READ_COMMITTED)
        starts = {**admin.start_offsets(partitions), **(begin or {})}
        for place in partitions:
            if starts[place] >= ends[place]:
                continue
            consumer = Consumer(self._cluster, {place: starts[place]}, isolation_level=READ_COMMITTED)
            while consumer.positions[place] < ends[place]:
                for _, record in consumer.poll(max_wait_ms=100):
                    if record.offset < ends[place]:
                        headers = [Header(*each) for each in record.headers]
                        yield read(
                            *place,
                            record.offset,
                            record.timestamp,
                            record.key,
                            record.value,
                            headers,
                            to_topic,
                        )

    # -- replaying -------------------------------------------------------------------------------------------

    def replay(
        self,
        only: tuple[int, int] | None = None,
        *,
        to_topic: str | None = None,
        attempts_max: int = ATTEMPTS_MAX,
        matches: Callable[[DeadLetter], bool] = lambda _: True,
    ) -> Replayed:
        """Puts letters back where they came from, each once: all, or the one at (partition, offset)."""
        partitions = self._cluster.partitions_of(self._topic)
        begin = None
        if only is not None:
            self.letter(*only)
            partitions = [TopicPartition(self._topic, only[0])]
            begin = {partitions[0]: only[1]}
        producer = TransactionalProducer(self._cluster, self._name)
        done = Replayed()
        try:
            producer.init()
            # Read when earlier replays are fenced: nothing of theirs comes after it.
            marks = self._marks(partitions)
            chunk: list[DeadLetter] = []
            passed: dict[int, int] = {}
            for letter in self._read(partitions, to_topic, begin):
                offset, mark = letter.dead_letter_offset, marks[letter.dead_letter_partition]
                if only is None:
                    # Before the first letter and between two are markers and what was deleted: nothing to remember.
                    mark.add(passed.get(letter.dead_letter_partition, 0), offset)
                    passed[letter.dead_letter_partition] = offset + 1
                elif offset != only[1]:
                    break
                if offset in mark:
                    done.replayed_before += 1
                    continue
                if not matches(letter):
                    continue
                decision = decide(letter, None, attempts_max)
                done.count(decision)
                if decision.outcome == PUBLISH:
                    chunk.append(decision.letter)
                if len(chunk) >= _LETTERS_A_TRANSACTION:
                    self._publish(producer, chunk, marks)
                    chunk = []
            if chunk:
                self._publish(producer, chunk, marks)
        finally:
            producer.close()
        return done

    def _publish(
        self, producer: TransactionalProducer, letters: Sequence[DeadLetter], marks: dict[int, Marks]
    ) -> None:
        batches: dict[TopicPartition, list[Record]] = {}
        for letter in letters:
            records = batches.setdefault(self._target(letter), [])
            headers = [RecordHeader(*each) for each in letter.headers]
            records.append(Record(len(records), letter.timestamp_ms, letter.key, letter.value, headers))
            marks[letter.dead_letter_partition].add(letter.dead_letter_offset, letter.dead_letter_offset + 1)
        changed = {
            TopicPartition(self._topic, number): marks[number].committed()
            for number in {letter.dead_letter_partition for letter in letters}
        }
        producer.begin()
        try:
            producer.produce((place, _encoded(records)) for place, records in batches.items())
            producer.send_offsets(self._name, changed)
            producer.commit()
        except TidemillError:
            if producer.is_open:
                producer.abort()
            raise

    def _target(self, letter: DeadLetter) -> TopicPartition:
        """The partition that it came from, while the topic has that one; else where its key goes."""
        assert letter.topic is not None
        if letter.topic not in self._partition_counts:
            self._partition_counts[letter.topic] = len(self._cluster.partitions_of(letter.topic))
        count = self._partition_counts[letter.topic]
        original = letter.failure.partition
        if letter.topic == letter.failure.topic and original is not None and 0 <= original < count:
            return TopicPartition(letter.topic, original)
        return TopicPartition(letter.topic, self._partitioner.partition(letter.topic, letter.key, count))

    # -- purging ---------------------------------------------------------------------------------------------

    def purge(self, *, replayed_only: bool) -> int:
        """Deletes letters; returns how many offsets that were. A log is deleted from its start on, without holes."""
        partitions = self._cluster.partitions_of(self._topic)
        admin = Admin(self._cluster)
        starts = admin.start_offsets(partitions)
        if replayed_only:
            marks = self._marks(partitions)
            ends = {each: marks[each.partition].committed().offset for each in partitions}
        else:
            ends = admin.end_offsets(partitions)
        before = {each: end for each, end in ends.items() if end > starts[each]}
        if before:
            admin.delete_records(before)
        return sum(end - starts[each] for each, end in before.items())


def _encoded(records: list[Record]) -> _Letters:
    data = build_batch(records)
    timestamps = [record.timestamp for record in records]
    return _Letters(memoryview(data)[HEADER_SIZE:], len(records), timestamps[0], max(timestamps))
