"""The client of share coordinators: where it asks, what travels together, what is retried, and what an error means."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidemill.broker.coordinators import share_state_client as module
from tidemill.broker.coordinators.share_state_client import ShareStateClient
from tidemill.broker.net.channel import PeerUnavailable
from tidemill.broker.net.network import Address
from tidemill.config import load_broker_config
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api import share_state as api
from tidemill.protocol.share_state import SharePartitionKey, ShareState, ShareStateChange, StateBatch
from tidemill.types import TopicId

HERE, ELSEWHERE = 1, 2
TOPIC = TopicId(bytes(range(16)))
CHANGE = ShareStateChange(3, 4, 5, (StateBatch(5, 6, 2, 1),), 7)


def key(partition: int, group: str = "workers") -> SharePartitionKey:
    return SharePartitionKey(group, TOPIC, partition)


class Coordinators:
    """All brokers' share coordinators: keeps what was asked, and answers with `errors` in turn, then well."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, Any]] = []
        self.errors: list[ErrorCode | Exception] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.leader = ELSEWHERE
        self._was_asked = asyncio.Condition()

    async def until_asked(self, times: int) -> None:
        async with self._was_asked:
            await self._was_asked.wait_for(lambda: len(self.requests) >= times)

    @property
    def runtime(self) -> Any:
        return self

    async def leader_of(self, _key: str) -> int:
        return self.leader

    async def serve(self, request: Any) -> Any:
        return await self.answer(HERE, request)

    async def answer(self, broker_id: int, request: Any) -> Any:
        async with self._was_asked:
            self.requests.append((broker_id, request))
            self._was_asked.notify_all()
        error = self.errors.pop(0) if self.errors else ErrorCode.NONE
        await self.may_answer.wait()
        if isinstance(error, Exception):
            raise error
        if isinstance(request, api.ReadShareGroupStateRequest):
            read = api.ReadShareGroupStatePartitionResult(
                state_epoch=3,
                start_offset=5,
                error_code=error,
                state_batches=[
                    api.StateBatch(first_offset=5, last_offset=6, delivery_state=2, delivery_count=1)
                ],
            )
            return api.ReadShareGroupStateResponse(
                results=[api.ReadStateResult(topic_id=TOPIC, partitions=[read])]
            )
        return api.WriteShareGroupStateResponse(
            results=[
                api.WriteStateResult(
                    topic_id=topic.topic_id,
                    partitions=[
                        api.WriteShareGroupStatePartitionResult(partition=each.partition, error_code=error)
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def to(self, address: Address, _purpose: str) -> Any:
        """As the broker's channels: the port is the broker's id."""

        async def request(message: Any, *_: object, timeout_s: float) -> Any:
            async with asyncio.timeout(timeout_s):
                return await self.answer(address.port, message)

        return SimpleNamespace(request=request)


@pytest.fixture
async def coordinators() -> Coordinators:
    return Coordinators()


def make(coordinators: Coordinators) -> ShareStateClient:
    config, _ = load_broker_config({"node.id": str(HERE), "log.dirs": "/nowhere"})
    shares = cast("Any", coordinators)
    return ShareStateClient(config, shares, lambda broker_id: Address("host", broker_id), shares)


def partitions(request: Any) -> list[int]:
    return [each.partition for topic in request.topics for each in topic.partitions]


@pytest.mark.parametrize("broker_id", [ELSEWHERE, HERE])
async def test_request_reaches_the_coordinator_on_any_broker(
    coordinators: Coordinators, broker_id: int
) -> None:
    coordinators.leader = broker_id
    client = make(coordinators)
    await client.write(key(0), CHANGE)
    ((asked, request),) = coordinators.requests
    assert asked == broker_id
    assert request.group_id == "workers"
    (entry,) = request.topics[0].partitions
    assert (entry.state_epoch, entry.leader_epoch, entry.start_offset, entry.delivery_complete_count) == (
        3,
        4,
        5,
        7,
    )


async def test_read_returns_the_state(coordinators: Coordinators) -> None:
    assert await make(coordinators).read(key(0), 4) == ShareState(3, 5, CHANGE.batches)


async def test_writes_that_gather_go_with_the_next_request(coordinators: Coordinators) -> None:
    client = make(coordinators)
    coordinators.may_answer.clear()
    first = asyncio.ensure_future(client.write(key(0), CHANGE))
    await coordinators.until_asked(1)
    later = [asyncio.ensure_future(client.write(key(index), CHANGE)) for index in (0, 1, 0, 2)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(coordinators.requests) == 1
    coordinators.may_answer.set()
    await asyncio.gather(first, *later)
    assert [partitions(request) for _, request in coordinators.requests] == [[0], [0, 1, 2], [0]]


async def test_groups_do_not_wait_for_each_other(coordinators: Coordinators) -> None:
    client = make(coordinators)
    coordinators.may_answer.clear()
    calls = [asyncio.ensure_future(client.write(key(0, group), CHANGE)) for group in ("a", "b")]
    await coordinators.until_asked(2)
    coordinators.may_answer.set()
    await asyncio.gather(*calls)
    assert [request.group_id for _, request in coordinators.requests] == ["a", "b"]


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        PeerUnavailable("gone"),
        TimeoutError(),
    ],
)
async def test_passing_error_is_retried_at_the_coordinator_of_that_moment(
    coordinators: Coordinators, error: ErrorCode | Exception
) -> None:
    client = make(coordinators)
    coordinators.errors = [error]
    coordinators.may_answer.clear()
    call = asyncio.ensure_future(client.write(key(0), CHANGE))
    await coordinators.until_asked(1)
    coordinators.leader = 3
    coordinators.may_answer.set()
    await call
    assert [broker_id for broker_id, _ in coordinators.requests] == [ELSEWHERE, 3]


@pytest.mark.parametrize(
    "error",
    [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH, ErrorCode.INVALID_REQUEST],
)
async def test_final_error_is_raised_at_once(coordinators: Coordinators, error: ErrorCode) -> None:
    coordinators.errors = [error]
    with pytest.raises(ApiError) as raised:
        await make(coordinators).write(key(0), CHANGE)
    assert raised.value.code is error
    assert len(coordinators.requests) == 1


async def test_retries_end(coordinators: Coordinators, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRIES_END_S", 0.2)
    coordinators.errors = [ErrorCode.NOT_COORDINATOR] * 100
    with pytest.raises(ApiError) as raised:
        await make(coordinators).write(key(0), CHANGE)
    assert raised.value.code is ErrorCode.NOT_COORDINATOR


async def test_close_ends_what_is_under_way(coordinators: Coordinators) -> None:
    client = make(coordinators)
    coordinators.may_answer.clear()
    calls = [asyncio.ensure_future(client._enqueue(ELSEWHERE, module._WRITE, key(0), _ENTRY)) for _ in "ab"]
    await coordinators.until_asked(1)
    client.close()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(outcome, ApiError) for outcome in outcomes)


_ENTRY = api.WriteShareGroupStatePartitionData()


def kinds(coordinators: Coordinators) -> list[str]:
    return [type(request).__name__ for _, request in coordinators.requests]


INITIALIZE, DELETE = "InitializeShareGroupStateRequest", "DeleteShareGroupStateRequest"


async def test_state_is_begun_only_when_no_deletion_of_it_can_be_repeated(coordinators: Coordinators) -> None:
    """Found by seed 101108: the repetition deleted the state that a new member's group had begun."""
    client = make(coordinators)
    coordinators.may_answer.clear()
    coordinators.errors = [ErrorCode.NOT_COORDINATOR]
    deletions = [asyncio.ensure_future(client.delete(key(0))) for _ in range(2)]
    await coordinators.until_asked(1)
    begun = asyncio.ensure_future(client.initialize(key(0), 7, -1))
    other = asyncio.ensure_future(client.initialize(key(1), 7, -1))
    await coordinators.until_asked(2)
    coordinators.may_answer.set()
    await asyncio.gather(*deletions, begun, other)
    asked = [
        (type(request).__name__, partition)
        for _, request in coordinators.requests
        for partition in partitions(request)
    ]
    assert asked[-1] == (INITIALIZE, 0)
    assert asked.count((DELETE, 0)) == 3
    assert (INITIALIZE, 1) in asked[:2]


async def test_deletion_waits_for_a_state_that_is_being_begun(coordinators: Coordinators) -> None:
    client = make(coordinators)
    coordinators.may_answer.clear()
    coordinators.errors = [ErrorCode.NOT_COORDINATOR]
    begun = asyncio.ensure_future(client.initialize(key(0), 7, -1))
    await coordinators.until_asked(1)
    deleted = asyncio.ensure_future(client.delete(key(0)))
    coordinators.may_answer.set()
    await asyncio.gather(begun, deleted)
    assert kinds(coordinators) == [INITIALIZE, INITIALIZE, DELETE]


async def test_deletion_that_fails_holds_up_nothing(
    coordinators: Coordinators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRIES_END_S", 0.0)
    client = make(coordinators)
    coordinators.errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    with pytest.raises(ApiError):
        await client.delete(key(0))
    await client.initialize(key(0), 7, -1)
    assert kinds(coordinators) == [DELETE, INITIALIZE]
