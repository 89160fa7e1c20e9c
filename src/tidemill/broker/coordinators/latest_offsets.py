"""Finds the end offsets of partitions at their leaders, for the lag of share groups (Kafka: PartitionMetadataClient)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from tidemill.broker.net.channel import Channels, PeerUnavailable
from tidemill.broker.net.network import Address
from tidemill.broker.partitions.replicas import Replicas
from tidemill.controller.image import MetadataImage
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidemill.types import TopicPartition

_TIMEOUT_S = 10.0
_LATEST = -1
_CONSUMER = -1

Found = dict[TopicPartition, int | ErrorCode]


class LatestOffsets:
    def __init__(
        self,
        node_id: int,
        channels: Channels,
        image: Callable[[], MetadataImage],
        address_of: Callable[[int], Address | None],
        replicas: Replicas,
    ) -> None:
        self._node_id = node_id
        self._channels = channels
        self._image = image
        self._address_of = address_of
        self._replicas = replicas

    async def of(self, partitions: Iterable[TopicPartition]) -> Found:
        """Returns the high watermark of each partition, or the error of its leader."""
        found: Found = {}
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            image = self._image().partition(tp.topic, tp.partition)
            if image is None:
                found[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif not image.has_leader:
                found[tp] = ErrorCode.LEADER_NOT_AVAILABLE
            elif image.leader == self._node_id:
                found[tp] = self._here(tp)
            else:
                by_leader.setdefault(image.leader, []).append(tp)
        for answer in await asyncio.gather(*(self._ask(*each) for each in by_leader.items())):
            found.update(answer)
        return found

    def _here(self, tp: TopicPartition) -> int | ErrorCode:
        partition, error = self._replicas.find((tp.topic, tp.partition))
        if partition is None or partition.log is None:
            return error or ErrorCode.KAFKA_STORAGE_ERROR
        if partition.leadership.is_high_watermark_behind:
            return ErrorCode.OFFSET_NOT_AVAILABLE
        return partition.high_watermark

    async def _ask(self, leader: int, partitions: list[TopicPartition]) -> Found:
        topics: dict[str, ListOffsetsTopic] = {}
        for tp in partitions:
            topic = topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic))
            topic.partitions.append(ListOffsetsPartition(partition_index=tp.partition, timestamp=_LATEST))
        request = ListOffsetsRequest(replica_id=_CONSUMER, topics=list(topics.values()))
        address = self._address_of(leader)
        try:
            if address is None:
                raise PeerUnavailable(f"the address of broker {leader} is not known")
            channel = self._channels.to(address, "latest offsets")
            response = await channel.request(request, ListOffsetsResponse, timeout_s=_TIMEOUT_S)
        except PeerUnavailable:
            return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        found: Found = dict.fromkeys(partitions, ErrorCode.UNKNOWN_SERVER_ERROR)
        for answered in response.topics:
            for each in answered.partitions:
                code = ErrorCode(each.error_code)
                found[TopicPartition(answered.name, each.partition_index)] = code or each.offset
        return found
