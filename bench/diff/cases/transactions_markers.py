"""WriteTxnMarkers as a broker or an administrator sends it, and DescribeProducers."""

from __future__ import annotations

from typing import Any

from bench.diff.batches import batch, records
from bench.diff.cases.producers import Producer
from bench.diff.script import Script, Topic, case
from bench.diff.transactions import TransactionalProducer, new_producer, read

NEVER_GIVEN_OUT = 987_654_321


def _marker(
    producer_id: int, epoch: int, *topics: tuple[str, list[int]], is_commit: bool = True, **more: Any
) -> dict[str, Any]:
    return {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": is_commit,
        "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics],
        "coordinator_epoch": 0,
        "transaction_version": 0,
        **more,
    }


def producers(s: Script, label: str, *topics: tuple[str, list[int]]) -> None:
    request = {"topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics]}
    s.ask(label, request, api="describe_producers", version=0, keep=_sorted)


def _sorted(tree: dict[str, Any]) -> dict[str, Any]:
    """Kafka keeps topics, partitions and producers in hash maps."""
    topics = []
    for topic in sorted(tree["topics"], key=lambda one: str(one["name"])):
        parts = [
            {
                **part,
                "active_producers": sorted(part["active_producers"], key=lambda one: int(one["producer_id"])),
            }
            for part in sorted(topic["partitions"], key=lambda one: int(one["partition_index"]))
        ]
        topics.append({**topic, "partitions": parts})
    return {**tree, "topics": topics}


@case("write_txn_markers")
def markers(s: Script) -> None:
    t, p = s.topic("t", 2), new_producer(s)
    p.init()
    p.begin(t)

    def ask(label: str, marker: dict[str, Any]) -> None:
        s.ask(label, {"markers": [marker]}, keep=_by_producer)
        producers(s, f"{label}, producers", (t.name, [0]))

    here = (t.name, [0])
    ask("stale epoch", _marker(p.id, p.epoch - 1, here))
    ask("unknown partition", _marker(p.id, p.epoch, (t.name, [9])))
    ask("unknown topic", _marker(p.id, p.epoch, (s.name("missing"), [0])))
    ask("good and unknown", _marker(p.id, p.epoch, (t.name, [1, 9])))
    ask("no partitions", _marker(p.id, p.epoch))
    ask("another producer", _marker(NEVER_GIVEN_OUT, 3, here))
    ask("abort, coordinator epoch 5", _marker(p.id, p.epoch, here, is_commit=False, coordinator_epoch=5))
    ask("abort again", _marker(p.id, p.epoch, here, is_commit=False, coordinator_epoch=5))
    ask("stale coordinator epoch", _marker(p.id, p.epoch, here, coordinator_epoch=4))
    ask("commit of nothing", _marker(p.id, p.epoch, here, coordinator_epoch=5))
    ask("future producer epoch", _marker(p.id, p.epoch + 3, here, coordinator_epoch=6))
    ask("old producer epoch", _marker(p.id, p.epoch, here, coordinator_epoch=6))
    ask("negative producer", _marker(-1, -1, here))
    ask("negative coordinator epoch", _marker(p.id, p.epoch + 3, here, coordinator_epoch=-1))
    s.ask("none", {"markers": []})
    p.describe("described")
    read(s, "log", t)
    read(s, "the other partition", t, partition=1)


@case("write_txn_markers", since=2)
def markers_of_versions(s: Script) -> None:
    """From transaction version 2 on a marker has an epoch of its own, above that of the records."""
    t = s.topic("t", 6)
    for partition, (label, transaction_version, more) in enumerate(
        (
            ("version 0, same epoch", 0, 0),
            ("version 1, same epoch", 1, 0),
            ("version 2, same epoch", 2, 0),
            ("version 2, next epoch", 2, 1),
            ("version 1, next epoch", 1, 1),
            ("version 9, next epoch", 9, 1),
        )
    ):
        p = new_producer(s, f"p{partition}", is_newer=True)
        p.begin(t, partition)
        where = (t.name, [partition])
        marker = _marker(p.id, p.epoch + more, where, transaction_version=transaction_version)
        s.ask(label, {"markers": [marker]})
        producers(s, f"{label}, producers", where)
        read(s, label, t, partition=partition)


@case("write_txn_markers")
def several_markers(s: Script) -> None:
    t = s.topic("t")
    a, b = new_producer(s, "a"), new_producer(s, "b")
    a.begin(t)
    b.begin(t)
    here = (t.name, [0])

    def ask(label: str, *markers: dict[str, Any]) -> None:
        s.ask(label, {"markers": list(markers)}, keep=_by_producer)

    ask("both", _marker(a.id, a.epoch, here), _marker(b.id, b.epoch, here, is_commit=False))
    ask("the same twice", _marker(a.id, a.epoch, here), _marker(a.id, a.epoch, here))
    read(s, "log", t)
    ask("one is refused", _marker(a.id, a.epoch - 1, here), _marker(b.id, b.epoch, here))


def _by_producer(tree: dict[str, Any]) -> dict[str, Any]:
    """Kafka collects the answers in hash maps."""
    found = []
    for marker in sorted(tree["markers"], key=lambda one: int(one["producer_id"])):
        topics = [
            {**topic, "partitions": sorted(topic["partitions"], key=lambda p: int(p["partition_index"]))}
            for topic in marker["topics"]
        ]
        found.append({**marker, "topics": topics})
    return {**tree, "markers": found}


@case("write_txn_markers", only_ends=True)
def abort_of_a_hanging_transaction(s: Script) -> None:
    """As `kafka-transactions.sh abort` does it, with what DescribeProducers says."""
    t, p = s.topic("t"), new_producer(s)
    p.begin(t)
    producers(s, "hanging", (t.name, [0]))
    s.ask(
        "abort", {"markers": [_marker(p.id, p.epoch, (t.name, [0]), is_commit=False, coordinator_epoch=-1)]}
    )
    producers(s, "aborted", (t.name, [0]))
    p.write(t, label="the producer goes on")
    p.describe("described")
    p.end(label="and commits")
    p.await_end()
    producers(s, "committed", (t.name, [0]))
    read(s, "log", t)


@case("describe_producers")
def describe_producers(s: Script) -> None:
    t, u = s.topic("t", 2), s.topic("u")
    producers(s, "of nothing", (t.name, [0, 1]))
    producers(s, "unknown topic", (s.name("missing"), [0]))
    producers(s, "unknown partition", (t.name, [9, 0]))
    producers(s, "negative partition", (t.name, [-1]))
    producers(s, "invalid name", ("not a name", [0]))
    producers(s, "no partitions", (t.name, []))
    producers(s, "nothing")
    producers(s, "the same twice", (t.name, [0, 0]))
    s.produce(t, batch(records(1)))
    producers(s, "of a producer without an id", (t.name, [0]))
    s.produce(u, batch(records(2), producer_id=Producer(s, u).id, producer_epoch=0, base_sequence=0))
    producers(s, "of an idempotent one", (u.name, [0]))
    p, q = new_producer(s, "p"), new_producer(s, "q", is_newer=True)
    _life(s, t, p, q)


def _life(s: Script, t: Topic, p: TransactionalProducer, q: TransactionalProducer) -> None:
    p.begin(t)
    producers(s, "open", (t.name, [0]))
    q.begin(t)
    q.write(t, count=3)
    producers(s, "two open", (t.name, [0, 1]))
    q.end()
    q.await_end()
    producers(s, "one committed", (t.name, [0]))
    p.end(False)
    p.await_end(False)
    producers(s, "both ended", (t.name, [0]))
    q.init()
    producers(s, "after a new epoch", (t.name, [0]))
    p.add(t, 1)
    p.end()
    p.await_end()
    producers(s, "marker without records", (t.name, [1]))
