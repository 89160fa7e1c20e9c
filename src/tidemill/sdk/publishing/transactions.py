"""The transactional producer of an exactly-once consumer, and what each kind of its errors requires.

Kafka's errors are of three kinds. *Retriable*: the same call is made again, within the time limit. *Requires an
abort*: the transaction is aborted here, and the caller reads its records again. *Fatal*, being fenced above all: this
producer is of no more use, which `Fenced` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Position

from tidemill.sdk.errors import Fenced, TransactionFailed
from tidemill.sdk.kafka_errors import FENCED, cause, one_line, translated
from tidemill.sdk.publishing.publisher import Publisher
from tidemill.sdk.waiting import patiently
from tidemill.types import TopicPartition

_SLICE_S = 2.0


class Transactions:
    def __init__(self, publisher: Publisher, transactional_id: str, timeout_s: float) -> None:
        self.publisher = publisher
        self._id = transactional_id
        self._timeout_s = timeout_s
        self._is_ready = False
        self._is_open = False
        # A commit without an answer is repeated from where it stood.
        self._are_offsets_sent = False

    def _persist(self, call: Any, doing: str, slice_s: float = _SLICE_S) -> None:
        patiently(call, f"{doing} of {self._id}", self._timeout_s, self.publisher.health, slice_s)

    def open(self) -> None:
        """Ends what an earlier instance of this name left open, and fences it should it still run."""
        if self._is_ready:
            return
        try:
            self._persist(self.publisher.producer.init_transactions, "start transactions")
        except KafkaException as failure:
            self._give_up_for_good(cause(failure))
        self._is_ready = True

    def begin(self) -> None:
        try:
            self.publisher.producer.begin_transaction()
        except KafkaException as failure:
            self._give_up_for_good(cause(failure))
        self._is_open, self._are_offsets_sent = True, False

    def commit(self, offsets: Mapping[TopicPartition, int], membership: Any) -> KafkaError | None:
        """Records and offsets, both or neither. An error means that it was aborted, and why."""
        producer = self.publisher.producer
        positions = [Position(*place, offset) for place, offset in offsets.items()]
        try:
            if not self._are_offsets_sent:
                self._persist(
                    lambda timeout_s: producer.send_offsets_to_transaction(positions, membership, timeout_s),
                    "add offsets to the transaction",
                    self._timeout_s,
                )
                self._are_offsets_sent = True
            self._persist(producer.commit_transaction, "commit the transaction")
        except KafkaException as failure:
            error = cause(failure)
            if not error.txn_requires_abort():
                self._give_up_for_good(error)
            self.abort()
            return error
        self._is_open = False
        return None

    def abort(self) -> None:
        if not self._is_open:
            return
        try:
            self._persist(self.publisher.producer.abort_transaction, "abort the transaction")
        except KafkaException as failure:
            self._give_up_for_good(cause(failure))
        self._is_open = False

    def _give_up_for_good(self, error: KafkaError) -> NoReturn:
        self._is_open = False
        if error.code() in FENCED:
            raise Fenced(
                f"transaction of {self._id}: {one_line(error.str())}; another instance of that name runs, or a batch took "
                "longer than transaction_timeout_ms; consume again to go on",
                code=error.name(),
            )
        raise translated(error, f"transaction of {self._id}", TransactionFailed, "consume again to go on")

    def close(self) -> None:
        self.publisher.forgive_unseen()
        self.publisher.abandon()
