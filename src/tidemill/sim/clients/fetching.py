"""The fetching of one partition, at the leader or a follower, up to the high watermark.

With `read_committed` it reads up to the last stable offset and skips the aborted transactions in the response, from
their first offset to their marker. Markers are never returned.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.errors import ErrorCode, ProtocolError
from tidemill.protocol.api.data import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionData,
)
from tidemill.protocol.isolation import AbortedBatches
from tidemill.protocol.records import InvalidBatch, Record, iterate_records, split_batches
from tidemill.sim.checks.checker import MessageId
from tidemill.sim.clients.base import Client
from tidemill.types import TopicPartition

_FETCH_BYTES_MAX = 64 * 1024
# Timestamps that ask for the ends of a log.
LATEST = -1
EARLIEST = -2


class Position:
    """The position of a consumer in a partition, and the broker that it fetches from."""

    def __init__(
        self,
        client: Client,
        tp: TopicPartition,
        offset: int = 0,
        rack: str = "",
        *,
        epoch: int = -1,
        is_read_committed: bool = False,
    ) -> None:
        self.offset = offset
        self._is_read_committed = is_read_committed
        self.tp = tp
        self._client = client
        self._rack = rack
        # The epoch of the last message before the offset; -1 when it is unknown.
        self.epoch = epoch
        self._follower: int | None = None

    async def fetch(self, max_wait_ms: int) -> list[tuple[int, MessageId]]:
        """Fetch messages with one request; none when there are none or the broker does not respond."""
        records = await self.fetch_records(max_wait_ms)
        return [(record.offset, message_of(record.value or b"")) for record in records]

    async def fetch_records(self, max_wait_ms: int) -> list[Record]:
        """As `fetch`, with everything that a record has."""
        client = self._client
        address, leader = await client.find_leader(self.tp)
        if leader.epoch < self.epoch:
            # KIP-320: the last read message comes from a later leader than the known one.
            await self._look_around()
            return []
        asked_follower = self._follower
        if asked_follower is not None:
            address = client.brokers.get(asked_follower, address)
        answer = await client.ask(
            address,
            self._request(leader.epoch, max_wait_ms, -1 if asked_follower is not None else self.epoch),
            FetchResponse,
            purpose=f"fetch {self.tp}",
            timeout_s=max_wait_ms / 1000 + 5,
        )
        if answer is None or not answer.responses:
            await self._look_around()
            return []
        data = answer.responses[0].partitions[0]
        if data.error_code:
            self._refused(ErrorCode(data.error_code), asked_follower, data.high_watermark)
            await self._look_around()
            return []
        if data.diverging_epoch.epoch >= 0 or data.diverging_epoch.end_offset >= 0:
            self._lost(
                f"has lost some of that: epoch {data.diverging_epoch.epoch} ends at {data.diverging_epoch.end_offset}"
            )
            await self._look_around()
            return []
        if data.preferred_read_replica >= 0:
            self._follower = data.preferred_read_replica
            if self._follower not in client.brokers:
                await client.back_off()
                await client.refresh([self.tp.topic])
            return []
        return list(self._taken(data, address.host))

    def _request(self, leader_epoch: int, max_wait_ms: int, last_fetched_epoch: int) -> FetchRequest:
        client, tp = self._client, self.tp
        partition = FetchPartition(
            partition=tp.partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=self.offset,
            # Only a leader can check for truncation; a follower may lag.
            last_fetched_epoch=last_fetched_epoch,
            partition_max_bytes=_FETCH_BYTES_MAX,
        )
        topic = FetchTopic(topic=tp.topic, topic_id=client.topic_ids[tp.topic], partitions=[partition])
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=_FETCH_BYTES_MAX,
            isolation_level=self._is_read_committed,
            topics=[topic],
            rack_id=self._rack,
        )

    async def _look_around(self) -> None:
        self._follower = None
        await self._client.back_off()
        await self._client.refresh([self.tp.topic])

    def _refused(self, code: ErrorCode, follower: int | None, high_watermark: int) -> None:
        # Without an epoch this may be an old leader, which knows less than the one that was read from.
        if code == ErrorCode.OFFSET_OUT_OF_RANGE and follower is None and self.epoch >= 0:
            self._lost(f"says OFFSET_OUT_OF_RANGE (high watermark {high_watermark})")

    def _lost(self, what: str) -> None:
        """The leader does not have what was read."""
        self._client.record.accuse(
            f"{self._client.name} read {self.tp} up to {self.offset}, and its leader {what}"
        )

    def _taken(self, data: PartitionData, host: str) -> Iterator[Record]:
        accuse = self._client.record.accuse
        where = f"{self._client.name} read {self.tp} at {self.offset} from {host}"
        limit = data.high_watermark
        if self._is_read_committed:
            limit = data.last_stable_offset
            if not 0 <= limit <= data.high_watermark:
                accuse(f"{where}: stable up to {limit}, high watermark {data.high_watermark}")
        view = memoryview(bytes(data.records or b""))
        try:
            headers = split_batches(view)
        except InvalidBatch as error:
            accuse(f"{where}: {error}")
            return
        aborted = AbortedBatches(
            (each.producer_id, each.first_offset) for each in data.aborted_transactions or ()
        )
        position = 0
        for header in headers:
            batch = view[position : position + header.size]
            position += header.size
            if header.next_offset > limit:
                accuse(f"{where}: offset {header.last_offset} is not below {limit}")
            if header.leader_epoch < self.epoch:
                accuse(f"{where}: epoch {header.leader_epoch} after {self.epoch}")
            is_shown = not aborted.includes(batch, header) or not self._is_read_committed
            if header.next_offset <= self.offset:
                continue
            self.epoch = header.leader_epoch
            if is_shown and not header.is_control:
                try:
                    for record in iterate_records(batch, header):
                        if record.offset >= self.offset:
                            message_of(record.value or b"")
                            yield record
                except (ProtocolError, ValueError) as error:
                    accuse(f"{where}: {error}")
                    return
            self.offset = header.next_offset

    async def end_offset(self) -> int:
        """The leader's high watermark or last stable offset."""
        while (offset := await self.list_offset(LATEST)) is None:
            await self._look_around()
        return offset

    async def list_offset(self, timestamp: int) -> int | None:
        """The leader's answer to one ListOffsets; None without one."""
        address, leader = await self._client.find_leader(self.tp)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=self._is_read_committed,
            topics=[
                ListOffsetsTopic(
                    name=self.tp.topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=self.tp.partition,
                            current_leader_epoch=leader.epoch,
                            timestamp=timestamp,
                        )
                    ],
                )
            ],
        )
        answer = await self._client.ask(address, request, ListOffsetsResponse)
        if answer is not None and answer.topics:
            result = answer.topics[0].partitions[0]
            if result.error_code == ErrorCode.NONE:
                return result.offset
        return None


def message_of(value: bytes) -> MessageId:
    producer, _, number = value.decode().rpartition("/")
    return MessageId(producer, int(number))
