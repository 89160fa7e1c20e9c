"""EndTxn: in every state, repeated, contradicted, late, and by the wrong producer."""

from __future__ import annotations

from typing import Any

from bench.diff.script import Script, Topic, case
from bench.diff.transactions import TransactionalProducer, in_every_state, new_producer, read

BUMPING_SINCE = 5
NEVER_GIVEN_OUT = 987_654_321
RESULTS = ((True, "commit"), (False, "abort"))


def _producer(s: Script, name: str = "tx") -> TransactionalProducer:
    """Of the kind that sends this version of EndTxn."""
    return new_producer(s, name, is_newer=s.version >= BUMPING_SINCE)


@case("end_txn")
def end_without_a_transaction(s: Script) -> None:
    for is_commit, name in RESULTS:
        p = _producer(s, name)
        p.end(is_commit, f"{name}, empty")
        p.describe(f"{name}, empty, described")
        p.end(is_commit, f"{name}, empty, again")
        p.describe(f"{name}, empty, again, described")


@case("end_txn")
def end(s: Script) -> None:
    for is_commit, name in RESULTS:
        t = s.topic(name)
        p = _producer(s, name)
        p.begin(t)
        p.end(is_commit, name)
        p.await_end(is_commit)
        p.describe(f"{name}, described")
        p.end(is_commit, f"{name}, again")
        p.end(not is_commit, f"{name}, then the opposite")
        p.describe(f"{name}, in the end")
        p.init(f"{name}, then init")
        p.begin(t)
        p.end(not is_commit, f"{name}, the opposite of a new one")
        p.await_end(not is_commit)
        read(s, name, t)


@case("end_txn")
def end_of_nothing_but_partitions(s: Script) -> None:
    """Partitions were added, nothing was written: they get their marker all the same."""
    for is_commit, name in RESULTS:
        t = s.topic(name, 2)
        p = _producer(s, name)
        p.add(t, 0, 1)
        p.end(is_commit, name)
        p.await_end(is_commit)
        p.describe(f"{name}, described")
        read(s, name, t)


@case("end_txn")
def end_of_an_empty_list(s: Script) -> None:
    for is_commit, name in RESULTS:
        p = _producer(s, name)
        p.script.tell(
            {
                "v3_and_below_transactional_id": p.transactional_id,
                "v3_and_below_producer_id": p.id,
                "v3_and_below_producer_epoch": p.epoch,
            },
            api="add_partitions_to_txn",
            version=3,
        )
        p.end(is_commit, name)
        p.await_end(is_commit)
        p.describe(f"{name}, described")


@case("end_txn")
def end_by_the_wrong_producer(s: Script) -> None:
    t = s.topic("t")
    for label, p in in_every_state(s, t, is_newer=s.version >= BUMPING_SINCE):
        id_and_epoch = p.id, p.epoch

        def ask(name: str, **more: Any) -> None:
            p.id, p.epoch = id_and_epoch  # noqa: B023 (called in this round)
            p.end(True, f"{label}, {name}", **more)  # noqa: B023

        ask("stale epoch", producer_epoch=p.epoch - 1)
        ask("future epoch", producer_epoch=p.epoch + 1)
        ask("far future epoch", producer_epoch=p.epoch + 7)
        ask("negative epoch", producer_epoch=-1)
        ask("another id", producer_id=NEVER_GIVEN_OUT)
        ask("negative id", producer_id=-1)
        ask("unknown transactional id", transactional_id=s.name("unknown"))
        ask("empty transactional id", transactional_id="")
        p.describe(f"{label}, described")


@case("end_txn")
def late_end(s: Script) -> None:
    """An EndTxn that is delivered again once the next transaction has begun."""
    for is_commit, name in RESULTS:
        t = s.topic(name)
        p = _producer(s, name)
        p.begin(t)
        first = p.identity()
        p.end(is_commit)
        p.await_end(is_commit)
        p.begin(t)
        second = p.identity()
        p.end(is_commit, f"{name} again", **first)
        _again(p, second)
        p.end(not is_commit, f"the opposite of {name}", **first)
        _again(p, second)
        p.describe(f"{name}, described")
        p.end(is_commit, f"{name} of the second")
        p.end(is_commit, f"{name} of the first, after the second", **first)
        p.describe(f"{name}, in the end")
        read(s, name, t)


def _again(p: TransactionalProducer, identity: dict[str, Any]) -> None:
    p.id, p.epoch = identity["producer_id"], identity["producer_epoch"]


@case("end_txn")
def several_transactions(s: Script) -> None:
    t, u = s.topic("t", 2), s.topic("u")
    p = _producer(s)
    for number, is_commit in enumerate((True, False, True, True, False)):
        _write(p, t, u)
        p.end(is_commit, f"number {number}")
        p.await_end(is_commit)
        p.describe(f"number {number}, described")
    read(s, "first partition", t)
    read(s, "second partition", t, partition=1)
    read(s, "another topic", u)


def _write(p: TransactionalProducer, t: Topic, u: Topic) -> None:
    for topic, partition in ((t, 0), (t, 1), (u, 0)):
        p.begin(topic, partition)
        p.write(topic, partition, count=2)


@case("end_txn")
def mixed_clients(s: Script) -> None:
    """The same transactional id, first with the one kind of client and then with the other."""
    t = s.topic("t")
    p = new_producer(s, is_newer=s.version < BUMPING_SINCE)
    p.begin(t)
    p.end(True, "by this version")
    p.await_end(True)
    p.describe("by this version, described")
    p.init("init")
    p.is_newer = not p.is_newer
    p.begin(t)
    p.end(False, "by this version, the other kind")
    p.await_end(False)
    p.describe("the other kind, described")
    read(s, "log", t)
