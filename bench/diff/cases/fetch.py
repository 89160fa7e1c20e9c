"""Fetch: offsets, limits, waiting, sessions, leader epochs."""

from __future__ import annotations

import uuid
from typing import Any

from bench.diff.batches import batch, records
from bench.diff.cases.topics import UNKNOWN_ID
from bench.diff.script import Script, Topic, case

BIG = 50_000_000


def part(offset: int = 0, partition: int = 0, **more: Any) -> dict[str, Any]:
    return {"partition": partition, "fetch_offset": offset, "partition_max_bytes": BIG, **more}


def entry(topic: Topic, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"topic": topic.name, "topic_id": topic.id, "partitions": list(parts) or [part()]}


def fetch(*topics: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "max_wait": 100,
        "min_bytes": 0,
        "max_bytes": BIG,
        "topics": list(topics),
        **more,
    }


@case("fetch")
def offsets(s: Script) -> None:
    t = s.topic("x", 2)
    s.fill(t)
    s.ask("from the start", fetch(entry(t)))
    s.ask("second batch", fetch(entry(t, part(2))))
    s.ask("inside the second batch", fetch(entry(t, part(3))))
    s.ask("at the end", fetch(entry(t, part(6))))
    s.ask("beyond the end", fetch(entry(t, part(7))))
    s.ask("negative", fetch(entry(t, part(-1))))
    s.ask("empty partition", fetch(entry(t, part(0, 1))))
    s.ask("both partitions", fetch(entry(t, part(4), part(0, 1))))
    s.ask("read committed", fetch(entry(t, part(4)), isolation_level=1))
    s.ask("unknown isolation level", fetch(entry(t, part(4)), isolation_level=2))
    s.ask("no topics", fetch())
    s.ask("no partitions", fetch({"topic": t.name, "topic_id": t.id, "partitions": []}))
    s.ask("partition twice", fetch(entry(t, part(4), part(2))))


@case("fetch")
def unknown(s: Script) -> None:
    t = s.topic("x")
    s.fill(t, 1, 1)
    missing = Topic(s.name("missing"), UNKNOWN_ID)
    s.ask("topic", fetch(entry(missing)))
    s.ask("partition", fetch(entry(t, part(0, 5))))
    s.ask("negative partition", fetch(entry(t, part(0, -1))))
    s.ask("beside a good one", fetch(entry(missing), entry(t)))
    s.ask("invalid name, zero id", fetch(entry(Topic("not a name", uuid.UUID(int=0)))))


@case("fetch")
def limits(s: Script) -> None:
    t = s.topic("x", 2)
    for partition in (0, 1):
        s.produce(t, batch(records(1, size=1000)), partition)
        s.produce(t, batch(records(1, size=1000)), partition)
    s.ask("partition limit below a batch", fetch(entry(t, part(0, partition_max_bytes=100))))
    s.ask("partition limit 0", fetch(entry(t, part(0, partition_max_bytes=0))))
    s.ask("partition limit negative", fetch(entry(t, part(0, partition_max_bytes=-1))))
    s.ask("partition limit one and a half batches", fetch(entry(t, part(0, partition_max_bytes=1600))))
    s.ask("second of two gets nothing", fetch(entry(t, part(), part(0, 1)), max_bytes=100))
    s.ask("second of two gets what is left", fetch(entry(t, part(), part(0, 1)), max_bytes=3300))
    s.ask("max bytes 0", fetch(entry(t, part(), part(0, 1)), max_bytes=0))
    s.ask("max bytes negative", fetch(entry(t), max_bytes=-1))
    s.ask("min bytes above max bytes", fetch(entry(t), min_bytes=BIG, max_bytes=100, max_wait=50))
    s.ask("min bytes negative", fetch(entry(t), min_bytes=-5))


@case("fetch", only_ends=True)
def waiting(s: Script) -> None:
    """Whether a request waits shows in its time, so only `at least` and `far less than` are recorded."""
    t = s.topic("x")
    s.fill(t, 1, 1)
    s.ask_timed("at the end, no minimum", fetch(entry(t, part(1)), max_wait=3000), 2.0)
    s.ask_timed("at the end, one byte", fetch(entry(t, part(1)), max_wait=600, min_bytes=1), 0.5)
    s.ask_timed("data, one byte", fetch(entry(t), max_wait=3000, min_bytes=1), 2.0)
    s.ask_timed("data, more than there is", fetch(entry(t), max_wait=600, min_bytes=9999), 0.5)
    s.ask_timed("an error does not wait", fetch(entry(t, part(99)), max_wait=3000, min_bytes=1), 2.0)
    s.ask_timed("max wait 0", fetch(entry(t, part(1)), max_wait=0, min_bytes=1), 2.0)
    s.ask_timed("max wait negative", fetch(entry(t, part(1)), max_wait=-1, min_bytes=1), 2.0)
    s.ask_timed("no topics", fetch(max_wait=3000, min_bytes=1), 2.0)


