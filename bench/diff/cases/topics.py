"""CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

import uuid
from typing import Any

from bench.diff.script import Script, case

UNKNOWN_ID = uuid.UUID(int=0x1234)


def topic(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas, **more}


def create(*topics: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"topics": list(topics), "timeout": 10000, **more}


def configs(**values: str | None) -> list[dict[str, Any]]:
    return [{"name": name.replace("_", "."), "value": value} for name, value in values.items()]


def assignments(*replicas: list[int], first: int = 0) -> list[dict[str, Any]]:
    return [{"partition_index": first + i, "broker_ids": ids} for i, ids in enumerate(replicas)]


@case("create_topics")
def good(s: Script) -> None:
    s.ask("one partition", create(topic(s.name("one"))))
    s.ask("three partitions", create(topic(s.name("three"), 3)))
    s.ask("two topics", create(topic(s.name("a")), topic(s.name("b"))))
    s.ask("no topics", create())
    s.ask("timeout 0", create(topic(s.name("no-wait")), timeout=0))
    if s.version >= 4:
        s.ask("default partitions and replicas", create(topic(s.name("defaults"), -1, -1)))
    node = s.facts.node_id
    s.ask("by assignment", create(topic(s.name("assigned"), -1, -1, assignments=assignments([node], [node]))))
    s.ask(
        "with configs",
        create(topic(s.name("set"), configs=configs(retention_ms="1000", segment_bytes="2000000"))),
    )


def _exists(name: str) -> dict[str, Any]:
    return {"topics": [{"name": name}], "allow_auto_topic_creation": False}


def _brief(tree: dict[str, Any]) -> dict[str, Any]:
    """Without the echo of every config, which other cases look at."""
    return {
        **tree,
        "topics": [
            {**t, "configs": f"<{len(t['configs'])}>"} if t.get("configs") else t for t in tree["topics"]
        ],
    }


@case("create_topics")
def again(s: Script) -> None:
    s.ask("first", create(topic(s.name("x"))), keep=_brief)
    s.ask("second", create(topic(s.name("x"))), keep=_brief)
    s.ask("second, validate only", create(topic(s.name("x")), validate_only=True), keep=_brief)
    s.ask("twice in one request", create(topic(s.name("y")), topic(s.name("y"), 2)), keep=_brief)
    s.ask(
        "twice, beside another",
        create(topic(s.name("y2")), topic(s.name("z2")), topic(s.name("y2"))),
        keep=_brief,
    )
    s.ask("dot", create(topic(s.name("dot.x"))), keep=_brief)
    s.ask("underscore collides with dot", create(topic(s.name("dot_x"))), keep=_brief)


@case("create_topics")
def validate_only(s: Script) -> None:
    s.ask("good", create(topic(s.name("good"), 2), validate_only=True), keep=_brief)
    s.ask("bad", create(topic(s.name("bad"), 0), validate_only=True), keep=_brief)
    s.ask("it does not exist", _exists(s.name("good")), api="metadata", version=12)


@case("create_topics")
def names(s: Script) -> None:
    bad = {
        "empty": "",
        "dot": ".",
        "dots": "..",
        "space": "a b",
        "slash": "a/b",
        "umlaut": "müll",
        "250 characters": "x" * 250,
        "newline": "a\nb",
        "colon": "a:b",
    }
    for label, name in bad.items():
        s.ask(label, create(topic(name)), keep=_brief)
    s.ask("longest", create(topic(s.name("x").ljust(249, "x")), validate_only=True), keep=_brief)
    s.ask("internal name", create(topic("__consumer_offsets"), validate_only=True), keep=_brief)
    s.ask("metadata topic", create(topic("__cluster_metadata"), validate_only=True), keep=_brief)
    s.ask("good beside bad", create(topic(s.name("fine")), topic("not fine")), keep=_brief)


@case("create_topics")
def counts(s: Script) -> None:
    for partitions in (0, -1, -2):
        if partitions != -1 or s.version >= 4:
            s.ask(
                f"{partitions} partitions", create(topic(s.name(f"p{partitions}"), partitions)), keep=_brief
            )
    s.ask("a billion partitions", create(topic(s.name("pmany"), 1_000_000_000)), keep=_brief)
    for replicas in (0, -1, -2, 3):
        if replicas != -1 or s.version >= 4:
            s.ask(f"{replicas} replicas", create(topic(s.name(f"r{replicas}"), 1, replicas)), keep=_brief)
    s.ask("0 partitions, 0 replicas", create(topic(s.name("both"), 0, 0)), keep=_brief)


@case("create_topics")
def manual_assignment(s: Script) -> None:
    node = s.facts.node_id
    for label, given, partitions, replicas in (
        ("partitions given too", assignments([node]), 1, -1),
        ("replicas given too", assignments([node]), -1, 1),
        ("both given too", assignments([node]), 1, 1),
        ("unknown broker", assignments([node + 100]), -1, -1),
        ("negative broker", assignments([-5]), -1, -1),
        ("broker twice", assignments([node, node]), -1, -1),
        ("no replicas", assignments([]), -1, -1),
        ("starts at 1", assignments([node], first=1), -1, -1),
        ("gap", [*assignments([node]), *assignments([node], first=2)], -1, -1),
        ("partition twice", [*assignments([node]), *assignments([node])], -1, -1),
        ("differing counts", assignments([node], [node, node + 1]), -1, -1),
    ):
        s.ask(
            label,
            create(topic(s.name("x"), partitions, replicas, assignments=given), validate_only=True),
            keep=_brief,
        )


@case("create_topics")
def topic_configs(s: Script) -> None:
    def ask(label: str, *entries: tuple[str, str | None]) -> None:
        given = [{"name": name, "value": value} for name, value in entries]
        s.ask(label, create(topic(s.name("x"), configs=given), validate_only=True))

    ask("unknown name", ("no.such.config", "1"))
    ask("empty name", ("", "1"))
    ask("not a number", ("retention.ms", "soon"))
    ask("empty number", ("retention.ms", ""))
    ask("spaces around a number", ("retention.ms", " 1000 "))
    ask("below the range", ("retention.ms", "-2"))
    ask("null value", ("retention.ms", None))
    ask("not in the list", ("cleanup.policy", "shred"))
    ask("list", ("cleanup.policy", "compact,delete"))
    ask("list with spaces", ("cleanup.policy", "compact, delete"))
    ask("empty list", ("cleanup.policy", ""))
    ask("list twice the same", ("cleanup.policy", "delete,delete"))
    ask("not a boolean", ("preallocate", "perhaps"))
    ask("upper case boolean", ("preallocate", "TRUE"))
    ask("number too large", ("segment.bytes", "99999999999"))
    ask("segment too small", ("segment.bytes", "10"))
    ask("segment of 1 MB", ("segment.bytes", "1048576"))
    ask("float", ("min.cleanable.dirty.ratio", "0.3"))
    ask("float too large", ("min.cleanable.dirty.ratio", "1.5"))
    ask("codec", ("compression.type", "zstd"))
    ask("unknown codec", ("compression.type", "brotli"))
    ask("min isr above replicas", ("min.insync.replicas", "2"))
    ask("min isr 0", ("min.insync.replicas", "0"))
    ask("same name twice", ("retention.ms", "1"), ("retention.ms", "2"))
    ask("timestamp type", ("message.timestamp.type", "LogAppendTime"))
    ask("timestamp type in lower case", ("message.timestamp.type", "logappendtime"))
    ask("removed in 4.0", ("message.format.version", "3.0"))
    ask("broker's name", ("log.retention.ms", "1000"))
    ask("one good one bad", ("retention.ms", "1000"), ("no.such.config", "1"))
    ask("throttled replicas", ("leader.replication.throttled.replicas", "0:1,1:1"))
    ask("bad throttled replicas", ("leader.replication.throttled.replicas", "what"))
    ask("remote storage", ("remote.storage.enable", "true"))
    ask("local retention above retention", ("retention.ms", "1000"), ("local.retention.ms", "2000"))


def _sorted(tree: dict[str, Any]) -> dict[str, Any]:
    """Kafka shuffles its answer, so that its order tells nothing about topics one may not see."""
    return {
        **tree,
        "responses": sorted(tree["responses"], key=lambda r: (str(r["name"]), str(r["error_code"]))),
    }


@case("delete_topics")
def delete(s: Script) -> None:
    first, second = s.topic("first"), s.topic("second")

    def request(*names: str) -> dict[str, Any]:
        return {"topic_names": list(names), "topics": [{"name": name} for name in names], "timeout": 10000}

    s.ask("one", request(first.name))
    s.ask("again", request(first.name))
    s.ask("good and bad", request(second.name, s.name("missing"), "not a name", ""), keep=_sorted)
    s.ask("none", request())
    third = s.topic("third")
    s.ask("twice in one request", request(third.name, third.name))
    s.ask("does it still exist", _exists(third.name), api="metadata", version=12)
    s.ask("timeout 0", {**request(s.topic("no-wait").name), "timeout": 0})


@case("delete_topics", since=6)
def delete_by_id(s: Script) -> None:
    first, second, third = s.topic("first"), s.topic("second"), s.topic("third")

    def request(*topics: dict[str, Any]) -> dict[str, Any]:
        return {"topics": list(topics), "timeout": 10000}

    s.ask("one", request({"topic_id": first.id}))
    s.ask("again", request({"topic_id": first.id}))
    s.ask("unknown", request({"topic_id": UNKNOWN_ID}))
    s.ask("name and id", request({"name": second.name, "topic_id": second.id}))
    s.ask("neither", request({}))
    s.ask(
        "by name and by id in one request",
        request({"name": third.name}, {"topic_id": third.id}),
        keep=_sorted,
    )
    s.ask("id twice", request({"topic_id": second.id}, {"topic_id": second.id}))


@case("create_partitions")
def create_partitions(s: Script) -> None:
    node = s.facts.node_id
    t = s.topic("x", 2)

    def request(
        count: int, given: list[list[int]] | None = None, name: str = t.name, **more: Any
    ) -> dict[str, Any]:
        new = None if given is None else [{"broker_ids": ids} for ids in given]
        return {"topics": [{"name": name, "count": count, "assignments": new}], "timeout": 10000, **more}

    s.ask("validate only", request(5, validate_only=True))
    s.ask("two more", request(4))
    s.ask("the same", request(4))
    s.ask("fewer", request(1))
    s.ask("zero", request(0))
    s.ask("negative", request(-1))
    s.ask("a billion", request(1_000_000_000))
    s.ask("by assignment", request(5, [[node]]))
    s.ask("too few assignments", request(7, [[node]]))
    s.ask("too many assignments", request(6, [[node], [node]]))
    s.ask("no assignments", request(6, []))
    s.ask("no replicas", request(6, [[]]))
    s.ask("unknown broker", request(6, [[node + 100]]))
    s.ask("broker twice", request(6, [[node, node]]))
    s.ask("two replicas where the topic has one", request(6, [[node, node + 1]]))
    s.ask("unknown topic", request(3, name=s.name("missing")))
    s.ask("invalid name", request(3, name="not a name"))
    s.ask("none", {"topics": [], "timeout": 1000})
    twice = request(8)["topics"] + request(9)["topics"]
    s.ask("twice in one request", {"topics": twice, "timeout": 1000})
    s.await_applied()
    s.ask("what is there now", _exists(t.name), api="metadata", version=12)
