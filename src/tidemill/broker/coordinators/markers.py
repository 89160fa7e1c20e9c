"""Transaction markers on their way from a coordinator to the leaders of a transaction's partitions.

What a shard ordered is sorted by leader. Each broker gets one WriteTxnMarkers at a time, with everything that has gathered
for it; what comes meanwhile goes with the next. This broker's own partitions get theirs the same way, without the
network. An order is done when every partition has said that its marker is committed, or is gone with its topic.

    written                                    the partition is done
    not the leader, too few replicas, silence  it is tried again, after a pause that grows, with the leader of then
    fenced: another coordinator or producer    the order is dropped: the new coordinator sends the markers
    anything else                              a bug somewhere; tried again, and logged

Markers of a shard that has been closed are not sent any more, but one may be under way. That is harmless: the coordinator's
epoch is in it, and the markers of its successor are the same, since the decision is in the log. A request that was given up
may be under way, too, and arrive after the transaction is complete. Each order has a number by which leaders recognise that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemill.broker.net.channel import Channels, PeerUnavailable
from tidemill.broker.net.network import Address
from tidemill.controller.image import MetadataImage
from tidemill.coordinator.transactions.machine import WriteMarkers
from tidemill.errors import ErrorCode
from tidemill.protocol.api.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tidemill.types import BrokerId, TopicPartition

logger = logging.getLogger(__name__)

_TIMEOUT_S = 30.0
_BACKOFF_S_MIN = 0.02
_BACKOFF_S_MAX = 0.5
# An ordinal is the broker's epoch, and below it the number of the order.
_ORDINAL_BITS = 32

_RETRIED = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
_FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
# A partition whose format has no room for markers has no transactions either.
_NEEDS_NONE = frozenset({ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION})


class ShardKey(NamedTuple):
    """A shard is one partition of `__transaction_state` in one epoch of its leader."""

    partition_index: int
    leader_epoch: int


@dataclass(slots=True, eq=False)
class _Order:
    shard: ShardKey
    markers: WriteMarkers
    ordinal: int
    missing: dict[TopicPartition, None]
    failures: int = 0
    is_dropped: bool = False


class _Item(NamedTuple):
    order: _Order
    partition: TopicPartition
    leader_epoch: int


@dataclass(slots=True, eq=False)
class _Queue:
    """The markers that wait for one broker, and the request to it that is under way."""

    items: list[_Item] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


WriteHere = Callable[[WriteTxnMarkersRequest], Awaitable[WriteTxnMarkersResponse]]


class Markers:
    def __init__(
        self,
        node_id: int,
        channels: Channels,
        image: Callable[[], MetadataImage],
        address_of: Callable[[int], Address | None],
        write_here: WriteHere,
        on_written: Callable[[ShardKey, WriteMarkers], None],
    ) -> None:
        """`write_here` serves a request for partitions that this broker leads."""
        self._node_id = node_id
        self._loop = asyncio.get_running_loop()
        self._channels = channels
        self._image = image
        self._address_of = address_of
        self._write_here = write_here
        self._on_written = on_written
        self._orders: dict[ShardKey, dict[str, _Order]] = {}
        self._queues: dict[int, _Queue] = {}
        self._last_ordinal = -1
        self._is_closed = False

    # -- orders ----------------------------------------------------------------------------------------------

    def write(self, shard: ShardKey, markers: WriteMarkers) -> None:
        """`on_written` is called later, never from inside this call, unless the shard is forgotten before."""
        order = _Order(shard, markers, self._next_ordinal(), dict.fromkeys(markers.partitions))
        earlier = self._orders.setdefault(shard, {}).get(markers.transactional_id)
        if earlier is not None:
            earlier.is_dropped = True
        self._orders[shard][markers.transactional_id] = order
        self._loop.call_soon(self._route, order, list(order.missing))

    def _next_ordinal(self) -> int:
        # Above those of an earlier process of this broker, whose epoch was lower.
        broker = self._image().brokers.get(BrokerId(self._node_id))
        first = broker.epoch << _ORDINAL_BITS if broker is not None else 0
        self._last_ordinal = max(self._last_ordinal + 1, first)
        return self._last_ordinal

    def forget(self, shard: ShardKey) -> None:
        """This broker is no longer the coordinator."""
        for order in self._orders.pop(shard, {}).values():
            order.is_dropped = True

    def _drop(self, order: _Order) -> None:
        order.is_dropped = True
        self._orders[order.shard].pop(order.markers.transactional_id)

    def _written(self, order: _Order, partition: TopicPartition) -> None:
        order.missing.pop(partition, None)
        self._finish(order)

    def _finish(self, order: _Order) -> None:
        if not order.missing and not order.is_dropped:
            self._drop(order)
            self._on_written(order.shard, order.markers)

    # -- sending ---------------------------------------------------------------------------------------------

    def _route(self, order: _Order, partitions: Iterable[TopicPartition]) -> None:
        """Give each marker to the queue of its partition's leader."""
        if order.is_dropped or self._is_closed:
            return
        image = self._image()
        leaderless: list[TopicPartition] = []
        for tp in partitions:
            topic = image.topics_by_name.get(tp.topic)
            if topic is None or not 0 <= tp.partition < len(topic.partitions):
                order.missing.pop(tp, None)  # deleted, and its transactions with it
            elif not topic.partitions[tp.partition].has_leader:
                leaderless.append(tp)
            else:
                partition = topic.partitions[tp.partition]
                leader = partition.leader
                queue = self._queues.setdefault(leader, _Queue())
                queue.items.append(_Item(order, tp, partition.leader_epoch))
                if queue.task is None:
                    queue.task = self._loop.create_task(self._empty(leader, queue))
        if leaderless:
            self._retry(order, leaderless)
        self._finish(order)

    def _retry(self, order: _Order, partitions: list[TopicPartition]) -> None:
        pause_s = min(_BACKOFF_S_MIN * 2 ** min(order.failures, 10), _BACKOFF_S_MAX)
        order.failures += 1
        self._loop.call_later(pause_s, self._route, order, partitions)

    async def _empty(self, broker_id: int, queue: _Queue) -> None:
        try:
            while True:
                # Whatever else this turn of the loop orders comes along.
                await asyncio.sleep(0)
                items = [item for item in queue.items if not item.order.is_dropped]
                queue.items = []
                if not items or self._is_closed:
                    return
                self._take(items, await self._ask(broker_id, items))
        finally:
            queue.task = None

    async def _ask(self, broker_id: int, items: list[_Item]) -> WriteTxnMarkersResponse | None:
        """The broker's answer, or None when there is none."""
        request = _request(items)
        try:
            if broker_id == self._node_id:
                return await self._write_here(request)
            address = self._address_of(broker_id)
            if address is None:
                return None
            channel = self._channels.to(address, "markers")
            return await channel.request(request, WriteTxnMarkersResponse, timeout_s=_TIMEOUT_S)
        except PeerUnavailable as error:
            logger.debug("broker %d did not take %d markers: %s", broker_id, len(items), error)
        except Exception:
            # Whatever it was, the transactions have to end.
            logger.exception(
                "cannot send %d transaction markers to broker %d; trying again", len(items), broker_id
            )
        return None

    # -- answers ---------------------------------------------------------------------------------------------

    def _take(self, items: list[_Item], response: WriteTxnMarkersResponse | None) -> None:
        codes = _codes(response)
        retried: dict[_Order, list[TopicPartition]] = {}
        for order, tp, _ in items:
            if order.is_dropped:
                continue
            code = codes.get((order.markers.end.producer_id, tp), ErrorCode.REQUEST_TIMED_OUT)
            if code is ErrorCode.NONE or code in _NEEDS_NONE:
                self._written(order, tp)
            elif code in _FENCED:
                logger.info(
                    "%s answered %s to a marker of %s: another coordinator or producer has taken over",
                    tp,
                    code.name,
                    order.markers.transactional_id,
                )
                self._drop(order)
            else:
                if code not in _RETRIED:
                    logger.error(
                        "%s refused the marker of transaction %s with %s; trying again",
                        tp,
                        order.markers.transactional_id,
                        code.name,
                    )
                retried.setdefault(order, []).append(tp)
        for order, partitions in retried.items():
            if not order.is_dropped:
                self._retry(order, partitions)

    def close(self) -> None:
        self._is_closed = True
        for shard in list(self._orders):
            self.forget(shard)
        for queue in self._queues.values():
            if queue.task is not None:
                queue.task.cancel()


