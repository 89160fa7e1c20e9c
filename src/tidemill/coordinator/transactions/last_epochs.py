"""The previous epoch of each producer, by which a repeated InitProducerId is recognised (KIP-360).

This is soft state. It is not in the records, so it is lost with the machine, as in Kafka. A producer that repeats its
request after that is fenced. An entry holds for one producer id and epoch only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidemill.coordinator.transactions.transaction import NO_PRODUCER_EPOCH, Transaction
from tidemill.types import ProducerEpoch


class _LastEpoch(NamedTuple):
    producer_id: int
    producer_epoch: ProducerEpoch
    last_epoch: ProducerEpoch


class LastEpochs:
    def __init__(self) -> None:
        self._entries: dict[str, _LastEpoch] = {}

    def of(self, transaction: Transaction) -> ProducerEpoch:
        known = self._entries.get(transaction.transactional_id)
        if known is None or known[:2] != (transaction.producer_id, transaction.producer_epoch):
            return NO_PRODUCER_EPOCH
        return known.last_epoch

    def note(self, after: Transaction, last_epoch: ProducerEpoch) -> Callable[[], None]:
        """Set the last epoch for when `after` is written. Returns a function that undoes this."""
        known = self._entries.get(after.transactional_id)
        self._entries[after.transactional_id] = _LastEpoch(
            after.producer_id, after.producer_epoch, last_epoch
        )

        def undo() -> None:
            self.forget(after.transactional_id)
            if known is not None:
                self._entries[after.transactional_id] = known

        return undo

    def forget(self, transactional_id: str) -> None:
        self._entries.pop(transactional_id, None)
