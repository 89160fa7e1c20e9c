"""Brokers with share partitions on virtual time, a share coordinator that a test can hold or fail, and members."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.unit.broker.replica_world import TOPIC_ID, Answer, World
from tidemill.broker.share.partitions import SharePartitions
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.metadata import ConfigRecord
from tidemill.protocol.api.share import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
)
from tidemill.protocol.records import iterate_records, split_batches
from tidemill.protocol.share_state import (
    NO_START_OFFSET,
    SharePartitionKey,
    ShareState,
    ShareStateChange,
    ShareStateSummary,
    StateBatch,
)

GROUP = "g"
WAIT_MS = 20_000
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)


@dataclass
class StoredState:
    leader_epoch: int = -1
    start_offset: int = NO_START_OFFSET
    state_epoch: int = 0
    creation_offset: int = 0
    # By offset: delivery count and state.
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)


class StoredStates:
    """The share coordinators' part, by the rules that `ShareStateClient` states."""

    def __init__(self) -> None:
        self.stored: dict[SharePartitionKey, StoredState] = {}
        self.writes: list[ShareStateChange] = []
        self._created = 0
        # While it is set, writes wait.
        self.is_held = False
        # What each further write fails with; `is_lost` says that it did take effect.
        self.failure: ErrorCode | None = None
        self.is_lost = False

    def of(self, index: int = 0, group_id: str = GROUP, topic_id: bytes = TOPIC_ID) -> StoredState:
        return self._of(SharePartitionKey(group_id, topic_id, index))  # type: ignore[arg-type]

    def _of(self, key: SharePartitionKey) -> StoredState:
        if key not in self.stored:
            self._created += 1
            self.stored[key] = StoredState(creation_offset=self._created)
        return self.stored[key]

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        await asyncio.sleep(0.001)
        state = self._of(key)
        if leader_epoch < state.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        state.leader_epoch = leader_epoch
        batches = [
            StateBatch(offset, offset, kind, count)
            for offset, (count, kind) in sorted(state.offsets.items())
            if offset >= state.start_offset
        ]
        return ShareState(state.state_epoch, state.start_offset, tuple(batches), state.creation_offset)

    async def read_summary(self, key: SharePartitionKey) -> ShareStateSummary:
        await asyncio.sleep(0.001)
        state = self._of(key)
        return ShareStateSummary(
            state.state_epoch, state.leader_epoch, state.start_offset, 0, state.creation_offset
        )

    async def write(self, key: SharePartitionKey, change: ShareStateChange) -> None:
        await asyncio.sleep(0.001)
        while self.is_held:  # noqa: ASYNC110 - brokers have loops of their own
            await asyncio.sleep(0.01)
        state = self.stored[key]
        if change.leader_epoch < state.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        if change.state_epoch < state.state_epoch or change.creation_offset != state.creation_offset:
            raise ApiError(ErrorCode.FENCED_STATE_EPOCH)
        if self.failure is None or self.is_lost:
            self._store(state, change)
        if self.failure is not None:
            raise ApiError(self.failure)

    def _store(self, state: StoredState, change: ShareStateChange) -> None:
        self.writes.append(change)
        for batch in change.batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                state.offsets[offset] = max(
                    state.offsets.get(offset, (0, 0)), (batch.delivery_count, batch.delivery_state)
                )
        state.start_offset = max(state.start_offset, change.start_offset)


def share_with(world: World, states: StoredStates, *broker_ids: int) -> None:
    for broker_id in broker_ids or tuple(world.hosts):
        host = world[broker_id]

        def wire(host: Any = host) -> None:
            host.broker.share = SharePartitions(
                host.broker.config,
                host.broker.clock,
                host.replicas,
                lambda: world.image,
                states,
                host.replicas._fetchers._channels,
            )

        world._run_in(host, wire)


def configure(world: World, group_id: str = GROUP, **settings: str) -> None:
    """Settings of a group, with underscores for dots."""
    world.publish(
        *(
            ConfigRecord(resource_type=32, resource_name=group_id, name=name.replace("_", "."), value=value)
            for name, value in settings.items()
        )
    )


