"""Mistakes that transactions can hide, to be planted as those of `bugs.py`: each has to be found.

Most of them do nothing on a quiet day: they need a late request, a zombie, a coordinator that moves, or a replica that takes
over.
"""

from __future__ import annotations

from dataclasses import replace as replace_
from typing import Any

from tests.sim.planted.bugs import Bug, Replace
from tidemill.broker.coordinators import verification
from tidemill.coordinator.groups import offsets
from tidemill.coordinator.transactions import machine as transactions
from tidemill.coordinator.transactions import rules as transaction_rules
from tidemill.coordinator.transactions import transaction
from tidemill.errors import ErrorCode
from tidemill.log import log
from tidemill.log.producer_state import producers
from tidemill.log.recovery import replay
from tidemill.protocol.api.transactions import InitProducerIdRequest, InitProducerIdResponse
from tidemill.sim.stage import Plan

# Mostly transactions: whatever else goes on is slow.
TRANSACTIONAL = Plan(
    duration_s=100.0,
    pause_s_max=5.0,
    transaction_pause_s_max=0.3,
    mean_fault_interval_s=5.0,
    mean_upset_interval_s=5.0,
)
# What takes a moment takes a while: a node that takes over finds things half done.
SLOW = replace_(TRANSACTIONAL, latency_s_max=0.1)


# -- in the log ----------------------------------------------------------------------------------------------


def late_markers_are_accepted(replace: Replace) -> None:
    """A marker counts whatever epochs it has, of the producer and of the coordinator."""
    replace(producers.Producers, "check_marker", lambda *_: None)


def repeated_markers_are_written(replace: Replace) -> None:
    """A marker counts although it was written before, and the producer has begun its next transaction."""
    replace(producers.Producers, "has_ended", lambda *_: False)


def markers_of_a_stale_coordinator_are_accepted(replace: Replace) -> None:
    original = producers.Producers.check_marker

    def check_marker(self: producers.Producers, end: Any) -> None:
        original(self, end._replace(coordinator_epoch=0x7FFFFFFF))

    replace(producers.Producers, "check_marker", check_marker)


def stable_past_an_open_transaction(replace: Replace) -> None:
    replace(log.Log, "last_stable_offset", lambda _, high_watermark: high_watermark)


def stable_up_to_a_marker_that_is_not_committed(replace: Replace) -> None:
    """A transaction counts as ended as soon as the leader has its marker."""
    original = producers.Producers.drop_committed_markers

    def drop_committed_markers(self: producers.Producers, _high_watermark: int) -> None:
        original(self, 1 << 62)

    replace(producers.Producers, "drop_committed_markers", drop_committed_markers)


def open_transactions_are_not_in_snapshots(replace: Replace) -> None:
    original = producers.Producers.restore

    def restore(self: producers.Producers, content: bytes) -> None:
        original(self, content)
        for state in self._open.values():
            state.txn_first_offset = -1
        self._open.clear()
        self.is_stable = not self._ended

    replace(producers.Producers, "restore", restore)


def aborted_transactions_are_not_told(replace: Replace) -> None:
    replace(log.Log, "aborted_between", lambda *_: [])


def followers_do_not_learn_of_aborts(replace: Replace) -> None:
    original = log.Log._append_run

    def _append_run(self: log.Log, data: memoryview, headers: Any) -> None:
        count = len(self.active.txn_index.entries)
        original(self, data, headers)
        del self.active.txn_index._entries[count:]

    replace(log.Log, "_append_run", _append_run)


def recovery_forgets_aborts(replace: Replace) -> None:
    """What a restart reads again from the batches does not get into the index."""
    original = replay.learn

    def learn(*args: Any) -> None:
        original(*args)

    replace(replay, "learn", learn)


# -- at the partition ----------------------------------------------------------------------------------------


def nothing_is_verified(replace: Replace) -> None:
    """Clients that add their partitions themselves are believed (failure 6)."""
    original = verification.Verification.check

    async def check(self: verification.Verification, *args: Any, adds: bool) -> Any:
        if not adds:
            return dict.fromkeys(args[3], ErrorCode.NONE)
        return await original(self, *args, adds=adds)

    replace(verification.Verification, "check", check)


# -- the coordinator -----------------------------------------------------------------------------------------


def a_new_coordinator_forgets_what_was_decided(replace: Replace) -> None:
    """It does not send the markers of transactions that it finds prepared (failure 12)."""
    replace(transactions.Transactions, "_repeat_markers", lambda *_: None)


def ends_are_taken_whatever_their_epoch(replace: Replace) -> None:
    """A delayed EndTxn decides a later transaction (failure 7)."""
    original = transaction_rules.bumping_ending

    def bumping_ending(found: Any, producer: Any, *, is_commit: bool) -> Any:
        if found.state is transaction.TransactionState.ONGOING:
            producer = producer._replace(producer_epoch=found.producer_epoch)
        return original(found, producer, is_commit=is_commit)

    replace(transaction_rules, "bumping_ending", bumping_ending)


def a_new_producer_keeps_the_old_epoch(replace: Replace) -> None:
    """InitProducerId fences no producer."""
    original = transactions.Transactions._init

    def _init(self: Any, request: Any, *args: Any) -> Any:
        decision = original(self, request, *args)
        known = self.transactions.get(request.transactional_id)
        response = decision.reply
        is_initialised = isinstance(response, InitProducerIdResponse) and not response.error_code
        if is_initialised and known is not None and known.producer_epoch >= 0:
            response.producer_epoch = known.producer_epoch
            return transactions.Decision(reply=response)
        return decision

    handlers = {**transactions.Transactions._HANDLERS, InitProducerIdRequest: _init}
    replace(transactions.Transactions, "_HANDLERS", handlers)


# -- groups --------------------------------------------------------------------------------------------------


def aborted_offsets_are_applied(replace: Replace) -> None:
    original = offsets.Offsets.replay_end

    def replay_end(self: Any, end: Any) -> None:
        original(self, end._replace(is_commit=True))

    replace(offsets.Offsets, "replay_end", replay_end)


TRANSACTION_BUGS: tuple[Bug, ...] = (
    Bug("stable past an open transaction", stable_past_an_open_transaction, plan=TRANSACTIONAL),
    Bug(
        "stable up to a marker that is not committed",
        stable_up_to_a_marker_that_is_not_committed,
        plan=TRANSACTIONAL,
    ),
    Bug(
        "open transactions are not in snapshots",
        open_transactions_are_not_in_snapshots,
        2,
        plan=TRANSACTIONAL,
    ),
    Bug("aborted transactions are not told", aborted_transactions_are_not_told, plan=TRANSACTIONAL),
    Bug("followers do not learn of aborts", followers_do_not_learn_of_aborts, plan=TRANSACTIONAL),
    Bug("recovery forgets aborts", recovery_forgets_aborts, plan=TRANSACTIONAL),
    Bug(
        "a new coordinator forgets what was decided",
        a_new_coordinator_forgets_what_was_decided,
        plan=SLOW,
    ),
    Bug("a new producer keeps the old epoch", a_new_producer_keeps_the_old_epoch, 1, plan=TRANSACTIONAL),
    Bug("aborted offsets are applied", aborted_offsets_are_applied, 2, plan=TRANSACTIONAL),
)
