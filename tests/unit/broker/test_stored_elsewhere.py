"""What other partitions store for one that takes records again."""

from __future__ import annotations

import pytest

from tidemill.broker.partitions.shrinking.stored_elsewhere import (
    Answered,
    Question,
    Stored,
    StoredElsewhere,
    from_described,
    question_in,
    stored_for,
    to_described,
    to_request,
)
from tidemill.errors import ErrorCode
from tidemill.log.producer_state.producers import AppendedBatch, Producers, ProducerState
from tidemill.protocol.records import (
    BatchHeader,
    InvalidBatch,
    Record,
    build_batch,
    header_at,
    with_named_partition,
)
from tidemill.types import TopicPartition

NAME = TopicPartition("t", 5)
PRODUCER_ID = 7


class Leaders:
    """The leaders of other partitions, as the test lets them answer."""

    def __init__(self) -> None:
        self.asked: dict[int, Answered] = {}

    def ask_stored(self, storing: TopicPartition, named: int, answered: Answered) -> None:
        assert (storing.topic, named) == NAME
        assert storing.partition not in self.asked
        self.asked[storing.partition] = answered

    def answer(self, partition: int, *stored: Stored) -> None:
        self.asked.pop(partition)(stored)


def header(sequence: int, *, epoch: int = 0, count: int = 2) -> BatchHeader:
    records = (Record(number, 0, None, b"x") for number in range(count))
    return header_at(
        build_batch(records, producer_id=PRODUCER_ID, producer_epoch=epoch, base_sequence=sequence)
    )


def stored(*sequences: int, epoch: int = 0) -> Stored:
    batches = [AppendedBatch(each, each + 1, 100 + each, 101 + each, 0) for each in sequences]
    return Stored(PRODUCER_ID, epoch, batches)


@pytest.fixture
def leaders() -> Leaders:
    return Leaders()


@pytest.fixture
def elsewhere(leaders: Leaders) -> StoredElsewhere:
    elsewhere = StoredElsewhere(NAME, (1, 2), leaders)
    elsewhere.ask()
    return elsewhere


def test_nothing_is_known_until_all_have_answered(elsewhere: StoredElsewhere, leaders: Leaders) -> None:
    elsewhere.ask()
    leaders.answer(1, stored(0))
    assert not elsewhere.is_known
    # One that has no answer is asked again.
    leaders.asked.pop(2)(None)
    elsewhere.ask()
    leaders.answer(2)
    assert elsewhere.is_known
    assert not elsewhere.is_empty


def test_a_stored_batch_is_found_and_the_next_sequence_follows_the_latest(
    elsewhere: StoredElsewhere, leaders: Leaders
) -> None:
    leaders.answer(1, stored(4, 6))
    leaders.answer(2, stored(0, 2))
    assert elsewhere.find(header(6)) == (AppendedBatch(6, 7, 106, 107, 0), None)
    assert elsewhere.find(header(8)) == (None, 8)
    assert elsewhere.find(header(0, epoch=1)) == (None, None)


def test_an_older_epoch_than_the_stored_one_is_fenced(elsewhere: StoredElsewhere, leaders: Leaders) -> None:
    leaders.answer(1, stored(4, epoch=2))
    leaders.answer(2)
    with pytest.raises(InvalidBatch) as raised:
        elsewhere.find(header(6, epoch=1))
    assert raised.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_producer_is_forgotten_when_its_last_five_batches_are_in_the_own_log(
    elsewhere: StoredElsewhere, leaders: Leaders
) -> None:
    leaders.answer(1, stored(0))
    leaders.answer(2)
    for last, is_forgotten in ((8, False), (10, True)):
        own = ProducerState(PRODUCER_ID, 0, stored(*range(2, last + 2, 2)).batches)
        elsewhere.forget_older(own)
        assert elsewhere.is_empty == is_forgotten


def test_a_producer_is_not_forgotten_for_batches_of_an_earlier_epoch(
    elsewhere: StoredElsewhere, leaders: Leaders
) -> None:
    leaders.answer(1, stored(0, epoch=1))
    leaders.answer(2)
    elsewhere.forget_older(ProducerState(PRODUCER_ID, 0, stored(*range(20, 30, 2)).batches))
    assert elsewhere.find(header(2, epoch=1)) == (None, 2)


def test_the_question_and_its_answer_survive_the_wire() -> None:
    for metadata_end in (0, 3, 1 << 31, 1 << 40):
        question = Question(1, 5, metadata_end)
        (topic,) = to_request("t", question).topics
        assert question_in(topic.partition_indexes) == question
    assert question_in([1, 5, 3, 0]) is None
    producers = Producers()
    for base_offset, sequence in ((0, 0), (2, 2)):
        batch = header(sequence)._replace(base_offset=base_offset)
        producers.record(batch._replace(attributes=with_named_partition(batch.attributes, 5)))
    producers.record(header(0)._replace(base_offset=4))
    found = stored_for(producers, 5)
    assert [len(each.batches) for each in found] == [2]
    assert from_described(to_described(found)) == found
    assert stored_for(producers, 4) == []