def _request(items: list[_Item]) -> WriteTxnMarkersRequest:
    """One marker for each order, with its partitions by topic."""
    topics: dict[_Order, dict[str, WritableTxnMarkerTopic]] = {}
    for order, tp, leader_epoch in items:
        topic = topics.setdefault(order, {}).setdefault(tp.topic, WritableTxnMarkerTopic(name=tp.topic))
        topic.partition_indexes.append(tp.partition)
        topic.leader_epochs.append(leader_epoch)
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=order.markers.end.producer_id,
                producer_epoch=order.markers.end.producer_epoch,
                transaction_result=order.markers.end.is_commit,
                coordinator_epoch=order.markers.end.coordinator_epoch,
                transaction_version=order.markers.end.transaction_version,
                ordinal=order.ordinal,
                topics=list(by_name.values()),
            )
            for order, by_name in topics.items()
        ]
    )


def _codes(response: WriteTxnMarkersResponse | None) -> dict[tuple[int, TopicPartition], ErrorCode]:
    """A producer has one transaction at a time, so its id identifies the marker."""
    return {
        (marker.producer_id, TopicPartition(topic.name, result.partition_index)): ErrorCode(result.error_code)
        for marker in (response.markers if response is not None else ())
        for topic in marker.topics
        for result in topic.partitions
    }
