"""Members by kafka-python."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tests.interop.clients import LIMIT_S, ClientError, Received
from tests.interop.group_consumers import GroupConsumer, GroupListener, MemberSettings, Position
from tidemill.types import TopicPartition

with warnings.catch_warnings():
    # It loads its schemas, while it is imported, through a function that newer Pythons deprecate.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.consumer.subscription_state import ConsumerRebalanceListener
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

    import kafka

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
# When a leader joins again because a topic changed and the answer comes between two polls, version 3.0 drops it, sends no
# heartbeat any more and stays in the group until its session ends. A poll that outlasts a rebalance avoids that.
POLL_S_MIN = 0.5
Result = TypeVar("Result")


def _places(partitions: Any) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(one.topic, one.partition) for one in sorted(partitions))


def _call(work: Callable[[], Result]) -> Result:
    try:
        return work()
    except KafkaError as refused:
        raise ClientError(getattr(refused, "errno", -1), repr(refused)) from None


class _Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, consumer: KafkaPythonConsumer) -> None:
        self._of = consumer

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._of.listener.revoked(_places(revoked))

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._of.listener.assigned(_places(assigned), self._of.generation())

    def on_partitions_lost(self, lost: Any) -> None:
        self._of.listener.lost(_places(lost))


class KafkaPythonConsumer(GroupConsumer):
    name = "kafka-python"
    assignors = tuple(ASSIGNORS)

    def __init__(self, bootstrap: str, settings: MemberSettings, listener: GroupListener) -> None:
        super().__init__(bootstrap, settings, listener)
        options: dict[str, Any] = {
            "group_instance_id": settings.instance_id,
            "auto_commit_interval_ms": settings.auto_commit_ms,
            "max_poll_interval_ms": settings.max_poll_interval_ms,
        }
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
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
        rebalances = _Rebalances(self)
        if settings.pattern is None:
            self._consumer.subscribe(list(settings.topics), listener=rebalances)
        else:
            self._consumer.subscribe(pattern=settings.pattern, listener=rebalances)

    def generation(self) -> int | None:
        return int(self._consumer.group_metadata().generation_id)

    def poll(self, limit_s: float, records_max: int = 100) -> None:
        limit_ms = int(max(limit_s, POLL_S_MIN) * 1000)
        polled = _call(lambda: self._consumer.poll(timeout_ms=limit_ms, max_records=records_max))
        generation = self.generation()
        for place, records in polled.items():
            for record in records:
                self.listener.received(place.topic, _received(record), generation)

    def assignment(self) -> set[TopicPartition]:
        return set(_places(self._consumer.assignment()))

    def commit(self, offsets: Mapping[TopicPartition, Position] | None = None) -> None:
        named = None if offsets is None else _to_commit(offsets)
        _call(lambda: self._consumer.commit(named, timeout_ms=int(LIMIT_S * 1000)))

    def commit_async(self, offsets: Mapping[TopicPartition, Position] | None = None) -> None:
        self._consumer.commit_async(None if offsets is None else _to_commit(offsets))

    def committed(self, partition: TopicPartition) -> Position | None:
        place = kafka.TopicPartition(*partition)
        found = _call(lambda: self._consumer.committed(place, metadata=True))
        return None if found is None else Position(int(found.offset), found.metadata or "")

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._consumer.seek(kafka.TopicPartition(*partition), offset)

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        place = kafka.TopicPartition(*partition)
        return int(_call(lambda: self._consumer.offsets_for_times({place: timestamp_ms}))[place].offset)

    def close(self) -> None:
        self._consumer.close()


def _to_commit(offsets: Mapping[TopicPartition, Position]) -> dict[Any, Any]:
    return {
        kafka.TopicPartition(*place): OffsetAndMetadata(position.offset, position.metadata, -1)
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
