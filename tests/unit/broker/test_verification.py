"""Verifications by transaction coordinators: routing, batching, retries, and error codes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidemill.broker.coordinators.verification import Verification
from tidemill.broker.net.channel import PeerUnavailable
from tidemill.broker.net.network import Address
from tidemill.config import load_broker_config
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import MetadataImage
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.metadata import PartitionRecord, TopicRecord
from tidemill.protocol.api.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from tidemill.types import TopicPartition

HERE, ELSEWHERE, UNKNOWN = 1, 2, 3
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
STATE_ID = bytes(range(16))


class Coordinators:
    """All brokers' coordinators: keeps what was asked, answers with `code` when it is let."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, AddPartitionsToTxnRequest]] = []
        self.codes: list[ErrorCode] = []
        self.failure: Exception | None = None
        self.top_code = ErrorCode.NONE
        self.was_asked_twice = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def answer(self, broker_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        self.requests.append((broker_id, request))
        if len(self.requests) == 2:
            self.was_asked_twice.set()
        code = self.codes.pop(0) if self.codes else ErrorCode.NONE
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return AddPartitionsToTxnResponse(
            error_code=self.top_code,
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=transaction.transactional_id,
                    topic_results=[
                        AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnPartitionResult(
                                    partition_index=index, partition_error_code=code
                                )
                                for index in topic.partitions
                            ],
                        )
                        for topic in transaction.topics
                    ],
                )
                for transaction in request.transactions
            ],
        )

    def to(self, address: Address, _purpose: str) -> Any:
        """As the broker's channels: the port is the broker's id."""

        async def request(message: AddPartitionsToTxnRequest, *_: object, timeout_s: float) -> Any:
            return await self.answer(address.port, message)

        return SimpleNamespace(request=request)


Ask = Callable[..., Any]


def image_with(*records: Any) -> MetadataImage:
    delta = MetadataDelta(MetadataImage("cluster"))
    delta.replay(TopicRecord(name="__transaction_state", topic_id=STATE_ID))
    for index, leader in enumerate((HERE, ELSEWHERE, UNKNOWN, -1)):
        delta.replay(
            PartitionRecord(
                partition_id=index, topic_id=STATE_ID, replicas=[1], isr=[1], leader=leader, leader_epoch=0
            )
        )
    for record in records:
        delta.replay(record)
    return delta.apply()


def make(coordinators: Coordinators, image: MetadataImage | None = None, **settings: str) -> Verification:
    properties = {name.replace("_", "."): value for name, value in settings.items()}
    config, _ = load_broker_config({"node.id": str(HERE), "log.dirs": "/nowhere", **properties})
    found = image or image_with()
    return Verification(
        config,
        cast("Any", coordinators),
        lambda: found,
        lambda broker_id: None if broker_id == UNKNOWN else Address("host", broker_id),
        # The tests' transactional ids say where they are.
        lambda transactional_id: int(transactional_id[-1]),
        lambda request: coordinators.answer(HERE, request),
    )


@pytest.fixture
async def coordinators() -> Coordinators:
    return Coordinators()


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize(("transactional_id", "broker_id"), [("tx-0", HERE), ("tx-1", ELSEWHERE)])
async def test_verification_is_sent_to_the_coordinator(
    coordinators: Coordinators, transactional_id: str, broker_id: int, adds: bool
) -> None:
    codes = await make(coordinators).check(transactional_id, 7, 3, [A0, A1], adds=adds)
    assert codes == {A0: ErrorCode.NONE, A1: ErrorCode.NONE}
    ((asked, request),) = coordinators.requests
    assert asked == broker_id
    (transaction,) = request.transactions
    assert (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch) == (
        transactional_id,
        7,
        3,
    )
    assert transaction.verify_only is not adds
    assert [(topic.name, topic.partitions) for topic in transaction.topics] == [("a", [0, 1])]


async def test_no_coordinator(coordinators: Coordinators) -> None:
    verification = make(coordinators)
    assert await verification.check("tx-3", 7, 0, [A0], adds=True) == {
        A0: ErrorCode.COORDINATOR_NOT_AVAILABLE
    }
    assert await verification.check("tx-9", 7, 0, [A0], adds=True) == {
        A0: ErrorCode.COORDINATOR_NOT_AVAILABLE
    }
    assert not coordinators.requests


@pytest.mark.parametrize("transactional_id", ["tx-1", "tx-2"], ids=["silent", "unknown"])
async def test_no_answer(coordinators: Coordinators, transactional_id: str) -> None:
    coordinators.failure = PeerUnavailable("gone")
    codes = await make(coordinators).check(transactional_id, 7, 0, [A0], adds=True)
    assert codes == {A0: ErrorCode.NETWORK_EXCEPTION}


