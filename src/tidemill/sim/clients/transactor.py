"""The protocol of a transactional producer: one transactional id, one process, one transaction at a time.

There are two protocols. In the *old* one (`transaction.version` 0 and 1) the client adds each partition before it
writes, and an epoch lasts until InitProducerId. In the *new* one (version 2, KIP-890) a write adds the partition, and
each end returns the next epoch. In the old protocol only the epoch keeps a delayed request out of the next
transaction. So after every doubt the client requests a new epoch (KIP-360).

With the new protocol it may also take over the open transaction of its id (KIP-939) and end it instead of writing.

An error that only affects the transaction is `Abortable`. `Fenced` means that a newer process uses the id, or that the
coordinator has aborted. Everything else is retried until there is a response. An unknown end (no response, then an
error) is not recorded as known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidemill.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tidemill.protocol.records import TRANSACTIONAL, Record, build_batch
from tidemill.protocol.schema import Request, Response
from tidemill.sim.checks.checker import MessageId
from tidemill.sim.checks.transactions import (
    Began,
    EndAsked,
    Ended,
    Initialised,
    Place,
    TransactionName,
    Wrote,
)
from tidemill.sim.clients.base import GROUP, TRANSACTION, Client
from tidemill.types import TopicPartition

_PRODUCE_TIMEOUT_MS = 3_000
_ANSWER_TIMEOUT_S = 4.0
# Sometimes the timeout is short: a retry may arrive before the first request.
_SHORT_TIMEOUT_S = 0.3
_SHORT_SHARE = 0.15
# The last versions of the old protocol.
_OLD_PRODUCE = 11
_OLD_INIT_PRODUCER_ID = 4
_OLD_ADD_PARTITIONS = 3
_OLD_ADD_OFFSETS = 3
_OLD_OFFSET_COMMIT = 4
_OLD_END = 4
_DESCRIBE = 0
# The first version that can keep a transaction.
_KEEPING_INIT_PRODUCER_ID = 6

_GONE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
# Errors which mean that nothing was done and that a retry may help.
_NOT_YET = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
# The producer of a transaction that does not exist.
_NOBODY = (-1, -1)
_FORGOTTEN = (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.UNKNOWN_PRODUCER_ID)

ResponseT = TypeVar("ResponseT", bound=Response)


class Fenced(Exception):
    """This epoch is fenced."""


class Abortable(Exception):
    """This transaction cannot be committed."""

    def __init__(self, code: ErrorCode | None) -> None:
        super().__init__(code.name if code is not None else "out of time")
        self.code = code


class Transactor:
    """One transactional process."""

    def __init__(
        self, client: Client, transactional_id: str, timeout_ms: int, *, is_new: bool | None = None
    ) -> None:
        """`is_new` selects the protocol; None selects it at random at each start."""
        self.transactional_id = transactional_id
        self._client = client
        self._timeout_ms = timeout_ms
        self._manner = is_new
        self._is_new = False
        self._incarnation = -1
        self._producer_id = -1
        self._epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._transactions = 0
        self.transaction: TransactionName | None = None
        self._messages = 0
        self._added: dict[TopicPartition | str, None] = {}
        self._deadline_s = 0.0
        # Whether the coordinator may know this transaction.
        self._is_told = False
        # Whether its commit was requested and not definitely rejected.
        self._may_be_committed = False
        # Whether a copy of a request may still be in flight.
        self._is_doubtful = False

    @property
    def is_newest(self) -> bool:
        """Whether no other process has taken over the transactional id."""
        return self._client.record.incarnations.get(self.transactional_id, -1) == self._incarnation

    @property
    def producer(self) -> tuple[int, int]:
        """The producer id and epoch."""
        return self._producer_id, self._epoch

    # -- the producer id -------------------------------------------------------------------------------------

    async def initialise(self) -> None:
        """Fence all other processes. Raises `Fenced` when a newer one exists."""
        if self._incarnation >= 0 and not self.is_newest:
            raise Fenced
        is_new = self._client.rng.random() < 0.6
        self._is_new = is_new if self._manner is None else self._manner
        self._begin_incarnation()
        await self._next_epoch()

    async def take_over(self, *, is_two_phase: bool) -> tuple[int, int] | None:
        """Fence all other processes and keep the open transaction. Returns its writer; None when there is none.

        With `is_two_phase` the transaction has no timeout any more.
        """
        self._is_new = True
        self._begin_incarnation()
        return await self._next_epoch(keeps=True, is_two_phase=is_two_phase)

    def _begin_incarnation(self) -> None:
        incarnations = self._client.record.incarnations
        self._incarnation = incarnations.get(self.transactional_id, -1) + 1
        incarnations[self.transactional_id] = self._incarnation
        self._transactions = 0
        self.transaction = None
        self._producer_id = self._epoch = -1

    async def _next_epoch(self, *, keeps: bool = False, is_two_phase: bool = False) -> tuple[int, int] | None:
        record = self._client.record
        while True:
            request = InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=self._timeout_ms,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                enable2_pc=is_two_phase,
                keep_prepared_txn=keeps,
            )
            version_max = _KEEPING_INIT_PRODUCER_ID if keeps else None
            answer = await self._ask(request, InitProducerIdResponse, _OLD_INIT_PRODUCER_ID, version_max)
            if answer is None:
                continue
            code = ErrorCode(answer.error_code)
            if code == ErrorCode.NONE:
                break
            await self._refused(code)
        self._take(answer.producer_id, answer.producer_epoch)
        self._is_doubtful = False
        kept = (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch)
        writer = kept if kept != _NOBODY else None
        record.transactions.append(
            Initialised(
                record.now_s(),
                self.transactional_id,
                self._incarnation,
                self._producer_id,
                self._epoch,
                is_takeover=writer is not None,
            )
        )
        if writer is not None and (not keeps or writer not in record.writers):
            record.accuse(
                f"{self.transactional_id} has a transaction of {writer} under way, which no client began"
            )
        return writer

    def _take(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self._producer_id, self._epoch):
            self._producer_id, self._epoch = producer_id, epoch
            self._sequences = {}

    # -- one transaction -------------------------------------------------------------------------------------

    async def begin(self, patience_s: float) -> None:
        if self._is_doubtful and not self._is_new:
            await self._next_epoch()
        record = self._client.record
        self.transaction = TransactionName(self.transactional_id, self._incarnation, self._transactions)
        self._transactions += 1
        self._messages = 0
        self._added = {}
        self._is_told = self._may_be_committed = False
        self._deadline_s = record.now_s() + patience_s
        record.transactions.append(Began(record.now_s(), self.transaction, self._producer_id, self._epoch))
        record.writers[self.producer] = self.transaction

    async def write(self, tp: TopicPartition, count: int, sources: Sequence[Place] = ()) -> None:
        """Write messages. Returns when all are acknowledged."""
        await self._send(tp, self._next_messages(tp, count), self._record_under(None), sources)

    async def write_records(
        self, tp: TopicPartition, count: int, record_of: Callable[[int, MessageId], Record]
    ) -> tuple[list[MessageId], int]:
        """Write messages as the records that `record_of` makes. Returns them with the offset of the first."""
        messages = self._next_messages(tp, count)
        return messages, await self._send(tp, messages, record_of, ())

    async def write_under(self, tp: TopicPartition, key: str, text: str) -> int:
        """Write one keyed message to a compacted topic. Returns its offset."""
        message = MessageId(f"{self.transaction}@{tp} {text}", self._messages)
        return await self._send(tp, [message], self._record_under(key.encode()), ())

    def _next_messages(self, tp: TopicPartition, count: int) -> list[MessageId]:
        return [MessageId(f"{self.transaction}@{tp}", self._messages + i) for i in range(count)]

    def _record_under(self, key: bytes | None) -> Callable[[int, MessageId], Record]:
        wall_ms = self._client.record.wall_ms
        return lambda index, message: Record(index, wall_ms(), key, str(message).encode())

    async def _send(
        self,
        tp: TopicPartition,
        messages: Sequence[MessageId],
        record_of: Callable[[int, MessageId], Record],
        sources: Sequence[Place],
    ) -> int:
        client, record = self._client, self._client.record
        assert self.transaction is not None
        if not self._is_new:
            await self._add_partition(tp)
        sequence = self._sequences.get(tp, 0)
        self._messages += len(messages)
        data = build_batch(
            (record_of(i, message) for i, message in enumerate(messages)),
            attributes=TRANSACTIONAL,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
        )
        for i, message in enumerate(messages):
            source = sources[i] if sources else None
            record.transactions.append(Wrote(record.now_s(), self.transaction, tp, message, source))
        self._is_told = True
        while (base_offset := await self._produce(tp, bytes(data))) is None:
            self._check_time()
            await client.back_off()
            await client.refresh([tp.topic])
        self._sequences[tp] = sequence + len(messages)
        return base_offset

    async def _produce(self, tp: TopicPartition, data: bytes) -> int | None:
        """Returns the offset of the first message; None when the request must be retried."""
        client = self._client
        address, _ = await client.find_leader(tp)
        partition = PartitionProduceData(index=tp.partition, records=memoryview(data))
        topic = TopicProduceData(
            name=tp.topic, topic_id=client.topic_ids[tp.topic], partition_data=[partition]
        )
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=_PRODUCE_TIMEOUT_MS,
            topic_data=[topic],
        )
        answer = await client.ask(
            address,
            request,
            ProduceResponse,
            purpose=str(tp),
            timeout_s=self._answer_timeout_s(),
            version_max=None if self._is_new else _OLD_PRODUCE,
        )
        if answer is None:
            self._is_doubtful = True
            return None
        result = answer.responses[0].partition_responses[0]
        code = ErrorCode(result.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            return result.base_offset
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            client.record.accuse(
                f"{self.transaction}: sequence {self._sequences.get(tp, 0)} of producer {self._producer_id} epoch "
                f"{self._epoch} is refused by {tp}, although everything before it was acknowledged"
            )
        self._judge(code)
        return None

    async def _add_partition(self, tp: TopicPartition) -> None:
        if tp in self._added:
            return
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=tp.topic, partitions=[tp.partition])],
        )
        self._is_told = True
        while True:
            answer = await self._ask(request, AddPartitionsToTxnResponse, _OLD_ADD_PARTITIONS)
            self._check_time()
            if answer is None:
                continue
            result = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
            code = ErrorCode(result.partition_error_code)
            if code == ErrorCode.NONE:
                self._added[tp] = None
                return
            self._judge(code)
            await self._refused(code)

    async def send_offsets(
        self, group: str, generation: int, member_id: str, offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Add the group's offsets to the transaction."""
        client = self._client
        if not self._is_new:
            await self._add_offsets(group)
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for tp, offset in offsets.items():
            topics.setdefault(tp.topic, []).append(
                TxnOffsetCommitRequestPartition(partition_index=tp.partition, committed_offset=offset)
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[
                TxnOffsetCommitRequestTopic(name=name, topic_id=client.topic_ids[name], partitions=partitions)
                for name, partitions in topics.items()
            ],
        )
        self._is_told = True
        while True:
            address = await client.coordinator_of(group)
            answer = await client.ask(
                address,
                request,
                TxnOffsetCommitResponse,
                timeout_s=self._answer_timeout_s(),
                version_max=None if self._is_new else _OLD_OFFSET_COMMIT,
            )
            if answer is not None:
                codes = [p.error_code for topic in answer.topics for p in topic.partitions]
                code = ErrorCode(next(filter(None, codes), 0))
                if code == ErrorCode.NONE:
                    return
                self._judge(code)
            self._is_doubtful = self._is_doubtful or answer is None
            client.forget_coordinator(group, GROUP)
            self._check_time()
            await client.back_off()

    async def _add_offsets(self, group: str) -> None:
        if group in self._added:
            return
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            group_id=group,
        )
        self._is_told = True
        while True:
            answer = await self._ask(request, AddOffsetsToTxnResponse, _OLD_ADD_OFFSETS)
            self._check_time()
            if answer is None:
                continue
            code = ErrorCode(answer.error_code)
            if code == ErrorCode.NONE:
                self._added[group] = None
                return
            self._judge(code)
            await self._refused(code)

    async def end(self, *, is_commit: bool) -> None:
        """End the transaction. Raises `Abortable` when it cannot be committed, `Fenced` when this process may not end
        it.
        """
        assert self.transaction is not None
        if self._is_told:
            await self._end(self.transaction, is_commit, is_own=True)

    async def end_taken(self, writer: tuple[int, int], *, is_commit: bool) -> None:
        """End a transaction that was, or may be, taken over. `Fenced` means that another process ends it."""
        await self._end(self._client.record.writers[writer], is_commit, is_own=False)

    async def _end(self, transaction: TransactionName, is_commit: bool, *, is_own: bool) -> None:
        record = self._client.record
        record.transactions.append(EndAsked(record.now_s(), transaction, is_commit, self.producer))
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=is_commit,
        )
        while True:
            answer = await self._ask(request, EndTxnResponse, _OLD_END)
            code = ErrorCode(answer.error_code) if answer is not None else None
            if code == ErrorCode.NONE:
                break
            if code is None or code.retriable:
                self._may_be_committed |= is_commit and code not in _NOT_YET
                if code is not None:
                    await self._refused(code)
                continue
            if is_own and not self._may_be_committed:
                record.transactions.append(Ended(record.now_s(), transaction, is_commit=False))
            self._judge(code)
            raise Fenced
        assert answer is not None
        record.transactions.append(Ended(record.now_s(), transaction, is_commit))
        if self._is_new:
            self._take(answer.producer_id, answer.producer_epoch)
            self._is_doubtful = False

    async def is_surely_ended(self, writer: tuple[int, int]) -> bool:
        """Whether the coordinator describes a later epoch than the writer's, of a transaction that is not being ended."""
        self._is_new = True
        request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        while True:
            answer = await self._ask(request, DescribeTransactionsResponse, _DESCRIBE)
            if answer is None:
                continue
            (found,) = answer.transaction_states
            code = ErrorCode(found.error_code)
            if code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                return False
            if code == ErrorCode.NONE:
                is_later = found.producer_id == writer[0] and found.producer_epoch > writer[1]
                return is_later and not found.transaction_state.startswith("Prepare")
            await self._refused(code)

    async def abort(self) -> None:
        """Abort after an error. No request in flight may reach the next transaction."""
        self._is_doubtful = True
        await self.end(is_commit=False)

    # -- what answers mean -----------------------------------------------------------------------------------

    async def _ask(
        self,
        request: Request,
        response_type: type[ResponseT],
        old_version: int,
        new_version: int | None = None,
    ) -> ResponseT | None:
        client = self._client
        address = await client.coordinator_of(self.transactional_id, TRANSACTION)
        # The new protocol has no AddPartitionsToTxn or AddOffsetsToTxn requests.
        answer = await client.ask(
            address,
            request,
            response_type,
            purpose="transactions",
            timeout_s=self._answer_timeout_s(),
            version_max=new_version if self._is_new else old_version,
        )
        if answer is None:
            self._is_doubtful = True
            client.forget_coordinator(self.transactional_id, TRANSACTION)
            await client.back_off()
        return answer

    def _answer_timeout_s(self) -> float:
        return _SHORT_TIMEOUT_S if self._client.rng.random() < _SHORT_SHARE else _ANSWER_TIMEOUT_S

    async def _refused(self, code: ErrorCode) -> None:
        """Handle an error of the coordinator: find another one, or wait."""
        if code in _FENCED:
            raise Fenced
        if not code.retriable:
            self._client.record.accuse(f"{self.transactional_id} is refused with {code.name}")
        if code in _GONE:
            self._client.forget_coordinator(self.transactional_id, TRANSACTION)
        await self._client.back_off()

    def _judge(self, code: ErrorCode) -> None:
        """Raise for an error, or return when a retry may help."""
        if code in _FORGOTTEN:
            self._client.record.accuse(
                f"{self.transaction}: {code.name}, although it is producer {self._producer_id} epoch {self._epoch}"
            )
        if code == ErrorCode.PRODUCER_FENCED:
            raise Fenced
        if not code.retriable:
            raise Abortable(code)

    def _check_time(self) -> None:
        if self._client.record.now_s() > self._deadline_s:
            raise Abortable(None)
