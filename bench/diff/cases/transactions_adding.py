"""AddPartitionsToTxn, by clients and by brokers, and AddOffsetsToTxn."""

from __future__ import annotations

from typing import Any

from bench.diff.members import new_group
from bench.diff.script import SILENT_SECONDS, Script, case
from bench.diff.transactions import (
    TransactionalProducer,
    adding_request,
    in_every_state,
    new_producer,
    settled,
)

BATCHED_SINCE = 4
NEVER_GIVEN_OUT = 987_654_321
Partitions = list[tuple[str, list[int]]]


def _add(
    s: Script,
    label: str,
    p: TransactionalProducer,
    partitions: Partitions,
    *,
    verify_only: bool = False,
    **who: Any,
) -> None:
    identity = p.identity(**who)
    request = adding_request(
        s.version,
        identity["transactional_id"],
        identity["producer_id"],
        identity["producer_epoch"],
        partitions,
        verify_only=verify_only,
    )
    settled(s, request, label, keep=sorted_results)


def sorted_results(tree: dict[str, Any]) -> dict[str, Any]:
    """Kafka keeps topics and partitions of a transaction in hash maps."""
    if "results_by_transaction" in tree:
        listed = sorted(tree["results_by_transaction"], key=lambda one: str(one["transactional_id"]))
        return {**tree, "results_by_transaction": [_sorted_topics(one, "topic_results") for one in listed]}
    return _sorted_topics(tree, "results_by_topic_v3_and_below")


def _sorted_topics(tree: dict[str, Any], name: str) -> dict[str, Any]:
    topics = [
        {
            **one,
            "results_by_partition": sorted(
                one["results_by_partition"], key=lambda p: int(p["partition_index"])
            ),
        }
        for one in tree[name]
    ]
    return {**tree, name: sorted(topics, key=lambda topic: str(topic["name"]))}


@case("add_partitions_to_txn")
def add_partitions(s: Script) -> None:
    t, u, missing = s.topic("t", 3), s.topic("u"), s.name("missing")
    new_group(s)  # so that there is a topic of the groups
    p = new_producer(s)
    _add(s, "one", p, [(t.name, [0])])
    p.describe("one, described")
    _add(s, "again", p, [(t.name, [0])])
    _add(s, "more", p, [(t.name, [0, 2]), (u.name, [0])])
    p.describe("more, described")
    _add(s, "nothing", p, [])
    _add(s, "no partitions", p, [(t.name, [])])
    _add(s, "the same twice", p, [(t.name, [1, 1])])
    _add(s, "the same topic twice", p, [(t.name, [1]), (t.name, [2])])
    _add(s, "unknown topic", p, [(missing, [0])])
    _add(s, "unknown partition", p, [(t.name, [9])])
    _add(s, "negative partition", p, [(t.name, [-1])])
    _add(s, "good and unknown", p, [(t.name, [1]), (missing, [0])])
    _add(s, "invalid name", p, [("not a name", [0])])
    _add(s, "internal topic", p, [("__consumer_offsets", [0])])
    p.describe("all, described")


@case("add_partitions_to_txn")
def add_partitions_by_the_wrong_producer(s: Script) -> None:
    t = s.topic("t")
    missing = s.name("missing")
    p = new_producer(s)
    p.init()
    for state in ("empty", "ongoing"):
        if state == "ongoing":
            p.add(t)
        _add(s, f"{state}, stale epoch", p, [(t.name, [0])], producer_epoch=p.epoch - 1)
        _add(s, f"{state}, future epoch", p, [(t.name, [0])], producer_epoch=p.epoch + 1)
        _add(s, f"{state}, negative epoch", p, [(t.name, [0])], producer_epoch=-1)
        _add(s, f"{state}, another id", p, [(t.name, [0])], producer_id=NEVER_GIVEN_OUT)
        _add(s, f"{state}, negative id", p, [(t.name, [0])], producer_id=-1)
        _add(s, f"{state}, stale epoch and unknown topic", p, [(missing, [0])], producer_epoch=p.epoch - 1)
        _add(s, f"{state}, stale epoch and nothing", p, [], producer_epoch=p.epoch - 1)
    _add(s, "unknown transactional id", p, [(t.name, [0])], transactional_id=s.name("unknown"))
    _add(s, "empty transactional id", p, [(t.name, [0])], transactional_id="")
    p.describe("described")


