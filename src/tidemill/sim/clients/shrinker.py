"""The administrator of a topic whose number of partitions changes: shrinks it, takes that back, empties and adds partitions.

What is deleted was found first, and the group has it, so that the checker misses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemill.config import PARTITIONS_ACTIVE
from tidemill.errors import ErrorCode
from tidemill.protocol.api.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from tidemill.protocol.api.data import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidemill.sim.checks.keyed import KeyedHistory
from tidemill.sim.clients.base import Client
from tidemill.sim.clients.fetching import EARLIEST, LATEST, message_of
from tidemill.sim.clients.keyed import RenewedPosition
from tidemill.types import TopicPartition

_TOPIC_RESOURCE = 2
_SET, _DELETE = 0, 1
_WAIT_MS = 500
# The numbers of partitions that the topic grows to.
_COUNTS = (4, 6)
_CANCELLED_AT_ONCE = 0.35
_CANCELLED_LATER = 0.01


class Shrinker:
    def __init__(
        self,
        client: Client,
        topic: str,
        history: KeyedHistory,
        note: Callable[[str], None],
        pause_s_max: float,
    ) -> None:
        self._client = client
        self._topic = topic
        self._history = history
        self._note = note
        self._pause_s_max = pause_s_max
        self.is_done = False

    async def run(self) -> None:
        await self._client.find_topics([self._topic])
        while not self._is_ending:
            await self._pause()
            if not self._is_ending:
                await self._shrink_and_grow()
        self.is_done = True

    @property
    def _is_ending(self) -> bool:
        return self._client.record.is_ending

    async def _pause(self) -> None:
        await asyncio.sleep(self._client.rng.uniform(1, self._pause_s_max))

    async def _count(self) -> int:
        await self._client.refresh([self._topic])
        return self._client.partition_counts[self._topic]

    async def _shrink_and_grow(self) -> None:
        rng = self._client.rng
        count = await self._count()
        divisors = [number for number in range(1, count) if count % number == 0]
        if divisors and rng.random() < 0.8:
            active = rng.choice(divisors)
            if not await self._set_active(active):
                return
            await self._pause()
            is_cancelled = rng.random() < _CANCELLED_AT_ONCE
            while not self._is_ending and not is_cancelled and await self._count() > active:
                is_cancelled = rng.random() < _CANCELLED_LATER
                await self._empty(active)
            if is_cancelled:
                await self._set_active(None)
        elif (wanted := rng.choice(_COUNTS)) > count:
            topic = CreatePartitionsTopic(name=self._topic, count=wanted, assignments=None)
            request = CreatePartitionsRequest(topics=[topic], timeout_ms=5_000)
            answer = await self._client.ask_any(request, CreatePartitionsResponse)
            outcome = ErrorCode(answer.results[0].error_code).name if answer.results else "nothing"
            self._note(f"{self._topic} grows to {wanted}: {outcome}")

    async def _set_active(self, active: int | None) -> bool:
        """Shrink the topic, or take that back with None. Returns whether it was accepted."""
        value = None if active is None else str(active)
        config = IncrementalAlterConfigsAlterableConfig(
            name=PARTITIONS_ACTIVE, config_operation=_DELETE if active is None else _SET, value=value
        )
        resource = IncrementalAlterConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=self._topic, configs=[config]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        answer = await self._client.ask_any(request, IncrementalAlterConfigsResponse)
        result = answer.responses[0] if answer.responses else None
        outcome = (
            "nothing" if result is None else f"{ErrorCode(result.error_code).name} {result.error_message}"
        )
        self._note(f"{self._topic} shrinks to {active}: {outcome}")
        return result is not None and not result.error_code

    # -- deleting records ------------------------------------------------------------------------------------

    async def _empty(self, active: int) -> None:
        """Delete what the group has read of the decommissioned partitions."""
        for index in range(active, self._client.partition_counts[self._topic]):
            tp = TopicPartition(self._topic, index)
            offset = await find_records(self._client, tp, self._history, lambda: self._is_ending)
            if offset is not None and await self._is_read_by_group(tp):
                await self._delete(tp, offset)
        await asyncio.sleep(1.0)

    async def _is_read_by_group(self, tp: TopicPartition) -> bool:
        found = [m for place, m in self._history.found.items() if place.partition == tp.partition]
        return self._history.delivered.issuperset(found)

    async def _delete(self, tp: TopicPartition, offset: int) -> None:
        client = self._client
        found = client.leader_of(tp)
        if found is None:
            return
        partition = DeleteRecordsPartition(partition_index=tp.partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=tp.topic, partitions=[partition])], timeout_ms=5_000
        )
        await client.ask(found[0], request, DeleteRecordsResponse)


async def find_records(
    client: Client, tp: TopicPartition, history: KeyedHistory, is_given_up: Callable[[], bool]
) -> int | None:
    """Note where the records of a partition are. Returns the end of what is stable; None when the partition is gone."""
    position = RenewedPosition(client, tp)
    start_offset = end_offset = None
    while start_offset is None or end_offset is None or position.offset < end_offset:
        if is_given_up() or tp.partition >= client.partition_counts[tp.topic]:
            return None
        if start_offset is None or end_offset is None:
            end_offset = await position.list_offset(LATEST)
            start_offset = await position.list_offset(EARLIEST)
            position.offset = start_offset or 0
            if start_offset is None or end_offset is None:
                await client.back_off()
                await client.refresh([tp.topic])
            continue
        records = await position.fetch_records(_WAIT_MS)
        for place, record in zip(position.places, records, strict=True):
            history.found[place] = message_of(record.value or b"")
    return end_offset
