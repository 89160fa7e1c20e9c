"""Sending of transaction markers: grouped by leader, batched, retried, dropped when another coordinator took over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidemill.broker.coordinators.markers import Markers, ShardKey
from tidemill.broker.net.channel import Channels, PeerUnavailable
from tidemill.broker.net.network import Address
from tidemill.controller.image import MetadataImage
from tidemill.coordinator.transactions.machine import WriteMarkers
from tidemill.errors import ErrorCode
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.api.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidemill.types import TopicPartition

HERE, THERE = 1, 2
NOBODY = -1
SHARD = ShardKey(7, 3)
LIMIT_S = 30.0

Asked = tuple[int, list[tuple[int, TopicPartition]]]


class World:
    """Brokers that answer NONE, or what `answers` says next of a partition."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, int] = {}
        self.leader_epoch = 4
        self.broker_epoch = 11
        self.answers: dict[TopicPartition, list[ErrorCode | None]] = {}
        self.asked: list[Asked] = []
        self.requests: list[WriteTxnMarkersRequest] = []
        self.written: list[str] = []
        self.changed = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self.markers = Markers(
            HERE,
            cast(Channels, SimpleNamespace(to=self._channel_to)),
            self._image,
            lambda broker_id: Address("broker", broker_id),
            lambda request: self._serve(HERE, request),
            self._on_written,
        )

    def _image(self) -> MetadataImage:
        topics: dict[str, list[Any]] = {}
        for tp, leader in sorted(self.leaders.items()):
            topics.setdefault(tp.topic, []).append(
                SimpleNamespace(leader=leader, leader_epoch=self.leader_epoch, has_leader=leader != NOBODY)
            )
        named = {name: SimpleNamespace(partitions=partitions) for name, partitions in topics.items()}
        brokers = {HERE: SimpleNamespace(epoch=self.broker_epoch)}
        return cast(MetadataImage, SimpleNamespace(topics_by_name=named, brokers=brokers))

    def _channel_to(self, address: Address, _purpose: str) -> Any:
        async def request(message: WriteTxnMarkersRequest, _kind: Any, *, timeout_s: float) -> Any:
            assert timeout_s > 0
            return await self._serve(address.port, message)

        return SimpleNamespace(request=request)

    async def _serve(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        named = [
            (marker.producer_id, TopicPartition(topic.name, index))
            for marker in request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
        ]
        self.asked.append((broker_id, named))
        self.requests.append(request)
        self.changed.set()
        if self.gate is not None:
            await self.gate.wait()
        codes: dict[tuple[int, TopicPartition], ErrorCode] = {}
        for producer_id, tp in named:
            code = self.answers[tp].pop(0) if self.answers.get(tp) else ErrorCode.NONE
            if code is None:
                raise PeerUnavailable("silence")
            codes[producer_id, tp] = code
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(
                                    partition_index=index,
                                    error_code=codes[marker.producer_id, TopicPartition(topic.name, index)],
                                )
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    def _on_written(self, shard: ShardKey, markers: WriteMarkers) -> None:
        assert shard == SHARD
        self.written.append(markers.transactional_id)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def settle(self) -> None:
        """Until nothing that is ready is left to run."""
        for _ in range(20):
            await asyncio.sleep(0)

    def order(self, number: int, *partitions: TopicPartition) -> None:
        end = TransactionEnd(number, 5, SHARD.leader_epoch, is_commit=True, transaction_version=2)
        self.markers.write(SHARD, WriteMarkers(f"tx{number}", end, partitions))


def _has_written(world: World, count: int) -> bool:
    return len(world.written) == count


def tp(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, partition)


async def test_each_leader_gets_its_markers_and_then_completion_is_reported() -> None:
    world = World()
    world.leaders = {tp("a"): HERE, tp("a", 1): THERE, tp("b"): THERE}
    world.order(10, *world.leaders)
    assert not world.written
    await world.until(lambda: bool(world.written))
    assert world.asked == [(HERE, [(10, tp("a"))]), (THERE, [(10, tp("a", 1)), (10, tp("b"))])]
    (marker,) = world.requests[1].markers
    assert (marker.producer_epoch, marker.coordinator_epoch) == (5, 3)
    assert marker.transaction_result
    assert marker.transaction_version == 2
    assert world.written == ["tx10"]


async def test_order_without_partitions_completes_in_the_next_turn() -> None:
    world = World()
    world.order(10)
    assert not world.written
    await world.until(lambda: bool(world.written))
    assert not world.asked


async def test_markers_during_a_request_share_the_next_one() -> None:
    world = World()
    world.gate = asyncio.Event()
    world.leaders = {tp("a"): THERE}
    world.order(1, tp("a"))
    await world.until(lambda: len(world.asked) == 1)
    world.order(2, tp("a"))
    world.order(3, tp("a"))
    await world.settle()
    assert len(world.asked) == 1
    world.gate.set()
    await world.until(lambda: len(world.written) == 3)
    assert world.asked[1:] == [(THERE, [(2, tp("a")), (3, tp("a"))])]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        # No broker should answer so; the transaction must end nevertheless.
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
    ids=lambda answer: answer.name if answer else "silence",
)
async def test_refused_marker_is_sent_again_to_the_current_leader(
    answer: ErrorCode | None,
) -> None:
    world = World()
    world.leaders = {tp("a"): THERE, tp("b"): HERE}
    world.answers = {tp("a"): [answer]}
    world.order(10, *world.leaders)
    await world.until(lambda: len(world.asked) == 2)
    world.leaders[tp("a")] = HERE
    await world.until(lambda: bool(world.written))
    assert sorted(world.asked) == [(HERE, [(10, tp("a"))]), (HERE, [(10, tp("b"))]), (THERE, [(10, tp("a"))])]
    assert world.written == ["tx10"]


