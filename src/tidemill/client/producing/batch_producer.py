"""Writes whole batches of records, idempotently, with several requests under way to each broker.

The caller hands over encoded records; a batch gets its producer id, epoch and sequence here, once, and keeps them however
often it is sent. So a broker recognises a batch that it has already, and one that comes before its predecessor.

Each partition has a queue of what is not acknowledged, in order. While all goes well batches are sent ahead, up to
`REQUESTS_IN_FLIGHT` requests a broker, each with at most one batch of a partition: so many a broker remembers. At the
first failure that may pass (a leader that moved, a lost connection) sending ahead stops. The responses under way are
taken, and the leaders are looked up anew. Then the queues are sent again from their heads, one batch at a time, until
they are empty. Then it goes on as before. Nothing is skipped, so nothing is reordered, and sequences exclude
duplicates.

Every wait is bounded: an answer by the cluster's timeout, the delivery of a batch by `delivery_timeout_s`.
Errors that do not pass are raised at once; the producer cannot be used any more.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, Protocol, Self

from tidemill.client.cluster import Cluster, check, known_code
from tidemill.client.connections.connection import Connection, ConnectionLost
from tidemill.client.producing.transaction_coordinator import INIT_PRODUCER_ID_VERSION, Identity
from tidemill.client.retry import may_retry
from tidemill.errors import ApiError, ErrorCode, ProtocolError, TidemillError
from tidemill.protocol import compression, frames
from tidemill.protocol.api.data import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
)
from tidemill.protocol.api.transactions import InitProducerIdRequest, InitProducerIdResponse
from tidemill.protocol.produce import TopicToProduce, produce_request_parts
from tidemill.protocol.records import MAGIC, BatchHeader, batch_head
from tidemill.protocol.wire import Buffer
from tidemill.types import TopicPartition

REQUESTS_IN_FLIGHT = 5
# Requests this small stay in the processor's caches. One with a single larger batch has more.
REQUEST_BYTES = 512 << 10
DELIVERY_TIMEOUT_S = 120.0

_ACKS_ALL = -1
# A broker answers at the request's timeout; its answer may take a moment more.
_ANSWER_GRACE_S = 5.0
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


class DeliveryFailed(TidemillError):
    """A batch was not acknowledged in time."""


class RecordTooLarge(TidemillError):
    """A record that its topic does not take."""


class Encoded(Protocol):
    """Encoded records as a batch has them: uncompressed, with offsets from 0 on."""

    @property
    def records(self) -> memoryview: ...
    @property
    def record_count(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...


class _Batch(NamedTuple):
    """A batch as it is sent: what stands before the records, and the records, which are not copied."""

    partition: TopicPartition
    head: bytearray
    records: Buffer
    record_count: int

    @property
    def size(self) -> int:
        return len(self.head) + len(self.records)


class _Posted(NamedTuple):
    correlation_id: int
    version: int
    batches: dict[TopicPartition, _Batch]
    names: dict[bytes, str]


class _Lane(NamedTuple):
    """A connection of our own to one leader, and what it has not answered."""

    connection: Connection
    posted: deque[_Posted]


class BatchProducer:
    def __init__(
        self,
        cluster: Cluster,
        *,
        codec: int = compression.CompressionType.NONE,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
    ) -> None:
        self._cluster = cluster
        self._codec = codec
        self._delivery_timeout_s = delivery_timeout_s
        self._identity: Identity | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._unacknowledged: dict[TopicPartition, deque[_Batch]] = {}
        self._lanes: dict[int, _Lane] = {}
        # Where the last batch of each partition that was acknowledged stands; -1 for one that the broker had already.
        self.acknowledged_at: dict[TopicPartition, int] = {}
        # The first failure since the queues were last sent again; it may pass.
        self._trouble: TidemillError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forgets what is not acknowledged; `flush` comes first where that matters."""
        for lane in self._lanes.values():
            lane.connection.close()
        self._lanes.clear()
        self._unacknowledged.clear()
        self._trouble = None

    # --- what goes out ---

    def produce(self, batches: Iterable[tuple[TopicPartition, Encoded]]) -> None:
        """Takes batches over, in order. Returns when all are under way, not when they are acknowledged."""
        if self._identity is None:
            self._identity = self._initialise()
        gathered: dict[TopicPartition, _Batch] = {}
        gathered_bytes = 0
        for partition, encoded in batches:
            batch = self._assembled(self._identity, partition, encoded)
            if partition in gathered or gathered_bytes + batch.size > REQUEST_BYTES:
                self._send_ahead(gathered)
                gathered, gathered_bytes = {}, 0
            gathered[partition] = batch
            gathered_bytes += batch.size
            self._unacknowledged.setdefault(partition, deque()).append(batch)
        self._send_ahead(gathered)

    def flush(self) -> None:
        """Returns when everything is acknowledged."""
        self._take_all()
        if self._trouble is not None:
            self._send_again()

    def _initialise(self) -> Identity:
        message = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)

        def attempt() -> Identity:
            connection = self._cluster.any_broker()
            response = connection.request(
                message, InitProducerIdResponse, max_version=INIT_PRODUCER_ID_VERSION
            )
            check(response.error_code)
            return Identity(response.producer_id, response.producer_epoch)

        return self._cluster.retrying(attempt)

    def _assembled(self, identity: Identity, partition: TopicPartition, encoded: Encoded) -> _Batch:
        payload = compression.compress(self._codec, encoded.records) if self._codec else encoded.records
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = (sequence + encoded.record_count) & 0x7FFFFFFF
        header = BatchHeader(
            base_offset=0,
            batch_length=0,
            leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=self._codec | self._attributes,
            last_offset_delta=encoded.record_count - 1,
            base_timestamp=encoded.base_timestamp,
            max_timestamp=encoded.max_timestamp,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=sequence,
            record_count=encoded.record_count,
        )
        return _Batch(partition, batch_head(header, payload), payload, encoded.record_count)

    # --- sending ahead ---

    def _send_ahead(self, batches: dict[TopicPartition, _Batch]) -> None:
        if not batches:
            return
        if self._trouble is None:
            try:
                self._admit(batches)
                for leader_id, led in self._cluster.leaders(batches).items():
                    lane = self._lane(leader_id, led[0])
                    while len(lane.posted) >= REQUESTS_IN_FLIGHT:
                        self._take(lane)
                    self._post(lane, {partition: batches[partition] for partition in led})
            except TidemillError as failure:
                self._note(failure)
        if self._trouble is not None:
            self._send_again()

    def _lane(self, leader_id: int, partition: TopicPartition) -> _Lane:
        lane = self._lanes.get(leader_id)
        if lane is None or lane.connection.is_closed:
            lane = self._lanes[leader_id] = _Lane(self._cluster.open_leader(partition), deque())
        return lane

    def _post(self, lane: _Lane, batches: dict[TopicPartition, _Batch]) -> None:
        topics: dict[str, list[tuple[int, tuple[Buffer, Buffer]]]] = {}
        for partition, batch in batches.items():
            topics.setdefault(partition.topic, []).append((partition.partition, (batch.head, batch.records)))
        version = lane.connection.version_of(ProduceRequest, self._produce_version)
        ids = {name: self._cluster.topic(name).topic_id for name in topics}
        body = produce_request_parts(
            version,
            self._transactional_id,
            _ACKS_ALL,
            int(self._cluster.timeout_s * 1000),
            [TopicToProduce(name, ids[name], partitions) for name, partitions in topics.items()],
        )
        names = {topic_id: name for name, topic_id in ids.items()}
        correlation_id = lane.connection.post_body(ProduceRequest, version, body)
        lane.posted.append(_Posted(correlation_id, version, batches, names))

    # --- what comes back ---

    def _take_all(self) -> None:
        for lane in list(self._lanes.values()):
            try:
                while lane.posted:
                    self._take(lane)
            except TidemillError as failure:
                lane.posted.clear()
                self._note(failure)

    def _drain(self) -> None:
        """Waits until nothing is under way any more, whatever the answers say; lost connections have none."""
        for lane in self._lanes.values():
            with contextlib.suppress(ConnectionLost, ProtocolError):
                while lane.posted:
                    lane.connection.take(lane.posted.popleft().correlation_id, wait_s=_ANSWER_GRACE_S)

    def _take(self, lane: _Lane) -> None:
        """One answer. What a lost connection leaves open stays in the queues."""
        posted = lane.posted.popleft()
        frame = lane.connection.take(posted.correlation_id, wait_s=_ANSWER_GRACE_S)
        _, response = frames.parse_response(ProduceResponse, posted.version, frame)
        for topic in response.responses:
            for answer in topic.partition_responses:
                partition = TopicPartition(topic.name or posted.names[topic.topic_id], answer.index)
                self._judge(posted.batches[partition], answer)

    def _judge(self, batch: _Batch, answer: PartitionProduceResponse) -> None:
        queue = self._unacknowledged[batch.partition]
        is_head = queue[0] is batch
        code = known_code(answer.error_code)
        if not is_head and not answer.error_code:
            raise ProtocolError(f"{batch.partition} took a batch before the one that comes first")
        # A duplicate was written by an earlier try whose answer was lost.
        if is_head and code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            queue.popleft()
            self.acknowledged_at[batch.partition] = answer.base_offset
            return
        text = f"{batch.partition}: {answer.error_message or code.message}"
        is_behind_another = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_head
        if code in _TOO_LARGE:
            raise RecordTooLarge(
                f"{batch.partition} does not take a batch of {batch.size:,} bytes ({batch.record_count} "
                f"records): raise the topic's max.message.bytes or write smaller records"
            )
        self._note(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER if is_behind_another else code, text))

    def _note(self, failure: TidemillError) -> None:
        """Raises what will not pass."""
        if not may_retry(failure, is_repeatable=True):
            raise failure
        self._trouble = self._trouble or failure

    # --- after a failure ---

    def _send_again(self) -> None:
        self._take_all()
        retries = self._cluster.retries(self._delivery_timeout_s)
        while True:
            heads = {partition: queue[0] for partition, queue in self._unacknowledged.items() if queue}
            if not heads:
                self._trouble = None
                return
            failure, self._trouble = self._trouble, None
            try:
                self._send_heads(heads)
            except TidemillError as error:
                self._note(error)
            if any(not queue or queue[0] is not heads[partition] for partition, queue in self._queues(heads)):
                retries = self._cluster.retries(self._delivery_timeout_s)
                self._trouble = self._trouble or failure
                continue
            failure = self._trouble or failure
            self._cluster.forget()
            if not retries.wait():
                raise DeliveryFailed(
                    f"{', '.join(map(str, heads))}: not written within {self._delivery_timeout_s:g} s; the last "
                    f"failure was: {failure}"
                )

    def _queues(self, heads: Iterable[TopicPartition]) -> list[tuple[TopicPartition, deque[_Batch]]]:
        return [(partition, self._unacknowledged[partition]) for partition in heads]

    def _send_heads(self, heads: dict[TopicPartition, _Batch]) -> None:
        self._admit(heads)
        for leader_id, led in self._cluster.leaders(heads).items():
            lane = self._lane(leader_id, led[0])
            self._post(lane, {partition: heads[partition] for partition in led})
            self._take(lane)

    # --- what a transaction does differently ---

    _attributes = 0
    _transactional_id: str | None = None
    _produce_version: int | None = None

    def _admit(self, partitions: Iterable[TopicPartition]) -> None:
        """Before something is sent to them."""
