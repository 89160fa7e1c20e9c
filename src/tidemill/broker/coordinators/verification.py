"""Verifies partitions with the transaction coordinator before a transaction writes there (KIP-890).

A partition verifies the first batch of a transaction; a group verifies the offsets that a transaction commits. With
`adds=False`, for clients that send AddPartitionsToTxn themselves, the coordinator checks that the partition is part of the
transaction. With `adds=True` it adds the partition. The coordinator is the leader of the transactional id's partition of
`__transaction_state`, which may be this broker. In Kafka this is AddPartitionsToTxnManager.

Verifications at one broker are batched: one request is in flight at a time, and later ones share the next request. A
request has each transactional id once; another verification for it waits for the next request.

Ending a transaction takes milliseconds, and new clients do not wait between two transactions. So a verification that adds
is retried for a while before its client gets CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from tidemill.broker.net.channel import Channels, PeerUnavailable
from tidemill.broker.net.network import Address
from tidemill.config import BrokerConfig
from tidemill.controller.image import MetadataImage
from tidemill.errors import ApiError, ErrorCode
from tidemill.internal_topics import TRANSACTIONS_TOPIC
from tidemill.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tidemill.types import TopicPartition

logger = logging.getLogger(__name__)

_TIMEOUT_S = 30.0

Codes = dict[TopicPartition, ErrorCode]
AddHere = Callable[[AddPartitionsToTxnRequest], Awaitable[AddPartitionsToTxnResponse]]


@dataclass(slots=True, eq=False)
class _Question:
    transaction: AddPartitionsToTxnTransaction
    partitions: Sequence[TopicPartition]
    answer: asyncio.Future[Codes]

    def answered(self, codes: Codes) -> None:
        if not self.answer.done():
            self.answer.set_result(codes)

    def failed(self, code: ErrorCode) -> None:
        self.answered(dict.fromkeys(self.partitions, code))


@dataclass(slots=True, eq=False)
class _Queue:
    """The questions that wait for one coordinator, and the request to it that is under way."""

    questions: list[_Question] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def take(self) -> list[_Question]:
        """The next request's questions, one for each transactional id."""
        taken: dict[str, _Question] = {}
        left = []
        for question in self.questions:
            if question.transaction.transactional_id in taken:
                left.append(question)
            else:
                taken[question.transaction.transactional_id] = question
        self.questions = left
        return list(taken.values())


class Verification:
    def __init__(
        self,
        config: BrokerConfig,
        channels: Channels,
        image: Callable[[], MetadataImage],
        address_of: Callable[[int], Address | None],
        partition_of: Callable[[str], int],
        add_here: AddHere,
    ) -> None:
        """`partition_of` finds a transactional id's partition; `add_here` serves what this broker coordinates."""
        self._node_id = config.node_id
        self._config = config.transactions
        self._loop = asyncio.get_running_loop()
        self._channels = channels
        self._image = image
        self._address_of = address_of
        self._partition_of = partition_of
        self._add_here = add_here
        self._queues: dict[int, _Queue] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def reconfigure(self, config: BrokerConfig) -> None:
        self._config = config.transactions

    # -- questions -------------------------------------------------------------------------------------------

    async def check(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Codes:
        """The coordinator's code for each partition: NONE where the producer may write.

        Two codes are our own: a fenced producer gets INVALID_PRODUCER_EPOCH, and NETWORK_EXCEPTION stands for no answer.
        """
        if not adds and not self._config.transaction_partition_verification_enable:
            return dict.fromkeys(partitions, ErrorCode.NONE)
        tries_end_s = self._loop.time() + self._config.add_partitions_to_txn_retry_backoff_max_ms / 1000
        while True:
            codes = await self._ask(transactional_id, producer_id, producer_epoch, partitions, adds)
            is_busy = ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()
            if not (adds and is_busy) or self._loop.time() >= tries_end_s:
                return codes
            await asyncio.sleep(self._config.add_partitions_to_txn_retry_backoff_ms / 1000)

    def ask(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        on_answer: Callable[[Codes], None],
        *,
        adds: bool,
    ) -> None:
        """As `check`, without waiting: `on_answer` is called later, once, unless the broker is closed before."""

        async def answer() -> None:
            try:
                codes = await self.check(transactional_id, producer_id, producer_epoch, partitions, adds=adds)
            except Exception:
                logger.exception("cannot verify a transaction of %s", transactional_id)
                codes = dict.fromkeys(partitions, ErrorCode.UNKNOWN_SERVER_ERROR)
            on_answer(codes)

        task = self._loop.create_task(answer())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _ask(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        adds: bool,
    ) -> Codes:
        coordinator = self._image().partition(TRANSACTIONS_TOPIC, self._partition_of(transactional_id))
        if coordinator is None or not coordinator.has_leader:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        topics: dict[str, list[int]] = {}
        for tp in partitions:
            topics.setdefault(tp.topic, []).append(tp.partition)
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            verify_only=not adds,
            topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()
            ],
        )
        question = _Question(transaction, partitions, self._loop.create_future())
        queue = self._queues.setdefault(coordinator.leader, _Queue())
        queue.questions.append(question)
        if queue.task is None:
            queue.task = self._loop.create_task(self._empty(coordinator.leader, queue))
        return await question.answer

    # -- requests --------------------------------------------------------------------------------------------

    async def _empty(self, broker_id: int, queue: _Queue) -> None:
        try:
            while questions := queue.take():
                request = AddPartitionsToTxnRequest(transactions=[each.transaction for each in questions])
                try:
                    _give(questions, await self._send(broker_id, request))
                except (PeerUnavailable, ApiError) as error:
                    logger.debug(
                        "broker %d did not verify %d transactions: %s", broker_id, len(questions), error
                    )
                    code = error.code if isinstance(error, ApiError) else ErrorCode.NETWORK_EXCEPTION
                    for question in questions:
                        question.failed(code)
                except Exception:
                    for question in questions:
                        question.failed(ErrorCode.UNKNOWN_SERVER_ERROR)
                    raise
        finally:
            queue.task = None

    async def _send(self, broker_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        if broker_id == self._node_id:
            return await self._add_here(request)
        address = self._address_of(broker_id)
        if address is None:
            raise PeerUnavailable(f"the address of broker {broker_id} is not known")
        channel = self._channels.to(address, "verification")
        return await channel.request(request, AddPartitionsToTxnResponse, timeout_s=_TIMEOUT_S)

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for queue in self._queues.values():
            if queue.task is not None:
                queue.task.cancel()


def _give(questions: Sequence[_Question], response: AddPartitionsToTxnResponse) -> None:
    if response.error_code:
        code = ErrorCode(response.error_code)
        if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            # A matter between brokers, of which no client knows anything.
            code = ErrorCode.INVALID_TXN_STATE
        for question in questions:
            question.failed(code)
        return
    results = {result.transactional_id: result for result in response.results_by_transaction}
    for question in questions:
        codes: Codes = {}
        result = results.get(question.transaction.transactional_id)
        for topic in result.topic_results if result is not None else ():
            for each in topic.results_by_partition:
                code = ErrorCode(each.partition_error_code)
                if code is ErrorCode.PRODUCER_FENCED:
                    # What a producer expects as the answer to a batch.
                    code = ErrorCode.INVALID_PRODUCER_EPOCH
                codes[TopicPartition(topic.name, each.partition_index)] = code
        question.answered({tp: codes.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR) for tp in question.partitions})
