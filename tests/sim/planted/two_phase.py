"""Mistakes that two-phase commits can hide (KIP-939), to be planted as those of `bugs.py`: each has to be found."""

from __future__ import annotations

from dataclasses import replace as replace_
from typing import Any

from tests.sim.planted.bugs import Bug, Replace
from tests.sim.planted.transactions import TRANSACTIONAL
from tidemill.coordinator.transactions import machine as transactions
from tidemill.coordinator.transactions import records as transaction_records
from tidemill.coordinator.transactions import rules as transaction_rules
from tidemill.coordinator.transactions import transaction
from tidemill.coordinator.transactions.transaction import NO_PRODUCER_EPOCH
from tidemill.sim.clients import two_phase
from tidemill.sim.clients.transactor import Transactor

TWO_PHASE = replace_(TRANSACTIONAL, has_transactions=False, has_two_phase=True, transaction_pause_s_max=0.5)


# -- the coordinator -----------------------------------------------------------------------------------------


def a_takeover_fences_nobody(replace: Replace) -> None:
    """A producer that takes a transaction over gets the epoch that the one before has."""
    original = transactions.Transactions._keep

    def _keep(self: Any, found: Any, *args: Any) -> Any:
        after, self._after = self._after, lambda producer: producer
        try:
            return original(self, found, *args)
        finally:
            self._after = after

    replace(transactions.Transactions, "_keep", _keep)


def a_takeover_aborts(replace: Replace) -> None:
    """What is under way is not kept, but fenced."""
    original = transaction_rules.initialization

    def initialization(*args: Any, keeps_prepared: bool) -> Any:
        return original(*args, keeps_prepared=False)

    replace(transaction_rules, "initialization", initialization)


def a_takeover_leaves_the_timeout_on(replace: Replace) -> None:
    """What is decided times out before it is committed."""
    original = transaction.Transaction.kept

    def kept(self: Any, client: Any, _timeout_ms: int, steady_ms: int) -> Any:
        return original(self, client, self.timeout_ms, steady_ms)

    replace(transaction.Transaction, "kept", kept)


def an_end_leaves_the_epoch_to_who_took_over(replace: Replace) -> None:
    """A late copy of its EndTxn looks like one that is about its next transaction."""
    original = transactions.Transactions._bumped

    def _bumped(self: Any, found: Any, *args: Any) -> Any:
        prepared = original(self, found, *args)
        if not found.is_kept:
            return prepared
        return replace_(
            prepared,
            next_producer_id=found.client.producer_id,
            next_producer_epoch=found.client.producer_epoch,
        )

    replace(transactions.Transactions, "_bumped", _bumped)


def a_new_coordinator_forgets_who_took_over(replace: Replace) -> None:
    """Under it the writer of the transaction may end it again."""
    original = transaction_records.decode

    def decode(key: bytes, value: bytes | None) -> Any:
        record = original(key, value)
        if record is None or record.transaction is None or not record.transaction.is_kept:
            return record
        forgotten = replace_(record.transaction, next_producer_id=-1, next_producer_epoch=NO_PRODUCER_EPOCH)
        return record._replace(transaction=forgotten)

    replace(transaction_records, "decode", decode)


def who_wrote_it_may_still_end_it(replace: Replace) -> None:
    """The takeover does not shut out the producer that it took the transaction from."""
    original = transaction_rules.bumping_ending

    def bumping_ending(found: Any, producer: Any, *, is_commit: bool) -> Any:
        if found.is_kept and producer == found.producer:
            producer = found.client
        return original(found, producer, is_commit=is_commit)

    replace(transaction_rules, "bumping_ending", bumping_ending)


# -- the client ----------------------------------------------------------------------------------------------


def decisions_are_read_up_to_the_high_watermark(replace: Replace) -> None:
    """Which a leader that was replaced tells as well: it does not know of later decisions."""

    async def open_(self: Any) -> tuple[Transactor, Any]:
        transactor = self.transactor(self.query.name)
        await transactor.initialise()
        decision = await self.glance()
        await transactor.begin(patience_s=8.0)
        return transactor, decision

    replace(two_phase.Sink, "open", open_)


def a_driver_reads_no_decision(replace: Replace) -> None:
    """A batch that is decided is decided again when it is repeated."""
    original = two_phase.Sink.open

    async def open_(self: Any) -> tuple[Transactor, Any]:
        transactor, _ = await original(self)
        return transactor, None

    replace(two_phase.Sink, "open", open_)


def what_is_found_open_is_aborted(replace: Replace) -> None:
    """Whether it is decided or not."""

    async def settle_taken(self: Any, taken: Any) -> bool:
        return all([await self.end(transactor, writer, is_commit=False) for transactor, writer in taken])

    replace(two_phase.Sink, "settle_taken", settle_taken)


def a_decision_is_replaced_before_it_is_finished(replace: Replace) -> None:
    """What is left of it looks undecided then."""

    async def finish(_self: Any, _decision: Any) -> None:
        return

    replace(two_phase.Sink, "finish", finish)


def the_report_of_a_task_is_not_compared(replace: Replace) -> None:
    """The driver commits the open transaction of each task's id, although another producer may have written it."""

    async def _take_over(self: Any, attempts: Any) -> list[Any]:
        taken = []
        for attempt in attempts:
            transactor = self._sink.transactor(attempt.transactional_id)
            writer = await transactor.take_over(is_two_phase=True)
            if writer is not None:
                taken.append((transactor, writer))
        return taken

    replace(two_phase.Driver, "_take_over", _take_over)


TWO_PHASE_BUGS: tuple[Bug, ...] = (
    Bug("a takeover fences nobody", a_takeover_fences_nobody, plan=TWO_PHASE),
    Bug("a takeover aborts", a_takeover_aborts, plan=TWO_PHASE),
    Bug("a takeover leaves the timeout on", a_takeover_leaves_the_timeout_on, 2, plan=TWO_PHASE),
    Bug(
        "an end leaves the epoch to who took over",
        an_end_leaves_the_epoch_to_who_took_over,
        7,
        seeds=20,
        plan=TWO_PHASE,
    ),
    Bug(
        "a new coordinator forgets who took over", a_new_coordinator_forgets_who_took_over, 2, plan=TWO_PHASE
    ),
    Bug("a driver reads no decision", a_driver_reads_no_decision, plan=TWO_PHASE),
    Bug("what is found open is aborted", what_is_found_open_is_aborted, 1, plan=TWO_PHASE),
    Bug(
        "a decision is replaced before it is finished",
        a_decision_is_replaced_before_it_is_finished,
        1,
        plan=TWO_PHASE,
    ),
    Bug("the report of a task is not compared", the_report_of_a_task_is_not_compared, 5, 12, plan=TWO_PHASE),
)