class Member:
    """A member with a share session at one broker."""

    def __init__(self, world: World, name: str = "m1", broker_id: int = 1, group_id: str = GROUP) -> None:
        self.world, self.name, self.broker_id, self.group_id = world, name, broker_id, group_id
        self.epoch = 0

    def start_fetch(
        self,
        *partitions: int,
        acks: Sequence[tuple[int, int, Sequence[int]]] = (),
        max_records: int = 500,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        batch_size: int = 500,
        epoch: int | None = None,
        version: int = 2,
        topic_id: bytes = TOPIC_ID,
        forgets: Sequence[int] = (),
        **fields: Any,
    ) -> Answer:
        """`acks` are (first offset, last offset, types) of partition 0."""
        wanted = partitions or ((0,) if self.epoch == 0 or acks else ())
        request = ShareFetchRequest(
            group_id=self.group_id,
            member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_records=max_records,
            batch_size=batch_size,
            topics=[
                FetchTopic(
                    topic_id=topic_id,
                    partitions=[
                        FetchPartition(
                            partition_index=index,
                            acknowledgement_batches=_batches(acks) if index == 0 else [],
                        )
                        for index in wanted
                    ],
                )
            ]
            if wanted
            else [],
            forgotten_topics_data=[ForgottenTopic(topic_id=topic_id, partitions=list(forgets))]
            if forgets
            else [],
            **fields,
        )
        if epoch is None:
            self.epoch += 1
        return self.world.ask(self.broker_id, request, version)

    def fetch(self, *partitions: int, **fields: Any) -> Fetched:
        return self.answered(self.start_fetch(*partitions, **fields))

    def answered(self, answer: Answer) -> Fetched:
        self.world.until(lambda: answer.is_there, "an answer to a ShareFetch")
        return Fetched(answer)

    def start_acknowledge(
        self,
        *acks: tuple[int, int, Sequence[int]],
        epoch: int | None = None,
        version: int = 2,
        topic_id: bytes = TOPIC_ID,
        index: int = 0,
        is_renew_ack: bool | None = None,
    ) -> Answer:
        renews = any(RENEW in types for _, _, types in acks) if is_renew_ack is None else is_renew_ack
        partition = AcknowledgePartition(partition_index=index, acknowledgement_batches=_batches(acks))
        request = ShareAcknowledgeRequest(
            group_id=self.group_id,
            member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch,
            is_renew_ack=renews if version >= 2 else False,
            topics=[AcknowledgeTopic(topic_id=topic_id, partitions=[partition])] if acks else [],
        )
        if epoch is None:
            self.epoch += 1
        return self.world.ask(self.broker_id, request, version)

    def acknowledge(self, *acks: tuple[int, int, Sequence[int]], **fields: Any) -> ErrorCode:
        """The error of the partition, or of the whole request."""
        answer = self.start_acknowledge(*acks, **fields)
        self.world.until(lambda: answer.is_there, "an answer to a ShareAcknowledge")
        return outcome(answer)

    def close(self) -> None:
        answer = self.start_fetch(epoch=-1, max_records=0)
        self.world.until(lambda: answer.is_there, "the end of a session")
        assert Fetched(answer).error is ErrorCode.NONE


def outcome(answer: Answer) -> ErrorCode:
    response = answer.response
    if response.error_code or not response.responses:
        return ErrorCode(response.error_code)
    return ErrorCode(response.responses[0].partitions[0].error_code)


class Fetched:
    """What a member reads of a ShareFetch response."""

    def __init__(self, answer: Answer) -> None:
        self.response = answer.response
        self.error = ErrorCode(self.response.error_code)
        self.partitions = {
            each.partition_index: each for topic in self.response.responses for each in topic.partitions
        }

    def acquired(self, index: int = 0) -> list[tuple[int, int, int]]:
        """(first offset, last offset, delivery count)"""
        found = self.partitions.get(index)
        return (
            []
            if found is None
            else [
                (each.first_offset, each.last_offset, each.delivery_count) for each in found.acquired_records
            ]
        )

    def offsets(self, index: int = 0) -> list[int]:
        return [offset for first, last, _ in self.acquired(index) for offset in range(first, last + 1)]

    def batches(self, index: int = 0) -> list[int]:
        """The base offsets of the batches that came."""
        return [header.base_offset for header in split_batches(memoryview(self.partitions[index].records))]

    def values(self, index: int = 0) -> list[bytes]:
        """The values of the acquired records."""
        found = self.partitions.get(index)
        if found is None:
            return []
        data, values, offsets = memoryview(found.records), [], set(self.offsets(index))
        for header in split_batches(data):
            values += [
                record.value or b""
                for record in iterate_records(data[: header.size], header)
                if record.offset in offsets
            ]
            data = data[header.size :]
        return values

    def error_of(self, index: int = 0) -> ErrorCode:
        return ErrorCode(self.partitions[index].error_code)

    def acknowledge_error(self, index: int = 0) -> ErrorCode:
        return ErrorCode(self.partitions[index].acknowledge_error_code)


def _batches(acks: Sequence[tuple[int, int, Sequence[int]]]) -> list[AcknowledgementBatch]:
    return [
        AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))
        for first, last, types in acks
    ]
