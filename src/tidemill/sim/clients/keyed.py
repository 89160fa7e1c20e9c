"""Clients of a topic whose number of partitions changes: a keyed producer, a position, and a group member.

The producer is idempotent, with several batches of a partition in flight. One that learns follows the number in Metadata,
after what it sent under the old number is acknowledged. One that does not keeps the largest number, as librdkafka does. A
batch that is not acknowledged for long is given up under a new epoch, as in the Java client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemill.broker.net.network import Address
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import (
    PartitionData,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.protocol.api.groups import JoinGroupResponse, SyncGroupRequestAssignment
from tidemill.protocol.records import Record, build_batch
from tidemill.sim.checks.checker import Delivered, Event, MessageId
from tidemill.sim.checks.keyed import KeyedHistory, KeyedPlace
from tidemill.sim.clients.base import Client
from tidemill.sim.clients.fetching import EARLIEST, Position
from tidemill.sim.clients.member import Generation, Member, Rejoin, assignments
from tidemill.types import TopicPartition

_IN_FLIGHT_MAX = 5
_PRODUCE_TIMEOUT_MS = 5_000
# How long a batch is sent again. Below the time for which decommissioned partitions are kept.
DELIVERY_TIMEOUT_S = 20.0
_REFRESH_S = 4.0


class RenewedPosition(Position):
    """A position in a partition that may be emptied, removed, and added again: it begins at the log start then.

    It notes where each record is stored.
    """

    def __init__(self, client: Client, tp: TopicPartition, offset: int = 0, *, epoch: int = -1) -> None:
        super().__init__(client, tp, offset, epoch=epoch, is_read_committed=True)
        self._is_lost = False
        self.places: list[KeyedPlace] = []

    def _lost(self, what: str) -> None:  # noqa: ARG002
        self._is_lost = True

    def _refused(self, code: ErrorCode, follower: int | None, high_watermark: int) -> None:  # noqa: ARG002
        self._is_lost |= code == ErrorCode.OFFSET_OUT_OF_RANGE and follower is None

    async def fetch_records(self, max_wait_ms: int) -> list[Record]:
        self.places = []
        if self._is_lost:
            start_offset = await self.list_offset(EARLIEST)
            if start_offset is None:
                await self._look_around()
                return []
            self.offset, self.epoch, self._is_lost = start_offset, -1, False
        return await super().fetch_records(max_wait_ms)

    def _taken(self, data: PartitionData, host: str) -> Iterator[Record]:
        for record in super()._taken(data, host):
            self.places.append(KeyedPlace(self.tp.partition, self.epoch, record.offset))
            yield record


class _Deliveries(list[Event]):
    """Keeps the messages of a member's history alone."""

    def __init__(self, history: KeyedHistory) -> None:
        super().__init__()
        self._delivered = history.delivered

    def append(self, event: Event) -> None:
        if isinstance(event, Delivered):
            self._delivered.add(event.message)


