"""Ends the transactions of a query's tasks: the driver decides, and no decided transaction is aborted.

A task writes in a transaction that it leaves open (`open_transaction`), and hands it to the driver, which alone knows
that the task's input was complete. `commit_batch` takes every transaction over, writes one decision (`commits`) and
ends them. `settle` ends what is left open by tasks that failed, or by a driver that died, by the one rule:

    hold the transaction; fence the query's decisions; read the last one; commit what it names, abort what it does not

in that order. docs/decisions/0011 shows why no other driver then aborts a decided transaction. *To hold* is to take
over (KIP-939): the producer that held it before can no longer end it. Where the cluster lacks that, the writer's own
producer id and epoch serve instead. Then two drivers at the same moment are not excluded, and a transaction may time
out before its commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar
from urllib.parse import quote, unquote

from tidemill.client.admin.transactions import TransactionAdmin, TransactionDescription
from tidemill.client.cluster import Cluster
from tidemill.client.producing.transaction_coordinator import (
    Fenced,
    Identity,
    TransactionCoordinator,
    TransactionFailed,
)
from tidemill.client.producing.transactional import TransactionalProducer
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.spark.sink.commits import Commits, Decision, Transaction

logger = logging.getLogger(__name__)

SubjectT = TypeVar("SubjectT")
ResultT = TypeVar("ResultT")

_PREFIX = "spark-"
_ONGOING = "Ongoing"
_ABORTED = "CompleteAbort"
_COMMITTED = ("PrepareCommit", "CompleteCommit")
_PREPARED = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
# A takeover and the end have an epoch each.
_EPOCHS_OF_AN_END = 2
# How many connections share how many transactions at least.
_CONNECTIONS_MAX = 8
_SUBJECTS_MIN = 16
# A coordinator that is away is waited for once, not again for each of its transactions.
_AFTER_FAILURE_S = 1.0
# How often an action is tried that another driver fences.
_TRIES = 10


class TransactionLost(TidemillError):
    """The records of a task can no longer be committed."""


class OutdatedCheckpoint(TidemillError):
    """A stream comes with a batch that is older than the last one that it has committed."""


def _never_left_alone(transactional_ids: Sequence[str]) -> TransactionLost:
    return TransactionLost(
        f"{', '.join(transactional_ids)}: others take these transactions over again and again; they stay open"
    )


# --- a task ---


def open_transaction(
    cluster: Cluster, producer: TransactionalProducer, transactional_id: str, query_id: str, batch_id: int
) -> Decision | None:
    """Makes the producer ready to begin. A decision means that the batch is decided, and nothing is to be written."""
    try:
        writer = producer.take_over()
    except ApiError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        decision = _end_as_writer(cluster, transactional_id, query_id)
        producer.init()
    else:
        decision = None
        if writer is not None:
            decision = _fence(cluster, query_id)
            producer.end_taken_over(is_commit=_is_decided(decision, Transaction(transactional_id, *writer)))
            # Once more for the timeout, which is off when a driver had held the transaction.
            if producer.take_over() is not None:
                raise Fenced(f"another producer writes under {transactional_id}")
    return decision if decision is not None and decision.batch_id >= batch_id else None


def _end_as_writer(cluster: Cluster, transactional_id: str, query_id: str) -> Decision | None:
    """Commits what is decided. What is not, InitProducerId aborts."""
    writer = _ongoing_writer(cluster, transactional_id)
    if writer is None:
        return None
    decision = _fence(cluster, query_id)
    if _is_decided(decision, Transaction(transactional_id, *writer)):
        TransactionCoordinator(cluster, transactional_id).end(writer, is_commit=True)
    return decision


# --- the driver ---


def commit_batch(
    cluster: Cluster,
    query_id: str,
    batch_id: int,
    written: Sequence[Transaction],
    *,
    drops_earlier: bool = False,
) -> None:
    """All of them or none. After a failure `settle` finds out which.

    A batch that is decided already is not written again. `drops_earlier` says the same of batches before the last decided
    one, of which no decision is left. Without it they fail: a stream repeats no batch but its last.
    """
    for _ in range(_TRIES - 1):
        try:
            _decide_and_commit(cluster, query_id, batch_id, written, drops_earlier)
            break
        except Fenced as failure:
            # A task that looked for the decision may have done that. Whether there is one now is read again.
            logger.info("batch %d of query %s is decided anew: %s", batch_id, query_id, failure)
    else:
        _decide_and_commit(cluster, query_id, batch_id, written, drops_earlier)
    # The batch is committed. A failure now would have it written once more.
    try:
        settle(cluster, query_id)
    except TidemillError as failure:
        logger.warning("failed tasks of query %s have left transactions open: %s", query_id, failure)


def _decide_and_commit(
    cluster: Cluster, query_id: str, batch_id: int, written: Sequence[Transaction], drops_earlier: bool
) -> None:
    """Raises `Fenced` when another process fenced this driver before its decision; that may have been made all the same."""
    with Commits(cluster, query_id) as commits:
        decision = commits.fence()
        if decision is not None:
            _finish(cluster, decision)
            # Also when not one task has written: tasks that find the decision leave their rows out.
            if decision.batch_id > batch_id and not drops_earlier:
                raise _outdated(query_id, batch_id, decision.batch_id)
        if not written:
            return
        if decision is not None and decision.batch_id >= batch_id:
            if not set(written) <= set(decision.transactions):
                logger.warning(
                    "batch %d of query %s is committed already: what was written again is taken back",
                    batch_id,
                    query_id,
                )
            return
        holds = _of_each(cluster, written, _held_for_good)
        commits.decide(Decision(batch_id, tuple(written)))
        _of_each(
            cluster, list(zip(written, holds, strict=True)), lambda reached, each: _commit(reached, *each)
        )


def _outdated(query_id: str, batch_id: int, decided_id: int) -> OutdatedCheckpoint:
    return OutdatedCheckpoint(
        f"batch {batch_id} of query {query_id} comes after batch {decided_id}, which the query has committed: its "
        f"checkpoint was restored from a copy or lost files, or another driver goes on with it. Nothing of the batch is "
        f"written; start the query with a new checkpointLocation, and with startingOffsets where it is to go on"
    )


def settle(cluster: Cluster, query_id: str, written: Iterable[Transaction] = ()) -> None:
    """Ends what the query's tasks have left open, each as it is decided; what no decision names is aborted.

    `written` are those that are known; others are looked for. One whose coordinator is away keeps none of the others
    open: its failure is raised when they have ended.
    """
    failures: list[TidemillError] = []
    pending = {each.transactional_id for each in written}
    try:
        pending.update(_ongoing_of(cluster, query_id))
    except TidemillError as failure:
        failures.append(failure)
    for _ in range(_TRIES):
        if not pending:
            break
        pending = set(_end_as_decided(cluster, query_id, sorted(pending), failures))
    if pending:
        raise _never_left_alone(sorted(pending))
    if failures:
        raise failures[0]


def forget_decision(cluster: Cluster, query_id: str) -> None:
    """For a query that is over, when everything is committed, so that a failure is only logged."""
    try:
        with Commits(cluster, query_id) as commits:
            if commits.fence() is not None:
                commits.forget()
    except TidemillError as failure:
        logger.warning("the decision of query %s stays, to no effect: %s", query_id, failure)


def task_prefix(query_id: str) -> str:
    """Returns the prefix of the transactional ids of the query's tasks. No other query has it."""
    return f"{_PREFIX}{quote(query_id, safe='')}/"


