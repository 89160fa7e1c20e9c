"""A coordinator's shard whose partition goes away while it is loaded: nothing is decided, and nothing is a bug."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidemill.broker.coordinators.runtime import _LOAD_BATCHES_AT_ONCE, CoordinatorRuntime, HostedShard
from tidemill.broker.partitions.partition import Partition
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.records import BatchHeader, Record, build_batch, header_at, stamp

_BATCHES = 3 * _LOAD_BATCHES_AT_ONCE
_RECORDS = 5_000


class _Machine:
    deadline_ms = None

    def __init__(self) -> None:
        self.replayed: list[bytes] = []
        self.is_loaded = False

    def decode(self, key: bytes, _value: bytes | None) -> bytes:
        return key

    def replay(self, record: bytes, _writer: object, _offset: int) -> None:
        self.replayed.append(record)

    def on_loaded(self, _steady_ms: int) -> None:
        self.is_loaded = True

    def waiting_tokens(self) -> list[int]:
        return []


class _Log:
    def __init__(self) -> None:
        self.is_deleted = False
        self.log_end_offset = _BATCHES
        self.segments = [self]

    def batches(self) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        for offset in range(_BATCHES):
            assert not self.is_deleted, "the file is closed"
            batch = memoryview(bytearray(build_batch([Record(0, 0, b"key", b"value")])))
            stamp(batch, 0, offset, 0)
            yield 0, header_at(batch), batch


class _Stage:
    def __init__(self, log: _Log | None) -> None:
        self.partition = SimpleNamespace(
            log=log,
            name="__consumer_offsets-0",
            high_watermark=_BATCHES,
            reader=SimpleNamespace(wait=lambda _grew: None, stop_waiting=lambda _grew: None),
        )
        self.machine = _Machine()
        self.answers: list[Any] = []
        self.may_be_replaced = False
        self.returns: list[int] = []
        self.shard: HostedShard[Any] = HostedShard(
            cast(Partition, self.partition),
            0,
            self.machine,
            cast(Any, SimpleNamespace(steady_ms=lambda: 0)),
            respond=lambda _token, response: self.answers.append(response),
            report=lambda _effect: None,
            may_be_replaced=lambda: self.may_be_replaced,
            returned=lambda _machine, steady_ms: self.returns.append(steady_ms),
        )

    def refusal(self) -> ErrorCode:
        self.shard.handle("a request", 1)
        answer = self.answers[-1]
        assert isinstance(answer, ApiError)
        return answer.code


async def test_load_yields_between_batches() -> None:
    stage = _Stage(_Log())
    await stage.shard.load()
    assert len(stage.machine.replayed) == _BATCHES
    assert stage.shard.is_active


class _LogOfOneBatch(_Log):
    def batches(self) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        records = [Record(number, 0, b"key", b"value") for number in range(_RECORDS)]
        batch = memoryview(bytearray(build_batch(records)))
        yield 0, header_at(batch), batch


async def test_load_yields_between_the_records_of_a_large_batch() -> None:
    stage = _Stage(_LogOfOneBatch())
    loading = asyncio.ensure_future(stage.shard.load())
    replayed: list[int] = []
    while not loading.done():
        await asyncio.sleep(0)
        replayed.append(len(stage.machine.replayed) - sum(replayed))
    assert sum(replayed) == _RECORDS
    assert max(replayed) <= 500


async def test_load_of_deleted_topic_answers_not_coordinator(caplog: pytest.LogCaptureFixture) -> None:
    stage = _Stage(None)
    await stage.shard.load()
    assert stage.refusal() is ErrorCode.NOT_COORDINATOR
    assert not caplog.records


@pytest.mark.parametrize("is_closed", [True, False])
async def test_topic_deleted_during_load_ends_the_load_quietly(
    caplog: pytest.LogCaptureFixture, is_closed: bool
) -> None:
    log = _Log()
    stage = _Stage(log)
    loading = asyncio.ensure_future(stage.shard.load())
    await asyncio.sleep(0)
    assert 0 < len(stage.machine.replayed) < _BATCHES
    stage.partition.log, log.is_deleted = None, True
    if is_closed:
        stage.shard.close()
    await loading
    assert stage.refusal() is ErrorCode.NOT_COORDINATOR
    assert not stage.machine.is_loaded
    assert not caplog.records


async def test_shard_closed_during_load_stays_closed() -> None:
    """Led in another epoch by now: the log is the same, the coordinator is not."""
    stage = _Stage(_Log())
    loading = asyncio.ensure_future(stage.shard.load())
    await asyncio.sleep(0)
    stage.shard.close()
    await loading
    assert stage.refusal() is ErrorCode.NOT_COORDINATOR
    assert not stage.shard.is_active


async def test_reading_is_deserted_notifies_no_machine() -> None:
    stage = _Stage(_Log())
    await stage.shard.load()
    stage.may_be_replaced = True
    stage.shard.check_leadership()
    stage.may_be_replaced = False
    assert stage.shard.is_deserted
    assert stage.shard.is_deserted
    assert not stage.returns
    stage.shard.check_leadership()
    assert not stage.shard.is_deserted
    assert len(stage.returns) == 1
    stage.shard.check_leadership()
    assert len(stage.returns) == 1


async def test_a_large_request_to_every_shard_goes_to_one_of_them_in_a_turn() -> None:
    asked: list[int] = []
    nothing = cast(Any, None)
    runtime: CoordinatorRuntime[Any] = CoordinatorRuntime(
        nothing, nothing, nothing, nothing, nothing, nothing
    )

    def shard(number: int) -> Any:
        def handle(_request: object, token: int) -> None:
            asked.append(number)
            runtime._requests.respond(token, number)

        return SimpleNamespace(handle=handle, check_leadership=lambda: None, is_deserted=False)

    runtime._shards = {number: shard(number) for number in range(10)}
    answering = asyncio.ensure_future(runtime.ask_every_shard("a request", is_large=True))
    turns: list[int] = []
    while not answering.done():
        await asyncio.sleep(0)
        turns.append(len(asked) - sum(turns))
    assert await answering == list(range(10))
    assert max(turns) == 1
