"""Members by aiokafka, on an event loop of their own that runs only while it is polled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import aiokafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from tests.interop.clients import ClientError, Received
from tests.interop.group_consumers import GroupConsumer, GroupListener, MemberSettings, Position
from tidemill.types import TopicPartition

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}
Result = TypeVar("Result")


def _places(partitions: Any) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(one.topic, one.partition) for one in sorted(partitions))


class _Rebalances(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, consumer: AiokafkaConsumer) -> None:
        self._of = consumer

    def on_partitions_revoked(self, revoked: Any) -> None:
        # It has no word for partitions that it lost; but it forgets its generation when the coordinator disowns it.
        if self._of.generation() is None:
            self._of.listener.lost(_places(revoked))
        else:
            self._of.listener.revoked(_places(revoked))

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._of.listener.assigned(_places(assigned), self._of.generation())


class AiokafkaConsumer(GroupConsumer):
    name = "aiokafka"
    assignors = tuple(ASSIGNORS)

    def __init__(self, bootstrap: str, settings: MemberSettings, listener: GroupListener) -> None:
        super().__init__(bootstrap, settings, listener)
        self._runner = asyncio.Runner()
        self._consumer: aiokafka.AIOKafkaConsumer = self._runner.run(self._start())
        rebalances = _Rebalances(self)
        if settings.pattern is None:
            self._consumer.subscribe(list(settings.topics), listener=rebalances)
        else:
            self._consumer.subscribe(pattern=settings.pattern, listener=rebalances)

    async def _start(self) -> aiokafka.AIOKafkaConsumer:
        settings = self.settings
        options: dict[str, Any] = {
            "group_instance_id": settings.instance_id,
            "auto_commit_interval_ms": settings.auto_commit_ms,
            "max_poll_interval_ms": settings.max_poll_interval_ms,
            "request_timeout_ms": settings.request_timeout_ms,
        }
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=settings.group,
            partition_assignment_strategy=(ASSIGNORS[settings.assignor or "range"],),
            enable_auto_commit=settings.auto_commit_ms is not None,
            auto_offset_reset=settings.reset,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            metadata_max_age_ms=settings.metadata_max_age_ms,
            fetch_max_wait_ms=100,
            retry_backoff_ms=50,
            **{key: value for key, value in options.items() if value is not None},
        )
        # Not subscribed yet: it would wait here for its assignment.
        await consumer.start()
        return consumer

    def generation(self) -> int | None:
        generation = int(self._consumer._coordinator.generation)
        return None if generation < 0 else generation

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return self._runner.run(work)
        except KafkaError as refused:
            raise ClientError(getattr(refused, "errno", -1), repr(refused)) from None

    def poll(self, limit_s: float, records_max: int = 100) -> None:
        self._run(self._poll(limit_s, records_max))

    async def _poll(self, limit_s: float, records_max: int) -> None:
        polled = await self._consumer.getmany(timeout_ms=int(limit_s * 1000), max_records=records_max)
        # No await from here on: a rebalance would take away what is about to be handed over.
        for place, records in polled.items():
            for record in records:
                self.listener.received(place.topic, _received(record), self.generation())
        if not polled:
            # It answers at once while it has no partitions; the tasks that join need time to run.
            await asyncio.sleep(0 if self._consumer.assignment() else 0.01)

    def assignment(self) -> set[TopicPartition]:
        return set(_places(self._consumer.assignment()))

    def commit(self, offsets: Mapping[TopicPartition, Position] | None = None) -> None:
        self._run(self._consumer.commit(None if offsets is None else _to_commit(offsets)))

    def commit_async(self, offsets: Mapping[TopicPartition, Position] | None = None) -> None:
        self._run(self._commit_later(offsets))

    async def _commit_later(self, offsets: Mapping[TopicPartition, Position] | None) -> None:
        named = None if offsets is None else _to_commit(offsets)
        self._later = asyncio.ensure_future(self._consumer.commit(named))

    def committed(self, partition: TopicPartition) -> Position | None:
        place = aiokafka.TopicPartition(*partition)
        found = self._run(self._consumer.committed(place))
        # Its own call gives the offset only; the coordinator's answer has the metadata too.
        if found is None:
            return None
        entries = self._run(self._consumer._coordinator.fetch_committed_offsets([place]))
        return Position(int(found), entries[place].metadata)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._consumer.seek(aiokafka.TopicPartition(*partition), offset)

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        place = aiokafka.TopicPartition(*partition)
        return int(self._run(self._consumer.offsets_for_times({place: timestamp_ms}))[place].offset)

    def close(self) -> None:
        with contextlib.closing(self._runner):
            self._runner.run(self._consumer.stop())


def _to_commit(offsets: Mapping[TopicPartition, Position]) -> dict[Any, Any]:
    return {
        aiokafka.TopicPartition(*place): OffsetAndMetadata(position.offset, position.metadata)
        for place, position in offsets.items()
    }


def _received(record: Any) -> Received:
    return Received(
        record.partition,
        record.offset,
        record.key,
        record.value,
        tuple(record.headers),
        record.timestamp,
        record.timestamp_type == 1,
    )