def query_of(transactional_id: str) -> str | None:
    """Returns the query of a task's transactional id; None for an id of another kind."""
    name, slash, _ = transactional_id.removeprefix(_PREFIX).partition("/")
    return unquote(name) if slash and transactional_id.startswith(_PREFIX) else None


def queries_marked(cluster: Cluster, mark: str) -> list[str]:
    """The queries whose tasks have a transaction open and `mark` in their transactional ids."""
    if not mark:
        return []
    listed = TransactionAdmin(cluster).transactions(states=[_ONGOING])
    marked = [each.transactional_id for each in listed if f"/{mark}/" in each.transactional_id]
    return sorted({query_id for query_id in map(query_of, marked) if query_id is not None})


# --- many at once ---


def _of_each(
    cluster: Cluster, subjects: Sequence[SubjectT], act: Callable[[Cluster, SubjectT], ResultT]
) -> list[ResultT]:
    """The results of `act`, over several connections when there are many.

    The query's transaction in the topic of decisions is open meanwhile, and times out.
    """
    count = min(_CONNECTIONS_MAX, len(subjects) // _SUBJECTS_MIN)
    if count < 2:
        return [act(cluster, each) for each in subjects]

    def share(index: int) -> list[ResultT]:
        with cluster.twin() as reached:
            return [act(reached, each) for each in subjects[index::count]]

    results: dict[int, ResultT] = {}
    with ThreadPoolExecutor(count) as threads:
        for index, found in enumerate(threads.map(share, range(count))):
            results.update(zip(range(index, len(subjects), count), found, strict=True))
    return [results[index] for index in range(len(subjects))]


# --- holding and ending ---


class _Hold(NamedTuple):
    """`producer` may end the transaction that `writer` has written; None when none is open."""

    producer: Identity
    writer: Identity | None
    # Whether a timeout, or another driver, can end it between decision and commit.
    may_time_out: bool


def _hold(cluster: Cluster, transactional_id: str, *, two_phase: bool = False) -> _Hold:
    try:
        taken = TransactionCoordinator(cluster, transactional_id).take_over(two_phase=two_phase)
        return _Hold(*taken, may_time_out=not two_phase)
    except ApiError as error:
        if two_phase and error.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            logger.warning(
                "two-phase commit is not allowed: the user needs the right TwoPhaseCommit on %s, or the brokers have "
                "transaction.two.phase.commit.enable=false. What is decided is lost when its transaction times out before "
                "its commit",
                transactional_id,
            )
            return _hold(cluster, transactional_id)
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
    writer = _ongoing_writer(cluster, transactional_id)
    return _Hold(writer or Identity(-1, -1), writer, may_time_out=True)


def _held_for_good(cluster: Cluster, transaction: Transaction) -> _Hold:
    """Held until it is ended, however long that takes; `TransactionLost` when it is not what the task has written."""
    hold = _hold(cluster, transaction.transactional_id, two_phase=True)
    if hold.writer != transaction.writer:
        raise TransactionLost(
            f"the transaction {transaction.transactional_id} of a task has ended before the batch was committed: it was "
            f"open for longer than the option kafka.transaction.timeout.ms, or another driver of the query took its place. "
            f"Nothing of the batch is committed; it is written when the query or the job is started again"
        )
    return hold


def _finish(cluster: Cluster, decision: Decision) -> None:
    """Returns when all its transactions are known to have ended. Another decision must not take its place before that."""
    described = TransactionAdmin(cluster).describe_many([each[0] for each in decision.transactions])
    left = []
    for each in decision.transactions:
        found = described.get(each.transactional_id)
        if _was_aborted(found, each):
            logger.error("%s", _lost(each))
        elif not _has_ended(found, each):
            left.append(each)
    _of_each(cluster, left, _commit_again)


def _has_ended(described: TransactionDescription | None, transaction: Transaction) -> bool:
    """Whether the coordinator is certain of it.

    A later epoch of the same producer id shows that it has ended; only while it is being ended, its own state has one.
    What a replaced coordinator describes is older, and leaves it open.
    """
    return (
        described is not None
        and described.producer_id == transaction.producer_id
        and described.producer_epoch > transaction.producer_epoch
        and described.state not in _PREPARED
    )


def _was_aborted(described: TransactionDescription | None, transaction: Transaction) -> bool:
    """Whether the coordinator is certain of it: no later transaction of the id can have ended at so low an epoch."""
    return (
        described is not None
        and described.producer_id == transaction.producer_id
        and described.state == _ABORTED
        and 0 <= described.producer_epoch - transaction.producer_epoch <= _EPOCHS_OF_AN_END
    )


def _commit(cluster: Cluster, transaction: Transaction, hold: _Hold) -> None:
    """Ends what was just decided. When another process has taken it over, this takes it back."""
    try:
        TransactionCoordinator(cluster, transaction.transactional_id).end(hold.producer, is_commit=True)
    except (Fenced, TransactionFailed) as failure:
        logger.info("%s was taken over: %s", transaction.transactional_id, failure)
        is_committed = hold.may_time_out and _is_committed(cluster, transaction.transactional_id)
        if not is_committed and not _commit_again(cluster, transaction) and hold.may_time_out:
            raise _lost(transaction) from failure


def _commit_again(cluster: Cluster, transaction: Transaction) -> bool:
    """Takes a decided transaction over and commits it. Returns False when it has ended before."""
    for _ in range(_TRIES):
        hold = _hold(cluster, transaction.transactional_id, two_phase=True)
        if hold.writer != transaction.writer:
            return False
        try:
            TransactionCoordinator(cluster, transaction.transactional_id).end(hold.producer, is_commit=True)
            return True
        except (Fenced, TransactionFailed) as failure:
            logger.info("%s was taken over: %s", transaction.transactional_id, failure)
    raise _never_left_alone([transaction.transactional_id])


def _is_committed(cluster: Cluster, transactional_id: str) -> bool:
    """Whether the last transaction of the id was committed, as another process does with a decided one."""
    described = TransactionAdmin(cluster).describe_many([transactional_id]).get(transactional_id)
    return described is not None and described.state in _COMMITTED


def _lost(transaction: Transaction) -> TransactionLost:
    return TransactionLost(
        f"the transaction {transaction.transactional_id} timed out between the decision and its commit, because this "
        f"cluster has no two-phase commit, or does not allow it: its rows are missing"
    )


def _end_as_decided(
    cluster: Cluster, query_id: str, transactional_ids: Sequence[str], failures: list[TidemillError]
) -> list[str]:
    """Ends transactions as they were decided; returns those that another driver took over meanwhile.

    Those that cannot be ended are left out, and `failures` gets the reasons.
    """
    with cluster.twin() as reached:
        held = _of_each(reached, transactional_ids, _hold_or_failure)
        holds = {}
        for transactional_id, hold in zip(transactional_ids, held, strict=True):
            if isinstance(hold, TidemillError):
                failures.append(hold)
            elif hold.writer is not None:
                holds[transactional_id] = (hold.producer, Transaction(transactional_id, *hold.writer))
        # The order matters: held, then fenced, then read.
        decision = _fence(cluster, query_id) if holds else None
        fenced = []
        for transactional_id, (producer, transaction) in holds.items():
            coordinator = TransactionCoordinator(reached, transactional_id)
            try:
                coordinator.end(producer, is_commit=_is_decided(decision, transaction))
            except (Fenced, TransactionFailed) as failure:
                logger.info("%s is taken over: %s", transactional_id, failure)
                fenced.append(transactional_id)
            except TidemillError as failure:
                reached.timeout_s = min(reached.timeout_s, _AFTER_FAILURE_S)
                failures.append(failure)
    return fenced


def _hold_or_failure(reached: Cluster, transactional_id: str) -> _Hold | TidemillError:
    try:
        return _hold(reached, transactional_id)
    except TidemillError as failure:
        reached.timeout_s = min(reached.timeout_s, _AFTER_FAILURE_S)
        return failure


def _fence(cluster: Cluster, query_id: str) -> Decision | None:
    with Commits(cluster, query_id) as commits:
        return commits.fence()


def _is_decided(decision: Decision | None, transaction: Transaction) -> bool:
    return decision is not None and transaction in decision.transactions


def _ongoing_writer(cluster: Cluster, transactional_id: str) -> Identity | None:
    try:
        found = TransactionAdmin(cluster).describe(transactional_id)
    except ApiError as error:
        if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        raise
    return Identity(found.producer_id, found.producer_epoch) if found.state == _ONGOING else None


def _ongoing_of(cluster: Cluster, query_id: str) -> list[str]:
    """The transactional ids of the query's tasks under which a transaction is open."""
    prefix = task_prefix(query_id)
    return [
        each.transactional_id
        for each in TransactionAdmin(cluster).transactions(states=[_ONGOING])
        if each.transactional_id.startswith(prefix)
    ]