@case("add_partitions_to_txn")
def add_partitions_in_states(s: Script) -> None:
    topic, other = s.topic("t"), s.topic("other")
    for is_newer, kind in ((False, "older"), (True, "newer")):
        for label, p in in_every_state(s, topic, f"{kind} client, ", is_newer=is_newer):
            _add(s, f"{label}, nothing", p, [])
            p.describe(f"{label}, nothing, described")
            _add(s, f"{label}, one", p, [(other.name, [0])])
            p.describe(f"{label}, one, described")


@case("add_partitions_to_txn", since=BATCHED_SINCE)
def verify_partitions(s: Script) -> None:
    """The question that the leader of a partition asks of the coordinator."""
    topic, other, missing = s.topic("t", 2), s.topic("other"), s.name("missing")
    for label, p in in_every_state(s, topic):
        _add(s, f"{label}, added", p, [(topic.name, [0])], verify_only=True)
        _add(s, f"{label}, not added", p, [(other.name, [0])], verify_only=True)
        _add(s, f"{label}, both", p, [(topic.name, [0]), (other.name, [0])], verify_only=True)
        _add(s, f"{label}, unknown topic", p, [(missing, [0])], verify_only=True)
        _add(s, f"{label}, nothing", p, [], verify_only=True)
        _add(s, f"{label}, stale epoch", p, [(topic.name, [0])], verify_only=True, producer_epoch=p.epoch - 1)
        _add(
            s, f"{label}, future epoch", p, [(topic.name, [0])], verify_only=True, producer_epoch=p.epoch + 1
        )
        _add(s, f"{label}, another id", p, [(topic.name, [0])], verify_only=True, producer_id=NEVER_GIVEN_OUT)
        p.describe(f"{label}, described")
    p = TransactionalProducer(s, "unknown", id=5, epoch=0)
    _add(s, "unknown transactional id", p, [(topic.name, [0])], verify_only=True)


@case("add_partitions_to_txn", since=BATCHED_SINCE)
def add_partitions_of_several(s: Script) -> None:
    t, u = s.topic("t"), s.topic("u")
    a, b = new_producer(s, "a"), new_producer(s, "b")

    def ask(label: str, *wanted: tuple[TransactionalProducer, Partitions, bool]) -> None:
        listed = [
            adding_request(s.version, p.transactional_id, p.id, p.epoch, partitions, verify_only=only)[
                "transactions"
            ][0]
            for p, partitions, only in wanted
        ]
        settled(s, {"transactions": listed}, label, keep=sorted_results)

    ask("two", (a, [(t.name, [0])], False), (b, [(u.name, [0])], False))
    ask("one verifies, one adds", (a, [(t.name, [0])], True), (b, [(t.name, [0])], False))
    ask("both verify", (a, [(u.name, [0])], True), (b, [(t.name, [0])], True))
    unknown = TransactionalProducer(s, "unknown", id=5, epoch=0)
    ask("known and unknown", (a, [(t.name, [0])], False), (unknown, [(t.name, [0])], False))
    ask("the same twice", (a, [(t.name, [0])], False), (a, [(u.name, [0])], False))
    a.describe("a, described")
    b.describe("b, described")
    s.ask("none", {"transactions": []}, timeout_seconds=SILENT_SECONDS)


@case("add_offsets_to_txn")
def add_offsets(s: Script) -> None:
    group = new_group(s)
    p = new_producer(s)
    p.init()

    def ask(label: str, **more: Any) -> None:
        settled(s, p.identity(**{"group_id": group, **more}), label)

    ask("stale epoch", producer_epoch=p.epoch - 1)
    ask("future epoch", producer_epoch=p.epoch + 1)
    ask("another id", producer_id=NEVER_GIVEN_OUT)
    ask("negative id", producer_id=-1)
    ask("unknown transactional id", transactional_id=s.name("unknown"))
    ask("empty transactional id", transactional_id="")
    ask("empty group", group_id="")
    p.describe("before, described")
    ask("one")
    ask("again")
    s.note("partitions", len(p.describe()["transaction_states"][0]["topics"][0]["partitions"]))
    ask("ongoing, stale epoch", producer_epoch=p.epoch - 1)
    ask("ongoing, another id", producer_id=NEVER_GIVEN_OUT)
    ask("ongoing, another group", group_id=s.name("other"))


@case("add_offsets_to_txn")
def add_offsets_in_states(s: Script) -> None:
    topic, group = s.topic("t"), new_group(s)
    for is_newer, kind in ((False, "older"), (True, "newer")):
        for label, p in in_every_state(s, topic, f"{kind} client, ", is_newer=is_newer):
            p.add_offsets(group, label)
            state = p.describe()["transaction_states"][0]
            topics = sorted(str(one["topic"]) for one in state["topics"])
            s.note(f"{label}, described", {**state, "topics": topics})