@case("fetch", since=7)
def sessions(s: Script) -> None:
    t, other = s.topic("x", 2), s.topic("other")
    s.fill(t, 1, 1)
    full = fetch(entry(t, part(), part(0, 1)), session_epoch=0)
    opened = s.ask("full", full)
    session = opened["session_id"]

    def again(
        label: str, epoch: int, *topics: dict[str, Any], session_id: int = session, **more: Any
    ) -> None:
        s.ask(label, fetch(*topics, session_id=session_id, session_epoch=epoch, max_wait=20, **more))

    again("incremental, nothing new", 1)
    again("incremental, from the end", 2, entry(t, part(1)))
    again("epoch repeated", 2)
    again("epoch skipped", 7)
    s.produce(t, batch(records(1)))
    again("new data", 3)
    again("new data not read, again", 4)
    again("add a topic", 5, entry(other))
    forgotten = [{"topic": t.name, "topic_id": t.id, "partitions": [0]}]
    again("forget a partition", 6, forgotten_topics_data=forgotten)
    again("after forgetting", 7)
    unknown = [{"topic": t.name, "topic_id": t.id, "partitions": [77]}]
    again("forget what is not there", 8, forgotten_topics_data=unknown)
    again("out of range", 9, entry(t, part(99)))
    again("out of range, again", 10)
    again("unknown partition", 11, entry(t, part(0, 42)))
    again("unknown session", 1, session_id=session ^ 0x5555)
    again("epoch below -1", -2)
    again("close", -1, entry(t))
    again("after closing", 12)
    s.ask("no session wanted", fetch(entry(t), session_epoch=-1))
    s.ask("session id without epoch", fetch(entry(t), session_id=77, session_epoch=0))
    s.ask("epoch 1 without a session", fetch(entry(t), session_id=0, session_epoch=1))
    s.ask("empty full request", fetch(session_epoch=0))


@case("fetch", since=9)
def leader_epochs(s: Script) -> None:
    t = s.topic("x")
    s.fill(t, 2, 1)
    for epoch in (0, 5, -1, -2):
        s.ask(f"current leader epoch {epoch}", fetch(entry(t, part(1, current_leader_epoch=epoch))))
    s.ask("epoch 5 out of range", fetch(entry(t, part(99, current_leader_epoch=5))))
    if s.version >= 12:
        for epoch in (0, 3, -1):
            s.ask(f"last fetched epoch {epoch}", fetch(entry(t, part(1, last_fetched_epoch=epoch))))
        s.ask("last fetched epoch 0 beyond the end", fetch(entry(t, part(9, last_fetched_epoch=0))))
        s.ask(
            "last fetched epoch 3, with current epoch",
            fetch(entry(t, part(1, last_fetched_epoch=3, current_leader_epoch=0))),
        )


@case("fetch", since=11)
def racks(s: Script) -> None:
    t = s.topic("x")
    s.fill(t, 1, 1)
    s.ask("a rack that no broker has", fetch(entry(t), rack_id="elsewhere"))


@case("fetch")
def log_start(s: Script) -> None:
    t = s.topic("x")
    s.fill(t)
    remove = {
        "topics": [{"name": t.name, "partitions": [{"partition_index": 0, "offset": 3}]}],
        "timeout": 1000,
    }
    s.tell(remove, api="delete_records", version=2)
    s.ask("below it", fetch(entry(t, part(2))))
    s.ask("at it, inside a batch", fetch(entry(t, part(3))))
    s.ask("above it", fetch(entry(t, part(4))))
    s.ask("consumer names a log start", fetch(entry(t, part(4, log_start_offset=1))))


@case("fetch", only_ends=True)
def as_a_follower(s: Script) -> None:
    """A consumer's request that claims to be a replica."""
    t = s.topic("x")
    s.fill(t, 1, 1)
    for replica in (s.facts.node_id, s.facts.node_id + 100, -2):
        label = {s.facts.node_id: "the leader itself", -2: "debugging consumer"}.get(
            replica, "no such replica"
        )
        state = {"replica_id": replica, "replica_epoch": -1}
        s.ask(label, fetch(entry(t), replica_id=replica, replica_state=state))
