"""ListOffsets, DeleteRecords, OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import Any

from bench.diff.batches import T0_MS, Record, batch, records
from bench.diff.script import Script, Topic, case

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
)


def by_time(name: str, timestamp: int, partition: int = 0, **more: Any) -> dict[str, Any]:
    which = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1}
    in_partition = {k: v for k, v in more.items() if k == "current_leader_epoch"}
    rest = {k: v for k, v in more.items() if k not in in_partition}
    return {
        "replica_id": -1,
        "topics": [{"name": name, "partitions": [which | in_partition]}],
        "timeout": 5000,
        **rest,
    }


@case("list_offsets")
def special(s: Script) -> None:
    t, empty = s.topic("x"), s.topic("empty")
    s.fill(t)
    s.produce(t, batch(records(2, timestamp_ms=T0_MS + 1_000_000)))
    s.produce(t, batch(records(2, timestamp_ms=T0_MS - 5000)))
    named = {
        "latest": LATEST,
        "earliest": EARLIEST,
        "max timestamp": MAX_TIMESTAMP,
        "earliest local": EARLIEST_LOCAL,
        "latest tiered": LATEST_TIERED,
        "earliest pending upload": EARLIEST_PENDING_UPLOAD,
        "undefined -7": -7,
        "undefined -100": -100,
    }
    for label, timestamp in named.items():
        s.ask(label, by_time(t.name, timestamp))
        s.ask(f"{label}, of an empty log", by_time(empty.name, timestamp))
    s.ask("latest, read committed", by_time(t.name, LATEST, isolation_level=1))
    s.ask("max timestamp, read committed", by_time(t.name, MAX_TIMESTAMP, isolation_level=1))
    s.ask("unknown isolation level", by_time(t.name, LATEST, isolation_level=5))


@case("list_offsets")
def at_a_time(s: Script) -> None:
    t = s.topic("x")
    s.fill(t)
    zstd = s.topic("zstd")
    s.produce(zstd, batch(records(5), codec="zstd"))
    for label, timestamp in {
        "zero": 0,
        "long before": T0_MS - 1_000_000,
        "first record": T0_MS,
        "between records": T0_MS + 1500,
        "inside a batch": T0_MS + 3000,
        "last record": T0_MS + 5000,
        "after the last": T0_MS + 5001,
        "long after": T0_MS + 10**9,
    }.items():
        s.ask(label, by_time(t.name, timestamp))
        s.ask(f"{label}, compressed", by_time(zstd.name, timestamp))


@case("list_offsets", only_ends=True)
def out_of_order(s: Script) -> None:
    """Timestamps that go back and forth, within a batch and between batches."""
    t = s.topic("x")
    s.produce(t, batch([Record(timestamp_ms=T0_MS + d) for d in (50, 10, 90, 90, 20)]))
    s.produce(t, batch([Record(timestamp_ms=T0_MS + d) for d in (30, 70)]))
    s.produce(t, batch([Record(timestamp_ms=T0_MS + d) for d in (90, 5)]))
    for delta in (0, 10, 15, 51, 90, 91):
        s.ask(f"T0 + {delta}", by_time(t.name, T0_MS + delta))
    s.ask("max timestamp", by_time(t.name, MAX_TIMESTAMP))
    appended = s.topic("append-time", message_timestamp_type="LogAppendTime")
    s.produce(appended, batch(records(3)))
    s.ask("max timestamp, append time", by_time(appended.name, MAX_TIMESTAMP))
    s.ask("T0, append time", by_time(appended.name, T0_MS))


@case("list_offsets")
def unknown(s: Script) -> None:
    t = s.topic("x")
    s.ask("topic", by_time(s.name("missing"), LATEST))
    s.ask("partition", by_time(t.name, LATEST, 5))
    s.ask("negative partition", by_time(t.name, LATEST, -1))
    s.ask("invalid name", by_time("not a name", LATEST))
    twice = by_time(t.name, LATEST)
    twice["topics"][0]["partitions"] += by_time(t.name, EARLIEST)["topics"][0]["partitions"]
    s.ask("partition twice", twice)
    s.ask("no topics", {"replica_id": -1, "topics": []})
    s.ask("follower", by_time(t.name, LATEST) | {"replica_id": s.facts.node_id})
    s.ask("debugging", by_time(t.name, LATEST) | {"replica_id": -2})
    for epoch in (0, 7):
        s.ask(f"leader epoch {epoch}", by_time(t.name, LATEST, current_leader_epoch=epoch))


@case("list_offsets")
def after_deletion(s: Script) -> None:
    t = s.topic("x")
    s.fill(t)
    s.tell(_delete(t, 3), api="delete_records", version=2)
    s.ask("earliest", by_time(t.name, EARLIEST))
    s.ask("earliest local", by_time(t.name, EARLIEST_LOCAL))
    s.ask("time before the log start", by_time(t.name, T0_MS))
    s.tell(_delete(t, -1), api="delete_records", version=2)
    for label, timestamp in {
        "earliest": EARLIEST,
        "latest": LATEST,
        "max": MAX_TIMESTAMP,
        "T0": T0_MS,
    }.items():
        s.ask(f"all deleted: {label}", by_time(t.name, timestamp))


def _delete(topic: Topic, offset: int, partition: int = 0) -> dict[str, Any]:
    which = {"partition_index": partition, "offset": offset}
    return {"topics": [{"name": topic.name, "partitions": [which]}], "timeout": 5000}


@case("delete_records")
def delete_records(s: Script) -> None:
    t, missing = s.topic("x"), Topic(s.name("missing"), s.topic("y").id)
    s.fill(t)
    for label, offset in {
        "inside a batch": 3,
        "the same": 3,
        "lower": 1,
        "zero": 0,
        "beyond the end": 99,
        "negative": -2,
        "to the high watermark": -1,
        "to the high watermark again": -1,
    }.items():
        s.ask(label, _delete(t, offset))
    s.ask("unknown topic", _delete(missing, 0))
    s.ask("invalid topic", _delete(Topic("not a name", missing.id), 0))
    s.ask("unknown partition", _delete(t, 0, 9))
    s.ask("no topics", {"topics": []})
    compacted = s.topic("compacted", cleanup_policy="compact")
    s.fill(compacted)
    s.ask("compacted topic", _delete(compacted, 2))
    both = s.topic("both", cleanup_policy="compact,delete")
    s.fill(both)
    s.ask("compact,delete topic", _delete(both, 2))
    s.produce(t, batch(records(1)))
    s.ask("the log goes on", by_time(t.name, EARLIEST), api="list_offsets", version=7)


@case("offset_for_leader_epoch")
def epochs(s: Script) -> None:
    t, empty = s.topic("x"), s.topic("empty")
    s.fill(t)

    def request(
        name: str, epoch: int, current: int = -1, partition: int = 0, replica: int = -1
    ) -> dict[str, Any]:
        which = {"partition": partition, "leader_epoch": epoch, "current_leader_epoch": current}
        return {"replica_id": replica, "topics": [{"topic": name, "partitions": [which]}]}

    for epoch in (0, 1, -1, -2, 99):
        s.ask(f"epoch {epoch}", request(t.name, epoch))
        s.ask(f"epoch {epoch} of an empty log", request(empty.name, epoch))
    s.ask("current epoch right", request(t.name, 0, current=0))
    s.ask("current epoch too high", request(t.name, 0, current=4))
    s.ask("unknown topic", request(s.name("missing"), 0))
    s.ask("unknown partition", request(t.name, 0, partition=4))
    s.ask("invalid name", request("not a name", 0))
    s.ask("debugging replica", request(t.name, 0, replica=-2))
    s.ask("no topics", {"replica_id": -1, "topics": []})
