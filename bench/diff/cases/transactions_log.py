"""Transactional Produce, and what Fetch and ListOffsets show of transactions by isolation level."""

from __future__ import annotations

from typing import Any

from bench.diff.batches import CONTROL, TRANSACTIONAL, batch, records
from bench.diff.cases.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, by_time
from bench.diff.script import Script, Topic, case
from bench.diff.transactions import (
    READ_COMMITTED,
    TransactionalProducer,
    fetch_request,
    first_ms,
    in_every_state,
    new_producer,
    read,
    settled,
)

ADDING_SINCE = 12
TOPIC_IDS_SINCE = 13
NEVER_GIVEN_OUT = 987_654_321


def _producer(s: Script, name: str = "tx") -> TransactionalProducer:
    """Of the kind that sends this version of Produce."""
    return new_producer(s, name, is_newer=s.version >= ADDING_SINCE)


@case("produce")
def transactional_in_states(s: Script) -> None:
    t = s.topic("t", 2)
    for label, p in in_every_state(s, t, is_newer=s.version >= ADDING_SINCE):
        p.write(t, 1, label=f"{label}, not added")
        p.add(t, 1)
        p.write(t, 1, label=f"{label}, added")
        p.write(t, 1, label=f"{label}, next")
        p.describe(f"{label}, described")
    read(s, "log", t, partition=1)


@case("produce")
def transactional_after_the_end(s: Script) -> None:
    """The same partition again without having added it again."""
    for is_commit, name in ((True, "commit"), (False, "abort")):
        t = s.topic(name)
        p = _producer(s, name)
        p.begin(t)
        before = p.identity()
        p.end(is_commit)
        p.await_end(is_commit)
        stale = {"producer_epoch": before["producer_epoch"]}
        p.write(t, label=f"after {name}")
        p.write(t, label=f"after {name}, old epoch", sequence=1, header=stale)
        p.describe(f"after {name}, described")
        read(s, name, t)


@case("produce")
def transactional_by_the_wrong_producer(s: Script) -> None:
    t = s.topic("t", 4)
    p = _producer(s)
    p.init()
    for partition, state in ((0, "first batch"), (1, "open")):
        p.add(t, partition)
        if state == "open":
            p.write(t, partition)
        for label, header in {
            "stale epoch": {"producer_epoch": p.epoch - 1},
            "future epoch": {"producer_epoch": p.epoch + 1},
            "another id": {"producer_id": NEVER_GIVEN_OUT},
        }.items():
            p.write(t, partition, label=f"{state}, {label}", sequence=0, header=header)
    p.write(t, 2, label="unknown transactional id", transactional_id=s.name("unknown"))
    p.write(t, 2, label="empty transactional id", transactional_id="")
    p.write(t, 2, label="no transactional id", transactional_id=None)
    nobody = {"producer_id": -1, "producer_epoch": -1}
    p.write(t, 3, label="transactional without a producer", sequence=-1, header=nobody)
    p.describe("described")
    for partition in range(3):
        read(s, f"partition {partition}", t, partition=partition)


@case("produce")
def mixed_batches(s: Script) -> None:
    """What is not transactional, from a transactional producer, and the other way round."""
    t = s.topic("t", 4)
    p = _producer(s)
    p.write(t, 0, label="plain, before", header={"flags": 0})
    p.begin(t, 1)
    p.write(t, 1, label="plain, in an open transaction", header={"flags": 0})
    p.write(t, 1, label="plain, without a transactional id", header={"flags": 0}, transactional_id=None)
    p.write(t, 1, label="transactional, without a transactional id", transactional_id=None)
    nobody = {"producer_id": -1, "producer_epoch": -1, "flags": 0}
    p.write(t, 1, label="by nobody", sequence=-1, header=nobody)
    p.write(t, 1, label="control batch", header={"flags": TRANSACTIONAL | CONTROL})
    p.add(t, 2)
    two = p.batch(0) + p.batch(1)
    settled(s, p.write_request(t, 2, two), "two batches")
    both = p.write_request(t, 3, p.batch(0))
    both["topic_data"][0]["partition_data"].append({"index": 2, "records": p.batch(0, flags=0)})
    settled(s, both, "transactional and plain partitions", keep=_by_partition)
    p.describe("described")
    p.end(False)
    p.await_end(False)
    for partition in range(4):
        read(s, f"partition {partition}", t, partition=partition)


def _by_partition(tree: dict[str, Any]) -> dict[str, Any]:
    """Kafka collects the answers of the partitions in a hash map."""
    responses = [
        {**topic, "partition_responses": sorted(topic["partition_responses"], key=lambda p: int(p["index"]))}
        for topic in tree["responses"]
    ]
    return {**tree, "responses": responses}


@case("produce")
def transactional_sequences(s: Script) -> None:
    t = s.topic("t")
    p = _producer(s)
    p.add(t)
    p.write(t, label="not from 0", sequence=5)
    p.write(t, label="from 0", sequence=0)
    p.write(t, label="again", sequence=0)
    p.write(t, label="gap", sequence=7)
    p.write(t, label="next", sequence=1)
    p.end()
    p.await_end()
    p.add(t)
    p.write(t, label="next transaction, goes on", sequence=2)
    p.write(t, label="next transaction, from 0", sequence=0)
    p.write(t, label="next transaction, goes on after that", sequence=1)
    p.end()
    p.await_end()
    read(s, "log", t)


