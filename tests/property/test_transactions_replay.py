"""Random histories of transactional ids: the live state equals a replay, and every confirmed decision is carried out.

Clients of both kinds (those that end with a bumped epoch, and older ones) initialize, take transactions over, add
partitions and end, also with their former producers. Time passes, writes fail, and commits are held back. The
coordinator moves and loses what was not committed. After every step the machine agrees with itself (`World` checks
that) and with a machine rebuilt from the log. The responses to clients are kept here and compared with the decisions in
the log.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scenarios.transactions_world import Asked, World
from tests.thoroughness import examples
from tidemill.config import TransactionsConfig
from tidemill.coordinator.transactions.machine import MarkersWritten
from tidemill.coordinator.transactions.records import TransactionRecord, decode
from tidemill.coordinator.transactions.transaction import Transaction, TransactionState
from tidemill.errors import ErrorCode
from tidemill.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tidemill.protocol.schema import Request, Response
from tidemill.types import ProducerEpoch, TopicPartition

# Ids of newer clients, whose every transaction has an epoch of its own, and of older ones.
NEW_IDS, OLD_IDS = ("new-1", "new-2"), ("old-1",)
EPOCH_BUMP = 2


class Producer(NamedTuple):
    producer_id: int
    epoch: int


class End(NamedTuple):
    is_commit: bool
    partitions: frozenset[TopicPartition]


class Lives:
    def __init__(self) -> None:
        config = TransactionsConfig(
            transaction_abort_timed_out_transaction_cleanup_interval_ms=1_000,
            transaction_remove_expired_transaction_cleanup_interval_ms=20_000,
            transactional_id_expiration_ms=60_000,
        )
        self.world = World(config=config)
        # Every producer id and epoch that clients got, by transactional id, in order.
        self.told: dict[str, list[Producer]] = {}
        self.added: dict[Producer, set[TopicPartition]] = {}
        self.ended: dict[Producer, bool] = {}
        self.markers: dict[Producer, End] = {}
        # The producer that took a transaction over, and its writer.
        self.kept: dict[Producer, Producer] = {}

    def producer(self, transactional_id: str, back: int = 0) -> Producer:
        """Returns the present or an earlier producer of the id."""
        told = self.told.get(transactional_id, [])
        return told[-1 - back] if back < len(told) else Producer(5, 0)

    def ask(self, transactional_id: str, request: Request, version: int) -> None:
        self.world.ask(transactional_id, request, version)
        self.note()

    def note(self) -> None:
        for asked, response in self.world.take_answers():
            self.note_answer(asked, response)
        committed = [decode(*raw) for raw in self.world.log.records[: self.world.committed_offset]]
        for wanted in self.world.reported:
            assert any(
                each is not None
                and each.transaction is not None
                and each.transaction.is_prepared
                and each.transaction.producer_id == wanted.end.producer_id
                and each.transaction.producer_epoch == wanted.end.producer_epoch
                for each in committed
            ), "markers before the decision is committed"
            if wanted.end.transaction_version == EPOCH_BUMP:
                key = Producer(wanted.end.producer_id, wanted.end.producer_epoch)
                end = End(wanted.end.is_commit, frozenset(wanted.partitions))
                assert self.markers.setdefault(key, end) == end, "markers of one transaction contradict"
        self.world.reported.clear()

    def note_answer(self, asked: Asked, response: Response) -> None:
        told = self.told.setdefault(asked.client, [])
        request = asked.request
        if isinstance(response, InitProducerIdResponse) and not response.error_code:
            assert isinstance(request, InitProducerIdRequest)
            producer = Producer(response.producer_id, response.producer_epoch)
            if request.producer_id == -1:
                assert all(producer not in each for each in self.told.values()), "one producer, two clients"
            told.append(producer)
            if response.ongoing_txn_producer_id >= 0:
                assert request.keep_prepared_txn
                wrote = Producer(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)
                assert producer != wrote
                self.kept[producer] = wrote
        elif isinstance(response, EndTxnResponse) and not response.error_code:
            assert isinstance(request, EndTxnRequest)
            if asked.client in NEW_IDS:
                asker = Producer(request.producer_id, request.producer_epoch)
                assert self.ended.setdefault(asker, request.committed) is request.committed
                told.append(Producer(response.producer_id, response.producer_epoch))
        elif isinstance(request, AddPartitionsToTxnRequest) and asked.client in NEW_IDS:
            assert isinstance(response, AddPartitionsToTxnResponse)
            (transaction,), (result,) = request.transactions, response.results_by_transaction
            adder = Producer(transaction.producer_id, transaction.producer_epoch)
            self.added.setdefault(adder, set()).update(
                TopicPartition(topic.name, each.partition_index)
                for topic in result.topic_results
                for each in topic.results_by_partition
                if not each.partition_error_code
            )

    # Clients.

    def init(self, transactional_id: str, goes_on: bool, back: int, *, keeps: bool = False) -> None:
        producer = self.producer(transactional_id, back) if goes_on else Producer(-1, -1)
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=5_000,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            keep_prepared_txn=keeps,
        )
        self.ask(transactional_id, request, 6 if keeps else 4)

    def add(self, transactional_id: str, partition: int, back: int) -> None:
        if partition == 4:
            self.add_offsets(transactional_id)
            return
        producer = self.producer(transactional_id, back)
        topics = [AddPartitionsToTxnTopic(name="t", partitions=[partition])]
        if transactional_id in OLD_IDS:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=topics,
            )
        else:
            transaction = AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                topics=topics,
            )
            request = AddPartitionsToTxnRequest(transactions=[transaction])
        self.ask(transactional_id, request, 3 if transactional_id in OLD_IDS else 5)

    def add_offsets(self, transactional_id: str) -> None:
        producer = self.producer(transactional_id)
        request = AddOffsetsToTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            group_id="g",
        )
        self.ask(transactional_id, request, 4)

    def end(self, transactional_id: str, is_commit: bool, back: int) -> None:
        producer = self.producer(transactional_id, back)
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=is_commit,
        )
        self.ask(transactional_id, request, 4 if transactional_id in OLD_IDS else 5)

    def whole_transaction(self, transactional_id: str, partitions: int, is_commit: bool) -> None:
        """The most frequent step, so that the others come between two transactions."""
        self.write_markers()
        if not self.told.get(transactional_id):
            self.init(transactional_id, goes_on=False, back=0)
        for partition in range(partitions):
            self.add(transactional_id, partition, back=0)
        self.end(transactional_id, is_commit, back=0)

    # The world.

    def write_markers(self) -> None:
        self.world.write_markers()
        self.note()

    def hear_of_other_markers(self, transactional_id: str, back: int) -> None:
        """Report markers of earlier or unknown transactions, but not the ones that are due now."""
        producer = self.producer(transactional_id, back)
        told = MarkersWritten(transactional_id, producer[0], ProducerEpoch(producer[1]))
        wanted = self.world.markers.get(transactional_id)
        if wanted is None or wanted.written != told:
            before = self.world.machine.transactions.get(transactional_id)
            if before is None or (before.producer_id, before.producer_epoch) != producer:
                self.world.markers_written(told)
                assert self.world.machine.transactions.get(transactional_id) == before

    def advance(self, duration_ms: int) -> None:
        self.world.advance(duration_ms)
        self.note()

    def trouble(self, trouble: str) -> None:
        if trouble == "appends fail":
            self.world.log.refuse_with = ErrorCode.NOT_ENOUGH_REPLICAS
        elif trouble == "commits wait":
            self.world.holds_commits = True
        elif trouble == "over":
            self.world.log.refuse_with = None
            self.world.release_commits()
        else:
            self.world.move_coordinator(loses_uncommitted=trouble == "lossy move")
        self.note()

    def use_up_epochs(self, transactional_id: str) -> None:
        """Many transactions later."""
        transaction = self.world.machine.transactions.get(transactional_id)
        if transaction is None or not transaction.is_idle or self.world.log.refuse_with is not None:
            return
        later = replace(transaction, producer_epoch=ProducerEpoch(max(transaction.producer_epoch, 32_765)))
        self.world.write(TransactionRecord(transactional_id, later))
        self.world.release_commits()
        self.note()
        self.told.setdefault(transactional_id, []).append(Producer(later.producer_id, later.producer_epoch))

    # Invariants.

    def live_state_is_what_the_log_says(self) -> None:
        assert self.world.rebuilt().replicated_state() == self.world.machine.replicated_state()

    def confirmed_ends_and_partitions_are_in_the_log(self) -> None:
        ends: dict[Producer, End] = {}
        for transaction in self.prepared_in_log():
            key = Producer(transaction.producer_id, transaction.producer_epoch - 1)
            assert key not in ends, "one transaction was decided twice"
            ends[key] = End(transaction.is_commit, frozenset(transaction.partitions))
        for producer, is_commit in self.ended.items():
            wrote = self.kept.get(producer, producer)
            assert ends[wrote].is_commit is is_commit, "a confirmed end did not happen"
        transactions = self.world.machine.transactions.values()
        ongoing = {
            Producer(each.producer_id, each.producer_epoch): End(False, frozenset(each.partitions))
            for each in transactions
            if each.state is TransactionState.ONGOING
        }
        for producer, partitions in self.added.items():
            if partitions:
                known = ends.get(producer) or ongoing.get(producer)
                assert known is not None, "a transaction is neither under way nor decided"
                assert partitions <= known.partitions, "a confirmed partition gets no marker"

    def prepared_in_log(self) -> list[Transaction]:
        """Returns the decided transactions in the log whose end bumped the epoch.

        A final refusal restates what it rests on: the record before it of the same transactional id, once more.
        """
        last: dict[str, Transaction | None] = {}
        transactions = []
        for record in (decode(key, value) for key, value in self.world.log.records):
            if record is not None and last.get(record.transactional_id) != record.transaction:
                transactions.append(record.transaction)
                last[record.transactional_id] = record.transaction
        return [
            each
            for each in transactions
            if each is not None and each.is_prepared and each.client_version == EPOCH_BUMP
        ]

    def teardown(self) -> None:
        """Requests that still wait are answered when the coordinator moves. A second answer fails in `World`."""
        self.world.shard.fail(ErrorCode.NOT_COORDINATOR)
        assert not self.world.asked, "a request was never answered"


class Step(NamedTuple):
    what: str
    transactional_id: str
    number: int
    flag: bool


# What happens, and how often.
WEIGHTS = {
    "init": 2,
    "take over": 2,
    "add": 4,
    "end": 4,
    "late end": 3,
    "whole transaction": 4,
    "write markers": 5,
    "hear of other markers": 1,
    "advance": 1,
    "appends fail": 1,
    "commits wait": 1,
    "over": 3,
    "move": 1,
    "lossy move": 1,
    "use up epochs": 1,
}
STEPS = st.builds(
    Step,
    st.sampled_from([what for what, weight in WEIGHTS.items() for _ in range(weight)]),
    st.sampled_from(("new-1", "new-1", "new-2", "old-1")),
    st.integers(0, 4),
    st.booleans(),
)


def take(lives: Lives, step: Step) -> None:
    what, transactional_id, number, flag = step
    if what == "init":
        lives.init(transactional_id, flag, number % 3)
    elif what == "take over":
        lives.init(transactional_id, flag, number % 3, keeps=True)
    elif what == "add":
        lives.add(transactional_id, number, int(number == 3))
    elif what == "end":
        lives.end(transactional_id, flag, 0)
    elif what == "late end":
        lives.end(transactional_id, flag, 1 + number % 2)
    elif what == "whole transaction":
        lives.whole_transaction(transactional_id, 1 + number % 2, flag)
    elif what == "write markers":
        lives.write_markers()
    elif what == "hear of other markers":
        lives.hear_of_other_markers(transactional_id, number)
    elif what == "advance":
        lives.advance((0, 100, 3_000, 10_000, 70_000)[number])
    elif what == "use up epochs":
        lives.use_up_epochs(transactional_id)
    else:
        lives.trouble(what)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(STEPS, min_size=15, max_size=60))
def test_transactional_id_state_is_a_function_of_its_log(steps: list[Step]) -> None:
    lives = Lives()
    for step in steps:
        take(lives, step)
        lives.live_state_is_what_the_log_says()
        lives.confirmed_ends_and_partitions_are_in_the_log()
    lives.teardown()
