"""Guards for transactions that are about to begin in a partition (Kafka: VerificationGuard, KIP-890).

A batch of a transaction that is not open here yet is appended only after the transaction coordinator has verified that the
partition is part of it. The transaction may end meanwhile: its marker arrives, and the verification that follows is about a
transaction of the past. A batch appended on its strength would stay open for ever and hold the last stable offset (failure
6). So verification runs under a guard, which a marker removes, and only a batch with the partition's present guard is
appended. The first batch uses the guard up: from then on the log itself shows that the transaction is open.

A guard outlives a failed verification, because it knows the lowest sequence that was seen. An unknown producer could
otherwise begin in the middle: with its second batch, after the first was refused for the moment.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.broker.partitions.leadership import Leadership
from tidemill.coordinator.shard import Writer
from tidemill.errors import ApiError, ErrorCode
from tidemill.log.producer_state.producers import AppendedBatch, Producers
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.records import NAMED_PARTITION, BatchHeader, InvalidBatch

# Of records that a coordinator writes: they are never sent again, so their sequence has no meaning.
NO_SEQUENCE = 0
# Above every sequence, so that it tells nothing about others.
_ANY_SEQUENCE = 1 << 31
_GUARDS_MAX = 1_000
# Version 2 of transactions (KIP-890).
_EPOCH_BUMP_SINCE = 2


class Guard:
    __slots__ = ("adds", "lowest_sequence", "producer_epoch", "waiting")

    def __init__(self, producer_epoch: int, sequence: int, adds: bool) -> None:
        self.producer_epoch = producer_epoch
        self.lowest_sequence = sequence
        # Whether the client leaves it to brokers to add its partitions (Produce 12 and later).
        self.adds = adds
        # During verification: what is done with its outcome, in the order in which the batches came.
        self.waiting: list[Callable[[ErrorCode], None]] | None = None

    def answered(self, code: ErrorCode) -> None:
        waiting, self.waiting = self.waiting, None
        for proceed in waiting or ():
            proceed(code)


class Guards:
    """The guards of one partition, by producer id."""

    __slots__ = ("_guards", "_leadership")

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._guards: dict[int, Guard] = {}

    def guard_for(self, header: BatchHeader, *, adds: bool) -> Guard | None:
        """The guard for a batch whose transaction the coordinator must verify; None when it need not be verified."""
        # What was sent to a decommissioned partition continues a sequence of its own (decision 18).
        sequence = _ANY_SEQUENCE if header.attributes & NAMED_PARTITION else header.base_sequence
        return self._unless_open(header.producer_id, header.producer_epoch, sequence, adds)

    def guard_for_writer(self, writer: Writer, *, adds: bool) -> Guard | None:
        """As `guard_for`, for records of a coordinator that will be part of a transaction."""
        return self._unless_open(*writer, NO_SEQUENCE, adds)

    def _unless_open(self, producer_id: int, producer_epoch: int, sequence: int, adds: bool) -> Guard | None:
        log = self._leadership.writable_log
        if log is None or log.producers.is_open(producer_id, producer_epoch):
            return None
        return self.enter(producer_id, producer_epoch, sequence, adds)

    def enter(self, producer_id: int, producer_epoch: int, sequence: int, adds: bool) -> Guard:
        """The guard of a producer's next transaction here: the one that is there, or a new one."""
        guard = self._guards.get(producer_id)
        if guard is None or producer_epoch > guard.producer_epoch:
            self._make_room()
            guard = self._guards[producer_id] = Guard(producer_epoch, sequence, adds)
        elif producer_epoch < guard.producer_epoch:
            # A fenced producer gets its error from the coordinator; this guard lets nothing in.
            return Guard(producer_epoch, sequence, adds)
        elif sequence < guard.lowest_sequence:
            guard.lowest_sequence = sequence
        return guard

    def _make_room(self) -> None:
        if len(self._guards) >= _GUARDS_MAX:
            idle = next((key for key, guard in self._guards.items() if guard.waiting is None), None)
            if idle is not None:
                del self._guards[idle]

    def is_present(self, producer_id: int, guard: Guard) -> bool:
        """Whether no marker has removed the guard."""
        return self._guards.get(producer_id) is guard

    def check_writer(self, writer: Writer, guard: Guard) -> None:
        """`ApiError` when a marker came since the guard was taken: the transaction that was verified is over."""
        log = self._leadership.writable_log
        if log is None or log.producers.is_open(*writer) or self.is_present(writer.producer_id, guard):
            return
        raise ApiError(ErrorCode.INVALID_TXN_STATE)

    def drop(self, producer_id: int, guard: Guard) -> None:
        """Drop a guard that was taken for an epoch the producer does not have, so that it keeps no batch out."""
        if self.is_present(producer_id, guard):
            self.forget(producer_id)

    def ended(self, end: TransactionEnd) -> None:
        """A marker voids what was verified before it, unless it ends the transaction before the guarded one.

        New clients do not wait for markers: the first batch of their next transaction may arrive first. Its epoch is the
        marker's then, because each end bumps it; the guarded transaction's own marker has a higher one.
        """
        guard = self._guards.get(end.producer_id)
        bumps_epoch = end.transaction_version >= _EPOCH_BUMP_SINCE
        if guard is not None and not (bumps_epoch and guard.producer_epoch >= end.producer_epoch):
            del self._guards[end.producer_id]

    def forget(self, producer_id: int) -> None:
        self._guards.pop(producer_id, None)

    def clear(self) -> None:
        self._guards.clear()

    def duplicate_of(
        self,
        producers: Producers,
        header: BatchHeader,
        guard: Guard | None,
        first_sequence: int | None = None,
    ) -> AppendedBatch | None:
        """As `Producers.duplicate_of`, for a transactional batch: `InvalidBatch` also when the transaction may not begin."""
        if producers.is_open(header.producer_id, header.producer_epoch):
            return producers.duplicate_of(header, first_sequence)
        refused: InvalidBatch | None = None
        try:
            duplicate = producers.duplicate_of(header, first_sequence)
        except InvalidBatch as error:
            duplicate, refused = None, error
        if duplicate is not None:
            return duplicate
        if guard is None or self._guards.get(header.producer_id) is not guard:
            raise InvalidBatch(
                ErrorCode.INVALID_TXN_STATE, "the batch is not part of a transaction that is known to be open"
            )
        if refused is not None:
            raise refused
        if header.attributes & NAMED_PARTITION or first_sequence is not None:
            # The partition that passed it on keeps the order, or another log has the batches before it.
            return None
        is_unknown = guard.adds and producers.get(header.producer_id) is None and header.base_sequence != 0
        if is_unknown or header.base_sequence > guard.lowest_sequence:
            raise InvalidBatch(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} begins with sequence {header.base_sequence}, "
                f"an earlier one was {0 if is_unknown else guard.lowest_sequence}",
            )
        return None