@case("produce")
def transactional_to_nowhere(s: Script) -> None:
    t, p = s.topic("t"), _producer(s)
    missing = Topic(s.name("missing"), t.id)
    if s.version < TOPIC_IDS_SINCE:
        p.write(missing, label="unknown topic")
    p.write(t, 9, label="unknown partition")
    p.add(t)
    for acks in (0, 1):
        if acks == 0:
            s.ask_without_reply("acks 0", p.write_request(t, 0, p.batch(0), acks=0))
        else:
            p.write(t, label=f"acks {acks}", sequence=1, acks=acks)
    p.describe("described")


def _looks(s: Script, label: str, t: Topic, offsets: tuple[int, ...] = (0,)) -> None:
    for level, name in ((0, "uncommitted"), (READ_COMMITTED, "committed")):
        for offset in offsets:
            s.ask(f"{label}, {name} from {offset}", fetch_request(t, offset, isolation_level=level))


@case("fetch")
def by_isolation(s: Script) -> None:
    t = s.topic("t")
    first, second = new_producer(s, "first"), new_producer(s, "second", is_newer=True)
    plain = batch(records(1, timestamp_ms=first_ms(s)))
    s.produce(t, plain)
    first.begin(t)
    _looks(s, "open", t)
    s.produce(t, plain)
    second.begin(t)
    second.end(False)
    second.await_end(False)
    _looks(s, "one of two aborted", t)
    first.write(t)
    first.end(True)
    first.await_end(True)
    _looks(s, "none open", t, (0, 3, 4, 5, 6, 7))
    first.begin(t)
    first.end(False)
    first.await_end(False)
    second.begin(t)
    second.write(t, count=3)
    _looks(s, "one open", t, (0, 7, 8, 9, 10, 13))
    s.ask("beyond the end", fetch_request(t, 14))
    second.end(False)
    second.await_end(False)
    _looks(s, "all ended", t, (0, 3, 5, 8, 10, 13, 14))


@case("fetch", only_ends=True)
def waiting_for_the_end(s: Script) -> None:
    """A reader of what is committed waits for the marker, not for records."""
    t, p = s.topic("t"), new_producer(s)
    for is_commit, name in ((True, "commit"), (False, "abort")):
        offset = 0 if is_commit else 3
        p.begin(t)
        request = fetch_request(t, offset) | {"max_wait": 8000, "min_bytes": 1}
        pending = s.send(request, over="reader")
        p.write(t)
        p.end(is_commit)
        s.receive(pending, name)


@case("list_offsets")
def by_isolation_of_offsets(s: Script) -> None:
    t = s.topic("t")
    p = new_producer(s)

    def ask(state: str) -> None:
        for label, timestamp in {
            "latest": LATEST,
            "earliest": EARLIEST,
            "largest timestamp": MAX_TIMESTAMP,
            "at the first": first_ms(s),
            "at the second": first_ms(s) + 1,
            "after all": s.wall_ms + 2_000_000,
        }.items():
            for level, name in ((0, "uncommitted"), (READ_COMMITTED, "committed")):
                s.ask(f"{state}: {label}, {name}", by_time(t.name, timestamp, isolation_level=level))

    s.produce(t, batch(records(2, timestamp_ms=first_ms(s))))
    ask("plain")
    p.begin(t)
    p.write(t, count=2)
    ask("open")
    p.end(False)
    p.await_end(False)
    ask("aborted")
    p.begin(t)
    s.produce(t, batch(records(1, timestamp_ms=s.wall_ms + 1_000_000)))
    ask("open again")
    p.end()
    p.await_end()
    ask("committed")


@case("fetch", only_ends=True)
def aborted_in_a_row(s: Script) -> None:
    """The list of aborted transactions that overlap what is read, with small answers."""
    t = s.topic("t", segment_bytes="1048576")
    p, q = new_producer(s, "p"), new_producer(s, "q", is_newer=True)
    for number in range(4):
        p.begin(t)
        q.begin(t)
        q.end(number % 2 == 0)
        q.await_end(number % 2 == 0)
        p.end(number == 3)
        p.await_end(number == 3)
    for offset in range(0, 17, 3):
        request = fetch_request(t, offset)
        s.ask(f"all from {offset}", request)
        request["topics"][0]["partitions"][0]["partition_max_bytes"] = 1
        s.ask(f"one batch from {offset}", request)


@case("delete_records")
def of_an_open_transaction(s: Script) -> None:
    t = s.topic("t")
    p = new_producer(s)

    def delete(label: str, offset: int) -> None:
        parts = [{"partition_index": 0, "offset": offset}]
        s.ask(label, {"topics": [{"name": t.name, "partitions": parts}], "timeout": 5000})
        read(s, label, t, offset=max(offset, 0))

    s.produce(t, batch(records(2, timestamp_ms=first_ms(s))))
    p.begin(t)
    p.write(t, count=2)
    delete("into the transaction", 3)
    delete("up to the high watermark", 5)
    p.end(False)
    p.await_end(False)
    delete("the end", 6)
    described: dict[str, Any] = {"topics": [{"name": t.name, "partition_indexes": [0]}]}
    s.ask("producers", described, api="describe_producers", version=0)
