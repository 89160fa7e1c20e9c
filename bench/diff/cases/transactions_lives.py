"""Whole lives: time-outs, expiry of transactional ids, the last epoch, consume-transform-produce.

Both brokers look for transactions that timed out, and for transactional ids that are idle, more often than they
would by default (`bench.diff.brokers.SETTINGS`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.diff.members import new_group
from bench.diff.script import Script, case
from bench.diff.transactions import (
    OK,
    TransactionalProducer,
    init_request,
    new_producer,
    read,
    settled,
)

TIMEOUT_MS = 1000
# Time-out, the interval of the search, and a slow machine.
TIMED_OUT_SECONDS = 15.0
# More than `transactional.id.expiration.ms` of the settings and the interval of that search.
EXPIRED_SECONDS = 30.0
EPOCH_MAX = 32_767
IN_FLIGHT = 100


def _await(s: Script, what: Callable[[], str], wanted: str, seconds: float) -> None:
    """Until it is so, with pauses: this takes seconds."""
    deadline = time.monotonic() + seconds
    while (found := what()) != wanted:
        if time.monotonic() > deadline:
            s.note(f"waited for {wanted}", found)
            return
        time.sleep(0.1)


def _state(p: TransactionalProducer) -> str:
    return str(p.describe()["transaction_states"][0]["transaction_state"])


@case("end_txn", only=(4, 5))
def timeout(s: Script) -> None:
    t, group = s.topic("t", 2), new_group(s)
    p = new_producer(s, is_newer=s.version >= 5, timeout_ms=TIMEOUT_MS)
    p.begin(t)
    if not p.is_newer:
        p.add_offsets(group)
    p.commit_offsets(group, t, 5)
    _await(s, lambda: _state(p), "CompleteAbort", TIMED_OUT_SECONDS)
    p.describe("described")
    p.write(t, label="late batch")
    p.add(t, 1, label="late partition")
    p.write(t, 1, label="late batch to another partition")
    p.commit_offsets(group, t, 6, label="late offsets")
    p.end(True, "late commit")
    p.end(False, "late abort")
    p.describe("described again")
    p.init("init with the old epoch", producer_id=p.id, producer_epoch=p.epoch)
    p.init("init")
    p.begin(t)
    p.end(True, "commit of the next")
    p.await_end(True)
    read(s, "log", t)
    read(s, "the other partition", t, partition=1)
    request = {"groups": [{"group_id": group, "topics": None}], "require_stable": True}
    s.ask("offsets", request, api="offset_fetch", version=8)


@case("init_producer_id", only=(5,))
def timeout_and_return(s: Script) -> None:
    """A producer that was aborted by the coordinator asks for its next epoch with the one it knows."""
    t = s.topic("t")
    for is_newer, kind in ((False, "older"), (True, "newer")):
        p = new_producer(s, kind, is_newer=is_newer, timeout_ms=TIMEOUT_MS)
        p.begin(t)
        _await(s, lambda: _state(p), "CompleteAbort", TIMED_OUT_SECONDS)  # noqa: B023 (called at once)
        p.init(f"{kind}, known epoch", producer_id=p.id, producer_epoch=p.epoch)
        p.describe(f"{kind}, described")
        p.begin(t)
        p.end(True, f"{kind}, commits")


@case("init_producer_id", only=(5,))
def expiry(s: Script) -> None:
    """An idle transactional id is forgotten; one with an open transaction is not."""
    t = s.topic("t")
    idle, ended, opened = new_producer(s, "idle"), new_producer(s, "ended"), new_producer(s, "open")
    for p in (ended, opened):
        p.begin(t)
    ended.end()
    for p in (idle, ended):
        _await(s, lambda: _state(p), "", EXPIRED_SECONDS)  # noqa: B023 (called at once)
        p.describe(f"{p.name}, described")
        p.add(t, label=f"{p.name}, adds")
        p.end(label=f"{p.name}, commits")
        p.init(f"{p.name}, known epoch", producer_id=p.id, producer_epoch=p.epoch)
    opened.describe("open, described")
    opened.end(label="open, commits")


@case("init_producer_id", only=(5,))
def the_last_epochs(s: Script) -> None:
    """Epochs run out: then the transactional id gets a new producer id."""
    p, t = new_producer(s), s.topic("t")
    _use_up(s, p, EPOCH_MAX - 4)
    for _ in range(6):
        p.init(f"after epoch {p.epoch}")
        p.describe(f"after that, epoch {p.epoch}")
    p.begin(t)
    p.end(True, "commit")


@case("end_txn", only=(5,))
def the_last_epochs_by_ends(s: Script) -> None:
    """The same with the bump of every transaction."""
    p, t = new_producer(s, is_newer=True), s.topic("t")
    _use_up(s, p, EPOCH_MAX - 4)
    for number in range(6):
        p.begin(t)
        p.end(number % 2 == 0, f"number {number}")
        p.await_end(number % 2 == 0)
        p.describe(f"number {number}, described")
    read(s, "log", t)


def _use_up(s: Script, p: TransactionalProducer, epoch: int) -> None:
    """Bump the epoch until it is that, many requests at a time on one connection."""
    request = init_request(p.transactional_id)
    while p.epoch < epoch:
        count = min(IN_FLIGHT, epoch - p.epoch)
        sent = [s.send(request, over="epochs", api="init_producer_id", version=5) for _ in range(count)]
        for pending in sent:
            tree = s.receive(pending)
            if tree["error_code"] == OK:
                p.id, p.epoch = tree["producer_id"], tree["producer_epoch"]


@case("txn_offset_commit", only=(4, 5))
def consume_transform_produce(s: Script) -> None:
    source, sink, group = s.topic("source"), s.topic("sink"), new_group(s)
    s.fill(source, 3, 2)
    p = new_producer(s, is_newer=s.version >= 5)
    for number, is_commit in enumerate((True, False, True)):
        label = f"round {number}"
        p.begin(sink)
        if not p.is_newer:
            p.add_offsets(group, f"{label}: adding")
        p.commit_offsets(group, source, 2 * number + 2, f"{label}: offsets")
        p.end(is_commit, f"{label}: end")
        p.await_end(is_commit)
        offsets = {"groups": [{"group_id": group, "topics": None}], "require_stable": True}
        s.await_answer(
            lambda: s.tell(offsets, api="offset_fetch", version=8),  # noqa: B023 (called at once)
            lambda tree: "UNSTABLE_OFFSET_COMMIT(88)" not in str(tree),
        )
        s.ask(f"{label}: committed", offsets, api="offset_fetch", version=8)
    read(s, "sink", sink)


@case("produce", only=(11, 12))
def takeover(s: Script) -> None:
    """A second producer takes over in the middle of a transaction; the first gets no notice of it."""
    t = s.topic("t")
    first = new_producer(s, is_newer=s.version >= 12)
    first.begin(t)
    second = TransactionalProducer(s, is_newer=s.version >= 12)
    settled(s, init_request(second.transactional_id), "init", api="init_producer_id", version=5)
    second.init("init again")
    first.write(t, label="the first writes")
    first.end(label="the first commits")
    second.begin(t)
    first.write(t, label="the first writes again")
    first.end(False, "the first aborts")
    second.end(label="the second commits")
    second.await_end()
    read(s, "log", t)


@case("end_txn", only=(4, 5))
def topic_deleted_in_between(s: Script) -> None:
    """A partition that is gone needs no marker."""
    t, kept = s.topic("t"), s.topic("kept")
    p = new_producer(s, is_newer=s.version >= 5)
    p.begin(t)
    p.begin(kept)
    s.tell({"topics": [{"name": t.name}], "timeout": 10000}, api="delete_topics", version=6)
    s.await_applied()
    p.describe("deleted, described")
    p.write(t, label="deleted, written")
    p.end(True, "commit")
    p.await_end(True)
    p.describe("commit, described")
    read(s, "what was kept", kept)