class RenewedMember(Member):
    """A group member that reads committed records and rejoins when the number of partitions has changed."""

    _is_read_committed = True

    def __init__(self, client: Client, group: str, topic: str, history: KeyedHistory) -> None:
        super().__init__(client, group, [topic])
        # The same offset may be another record later, so that most rules for groups do not hold.
        self._history = _Deliveries(history)
        self._topic = topic
        self._count = 0
        self._refreshed_s = 0.0

    def _position(self, tp: TopicPartition, offset: int, epoch: int = -1) -> Position:
        return RenewedPosition(self._client, tp, offset, epoch=epoch)

    async def _assign(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        await self._client.refresh([self._topic])
        count = self._client.partition_counts[self._topic]
        return assignments(joined, [TopicPartition(self._topic, index) for index in range(count)])

    async def _take(self, generation: Generation, assignment: bytes) -> Generation | None:
        self._count = self._client.partition_counts[self._topic]
        return await super()._take(generation, assignment)

    async def _poll(self, generation: Generation) -> None:
        now_s = self._client.loop.time()
        if now_s - self._refreshed_s > _REFRESH_S:
            self._refreshed_s = now_s
            await self._client.refresh([self._topic])
        if self._client.partition_counts[self._topic] != self._count:
            raise Rejoin(is_lost=False)
        await super()._poll(generation)


@dataclass(slots=True)
class _Batch:
    """A batch that is pending."""

    tp: TopicPartition
    messages: list[MessageId]
    sequence: int
    data: bytes
    first_sent_s: float | None = None


class KeyedProducer:
    """Writes records with its keys until the end, when everything is acknowledged or given up."""

    def __init__(
        self,
        client: Client,
        topic: str,
        keys: Sequence[int],
        pause_s_max: float,
        history: KeyedHistory,
        *,
        learns: bool,
    ) -> None:
        self._client = client
        self._topic = topic
        self._pause_s_max = pause_s_max
        self._history = history
        self._learns = learns
        self._next_numbers = dict.fromkeys(keys, 0)
        self._count = 0
        self._producer_id = -1
        self._epoch = 0
        self._sequences: dict[TopicPartition, int] = {}
        self._pending: list[_Batch] = []
        # Partitions whose last request had no answer.
        self._silent: set[TopicPartition] = set()
        self.acked = 0
        self.is_done = False

    async def run(self) -> None:
        client = self._client
        await client.find_topics([self._topic])
        self._producer_id, self._epoch = await client.init_producer_id()
        while not client.record.is_ending or self._pending:
            self._adopt_count()
            if not client.record.is_ending:
                for _ in range(client.rng.randint(0 if self._pending else 1, 3)):
                    self._add_batch()
            if not await self._send_pending():
                await client.back_off()
                await client.refresh([self._topic])
                self._give_up_late()
            elif not self._pending:
                await asyncio.sleep(client.rng.random() * self._pause_s_max)
                if client.rng.random() < 0.4:
                    await client.refresh([self._topic])
        self.is_done = True

    def _adopt_count(self) -> None:
        if self._pending:
            # What is under way must be stored before a later record of the same key, which may go another way.
            return
        count = self._client.partition_counts[self._topic]
        if self._learns or count > self._count:
            self._count = count

    def _add_batch(self) -> None:
        rng = self._client.rng
        key = rng.choice(list(self._next_numbers))
        tp = TopicPartition(self._topic, key % self._count)
        if sum(batch.tp == tp for batch in self._pending) >= _IN_FLIGHT_MAX:
            return
        first, count = self._next_numbers[key], rng.randint(1, 3)
        self._next_numbers[key] += count
        messages = [MessageId(f"{self._client.name}@{key}", number) for number in range(first, first + count)]
        sequence = self._sequences.get(tp, 0)
        self._sequences[tp] = sequence + count
        data = build_batch(
            (
                Record(i, self._client.record.wall_ms(), str(key).encode(), str(message).encode())
                for i, message in enumerate(messages)
            ),
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
        )
        self._pending.append(_Batch(tp, messages, sequence, bytes(data)))

    async def _send_pending(self) -> bool:
        """Send every pending batch once, in order. Returns whether all were acknowledged."""
        client = self._client
        addresses = {tp: await self._address_of(tp) for tp in dict.fromkeys(b.tp for b in self._pending)}
        requests = []
        for batch in self._pending:
            if batch.first_sent_s is None:
                batch.first_sent_s = client.loop.time()
                self._history.sent.update(batch.messages)
            requests.append(
                client.loop.create_task(
                    client.ask(
                        addresses[batch.tp], self._request(batch), ProduceResponse, purpose=str(batch.tp)
                    )
                )
            )
        answers = await asyncio.gather(*requests)
        refused: set[TopicPartition] = set()
        still: list[_Batch] = []
        for batch, answer in zip(list(self._pending), answers, strict=True):
            if batch.tp not in refused:
                self._take_answer(batch, answer)
                if _is_acked(answer):
                    continue
                refused.add(batch.tp)
            still.append(batch)
        self._pending = still
        return not still

    async def _address_of(self, tp: TopicPartition) -> Address:
        client = self._client
        if tp.partition < client.partition_counts[self._topic]:
            return (await client.find_leader(tp))[0]
        # The partition is gone. Any broker serves it; the one that led it is the first choice.
        found = client.leader_of(tp)
        if found is not None and tp not in self._silent:
            return found[0]
        return client.rng.choice(list(client.brokers.values()))

    def _request(self, batch: _Batch) -> ProduceRequest:
        partition = PartitionProduceData(index=batch.tp.partition, records=memoryview(batch.data))
        topic_id = self._client.topic_ids[self._topic]
        topic = TopicProduceData(name=self._topic, topic_id=topic_id, partition_data=[partition])
        return ProduceRequest(acks=-1, timeout_ms=_PRODUCE_TIMEOUT_MS, topic_data=[topic])

    def _take_answer(self, batch: _Batch, answer: ProduceResponse | None) -> None:
        """Records the answer to the first batch of a partition, or to one whose predecessors were acknowledged."""
        if answer is None:
            self._silent.add(batch.tp)
            return
        result = answer.responses[0].partition_responses[0]
        code = ErrorCode(result.error_code)
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self._client.record.accuse(
                f"{batch.messages[0]}: sequence {batch.sequence} of producer {self._producer_id} epoch {self._epoch} is "
                f"refused by {batch.tp}, although everything before it was acknowledged: {result.error_message}"
            )
        (self._silent.add if code else self._silent.discard)(batch.tp)
        if code:
            return
        for i, message in enumerate(batch.messages):
            offset = result.base_offset + i if result.base_offset >= 0 else -1
            self._history.acked[message] = (batch.tp.partition, offset)
        self.acked += len(batch.messages)

    def _give_up_late(self) -> None:
        """Give everything up, under a new epoch, when the oldest batch has no answer for too long."""
        sent_s = [batch.first_sent_s for batch in self._pending if batch.first_sent_s is not None]
        if sent_s and self._client.loop.time() - min(sent_s) > DELIVERY_TIMEOUT_S:
            self._pending.clear()
            self._sequences.clear()
            self._epoch += 1


def _is_acked(answer: ProduceResponse | None) -> bool:
    return answer is not None and not answer.responses[0].partition_responses[0].error_code
