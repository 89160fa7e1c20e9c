"""The way of this broker to the share coordinators, which keep the durable state of share partitions (Kafka: Persister).

The coordinator of a share partition is the leader of its key's partition of `__share_group_state`, which may be this
broker. Requests of one kind about one group travel together: one is under way to a broker at a time, and what gathers
meanwhile goes with the next. A share partition stands in a request once, so its writes arrive in order.

An error that a moment may heal (another coordinator, one that loads, a broken link) is retried for a bounded time at
the coordinator of that moment. A repeated write is harmless: it carries the leader epoch and state epoch, and the
coordinator keeps the larger delivery count and state of each offset. When the time is over, the last error is raised,
and the outcome of a write is unknown.

A repeated deletion is not: it would delete a state that was begun anew meanwhile. So what begins and what deletes the state
of a share partition wait for each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidemill.broker.coordinators.share_state import ShareCoordinators
from tidemill.broker.net.channel import Channels, PeerUnavailable
from tidemill.broker.net.network import Address
from tidemill.config import BrokerConfig
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api import share_state as api
from tidemill.protocol.schema import Request, Response, Struct
from tidemill.protocol.share_state import (
    SharePartitionKey,
    ShareState,
    ShareStateChange,
    ShareStateSummary,
    StateBatch,
)
from tidemill.types import TopicId

logger = logging.getLogger(__name__)

_RETRIED = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
# Longer than a failover of the coordinator mostly takes, shorter than a lock of a record.
_RETRIES_END_S = 15.0
_BACKOFF_S_MIN = 0.05
_BACKOFF_S_MAX = 0.5


@dataclass(frozen=True, slots=True)
class _Kind:
    """One of the five APIs: its messages."""

    name: str
    topic: type[Struct]
    request: type[Request]
    response: type[Response]
    value_of: Callable[[Any], Any] = lambda _result: None


@dataclass(slots=True, eq=False)
class _Call:
    key: SharePartitionKey
    # The partition's entry in the request.
    entry: Struct
    answer: asyncio.Future[Any]

    def settle(self, value: Any) -> None:
        if self.answer.done():
            return
        if isinstance(value, ApiError):
            self.answer.set_exception(value)
        else:
            self.answer.set_result(value)


class _QueueKey(NamedTuple):
    broker_id: int
    kind: str
    group_id: str


@dataclass(slots=True, eq=False)
class _Queue:
    """The calls that have gathered for the next request."""

    calls: list[_Call] = field(default_factory=list)

    def take(self) -> list[_Call]:
        """Returns the next request's calls, one for each share partition."""
        taken: dict[SharePartitionKey, _Call] = {}
        left = []
        for call in self.calls:
            if call.key in taken:
                left.append(call)
            else:
                taken[call.key] = call
        self.calls = left
        return list(taken.values())


class _UnderWay:
    """The calls of one kind that are under way, by their share partition."""

    def __init__(self) -> None:
        self._calls: dict[SharePartitionKey, dict[asyncio.Future[None], None]] = {}

    @contextmanager
    def under_way(self, key: SharePartitionKey) -> Iterator[None]:
        call = asyncio.get_running_loop().create_future()
        calls = self._calls.setdefault(key, {})
        calls[call] = None
        try:
            yield
        finally:
            call.set_result(None)
            del calls[call]
            if not calls:
                del self._calls[key]

    async def over(self, key: SharePartitionKey) -> None:
        """Returns when none is under way for the share partition."""
        while calls := self._calls.get(key):
            await asyncio.wait(list(calls))


