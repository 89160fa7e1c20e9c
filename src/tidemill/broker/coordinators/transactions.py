"""The transaction coordinators of this broker, one for each partition of `__transaction_state` that it leads.

`runtime.py` hosts the `Transactions` machines. The epoch of a coordinator is the leader epoch of its partition, so that
the markers of a replaced coordinator differ from those of its successor. A `WriteMarkers` effect goes to `markers.py`,
which reports back to the machine when all are written.

A producer that goes on at once returns while its markers are on their way. Instead of CONCURRENT_TRANSACTIONS, after which
it would pause, its request is held for the moment that this mostly takes (`until_complete`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from tidemill.broker.clock import Clock
from tidemill.broker.coordinators.markers import Markers, ShardKey, WriteHere
from tidemill.broker.coordinators.producer_ids import ProducerIds
from tidemill.broker.coordinators.runtime import CoordinatorRuntime, InternalTopic
from tidemill.broker.net.channel import Channels
from tidemill.broker.partitions.replicas import Replicas
from tidemill.broker.quorum.driver import ControllerDriver
from tidemill.config import BrokerConfig
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import MetadataImage
from tidemill.controller.topics.fewer_partitions import has_had
from tidemill.coordinator.shard import Caller
from tidemill.coordinator.transactions.machine import TransactionCall, Transactions, WriteMarkers
from tidemill.errors import ApiError, ErrorCode
from tidemill.internal_topics import INTERNAL_TOPICS, TRANSACTIONS_TOPIC
from tidemill.protocol.api.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from tidemill.protocol.coordinator_responses import (
    ADD_PARTITIONS_BATCHED_SINCE,
    added_partitions,
    added_transaction,
    error_response,
    verified_response,
)
from tidemill.protocol.schema import Request, Response, replace
from tidemill.runtime import NO_TOKEN
from tidemill.types import TopicPartition

_COMPLETE_RETRY_S = 0.1
# As long as clients pause before they retry.
_COMPLETION_S_MAX = 0.02


class TransactionCoordinators:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        replicas: Replicas,
        controller: ControllerDriver,
        channels: Channels,
        producer_ids: ProducerIds,
        offsets_partition_of: Callable[[str], int],
        write_here: WriteHere,
    ) -> None:
        settings = config.transactions
        topic = InternalTopic(
            TRANSACTIONS_TOPIC,
            settings.transaction_state_log_num_partitions,
            settings.transaction_state_log_replication_factor,
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(settings.transaction_state_log_min_isr),
                "segment.bytes": str(settings.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        )
        self.runtime: CoordinatorRuntime[Transactions] = CoordinatorRuntime(
            topic, config, clock, replicas, controller, self
        )
        self._config = config
        self._controller = controller
        self._producer_ids = producer_ids
        self._offsets_partition_of = offsets_partition_of
        self._loop = asyncio.get_running_loop()
        # By transactional id: completed when its markers are written.
        self._completions: dict[str, asyncio.Future[None]] = {}
        self._markers = Markers(
            config.node_id,
            channels,
            lambda: controller.image,
            replicas.address_of,
            write_here,
            self._complete,
        )

    # -- requests --------------------------------------------------------------------------------------------

    def ask(self, transactional_id: str, request: Request, caller: Caller) -> Response | Awaitable[Response]:
        """Returns the coordinator's response. `ApiError`, now or awaited, when this broker cannot give one."""
        shard = self.runtime.shard_of(transactional_id)
        answer: Response | Awaitable[Response] = self.runtime.ask_shard(
            partial(shard.handle, TransactionCall(request, caller))
        )
        return answer

    async def until_complete(self, transactional_id: str) -> None:
        """Returns when no transaction is decided and not complete, or after a moment."""
        shard = self.runtime.hosted(self.runtime.partition_of(transactional_id))
        transaction = shard.machine.transactions.get(transactional_id) if shard is not None else None
        if transaction is None or not transaction.is_prepared:
            return
        completed = self._completions.get(transactional_id)
        if completed is None:
            completed = self._completions[transactional_id] = self._loop.create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_COMPLETION_S_MAX):
                await asyncio.shield(completed)

    async def ask_for_producer(self, transactional_id: str, request: Request, caller: Caller) -> Response:
        """As `ask`, for a request that may need a new producer id: it waits until there is one."""
        response = await self._asked(transactional_id, request, caller)
        is_refused = getattr(response, "error_code", 0) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if not is_refused or self._producer_ids.is_stocked:
            return response
        try:
            await self._producer_ids.stock()
        except ApiError as error:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
        return await self._asked(transactional_id, request, caller)

    async def _asked(self, transactional_id: str, request: Request, caller: Caller) -> Response:
        answer = self.ask(transactional_id, request, caller)
        return answer if isinstance(answer, Response) else await answer

    async def answer(
        self, transactional_id: str, request: Request, caller: Caller, *, may_take_id: bool = False
    ) -> Response:
        """As `ask`, with an error inside the response. With `may_take_id` it waits for a new producer id."""
        ask = self.ask_for_producer if may_take_id else self._asked
        try:
            return await ask(transactional_id, request, caller)
        except ApiError as error:
            return error_response(request, caller.api_version, error.code)

    # -- AddPartitionsToTxn ----------------------------------------------------------------------------------

    async def add_partitions(
        self, request: AddPartitionsToTxnRequest, caller: Caller
    ) -> AddPartitionsToTxnResponse:
        """Adds or verifies partitions of transactions that this broker coordinates.

        Clients send one transaction, up to version 3. Brokers send later versions for their clients, with many.
        """
        if caller.api_version < ADD_PARTITIONS_BATCHED_SINCE:
            return await self._add_partitions(request, caller)
        merged = AddPartitionsToTxnResponse()
        answers = [
            self._add_partitions(replace(request, transactions=[transaction]), caller)
            for transaction in request.transactions
        ]
        for answer in await asyncio.gather(*answers):
            merged.results_by_transaction += answer.results_by_transaction
        return merged

    async def _add_partitions(
        self, request: AddPartitionsToTxnRequest, caller: Caller
    ) -> AddPartitionsToTxnResponse:
        """Adds the partitions of one transaction: all of them, or none when one does not exist."""
        transaction = added_transaction(request, caller.api_version)
        errors = {tp: self._addable(tp, caller) for tp in added_partitions(transaction)}
        if any(code is not ErrorCode.OPERATION_NOT_ATTEMPTED for code in errors.values()):
            return verified_response(transaction, caller.api_version, errors)
        if not transaction.verify_only:
            await self.until_complete(transaction.transactional_id)
        answer = await self.answer(transaction.transactional_id, request, caller)
        assert isinstance(answer, AddPartitionsToTxnResponse)
        return answer

    def _addable(self, tp: TopicPartition, caller: Caller) -> ErrorCode:
        """OPERATION_NOT_ATTEMPTED if the partition may be added. Only brokers (batched requests) add internal topics."""
        if caller.api_version < ADD_PARTITIONS_BATCHED_SINCE and tp.topic in INTERNAL_TOPICS:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if not has_had(self._controller.image, tp.topic, tp.partition):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.OPERATION_NOT_ATTEMPTED

    async def ask_all(self, request: Request, caller: Caller, *, is_large: bool) -> list[Response]:
        return await self.runtime.ask_every_shard(TransactionCall(request, caller), is_large=is_large)

    # -- the machines ----------------------------------------------------------------------------------------

    def make_machine(self, partition_index: int, leader_epoch: int) -> Transactions:  # noqa: ARG002
        return Transactions(
            self._config.transactions, leader_epoch, self._offsets_partition_of, self._producer_ids.take
        )

    def carry_out(self, partition_index: int, leader_epoch: int, effect: Any) -> None:
        if isinstance(effect, WriteMarkers):
            self._markers.write(ShardKey(partition_index, leader_epoch), effect)

    def returned(self, machine: Transactions, steady_ms: int) -> None:
        """Transactions time out as before."""

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """The machines know no topics."""

    def shard_closed(self, partition_index: int, leader_epoch: int) -> None:
        self._markers.forget(ShardKey(partition_index, leader_epoch))
        for transactional_id in list(self._completions):
            self._wake(transactional_id)

    # -- when the markers are written ------------------------------------------------------------------------

    def _complete(self, key: ShardKey, markers: WriteMarkers) -> None:
        shard = self.runtime.hosted(key.partition_index)
        if shard is None or shard.leader_epoch != key.leader_epoch:
            return
        shard.check_leadership()
        if shard.is_deserted:
            self._loop.call_later(_COMPLETE_RETRY_S, self._complete, key, markers)
        else:
            # When that cannot be written, the machine retries by itself.
            shard.handle(markers.written, NO_TOKEN)
            self._wake(markers.transactional_id)

    def _wake(self, transactional_id: str) -> None:
        completed = self._completions.pop(transactional_id, None)
        if completed is not None:
            completed.set_result(None)

    def close(self) -> None:
        self.runtime.close()
        self._markers.close()
