"""Fetches with read_committed: the last stable offset, aborted transactions, and delayed fetches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.broker.replica_world import Answer, World
from tests.unit.broker.transaction_world import (
    OTHER,
    PRODUCER,
    fetched,
    list_offset,
    mark,
    outcome,
    send,
    start_fetch,
    start_marker,
    verification_of,
    wall_ms,
    write,
)
from tests.wire.batches import parse_fetched
from tidemill.errors import ErrorCode
from tidemill.protocol.api.brokers import AlterPartitionRequest
from tidemill.protocol.api.transactions import DescribeProducersRequest, TopicRequest

MakeWorld = Callable[..., World]
WAIT_MS = 20_000
READ_UNCOMMITTED = 0
LATEST, MAX_TIMESTAMP = -1, -3


@pytest.fixture(params=[(1,), (1, 2, 3)], ids=["alone", "replicated"])
def world(request: pytest.FixtureRequest, make_world: MakeWorld) -> World:
    world = make_world(len(request.param))
    world.start()
    world.create_topic(request.param)
    world.settle()
    verification_of(world, confirms=True)
    return world


def add(world: World, sequence: int, *values: bytes, producer_id: int = PRODUCER) -> None:
    answer = send(world, sequence, producer_id=producer_id, values=values or None)
    assert outcome(world, answer) is ErrorCode.NONE


def offsets(answer_part: Any) -> list[int]:
    return [batch.base_offset for batch in parse_fetched(bytes(answer_part.records or b""))]


def woken(world: World, waiting: Answer) -> Any:
    """The response of a fetch before its time limit."""
    world.until(lambda: waiting.is_there, "a fetch that is woken", limit_s=5)
    return fetched(world, waiting)


def aborted(answer_part: Any) -> list[tuple[int, int]] | None:
    found = answer_part.aborted_transactions
    return None if found is None else [(each.producer_id, each.first_offset) for each in found]


class TestHowFar:
    def test_nothing_of_an_open_transaction_and_nothing_behind_it(self, world: World) -> None:
        write(world, b"before")
        add(world, 0)
        write(world, b"behind")
        committed = fetched(world, start_fetch(world, 0))
        assert offsets(committed) == [0]
        assert (committed.high_watermark, committed.last_stable_offset) == (3, 1)
        assert aborted(committed) == []
        uncommitted = fetched(world, start_fetch(world, 0, isolation=READ_UNCOMMITTED))
        assert offsets(uncommitted) == [0, 1, 2]
        assert (uncommitted.high_watermark, uncommitted.last_stable_offset) == (3, 1)
        assert aborted(uncommitted) is None

    @pytest.mark.parametrize("is_commit", [True, False])
    def test_all_of_it_when_it_has_ended(self, world: World, is_commit: bool) -> None:
        add(world, 0)
        write(world, b"behind")
        assert mark(world, is_commit=is_commit) is ErrorCode.NONE
        committed = fetched(world, start_fetch(world, 0))
        assert offsets(committed) == [0, 1, 2]
        assert (committed.high_watermark, committed.last_stable_offset) == (3, 3)
        assert aborted(committed) == ([] if is_commit else [(PRODUCER, 0)])

    def test_the_oldest_open_transaction_decides(self, world: World) -> None:
        add(world, 0)
        add(world, 0, producer_id=OTHER)
        assert mark(world, is_commit=True) is ErrorCode.NONE
        assert world[1].partition().last_stable_offset == 1
        assert mark(world, is_commit=False, producer_id=OTHER) is ErrorCode.NONE
        assert world[1].partition().last_stable_offset == 4

    def test_an_offset_above_the_last_stable_one_is_no_error(self, world: World) -> None:
        add(world, 0)
        add(world, 1)
        above = fetched(world, start_fetch(world, 1))
        assert (above.error_code, offsets(above), aborted(above)) == (0, [], [])

    def test_list_offsets(self, world: World) -> None:
        write(world, b"before")
        world.settle()
        between_ms = wall_ms(world)
        add(world, 0)
        assert list_offset(world, LATEST).offset == 1
        assert list_offset(world, LATEST, isolation=READ_UNCOMMITTED).offset == 2
        assert list_offset(world, 0).offset == 0
        assert list_offset(world, between_ms).offset == -1
        assert list_offset(world, between_ms, isolation=READ_UNCOMMITTED).offset == 1
        assert list_offset(world, MAX_TIMESTAMP).offset == -1
        assert list_offset(world, MAX_TIMESTAMP, isolation=READ_UNCOMMITTED).offset == 1
        assert mark(world, is_commit=True) is ErrorCode.NONE
        assert list_offset(world, LATEST).offset == 3
        assert list_offset(world, between_ms).offset == 1


class TestAborted:
    def test_only_those_that_overlap_what_is_sent(self, world: World) -> None:
        """Three aborted transactions, one after the other: offsets 0-1, 2-3, 4-5."""
        for number in range(3):
            add(world, number)
            assert mark(world, is_commit=False) is ErrorCode.NONE
        everything = fetched(world, start_fetch(world, 0))
        assert aborted(everything) == [(PRODUCER, 0), (PRODUCER, 2), (PRODUCER, 4)]
        assert aborted(fetched(world, start_fetch(world, 2))) == [(PRODUCER, 2), (PRODUCER, 4)]
        first = fetched(world, start_fetch(world, 0, max_bytes=1))
        assert offsets(first) == [0]
        assert aborted(first) == [(PRODUCER, 0)]
        # The marker alone is part of its transaction.
        last = fetched(world, start_fetch(world, 5))
        assert (offsets(last), aborted(last)) == ([5], [(PRODUCER, 4)])

    def test_a_slice_that_ends_with_its_segment(self, make_world: MakeWorld) -> None:
        world = make_world(1)
        world.start()
        world.create_topic((1,))
        world.settle()
        verification_of(world, confirms=True)
        add(world, 0)
        assert mark(world, is_commit=False) is ErrorCode.NONE
        log = world[1].log
        world._run_in(world[1], lambda: log.roll(wall_ms(world)))
        add(world, 1)
        assert mark(world, is_commit=False) is ErrorCode.NONE
        first = fetched(world, start_fetch(world, 0))
        assert offsets(first) == [0, 1]
        assert aborted(first) == [(PRODUCER, 0)]

    def test_a_follower_serves_the_same(self, make_world: MakeWorld) -> None:
        world = make_world(3)
        world.start()
        world.create_topic()
        world.settle()
        verification_of(world, confirms=True)
        add(world, 0)
        world.settle()
        assert fetched(world, start_fetch(world, 0, broker_id=2)).last_stable_offset == 0
        assert mark(world, is_commit=False) is ErrorCode.NONE
        add(world, 0, producer_id=OTHER)
        world.settle()
        served = fetched(world, start_fetch(world, 0, broker_id=2))
        assert (served.high_watermark, served.last_stable_offset) == (3, 2)
        assert (offsets(served), aborted(served)) == ([0, 1], [(PRODUCER, 0)])


class TestWaiting:
    def test_open_transaction_completes_no_delayed_fetch(self, world: World) -> None:
        add(world, 0)
        waiting = start_fetch(world, 0, max_wait_ms=WAIT_MS)
        patient = start_fetch(world, 0, isolation=READ_UNCOMMITTED, min_bytes=1_000, max_wait_ms=WAIT_MS)
        write(world, b"x" * 2_000)
        add(world, 1, b"y" * 2_000)
        world.settle()
        assert patient.is_there
        assert not waiting.is_there
        assert mark(world, is_commit=True) is ErrorCode.NONE
        assert offsets(woken(world, waiting)) == [0, 1, 2, 3]

    def test_it_does_not_read_again_and_again(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        add(world, 0)
        waiting = start_fetch(world, 0, max_wait_ms=WAIT_MS)
        log = world[1].log
        reads: list[int] = []
        read = log.read

        def noting(offset: int, *args: Any, **options: Any) -> Any:
            reads.append(offset)
            return read(offset, *args, **options)

        monkeypatch.setattr(log, "read", noting)
        for number in range(10):
            add(world, 1 + number, b"z" * 10_000)
        assert not [offset for offset in reads if offset == 0]
        assert not waiting.is_there

    @pytest.mark.parametrize("is_commit", [True, False])
    def test_the_marker_shows_many_bytes_at_once(self, world: World, is_commit: bool) -> None:
        """More than was asked for lies between: the marker alone would not be enough."""
        for number in range(5):
            add(world, number, b"z" * 1_000)
        waiting = start_fetch(world, 0, min_bytes=4_000, max_wait_ms=WAIT_MS)
        assert mark(world, is_commit=is_commit) is ErrorCode.NONE
        answer = woken(world, waiting)
        assert offsets(answer) == [0, 1, 2, 3, 4, 5]

    def test_too_few_bytes_became_stable(self, world: World) -> None:
        """The first of two transactions ends; what lies behind the second does not count."""
        add(world, 0, b"a" * 1_000)
        add(world, 0, b"b" * 9_000, producer_id=OTHER)
        waiting = start_fetch(world, 0, min_bytes=5_000, max_wait_ms=WAIT_MS)
        assert mark(world, is_commit=True) is ErrorCode.NONE
        world.settle()
        assert not waiting.is_there
        assert mark(world, is_commit=True, producer_id=OTHER) is ErrorCode.NONE
        assert offsets(woken(world, waiting)) == [0, 1, 2, 3]

    def test_plain_records_are_counted_as_for_others(self, world: World) -> None:
        waiting = start_fetch(world, 0, min_bytes=3_000, max_wait_ms=WAIT_MS)
        write(world, b"x" * 1_500)
        world.settle()
        assert not waiting.is_there
        write(world, b"x" * 1_500)
        assert offsets(woken(world, waiting)) == [0, 1]

    def test_a_follower_wakes_them_too(self, make_world: MakeWorld) -> None:
        world = make_world(3)
        world.start()
        world.create_topic()
        world.settle()
        verification_of(world, confirms=True)
        add(world, 0, b"z" * 1_000)
        world.settle()
        waiting = start_fetch(world, 0, broker_id=2, min_bytes=1_000, max_wait_ms=WAIT_MS)
        assert mark(world, is_commit=True) is ErrorCode.NONE
        assert offsets(woken(world, waiting)) == [0, 1]

    def test_delayed_fetch_of_a_closed_connection_is_dropped(self, world: World) -> None:
        add(world, 0)
        waiting: Answer = start_fetch(world, 0, max_wait_ms=WAIT_MS)
        delayed = world[1].partition().delayed
        assert len(delayed.stable_fetches) == 1
        for close in list(waiting._peer.close_callbacks):
            close()
        assert not delayed.stable_fetches


class TestMarkers:
    def test_a_marker_is_answered_when_it_is_committed(self, make_world: MakeWorld) -> None:
        world = make_world(3)
        world.start()
        world.create_topic(min_insync_replicas="2")
        world.settle()
        verification_of(world, confirms=True)
        add(world, 0)
        world.alter_partition = _never
        world.cut_off(1)
        answer = start_marker(world, is_commit=True)
        world.settle()
        assert not answer.is_there
        assert world[1].partition().last_stable_offset == 0
        world.heal()
        world.until(lambda: answer.is_there, "an answer to the marker")
        assert answer.response.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE
        assert world[1].partition().last_stable_offset == 2

    def test_the_same_marker_again(self, world: World) -> None:
        add(world, 0)
        for _ in range(2):
            assert mark(world, is_commit=False) is ErrorCode.NONE
        assert aborted(fetched(world, start_fetch(world, 0))) == [(PRODUCER, 0)]
        assert world[1].partition().last_stable_offset == world[1].high_watermark

    def test_those_of_the_past_are_refused(self, world: World) -> None:
        add(world, 0)
        assert mark(world, is_commit=True, epoch=3, coordinator_epoch=5) is ErrorCode.NONE
        stale = {"is_commit": False, "epoch": 3, "coordinator_epoch": 4}
        assert mark(world, **stale) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert mark(world, is_commit=False, epoch=2, coordinator_epoch=5) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert world[1].log.log_end_offset == 2

    def test_not_here(self, make_world: MakeWorld) -> None:
        world = make_world(3)
        world.start()
        world.create_topic((1, 2))
        world.settle()
        assert mark(world, is_commit=True, broker_id=2) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert mark(world, is_commit=True, broker_id=3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert mark(world, is_commit=True, topic="nowhere") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert mark(world, is_commit=True, index=9) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_describe_producers(world: World) -> None:
    add(world, 0)
    add(world, 1)
    last_ms = wall_ms(world)
    add(world, 0, producer_id=OTHER)
    assert mark(world, is_commit=True, producer_id=OTHER, coordinator_epoch=6) is ErrorCode.NONE
    request = DescribeProducersRequest(
        topics=[
            TopicRequest(name="t", partition_indexes=[0, 9]),
            TopicRequest(name="u", partition_indexes=[0]),
        ]
    )
    topics = world.ask(1, request).response.topics
    known, missing = topics[0].partitions
    assert [
        (each.producer_id, each.last_sequence, each.coordinator_epoch, each.current_txn_start_offset)
        for each in known.active_producers
    ] == [(PRODUCER, 1, -1, 0), (OTHER, 0, 6, -1)]
    assert known.active_producers[0].last_timestamp == pytest.approx(last_ms, abs=1_000)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topics[1].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _never(_request: AlterPartitionRequest) -> ErrorCode | None:
    return None
