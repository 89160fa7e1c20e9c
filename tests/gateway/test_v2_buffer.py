"""The records between a consumer and its answers, without a consumer."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tidemill.gateway.problems import Problem
from tidemill.gateway.rest_v2.buffer import Buffer
from tidemill.types import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class FakeMessage(NamedTuple):
    """As confluent-kafka has it."""

    place: TopicPartition
    number: int

    def topic(self) -> str:
        return self.place.topic

    def partition(self) -> int:
        return self.place.partition

    def offset(self) -> int:
        return self.number

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"%09d" % self.number


def message(place: TopicPartition, number: int) -> Any:
    return FakeMessage(place, number)


def encode(message: Any) -> bytes:
    return b"%d" % message.offset()


def filled(*messages: tuple[TopicPartition, int]) -> Buffer:
    buffer = Buffer()
    for place, number in messages:
        buffer.add(message(place, number))
    return buffer


def test_only_what_is_confirmed_was_answered() -> None:
    buffer = filled((P0, 1), (P1, 7), (P0, 2))
    batch = buffer.take(1000, encode)
    assert batch.body == b"[1,7,2]"
    assert buffer.answered() == {}
    buffer.confirm(batch)
    assert buffer.answered() == {P0: 3, P1: 8}
    assert (buffer.is_empty, buffer.waiting_bytes) == (True, 0)


def test_records_that_are_given_back_come_first_and_in_order() -> None:
    buffer = filled((P0, 1), (P0, 2), (P0, 3))
    batch = buffer.take(20, encode)
    assert batch.body == b"[1,2]"
    buffer.give_back(batch)
    assert buffer.take(1000, encode).body == b"[1,2,3]"


@pytest.mark.parametrize("is_delivered", [True, False])
def test_an_answer_changes_nothing_for_a_partition_that_was_forgotten(is_delivered: bool) -> None:
    buffer = filled((P0, 1), (P1, 7))
    batch = buffer.take(1000, encode)
    buffer.forget([P0])
    if is_delivered:
        buffer.confirm(batch)
        assert buffer.answered() == {P1: 8}
    else:
        buffer.give_back(batch)
        assert buffer.take(1000, encode).body == b"[7]"


def test_forgetting_drops_what_waits_and_what_was_answered() -> None:
    buffer = filled((P0, 1), (P1, 7))
    buffer.confirm(buffer.take(1, encode))
    buffer.add(message(P0, 2))
    buffer.forget([P0])
    assert buffer.answered() == {}
    assert buffer.first_waiting(P0) is None
    assert buffer.first_waiting(P1) == 7
    assert buffer.waiting_bytes == 10


def test_a_record_that_cannot_be_written_waits_for_its_own_refusal() -> None:
    def refuse_two(message: Any) -> bytes:
        if message.offset() == 2:
            raise Problem(422, 42206, "two is not written")
        return encode(message)

    buffer = filled((P0, 1), (P0, 2), (P0, 3))
    assert buffer.take(1000, refuse_two).body == b"[1]"
    for _ in range(2):
        with pytest.raises(Problem, match="two"):
            buffer.take(1000, refuse_two)
    assert buffer.take(1000, encode).body == b"[2,3]"
