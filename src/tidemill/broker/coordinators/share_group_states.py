"""Sends the requests of share groups to the share coordinators, and passes the outcome to their machine.

The machine of groups says which state is to be initialised or deleted (`coordinator/share_groups/state_requests.py`).
Partitions are independent of each other, so the calls for all of them are made at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

from tidemill.coordinator.groups.assignors import Partitions
from tidemill.coordinator.share_groups.state_requests import InitializeState, StateInitialized
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.share_state import SharePartitionKey, ShareStateSummary
from tidemill.types import TopicId

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
_Partition = tuple[TopicId, int]


class ShareStates(Protocol):
    """The part of `ShareStateClient` that group coordinators use. Every call raises `ApiError`."""

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None: ...

    async def delete(self, key: SharePartitionKey) -> None: ...

    async def read_summary(self, key: SharePartitionKey) -> ShareStateSummary: ...


class ShareGroupStates:
    def __init__(self, client: ShareStates) -> None:
        self._client = client

    async def initialize(self, wanted: InitializeState) -> dict[_Partition, ApiError]:
        """Initialises the partitions. Returns the errors."""
        calls = {
            (topic_id, partition): self._client.initialize(
                SharePartitionKey(wanted.group_id, topic_id, partition), wanted.state_epoch, start_offset
            )
            for topic_id, offsets in wanted.start_offsets.items()
            for partition, start_offset in offsets.items()
        }
        _, errors = await _all(calls)
        if errors:
            (_topic_id, partition), error = next(iter(errors.items()))
            logger.warning(
                "the state of %d of %d partitions of share group %s could not be initialised (partition %d: %s)",
                len(errors),
                len(calls),
                wanted.group_id,
                partition,
                error,
            )
        return errors

    async def delete(self, group_id: str, partitions: Partitions) -> dict[TopicId, ApiError]:
        """Deletes the state of the partitions. Returns one error for each topic that has any."""
        calls = {
            (topic_id, partition): self._client.delete(SharePartitionKey(group_id, topic_id, partition))
            for topic_id, indexes in partitions.items()
            for partition in sorted(indexes)
        }
        _, errors = await _all(calls)
        failed: dict[TopicId, ApiError] = {}
        for (topic_id, _), error in errors.items():
            # The topic is gone, and its state with it.
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                failed.setdefault(topic_id, error)
        return failed

    async def summaries(
        self, group_id: str, partitions: Mapping[TopicId, list[int]]
    ) -> dict[_Partition, ShareStateSummary]:
        """Returns the state of those partitions that have any. An error counts as no state, as in Kafka."""
        calls = {
            (topic_id, partition): self._client.read_summary(SharePartitionKey(group_id, topic_id, partition))
            for topic_id, indexes in partitions.items()
            # A request may name a partition twice.
            for partition in dict.fromkeys(indexes)
        }
        found, _ = await _all(calls)
        return found


def outcome(wanted: InitializeState, errors: Mapping[_Partition, ApiError]) -> StateInitialized:
    done: dict[TopicId, frozenset[int]] = {}
    failed: dict[TopicId, frozenset[int]] = {}
    for topic_id, offsets in wanted.start_offsets.items():
        refused = frozenset(partition for partition in offsets if (topic_id, partition) in errors)
        accepted = frozenset(offsets) - refused
        if accepted:
            done[topic_id] = accepted
        if refused:
            failed[topic_id] = refused
    return StateInitialized(wanted.group_id, wanted.state_epoch, done, failed)


async def _all(
    calls: Mapping[_Partition, Awaitable[ResultT]],
) -> tuple[dict[_Partition, ResultT], dict[_Partition, ApiError]]:
    """Waits for all calls. Returns results and errors; a failure that is no `ApiError` is raised."""
    outcomes = await asyncio.gather(*calls.values(), return_exceptions=True)
    results: dict[_Partition, ResultT] = {}
    errors: dict[_Partition, ApiError] = {}
    for partition, each in zip(calls, outcomes, strict=True):
        if isinstance(each, ApiError):
            errors[partition] = each
        elif isinstance(each, BaseException):
            raise each
        else:
            results[partition] = each
    return results, errors


class Background:
    """Tasks that nothing awaits, until they end or are cancelled together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await work()
            except ApiError as error:
                logger.warning("the state of a share group was not changed: %s", error)
            except Exception:
                logger.exception("changing the state of a share group failed")

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