class ShareStateClient:
    """Each call is about one share partition, and many may be made at once.

    They raise `ApiError`. FENCED_LEADER_EPOCH: a later leader of the partition has read the state. FENCED_STATE_EPOCH:
    the state was initialised anew, or deleted and created. UNKNOWN_TOPIC_OR_PARTITION: the topic is deleted.
    INVALID_REQUEST: no such state, or a request that can never be right. Every other code is a failure after which the
    outcome is unknown: COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, NETWORK_EXCEPTION,
    REQUEST_TIMED_OUT.
    """

    def __init__(
        self,
        config: BrokerConfig,
        channels: Channels,
        address_of: Callable[[int], Address | None],
        coordinators: ShareCoordinators,
    ) -> None:
        self._node_id = config.node_id
        self._timeout_s = config.share_coordinator.write_timeout_ms / 1000
        self._channels = channels
        self._address_of = address_of
        self._coordinators = coordinators
        self._loop = asyncio.get_running_loop()
        self._initializations = _UnderWay()
        self._deletions = _UnderWay()
        # There is one while its task sends requests.
        self._queues: dict[_QueueKey, _Queue] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    # -- calls -----------------------------------------------------------------------------------------------

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Begins the state anew. A state epoch that is smaller than the one there raises FENCED_STATE_EPOCH.

        With the same state epoch, the same start offset or none changes nothing, so that a repetition is harmless.
        """
        entry = api.InitializeShareGroupStatePartitionData(
            partition=key.partition, state_epoch=state_epoch, start_offset=start_offset
        )
        await self._deletions.over(key)
        with self._initializations.under_way(key):
            await self._call(_INITIALIZE, key, entry)

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """Returns the state for a leader that begins; from then on earlier leader epochs are fenced."""
        entry = api.ReadShareGroupStatePartitionData(
            partition=key.partition, leader_epoch=leader_epoch, wants_creation_offset=True
        )
        state = await self._call(_READ, key, entry)
        assert isinstance(state, ShareState)
        return state

    async def write(self, key: SharePartitionKey, change: ShareStateChange) -> None:
        """Returns when the change is durable.

        Of two states of an offset the one with the larger delivery count stays, whichever was written later. With equal
        counts the larger delivery state stays (available 0, acknowledged 2, archived 4). The start offset never moves
        back. So writes under way may pass each other.
        """
        entry = api.WriteShareGroupStatePartitionData(
            partition=key.partition,
            state_epoch=change.state_epoch,
            leader_epoch=change.leader_epoch,
            start_offset=change.start_offset,
            delivery_complete_count=change.delivery_complete_count,
            state_batches=[api.StateBatch(**batch._asdict()) for batch in change.batches],
            creation_offset=change.creation_offset,
        )
        await self._call(_WRITE, key, entry)

    async def delete(self, key: SharePartitionKey) -> None:
        """Removes the state; removing what is not there succeeds."""
        await self._initializations.over(key)
        with self._deletions.under_way(key):
            await self._call(_DELETE, key, api.DeleteShareGroupStatePartitionData(partition=key.partition))

    async def read_summary(self, key: SharePartitionKey, leader_epoch: int = -1) -> ShareStateSummary:
        """Returns start offset and count of complete records without fencing any leader; -1 where there is no state."""
        entry = api.ReadShareGroupStateSummaryPartitionData(
            partition=key.partition, leader_epoch=leader_epoch, wants_creation_offset=True
        )
        summary = await self._call(_READ_SUMMARY, key, entry)
        assert isinstance(summary, ShareStateSummary)
        return summary

    def close(self) -> None:
        """Cancels what is under way."""
        for task in list(self._tasks):
            task.cancel()

    # -- retries ---------------------------------------------------------------------------------------------

    async def _call(self, kind: _Kind, key: SharePartitionKey, entry: Struct) -> Any:
        end_s = self._loop.time() + _RETRIES_END_S
        backoff_s = _BACKOFF_S_MIN
        while True:
            try:
                broker_id = await self._coordinators.runtime.leader_of(str(key))
                return await self._enqueue(broker_id, kind, key, entry)
            except ApiError as error:
                if error.code not in _RETRIED or self._loop.time() + backoff_s >= end_s:
                    raise
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_S_MAX)

    # -- requests --------------------------------------------------------------------------------------------

    def _enqueue(
        self, broker_id: int, kind: _Kind, key: SharePartitionKey, entry: Struct
    ) -> asyncio.Future[Any]:
        call = _Call(key, entry, self._loop.create_future())
        queue_key = _QueueKey(broker_id, kind.name, key.group_id)
        queue = self._queues.get(queue_key)
        if queue is None:
            queue = self._queues[queue_key] = _Queue()
            task = self._loop.create_task(self._empty(queue_key, kind, queue))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)
        queue.calls.append(call)
        return call.answer

    async def _empty(self, queue_key: _QueueKey, kind: _Kind, queue: _Queue) -> None:
        calls: list[_Call] = []
        try:
            while calls := queue.take():
                response = await self._send(queue_key.broker_id, kind, _request(kind, calls))
                _give(kind, calls, response)
        finally:
            # After an error, and when the broker closes, what has gathered must not wait for ever.
            del self._queues[queue_key]
            for call in (*calls, *queue.calls):
                call.settle(ApiError(ErrorCode.NETWORK_EXCEPTION))

    async def _send(self, broker_id: int, kind: _Kind, request: Request) -> Response | ApiError:
        try:
            if broker_id == self._node_id:
                async with asyncio.timeout(self._timeout_s):
                    return await self._coordinators.serve(request)
            address = self._address_of(broker_id)
            if address is None:
                raise PeerUnavailable(f"the address of broker {broker_id} is not known")
            channel = self._channels.to(address, "share state")
            return await channel.request(request, kind.response, timeout_s=self._timeout_s)
        except TimeoutError:
            return ApiError(ErrorCode.REQUEST_TIMED_OUT)
        except PeerUnavailable as error:
            logger.debug("broker %d did not answer %s: %s", broker_id, kind.name, error)
            return ApiError(ErrorCode.NETWORK_EXCEPTION)


def _request(kind: _Kind, calls: Sequence[_Call]) -> Request:
    topics: dict[TopicId, list[Struct]] = {}
    for call in calls:
        topics.setdefault(call.key.topic_id, []).append(call.entry)
    make_topic, make_request = _maker(kind.topic), _maker(kind.request)
    request = make_request(
        group_id=calls[0].key.group_id,
        topics=[make_topic(topic_id=topic_id, partitions=entries) for topic_id, entries in topics.items()],
    )
    assert isinstance(request, Request)
    return request


def _maker(message: type[Struct]) -> Callable[..., Struct]:
    """The five APIs have fields of the same names, which their common base does not declare."""
    return message


def _give(kind: _Kind, calls: Sequence[_Call], response: Any) -> None:
    if isinstance(response, ApiError):
        for call in calls:
            call.settle(response)
        return
    results = {
        (topic.topic_id, each.partition): each for topic in response.results for each in topic.partitions
    }
    for call in calls:
        result = results.get((call.key.topic_id, call.key.partition))
        if result is None:
            call.settle(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))
        elif result.error_code:
            call.settle(ApiError(ErrorCode(result.error_code), result.error_message))
        else:
            call.settle(kind.value_of(result))


def _state_of(result: api.ReadShareGroupStatePartitionResult) -> ShareState:
    batches = (
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in result.state_batches
    )
    return ShareState(result.state_epoch, result.start_offset, tuple(batches), result.creation_offset)


def _summary_of(result: api.ReadShareGroupStateSummaryPartitionResult) -> ShareStateSummary:
    return ShareStateSummary(
        result.state_epoch,
        result.leader_epoch,
        result.start_offset,
        result.delivery_complete_count,
        result.creation_offset,
    )


_INITIALIZE = _Kind(
    "initialize",
    api.InitializeStateData,
    api.InitializeShareGroupStateRequest,
    api.InitializeShareGroupStateResponse,
)
_READ = _Kind(
    "read",
    api.ReadStateData,
    api.ReadShareGroupStateRequest,
    api.ReadShareGroupStateResponse,
    _state_of,
)
_WRITE = _Kind(
    "write",
    api.WriteStateData,
    api.WriteShareGroupStateRequest,
    api.WriteShareGroupStateResponse,
)
_DELETE = _Kind(
    "delete",
    api.DeleteStateData,
    api.DeleteShareGroupStateRequest,
    api.DeleteShareGroupStateResponse,
)
_READ_SUMMARY = _Kind(
    "read summary",
    api.ReadStateSummaryData,
    api.ReadShareGroupStateSummaryRequest,
    api.ReadShareGroupStateSummaryResponse,
    _summary_of,
)