async def test_an_error_of_its_own_broker(coordinators: Coordinators) -> None:
    coordinators.failure = ApiError(ErrorCode.NOT_COORDINATOR)
    assert await make(coordinators).check("tx-0", 7, 0, [A0], adds=True) == {A0: ErrorCode.NOT_COORDINATOR}


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
async def test_codes(coordinators: Coordinators, code: ErrorCode, told: ErrorCode) -> None:
    coordinators.codes = [code]
    assert await make(coordinators).check("tx-0", 7, 0, [A0], adds=False) == {A0: told}


async def test_coordinator_that_refuses_cluster_action(coordinators: Coordinators) -> None:
    coordinators.top_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    codes = await make(coordinators).check("tx-1", 7, 0, [A0], adds=False)
    assert codes == {A0: ErrorCode.INVALID_TXN_STATE}


async def test_verifications_during_a_request_share_the_next_one(coordinators: Coordinators) -> None:
    verification = make(coordinators)
    coordinators.may_answer.clear()
    names = ["a-1", "b-1", "c-1", "b-1"]
    asked = [
        asyncio.ensure_future(verification.check(name, number, 0, [A0], adds=False))
        for number, name in enumerate(names)
    ]
    elsewhere = asyncio.ensure_future(verification.check("d-0", 9, 0, [A0], adds=False))
    await coordinators.was_asked_twice.wait()
    coordinators.may_answer.set()
    await asyncio.gather(*asked, elsewhere)
    to_other = [
        request.transactions for broker_id, request in coordinators.requests if broker_id == ELSEWHERE
    ]
    # One request at a time, and in each a transactional id once.
    assert sorted(each.producer_id for request in to_other for each in request) == [0, 1, 2, 3]
    assert [len(request) for request in to_other] in ([3, 1], [1, 2, 1])
    assert [broker_id for broker_id, _ in coordinators.requests].count(HERE) == 1


class TestRetries:
    BUSY = ErrorCode.CONCURRENT_TRANSACTIONS

    async def test_a_transaction_that_is_just_ending(self, coordinators: Coordinators) -> None:
        coordinators.codes = [self.BUSY, self.BUSY]
        verification = make(coordinators, add_partitions_to_txn_retry_backoff_ms="1")
        assert await verification.check("tx-1", 7, 0, [A0], adds=True) == {A0: ErrorCode.NONE}
        assert len(coordinators.requests) == 3

    async def test_not_for_ever(self, coordinators: Coordinators) -> None:
        coordinators.codes = [self.BUSY] * 1_000
        verification = make(
            coordinators,
            add_partitions_to_txn_retry_backoff_ms="1",
            add_partitions_to_txn_retry_backoff_max_ms="20",
        )
        assert await verification.check("tx-1", 7, 0, [A0], adds=True) == {A0: self.BUSY}
        assert 2 <= len(coordinators.requests) < 100

    async def test_not_for_clients_that_add_by_themselves(self, coordinators: Coordinators) -> None:
        coordinators.codes = [self.BUSY]
        assert await make(coordinators).check("tx-1", 7, 0, [A0], adds=False) == {A0: self.BUSY}
        assert len(coordinators.requests) == 1


class TestSwitchedOff:
    async def test_verification_is_skipped_when_disabled(self, coordinators: Coordinators) -> None:
        verification = make(coordinators, transaction_partition_verification_enable="false")
        assert await verification.check("tx-3", 7, 0, [A0], adds=False) == {A0: ErrorCode.NONE}
        assert not coordinators.requests

    async def test_verification_is_switched_off_while_the_broker_runs(
        self, coordinators: Coordinators
    ) -> None:
        verification = make(coordinators)
        config, _ = load_broker_config({"transaction.partition.verification.enable": "false"})
        verification.reconfigure(config)
        assert await verification.check("tx-1", 7, 0, [A0], adds=False) == {A0: ErrorCode.NONE}
        assert not coordinators.requests

    async def test_adding_ignores_the_setting(self, coordinators: Coordinators) -> None:
        verification = make(coordinators, transaction_partition_verification_enable="false")
        await verification.check("tx-1", 7, 0, [A0], adds=True)
        assert len(coordinators.requests) == 1


async def test_callback_is_called_after_a_bug(
    coordinators: Coordinators, caplog: pytest.LogCaptureFixture
) -> None:
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    verification = make(coordinators)
    verification._partition_of = lambda _id: 1 // 0
    verification.ask("tx-1", 7, 0, [A0], told.set_result, adds=True)
    assert await told == {A0: ErrorCode.UNKNOWN_SERVER_ERROR}
    assert "ZeroDivisionError" in caplog.text
