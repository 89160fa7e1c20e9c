"""What a share consumer holds: its room, shared with others, and the order in which it is taken."""

from __future__ import annotations

from tidemill.client.share.deliveries import Capacity, Held, ShareDelivery
from tidemill.client.share.membership import SharePlace
from tidemill.protocol.records import Record
from tidemill.types import TopicPartition

LOCKED_UNTIL_S = 30.0


def delivery(offset: int, rank: int = 0) -> ShareDelivery:
    record = Record(offset, 0, None, None, ())
    place = SharePlace(bytes([rank]) * 16, 0)
    return ShareDelivery(TopicPartition(f"t{rank}", 0), record, 1, place, 1, 0, LOCKED_UNTIL_S, rank)


def test_consumers_that_share_a_capacity_share_its_room() -> None:
    capacity = Capacity(3)
    one, two = Held(capacity), Held(capacity)
    one.reserve(2)
    assert capacity.room == 1
    first, second = delivery(0), delivery(1)
    one.add(first)
    one.give_back(2)
    two.add(second)
    assert capacity.room == 1
    one.drop(first)
    one.drop(first)
    assert capacity.room == 2
    two.drop_session(1, 0)
    assert capacity.room == 3


def test_record_that_comes_again_takes_one_place() -> None:
    capacity = Capacity(2)
    held = Held(capacity)
    stale, current = delivery(0), delivery(0)
    held.add(stale)
    held.add(current)
    assert capacity.room == 1
    held.drop(stale)
    assert capacity.room == 1
    assert held.take(0.0) is current


def test_smaller_limit_leaves_no_room_and_keeps_what_is_held() -> None:
    capacity = Capacity(5)
    held = Held(capacity)
    for offset in range(4):
        held.add(delivery(offset))
    capacity.set_limit(2)
    assert capacity.room == 0
    assert held.count == 4


def test_best_rank_is_taken_first_and_then_what_came_first() -> None:
    held = Held(Capacity(10))
    for offset, rank in enumerate([1, 0, 2, 1, 0]):
        held.add(delivery(offset, rank))
    taken = []
    while (each := held.take(0.0)) is not None:
        taken.append(each.record.offset)
    assert taken == [1, 4, 0, 3, 2]


def test_lock_to_renew_is_of_that_session_ends_soon_and_is_neither_settled_nor_being_renewed() -> None:
    held = Held(Capacity(10))
    wanted, later, settled, renewed = (delivery(offset) for offset in range(4))
    later.locked_until_s = LOCKED_UNTIL_S + 10
    settled.is_settled = True
    renewed.is_being_renewed = True
    for each in (wanted, later, settled, renewed):
        held.add(each)
    assert held.to_renew(1, 0, LOCKED_UNTIL_S + 1) == [wanted]
    assert held.to_renew(1, 0, LOCKED_UNTIL_S) == []
    assert held.to_renew(1, 1, LOCKED_UNTIL_S + 1) == []
    assert held.to_renew(2, 0, LOCKED_UNTIL_S + 1) == []
