"""Simulated producers, with the rules of librdkafka.

The idempotent producer numbers its batches and keeps up to five of a partition in flight. A batch without an
acknowledgement is sent again in the same order, with the same sequence numbers, to the current leader. An out-of-order
error after all earlier batches were acknowledged proves that the cluster lost data.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.protocol.records import Record, build_batch
from tidemill.sim.checks.checker import Acked, MessageId, Sent, is_shown
from tidemill.sim.clients.base import Client
from tidemill.types import TopicPartition

_IN_FLIGHT_MAX = 5
_PRODUCE_TIMEOUT_MS = 5_000
_SEQUENCE_REFUSED = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)


@dataclass(slots=True)
class Batch:
    """A batch that is pending."""

    numbers: range
    sequence: int
    data: bytes
    is_tried: bool = False


class IdempotentProducer:
    """Writes to one partition, until the end, when everything is acknowledged."""

    def __init__(self, client: Client, tp: TopicPartition, pause_s_max: float) -> None:
        self._client = client
        self._tp = tp
        self._pause_s_max = pause_s_max
        self._name = f"{client.name}@{tp}"
        self._producer_id = -1
        self._epoch = -1
        self._next_number = 0
        self._next_sequence = 0
        self._pending: list[Batch] = []
        self.acked = 0
        self.is_done = False

    async def run(self) -> None:
        client = self._client
        self._producer_id, self._epoch = await client.init_producer_id()
        while not client.record.is_ending or self._pending:
            if not client.record.is_ending:
                room = _IN_FLIGHT_MAX - len(self._pending)
                for _ in range(client.rng.randint(0 if self._pending else 1, room)):
                    self._pending.append(self._new_batch())
            if not await self._send_pending():
                await client.back_off()
                await client.refresh([self._tp.topic])
            elif len(self._pending) == 0:
                await asyncio.sleep(client.rng.random() * self._pause_s_max)
        self.is_done = True

    def _new_batch(self) -> Batch:
        count = self._client.rng.randint(1, 3)
        numbers = range(self._next_number, self._next_number + count)
        self._next_number += count
        batch = Batch(numbers, self._next_sequence, self._encode(numbers, self._next_sequence))
        self._next_sequence += count
        return batch

    def _encode(self, numbers: range, sequence: int) -> bytes:
        return bytes(
            build_batch(
                (
                    Record(
                        i,
                        self._client.record.wall_ms(),
                        b"shown" if is_shown(MessageId(self._name, number)) else b"hidden",
                        f"{self._name}/{number}".encode(),
                    )
                    for i, number in enumerate(numbers)
                ),
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                base_sequence=sequence,
            )
        )

    async def _send_pending(self) -> bool:
        """Send every pending batch once, in order. Returns whether all were acknowledged."""
        client, record = self._client, self._client.record
        address, _ = await client.find_leader(self._tp)
        for batch in self._pending:
            if not batch.is_tried:
                batch.is_tried = True
                for number in batch.numbers:
                    record.history.append(Sent(record.now_s(), MessageId(self._name, number), True))
        requests = [
            client.loop.create_task(
                client.ask(address, self._request(batch), ProduceResponse, purpose=str(self._tp))
            )
            for batch in self._pending
        ]
        answers = await asyncio.gather(*requests)
        still: list[Batch] = []
        for batch, answer in zip(list(self._pending), answers, strict=True):
            if still or not self._is_acked(batch, answer):
                still.append(batch)
        # Batches acknowledged after a failed one are sent again too; the broker must detect the duplicates.
        self._pending = still
        return not still

    def _request(self, batch: Batch) -> ProduceRequest:
        return ProduceRequest(
            acks=-1,
            timeout_ms=_PRODUCE_TIMEOUT_MS,
            topic_data=[
                TopicProduceData(
                    name=self._tp.topic,
                    topic_id=self._client.topic_ids[self._tp.topic],
                    partition_data=[
                        PartitionProduceData(index=self._tp.partition, records=memoryview(batch.data))
                    ],
                )
            ],
        )

    def _is_acked(self, batch: Batch, answer: ProduceResponse | None) -> bool:
        if answer is None:
            return False
        result = answer.responses[0].partition_responses[0]
        code = result.error_code
        if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return True
        if code in _SEQUENCE_REFUSED and batch is self._pending[0]:
            self._client.record.accuse(
                f"{self._name}: sequence {batch.sequence} of producer {self._producer_id} is refused with "
                f"{ErrorCode(code).name} although everything before it was acknowledged"
            )
        if code != ErrorCode.NONE:
            return False
        self._acknowledged(batch, result)
        return True

    def _acknowledged(self, batch: Batch, result: PartitionProduceResponse) -> None:
        record = self._client.record
        for i, number in enumerate(batch.numbers):
            message = MessageId(self._name, number)
            record.history.append(Acked(record.now_s(), message, self._tp, result.base_offset + i))
        self.acked += len(batch.numbers)


class CarelessProducer:
    """A producer with acks=1 and without retries. Its only guarantee is that messages a consumer saw stay."""

    def __init__(self, client: Client, tp: TopicPartition, pause_s_max: float) -> None:
        self._client = client
        self._tp = tp
        self._pause_s_max = pause_s_max
        self._name = f"{client.name}@{tp}"
        self._next_number = 0
        self.is_done = False

    async def run(self) -> None:
        client, record = self._client, self._client.record
        while not record.is_ending:
            address, _ = await client.find_leader(self._tp)
            message = MessageId(self._name, self._next_number)
            self._next_number += 1
            record.history.append(Sent(record.now_s(), message))
            data = build_batch([Record(0, record.wall_ms(), None, str(message).encode())])
            request = ProduceRequest(
                acks=1,
                timeout_ms=_PRODUCE_TIMEOUT_MS,
                topic_data=[
                    TopicProduceData(
                        name=self._tp.topic,
                        topic_id=client.topic_ids[self._tp.topic],
                        partition_data=[
                            PartitionProduceData(index=self._tp.partition, records=memoryview(data))
                        ],
                    )
                ],
            )
            answer = await client.ask(address, request, ProduceResponse)
            if answer is None or answer.responses[0].partition_responses[0].error_code:
                await client.back_off()
                await client.refresh([self._tp.topic])
            await asyncio.sleep(client.rng.random() * self._pause_s_max)
        self.is_done = True