async def test_repeated_marker_keeps_its_ordinal_and_names_the_current_leader_epoch() -> None:
    world = World()
    world.leaders = {tp("a"): THERE}
    world.answers = {tp("a"): [None]}
    world.order(10, tp("a"))
    await world.until(lambda: len(world.asked) == 1)
    world.leader_epoch += 1
    await world.until(lambda: bool(world.written))
    (first,), (second,) = (request.markers for request in world.requests)
    assert first.ordinal == second.ordinal >= 0
    assert [marker.topics[0].leader_epochs for marker in (first, second)] == [[4], [5]]


async def test_ordinals_rise_with_each_transaction_and_each_start_of_the_broker() -> None:
    ordinals = []
    for broker_epoch in (11, 12):
        world = World()
        world.broker_epoch = broker_epoch
        world.leaders = {tp("a"): THERE}
        for number in (10, 11):
            world.order(number, tp("a"))
        await world.until(partial(_has_written, world, 2))
        ordinals += [marker.ordinal for request in world.requests for marker in request.markers]
    assert ordinals == sorted(set(ordinals))
    assert len(ordinals) == 4


async def test_a_partition_without_a_leader_waits_for_one() -> None:
    world = World()
    world.leaders = {tp("a"): NOBODY, tp("b"): HERE}
    world.order(10, *world.leaders)
    await world.until(lambda: bool(world.asked))
    world.leaders[tp("a")] = THERE
    await world.until(lambda: bool(world.written))
    assert world.asked == [(HERE, [(10, tp("b"))]), (THERE, [(10, tp("a"))])]


async def test_a_deleted_partition_needs_no_marker() -> None:
    world = World()
    world.leaders = {tp("a"): THERE}
    world.answers = {tp("a"): [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]}
    world.order(10, tp("a"), tp("gone"), tp("a", 4))
    await world.until(lambda: bool(world.asked))
    world.leaders.clear()
    await world.until(lambda: bool(world.written))
    assert world.asked == [(THERE, [(10, tp("a"))])]


@pytest.mark.parametrize(
    "answer", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH]
)
async def test_replaced_coordinator_sends_no_markers(answer: ErrorCode) -> None:
    world = World()
    world.leaders = {tp("a"): HERE, tp("b"): THERE}
    world.answers = {tp("a"): [answer], tp("b"): [ErrorCode.NOT_LEADER_OR_FOLLOWER]}
    world.order(10, *world.leaders)
    world.order(11, tp("b"))
    await world.until(lambda: bool(world.written))
    await world.settle()
    assert world.written == ["tx11"]
    assert [producer_id for _, named in world.asked[2:] for producer_id, _ in named] == [11]


async def test_closed_shard_sends_nothing_and_gets_no_callback() -> None:
    world = World()
    world.gate = asyncio.Event()
    world.leaders = {tp("a"): THERE, tp("b"): NOBODY}
    world.order(10, *world.leaders)
    world.order(11, tp("a"))
    await world.until(lambda: len(world.asked) == 1)
    world.markers.forget(SHARD)
    world.leaders[tp("b")] = HERE
    world.gate.set()
    world.order(12, tp("a"))
    await world.until(lambda: bool(world.written))
    assert world.written == ["tx12"]
    assert world.asked[1:] == [(THERE, [(12, tp("a"))])]


async def test_closing_ends_what_is_under_way() -> None:
    world = World()
    world.gate = asyncio.Event()
    world.leaders = {tp("a"): THERE}
    world.order(10, tp("a"))
    await world.until(lambda: len(world.asked) == 1)
    world.markers.close()
    world.gate.set()
    await world.settle()
    assert not world.written
