"""The transactions machine: all transactional ids of one partition of `__transaction_state`.

A transaction is decided by its PREPARE record. When that is committed, the shell writes the markers (`WriteMarkers`, a
committed effect). `MarkersWritten` reports that every partition has its marker, and completes the transaction. A new
coordinator repeats `WriteMarkers` for every transaction that is decided and not completed. Markers that are written
twice do no harm. `MarkersWritten` of an earlier transaction completes nothing.

The coordinator itself aborts a transaction that has exceeded its timeout, and one whose producer was replaced by a new
one with the same transactional id. In both cases the epoch is bumped, so that the old producer is fenced. A producer may
also take a transaction over and end it (KIP-939). In a two-phase commit, whose transactions never time out, this carries
out a decision that was made elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill import machine
from tidemill.config import TransactionsConfig
from tidemill.coordinator.shard import Caller, RawRecord, Writer
from tidemill.coordinator.timers import Timers
from tidemill.coordinator.transactions import records as transaction_records
from tidemill.coordinator.transactions import rules as transaction_rules
from tidemill.coordinator.transactions.last_epochs import LastEpochs
from tidemill.coordinator.transactions.listing import describe_transactions, list_transactions
from tidemill.coordinator.transactions.records import TransactionRecord
from tidemill.coordinator.transactions.rules import Ending, Initialization
from tidemill.coordinator.transactions.transaction import (
    EPOCH_BUMP_SINCE,
    FLEXIBLE_RECORDS_SINCE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TIMEOUT_NEVER_MS,
    Producer,
    Transaction,
    TransactionState,
    is_exhausted,
)
from tidemill.errors import ApiError, ErrorCode
from tidemill.internal_topics import OFFSETS_TOPIC
from tidemill.log.transactions import TransactionEnd
from tidemill.machine import NO_REPLY
from tidemill.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
)
from tidemill.protocol.coordinator_responses import (
    ADD_PARTITIONS_BATCHED_SINCE,
    added_partitions,
    added_response,
    added_transaction,
    error_response,
    verified_response,
)
from tidemill.protocol.schema import Request, Response
from tidemill.types import ProducerEpoch, TopicPartition

if TYPE_CHECKING:
    Decision = machine.Decision[TransactionRecord, Any]
else:
    Decision = machine.Decision

_END_BUMPS_EPOCH_SINCE = 5
# A producer gives up after these. TRANSACTION_ABORTABLE only makes it abort and begin again.
_FINAL_REFUSALS = frozenset(
    {ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE}
)
# A completion that could not be written is tried again after this time.
_RETRY_MS = 100
# Tombstones are written in batches of about this size.
_TOMBSTONES_BYTES_MAX = 16_384


class TransactionCall(NamedTuple):
    """A request as the shard passes it to the machine. AddPartitionsToTxn has one transaction."""

    request: Request
    caller: Caller


class MarkersWritten(NamedTuple):
    """Every partition of the transaction has its marker, or is deleted."""

    transactional_id: str
    producer_id: int
    producer_epoch: ProducerEpoch


class WriteMarkers(NamedTuple):
    """Write the markers of a transaction to its partitions, of which there may be none, then send `MarkersWritten`."""

    transactional_id: str
    end: TransactionEnd
    partitions: tuple[TopicPartition, ...]

    @property
    def written(self) -> MarkersWritten:
        return MarkersWritten(
            self.transactional_id, self.end.producer_id, ProducerEpoch(self.end.producer_epoch)
        )


class Transactions:
    def __init__(
        self,
        config: TransactionsConfig,
        coordinator_epoch: int,
        offsets_partition_of: Callable[[str], int],
        next_producer_id: Callable[[], int | None],
        transaction_version: int = EPOCH_BUMP_SINCE,
    ) -> None:
        """`transaction_version` is the cluster's. The coordinator uses it for the transactions that it ends itself."""
        self.config = config
        self.transactions: dict[str, Transaction] = {}
        self._coordinator_epoch = coordinator_epoch
        self._offsets_partition_of = offsets_partition_of
        self._next_producer_id = next_producer_id
        self._transaction_version = transaction_version
        self._last_epochs = LastEpochs()
        self._timers: Timers[Decision | None] = Timers()
        # Ordered sets: the ongoing transactions, and the decided ones.
        self._ongoing: dict[str, None] = {}
        self._prepared: dict[str, None] = {}
        self._due: deque[Callable[[int], Decision | None]] = deque()
        self._loaded_ms = 0

    # The interface to the shard.

    @property
    def deadline_ms(self) -> int | None:
        return 0 if self._due else self._timers.deadline_ms

    def encode(self, record: TransactionRecord) -> RawRecord:
        return transaction_records.encode(record, self._transaction_version)

    def decode(self, key: bytes, value: bytes | None) -> TransactionRecord | None:
        return transaction_records.decode(key, value)

    def waiting_tokens(self) -> list[int]:
        return []

    def replay(self, record: TransactionRecord, _writer: Writer | None = None, _offset: int = -1) -> None:
        transactional_id, transaction = record
        self._ongoing.pop(transactional_id, None)
        self._prepared.pop(transactional_id, None)
        if transaction is None:
            self.transactions.pop(transactional_id, None)
            self._last_epochs.forget(transactional_id)
            return
        self.transactions[transactional_id] = transaction
        if transaction.is_prepared:
            self._prepared[transactional_id] = None
        elif transaction.state is TransactionState.ONGOING:
            self._ongoing[transactional_id] = None

    def replay_end(self, _end: TransactionEnd) -> None:
        """Does nothing: no transaction has records in this partition."""

    def on_loaded(self, steady_ms: int) -> None:
        self._loaded_ms = steady_ms
        if self._prepared:
            self._due.append(self._repeat_markers)
        self._schedule_timeouts(steady_ms)
        self._schedule_expiry(steady_ms)

    def decide(self, request: TransactionCall | MarkersWritten, _token: int, steady_ms: int) -> Decision:
        if isinstance(request, MarkersWritten):
            return self._markers_written(request, steady_ms)
        try:
            return self._HANDLERS[type(request.request)](self, request.request, request.caller, steady_ms)
        except ApiError as error:
            response = error_response(request.request, request.caller.api_version, error.code)
            return self._refuse(_transactional_id(request), {error.code}, response)

    def _refuse(self, transactional_id: str, codes: Iterable[ErrorCode], response: Response) -> Decision:
        """Refuses a request. A final refusal restates what it rests on, and is given out when that is committed.

        A coordinator that has been replaced, and does not know it yet, lacks what its successor has written. Its refusal
        would end a producer that the successor knows. Its record is never committed, so the refusal is never given out.
        """
        if not transactional_id or _FINAL_REFUSALS.isdisjoint(codes):
            return Decision(reply=response)
        known = TransactionRecord(transactional_id, self.transactions.get(transactional_id))
        return Decision([known], response)

    def expire(self, steady_ms: int) -> Decision | None:
        """Returns the next due decision: one transaction's abort or one batch of tombstones; None when nothing is due."""
        while True:
            run = self._due.popleft() if self._due else self._timers.pop_due(steady_ms)
            if run is None:
                return None
            decision = run(steady_ms)
            if decision is not None:
                return decision

    # Requests.

    def _init(self, request: InitProducerIdRequest, caller: Caller, steady_ms: int) -> Decision:
        expected = _expected_producer(request)
        transactional_id = request.transactional_id
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        timeout_ms = self._timeout_ms(request)
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            transaction = Transaction(
                transactional_id, self._new_producer_id(), NO_PRODUCER_EPOCH, timeout_ms, steady_ms
            )
        last_epoch = self._last_epochs.of(transaction)
        match transaction_rules.initialization(
            transaction, expected, last_epoch, keeps_prepared=request.keep_prepared_txn
        ):
            case Initialization.FENCE:
                refused = error_response(request, caller.api_version, ErrorCode.CONCURRENT_TRANSACTIONS)
                return self._fence(transaction, steady_ms, refused)
            case Initialization.KEEP:
                return self._keep(transaction, timeout_ms, steady_ms)
            case Initialization.RETRY:
                producer = Producer(transaction.producer_id, transaction.producer_epoch)
            case Initialization.BUMP_EPOCH:
                producer = self._after(transaction.producer)
                last_epoch = NO_PRODUCER_EPOCH if expected is None else transaction.producer_epoch
        response = InitProducerIdResponse(
            producer_id=producer.producer_id, producer_epoch=producer.producer_epoch
        )
        after = transaction.initialized(*producer, timeout_ms, steady_ms)
        return self._transition(after, response, last_epoch=last_epoch)

    def _timeout_ms(self, request: InitProducerIdRequest) -> int:
        if request.enable2_pc and not self.config.transaction_two_phase_commit_enable:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if request.keep_prepared_txn and self._transaction_version < EPOCH_BUMP_SINCE:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
        if request.enable2_pc:
            return TIMEOUT_NEVER_MS
        if not 0 < request.transaction_timeout_ms <= self.config.transaction_max_timeout_ms:
            raise ApiError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        return request.transaction_timeout_ms

    def _keep(self, transaction: Transaction, timeout_ms: int, steady_ms: int) -> Decision:
        client = self._after(transaction.client)
        response = InitProducerIdResponse(
            producer_id=client.producer_id,
            producer_epoch=client.producer_epoch,
            ongoing_txn_producer_id=transaction.producer_id,
            ongoing_txn_producer_epoch=transaction.producer_epoch,
        )
        after = transaction.kept(client, timeout_ms, steady_ms)
        return self._transition(after, response, last_epoch=NO_PRODUCER_EPOCH)

    def _after(self, producer: Producer) -> Producer:
        """Returns the same producer with its next epoch, or with a new id when no epoch is left."""
        if is_exhausted(producer.producer_epoch):
            return Producer(self._new_producer_id(), ProducerEpoch(0))
        return Producer(producer.producer_id, ProducerEpoch(producer.producer_epoch + 1))

    def _add_partitions(self, request: AddPartitionsToTxnRequest, caller: Caller, steady_ms: int) -> Decision:
        wanted = added_transaction(request, caller.api_version)
        partitions = added_partitions(wanted)
        producer = Producer(wanted.producer_id, ProducerEpoch(wanted.producer_epoch))
        if not wanted.transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if wanted.verify_only:
            transaction = self.transactions.get(wanted.transactional_id)
            errors = {each: transaction_rules.verified(transaction, producer, each) for each in partitions}
            response = verified_response(wanted, caller.api_version, errors)
            return self._refuse(wanted.transactional_id, errors.values(), response)
        response = added_response(wanted, caller.api_version, ErrorCode.NONE)
        is_batched = caller.api_version >= ADD_PARTITIONS_BATCHED_SINCE
        client_version = EPOCH_BUMP_SINCE if is_batched else 0
        return self._add(wanted.transactional_id, producer, partitions, client_version, steady_ms, response)

    def _add_offsets(self, request: AddOffsetsToTxnRequest, _caller: Caller, steady_ms: int) -> Decision:
        if not request.transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        partition = TopicPartition(OFFSETS_TOPIC, self._offsets_partition_of(request.group_id))
        producer = Producer(request.producer_id, ProducerEpoch(request.producer_epoch))
        response = AddOffsetsToTxnResponse()
        return self._add(request.transactional_id, producer, {partition: None}, 0, steady_ms, response)

    def _add(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: dict[TopicPartition, None],
        client_version: int,
        steady_ms: int,
        response: Response,
    ) -> Decision:
        transaction = transaction_rules.check_added(self.transactions.get(transactional_id), producer)
        is_ongoing = transaction.state is TransactionState.ONGOING
        if is_ongoing and all(each in transaction.partitions for each in partitions):
            return Decision(reply=response)
        return self._transition(transaction.with_partitions(partitions, client_version, steady_ms), response)

    def _end(self, request: EndTxnRequest, caller: Caller, steady_ms: int) -> Decision:
        if not request.transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        transaction = self.transactions.get(request.transactional_id)
        if transaction is None:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        producer = Producer(request.producer_id, ProducerEpoch(request.producer_epoch))
        is_commit = request.committed
        if caller.api_version < _END_BUMPS_EPOCH_SINCE:
            ending = transaction_rules.ending(transaction, producer, is_commit=is_commit)
            if ending is Ending.RETRY:
                return Decision(reply=EndTxnResponse())
            after = transaction.prepared(
                is_commit=is_commit,
                # The writer of a transaction that was taken over is fenced by its markers.
                producer_epoch=ProducerEpoch(transaction.producer_epoch + transaction.is_kept),
                following=transaction.client if transaction.is_kept else None,
                client_version=0,
                steady_ms=steady_ms,
            )
            return self._prepare(after, EndTxnResponse(), self._last_epochs.of(transaction))
        ending = transaction_rules.bumping_ending(transaction, producer, is_commit=is_commit)
        if ending is Ending.RETRY:
            return Decision(reply=_ended(transaction))
        after = self._bumped(transaction, is_commit, steady_ms)
        # The epoch of the producer that may continue (KIP-360), not of one whose transaction was taken over.
        response = _ended(after.completed(steady_ms))
        return self._prepare(after, response, transaction.client.producer_epoch)

    def _markers_written(self, told: MarkersWritten, steady_ms: int) -> Decision:
        transaction = self.transactions.get(told.transactional_id)
        is_current = (
            transaction is not None
            and transaction.is_prepared
            and transaction.producer_id == told.producer_id
            and transaction.producer_epoch == told.producer_epoch
        )
        if transaction is None or not is_current:
            return Decision(reply=None)

        def retry_later(_error: ErrorCode) -> None:
            self._timers.set(
                ("complete", told.transactional_id),
                steady_ms + _RETRY_MS,
                lambda later_ms: replace(self._markers_written(told, later_ms), reply=NO_REPLY),
            )

        after = transaction.completed(steady_ms)
        # The client knows the epoch before the bump, whichever id the producer has now.
        return self._transition(
            after, None, last_epoch=self._last_epochs.of(transaction), on_failed=retry_later
        )

    def _describe(self, request: DescribeTransactionsRequest, _caller: Caller, _steady_ms: int) -> Decision:
        return Decision(reply=describe_transactions(request, self.transactions))

    def _list(self, request: ListTransactionsRequest, _caller: Caller, steady_ms: int) -> Decision:
        return Decision(reply=list_transactions(request, self.transactions, steady_ms))

    # Timeouts and expiry.

    def _repeat_markers(self, _steady_ms: int) -> Decision:
        prepared = [self.transactions[transactional_id] for transactional_id in self._prepared]
        return Decision(committed_effects=[self._write_markers(each) for each in prepared])

    def _schedule_timeouts(self, steady_ms: int) -> None:
        interval_ms = self.config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._timers.set("timeouts", steady_ms + interval_ms, self._find_timed_out)

    def _find_timed_out(self, steady_ms: int) -> None:
        self._schedule_timeouts(steady_ms)
        for transactional_id in self._ongoing:
            if self.transactions[transactional_id].is_timed_out(steady_ms, self._loaded_ms):
                self._due.append(partial(self._time_out, transactional_id))

    def _time_out(self, transactional_id: str, steady_ms: int) -> Decision | None:
        transaction = self.transactions.get(transactional_id)
        if transaction is None or not transaction.is_timed_out(steady_ms, self._loaded_ms):
            return None
        try:
            return self._fence(transaction, steady_ms, NO_REPLY)
        except ApiError:
            # There is no producer id to continue with. The next search finds the transaction again.
            return None

    def _schedule_expiry(self, steady_ms: int) -> None:
        interval_ms = self.config.transaction_remove_expired_transaction_cleanup_interval_ms
        self._timers.set("expiry", steady_ms + interval_ms, self._find_expired)

    def _find_expired(self, steady_ms: int) -> None:
        self._schedule_expiry(steady_ms)
        expired = [each for each in self.transactions.values() if self._is_expired(each, steady_ms)]
        size_bytes = 0
        batch: list[str] = []
        for transaction in expired:
            if size_bytes >= _TOMBSTONES_BYTES_MAX:
                self._due.append(partial(self._remove_expired, batch))
                batch, size_bytes = [], 0
            batch.append(transaction.transactional_id)
            size_bytes += len(transaction.transactional_id)
        if batch:
            self._due.append(partial(self._remove_expired, batch))

    def _is_expired(self, transaction: Transaction, steady_ms: int) -> bool:
        idle_ms = steady_ms - transaction.last_update_ms
        return transaction.is_idle and idle_ms >= self.config.transactional_id_expiration_ms

    def _remove_expired(self, transactional_ids: list[str], steady_ms: int) -> Decision | None:
        found = [(each, self.transactions.get(each)) for each in transactional_ids]
        tombstones = [
            TransactionRecord(transactional_id, None)
            for transactional_id, transaction in found
            if transaction is not None and self._is_expired(transaction, steady_ms)
        ]
        return Decision(tombstones) if tombstones else None

    # The records of a transition.

    def _fence(self, transaction: Transaction, steady_ms: int, reply: Response) -> Decision:
        """Abort the transaction under a bumped epoch that no client has."""
        if self._transaction_version >= EPOCH_BUMP_SINCE:
            after = self._bumped(transaction, False, steady_ms)
            return self._prepare(after, reply, transaction.client.producer_epoch)
        after = transaction.prepared(
            is_commit=False,
            producer_epoch=ProducerEpoch(transaction.producer_epoch + 1),
            following=None,
            client_version=0,
            steady_ms=steady_ms,
        )
        return self._prepare(after, reply, NO_PRODUCER_EPOCH)

    def _bumped(self, transaction: Transaction, is_commit: bool, steady_ms: int) -> Transaction:
        following = None
        if transaction.is_kept:
            # One epoch more than the client has: a late EndTxn of its own must not decide its next transaction.
            following = self._after(transaction.client)
        elif is_exhausted(transaction.producer_epoch):
            following = Producer(self._new_producer_id(), NO_PRODUCER_EPOCH)
        return transaction.prepared(
            is_commit=is_commit,
            producer_epoch=ProducerEpoch(transaction.producer_epoch + 1),
            following=following,
            client_version=EPOCH_BUMP_SINCE,
            steady_ms=steady_ms,
        )

    def _prepare(self, prepared: Transaction, reply: Response, last_epoch: ProducerEpoch) -> Decision:
        """Returns the decision that ends a transaction. Once it is committed, the markers are written."""
        return self._transition(
            prepared, reply, last_epoch=last_epoch, committed_effects=[self._write_markers(prepared)]
        )

    def _transition(
        self,
        after: Transaction,
        reply: Response | None,
        *,
        last_epoch: ProducerEpoch | None = None,
        committed_effects: list[WriteMarkers] | None = None,
        on_failed: Callable[[ErrorCode], None] | None = None,
    ) -> Decision:
        undo = None if last_epoch is None else self._last_epochs.note(after, last_epoch)

        def failed(error: ErrorCode) -> None:
            if undo is not None:
                undo()
            if on_failed is not None:
                on_failed(error)

        record = TransactionRecord(after.transactional_id, self._as_recorded(after))
        return Decision([record], reply, on_failed=failed, committed_effects=committed_effects or ())

    def _as_recorded(self, transaction: Transaction) -> Transaction:
        """Returns the transaction without the fields that the record lacks before `FLEXIBLE_RECORDS_SINCE`."""
        if self._transaction_version >= FLEXIBLE_RECORDS_SINCE:
            return transaction
        return replace(
            transaction,
            previous_producer_id=NO_PRODUCER_ID,
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_PRODUCER_EPOCH,
            client_version=0,
        )

    def _write_markers(self, prepared: Transaction) -> WriteMarkers:
        end = TransactionEnd(
            producer_id=prepared.producer_id,
            producer_epoch=prepared.producer_epoch,
            coordinator_epoch=self._coordinator_epoch,
            is_commit=prepared.is_commit,
            transaction_version=prepared.client_version,
        )
        return WriteMarkers(prepared.transactional_id, end, tuple(prepared.partitions))

    def _new_producer_id(self) -> int:
        producer_id = self._next_producer_id()
        if producer_id is None:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return producer_id

    # For tests and simulation.

    def replicated_state(self) -> object:
        """Returns the replicated state. It is equal for live and rebuilt machines."""
        return self.transactions

    def check_invariants(self) -> None:
        for transactional_id, transaction in self.transactions.items():
            assert transaction.transactional_id == transactional_id
            transaction.check_invariants()
            assert (transactional_id in self._ongoing) == (transaction.state is TransactionState.ONGOING)
            assert (transactional_id in self._prepared) == transaction.is_prepared

    _HANDLERS: dict[type, Callable[[Transactions, Any, Caller, int], Decision]] = {  # noqa: RUF012
        InitProducerIdRequest: _init,
        AddPartitionsToTxnRequest: _add_partitions,
        AddOffsetsToTxnRequest: _add_offsets,
        EndTxnRequest: _end,
        DescribeTransactionsRequest: _describe,
        ListTransactionsRequest: _list,
    }


def _transactional_id(call: TransactionCall) -> str:
    """Returns the transactional id that the request is about; empty when it is about none, or about several."""
    if isinstance(call.request, AddPartitionsToTxnRequest):
        return added_transaction(call.request, call.caller.api_version).transactional_id
    return getattr(call.request, "transactional_id", None) or ""


def _expected_producer(request: InitProducerIdRequest) -> Producer | None:
    """Returns the producer that the request names; None when it names none."""
    expected = Producer(request.producer_id, ProducerEpoch(request.producer_epoch))
    if expected == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH):
        return None
    if expected.producer_id == NO_PRODUCER_ID or expected.producer_epoch == NO_PRODUCER_EPOCH:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    return expected


def _ended(completed: Transaction) -> EndTxnResponse:
    """Returns the response with the producer of the next transaction."""
    return EndTxnResponse(producer_id=completed.producer_id, producer_epoch=completed.producer_epoch)
